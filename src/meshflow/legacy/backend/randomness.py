"""Tensors of random numbers, by the global seed or one of their own."""

from __future__ import annotations

from typing import Any

from meshflow.core.values.tensor import Tensor
from meshflow.keras.settings import floatx
from meshflow.ops import array
from meshflow.ops import random as random_ops

__all__ = [
    "random_bernoulli",
    "random_binomial",
    "random_normal",
    "random_uniform",
    "truncated_normal",
]


def random_normal(
    shape: Any,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: Any = None,
    seed: int | None = None,
) -> Tensor:
    """Normally distributed numbers.

    Args:
      shape: shape of the result.
      mean: the mean.
      stddev: the standard deviation.
      dtype: a floating dtype; default `floatx()`.
      seed: makes the numbers repeatable, together with the global seed.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.backend.random_normal([2, 3]).shape
      TensorShape([2, 3])
    """
    return random_ops.normal(shape, mean, stddev, dtype or floatx(), seed)


def truncated_normal(
    shape: Any,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: Any = None,
    seed: int | None = None,
) -> Tensor:
    """Normally distributed numbers within two standard deviations; arguments as in `random_normal`.

    Example:
      >>> import meshflow as tf
      >>> bool(tf.reduce_all(tf.abs(tf.keras.backend.truncated_normal([1000])) <= 2.0))
      True
    """
    return random_ops.truncated_normal(shape, mean, stddev, dtype or floatx(), seed)


def random_uniform(
    shape: Any,
    minval: float = 0.0,
    maxval: float = 1.0,
    dtype: Any = None,
    seed: int | None = None,
) -> Tensor:
    """Numbers that are equally likely between `minval` and `maxval`; see `random_normal`.

    Example:
      >>> import meshflow as tf
      >>> x = tf.keras.backend.random_uniform([100], minval=2.0, maxval=3.0)
      >>> bool(tf.reduce_all((x >= 2.0) & (x < 3.0)))
      True
    """
    return random_ops.uniform(shape, minval, maxval, dtype or floatx(), seed)


def random_bernoulli(
    shape: Any, p: float = 0.0, dtype: Any = None, seed: int | None = None
) -> Tensor:
    """Ones with probability `p`, zeros otherwise; see `random_normal`.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.backend.random_bernoulli([3], p=1.0).numpy().tolist()
      [1.0, 1.0, 1.0]
    """
    dtype = dtype or floatx()
    drawn = random_ops.uniform(shape, seed=seed) < p
    return array.where(drawn, array.ones(shape, dtype), array.zeros(shape, dtype))


def random_binomial(
    shape: Any, p: float = 0.0, dtype: Any = None, seed: int | None = None
) -> Tensor:
    """The old name of `random_bernoulli`.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.backend.random_binomial([3], p=1.0).numpy().tolist()
      [1.0, 1.0, 1.0]
    """
    return random_bernoulli(shape, p, dtype, seed)
