"""Random numbers as pure functions of keys, equal to those of TensorFlow's CPU kernels.

A key is the state of a Philox generator, int64 [3]; see `core/runtime/philox.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime import philox
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.array.creation import as_sizes
from meshflow.ops.array.shaping import StaticInts
from meshflow.ops.math import cast
from meshflow.ops.random import rejection


def counts_of(*sizes: Any) -> Any:
    """Count the counters that an op uses for a result with the given sizes."""
    return philox.COUNTS_PER_OUTPUT * math.prod(sizes)


def seed_key(seed: TensorLike) -> Tensor:
    """Derive the key of a stateless op from its seed, two integers."""
    return _seed_key(seed)


@op(same=(), differentiable=False, name="seed_key")
def _seed_key(seed: TensorLike) -> Tensor:
    if seed.shape != (2,) or seed.dtype.kind not in "iu":
        raise InvalidValueError(
            f"seed must be two integers, got {seed.dtype} of shape {list(seed.shape)}."
        )
    words = seed.astype(jnp.int64).astype(jnp.uint64)
    return jnp.stack(philox.place_of_seed(words[0], words[1])).astype(jnp.int64)


@op(same=("mean", "stddev"), name="random_normal")
def _normal(
    key: TensorLike, mean: TensorLike, stddev: TensorLike, shape: Sequence[int], dtype: DType
) -> Tensor:
    return philox.normal(key, shape, dtype.dtype) * stddev + mean


@op(same=("mean", "stddev"), name="truncated_normal")
def _truncated(
    key: TensorLike, mean: TensorLike, stddev: TensorLike, shape: Sequence[int], dtype: DType
) -> Tensor:
    return rejection.truncated_normal(key, shape, dtype.dtype) * stddev + mean


@op(same=("minval", "maxval"), name="random_uniform")
def _uniform(
    key: TensorLike, minval: TensorLike, maxval: TensorLike, shape: Sequence[int], dtype: DType
) -> Tensor:
    if dtype.is_integer:
        return philox.integers(key, shape, minval, maxval, dtype.dtype)
    return philox.uniform(key, shape, dtype.dtype) * (maxval - minval) + minval


@op(same=(), differentiable=False, name="random_bits")
def _bits(key: TensorLike, shape: Sequence[int], dtype: DType) -> Tensor:
    return philox.bits(key, shape, dtype.dtype)


def normal_from_key(
    key: Tensor, shape: StaticInts, mean: TensorLike, stddev: TensorLike, dtype: DTypeLike
) -> Tensor:
    """Draw normal numbers."""
    dt = _floating(dtype)
    mean, stddev = convert_to_tensor(mean, dt), convert_to_tensor(stddev, dt)
    return _normal(key, mean, stddev, as_sizes(shape), dt)


def truncated_normal_from_key(
    key: Tensor, shape: StaticInts, mean: TensorLike, stddev: TensorLike, dtype: DTypeLike
) -> Tensor:
    """Draw normal numbers within two standard deviations of the mean."""
    dt = _floating(dtype)
    mean, stddev = convert_to_tensor(mean, dt), convert_to_tensor(stddev, dt)
    return _truncated(key, mean, stddev, as_sizes(shape), dt)


def uniform_from_key(
    key: Tensor, shape: StaticInts, minval: TensorLike, maxval: TensorLike | None, dtype: DTypeLike
) -> Tensor:
    """Draw uniform numbers in [minval, maxval).

    Raises:
      ValueError: For an integer dtype without `maxval`.
      InvalidArgumentError: For an integer dtype, if `minval >= maxval`.
    """
    dt = as_dtype(dtype)
    if not (dt.is_floating or dt.is_integer):
        raise ValueError(
            f"Argument `dtype` got invalid value {dt}. Accepted dtypes are floating-point and integers."
        )
    if maxval is None:
        if dt.is_integer:
            raise ValueError(f"Must specify maxval for integer dtype {dt.name}")
        maxval = 1
    low, high = convert_to_tensor(minval, dtype=dt), convert_to_tensor(maxval, dtype=dt)
    constants = [v.array for v in (low, high) if isinstance(v.array, np.ndarray)]
    if dt.is_integer and len(constants) == 2 and np.any(constants[0] >= constants[1]):
        raise InvalidArgumentError(f"Need minval < maxval, got {constants[0]} >= {constants[1]}")
    return _uniform(key, low, high, as_sizes(shape), dt)


def share_on_host(key: Tensor) -> Any:
    """Draw a float32 scalar in [0, 1) with NumPy, for input pipelines; None if NumPy cannot."""
    host = _uniform.op.host  # type: ignore[attr-defined]
    return None if host is None else host([key.array, _ZERO, _ONE], ((), dtypes.float32))


_ZERO, _ONE = np.zeros((), np.float32), np.ones((), np.float32)


def bits_from_key(key: Tensor, shape: StaticInts, dtype: DTypeLike) -> Tensor:
    """Draw integers from the full range of the dtype."""
    return _bits(key, as_sizes(shape), as_dtype(dtype))


def _floating(dtype: DTypeLike) -> DType:
    dt = as_dtype(dtype)
    if not dt.is_floating:
        raise InvalidValueError(f"Random normal numbers need a floating dtype, got {dt.name}.")
    return dt


def _of_each(parameters: Sequence[Array], shape: Sequence[int]) -> tuple[list[Array], Array]:
    """Broadcast parameters to a shape, as float64, and return the flat indices of the results.

    Results with the same parameter have consecutive indices.
    """
    sizes = jnp.broadcast_shapes(*(p.shape for p in parameters))
    lead, last = shape[: len(shape) - len(sizes)], shape[len(shape) - len(sizes) :]
    indices = (
        philox.numbers_of(last) * math.prod(lead)
        + philox.numbers_of(lead)[(...,) + (None,) * len(last)]
    )
    return [jnp.broadcast_to(p.astype(jnp.float64), shape) for p in parameters], indices


@op(same=("counts", "probs"), differentiable=False, name="random_binomial")
def _binomial(
    key: TensorLike, counts: TensorLike, probs: TensorLike, shape: Sequence[int], dtype: DType
) -> Tensor:
    (counts, probs), indices = _of_each((counts, probs), shape)
    return rejection.binomial(key, counts, probs, indices).astype(dtype.dtype)


def binomial_from_key(
    key: Tensor, shape: StaticInts, counts: TensorLike, probs: TensorLike, dtype: DTypeLike
) -> Tensor:
    """Draw numbers of successes in `counts` trials with probability `probs`."""
    n, p = (_wide(v) for v in (counts, probs))
    return _binomial(key, n, p, as_sizes(shape), as_dtype(dtype))


def _wide(value: TensorLike) -> Tensor:
    """Convert a value to float32, unless it is float64."""
    tensor = convert_to_tensor(value)
    return tensor if tensor.dtype is dtypes.float64 else cast(tensor, dtypes.float32)


@op(same=("alpha", "beta"), name="random_gamma")
def gamma_from_key(
    key: TensorLike, alpha: TensorLike, beta: TensorLike, shape: Sequence[int]
) -> Tensor:
    """Draw gamma-distributed numbers of shape [*shape, *parameter_shape]."""
    full = (*shape, *jnp.broadcast_shapes(alpha.shape, beta.shape))
    alpha = jnp.broadcast_to(alpha, (*full[len(shape) :],))
    _, indices = _of_each((alpha,), full)
    drawn = _gamma(key, jnp.broadcast_to(alpha, full), indices)
    tiny = np.finfo(np.float32).tiny if alpha.dtype == jnp.bfloat16 else jnp.finfo(alpha.dtype).tiny
    return jnp.maximum(drawn / beta, jnp.asarray(tiny, alpha.dtype))


@jax.custom_jvp
def _gamma(key: Array, alpha: Array, indices: Array) -> Array:
    return rejection.gamma(key, alpha.astype(jnp.float64), indices).astype(alpha.dtype)


@_gamma.defjvp
def _gamma_derivative(
    primals: tuple[Array, ...], tangents: tuple[Array, ...]
) -> tuple[Array, Array]:
    drawn = _gamma(*primals)
    # The derivative keeps the cumulative probability of each number constant.
    return drawn, jax.lax.random_gamma_grad(primals[1], drawn) * tangents[1]


@op(same=("lam",), differentiable=False, name="random_poisson")
def poisson_from_key(
    key: TensorLike, lam: TensorLike, shape: Sequence[int], dtype: DType
) -> Tensor:
    """Draw Poisson-distributed numbers of shape [*shape, *lam.shape]."""
    (rates,), indices = _of_each((lam,), (*shape, *lam.shape))
    return rejection.poisson(key, rates, indices).astype(dtype.dtype)


@op(same=("logits",), kinds="f", differentiable=False, name="random_categorical")
def categorical_from_key(
    key: TensorLike, logits: TensorLike, num_samples: int, dtype: DType
) -> Tensor:
    """Draw `num_samples` class indices for each row of logits."""
    if logits.ndim != 2:
        raise InvalidValueError(f"logits should be a matrix, got shape {list(logits.shape)}")
    uniform = philox.uniform(key, (logits.shape[0], num_samples), jnp.float64)
    logits = logits.astype(jnp.float64)
    finite = jnp.isfinite(logits)
    highest = jnp.max(jnp.where(finite, logits, -jnp.inf), axis=-1, keepdims=True)
    ends = jnp.cumsum(jnp.where(finite, jnp.exp(logits - highest), 0.0), axis=-1)
    find = jax.vmap(lambda row, values: jnp.searchsorted(row, values, side="right"))
    return find(ends, uniform * ends[:, -1:]).astype(dtype.dtype)


@op(same=("value",), name="random_shuffle")
def shuffle_from_key(key: TensorLike, value: TensorLike) -> Tensor:
    """Shuffle rows by Durstenfeld's algorithm (1964), starting with the first row."""
    if value.ndim == 0 or value.shape[0] < 2:
        return value
    count = value.shape[0]
    words = philox.bits(key, (count - 1,), jnp.uint32)
    remaining = count - jax.lax.iota(jnp.uint32, count - 1)
    partners = jax.lax.iota(jnp.int64, count - 1) + (words % remaining).astype(jnp.int64)

    def swap(i: Array, order: Array) -> Array:
        first, second = order[i], order[partners[i]]
        return order.at[i].set(second).at[partners[i]].set(first)

    order = jax.lax.fori_loop(0, count - 1, swap, jax.lax.iota(jnp.int64, count))
    return jnp.take(value, order, axis=0)
