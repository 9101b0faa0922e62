"""Ops that create, read and replace diagonals of matrices.

Several diagonals are packed into the rows of a matrix, the highest diagonal first. Diagonals differ
in length; `align` determines
the end at which short ones are padded.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.array.shaping import check_rank

__all__ = ["band_part", "diag", "diag_part", "set_diag", "tensor_diag", "tensor_diag_part"]

_ALIGNMENTS = ("RIGHT_LEFT", "LEFT_RIGHT", "LEFT_LEFT", "RIGHT_RIGHT")


def _parse_band(k: int | Sequence[int]) -> tuple[int, int]:
    """Return the lowest and the highest diagonal of the argument `k`."""
    low, high = (k[0], k[-1]) if isinstance(k, Sequence) else (k, k)
    if low > high:
        raise InvalidValueError(
            f"k must be a number or a rising pair of numbers of diagonals, got {k}."
        )
    return int(low), int(high)


def _get_max_length(rows: int, columns: int, low: int, high: int) -> int:
    return min(rows + min(high, 0), columns - max(low, 0))


@functools.cache
def _index_packed(
    rows: int, columns: int, low: int, high: int, align: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return each matrix element's index in the packed diagonals, and whether it is on one of them."""
    if align not in _ALIGNMENTS:
        raise InvalidValueError(f"align must be one of {_ALIGNMENTS}, got {align!r}.")
    above, below = align.split("_")
    max_length = _get_max_length(rows, columns, low, high)
    i, j = np.arange(rows)[:, None], np.arange(columns)[None]
    diagonal = j - i
    length = np.minimum(rows + np.minimum(diagonal, 0), columns - np.maximum(diagonal, 0))
    is_left = ((diagonal >= 0) & (above == "LEFT")) | ((diagonal <= 0) & (below == "LEFT"))
    position = np.minimum(i, j) + np.where(is_left, 0, max_length - length)
    is_inside = (low <= diagonal) & (diagonal <= high)
    return np.where(is_inside, (high - diagonal) * max_length + position, 0), is_inside


@op
def diag(
    diagonal: TensorLike,
    name: str | None = "diag",
    k: int | Sequence[int] = 0,
    num_rows: int = -1,
    num_cols: int = -1,
    padding_value: Any = 0,
    align: str = "RIGHT_LEFT",
) -> Tensor:
    """Create matrices with given diagonals.

    Args:
      diagonal: [..., n], or [..., number of diagonals, n] when `k` is a pair.
      name: Ignored.
      k: Index of the diagonal, 0 for the main diagonal and 1 for the one above it, or a pair
        (lowest, highest).
      num_rows: Number of rows; default (-1) the smallest number that fits, or a square matrix.
      num_cols: Number of columns, with the same default.
      padding_value: Value of elements outside the diagonals.
      align: Alignment of short diagonals above and below the main one, each LEFT or RIGHT.

    Returns:
      Tensor of shape [..., num_rows, num_cols].

    Raises:
      InvalidArgumentError: If the diagonals do not fit.

    Example:
      >>> tf.linalg.diag([1.0, 2.0], k=1).numpy()
      array([[0., 1., 0.],
             [0., 0., 2.],
             [0., 0., 0.]], dtype=float32)
    """
    low, high = _parse_band(k)
    check_rank(diagonal, 1 if low == high else 2, "diag", "diagonal")
    max_length = diagonal.shape[-1]
    rows, columns = max_length - min(high, 0), max_length + max(low, 0)
    if num_rows == num_cols == -1:
        num_rows = num_cols = max(rows, columns)
    num_rows = rows if num_rows == -1 else num_rows
    num_cols = columns if num_cols == -1 else num_cols
    packed = diagonal if low == high else diagonal.reshape(*diagonal.shape[:-2], -1)
    if (
        _get_max_length(num_rows, num_cols, low, high) != max_length
        or packed.shape[-1] != (high - low + 1) * max_length
    ):
        raise InvalidValueError(
            f"diag: diagonals of shape {list(diagonal.shape)} with k={k} do not fit a matrix of shape "
            f"[{num_rows}, {num_cols}]."
        )
    if low == high == 0 and num_rows == num_cols:
        # The sizes of square matrices may be symbols.
        values, padding = packed[..., None, :], jnp.asarray(padding_value, diagonal.dtype)
        return jnp.where(jnp.eye(num_rows, dtype=bool), values, padding)
    indices, is_inside = _index_packed(num_rows, num_cols, low, high, align)
    return jnp.where(is_inside, packed[..., indices], jnp.asarray(padding_value, diagonal.dtype))


