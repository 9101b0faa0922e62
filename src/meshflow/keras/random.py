"""`tf.keras.random`: random numbers of Keras 3 from a seed, a seed generator or the global seed.

An integer seed returns the same numbers on each call, and a `SeedGenerator` different ones. None
uses the generator of the program (`tf.random.set_seed`, `tf.keras.utils.set_random_seed`).

Example:
  >>> a, b = (tf.keras.random.normal([3], seed=1) for _ in range(2))
  >>> bool(tf.reduce_all(a == b))
  True
"""

from __future__ import annotations

import random as python_random
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.module import Module
from meshflow.core.variables.random_streams import make_jax_key
from meshflow.core.variables.variable import Variable
from meshflow.environment.jax_internals import trace_state_clean
from meshflow.keras.settings import floatx
from meshflow.ops import array, casting
from meshflow.ops import random as random_ops
from meshflow.ops.array.creation import as_sizes

__all__ = [
    "SeedGenerator",
    "beta",
    "binomial",
    "categorical",
    "dropout",
    "gamma",
    "normal",
    "randint",
    "shuffle",
    "truncated_normal",
    "uniform",
]


class SeedGenerator(Module):
    """Sequence of seeds: a variable `[seed, counter]`.

    Args:
      seed: First seed; random by default.
      name: Name of the generator.
      **kwargs: Must be empty.

    Attributes:
      seed: First seed.
      state: The variable, int64 of shape [2].

    Example:
      >>> seeds = tf.keras.random.SeedGenerator(seed=3)
      >>> [seeds.next().numpy().tolist() for _ in range(2)]
      [[3, 0], [3, 1]]
    """

    def __init__(self, seed: int | None = None, name: str | None = None, **kwargs: Any) -> None:
        if kwargs:
            raise ValueError(f"Unrecognized keyword arguments: {kwargs}")
        super().__init__(name=name)
        if seed is None:
            seed = python_random.randint(1, 2**31 - 1)
        if not isinstance(seed, int):
            raise ValueError(f"Argument `seed` must be an integer. Received: seed={seed}")
        if seed < 0:
            raise ValueError(f"Argument `seed` must be a positive integer. Received: seed={seed}")
        self._initial_seed = seed
        self.seed = seed
        self.state = Variable(
            [seed, 0], dtype="int64", trainable=False, name="seed_generator_state"
        )

    def next(self, ordered: bool = True) -> Tensor:
        """Return the next seed, int64 of shape [2].

        Args:
          ordered: Ignored: seeds are always in order.
        """
        seed = array.identity(self.state)
        self.state.assign_add([0, 1])
        return seed

    def get_config(self) -> dict[str, Any]:
        """Return the configuration."""
        return {"seed": self._initial_seed}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> SeedGenerator:
        """Create a generator from its configuration."""
        return cls(**config)


SeedLike: TypeAlias = int | SeedGenerator | jax.Array | None


def _make_key(seed: SeedLike) -> Tensor:
    """Convert a seed to a key of JAX, so that the numbers equal those of Keras on JAX."""
    return casting.cast(draw_seed(seed), dtypes.uint32)


@op(same=(), differentiable=False, name="random_normal")
def _draw_normal(key: TensorLike, shape: tuple[int, ...], dtype: DType) -> Any:
    return jax.random.normal(make_jax_key(key), shape, dtype.dtype)


@op(same=(), differentiable=False, name="truncated_normal")
def _draw_truncated_normal(key: TensorLike, shape: tuple[int, ...], dtype: DType) -> Any:
    return jax.random.truncated_normal(make_jax_key(key), -2, 2, shape, dtype.dtype)


@op(same=(), differentiable=False, name="random_uniform")
def _draw_uniform(key: TensorLike, shape: tuple[int, ...], dtype: DType) -> Any:
    return jax.random.uniform(make_jax_key(key), shape, dtype.dtype)


@op(same=(), differentiable=False, name="random_integers")
def _draw_integers(
    key: TensorLike, low: TensorLike, high: TensorLike, shape: tuple[int, ...], dtype: DType
) -> Any:
    return jax.random.randint(make_jax_key(key), shape, low, high, dtype.dtype)


@op(same=(), differentiable=False, name="random_order")
def _draw_permutation(key: TensorLike, size: int) -> Any:
    return jax.random.permutation(make_jax_key(key), size)


def _scale_and_shift(values: Tensor, scale: TensorLike, start: TensorLike) -> Tensor:
    return values * _convert(scale, values.dtype) + _convert(start, values.dtype)


