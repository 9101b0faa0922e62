"""Activation functions, bias and dropout."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.dispatch.symbolic_calls import accept_symbolic, dispatch_composites
from meshflow.core.runtime import philox
from meshflow.core.runtime.broadcasting import combine, select
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.random_streams import draw_op_key
from meshflow.ops.array import where, zeros_like
from meshflow.ops.array.shaping import StaticInts, normalize_axis
from meshflow.ops.math import cast, log_sigmoid, sigmoid, tanh
from meshflow.ops.random import count_counters, derive_key

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


def _compute_relu(x: jax.Array) -> jax.Array:
    return lax.max(x, x.dtype.type(0))


# Passes recognize the call by the name of JAX's function. The derivative of that function takes longer to trace.
_compute_relu.__name__ = "relu"
_rectify = jax.custom_jvp(jax.jit(_compute_relu))


@_rectify.defjvp
def _rectify_jvp(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    (x,), (tangent,) = primals, tangents
    value, is_positive = _rectify(x), lax.gt(x, x.dtype.type(0))
    return value, lax.select(is_positive, tangent, lax.full_like(tangent, 0))


@op(kinds="if")
def relu(features: TensorLike, name: str | None = None) -> Tensor:
    """Compute `max(x, 0)` elementwise, with gradient 0 at 0.

    Example:
      >>> tf.nn.relu([-1.0, 2.0]).numpy()
      array([0., 2.], dtype=float32)
    """
    return _rectify(features)


@op(kinds="if")
def relu6(features: TensorLike, name: str | None = None) -> Tensor:
    """Compute `min(max(x, 0), 6)` elementwise.

    Example:
      >>> print(tf.nn.relu6([-2.0, 3.0, 8.0]).numpy())
      [0. 3. 6.]
    """
    if jnp.issubdtype(features.dtype, jnp.integer):
        return jnp.clip(features, 0, 6)
    return jax.nn.relu6(features)


@op(kinds="if")
def leaky_relu(features: TensorLike, alpha: float = 0.2, name: str | None = None) -> Tensor:
    """Compute `x if x > 0 else alpha * x` elementwise, keeping the shape.

    Args:
      features: A tensor of real numbers; integers are converted to float32.
      alpha: Slope for negative values.
      name: Ignored.

    Example:
      >>> print(tf.nn.leaky_relu([-2.0, 3.0], alpha=0.1).numpy().round(3))
      [-0.2  3. ]
    """
    if jnp.issubdtype(features.dtype, jnp.integer):
        features = features.astype(jnp.float32)
    dtype = features.dtype.type
    return select(
        lax.gt(features, dtype(0)), features, combine(lax.mul, features, jnp.asarray(alpha, dtype))
    )


@op(kinds="f")
def elu(features: TensorLike, name: str | None = None) -> Tensor:
    """Compute `x if x > 0 else exp(x) - 1` elementwise, keeping the shape.

    Example:
      >>> print(tf.nn.elu([-1.0, 3.0]).numpy().round(3))
      [-0.632  3.   ]
    """
    return jax.nn.elu(features)


@op(kinds="f")
def selu(features: TensorLike, name: str | None = None) -> Tensor:
    """Compute the scaled ELU elementwise, keeping the shape.

    Example:
      >>> print(tf.nn.selu([-1.0, 1.0]).numpy().round(3))
      [-1.111  1.051]

    References:
      Klambauer et al., Self-normalizing neural networks, 2017, arXiv:1706.02515.
    """
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    negative = alpha * jnp.expm1(jnp.minimum(features, 0))
    return scale * jnp.where(features >= 0, features, negative)


@op(kinds="f")
def gelu(features: TensorLike, approximate: bool = False, name: str | None = None) -> Tensor:
    """Compute `x * P(X <= x)` elementwise for a standard normal X.

    Args:
      features: A floating-point tensor of any shape.
      approximate: Whether to use the tanh approximation.
      name: Ignored.

    Example:
      >>> print(tf.nn.gelu([-1.0, 1.0]).numpy().round(3))
      [-0.159  0.841]

    References:
      Hendrycks and Gimpel, Gaussian error linear units, 2016, arXiv:1606.08415.
    """
    return jax.nn.gelu(features, approximate=approximate)


@op(kinds="f", name="silu")
def _silu(features: TensorLike, beta: float = 1.0) -> Tensor:
    return features * jax.nn.sigmoid(jnp.asarray(beta, features.dtype) * features)


@op(same=(), kinds="f", name="silu_of_scaled")
def _scale_silu(features: TensorLike, beta: TensorLike) -> Tensor:
    return features * jax.nn.sigmoid(beta.astype(features.dtype) * features)


@dispatch_composites
@accept_symbolic
def silu(features: TensorLike, beta: TensorLike = 1.0) -> Tensor:
    """Compute `x * sigmoid(beta * x)` elementwise.

    Args:
      features: A floating-point tensor of any shape.
      beta: Factor in the sigmoid; a tensor or variable may be trained.

    Example:
      >>> print(tf.nn.silu([-1.0, 1.0]).numpy().round(3))
      [-0.269  0.731]
    """
    if isinstance(beta, (int, float)):
        return _silu(features, beta)
    return _scale_silu(features, beta)


swish = silu


@op(kinds="f")
def softplus(features: TensorLike, name: str | None = None) -> Tensor:
    """Compute `log(1 + exp(x))` elementwise, keeping the shape.

    Example:
      >>> print(tf.nn.softplus([-1.0, 0.0, 50.0]).numpy().round(3))
      [ 0.313  0.693 50.   ]
    """
    return jax.nn.softplus(features)


@op(kinds="f")
def softsign(features: TensorLike, name: str | None = None) -> Tensor:
    """Compute `x / (1 + |x|)` elementwise, keeping the shape.

    Example:
      >>> print(tf.nn.softsign([-1.0, 3.0]).numpy())
      [-0.5   0.75]
    """
    return jax.nn.soft_sign(features)


@op(kinds="if")
def crelu(features: TensorLike, axis: int = -1, name: str | None = None) -> Tensor:
    """Concatenate `relu(x)` and `relu(-x)` along an axis.

    Args:
      features: A tensor of real numbers.
      axis: The axis; its size doubles.
      name: Ignored.

    Example:
      >>> print(tf.nn.crelu([-2.0, 3.0]).numpy())
      [0. 3. 2. 0.]
    """
    return jnp.concatenate([jax.nn.relu(features), jax.nn.relu(-features)], axis)


def _check_softmax_axis(logits: jax.Array, axis: int | None) -> int:
    """Return the axis, by default the last, after checking that the logits have it."""
    if not logits.ndim:
        raise InvalidValueError("logits must have >= 1 dimension, got a scalar. [Op:Softmax]")
    return normalize_axis(-1 if axis is None else axis, logits.ndim, "softmax")


@op(kinds="f")
def softmax(logits: TensorLike, axis: int | None = None, name: str | None = None) -> Tensor:
    """Compute `exp(x) / sum(exp(x))` along an axis.

    Args:
      logits: A floating-point tensor of any shape.
      axis: The axis; by default the last.
      name: Ignored.

    Example:
      >>> tf.nn.softmax([1.0, 1.0]).numpy()
      array([0.5, 0.5], dtype=float32)
    """
    axis = _check_softmax_axis(logits, axis)
    if logits.dtype.itemsize < 4:
        # Sums of float16 are computed in float32.
        return jax.nn.softmax(logits, axis=axis)
    return _compute_softmax(logits, axis)


def _compute_softmax(logits: jax.Array, axis: int) -> jax.Array:
    """Compute the same equations as JAX's function, which takes longer to trace."""
    high = lax.max(logits.dtype.type(-np.inf), lax.reduce_max(logits, (axis,)))
    # The softmax does not depend on the subtracted maximum, so neither does its gradient.
    powers = lax.exp(lax.sub(logits, lax.stop_gradient(lax.expand_dims(high, (axis,)))))
    return lax.div(powers, _sum_along(powers, axis))


