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
from meshflow.core.dispatch.operands import cast_numpy
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


def count_counters(*sizes: Any) -> Any:
    """Count the counters that an op uses for a result with the given sizes."""
    return philox.COUNTS_PER_OUTPUT * math.prod(sizes)


def derive_key(seed: TensorLike) -> Tensor:
    """Derive the key of a stateless op from its seed, two integers."""
    return _derive_key(cast_numpy(seed, dtypes.int64))


@op(same=(), differentiable=False, name="seed_key")
def _derive_key(seed: TensorLike) -> Tensor:
    if seed.shape != (2,) or seed.dtype.kind not in "iu":
        raise InvalidValueError(
            f"seed must be two integers, got {seed.dtype} of shape {list(seed.shape)}."
        )
    return philox.philox_seed_key(seed)


# Draws of a share of a batch depend on the share, also those from constant keys, so that keys are no
# constants.
_derive_key.op.is_foldable = False  # type: ignore[attr-defined]


@op(same=("mean", "stddev"), name="random_normal")
def _sample_normal(
    key: TensorLike, mean: TensorLike, stddev: TensorLike, shape: Sequence[int], dtype: DType
) -> Tensor:
    return philox.draw_normal(key, shape, dtype.dtype) * stddev + mean


@op(same=("mean", "stddev"), name="truncated_normal")
def _sample_truncated_normal(
    key: TensorLike, mean: TensorLike, stddev: TensorLike, shape: Sequence[int], dtype: DType
) -> Tensor:
    return rejection.draw_truncated_normal(key, shape, dtype.dtype) * stddev + mean


@op(same=("minval", "maxval"), name="random_uniform")
def sample_uniform(
    key: TensorLike, minval: TensorLike, maxval: TensorLike, shape: Sequence[int], dtype: DType
) -> Tensor:
    """Draw uniform numbers in [minval, maxval) from a Philox key; integers for an integer dtype."""
    if dtype.is_integer:
        return philox.draw_integers(key, shape, minval, maxval, dtype.dtype)
    return philox.draw_uniform(key, shape, dtype.dtype) * (maxval - minval) + minval


@op(same=(), differentiable=False, name="random_bits")
def _sample_bits(key: TensorLike, shape: Sequence[int], dtype: DType) -> Tensor:
    return philox.draw_bits(key, shape, dtype.dtype)


def draw_normal(
    key: Tensor, shape: StaticInts, mean: TensorLike, stddev: TensorLike, dtype: DTypeLike
) -> Tensor:
    """Draw normal numbers."""
    dt = _to_floating_dtype(dtype)
    mean, stddev = convert_to_tensor(mean, dt), convert_to_tensor(stddev, dt)
    return _sample_normal(key, mean, stddev, as_sizes(shape), dt)


def draw_truncated_normal(
    key: Tensor, shape: StaticInts, mean: TensorLike, stddev: TensorLike, dtype: DTypeLike
) -> Tensor:
    """Draw normal numbers within two standard deviations of the mean."""
    dt = _to_floating_dtype(dtype)
    mean, stddev = convert_to_tensor(mean, dt), convert_to_tensor(stddev, dt)
    return _sample_truncated_normal(key, mean, stddev, as_sizes(shape), dt)


