"""Random tensors, drawn with the global seed or an explicit one."""

from __future__ import annotations

from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike
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
    shape: ShapeLike | Tensor,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: DTypeLike | None = None,
    seed: int | None = None,
) -> Tensor:
    """Draw from a normal distribution.

    Args:
      shape: Shape of the result.
      mean: Mean.
      stddev: Standard deviation.
      dtype: Floating-point dtype; default `floatx()`.
      seed: Seed that, together with the global seed, makes the result reproducible.

    Example:
      >>> tf.keras.backend.random_normal([2, 3]).shape
      TensorShape([2, 3])
    """
    return random_ops.normal(shape, mean, stddev, dtype or floatx(), seed)


def truncated_normal(
    shape: ShapeLike | Tensor,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: DTypeLike | None = None,
    seed: int | None = None,
) -> Tensor:
    """Draw from a normal distribution truncated at two standard deviations.

    The arguments are as in `random_normal`.

    Example:
      >>> bool(tf.reduce_all(tf.abs(tf.keras.backend.truncated_normal([1000])) <= 2.0))
      True
    """
    return random_ops.truncated_normal(shape, mean, stddev, dtype or floatx(), seed)


def random_uniform(
    shape: ShapeLike | Tensor,
    minval: float = 0.0,
    maxval: float = 1.0,
    dtype: DTypeLike | None = None,
    seed: int | None = None,
) -> Tensor:
    """Draw from a uniform distribution over [`minval`, `maxval`); see `random_normal`.

    Example:
      >>> x = tf.keras.backend.random_uniform([100], minval=2.0, maxval=3.0)
      >>> bool(tf.reduce_all((x >= 2.0) & (x < 3.0)))
      True
    """
    return random_ops.uniform(shape, minval, maxval, dtype or floatx(), seed)


def random_bernoulli(
    shape: ShapeLike | Tensor,
    p: float = 0.0,
    dtype: DTypeLike | None = None,
    seed: int | None = None,
) -> Tensor:
    """Draw ones with probability `p`, zeros otherwise; see `random_normal`.

    Example:
      >>> tf.keras.backend.random_bernoulli([3], p=1.0).numpy().tolist()
      [1.0, 1.0, 1.0]
    """
    dtype = dtype or floatx()
    is_one = random_ops.uniform(shape, seed=seed) < p
    return array.where(is_one, array.ones(shape, dtype), array.zeros(shape, dtype))


def random_binomial(
    shape: ShapeLike | Tensor,
    p: float = 0.0,
    dtype: DTypeLike | None = None,
    seed: int | None = None,
) -> Tensor:
    """Draw ones with probability `p`; the old name of `random_bernoulli`.

    Example:
      >>> tf.keras.backend.random_binomial([3], p=1.0).numpy().tolist()
      [1.0, 1.0, 1.0]
    """
    return random_bernoulli(shape, p, dtype, seed)