def _sum_along(x: jax.Array, axis: int) -> jax.Array:
    return lax.expand_dims(lax.reduce_sum(x, (axis,)), (axis,))


@op(kinds="f")
def log_softmax(logits: TensorLike, axis: int | None = None, name: str | None = None) -> Tensor:
    """Compute `x - log(sum(exp(x)))` along an axis.

    Args:
      logits: A floating-point tensor of any shape.
      axis: The axis; by default the last.
      name: Ignored.

    Example:
      >>> print(tf.nn.log_softmax([0.0, 0.0, 1000.0]).numpy())
      [-1000. -1000.     0.]
    """
    return jax.nn.log_softmax(logits, axis=_check_softmax_axis(logits, axis))


@op
def bias_add(
    value: TensorLike, bias: TensorLike, data_format: str | None = None, name: str | None = None
) -> Tensor:
    """Add a bias vector to the channels.

    Args:
      value: A tensor of rank 2 or more, with the channels in the last axis, or in the second for
        'NC...'.
      bias: Vector with one value per channel.
      data_format: 'N...C' (default) or 'NC...'.
      name: Ignored.

    Raises:
      ValueError: If the sizes differ.

    Example:
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
    is_channels_first = (
        data_format is not None and data_format.startswith("NC") and data_format != "N...C"
    )
    channels = value.shape[1 if is_channels_first else -1]
    if bias.ndim != 1 or bias.shape[0] != channels:
        raise ValueError(
            f"bias must be a vector of the {channels} channels, got shape {list(bias.shape)}."
        )
    aligned = bias.reshape((-1,) + (1,) * (value.ndim - 2)) if is_channels_first else bias
    return combine(lax.add, value, aligned)


@op(same=("x",), kinds="f", name="dropout")
def _dropout(
    x: TensorLike, key: TensorLike, rate: TensorLike, scale: TensorLike, noise_shape: tuple[int | None, ...] | None
) -> Tensor:  # fmt: skip
    shape = (
        x.shape
        if noise_shape is None
        else tuple(s if n is None else n for n, s in zip(noise_shape, x.shape, strict=True))
    )
    rate, scale = (lax.convert_element_type(a, x.dtype) for a in (rate, scale))
    mask = combine(lax.ge, philox.draw_uniform(key, shape, x.dtype), rate)
    scaled, zero = combine(lax.mul, x, scale), x.dtype.type(0)
    return select(mask, scaled, zero) if noise_shape is None else jnp.where(mask, scaled, zero)


def apply_dropout(
    x: TensorLike, key: Tensor, rate: TensorLike, noise_shape: StaticInts = None
) -> Tensor:
    """Apply dropout with an explicit key."""
    shape = None if noise_shape is None else to_static_value(noise_shape, "noise_shape")
    # A quotient of Python numbers has double precision: 3 / 2, not 1.5000001, for a rate of 1 / 3.
    is_number = isinstance(rate, (int, float)) and rate != 1
    scale = 1 / (1 - rate) if is_number else 1 / (1 - cast(rate, "float32"))
    rate, scale = (convert_to_tensor(v, dtype_hint="float32") for v in (rate, scale))
    return _dropout(x, key, rate, scale, shape)


def count_dropout_counters(x: Tensor, noise_shape: StaticInts = None) -> int | jax.Array:
    """Count the random counters that a dropout mask uses."""
    sizes = tuple(x.shape)
    if noise_shape is not None:
        fixed = to_static_value(noise_shape, "noise_shape")
        sizes = tuple(n if s is None else s for s, n in zip(fixed, sizes, strict=True))
    # Unknown sizes of a symbolic tensor count as 1.
    return count_counters(*(1 if n is None else n for n in sizes))


@dispatch_composites
def dropout(
    x: TensorLike,
    rate: TensorLike,
    noise_shape: StaticInts = None,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Set random elements to 0 and scale the others by `1 / (1 - rate)`.

    Args:
      x: A floating-point tensor.
      rate: Probability that an element is set to 0, in [0, 1).
      noise_shape: Shape of the mask, which is broadcast along axes of size 1; by default the shape
        of `x`.
      seed: Seed of the op.
      name: Ignored.

    Returns:
      A tensor with the shape of `x`.

    Raises:
      ValueError: If `rate` is outside of [0, 1) or `x` is not floating-point.

    Example:
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
    num_counters = count_dropout_counters(x, noise_shape)
    return apply_dropout(
        x, draw_op_key(seed, num_counters, f"uniform {x.dtype.name}"), rate, noise_shape
    )


@dispatch_composites
def general_dropout(
    x: TensorLike,
    rate: TensorLike,
    uniform_sampler: Callable[..., Tensor],
    noise_shape: StaticInts = None,
    name: str | None = None,
) -> Tensor:
    """Apply dropout with a mask from a sampler function.

    Args:
      x: A floating-point tensor.
      rate: Fraction of elements that are set to 0, in [0, 1).
      uniform_sampler: Function with the keywords `shape` and `dtype` -> uniform numbers in [0, 1).
      noise_shape: Shape of the mask, which is broadcast along axes of size 1; by default the shape
        of `x`.
      name: Ignored.

    Returns:
      A tensor with the shape of `x`.

    Example:
      >>> alternating = lambda shape, dtype: tf.constant([0.1, 0.9] * (shape[0] // 2), dtype)
      >>> print(tf.nn.general_dropout(tf.ones([4]), 0.5, alternating).numpy())
      [0. 2. 0. 2.]
    """
    x = convert_to_tensor(x)
    shape = (
        x.shape.as_list() if noise_shape is None else to_static_value(noise_shape, "noise_shape")
    )
    shape = [n if s is None else s for s, n in zip(shape, x.shape, strict=True)]
    mask = uniform_sampler(shape=shape, dtype=x.dtype) >= rate
    return where(mask, x * (1.0 / (1.0 - rate)), zeros_like(x))


@dispatch_composites
def stateless_dropout(
    x: TensorLike,
    rate: TensorLike,
    seed: TensorLike,
    rng_alg: str | None = None,
    noise_shape: StaticInts = None,
    name: str | None = None,
) -> Tensor:
    """Apply dropout with a mask that only depends on the seed.

    Args:
      x: A floating-point tensor.
      rate: Fraction of elements that are set to 0, in [0, 1).
      seed: Two integers.
      rng_alg: Ignored; the generator is Philox.
      noise_shape: Shape of the mask, which is broadcast along axes of size 1; by default the shape
        of `x`.
      name: Ignored.

    Example:
      >>> a, b = (tf.nn.stateless_dropout(tf.ones([100]), 0.5, seed=[1, 2]) for _ in range(2))
      >>> tf.reduce_all(a == b).numpy().item()
      True
    """
    return apply_dropout(x, derive_key(seed), rate, noise_shape)
