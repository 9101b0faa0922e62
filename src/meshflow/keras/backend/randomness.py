"""Tensors of random numbers, by the global seed or one of their own."""

from __future__ import annotations

from typing import Any

from meshflow.keras.backend.settings import floatx
from meshflow.ops import array, random_ops

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
) -> Any:
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
) -> Any:
    """Normally distributed numbers within two standard deviations; arguments as in `random_normal`."""
    return random_ops.truncated_normal(shape, mean, stddev, dtype or floatx(), seed)


def random_uniform(
    shape: Any,
    minval: float = 0.0,
    maxval: float = 1.0,
    dtype: Any = None,
    seed: int | None = None,
) -> Any:
    """Numbers that are equally likely between `minval` and `maxval`; see `random_normal`."""
    return random_ops.uniform(shape, minval, maxval, dtype or floatx(), seed)


def random_bernoulli(shape: Any, p: float = 0.0, dtype: Any = None, seed: int | None = None) -> Any:
    """Ones with probability `p`, zeros otherwise; see `random_normal`."""
    dtype = dtype or floatx()
    drawn = random_ops.uniform(shape, seed=seed) < p
    return array.where(drawn, array.ones(shape, dtype), array.zeros(shape, dtype))


def random_binomial(shape: Any, p: float = 0.0, dtype: Any = None, seed: int | None = None) -> Any:
    """The old name of `random_bernoulli`."""
    return random_bernoulli(shape, p, dtype, seed)
