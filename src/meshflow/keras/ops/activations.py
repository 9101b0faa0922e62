"""Activation functions.

Example:
  >>> ops.relu([-1.0, 2.0]).numpy().tolist()
  [0.0, 2.0]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values import dtypes
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras import registry
from meshflow.keras.ops.graph_calls import as_single_layer
from meshflow.keras.ops.op_factories import array_op, make_unary
from meshflow.keras.ops.promotion import Axis, as_float
from meshflow.ops import array as array_ops
from meshflow.ops import math
from meshflow.ops import nn as nn_ops

__all__ = [
    "celu",
    "elu",
    "gelu",
    "glu",
    "hard_shrink",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "leaky_relu",
    "log_sigmoid",
    "log_softmax",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_shrink",
    "softmax",
    "softplus",
    "softsign",
    "sparse_plus",
    "sparse_sigmoid",
    "sparsemax",
    "squareplus",
    "swish",
    "tanh_shrink",
    "threshold",
]


relu = make_unary("relu", nn_ops.relu, "`max(x, 0)`", keeps=True)
relu6 = make_unary("relu6", nn_ops.relu6, "`min(max(x, 0), 6)`", keeps=True)
sigmoid = make_unary("sigmoid", math.sigmoid, "`1 / (1 + exp(-x))`")
log_sigmoid = make_unary("log_sigmoid", math.log_sigmoid, "`log(1 / (1 + exp(-x)))`")
softplus = make_unary("softplus", nn_ops.softplus, "`log(1 + exp(x))`")
softsign = make_unary("softsign", nn_ops.softsign, "`x / (1 + |x|)`")


def _silu(x: Tensor) -> Tensor:
    return x * math.sigmoid(x) if dtypes.as_dtype(x.dtype).is_complex else nn_ops.silu(x)


silu = make_unary("silu", _silu, "`x * sigmoid(x)`")
swish = silu
selu = make_unary("selu", nn_ops.selu, "the scaled exponential linear unit (arXiv:1706.02515)")
hard_sigmoid = make_unary(
    "hard_sigmoid", jax.nn.hard_sigmoid, "`x / 6 + 1 / 2`, clipped to [0, 1],", array=True
)
# `tf.keras.activations.hard_sigmoid` is a different function, so files need another name.
registry.set_config_name(hard_sigmoid, "keras.ops.hard_sigmoid")


hard_silu = make_unary(
    "hard_silu", jax.nn.hard_silu, "`x * hard_sigmoid(x)` (arXiv:1905.02244)", array=True
)
hard_swish = hard_silu
hard_tanh = make_unary("hard_tanh", jax.nn.hard_tanh, "`x`, clipped to [-1, 1],", array=True)
tanh_shrink = make_unary("tanh_shrink", lambda x: x - jnp.tanh(x), "`x - tanh(x)`", array=True)
sparse_plus = make_unary(
    "sparse_plus",
    lambda x: jnp.where(x <= -1, 0, jnp.where(x < 1, (x + 1) ** 2 / 4, x)).astype(x.dtype),
    "0 if `x <= -1`, `x` if `x >= 1`, otherwise `(x + 1)^2 / 4`",
    array=True,
)
sparse_sigmoid = make_unary(
    "sparse_sigmoid",
    lambda x: jnp.clip((x + 1) / 2, 0, 1),
    "`(x + 1) / 2`, clipped to [0, 1],",
    array=True,
)


@op(same=(), name="elu")
def _elu(x: TensorLike, alpha: float) -> Any:
    return jax.nn.elu(x, alpha)


def elu(x: TensorLike, alpha: float = 1.0) -> Tensor:
    """Compute `x` for positive x and `alpha (exp(x) - 1)` for negative x.

    Args:
      x: A tensor.
      alpha: Scale for negative x.

    Example:
      >>> ops.elu([1.0]).numpy().tolist()
      [1.0]
    """
    return _elu(as_float(x), alpha)


@array_op(as_float)
def celu(x: TensorLike, alpha: float = 1.0) -> Tensor:
    """Compute `max(x, 0) + min(0, alpha (exp(x / alpha) - 1))` (arXiv:1704.07483).

    Args:
      x: A tensor.
      alpha: Scale for negative x.

    Example:
      >>> ops.celu([1.0]).numpy().tolist()
      [1.0]
    """
    return jax.nn.celu(x, alpha)


def gelu(x: TensorLike, approximate: bool = True) -> Tensor:
    """Compute `x P(X <= x)` for a normally distributed X (arXiv:1606.08415).

    Args:
      x: A tensor.
      approximate: Whether to approximate the error function by tanh.

    Example:
      >>> ops.gelu([0.0]).numpy().tolist()
      [0.0]
    """
    return nn_ops.gelu(as_float(x), approximate)


def leaky_relu(x: TensorLike, negative_slope: float = 0.2) -> Tensor:
    """Compute `x` for positive x and `negative_slope * x` for negative x.

    Args:
      x: A tensor.
      negative_slope: Slope for negative x.

    Example:
      >>> ops.leaky_relu([-1.0, 1.0], 0.5).numpy().tolist()
      [-0.5, 1.0]
    """
    return nn_ops.leaky_relu(as_float(x), negative_slope)


def glu(x: TensorLike, axis: int = -1) -> Tensor:
    """Multiply the first half by the sigmoid of the second half (arXiv:1612.08083).

    Args:
      x: A tensor.
      axis: Axis to split into halves.

    Example:
      >>> ops.glu([2.0, 0.0]).numpy().tolist()
      [1.0]
    """
    x = as_float(x)
    if x.shape[axis] is not None and x.shape[axis] % 2:
        raise ValueError(
            f"axis size must be divisible by 2. Received: x.shape={tuple(x.shape)} with axis={axis}"
        )
    first, second = array_ops.split(x, 2, axis)
    return first * math.sigmoid(second)


@op(same=(), name="threshold")
def _threshold(x: TensorLike, threshold: float, default: float, kind: str) -> Any:
    if kind == "hard":
        result = jnp.where(jnp.abs(x) > threshold, x, 0)
    elif kind == "soft":
        result = jnp.where(
            x > threshold, x - threshold, jnp.where(x < -threshold, x + threshold, 0)
        )
    else:
        result = jnp.where(x > threshold, x, default)
    return result.astype(x.dtype)


@as_single_layer()
def threshold(x: TensorLike, threshold: float, default_value: float) -> Tensor:
    """Replace elements that are not above a threshold.

    Args:
      x: A tensor.
      threshold: The threshold.
      default_value: Value of the replaced elements.

    Example:
      >>> ops.threshold([1.0, 3.0], 2.0, 0.0).numpy().tolist()
      [0.0, 3.0]
    """
    return _threshold(as_float(x), threshold, default_value, "plain")


@as_single_layer()
def hard_shrink(x: TensorLike, threshold: float = 0.5) -> Tensor:
    """Replace elements near 0 by 0.

    Args:
      x: A tensor.
      threshold: Maximum absolute value of the replaced elements.

    Example:
      >>> ops.hard_shrink([0.25, -1.0]).numpy().tolist()
      [0.0, -1.0]
    """
    return _threshold(as_float(x), threshold, 0, "hard")


@as_single_layer()
def soft_shrink(x: TensorLike, threshold: float = 0.5) -> Tensor:
    """Shrink elements towards 0 by a threshold.

    Args:
      x: A tensor.
      threshold: Amount by which absolute values shrink.

    Example:
      >>> ops.soft_shrink([0.25, -1.0]).numpy().tolist()
      [0.0, -0.5]
    """
    return _threshold(as_float(x), threshold, 0, "soft")


@array_op(as_float)
def squareplus(x: TensorLike, b: float = 4) -> Tensor:
    """Compute `(x + sqrt(x^2 + b)) / 2` (arXiv:2112.11687).

    Args:
      x: A tensor.
      b: Smoothness.

    Example:
      >>> ops.squareplus([0.0]).numpy().tolist()
      [1.0]
    """
    return (x + jnp.sqrt(x * x + b)) / 2


def _apply_over_axes(function: Callable[..., Tensor], x: TensorLike, axis: Axis) -> Tensor:
    """Apply `function` over one axis, several axes, or all of them."""
    x = as_float(x)
    if isinstance(axis, int):
        return function(x, axis)
    rank = len(x.shape)
    axes = list(range(rank)) if axis is None else [a % rank for a in axis]
    order = [*(i for i in range(rank) if i not in axes), *axes]
    transposed = array_ops.transpose(x, order)
    sizes = list(transposed.shape)[: rank - len(axes)]
    result = array_ops.reshape(
        function(array_ops.reshape(transposed, [*sizes, -1]), -1), list(transposed.shape)
    )
    return array_ops.transpose(result, np.argsort(order).tolist())


def softmax(x: TensorLike, axis: Axis = -1) -> Tensor:
    """Compute `exp(x) / sum(exp(x))`.

    Args:
      x: A tensor.
      axis: Axis or axes of the sum; None for all.

    Example:
      >>> ops.softmax([0.0, 0.0]).numpy().tolist()
      [0.5, 0.5]
    """
    return _apply_over_axes(nn_ops.softmax, x, axis)


def log_softmax(x: TensorLike, axis: Axis = -1) -> Tensor:
    """Compute the logarithm of `softmax`.

    Args:
      x: A tensor.
      axis: Axis or axes of the sum; None for all.

    Example:
      >>> ops.log_softmax([0.0]).numpy().tolist()
      [0.0]
    """
    return _apply_over_axes(nn_ops.log_softmax, x, axis)


@array_op(as_float)
def sparsemax(x: TensorLike, axis: int = -1) -> Tensor:
    """Compute the nearest probability distribution, a sparse one (arXiv:1602.02068).

    Args:
      x: A tensor.
      axis: Axis of the probabilities.

    Example:
      >>> ops.sparsemax([2.0, 0.0]).numpy().tolist()
      [1.0, 0.0]
    """
    z = jnp.moveaxis(x, axis, -1)
    ordered = -jnp.sort(-z, -1)
    count = jnp.arange(1, z.shape[-1] + 1, dtype=x.dtype)
    totals = jnp.cumsum(ordered, -1)
    support = (1 + count * ordered > totals).astype(x.dtype)
    size = jnp.sum(support, -1, keepdims=True)
    level = (jnp.sum(ordered * support, -1, keepdims=True) - 1) / size
    return jnp.moveaxis(jnp.maximum(z - level, 0), -1, axis)
