"""`tf.experimental.numpy.random`: NumPy's names, drawn from the global seed as `tf.random` draws."""

from __future__ import annotations

from typing import Any

from meshflow.core.values import dtypes
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.numpy.conversion import as_array_dtype, asarray
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


def _sizes(size: Any) -> Any:
    return [] if size is None else [size] if isinstance(size, int) else size


def seed(s: int) -> None:
    """Sets the global seed, as `tf.random.set_seed` does.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.random.seed(1)
    """
    ops.set_seed(s)


def randn(*args: int) -> Tensor:
    """Normal numbers in float64, of mean 0 and standard deviation 1.

    Args:
      *args: the sizes; a number without them.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.random.randn(2, 3).shape
      TensorShape([2, 3])
    """
    return standard_normal(args)


def standard_normal(size: Any = None) -> Tensor:
    """Normal numbers in float64, of mean 0 and standard deviation 1; `size` is an int or ints."""
    return ops.normal(_sizes(size), dtype=dtypes.float64)


def normal(loc: TensorLike = 0.0, scale: TensorLike = 1.0, size: Any = None) -> Tensor:
    """Normal numbers in float64.

    Args:
      loc: the mean, a number or an array.
      scale: the standard deviation, a number or an array.
      size: an int or ints; by default the shape in which `loc` and `scale` meet.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.random.normal(3.0, 0.0, size=2).numpy()
      array([3., 3.])
    """
    mean, deviation = asarray(loc, float), asarray(scale, float)
    if size is None:
        size = array_ops.broadcast_static_shape(mean.shape, deviation.shape)
    return ops.normal(_sizes(size), mean, deviation, dtypes.float64)


def uniform(low: TensorLike = 0.0, high: TensorLike = 1.0, size: Any = None) -> Tensor:
    """Numbers in float64 from [low, high).

    Args:
      low: the least, a number or an array.
      high: the end, a number or an array.
      size: an int or ints; by default the shape in which `low` and `high` meet.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.random.uniform(size=2).shape
      TensorShape([2])
    """
    first, last = asarray(low, float), asarray(high, float)
    if size is None:
        size = array_ops.broadcast_static_shape(first.shape, last.shape)
    return ops.uniform(_sizes(size), first, last, dtypes.float64)


def random(size: Any = None) -> Tensor:
    """Numbers in float64 from [0, 1); `size` is an int or ints."""
    return uniform(size=_sizes(size))


def rand(*size: int) -> Tensor:
    """Numbers in float64 from [0, 1); the sizes are the arguments."""
    return uniform(size=size)


def randint(low: int, high: int | None = None, size: Any = None, dtype: Any = int) -> Tensor:
    """Integers from [low, high), or from [0, low) without `high`.

    Args:
      low: the least integer.
      high: the end, left out.
      size: an int or ints; a number without it.
      dtype: an integer dtype.

    Raises:
      ValueError: when the interval is empty.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.random.randint(5, 6, size=3).numpy()
      array([5, 5, 5])
    """
    first, last = (0, low) if high is None else (low, high)
    if last <= first:
        raise ValueError(
            f"tnp.random.randint: no integers from {first} to {last}, which is left out."
        )
    wanted = dtypes.of_numpy(as_array_dtype(dtype))
    drawn = ops.uniform(_sizes(size), first, last, dtypes.int64)
    return drawn if wanted is dtypes.int64 else math.cast(drawn, wanted)


def poisson(lam: TensorLike = 1.0, size: Any = None) -> Tensor:
    """Counts of a Poisson distribution, int64.

    Args:
      lam: the mean, a number or an array.
      size: an int or ints; by default the shape of `lam`.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.random.poisson(0.0, 2).numpy()
      array([0, 0])
    """
    rate = asarray(lam, float)
    if size is None:
        return ops.poisson([], rate, dtypes.int64)
    return ops.poisson([], array_ops.broadcast_to(rate, _sizes(size)), dtypes.int64)


def exponential(scale: float = 1.0, size: Any = None) -> Tensor:
    """Numbers in float64 of an exponential distribution of mean `scale`."""
    return -math.log1p(-uniform(size=_sizes(size))) * asarray(scale, float)


def permutation(x: TensorLike) -> Tensor:
    """The rows of an array in random order; for an int, the numbers below it.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> sorted(tnp.random.permutation(3).numpy().tolist())
      [0, 1, 2]
    """
    return ops.shuffle(arange(x) if isinstance(x, int) else asarray(x))


def choice(a: TensorLike, size: Any = None, replace: bool = True) -> Tensor:
    """Elements drawn at random from a vector; for an int, from the numbers below it.

    Args:
      a: what `asarray` takes, of one dimension, or an int.
      size: an int or ints; one element without it.
      replace: whether an element may be drawn again.

    Raises:
      ValueError: for more elements than there are, without replacement.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.random.choice([7, 7], size=2).numpy()
      array([7, 7])
    """
    source = arange(a) if isinstance(a, int) else asarray(a)
    sizes = list(_sizes(size))
    if replace:
        return array_ops.gather(source, ops.uniform(sizes, 0, len(source), dtypes.int64))
    count = 1
    for length in sizes:
        count *= int(length)
    if count > len(source):
        raise ValueError(
            f"tnp.random.choice: {count} elements asked for without replacement, there are {len(source)}."
        )
    return array_ops.reshape(ops.shuffle(source)[:count], sizes)
