"""`tf.random`: distributions, with the global seed's stream or with an explicit seed (stateless)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core import dtypes
from meshflow.core.convert import convert_to_tensor
from meshflow.core.dispatch import op
from meshflow.core.dtypes import as_dtype
from meshflow.core.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.random import op_key, random_key, set_seed
from meshflow.core.symbolic import also_symbolic
from meshflow.core.tensor import Tensor, TensorLike
from meshflow.ops.array.creation import as_sizes

__all__ = [
    "categorical",
    "gamma",
    "normal",
    "poisson",
    "set_seed",
    "shuffle",
    "stateless_binomial",
    "stateless_categorical",
    "stateless_fold_in",
    "stateless_gamma",
    "stateless_normal",
    "stateless_poisson",
    "stateless_shuffle",
    "stateless_split",
    "stateless_truncated_normal",
    "stateless_uniform",
    "truncated_normal",
    "uniform",
]


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
    from meshflow.ops.math import cast

    n, p = (
        cast(convert_to_tensor(counts), dtypes.float32),
        cast(convert_to_tensor(probs), dtypes.float32),
    )
    return _binomial(key, n, p, as_sizes(shape), as_dtype(dtype))


@op(same=("alpha", "beta"), name="random_gamma")
def _gamma(key: TensorLike, alpha: TensorLike, beta: TensorLike, shape: Any) -> Tensor:
    both = jnp.broadcast_shapes(alpha.shape, beta.shape)
    full = (*shape, *both)
    return (
        jax.random.gamma(random_key(key), jnp.broadcast_to(alpha, full), full, alpha.dtype) / beta
    )


@op(same=("lam",), differentiable=False, name="random_poisson")
def _poisson(key: TensorLike, lam: TensorLike, shape: Any, dtype: Any) -> Tensor:
    return jax.random.poisson(random_key(key), lam, (*shape, *lam.shape)).astype(dtype.dtype)


@op(same=("logits",), kinds="f", differentiable=False, name="random_categorical")
def _categorical(key: TensorLike, logits: TensorLike, num_samples: int, dtype: Any) -> Tensor:
    if logits.ndim != 2:
        raise InvalidValueError(f"logits should be a matrix, got shape {list(logits.shape)}")
    samples = jax.random.categorical(
        random_key(key), logits[:, None, :], axis=-1, shape=(logits.shape[0], num_samples)
    )
    return samples.astype(dtype.dtype)


@op(same=("value",), name="random_shuffle")
def _shuffle(key: TensorLike, value: TensorLike) -> Tensor:
    if value.ndim == 0:
        return value
    return jax.random.permutation(random_key(key), value, axis=0)


@also_symbolic
def normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = dtypes.float32,
    seed: Any = None,
    name: str | None = None,
) -> Tensor:
    """Normally distributed random numbers.

    Args:
      shape: sizes of the result.
      mean: mean.
      stddev: standard deviation.
      dtype: a floating dtype.
      seed: seed of this op, combined with the global one.
      name: ignored.

    Returns:
      A tensor.

    Example:
      >>> import meshflow as tf
      >>> tf.random.normal([2, 3]).shape
      TensorShape([2, 3])
    """
    return normal_from_key(op_key(seed), shape, mean, stddev, dtype)


@also_symbolic
def truncated_normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = dtypes.float32,
    seed: Any = None,
    name: str | None = None,
) -> Tensor:
    """Normally distributed numbers within two standard deviations; arguments as in `normal`.

    Example:
      >>> import meshflow as tf
      >>> x = tf.random.truncated_normal([1000], mean=10.0)
      >>> bool(tf.reduce_min(x) >= 8), bool(tf.reduce_max(x) <= 12)
      (True, True)
    """
    return truncated_normal_from_key(op_key(seed), shape, mean, stddev, dtype)


@also_symbolic
def uniform(
    shape: Any,
    minval: Any = 0,
    maxval: Any = None,
    dtype: Any = dtypes.float32,
    seed: Any = None,
    name: str | None = None,
) -> Tensor:
    """Uniformly distributed random numbers.

    Args:
      shape: sizes of the result.
      minval: lower end, included.
      maxval: upper end, excluded; default 1 for floats, required for integers.
      dtype: a floating or integer dtype.
      seed: seed of this op, combined with the global one.
      name: ignored.

    Returns:
      A tensor.

    Raises:
      ValueError: for integers without `maxval`.

    Example:
      >>> import meshflow as tf
      >>> x = tf.random.uniform([1000], minval=1, maxval=7, dtype=tf.int32)
      >>> sorted(set(x.numpy().tolist()))
      [1, 2, 3, 4, 5, 6]
    """
    return uniform_from_key(op_key(seed), shape, minval, maxval, dtype)


def gamma(
    shape: Any,
    alpha: Any,
    beta: Any = None,
    dtype: Any = dtypes.float32,
    seed: Any = None,
    name: str | None = None,
) -> Tensor:
    """Gamma distributed numbers, of shape [*shape, *broadcast of alpha and beta].

    Args:
      shape: sizes of the result, before those of the parameters.
      alpha: shape parameters, positive.
      beta: inverse scales; default 1.
      dtype: a floating dtype.
      seed: seed of this op.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.random.gamma([5], alpha=[0.5, 1.5]).shape
      TensorShape([5, 2])
    """
    return _gamma(
        op_key(seed),
        convert_to_tensor(alpha, dtype),
        convert_to_tensor(1 if beta is None else beta, dtype),
        as_sizes(shape),
    )


def poisson(
    shape: Any, lam: Any, dtype: Any = dtypes.float32, seed: Any = None, name: str | None = None
) -> Tensor:
    """Poisson distributed numbers, of shape [*shape, *lam.shape].

    Args:
      shape: sizes of the result, before those of `lam`.
      lam: means, not negative.
      dtype: dtype of the result.
      seed: seed of this op.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.random.poisson([5], lam=[3.0, 100.0]).shape
      TensorShape([5, 2])
    """
    return _poisson(
        op_key(seed),
        convert_to_tensor(lam, dtype_hint=dtypes.float32),
        as_sizes(shape),
        as_dtype(dtype),
    )


def categorical(
    logits: TensorLike,
    num_samples: Any,
    dtype: Any = None,
    seed: Any = None,
    name: str | None = None,
) -> Tensor:
    """Class numbers drawn by unnormalized log-probabilities.

    Args:
      logits: shape [batch, classes].
      num_samples: draws per row.
      dtype: default int64.
      seed: seed of this op.
      name: ignored.

    Returns:
      Tensor of shape [batch, num_samples].

    Example:
      >>> import meshflow as tf
      >>> never = float("-inf")
      >>> print(tf.random.categorical([[0.0, never, never], [never, never, 0.0]], 4).numpy())
      [[0 0 0 0]
       [2 2 2 2]]
    """
    return _categorical(op_key(seed), logits, int(num_samples), as_dtype(dtype or dtypes.int64))


def shuffle(value: TensorLike, seed: Any = None, name: str | None = None) -> Tensor:
    """Puts the rows of a tensor in random order.

    Args:
      value: a tensor.
      seed: seed of this op.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> sorted(tf.random.shuffle([1, 2, 3, 4]).numpy().tolist())
      [1, 2, 3, 4]
    """
    return _shuffle(op_key(seed), value)


def stateless_normal(
    shape: Any,
    seed: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = dtypes.float32,
    name: str | None = None,
    alg: Any = None,
) -> Tensor:
    """Normal numbers that depend on the seed only.

    Args:
      shape: sizes of the result.
      seed: two integers.
      mean: mean.
      stddev: standard deviation.
      dtype: a floating dtype.
      name: ignored.
      alg: ignored; the algorithm is threefry.

    Example:
      >>> import meshflow as tf
      >>> a, b = (tf.random.stateless_normal([3], seed=[1, 2]) for _ in range(2))
      >>> tf.reduce_all(a == b).numpy().item()
      True
    """
    return normal_from_key(seed_key(seed), shape, mean, stddev, dtype)


def stateless_truncated_normal(
    shape: Any,
    seed: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = dtypes.float32,
    name: str | None = None,
    alg: Any = None,
) -> Tensor:
    """Truncated normal numbers that depend on the seed only.

    Example:
      >>> import meshflow as tf
      >>> x = tf.random.stateless_truncated_normal([1000], seed=[1, 2])
      >>> bool(tf.reduce_max(tf.abs(x)) <= 2)
      True
    """
    return truncated_normal_from_key(seed_key(seed), shape, mean, stddev, dtype)


def stateless_uniform(
    shape: Any,
    seed: Any,
    minval: Any = 0,
    maxval: Any = None,
    dtype: Any = dtypes.float32,
    name: str | None = None,
    alg: Any = None,
) -> Tensor:
    """Uniform numbers that depend on the seed only; arguments as in `uniform`.

    Integers cover the whole range of the dtype when both `minval` and `maxval` are None.

    Example:
      >>> import meshflow as tf
      >>> x = tf.random.stateless_uniform([1000], seed=[1, 2], minval=0, maxval=3, dtype=tf.int32)
      >>> sorted(set(x.numpy().tolist()))
      [0, 1, 2]
    """
    if minval is None and maxval is None and as_dtype(dtype).is_integer:
        return bits_from_key(seed_key(seed), shape, dtype)
    return uniform_from_key(seed_key(seed), shape, minval, maxval, dtype)


def stateless_gamma(
    shape: Any,
    seed: Any,
    alpha: Any,
    beta: Any = None,
    dtype: Any = dtypes.float32,
    name: str | None = None,
) -> Tensor:
    """Gamma numbers of exactly `shape` that depend on the seed only.

    Example:
      >>> import meshflow as tf
      >>> tf.random.stateless_gamma([5, 2], seed=[1, 2], alpha=[0.5, 1.5]).shape
      TensorShape([5, 2])
    """
    a = convert_to_tensor(alpha, dtype)
    b = convert_to_tensor(1 if beta is None else beta, dtype)
    sizes = as_sizes(shape)
    common = np.broadcast_shapes(tuple(a.shape), tuple(b.shape))
    return _gamma(seed_key(seed), a, b, _leading(sizes, common))


def _leading(sizes: tuple[int, ...], parameters: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes before those of the parameters, which must be the last ones."""
    lead = len(sizes) - len(parameters)
    if lead < 0 or tuple(sizes[lead:]) != parameters:
        raise InvalidValueError(
            f"shape {list(sizes)} must end with the shape of the parameters, {list(parameters)}."
        )
    return tuple(sizes[:lead])


