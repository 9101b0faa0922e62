"""What gradients are asked of: targets, what their gradients begin with, and sources that they do not depend on."""

from __future__ import annotations

import enum
from typing import Any

import jax

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor


class UnconnectedGradients(enum.Enum):
    """What `gradient` returns for a source that the target does not depend on.

    `NONE` gives None, `ZERO` gives zeros of the source's shape.

    Example:
      >>> import meshflow as tf
      >>> x, y = tf.Variable([1.0, 2.0]), tf.Variable(3.0)
      >>> with tf.GradientTape() as tape:
      ...     loss = y * y
      >>> print(tape.gradient(loss, x, unconnected_gradients=tf.UnconnectedGradients.ZERO).numpy())
      [0. 0.]
    """

    NONE = "none"
    ZERO = "zero"


def as_target(target: Any) -> Tensor:
    """A target of `gradient` as a tensor; TensorFlow's TypeError for None."""
    if target is None:
        raise TypeError(
            "Argument `target` should be a list or nested structure of Tensors, Variables or "
            "CompositeTensors to be differentiated, but received None."
        )
    return target if isinstance(target, Tensor) else convert_to_tensor(target)


def as_unconnected(kind: UnconnectedGradients | str) -> UnconnectedGradients:
    """The enumeration's member for it or for its value, or TensorFlow's ValueError."""
    try:
        return UnconnectedGradients(kind)
    except ValueError:
        raise ValueError(
            f"Unknown value for unconnected_gradients: {kind!r}; expected 'none' or 'zero'."
        ) from None


def starting_gradient(target: Any, seed: Any) -> Tensor:
    """The gradient that a target's walk begins with: ones, or the one given."""
    value = as_target(target)
    if seed is None:
        return _ones_like(value)
    given = convert_to_tensor(seed, dtype_hint=value.dtype)
    if given._value.shape == value._value.shape:
        return given
    return apply(_broadcast_op, (given,), tuple(value._value.shape))


_ones = Op("ones_like", lambda operands, _: jax.numpy.ones_like(operands[0]), differentiable=False)
_broadcast_op = Op(
    "broadcast_to", lambda operands, static: jax.numpy.broadcast_to(operands[0], static)
)


def _ones_like(tensor: Tensor) -> Tensor:
    return apply(_ones, (tensor,))


def zeros_like(source: Any) -> Tensor:
    """Zeros of a tensor's or variable's shape and dtype."""
    return Tensor(jax.numpy.zeros(tuple(source.shape), source.dtype.dtype))
