"""Distributions that draw from the global seed's stream, with different numbers in each call."""

from __future__ import annotations

import numpy as np

from meshflow.core.dispatch.symbolic import also_symbolic
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.random import op_key
from meshflow.ops.array.creation import as_sizes
from meshflow.ops.array.shaping import StaticInts
from meshflow.ops.random.from_keys import (
    categorical_from_key,
    counts_of,
    gamma_from_key,
    normal_from_key,
    poisson_from_key,
    shuffle_from_key,
    truncated_normal_from_key,
    uniform_from_key,
)

__all__ = [
    "categorical",
    "gamma",
    "normal",
    "poisson",
    "shuffle",
    "truncated_normal",
    "uniform",
]


@also_symbolic
def normal(
    shape: StaticInts,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Draw normally distributed numbers.

    Args:
      shape: Shape of the result.
      mean: Mean.
      stddev: Standard deviation.
      dtype: A floating-point dtype.
      seed: Seed of the op, which is combined with the global seed.
      name: Ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.random.normal([2, 3]).shape
      TensorShape([2, 3])
    """
    sizes = as_sizes(shape)
    key = op_key(seed, counts_of(*sizes), f"normal {as_dtype(dtype).name}")
    return normal_from_key(key, sizes, mean, stddev, dtype)


@also_symbolic
def truncated_normal(
    shape: StaticInts,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Draw normal numbers of shape `shape` within two standard deviations; see `normal`.

    Example:
      >>> import meshflow as tf
      >>> x = tf.random.truncated_normal([1000], mean=10.0)
      >>> bool(tf.reduce_min(x) >= 8), bool(tf.reduce_max(x) <= 12)
      (True, True)
    """
    sizes = as_sizes(shape)
    key = op_key(seed, counts_of(*sizes), f"truncated normal {as_dtype(dtype).name}")
    return truncated_normal_from_key(key, sizes, mean, stddev, dtype)


@also_symbolic
def uniform(
    shape: StaticInts,
    minval: TensorLike = 0,
    maxval: TensorLike | None = None,
    dtype: DTypeLike = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Draw uniformly distributed numbers in [minval, maxval).

    Args:
      shape: Shape of the result.
      minval: Lower limit, inclusive.
      maxval: Upper limit, exclusive; 1 by default for floating-point dtypes, required for integers.
      dtype: A floating-point or integer dtype.
      seed: Seed of the op, which is combined with the global seed.
      name: Ignored.

    Raises:
      ValueError: For an integer dtype without `maxval`.

    Example:
      >>> import meshflow as tf
      >>> x = tf.random.uniform([1000], minval=1, maxval=7, dtype=tf.int32)
      >>> sorted(set(x.numpy().tolist()))
      [1, 2, 3, 4, 5, 6]
    """
    sizes = as_sizes(shape)
    key = op_key(seed, counts_of(*sizes), f"uniform {as_dtype(dtype).name}")
    return uniform_from_key(key, sizes, minval, maxval, dtype)


def gamma(
    shape: StaticInts,
    alpha: TensorLike,
    beta: TensorLike | None = None,
    dtype: DTypeLike = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Draw gamma-distributed numbers of shape [*shape, *parameter_shape].

    Args:
      shape: Leading sizes of the result, before the broadcast shape of `alpha` and `beta`.
      alpha: Positive shape parameters.
      beta: Inverse scales; 1 by default.
      dtype: A floating-point dtype.
      seed: Seed of the op.
      name: Ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.random.gamma([5], alpha=[0.5, 1.5]).shape
      TensorShape([5, 2])
    """
    alphas = convert_to_tensor(alpha, dtype)
    betas = convert_to_tensor(1 if beta is None else beta, dtype)
    sizes, last = as_sizes(shape), np.broadcast_shapes(tuple(alphas.shape), tuple(betas.shape))
    key = op_key(seed, counts_of(*sizes, *last), f"gamma {alphas.dtype.name}")
    return gamma_from_key(key, alphas, betas, sizes)


def poisson(
    shape: StaticInts,
    lam: TensorLike,
    dtype: DTypeLike = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Draw Poisson-distributed numbers of shape [*shape, *lam.shape].

    Args:
      shape: Leading sizes of the result, before the shape of `lam`.
      lam: Non-negative means.
      dtype: The dtype of the result.
      seed: Seed of the op.
      name: Ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.random.poisson([5], lam=[3.0, 100.0]).shape
      TensorShape([5, 2])
    """
    rates = convert_to_tensor(lam, dtype_hint=dtypes.float32)
    sizes, dt = as_sizes(shape), as_dtype(dtype)
    name = f"poisson {rates.dtype.name} {dt.name}"
    key = op_key(seed, counts_of(*sizes, *rates.shape), name)
    return poisson_from_key(key, rates, sizes, dt)


def categorical(
    logits: TensorLike,
    num_samples: int | Tensor,
    dtype: DTypeLike | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Draw class indices from unnormalized log-probabilities.

    Args:
      logits: Shape [batch, classes].
      num_samples: Number of samples per row.
      dtype: The dtype of the result; int64 by default.
      seed: Seed of the op.
      name: Ignored.

    Returns:
      Tensor of shape [batch, num_samples].

    Example:
      >>> import meshflow as tf
      >>> never = float("-inf")
      >>> print(tf.random.categorical([[0.0, never, never], [never, never, 0.0]], 4).numpy())
      [[0 0 0 0]
       [2 2 2 2]]
    """
    logits, count = convert_to_tensor(logits), int(num_samples)
    dt = as_dtype(dtype or dtypes.int64)
    # TensorFlow uses two words for each number, and pads rows to multiples of four.
    num_counters = counts_of(2, logits.shape[0] if logits.ndim else 1, -(-count // 4) * 4)
    key = op_key(seed, num_counters, f"categorical {logits.dtype.name} {dt.name}")
    return categorical_from_key(key, logits, count, dt)


def shuffle(value: TensorLike, seed: int | None = None, name: str | None = None) -> Tensor:
    """Shuffle the rows of a tensor, keeping its shape.

    Example:
      >>> import meshflow as tf
      >>> sorted(tf.random.shuffle([1, 2, 3, 4]).numpy().tolist())
      [1, 2, 3, 4]
    """
    value = convert_to_tensor(value)
    # Each counter has four words; each row except the last uses one.
    num_counters = (value.shape[0] + 2) // 4 if value.ndim else 0
    return shuffle_from_key(op_key(seed, num_counters, f"shuffle {value.dtype.name}"), value)