def stateless_poisson(
    shape: Any, seed: Any, lam: Any, dtype: Any = dtypes.int32, name: str | None = None
) -> Tensor:
    """Poisson numbers of exactly `shape` that depend on the seed only.

    Example:
      >>> import meshflow as tf
      >>> tf.random.stateless_poisson([5, 2], seed=[1, 2], lam=[3.0, 100.0]).dtype
      tf.int32
    """
    lam = convert_to_tensor(lam, dtype_hint=dtypes.float32)
    lead = _leading(as_sizes(shape), tuple(lam.shape))
    return _poisson(seed_key(seed), lam, lead, as_dtype(dtype))


def stateless_binomial(
    shape: Any,
    seed: Any,
    counts: Any,
    probs: Any,
    output_dtype: Any = dtypes.int32,
    name: str | None = None,
) -> Tensor:
    """Binomial numbers that depend on the seed only.

    Args:
      shape: sizes of the result.
      seed: two integers.
      counts: numbers of trials, broadcasting with the end of `shape`.
      probs: probabilities, likewise.
      output_dtype: dtype of the result.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> x = tf.random.stateless_binomial([1000], seed=[1, 2], counts=3, probs=0.5)
      >>> sorted(set(x.numpy().tolist()))
      [0, 1, 2, 3]
    """
    return binomial_from_key(seed_key(seed), shape, counts, probs, output_dtype)


