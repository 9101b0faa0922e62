"""`tf.experimental.dlpack`: arrays shared with other frameworks without copying."""

from __future__ import annotations

from typing import Any

import jax

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor

__all__ = ["from_dlpack", "to_dlpack"]

_CPU = (1, 0)


class _Capsule:
    """An array's owner, as far as a capsule tells."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU


def to_dlpack(tf_tensor: Any) -> Any:
    """A capsule with a tensor's memory, which stays alive as long as the capsule's user needs it.

    Args:
      tf_tensor: a tensor with a value.

    Returns:
      A `PyCapsule`, to be used once.

    Example:
      >>> import meshflow as tf
      >>> capsule = tf.experimental.dlpack.to_dlpack(tf.constant([1.0, 2.0]))
      >>> tf.experimental.dlpack.from_dlpack(capsule).numpy()
      array([1., 2.], dtype=float32)
    """
    tensor = convert_to_tensor(tf_tensor)
    tensor._concrete("a tensor that is shared")
    return jax.device_put(tensor._value).__dlpack__()


def from_dlpack(dlcapsule: Any) -> Tensor:
    """A tensor in the memory of another framework's array.

    Args:
      dlcapsule: a capsule of `to_dlpack` or of another framework, in the CPU's memory, or an array with the method
        `__dlpack__`, on any device. The memory must not be written to afterwards.

    Raises:
      InvalidArgumentError: when it is neither, or was used before.
    """
    array = dlcapsule if hasattr(dlcapsule, "__dlpack__") else _Capsule(dlcapsule)
    try:
        return Tensor(jax.dlpack.from_dlpack(array))
    except Exception as error:
        raise InvalidArgumentError(
            f"from_dlpack: expected a DLPack capsule that was not used yet, got {dlcapsule!r}: {error}"
        ) from None