def draw_seed(seed: SeedLike) -> Tensor:
    """Return the two int64 numbers for a seed; a `SeedGenerator` advances."""
    if isinstance(seed, SeedGenerator):
        return seed.next()
    if isinstance(seed, int):
        return convert_to_tensor([seed, 0], "int64")
    if seed is None:
        _check_outside_jax_trace()
        return random_ops.uniform([2], maxval=2**31 - 1, dtype="int64")
    if isinstance(seed, jax.Array):
        if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
            seed = jax.random.key_data(seed)
        return casting.cast(convert_to_tensor(seed), "int64")
    raise ValueError(
        f"Argument `seed` must be either an integer or an instance of `SeedGenerator`. Received: seed={seed} (of type {type(seed)})"
    )


def _check_outside_jax_trace() -> None:
    """Raise an error for random numbers that would become constants in a function that JAX traces."""
    if (
        context.trace is None
        and not trace_state_clean()
        and isinstance(jnp.ones(()), jax.core.Tracer)
    ):
        raise ValueError(
            "In a function that JAX traces you should only use seeded random ops: pass a `SeedGenerator` of the layer "
            "or model, or a key of JAX as `seed`. Unseeded ones would become constants of the compiled function."
        )


def _as_floating_dtype(dtype: DTypeLike | None) -> DType:
    result = dtypes.as_dtype(dtype or floatx())
    if not result.is_floating:
        raise ValueError(
            f"`keras.random` requires a floating point `dtype`. Received: dtype={result.name} "
        )
    return result


def normal(
    shape: ShapeLike,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: DTypeLike | None = None,
    seed: SeedLike = None,
) -> Tensor:
    """Draw from a normal distribution.

    Args:
      shape: Shape of the result.
      mean: Mean.
      stddev: Standard deviation.
      dtype: Floating dtype; `floatx()` by default.
      seed: An integer, a `SeedGenerator`, or None.

    Example:
      >>> tf.keras.random.normal([2, 3]).shape
      TensorShape([2, 3])
    """
    return _scale_and_shift(
        _draw_normal(_make_key(seed), as_sizes(shape), _as_floating_dtype(dtype)), stddev, mean
    )


def truncated_normal(
    shape: ShapeLike,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: DTypeLike | None = None,
    seed: SeedLike = None,
) -> Tensor:
    """Draw from a normal distribution that is truncated to two standard deviations.

    Args:
      shape: Shape of the result.
      mean: Mean.
      stddev: Standard deviation before the truncation.
      dtype: Floating dtype; `floatx()` by default.
      seed: An integer, a `SeedGenerator`, or None.

    Example:
      >>> bool(tf.reduce_all(tf.abs(tf.keras.random.truncated_normal([100])) <= 2.0))
      True
    """
    values = _draw_truncated_normal(_make_key(seed), as_sizes(shape), _as_floating_dtype(dtype))
    return _scale_and_shift(values, stddev, mean)


def uniform(
    shape: ShapeLike,
    minval: float = 0.0,
    maxval: float = 1.0,
    dtype: DTypeLike | None = None,
    seed: SeedLike = None,
) -> Tensor:
    """Draw from a uniform distribution over [minval, maxval).

    Args:
      shape: Shape of the result.
      minval: Lower bound, inclusive.
      maxval: Upper bound, exclusive.
      dtype: Floating dtype; `floatx()` by default.
      seed: An integer, a `SeedGenerator`, or None.

    Example:
      >>> bool(tf.reduce_all(tf.keras.random.uniform([9], 2.0, 3.0) >= 2.0))
      True
    """
    values = _draw_uniform(_make_key(seed), as_sizes(shape), _as_floating_dtype(dtype))
    return _scale_and_shift(
        values, _convert(maxval, values.dtype) - _convert(minval, values.dtype), minval
    )