def draw_uniform(
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
    return sample_uniform(key, low, high, as_sizes(shape), dt)


def draw_unit_uniform_on_host(key: Tensor) -> Any:
    """Draw a float32 scalar in [0, 1) with NumPy, for input pipelines; None if NumPy cannot."""
    host = sample_uniform.op.host_function  # type: ignore[attr-defined]
    return None if host is None else host([key.array, _ZERO, _ONE], ((), dtypes.float32))


_ZERO, _ONE = np.zeros((), np.float32), np.ones((), np.float32)


def draw_bits(key: Tensor, shape: StaticInts, dtype: DTypeLike) -> Tensor:
    """Draw integers from the full range of the dtype."""
    return _sample_bits(key, as_sizes(shape), as_dtype(dtype))


def _to_floating_dtype(dtype: DTypeLike) -> DType:
    dt = as_dtype(dtype)
    if not dt.is_floating:
        raise InvalidValueError(f"Random normal numbers need a floating dtype, got {dt.name}.")
    return dt


def _broadcast_parameters(
    parameters: Sequence[Array], shape: Sequence[int]
) -> tuple[list[Array], Array]:
    """Broadcast parameters to a shape, as float64, and return the flat indices of the results.

    Results with the same parameter have consecutive indices.
    """
    sizes = jnp.broadcast_shapes(*(p.shape for p in parameters))
    lead, last = shape[: len(shape) - len(sizes)], shape[len(shape) - len(sizes) :]
    indices = (
        philox.make_flat_indices(last) * math.prod(lead)
        + philox.make_flat_indices(lead)[(...,) + (None,) * len(last)]
    )
    return [jnp.broadcast_to(p.astype(jnp.float64), shape) for p in parameters], indices


@op(same=("counts", "probs"), differentiable=False, name="random_binomial")
def _sample_binomial(
    key: TensorLike, counts: TensorLike, probs: TensorLike, shape: Sequence[int], dtype: DType
) -> Tensor:
    (counts, probs), indices = _broadcast_parameters((counts, probs), shape)
    return rejection.draw_binomial(key, counts, probs, indices).astype(dtype.dtype)


def draw_binomial(
    key: Tensor, shape: StaticInts, counts: TensorLike, probs: TensorLike, dtype: DTypeLike
) -> Tensor:
    """Draw numbers of successes in `counts` trials with probability `probs`."""
    n, p = (_to_float(v) for v in (counts, probs))
    return _sample_binomial(key, n, p, as_sizes(shape), as_dtype(dtype))


def _to_float(value: TensorLike) -> Tensor:
    """Convert a value to float32, unless it is float64."""
    tensor = convert_to_tensor(value)
    return tensor if tensor.dtype is dtypes.float64 else cast(tensor, dtypes.float32)


@op(same=("alpha", "beta"), name="random_gamma")
def draw_gamma(
    key: TensorLike, alpha: TensorLike, beta: TensorLike, shape: Sequence[int]
) -> Tensor:
    """Draw gamma-distributed numbers of shape [*shape, *parameter_shape]."""
    full = (*shape, *jnp.broadcast_shapes(alpha.shape, beta.shape))
    alpha = jnp.broadcast_to(alpha, (*full[len(shape) :],))
    _, indices = _broadcast_parameters((alpha,), full)
    drawn = _sample_gamma(key, jnp.broadcast_to(alpha, full), indices)
    tiny = np.finfo(np.float32).tiny if alpha.dtype == jnp.bfloat16 else jnp.finfo(alpha.dtype).tiny
    return jnp.maximum(drawn / beta, jnp.asarray(tiny, alpha.dtype))


@jax.custom_jvp
def _sample_gamma(key: Array, alpha: Array, indices: Array) -> Array:
    return rejection.draw_gamma(key, alpha.astype(jnp.float64), indices).astype(alpha.dtype)


@_sample_gamma.defjvp
def _differentiate_gamma(
    primals: tuple[Array, ...], tangents: tuple[Array, ...]
) -> tuple[Array, Array]:
    drawn = _sample_gamma(*primals)
    # The derivative keeps the cumulative probability of each number constant.
    return drawn, jax.lax.random_gamma_grad(primals[1], drawn) * tangents[1]


@op(same=("lam",), differentiable=False, name="random_poisson")
def draw_poisson(key: TensorLike, lam: TensorLike, shape: Sequence[int], dtype: DType) -> Tensor:
    """Draw Poisson-distributed numbers of shape [*shape, *lam.shape]."""
    (rates,), indices = _broadcast_parameters((lam,), (*shape, *lam.shape))
    return rejection.draw_poisson(key, rates, indices).astype(dtype.dtype)


@op(same=("logits",), kinds="f", differentiable=False, name="random_categorical")
def draw_categorical(key: TensorLike, logits: TensorLike, num_samples: int, dtype: DType) -> Tensor:
    """Draw `num_samples` class indices for each row of logits."""
    if logits.ndim != 2:
        raise InvalidValueError(f"logits should be a matrix, got shape {list(logits.shape)}")
    if num_samples < 0:
        raise InvalidValueError(f"num_samples should be nonnegative, got {num_samples}")
    if logits.shape[1] == 0:
        raise InvalidValueError(f"num_classes should be positive, got shape {list(logits.shape)}")
    uniform = philox.draw_uniform(key, (logits.shape[0], num_samples), jnp.float64)
    logits = logits.astype(jnp.float64)
    finite = jnp.isfinite(logits)
    highest = jnp.max(jnp.where(finite, logits, -jnp.inf), axis=-1, keepdims=True)
    ends = jnp.cumsum(jnp.where(finite, jnp.exp(logits - highest), 0.0), axis=-1)
    find = jax.vmap(lambda row, values: jnp.searchsorted(row, values, side="right"))
    return find(ends, uniform * ends[:, -1:]).astype(dtype.dtype)


@op(same=("value",), name="random_shuffle")
def shuffle_rows(key: TensorLike, value: TensorLike) -> Tensor:
    """Shuffle rows by Durstenfeld's algorithm (1964), starting with the first row."""
    if value.ndim == 0 or value.shape[0] < 2:
        return value
    count = value.shape[0]
    words = philox.draw_bits(key, (count - 1,), jnp.uint32)
    remaining = count - jax.lax.iota(jnp.uint32, count - 1)
    partners = jax.lax.iota(jnp.int64, count - 1) + (words % remaining).astype(jnp.int64)

    def swap(i: Array, order: Array) -> Array:
        first, second = order[i], order[partners[i]]
        return order.at[i].set(second).at[partners[i]].set(first)

    order = jax.lax.fori_loop(0, count - 1, swap, jax.lax.iota(jnp.int64, count))
    return jnp.take(value, order, axis=0)
