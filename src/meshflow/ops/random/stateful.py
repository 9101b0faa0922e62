"""Distributions drawn from the global seed's stream: other numbers at each call."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.dispatch.symbolic import also_symbolic
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.random import op_key
from meshflow.ops.array.creation import as_sizes
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
    sizes = as_sizes(shape)
    key = op_key(seed, counts_of(*sizes), f"normal {as_dtype(dtype).name}")
    return normal_from_key(key, sizes, mean, stddev, dtype)


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

    The result has the shape `shape`.

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
    sizes = as_sizes(shape)
    key = op_key(seed, counts_of(*sizes), f"uniform {as_dtype(dtype).name}")
    return uniform_from_key(key, sizes, minval, maxval, dtype)


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
    alphas = convert_to_tensor(alpha, dtype)
    betas = convert_to_tensor(1 if beta is None else beta, dtype)
    sizes, last = as_sizes(shape), np.broadcast_shapes(tuple(alphas.shape), tuple(betas.shape))
    key = op_key(seed, counts_of(*sizes, *last), f"gamma {alphas.dtype.name}")
    return gamma_from_key(key, alphas, betas, sizes)


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
    rates = convert_to_tensor(lam, dtype_hint=dtypes.float32)
    sizes, kind = as_sizes(shape), as_dtype(dtype)
    name = f"poisson {rates.dtype.name} {kind.name}"
    key = op_key(seed, counts_of(*sizes, *rates.shape), name)
    return poisson_from_key(key, rates, sizes, kind)


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
    logits, count, kind = (
        convert_to_tensor(logits),
        int(num_samples),
        as_dtype(dtype or dtypes.int64),
    )
    # Two words for each number, and rows of fours.
    used = counts_of(2, logits.shape[0] if logits.ndim else 1, -(-count // 4) * 4)
    key = op_key(seed, used, f"categorical {logits.dtype.name} {kind.name}")
    return categorical_from_key(key, logits, count, kind)


def shuffle(value: TensorLike, seed: Any = None, name: str | None = None) -> Tensor:
    """Puts the rows of a tensor in random order.

    The result has the shape of the argument.

    Args:
      value: a tensor.
      seed: seed of this op.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> sorted(tf.random.shuffle([1, 2, 3, 4]).numpy().tolist())
      [1, 2, 3, 4]
    """
    value = convert_to_tensor(value)
    # Four words of each number of the counter, one for each row but the last.
    used = (value.shape[0] + 2) // 4 if value.ndim else 0
    return shuffle_from_key(op_key(seed, used, f"shuffle {value.dtype.name}"), value)
