"""`tf.experimental.numpy.random`: NumPy's random functions, with `tf.random`'s global seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from meshflow.core.values import dtypes
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.numpy.conversion import asarray, to_numpy_dtype
from meshflow.numpy.creation import arange
from meshflow.ops import array as array_ops
from meshflow.ops import math
from meshflow.ops import random as ops

__all__ = [
    "choice",
    "exponential",
    "normal",
    "permutation",
    "poisson",
    "rand",
    "randint",
    "randn",
    "random",
    "seed",
    "standard_normal",
    "uniform",
]

# Shape of a result: an integer, integers, or None for a scalar.
SizeLike: TypeAlias = int | Sequence[int] | TensorShape | Tensor | None


def _to_shape(size: SizeLike) -> Sequence[int] | TensorShape | Tensor:
    return [] if size is None else [size] if isinstance(size, int) else size


def seed(s: int) -> None:
    """Set the global seed, as `tf.random.set_seed` does.

    Example:
      >>> tnp.random.seed(1)
    """
    ops.set_seed(s)


def randn(*args: int) -> Tensor:
    """Draw float64 values from the standard normal distribution.

    Args:
      *args: Sizes; without any, the result is a scalar.

    Example:
      >>> tnp.random.randn(2, 3).shape
      TensorShape([2, 3])
    """
    return standard_normal(args)


def standard_normal(size: SizeLike = None) -> Tensor:
    """Draw float64 values from the standard normal distribution."""
    return ops.normal(_to_shape(size), dtype=dtypes.float64)


def normal(loc: TensorLike = 0.0, scale: TensorLike = 1.0, size: SizeLike = None) -> Tensor:
    """Draw float64 values from a normal distribution.

    Args:
      loc: Mean, a number or an array.
      scale: Standard deviation, a number or an array.
      size: Shape; default the broadcast shape of `loc` and `scale`.

    Example:
      >>> tnp.random.normal(3.0, 0.0, size=2).numpy()
      array([3., 3.])
    """
    mean, deviation = asarray(loc, float), asarray(scale, float)
    if size is None:
        size = array_ops.broadcast_static_shape(mean.shape, deviation.shape)
    return ops.normal(_to_shape(size), mean, deviation, dtypes.float64)


def uniform(low: TensorLike = 0.0, high: TensorLike = 1.0, size: SizeLike = None) -> Tensor:
    """Draw float64 values from a uniform distribution over [low, high).

    Args:
      low: Minimum, a number or an array.
      high: End, a number or an array.
      size: Shape; default the broadcast shape of `low` and `high`.

    Example:
      >>> tnp.random.uniform(size=2).shape
      TensorShape([2])
    """
    first, last = asarray(low, float), asarray(high, float)
    if size is None:
        size = array_ops.broadcast_static_shape(first.shape, last.shape)
    return ops.uniform(_to_shape(size), first, last, dtypes.float64)


def random(size: SizeLike = None) -> Tensor:
    """Draw float64 values from a uniform distribution over [0, 1)."""
    return uniform(size=_to_shape(size))


def rand(*size: int) -> Tensor:
    """Draw float64 values from a uniform distribution over [0, 1); the arguments are the sizes."""
    return uniform(size=size)


def randint(
    low: int, high: int | None = None, size: SizeLike = None, dtype: DTypeLike = int
) -> Tensor:
    """Draw integers from [low, high), or from [0, low) without `high`.

    Args:
      low: Minimum.
      high: End, which is excluded.
      size: Shape; by default the result is a scalar.
      dtype: Integer dtype.

    Raises:
      ValueError: If the interval is empty.

    Example:
      >>> tnp.random.randint(5, 6, size=3).numpy()
      array([5, 5, 5])
    """
    first, last = (0, low) if high is None else (low, high)
    if last <= first:
        raise ValueError(f"tnp.random.randint: there are no integers in [{first}, {last}).")
    target = dtypes.from_numpy_dtype(to_numpy_dtype(dtype))
    values = ops.uniform(_to_shape(size), first, last, dtypes.int64)
    return values if target is dtypes.int64 else math.cast(values, target)


def poisson(lam: TensorLike = 1.0, size: SizeLike = None) -> Tensor:
    """Draw int64 values from a Poisson distribution.

    Args:
      lam: Mean, a number or an array.
      size: Shape; default that of `lam`.

    Example:
      >>> tnp.random.poisson(0.0, 2).numpy()
      array([0, 0])
    """
    rate = asarray(lam, float)
    if size is None:
        return ops.poisson([], rate, dtypes.int64)
    return ops.poisson([], array_ops.broadcast_to(rate, _to_shape(size)), dtypes.int64)


def exponential(scale: float = 1.0, size: SizeLike = None) -> Tensor:
    """Draw float64 values from an exponential distribution with mean `scale`."""
    return -math.log1p(-uniform(size=_to_shape(size))) * asarray(scale, float)


def permutation(x: TensorLike) -> Tensor:
    """Shuffle the rows of an array, or the integers below an integer.

    Example:
      >>> sorted(tnp.random.permutation(3).numpy().tolist())
      [0, 1, 2]
    """
    return ops.shuffle(arange(x) if isinstance(x, int) else asarray(x))


def choice(a: TensorLike, size: SizeLike = None, replace: bool = True) -> Tensor:
    """Draw elements of a vector, or integers below an integer.

    Args:
      a: Vector, or an integer.
      size: Shape; by default the result is a scalar.
      replace: Whether an element may be drawn more than once.

    Raises:
      ValueError: If there are fewer elements than requested, without replacement.

    Example:
      >>> tnp.random.choice([7, 7], size=2).numpy()
      array([7, 7])
    """
    source = arange(a) if isinstance(a, int) else asarray(a)
    sizes: list[Any] = list(_to_shape(size))
    if replace:
        return array_ops.gather(source, ops.uniform(sizes, 0, len(source), dtypes.int64))
    count = 1
    for length in sizes:
        count *= int(length)
    if count > len(source):
        raise ValueError(
            f"tnp.random.choice: cannot draw {count} of {len(source)} elements without replacement."
        )
    return array_ops.reshape(ops.shuffle(source)[:count], sizes)