@op
def diag_part(
    input: TensorLike,
    name: str | None = "diag_part",
    k: int | Sequence[int] = 0,
    padding_value: Any = 0,
    align: str = "RIGHT_LEFT",
) -> Tensor:
    """Extract diagonals of matrices.

    Args:
      input: [..., rows, columns].
      name: Ignored.
      k: Index of the diagonal, or a pair (lowest, highest).
      padding_value: Value that pads short diagonals.
      align: Alignment of short diagonals, as in `diag`.

    Returns:
      Tensor of shape [..., n], or [..., number of diagonals, n] when `k` is a pair.

    Example:
      >>> tf.linalg.diag_part([[1, 2], [3, 4]], k=(0, 1)).numpy()
      array([[0, 2],
             [1, 4]], dtype=int32)
    """
    low, high = _parse_band(k)
    check_rank(input, 2, "diag_part")
    rows, columns = input.shape[-2:]
    max_length, count = _get_max_length(rows, columns, low, high), high - low + 1
    if any(not -rows < diagonal < columns for diagonal in (low, high) if diagonal):
        raise InvalidValueError(f"diag_part: a matrix [{rows}, {columns}] has no diagonal k={k}.")
    if low == high:
        return jnp.diagonal(input, low, -2, -1)
    indices, is_inside = _index_packed(rows, columns, low, high, align)
    source = np.full(count * max_length, -1)
    source[indices[is_inside]] = np.flatnonzero(is_inside)
    flat = input.reshape(*input.shape[:-2], rows * columns)
    diagonals = jnp.where(source >= 0, flat[..., source], jnp.asarray(padding_value, input.dtype))
    return diagonals.reshape(*input.shape[:-2], count, max_length)


@op
def set_diag(
    input: TensorLike,
    diagonal: TensorLike,
    name: str | None = "set_diag",
    k: int | Sequence[int] = 0,
    align: str = "RIGHT_LEFT",
) -> Tensor:
    """Replace diagonals of matrices.

    Args:
      input: [..., rows, columns].
      diagonal: The new values, packed like the result of `diag_part`.
      name: Ignored.
      k: Index of the diagonal, or a pair (lowest, highest).
      align: Alignment of short diagonals, as in `diag`.

    Returns:
      Tensor of the shape of `input`.

    Example:
      >>> print(tf.linalg.set_diag(tf.ones([2, 3], tf.int32), [7, 8]).numpy())
      [[7 1 1]
       [1 8 1]]
    """
    low, high = _parse_band(k)
    check_rank(input, 2, "set_diag")
    rows, columns = input.shape[-2:]
    max_length, count = _get_max_length(rows, columns, low, high), high - low + 1
    expected = [*input.shape[:-2], *([] if low == high else [count]), max_length]
    if list(diagonal.shape) != expected:
        raise InvalidValueError(
            f"set_diag: diagonal must have shape {expected} for k={k}, got {list(diagonal.shape)}: the first "
            "dimensions of diagonal don't match those of the input, or its last ones the number and length of diagonals."
        )
    if low == high == 0 and rows == columns:
        return jnp.where(jnp.eye(rows, dtype=bool), diagonal[..., None, :], input)
    indices, is_inside = _index_packed(rows, columns, low, high, align)
    packed = diagonal.reshape(*input.shape[:-2], count * max_length)
    return jnp.where(is_inside, packed[..., indices], input)


@op
def tensor_diag(diagonal: TensorLike, name: str | None = None) -> Tensor:
    """Create a tensor of shape (*s, *s) with a tensor of shape s on its diagonal.

    Args:
      diagonal: A tensor.
      name: Ignored.

    Example:
      >>> print(tf.linalg.tensor_diag([1, 2]).numpy())
      [[1 0]
       [0 2]]
    """
    check_rank(diagonal, 1, "tensor_diag")
    return jnp.diag(diagonal.reshape(-1)).reshape(*diagonal.shape, *diagonal.shape)


@op
def tensor_diag_part(input: TensorLike, name: str | None = None) -> Tensor:
    """Extract the diagonal of a tensor of even rank.

    Args:
      input: Tensor of shape [*sizes, *sizes].
      name: Ignored.

    Example:
      >>> print(tf.linalg.tensor_diag_part([[1, 2], [3, 4]]).numpy())
      [1 4]
    """
    half = input.shape[: input.ndim // 2]
    if not input.ndim or (*half, *half) != tuple(input.shape):
        raise InvalidValueError(
            f"tensor_diag_part: Invalid shape {list(input.shape)}: the rank of the tensor should be even and positive, "
            "and the first half of the dimensions must match the second half. [Op:DiagPart]"
        )
    size = math.prod(half)
    return jnp.diagonal(input.reshape(size, size)).reshape(half)


@op
def band_part(input: TensorLike, num_lower: int, num_upper: int, name: str | None = None) -> Tensor:
    """Set all elements outside a band around the main diagonal to zero.

    Args:
      input: Matrices [..., m, n].
      num_lower: Number of diagonals to keep below the main one; -1 for all.
      num_upper: Number of diagonals to keep above the main one; -1 for all.
      name: Ignored.

    Example:
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
    check_rank(input, 2, "band_part")
    i, j = jnp.arange(input.shape[-2])[:, None], jnp.arange(input.shape[-1])[None]
    is_inside = ((num_lower < 0) | (i - j <= num_lower)) & ((num_upper < 0) | (j - i <= num_upper))
    return jnp.where(is_inside, input, jnp.zeros((), input.dtype))