def randint(
    shape: ShapeLike, minval: int, maxval: int, dtype: DTypeLike = "int32", seed: SeedLike = None
) -> Tensor:
    """Draw integers from a uniform distribution over [minval, maxval).

    Args:
      shape: Shape of the result.
      minval: Lower bound, inclusive.
      maxval: Upper bound, exclusive.
      dtype: Integer dtype.
      seed: An integer, a `SeedGenerator`, or None.

    Example:
      >>> tf.keras.random.randint([3], 0, 1).numpy().tolist()
      [0, 0, 0]
    """
    result_dtype = dtypes.as_dtype(dtype)
    if not result_dtype.is_integer:
        raise ValueError(
            f"`keras.random.randint` requires an integer `dtype`. Received: dtype={result_dtype.name} "
        )
    bounds = [v for v in (minval, maxval) if isinstance(v, int)]
    draw_dtype = (
        result_dtype
        if all(result_dtype.min <= v <= result_dtype.max for v in bounds)
        else dtypes.int32
    )
    low, high = (convert_to_tensor(v, draw_dtype) for v in (minval, maxval))
    constants = [v.array for v in (low, high) if isinstance(v.array, np.ndarray)]
    if len(constants) == 2 and np.any(constants[0] >= constants[1]):
        raise InvalidArgumentError(f"Need minval < maxval, got {constants[0]} >= {constants[1]}")
    return casting.cast(
        _draw_integers(_make_key(seed), low, high, as_sizes(shape), draw_dtype), result_dtype
    )


@op(same=("logits",), kinds="f", differentiable=False, name="random_categorical")
def _draw_categorical(key: TensorLike, logits: TensorLike, num_samples: int) -> Any:
    shape = (logits.shape[0], num_samples)
    return jax.random.categorical(make_jax_key(key), logits[..., None], axis=1, shape=shape)


def categorical(
    logits: TensorLike, num_samples: int, dtype: DTypeLike = "int32", seed: SeedLike = None
) -> Tensor:
    """Draw class numbers with the probabilities that logits define.

    Args:
      logits: Unnormalized log probabilities, [batch, classes].
      num_samples: Number of samples for each row.
      dtype: Integer dtype.
      seed: An integer, a `SeedGenerator`, or None.

    Returns:
      Class numbers of shape [batch, num_samples].

    Example:
      >>> tf.keras.random.categorical([[0.0, -1e9]], 3).numpy().tolist()
      [[0, 0, 0]]
    """
    logits = convert_to_tensor(logits)
    if len(logits.shape) != 2:
        raise ValueError(
            f"`logits` should be a 2-D tensor with shape [batch_size, num_classes]. Received: logits={logits}"
        )
    return casting.cast(
        _draw_categorical(_make_key(seed), logits, num_samples), dtypes.as_dtype(dtype)
    )


@op(same=("x",), kinds="f", name="dropout")
def _apply_dropout(
    x: TensorLike, key: TensorLike, rate: float, noise_shape: tuple[int | None, ...] | None
) -> Any:
    sizes = noise_shape or (None,) * x.ndim
    shape = [full if size is None else size for size, full in zip(sizes, x.shape, strict=True)]
    mask = jax.random.bernoulli(make_jax_key(key), jnp.float32(1 - rate), shape)
    return jnp.where(mask, x / jnp.asarray(1 - rate, x.dtype), jnp.zeros((), x.dtype))


def dropout(
    inputs: TensorLike,
    rate: float,
    noise_shape: Sequence[int | None] | None = None,
    seed: SeedLike = None,
) -> Tensor:
    """Set a random fraction of elements to 0 and scale the others up.

    Args:
      inputs: Floating tensor.
      rate: Fraction of the elements that become 0, from 0 to 1.
      noise_shape: Shape of the mask; axes of size 1 are broadcast.
      seed: An integer, a `SeedGenerator`, or None.

    Example:
      >>> tf.keras.random.dropout([1.0, 2.0], 0.0).numpy().tolist()
      [1.0, 2.0]
    """
    inputs = convert_to_tensor(inputs)
    if not 0 <= rate <= 1:
        raise ValueError(f"dropout: rate must be from 0 to 1, got {rate}.")
    if rate in (0, 1):
        return inputs if rate == 0 else array.zeros_like(inputs)
    shape = None if noise_shape is None else tuple(noise_shape)
    return _apply_dropout(inputs, _make_key(seed), float(rate), shape)


def shuffle(x: TensorLike, axis: int = 0, seed: SeedLike = None) -> Tensor:
    """Shuffle slices along an axis.

    Args:
      x: Tensor.
      axis: The axis.
      seed: An integer, a `SeedGenerator`, or None.

    Example:
      >>> sorted(tf.keras.random.shuffle([3, 1, 2]).numpy().tolist())
      [1, 2, 3]
    """
    x = convert_to_tensor(x)
    return array.gather(x, _draw_permutation(_make_key(seed), x.shape[axis]), axis=axis)