def stateless_categorical(
    logits: TensorLike,
    num_samples: Any,
    seed: Any,
    dtype: Any = dtypes.int64,
    name: str | None = None,
) -> Tensor:
    """Class numbers that depend on the seed only; arguments as in `categorical`.

    Example:
      >>> import meshflow as tf
      >>> never = float("-inf")
      >>> print(tf.random.stateless_categorical([[never, 0.0]], 3, seed=[1, 2]).numpy())
      [[1 1 1]]
    """
    return _categorical(seed_key(seed), logits, int(num_samples), as_dtype(dtype))


def stateless_shuffle(
    value: TensorLike, seed: Any, alg: Any = None, name: str | None = None
) -> Tensor:
    """Rows in an order that depends on the seed only.

    Example:
      >>> import meshflow as tf
      >>> a, b = (tf.random.experimental.stateless_shuffle(tf.range(10), seed=[1, 2]) for _ in range(2))
      >>> tf.reduce_all(a == b).numpy().item()
      True
    """
    return _shuffle(seed_key(seed), value)


@op(same=(), differentiable=False, name="stateless_split")
def _split(key: TensorLike, num: int) -> Tensor:
    return jax.random.key_data(jax.random.split(random_key(key), num)).astype(jnp.int32)


def stateless_split(seed: Any, num: int = 2, alg: Any = None) -> Tensor:
    """`num` new seeds from one, shape [num, 2].

    Example:
      >>> import meshflow as tf
      >>> first, second = tf.random.split([1, 2], num=2)
      >>> first.shape, tf.reduce_all(first == second).numpy().item()
      (TensorShape([2]), False)
    """
    return _split(seed_key(seed), num)


@op(same=(), differentiable=False, name="stateless_fold_in")
def _fold_in(key: TensorLike, data: TensorLike) -> Tensor:
    return jax.random.key_data(jax.random.fold_in(random_key(key), data)).astype(jnp.int32)


def stateless_fold_in(seed: Any, data: TensorLike, alg: Any = None) -> Tensor:
    """A new seed from a seed and a number.

    Example:
      >>> import meshflow as tf
      >>> seeds = [tf.random.fold_in([1, 2], step) for step in range(2)]
      >>> seeds[0].shape, tf.reduce_all(seeds[0] == seeds[1]).numpy().item()
      (TensorShape([2]), False)
    """
    return _fold_in(seed_key(seed), data)
