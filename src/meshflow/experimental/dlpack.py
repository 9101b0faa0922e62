"""`tf.experimental.dlpack`: exchange arrays with other frameworks without copies."""

from __future__ import annotations

from typing import Any

import jax

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor

__all__ = ["from_dlpack", "to_dlpack"]

_CPU_DEVICE = (1, 0)


class _Capsule:
    """Adapter with the DLPack methods of an array for a capsule in CPU memory."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU_DEVICE


def to_dlpack(tf_tensor: Any) -> Any:
    """Return a DLPack capsule, usable once, that shares the memory of a tensor.

    Example:
      >>> capsule = tf.experimental.dlpack.to_dlpack(tf.constant([1.0, 2.0]))
      >>> tf.experimental.dlpack.from_dlpack(capsule).numpy()
      array([1., 2.], dtype=float32)
    """
    tensor = convert_to_tensor(tf_tensor)
    tensor.require_value("a tensor that is shared")
    return jax.device_put(tensor.array).__dlpack__()


def from_dlpack(dlcapsule: Any) -> Tensor:
    """Return a tensor that shares the memory of another framework's array.

    Args:
      dlcapsule: Capsule of `to_dlpack` or of another framework in CPU memory, or an array with the
        method
        `__dlpack__` on any device. Do not write to the memory afterwards.

    Raises:
      InvalidArgumentError: The argument is neither, or the capsule was already consumed.
    """
    array = dlcapsule if hasattr(dlcapsule, "__dlpack__") else _Capsule(dlcapsule)
    try:
        return Tensor(jax.dlpack.from_dlpack(array))
    except Exception as error:
        raise InvalidArgumentError(
            f"from_dlpack: expected a DLPack capsule that was not consumed yet, got {dlcapsule!r}: {error}"
        ) from None
