"""Distributions that only depend on an explicit seed, and the derivation of seeds."""

from __future__ import annotations

import numpy as np

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype
from meshflow.core.values.shapes import can_be_equal
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.array.creation import as_sizes
from meshflow.ops.array.joining import stack
from meshflow.ops.array.shaping import StaticInts
from meshflow.ops.random.from_keys import (
    derive_key,
    draw_binomial,
    draw_bits,
    draw_categorical,
    draw_gamma,
    draw_normal,
    draw_poisson,
    draw_truncated_normal,
    draw_uniform,
    shuffle_rows,
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
      >>> a, b = (tf.random.stateless_normal([3], seed=[1, 2]) for _ in range(2))
      >>> tf.reduce_all(a == b).numpy().item()
      True
    """
    return draw_normal(derive_key(seed), shape, mean, stddev, dtype)


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
      >>> x = tf.random.stateless_truncated_normal([1000], seed=[1, 2])
      >>> bool(tf.reduce_max(tf.abs(x)) <= 2)
      True
    """
    return draw_truncated_normal(derive_key(seed), shape, mean, stddev, dtype)


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
      >>> x = tf.random.stateless_uniform([1000], seed=[1, 2], minval=0, maxval=3, dtype=tf.int32)
      >>> sorted(set(x.numpy().tolist()))
      [0, 1, 2]
    """
    if minval is None and maxval is None and as_dtype(dtype).is_integer:
        return draw_bits(derive_key(seed), shape, dtype)
    return draw_uniform(derive_key(seed), shape, minval, maxval, dtype)


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
      >>> tf.random.stateless_gamma([5, 2], seed=[1, 2], alpha=[0.5, 1.5]).shape
      TensorShape([5, 2])
    """
    a = convert_to_tensor(alpha, dtype)
    b = convert_to_tensor(1 if beta is None else beta, dtype)
    sizes = as_sizes(shape)
    common = np.broadcast_shapes(tuple(a.shape), tuple(b.shape))
    return draw_gamma(derive_key(seed), a, b, _remove_parameter_sizes(sizes, common))


def _remove_parameter_sizes(sizes: tuple[int, ...], parameters: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes before those of the parameters, which must be the last ones."""
    lead = len(sizes) - len(parameters)
    if lead < 0 or not all(map(can_be_equal, sizes[lead:], parameters)):
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
      >>> tf.random.stateless_poisson([5, 2], seed=[1, 2], lam=[3.0, 100.0]).dtype
      tf.int32
    """
    lam = convert_to_tensor(lam, dtype_hint=dtypes.float32)
    lead = _remove_parameter_sizes(as_sizes(shape), tuple(lam.shape))
    return draw_poisson(derive_key(seed), lam, lead, as_dtype(dtype))


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
      >>> x = tf.random.stateless_binomial([1000], seed=[1, 2], counts=3, probs=0.5)
      >>> sorted(set(x.numpy().tolist()))
      [0, 1, 2, 3]
    """
    return draw_binomial(derive_key(seed), shape, counts, probs, output_dtype)


def stateless_categorical(
    logits: TensorLike,
    num_samples: int | Tensor,
    seed: TensorLike,
    dtype: DTypeLike = dtypes.int64,
    name: str | None = None,
) -> Tensor:
    """Draw class indices [batch, num_samples] that only depend on the seed; see `categorical`.

    Example:
      >>> never = float("-inf")
      >>> print(tf.random.stateless_categorical([[never, 0.0]], 3, seed=[1, 2]).numpy())
      [[1 1 1]]
    """
    return draw_categorical(derive_key(seed), logits, int(num_samples), as_dtype(dtype))


def stateless_shuffle(
    value: TensorLike, seed: TensorLike, alg: str | None = None, name: str | None = None
) -> Tensor:
    """Shuffle rows in an order that only depends on the seed, keeping the shape.

    Example:
      >>> a, b = (tf.random.experimental.stateless_shuffle(tf.range(10), seed=[1, 2]) for _ in range(2))
      >>> tf.reduce_all(a == b).numpy().item()
      True
    """
    return shuffle_rows(derive_key(seed), value)


def stateless_split(seed: TensorLike, num: int = 2, alg: str | None = None) -> Tensor:
    """Derive `num` seeds from a seed, as a tensor of shape [num, 2].

    Example:
      >>> first, second = tf.random.split([1, 2], num=2)
      >>> first.shape, tf.reduce_all(first == second).numpy().item()
      (TensorShape([2]), False)
    """
    seed = convert_to_tensor(seed)
    return draw_bits(derive_key(seed), [num, 2], seed.dtype)


def stateless_fold_in(seed: TensorLike, data: TensorLike, alg: str | None = None) -> Tensor:
    """Derive a seed of shape [2] from a seed and an integer scalar.

    Example:
      >>> seeds = [tf.random.fold_in([1, 2], step) for step in range(2)]
      >>> seeds[0].shape, tf.reduce_all(seeds[0] == seeds[1]).numpy().item()
      (TensorShape([2]), False)
    """
    data = convert_to_tensor(data)
    return stack([draw_bits(derive_key(seed), [], data.dtype), data])
