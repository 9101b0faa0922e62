"""Distributions that only depend on an explicit seed, and the derivation of seeds."""

from __future__ import annotations

import numpy as np

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.array.creation import as_sizes
from meshflow.ops.array.joining import stack
from meshflow.ops.array.shaping import StaticInts
from meshflow.ops.random.from_keys import (
    binomial_from_key,
    bits_from_key,
    categorical_from_key,
    gamma_from_key,
    normal_from_key,
    poisson_from_key,
    seed_key,
    shuffle_from_key,
    truncated_normal_from_key,
    uniform_from_key,
)

__all__ = [
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
]


def stateless_normal(
    shape: StaticInts,
    seed: TensorLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = dtypes.float32,
    name: str | None = None,
    alg: str | None = None,
) -> Tensor:
    """Draw normal numbers that only depend on the seed.

    Args:
      shape: Shape of the result.
      seed: Two integers.
      mean: Mean.
      stddev: Standard deviation.
      dtype: A floating-point dtype.
      name: Ignored.
      alg: Ignored; the generator is Philox.

    Example:
      >>> import meshflow as tf
      >>> a, b = (tf.random.stateless_normal([3], seed=[1, 2]) for _ in range(2))
      >>> tf.reduce_all(a == b).numpy().item()
      True
    """
    return normal_from_key(seed_key(seed), shape, mean, stddev, dtype)


def stateless_truncated_normal(
    shape: StaticInts,
    seed: TensorLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = dtypes.float32,
    name: str | None = None,
    alg: str | None = None,
) -> Tensor:
    """Draw truncated normal numbers of the given shape, which only depend on the seed.

    Example:
      >>> import meshflow as tf
      >>> x = tf.random.stateless_truncated_normal([1000], seed=[1, 2])
      >>> bool(tf.reduce_max(tf.abs(x)) <= 2)
      True
    """
    return truncated_normal_from_key(seed_key(seed), shape, mean, stddev, dtype)


def stateless_uniform(
    shape: StaticInts,
    seed: TensorLike,
    minval: TensorLike | None = 0,
    maxval: TensorLike | None = None,
    dtype: DTypeLike = dtypes.float32,
    name: str | None = None,
    alg: str | None = None,
) -> Tensor:
    """Draw uniform numbers of the given shape, which only depend on the seed; see `uniform`.

    Integers are drawn from the full range of the dtype if both `minval` and `maxval` are None.

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
    shape: StaticInts,
    seed: TensorLike,
    alpha: TensorLike,
    beta: TensorLike | None = None,
    dtype: DTypeLike = dtypes.float32,
    name: str | None = None,
) -> Tensor:
    """Draw gamma-distributed numbers of exactly `shape` that only depend on the seed.

    Example:
      >>> import meshflow as tf
      >>> tf.random.stateless_gamma([5, 2], seed=[1, 2], alpha=[0.5, 1.5]).shape
      TensorShape([5, 2])
    """
    a = convert_to_tensor(alpha, dtype)
    b = convert_to_tensor(1 if beta is None else beta, dtype)
    sizes = as_sizes(shape)
    common = np.broadcast_shapes(tuple(a.shape), tuple(b.shape))
    return gamma_from_key(seed_key(seed), a, b, _leading(sizes, common))


def _leading(sizes: tuple[int, ...], parameters: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes before those of the parameters, which must be the last ones."""
    lead = len(sizes) - len(parameters)
    if lead < 0 or tuple(sizes[lead:]) != parameters:
        raise InvalidValueError(
            f"shape {list(sizes)} must end with the shape of the parameters, {list(parameters)}."
        )
    return tuple(sizes[:lead])


def stateless_poisson(
    shape: StaticInts,
    seed: TensorLike,
    lam: TensorLike,
    dtype: DTypeLike = dtypes.int32,
    name: str | None = None,
) -> Tensor:
    """Draw Poisson-distributed numbers of exactly `shape` that only depend on the seed.

    Example:
      >>> import meshflow as tf
      >>> tf.random.stateless_poisson([5, 2], seed=[1, 2], lam=[3.0, 100.0]).dtype
      tf.int32
    """
    lam = convert_to_tensor(lam, dtype_hint=dtypes.float32)
    lead = _leading(as_sizes(shape), tuple(lam.shape))
    return poisson_from_key(seed_key(seed), lam, lead, as_dtype(dtype))


def stateless_binomial(
    shape: StaticInts,
    seed: TensorLike,
    counts: TensorLike,
    probs: TensorLike,
    output_dtype: DTypeLike = dtypes.int32,
    name: str | None = None,
) -> Tensor:
    """Draw binomially distributed numbers that only depend on the seed.

    Args:
      shape: Shape of the result.
      seed: Two integers.
      counts: Numbers of trials, broadcast to the last axes of `shape`.
      probs: Probabilities, broadcast to the last axes of `shape`.
      output_dtype: The dtype of the result.
      name: Ignored.

    Example:
      >>> import meshflow as tf
      >>> x = tf.random.stateless_binomial([1000], seed=[1, 2], counts=3, probs=0.5)
      >>> sorted(set(x.numpy().tolist()))
      [0, 1, 2, 3]
    """
    return binomial_from_key(seed_key(seed), shape, counts, probs, output_dtype)


def stateless_categorical(
    logits: TensorLike,
    num_samples: int | Tensor,
    seed: TensorLike,
    dtype: DTypeLike = dtypes.int64,
    name: str | None = None,
) -> Tensor:
    """Draw class indices [batch, num_samples] that only depend on the seed; see `categorical`.

    Example:
      >>> import meshflow as tf
      >>> never = float("-inf")
      >>> print(tf.random.stateless_categorical([[never, 0.0]], 3, seed=[1, 2]).numpy())
      [[1 1 1]]
    """
    return categorical_from_key(seed_key(seed), logits, int(num_samples), as_dtype(dtype))


def stateless_shuffle(
    value: TensorLike, seed: TensorLike, alg: str | None = None, name: str | None = None
) -> Tensor:
    """Shuffle rows in an order that only depends on the seed, keeping the shape.

    Example:
      >>> import meshflow as tf
      >>> a, b = (tf.random.experimental.stateless_shuffle(tf.range(10), seed=[1, 2]) for _ in range(2))
      >>> tf.reduce_all(a == b).numpy().item()
      True
    """
    return shuffle_from_key(seed_key(seed), value)


def stateless_split(seed: TensorLike, num: int = 2, alg: str | None = None) -> Tensor:
    """Derive `num` seeds from a seed, as a tensor of shape [num, 2].

    Example:
      >>> import meshflow as tf
      >>> first, second = tf.random.split([1, 2], num=2)
      >>> first.shape, tf.reduce_all(first == second).numpy().item()
      (TensorShape([2]), False)
    """
    seed = convert_to_tensor(seed)
    return bits_from_key(seed_key(seed), [num, 2], seed.dtype)


def stateless_fold_in(seed: TensorLike, data: TensorLike, alg: str | None = None) -> Tensor:
    """Derive a seed of shape [2] from a seed and an integer scalar.

    Example:
      >>> import meshflow as tf
      >>> seeds = [tf.random.fold_in([1, 2], step) for step in range(2)]
      >>> seeds[0].shape, tf.reduce_all(seeds[0] == seeds[1]).numpy().item()
      (TensorShape([2]), False)
    """
    data = convert_to_tensor(data)
    return stack([bits_from_key(seed_key(seed), [], data.dtype), data])
