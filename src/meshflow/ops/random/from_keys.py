"""Random numbers as functions of keys, which decide on them alone."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.random import random_key
from meshflow.ops.array.creation import as_sizes
from meshflow.ops.math import cast


def seed_key(seed: TensorLike) -> Tensor:
    """The key for a stateless op's seed, two integers."""
    return _seed_key(seed)


@op(same=(), differentiable=False, name="seed_key")
def _seed_key(seed: TensorLike) -> Tensor:
    if seed.shape != (2,) or seed.dtype.kind not in "iu":
        raise InvalidValueError(
            f"seed must be two integers, got {seed.dtype} of shape {list(seed.shape)}."
        )
    return seed.astype(jnp.uint32)


@op(same=("mean", "stddev"), name="random_normal")
def _normal(
    key: TensorLike, mean: TensorLike, stddev: TensorLike, shape: Any, dtype: Any
) -> Tensor:
    return jax.random.normal(random_key(key), shape, dtype.dtype) * stddev + mean


@op(same=("mean", "stddev"), name="truncated_normal")
def _truncated(
    key: TensorLike, mean: TensorLike, stddev: TensorLike, shape: Any, dtype: Any
) -> Tensor:
    return jax.random.truncated_normal(random_key(key), -2, 2, shape, dtype.dtype) * stddev + mean


@op(same=("minval", "maxval"), name="random_uniform")
def _uniform(
    key: TensorLike, minval: TensorLike, maxval: TensorLike, shape: Any, dtype: Any
) -> Tensor:
    if dtype.is_integer:
        return jax.random.randint(random_key(key), shape, minval, maxval, dtype.dtype)
    return jax.random.uniform(random_key(key), shape, dtype.dtype) * (maxval - minval) + minval


@op(same=(), differentiable=False, name="random_bits")
def _bits(key: TensorLike, shape: Any, dtype: Any) -> Tensor:
    bits = jax.random.bits(random_key(key), shape, np.dtype(f"uint{dtype.size * 8}"))
    return jax.lax.bitcast_convert_type(bits, dtype.dtype)


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


@op(same=("counts", "probs"), differentiable=False, name="random_binomial")
def _binomial(
    key: TensorLike, counts: TensorLike, probs: TensorLike, shape: Any, dtype: Any
) -> Tensor:
    return jax.random.binomial(random_key(key), counts, probs, shape).astype(dtype.dtype)


def binomial_from_key(key: Tensor, shape: Any, counts: Any, probs: Any, dtype: Any) -> Tensor:
    """Binomial numbers for a key."""
    n, p = (
        cast(convert_to_tensor(counts), dtypes.float32),
        cast(convert_to_tensor(probs), dtypes.float32),
    )
    return _binomial(key, n, p, as_sizes(shape), as_dtype(dtype))


@op(same=("alpha", "beta"), name="random_gamma")
def gamma_from_key(key: TensorLike, alpha: TensorLike, beta: TensorLike, shape: Any) -> Tensor:
    """Gamma numbers for a key, `shape` of them for each of the parameters."""
    both = jnp.broadcast_shapes(alpha.shape, beta.shape)
    full = (*shape, *both)
    return (
        jax.random.gamma(random_key(key), jnp.broadcast_to(alpha, full), full, alpha.dtype) / beta
    )


@op(same=("lam",), differentiable=False, name="random_poisson")
def poisson_from_key(key: TensorLike, lam: TensorLike, shape: Any, dtype: Any) -> Tensor:
    """Poisson numbers for a key, `shape` of them for each mean."""
    return jax.random.poisson(random_key(key), lam, (*shape, *lam.shape)).astype(dtype.dtype)


@op(same=("logits",), kinds="f", differentiable=False, name="random_categorical")
def categorical_from_key(
    key: TensorLike, logits: TensorLike, num_samples: int, dtype: Any
) -> Tensor:
    """Numbers of classes for a key, `num_samples` for each row of logits."""
    if logits.ndim != 2:
        raise InvalidValueError(f"logits should be a matrix, got shape {list(logits.shape)}")
    samples = jax.random.categorical(
        random_key(key), logits[:, None, :], axis=-1, shape=(logits.shape[0], num_samples)
    )
    return samples.astype(dtype.dtype)


@op(same=("value",), name="random_shuffle")
def shuffle_from_key(key: TensorLike, value: TensorLike) -> Tensor:
    """The rows in an order that the key decides."""
    if value.ndim == 0:
        return value
    return jax.random.permutation(random_key(key), value, axis=0)
