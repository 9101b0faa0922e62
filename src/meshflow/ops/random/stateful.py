"""Distributions that draw from the global seed's stream, with different numbers in each call."""

from __future__ import annotations

import numpy as np

from meshflow.core.dispatch.symbolic_calls import (
    accept_symbolic,
    dispatch_composites,
    record_in_graph,
)
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.random_streams import draw_op_key
from meshflow.ops.array.creation import as_sizes
from meshflow.ops.array.shaping import StaticInts
from meshflow.ops.random.from_keys import (
    count_counters,
    draw_categorical,
    draw_gamma,
    draw_normal,
    draw_poisson,
    draw_truncated_normal,
    draw_uniform,
    shuffle_rows,
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


@accept_symbolic
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
      >>> tf.random.normal([2, 3]).shape
      TensorShape([2, 3])
    """
    sizes = as_sizes(shape)
    key = draw_op_key(seed, count_counters(*sizes), f"normal {as_dtype(dtype).name}")
    return draw_normal(key, sizes, mean, stddev, dtype)


@accept_symbolic
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
      >>> x = tf.random.truncated_normal([1000], mean=10.0)
      >>> bool(tf.reduce_min(x) >= 8), bool(tf.reduce_max(x) <= 12)
      (True, True)
    """
    sizes = as_sizes(shape)
    key = draw_op_key(seed, count_counters(*sizes), f"truncated normal {as_dtype(dtype).name}")
    return draw_truncated_normal(key, sizes, mean, stddev, dtype)


@accept_symbolic
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
      >>> x = tf.random.uniform([1000], minval=1, maxval=7, dtype=tf.int32)
      >>> sorted(set(x.numpy().tolist()))
      [1, 2, 3, 4, 5, 6]
    """
    sizes = as_sizes(shape)
    key = draw_op_key(seed, count_counters(*sizes), f"uniform {as_dtype(dtype).name}")
    return draw_uniform(key, sizes, minval, maxval, dtype)


@record_in_graph
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
      >>> tf.random.gamma([5], alpha=[0.5, 1.5]).shape
      TensorShape([5, 2])
    """
    alphas = convert_to_tensor(alpha, dtype)
    betas = convert_to_tensor(1 if beta is None else beta, dtype)
    sizes, last = as_sizes(shape), np.broadcast_shapes(tuple(alphas.shape), tuple(betas.shape))
    key = draw_op_key(seed, count_counters(*sizes, *last), f"gamma {alphas.dtype.name}")
    return draw_gamma(key, alphas, betas, sizes)


@record_in_graph
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
      >>> tf.random.poisson([5], lam=[3.0, 100.0]).shape
      TensorShape([5, 2])
    """
    rates = convert_to_tensor(lam, dtype_hint=dtypes.float32)
    sizes, dt = as_sizes(shape), as_dtype(dtype)
    name = f"poisson {rates.dtype.name} {dt.name}"
    key = draw_op_key(seed, count_counters(*sizes, *rates.shape), name)
    return draw_poisson(key, rates, sizes, dt)


@record_in_graph
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
      >>> never = float("-inf")
      >>> print(tf.random.categorical([[0.0, never, never], [never, never, 0.0]], 4).numpy())
      [[0 0 0 0]
       [2 2 2 2]]
    """
    logits, count = convert_to_tensor(logits), int(num_samples)
    dt = as_dtype(dtype or dtypes.int64)
    # TensorFlow uses two words for each number, and pads rows to multiples of four.
    num_counters = count_counters(2, logits.shape[0] if logits.ndim else 1, -(-count // 4) * 4)
    key = draw_op_key(seed, num_counters, f"categorical {logits.dtype.name} {dt.name}")
    return draw_categorical(key, logits, count, dt)


@dispatch_composites
def shuffle(value: TensorLike, seed: int | None = None, name: str | None = None) -> Tensor:
    """Shuffle the rows of a tensor, keeping its shape.

    Example:
      >>> sorted(tf.random.shuffle([1, 2, 3, 4]).numpy().tolist())
      [1, 2, 3, 4]
    """
    value = convert_to_tensor(value)
    # Each counter has four words; each row except the last uses one.
    num_counters = (value.shape[0] + 2) // 4 if value.ndim else 0
    return shuffle_rows(draw_op_key(seed, num_counters, f"shuffle {value.dtype.name}"), value)
