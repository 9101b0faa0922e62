"""`tf.linalg`: making, reading and replacing diagonals of matrices.

Several diagonals are packed into the rows of a matrix, the highest first. They differ in length;
`align` says at which end the short ones are filled up.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.tensor import Tensor, TensorLike

__all__ = [
    "band_part",
    "diag",
    "diag_part",
    "set_diag",
    "tensor_diag",
    "tensor_diag_part",
]

_ALIGNMENTS = ("RIGHT_LEFT", "LEFT_RIGHT", "LEFT_LEFT", "RIGHT_RIGHT")


def _range(k: Any) -> tuple[int, int]:
    """The lowest and the highest diagonal that `k` means."""
    low, high = (k, k) if np.ndim(k) == 0 else (k[0], k[-1])
    if low > high:
        raise InvalidValueError(
            f"k must be a number or a rising pair of numbers of diagonals, got {k}."
        )
    return int(low), int(high)


def _longest(rows: int, columns: int, low: int, high: int) -> int:
    return min(rows + min(high, 0), columns - max(low, 0))


@functools.cache
def _places(
    rows: int, columns: int, low: int, high: int, align: str
) -> tuple[np.ndarray, np.ndarray]:
    """For each place of a matrix its number among the packed diagonals, and whether it is on one."""
    if align not in _ALIGNMENTS:
        raise InvalidValueError(f"align must be one of {_ALIGNMENTS}, got {align!r}.")
    above, below = align.split("_")
    longest = _longest(rows, columns, low, high)
    i, j = np.arange(rows)[:, None], np.arange(columns)[None]
    number = j - i
    length = np.minimum(rows + np.minimum(number, 0), columns - np.maximum(number, 0))
    left = ((number >= 0) & (above == "LEFT")) | ((number <= 0) & (below == "LEFT"))
    position = np.minimum(i, j) + np.where(left, 0, longest - length)
    inside = (low <= number) & (number <= high)
    return np.where(inside, (high - number) * longest + position, 0), inside


@op
def diag(
    diagonal: TensorLike,
    name: str | None = "diag",
    k: Any = 0,
    num_rows: int = -1,
    num_cols: int = -1,
    padding_value: Any = 0,
    align: str = "RIGHT_LEFT",
) -> Tensor:
    """Matrices with the given diagonals.

    Args:
      diagonal: [..., n], or [..., number of diagonals, n] when `k` is a pair.
      name: ignored.
      k: number of the diagonal, 0 the main one and 1 the one above it, or a pair (lowest, highest).
      num_rows: rows of a matrix; default (-1) the fewest that fit, or a square.
      num_cols: columns of a matrix, likewise.
      padding_value: value beside the diagonals.
      align: where short diagonals are packed: for those above and below the main one LEFT or RIGHT.

    Returns:
      Tensor of shape [..., num_rows, num_cols].

    Raises:
      InvalidArgumentError: when the diagonals do not fit.

    Example:
      >>> import meshflow as tf
      >>> tf.linalg.diag([1.0, 2.0], k=1).numpy()
      array([[0., 1., 0.],
             [0., 0., 2.],
             [0., 0., 0.]], dtype=float32)
    """
    low, high = _range(k)
    longest = diagonal.shape[-1]
    rows, columns = longest - min(high, 0), longest + max(low, 0)
    if num_rows == num_cols == -1:
        num_rows = num_cols = max(rows, columns)
    num_rows = rows if num_rows == -1 else num_rows
    num_cols = columns if num_cols == -1 else num_cols
    packed = diagonal if low == high else diagonal.reshape(*diagonal.shape[:-2], -1)
    if (
        _longest(num_rows, num_cols, low, high) != longest
        or packed.shape[-1] != (high - low + 1) * longest
    ):
        raise InvalidValueError(
            f"diag: diagonals of shape {list(diagonal.shape)} with k={k} do not fit a matrix of shape "
            f"[{num_rows}, {num_cols}]."
        )
    which, inside = _places(num_rows, num_cols, low, high, align)
    return jnp.where(inside, packed[..., which], jnp.asarray(padding_value, diagonal.dtype))


@op
def diag_part(
    input: TensorLike,
    name: str | None = "diag_part",
    k: Any = 0,
    padding_value: Any = 0,
    align: str = "RIGHT_LEFT",
) -> Tensor:
    """Diagonals of matrices.

    Args:
      input: [..., rows, columns].
      name: ignored.
      k: number of the diagonal, or a pair (lowest, highest).
      padding_value: what fills up short diagonals.
      align: where short diagonals are packed, as in `diag`.

    Returns:
      Tensor of shape [..., n], or [..., number of diagonals, n] when `k` is a pair.

    Example:
      >>> import meshflow as tf
      >>> tf.linalg.diag_part([[1, 2], [3, 4]], k=(0, 1)).numpy()
      array([[0, 2],
             [1, 4]], dtype=int32)
    """
    low, high = _range(k)
    rows, columns = input.shape[-2:]
    longest, count = _longest(rows, columns, low, high), high - low + 1
    if longest < 1:
        raise InvalidValueError(f"diag_part: a matrix [{rows}, {columns}] has no diagonal k={k}.")
    which, inside = _places(rows, columns, low, high, align)
    source = np.full(count * longest, -1)
    source[which[inside]] = np.flatnonzero(inside)
    flat = input.reshape(*input.shape[:-2], rows * columns)
    found = jnp.where(source >= 0, flat[..., source], jnp.asarray(padding_value, input.dtype))
    return found if low == high else found.reshape(*input.shape[:-2], count, longest)


@op
def set_diag(
    input: TensorLike,
    diagonal: TensorLike,
    name: str | None = "set_diag",
    k: Any = 0,
    align: str = "RIGHT_LEFT",
) -> Tensor:
    """Matrices with other diagonals.

    Args:
      input: [..., rows, columns].
      diagonal: the new values, packed as `diag_part` gives them.
      name: ignored.
      k: number of the diagonal, or a pair (lowest, highest).
      align: where short diagonals are packed, as in `diag`.

    Returns:
      Tensor of the shape of `input`.

    Example:
      >>> import meshflow as tf
      >>> print(tf.linalg.set_diag(tf.ones([2, 3], tf.int32), [7, 8]).numpy())
      [[7 1 1]
       [1 8 1]]
    """
    low, high = _range(k)
    rows, columns = input.shape[-2:]
    longest, count = _longest(rows, columns, low, high), high - low + 1
    expected = [*input.shape[:-2], *([] if low == high else [count]), longest]
    if list(diagonal.shape) != expected:
        raise InvalidValueError(
            f"set_diag: diagonal must have shape {expected} for k={k}, got {list(diagonal.shape)}."
        )
    which, inside = _places(rows, columns, low, high, align)
    packed = diagonal.reshape(*input.shape[:-2], count * longest)
    return jnp.where(inside, packed[..., which], input)


@op
def tensor_diag(diagonal: TensorLike, name: str | None = None) -> Tensor:
    """A tensor of twice the rank with the elements on its diagonal.

    From a shape s to (*s, *s).

    Args:
      diagonal: a tensor.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.linalg.tensor_diag([1, 2]).numpy())
      [[1 0]
       [0 2]]
    """
    return jnp.diag(diagonal.reshape(-1)).reshape(*diagonal.shape, *diagonal.shape)


@op
def tensor_diag_part(input: TensorLike, name: str | None = None) -> Tensor:
    """The diagonal of a tensor of even rank.

    Args:
      input: tensor of shape [*sizes, *sizes].
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.linalg.tensor_diag_part([[1, 2], [3, 4]]).numpy())
      [1 4]
    """
    half = input.shape[: input.ndim // 2]
    size = math.prod(half)
    return jnp.diagonal(input.reshape(size, size)).reshape(half)


@op
def band_part(input: TensorLike, num_lower: int, num_upper: int, name: str | None = None) -> Tensor:
    """Matrices with only a band around the diagonal; -1 keeps a whole side.

    Args:
      input: matrices [..., m, n].
      num_lower: how many diagonals below the main one stay.
      num_upper: how many above it.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> x = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
      >>> print(tf.linalg.band_part(x, 1, 0).numpy())
      [[1 0 0]
       [4 5 0]
       [0 8 9]]
      >>> print(tf.linalg.band_part(x, 0, -1).numpy())
      [[1 2 3]
       [0 5 6]
       [0 0 9]]
    """
    i, j = jnp.arange(input.shape[-2])[:, None], jnp.arange(input.shape[-1])[None]
    inside = ((num_lower < 0) | (i - j <= num_lower)) & ((num_upper < 0) | (j - i <= num_upper))
    return jnp.where(inside, input, jnp.zeros((), input.dtype))
