"""Activation functions, dropout, embedding lookup."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import static_value
from meshflow.core.runtime import philox
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.random import op_key
from meshflow.ops.array import where, zeros_like
from meshflow.ops.math import log_sigmoid, sigmoid, tanh
from meshflow.ops.random import counts_of, seed_key

__all__ = [
    "bias_add",
    "crelu",
    "dropout",
    "elu",
    "gelu",
    "general_dropout",
    "leaky_relu",
    "log_sigmoid",
    "log_softmax",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "softsign",
    "stateless_dropout",
    "swish",
    "tanh",
]


@op(kinds="if")
def relu(features: TensorLike, name: str | None = None) -> Tensor:
    """`max(x, 0)`, with gradient 0 at 0.

    The result has the shape of the argument.

    Example:
      >>> import meshflow as tf
      >>> tf.nn.relu([-1.0, 2.0]).numpy()
      array([0., 2.], dtype=float32)
    """
    return jax.nn.relu(features)


@op(kinds="if")
def relu6(features: TensorLike, name: str | None = None) -> Tensor:
    """`min(max(x, 0), 6)`.

    The result has the shape of the argument.

    Args:
      features: a tensor of real numbers.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.nn.relu6([-2.0, 3.0, 8.0]).numpy())
      [0. 3. 6.]
    """
    if jnp.issubdtype(features.dtype, jnp.integer):
        return jnp.clip(features, 0, 6)
    return jax.nn.relu6(features)


@op(kinds="if")
def leaky_relu(features: TensorLike, alpha: float = 0.2, name: str | None = None) -> Tensor:
    """x where positive, `alpha * x` elsewhere; of integers float32.

    The result has the shape of the argument.

    Args:
      features: a tensor of real numbers.
      alpha: slope of negative numbers.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.nn.leaky_relu([-2.0, 3.0], alpha=0.1).numpy().round(3))
      [-0.2  3. ]
    """
    if jnp.issubdtype(features.dtype, jnp.integer):
        features = features.astype(jnp.float32)
    return jnp.where(features > 0, features, features * jnp.asarray(alpha, features.dtype))


@op(kinds="f")
def elu(features: TensorLike, name: str | None = None) -> Tensor:
    """x where positive, `e^x - 1` elsewhere.

    The result has the shape of the argument.

    Args:
      features: a floating tensor.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.nn.elu([-1.0, 3.0]).numpy().round(3))
      [-0.632  3.   ]
    """
    return jax.nn.elu(features)


@op(kinds="f")
def selu(features: TensorLike, name: str | None = None) -> Tensor:
    """Scaled ELU (Klambauer et al. 2017, arXiv:1706.02515).

    The result has the shape of the argument.

    Args:
      features: a floating tensor.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.nn.selu([-1.0, 1.0]).numpy().round(3))
      [-1.111  1.051]
    """
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    small = alpha * jnp.expm1(jnp.minimum(features, 0))
    return scale * jnp.where(features >= 0, features, small)


@op(kinds="f")
def gelu(features: TensorLike, approximate: bool = False, name: str | None = None) -> Tensor:
    """`x * P(X <= x)` for a standard normal X (arXiv:1606.08415).

    The result has the shape of the argument.

    Args:
      features: a tensor.
      approximate: whether the tanh approximation is used.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.nn.gelu([-1.0, 1.0]).numpy().round(3))
      [-0.159  0.841]
    """
    return jax.nn.gelu(features, approximate=approximate)


@op(kinds="f")
def silu(features: TensorLike, beta: float = 1.0) -> Tensor:
    """`x * sigmoid(beta * x)`.

    The result has the shape of the argument.

    Args:
      features: a floating tensor.
      beta: factor in the sigmoid.

    Example:
      >>> import meshflow as tf
      >>> print(tf.nn.silu([-1.0, 1.0]).numpy().round(3))
      [-0.269  0.731]
    """
    return features * jax.nn.sigmoid(jnp.asarray(beta, features.dtype) * features)


swish = silu


@op(kinds="f")
def softplus(features: TensorLike, name: str | None = None) -> Tensor:
    """`log(1 + e^x)`.

    The result has the shape of the argument.

    Args:
      features: a floating tensor.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.nn.softplus([-1.0, 0.0, 50.0]).numpy().round(3))
      [ 0.313  0.693 50.   ]
    """
    return jax.nn.softplus(features)


@op(kinds="f")
def softsign(features: TensorLike, name: str | None = None) -> Tensor:
    """`x / (1 + |x|)`.

    The result has the shape of the argument.

    Args:
      features: a floating tensor.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.nn.softsign([-1.0, 3.0]).numpy())
      [-0.5   0.75]
    """
    return jax.nn.soft_sign(features)


@op(kinds="f")
def crelu(features: TensorLike, axis: int = -1, name: str | None = None) -> Tensor:
    """relu(x) and relu(-x), joined along `axis`.

    The result has twice the size along `axis`.

    Args:
      features: a tensor of real numbers.
      axis: the dimension, which becomes twice as large.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.nn.crelu([-2.0, 3.0]).numpy())
      [0. 3. 2. 0.]
    """
    return jnp.concatenate([jax.nn.relu(features), jax.nn.relu(-features)], axis)


@op(kinds="f")
def softmax(logits: TensorLike, axis: Any = None, name: str | None = None) -> Tensor:
    """`exp(x) / sum(exp(x))` along a dimension, the last by default.

    The result has the shape of the argument.

    Example:
      >>> import meshflow as tf
      >>> tf.nn.softmax([1.0, 1.0]).numpy()
      array([0.5, 0.5], dtype=float32)
    """
    return jax.nn.softmax(logits, axis=-1 if axis is None else axis)


@op(kinds="f")
def log_softmax(logits: TensorLike, axis: Any = None, name: str | None = None) -> Tensor:
    """`x - log(sum(exp(x)))` along a dimension, the last by default.

    The result has the shape of the argument.

    Args:
      logits: a floating tensor.
      axis: the dimension; default the last.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.nn.log_softmax([0.0, 0.0, 1000.0]).numpy())
      [-1000. -1000.     0.]
    """
    return jax.nn.log_softmax(logits, axis=-1 if axis is None else axis)


@op
def bias_add(
    value: TensorLike, bias: TensorLike, data_format: str | None = None, name: str | None = None
) -> Tensor:
    """Adds a vector to the channels.

    The result has the shape of `value`.

    Args:
      value: a tensor; channels last, or second for data_format 'NC...'.
      bias: vector of the number of channels.
      data_format: 'N...C' or 'NC...'; default channels last.
      name: ignored.

    Raises:
      ValueError: when the sizes differ.

    Example:
      >>> import meshflow as tf
      >>> print(tf.nn.bias_add([[1.0, 2.0], [3.0, 4.0]], [10.0, 20.0]).numpy())
      [[11. 22.]
       [13. 24.]]
    """
    if data_format is not None and not (
        data_format.startswith("NC") or (data_format.startswith("N") and data_format.endswith("C"))
    ):
        raise ValueError(
            f"`data_format` must be of the form `N...C` or `NC...`, got {data_format!r}."
        )
    if value.ndim < 2:
        raise InvalidValueError(f"bias_add: value must be at least 2D, got {list(value.shape)}.")
    first = data_format is not None and data_format.startswith("NC") and data_format != "N...C"
    channels = value.shape[1 if first else -1]
    if bias.ndim != 1 or bias.shape[0] != channels:
        raise ValueError(
            f"bias must be a vector of the {channels} channels, got shape {list(bias.shape)}."
        )
    return value + (bias.reshape((-1,) + (1,) * (value.ndim - 2)) if first else bias)


@op(same=("x",), kinds="f", name="dropout")
def _dropout(x: TensorLike, key: TensorLike, rate: TensorLike, noise_shape: Any) -> Tensor:
    shape = (
        x.shape
        if noise_shape is None
        else tuple(s if n is None else n for n, s in zip(noise_shape, x.shape, strict=True))
    )
    kept = philox.uniform(key, shape, x.dtype) >= rate.astype(x.dtype)
    scale = (1 / (1 - rate.astype(jnp.float32))).astype(x.dtype)
    return jnp.where(kept, x * scale, jnp.zeros((), x.dtype))


def dropout_from_key(x: TensorLike, key: Tensor, rate: Any, noise_shape: Any = None) -> Tensor:
    """Dropout with a given key."""
    shape = None if noise_shape is None else static_value(noise_shape, "noise_shape")
    return _dropout(x, key, convert_to_tensor(rate, dtype_hint="float32"), shape)


def dropout_counts(x: Tensor, noise_shape: Any = None) -> Any:
    """How many numbers of the counter a mask uses."""
    sizes = tuple(x.shape)
    if noise_shape is not None:
        known = static_value(noise_shape, "noise_shape")
        sizes = tuple(n if s is None else s for s, n in zip(known, sizes, strict=True))
    # Sizes that a symbolic tensor leaves open count once.
    return counts_of(*(1 if n is None else n for n in sizes))


def dropout(
    x: TensorLike, rate: Any, noise_shape: Any = None, seed: Any = None, name: str | None = None
) -> Tensor:
    """Sets a random fraction of elements to 0 and scales the others up.

    Args:
      x: a floating tensor.
      rate: the fraction, in [0, 1).
      noise_shape: shape of the mask; sizes of 1 share a decision.
      seed: seed of this op.
      name: ignored.

    Returns:
      A tensor of the shape of `x`.

    Raises:
      ValueError: when rate is outside [0, 1).

    Example:
      >>> import meshflow as tf
      >>> y = tf.nn.dropout(tf.ones([1000]), rate=0.5)
      >>> sorted(set(y.numpy().tolist())), bool(400 < tf.math.count_nonzero(y) < 600)
      ([0.0, 2.0], True)
    """
    dtype = getattr(x, "dtype", None)
    if dtype is not None and not as_dtype(dtype).is_floating:
        raise ValueError(
            f"`x.dtype` must be a floating point tensor as `x` will be scaled. Received: x_dtype={dtype}"
        )
    if isinstance(rate, str):
        raise ValueError(f"`rate` must be a scalar or scalar tensor. Received: rate={rate}")
    if not hasattr(x, "_keras_history"):
        x = convert_to_tensor(x)
        if not x.dtype.is_floating:
            raise ValueError(f"`x` must be a floating tensor as it is scaled, got {x.dtype.name}.")
    if isinstance(rate, (int, float)):
        if not 0 <= rate < 1:
            raise ValueError(
                f"`rate` must be a scalar tensor or a float in the range [0, 1). Received: rate={rate}"
            )
        if rate == 0:
            return convert_to_tensor(x)
    used = dropout_counts(x, noise_shape)
    return dropout_from_key(x, op_key(seed, used, f"uniform {x.dtype.name}"), rate, noise_shape)


def general_dropout(
    x: TensorLike,
    rate: Any,
    uniform_sampler: Any,
    noise_shape: Any = None,
    name: str | None = None,
) -> Tensor:
    """`dropout` that draws its mask with a function.

    Args:
      x: a floating tensor.
      rate: the fraction set to 0, in [0, 1).
      uniform_sampler: function (shape, dtype) -> uniform numbers in [0, 1).
      noise_shape: shape of the mask; sizes of 1 share a decision.
      name: ignored.

    Returns:
      A tensor of the shape of `x`.

    Example:
      >>> import meshflow as tf
      >>> alternating = lambda shape, dtype: tf.constant([0.1, 0.9] * (shape[0] // 2), dtype)
      >>> print(tf.nn.general_dropout(tf.ones([4]), 0.5, alternating).numpy())
      [0. 2. 0. 2.]
    """
    x = convert_to_tensor(x)
    shape = x.shape.as_list() if noise_shape is None else static_value(noise_shape, "noise_shape")
    shape = [n if s is None else s for s, n in zip(shape, x.shape, strict=True)]
    kept = uniform_sampler(shape, x.dtype) >= rate
    return where(kept, x * (1.0 / (1.0 - rate)), zeros_like(x))


def stateless_dropout(
    x: TensorLike,
    rate: Any,
    seed: Any,
    rng_alg: Any = None,
    noise_shape: Any = None,
    name: str | None = None,
) -> Tensor:
    """`dropout` whose mask depends on the seed (two integers) only.

    Args:
      x: a floating tensor.
      rate: the fraction set to 0, in [0, 1).
      seed: two integers.
      rng_alg: ignored; the algorithm is threefry.
      noise_shape: shape of the mask; sizes of 1 share a decision.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> a, b = (tf.nn.stateless_dropout(tf.ones([100]), 0.5, seed=[1, 2]) for _ in range(2))
      >>> tf.reduce_all(a == b).numpy().item()
      True
    """
    return dropout_from_key(x, seed_key(seed), rate, noise_shape)
