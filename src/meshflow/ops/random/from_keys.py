"""Random numbers as functions of keys, which decide on them alone: those of TensorFlow's CPU kernels.

A key is a place of a Philox generator, int64 [3]; see `core/runtime/philox.py`.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime import philox
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.array.creation import as_sizes
from meshflow.ops.math import cast
from meshflow.ops.random import rejection


def counts_of(*sizes: Any) -> Any:
    """How many numbers of the counter an op uses for a result of so many numbers."""
    return philox.COUNTS_PER_OUTPUT * math.prod(sizes)


def seed_key(seed: TensorLike) -> Tensor:
    """The key for a stateless op's seed, two integers."""
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
    key: TensorLike, mean: TensorLike, stddev: TensorLike, shape: Any, dtype: Any
) -> Tensor:
    return philox.normal(key, shape, dtype.dtype) * stddev + mean


@op(same=("mean", "stddev"), name="truncated_normal")
def _truncated(
    key: TensorLike, mean: TensorLike, stddev: TensorLike, shape: Any, dtype: Any
) -> Tensor:
    return rejection.truncated_normal(key, shape, dtype.dtype) * stddev + mean


@op(same=("minval", "maxval"), name="random_uniform")
def _uniform(
    key: TensorLike, minval: TensorLike, maxval: TensorLike, shape: Any, dtype: Any
) -> Tensor:
    if dtype.is_integer:
        return philox.integers(key, shape, minval, maxval, dtype.dtype)
    return philox.uniform(key, shape, dtype.dtype) * (maxval - minval) + minval


@op(same=(), differentiable=False, name="random_bits")
def _bits(key: TensorLike, shape: Any, dtype: Any) -> Tensor:
    return philox.bits(key, shape, dtype.dtype)


def normal_from_key(key: Tensor, shape: Any, mean: Any, stddev: Any, dtype: Any) -> Tensor:
    """Normal numbers for a key."""
    kind = _floating(dtype)
    return _normal(
        key, convert_to_tensor(mean, kind), convert_to_tensor(stddev, kind), as_sizes(shape), kind
    )


def truncated_normal_from_key(
    key: Tensor, shape: Any, mean: Any, stddev: Any, dtype: Any
) -> Tensor:
    """Truncated normal numbers for a key."""
    kind = _floating(dtype)
    return _truncated(
        key, convert_to_tensor(mean, kind), convert_to_tensor(stddev, kind), as_sizes(shape), kind
    )


def uniform_from_key(key: Tensor, shape: Any, minval: Any, maxval: Any, dtype: Any) -> Tensor:
    """Uniform numbers for a key.

    Raises:
      ValueError: for integers without `maxval`.
      InvalidArgumentError: for integers, when `minval` is not below `maxval`.
    """
    kind = as_dtype(dtype)
    if not (kind.is_floating or kind.is_integer):
        raise ValueError(
            f"Argument `dtype` got invalid value {kind}. Accepted dtypes are floating-point and integers."
        )
    if maxval is None:
        if kind.is_integer:
            raise ValueError(f"Must specify maxval for integer dtype {kind.name}")
        maxval = 1
    low, high = convert_to_tensor(minval, dtype=kind), convert_to_tensor(maxval, dtype=kind)
    known = [v._value for v in (low, high) if isinstance(v._value, np.ndarray)]
    if kind.is_integer and len(known) == 2 and np.any(known[0] >= known[1]):
        raise InvalidArgumentError(f"Need minval < maxval, got {known[0]} >= {known[1]}")
    return _uniform(key, low, high, as_sizes(shape), kind)


def share_on_host(key: Tensor) -> Any:
    """What `uniform_from_key` gives for one float32 number in [0, 1) in input pipelines, or None."""
    host = _uniform.op.host  # type: ignore[attr-defined]
    return None if host is None else host([key._value, _ZERO, _ONE], ((), dtypes.float32))


_ZERO, _ONE = np.zeros((), np.float32), np.ones((), np.float32)


def bits_from_key(key: Tensor, shape: Any, dtype: Any) -> Tensor:
    """Integers over the whole range of the dtype, for a key."""
    return _bits(key, as_sizes(shape), as_dtype(dtype))


def _floating(dtype: Any) -> dtypes.DType:
    kind = as_dtype(dtype)
    if not kind.is_floating:
        raise InvalidValueError(f"Random normal numbers need a floating dtype, got {kind.name}.")
    return kind


def _of_each(parameters: tuple[Any, ...], shape: Any) -> tuple[list[Any], Any]:
    """Parameters as doubles in a shape, and the numbers of the results: those of one parameter come together."""
    sizes = jnp.broadcast_shapes(*(p.shape for p in parameters))
    lead, last = shape[: len(shape) - len(sizes)], shape[len(shape) - len(sizes) :]
    numbers = (
        philox.numbers_of(last) * math.prod(lead)
        + philox.numbers_of(lead)[(...,) + (None,) * len(last)]
    )
    return [jnp.broadcast_to(p.astype(jnp.float64), shape) for p in parameters], numbers


