"""Targets of gradients, their initial gradients, and gradients of unconnected sources."""

from __future__ import annotations

import enum

import jax

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable


class UnconnectedGradients(enum.Enum):
    """Result of `gradient` for a source on which the target does not depend.

    `NONE` results in None, `ZERO` in zeros of the shape of the source.

    Example:
      >>> x, y = tf.Variable([1.0, 2.0]), tf.Variable(3.0)
      >>> with tf.GradientTape() as tape:
      ...     loss = y * y
      >>> print(tape.gradient(loss, x, unconnected_gradients=tf.UnconnectedGradients.ZERO).numpy())
      [0. 0.]
    """

    NONE = "none"
    ZERO = "zero"


def convert_target(target: TensorLike | None) -> Tensor:
    """Convert a target of `gradient` to a tensor; raise TensorFlow's TypeError for None."""
    if target is None:
        raise TypeError(
            "Argument `target` should be a list or nested structure of Tensors, Variables or "
            "CompositeTensors to be differentiated, but received None."
        )
    return target if isinstance(target, Tensor) else convert_to_tensor(target)


def parse_unconnected(value: UnconnectedGradients | str) -> UnconnectedGradients:
    """Convert a member of the enumeration or its value, or raise TensorFlow's error."""
    try:
        return UnconnectedGradients(value)
    except ValueError:
        raise ValueError(
            f"Unknown value for unconnected_gradients: {value!r}; expected 'none' or 'zero'."
        ) from None


def make_initial_gradient(target: TensorLike, seed: TensorLike | None) -> Tensor:
    """Return the initial gradient of a target: ones, or the explicit seed."""
    value = convert_target(target)
    if seed is None:
        return apply(_ones_like, (value,))
    gradient = convert_to_tensor(seed, dtype_hint=value.dtype)
    if gradient.array.shape == value.array.shape:
        return gradient
    return apply(_broadcast_op, (gradient,), tuple(value.array.shape))


_ones_like = Op(
    "ones_like", lambda operands, _: jax.numpy.ones_like(operands[0]), differentiable=False
)
_broadcast_op = Op(
    "broadcast_to", lambda operands, static: jax.numpy.broadcast_to(operands[0], static)
)


def zeros_like(source: Tensor | Variable) -> Tensor:
    """Create zeros of the shape and dtype of a tensor or variable."""
    return Tensor(jax.numpy.zeros(tuple(source.shape), source.dtype.dtype))