def gamma(
    shape: ShapeLike, alpha: TensorLike, dtype: DTypeLike | None = None, seed: SeedLike = None
) -> Tensor:
    """Draw from a gamma distribution with rate 1.

    Args:
      shape: Shape of the result.
      alpha: Shape parameter, which is broadcast to `shape`.
      dtype: Floating dtype; `floatx()` by default.
      seed: An integer, a `SeedGenerator`, or None.

    Example:
      >>> tf.keras.random.gamma([2], 1.5).shape
      TensorShape([2])
    """
    floating_dtype = _as_floating_dtype(dtype)
    return _draw_gamma(_make_key(seed), _convert(alpha, floating_dtype), as_sizes(shape))


@op(same=("alpha",), name="random_gamma")
def _draw_gamma(key: TensorLike, alpha: TensorLike, shape: tuple[int, ...]) -> Any:
    is_valid = alpha >= 0
    # JAX never accepts a number for an invalid parameter.
    drawn = jax.random.gamma(make_jax_key(key), jnp.where(is_valid, alpha, 1), shape, alpha.dtype)
    return jnp.where(is_valid, drawn, jnp.nan)


@op(same=("alpha", "beta"), name="random_beta")
def _draw_beta(key: TensorLike, alpha: TensorLike, beta: TensorLike, shape: tuple[int, ...]) -> Any:
    is_valid = (alpha >= 0) & (beta >= 0)
    alpha, beta = (jnp.where(is_valid, a, 1) for a in (alpha, beta))
    drawn = jax.random.beta(make_jax_key(key), alpha, beta, shape, alpha.dtype)
    return jnp.where(is_valid, drawn, jnp.nan)


def beta(
    shape: ShapeLike,
    alpha: TensorLike,
    beta: TensorLike,
    dtype: DTypeLike | None = None,
    seed: SeedLike = None,
) -> Tensor:
    """Draw from a beta distribution.

    Args:
      shape: Shape of the result.
      alpha: First shape parameter, which is broadcast to `shape`.
      beta: Second shape parameter, which is broadcast to `shape`.
      dtype: Floating dtype; `floatx()` by default.
      seed: An integer, a `SeedGenerator`, or None.

    Example:
      >>> bool(tf.reduce_all(tf.keras.random.beta([9], 2.0, 2.0) < 1.0))
      True
    """
    floating_dtype = _as_floating_dtype(dtype)
    return _draw_beta(
        _make_key(seed),
        _convert(alpha, floating_dtype),
        _convert(beta, floating_dtype),
        as_sizes(shape),
    )


@op(same=("counts", "probabilities"), differentiable=False, name="random_binomial")
def _draw_binomial(
    key: TensorLike, counts: TensorLike, probabilities: TensorLike, shape: tuple[int, ...]
) -> Any:
    is_valid = (counts >= 0) & jnp.isfinite(counts) & (probabilities >= 0) & (probabilities <= 1)
    counts, probabilities = (jnp.where(is_valid, a, 0) for a in (counts, probabilities))
    drawn = jax.random.binomial(make_jax_key(key), counts, probabilities, shape, counts.dtype)
    return jnp.where(is_valid, drawn, jnp.nan)


def binomial(
    shape: ShapeLike,
    counts: TensorLike,
    probabilities: TensorLike,
    dtype: DTypeLike | None = None,
    seed: SeedLike = None,
) -> Tensor:
    """Draw numbers of successes from a binomial distribution.

    Args:
      shape: Shape of the result.
      counts: Numbers of trials, which are broadcast to `shape`.
      probabilities: Probabilities of success, which are broadcast to `shape`.
      dtype: Floating dtype; `floatx()` by default.
      seed: An integer, a `SeedGenerator`, or None.

    Example:
      >>> tf.keras.random.binomial([2], 5.0, 1.0).numpy().tolist()
      [5.0, 5.0]
    """
    result_dtype = _as_floating_dtype(dtype)
    # float16 cannot represent all counts above 2048, so 16-bit results are drawn in float32.
    draw_dtype = result_dtype if result_dtype.size > 2 else dtypes.float32
    values = _draw_binomial(
        _make_key(seed),
        _convert(counts, draw_dtype),
        _convert(probabilities, draw_dtype),
        as_sizes(shape),
    )
    return casting.cast(values, result_dtype)


def _convert(value: TensorLike, dtype: DType) -> Tensor:
    return casting.cast(convert_to_tensor(value), dtype)