@op(same=("counts", "probs"), differentiable=False, name="random_binomial")
def _binomial(
    key: TensorLike, counts: TensorLike, probs: TensorLike, shape: Any, dtype: Any
) -> Tensor:
    (counts, probs), numbers = _of_each((counts, probs), shape)
    return rejection.binomial(key, counts, probs, numbers).astype(dtype.dtype)


def binomial_from_key(key: Tensor, shape: Any, counts: Any, probs: Any, dtype: Any) -> Tensor:
    """Binomial numbers for a key."""
    n, p = (_wide(v) for v in (counts, probs))
    return _binomial(key, n, p, as_sizes(shape), as_dtype(dtype))


def _wide(value: Any) -> Tensor:
    """Doubles as they are, and all else as float32."""
    tensor = convert_to_tensor(value)
    return tensor if tensor.dtype is dtypes.float64 else cast(tensor, dtypes.float32)


@op(same=("alpha", "beta"), name="random_gamma")
def gamma_from_key(key: TensorLike, alpha: TensorLike, beta: TensorLike, shape: Any) -> Tensor:
    """Gamma numbers for a key, `shape` of them for each of the parameters."""
    full = (*shape, *jnp.broadcast_shapes(alpha.shape, beta.shape))
    alpha = jnp.broadcast_to(alpha, (*full[len(shape) :],))
    _, numbers = _of_each((alpha,), full)
    drawn = _gamma(key, jnp.broadcast_to(alpha, full), numbers)
    tiny = np.finfo(np.float32).tiny if alpha.dtype == jnp.bfloat16 else jnp.finfo(alpha.dtype).tiny
    return jnp.maximum(drawn / beta, jnp.asarray(tiny, alpha.dtype))


@jax.custom_jvp
def _gamma(key: Any, alpha: Any, numbers: Any) -> Any:
    return rejection.gamma(key, alpha.astype(jnp.float64), numbers).astype(alpha.dtype)


@_gamma.defjvp
def _gamma_derivative(primals: Any, tangents: Any) -> Any:
    drawn = _gamma(*primals)
    # Where the same share of the distribution lies below.
    return drawn, jax.lax.random_gamma_grad(primals[1], drawn) * tangents[1]


@op(same=("lam",), differentiable=False, name="random_poisson")
def poisson_from_key(key: TensorLike, lam: TensorLike, shape: Any, dtype: Any) -> Tensor:
    """Poisson numbers for a key, `shape` of them for each mean."""
    (rates,), numbers = _of_each((lam,), (*shape, *lam.shape))
    return rejection.poisson(key, rates, numbers).astype(dtype.dtype)


@op(same=("logits",), kinds="f", differentiable=False, name="random_categorical")
def categorical_from_key(
    key: TensorLike, logits: TensorLike, num_samples: int, dtype: Any
) -> Tensor:
    """Numbers of classes for a key, `num_samples` for each row of logits."""
    if logits.ndim != 2:
        raise InvalidValueError(f"logits should be a matrix, got shape {list(logits.shape)}")
    shares = philox.uniform(key, (logits.shape[0], num_samples), jnp.float64)
    wide = logits.astype(jnp.float64)
    finite = jnp.isfinite(wide)
    highest = jnp.max(jnp.where(finite, wide, -jnp.inf), axis=-1, keepdims=True)
    ends = jnp.cumsum(jnp.where(finite, jnp.exp(wide - highest), 0.0), axis=-1)
    find = jax.vmap(lambda row, places: jnp.searchsorted(row, places, side="right"))
    return find(ends, shares * ends[:, -1:]).astype(dtype.dtype)


@op(same=("value",), name="random_shuffle")
def shuffle_from_key(key: TensorLike, value: TensorLike) -> Tensor:
    """The rows in an order that the key decides (Durstenfeld 1964, from the front)."""
    if value.ndim == 0 or value.shape[0] < 2:
        return value
    count = value.shape[0]
    words = philox.bits(key, (count - 1,), jnp.uint32)
    left = count - jax.lax.iota(jnp.uint32, count - 1)
    partners = jax.lax.iota(jnp.int64, count - 1) + (words % left).astype(jnp.int64)

    def exchanged(at: Any, order: Any) -> Any:
        one, other = order[at], order[partners[at]]
        return order.at[at].set(other).at[partners[at]].set(one)

    order = jax.lax.fori_loop(0, count - 1, exchanged, jax.lax.iota(jnp.int64, count))
    return jnp.take(value, order, axis=0)
