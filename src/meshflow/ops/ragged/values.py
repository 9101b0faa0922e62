"""Values of ragged tensors as NumPy arrays: `tf.compat.v1.ragged.RaggedTensorValue`."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.values.dtypes import DTypeLike, as_dtype, int64
from meshflow.environment.types import PyTree
from meshflow.ops.ragged.factories import constant
from meshflow.ops.ragged.tensor import RaggedTensor

__all__ = ["RaggedTensorValue", "constant_value", "read_ragged_value"]


class RaggedTensorValue:
    """Value of a ragged tensor.

    Args:
      values: Array [values, ...], or another value of this class.
      row_splits: int32 or int64 array [rows + 1] of positions in `values`.

    Example:
      >>> value = tf.compat.v1.ragged.RaggedTensorValue(np.array([1, 2, 3]), np.array([0, 2, 3]))
      >>> value.to_list(), value.ragged_rank, value.shape
      ([[1, 2], [3]], 1, (2, None))
    """

    def __init__(self, values: np.ndarray | RaggedTensorValue, row_splits: np.ndarray) -> None:
        self.values, self.row_splits = values, row_splits
        is_vector = isinstance(row_splits, np.ndarray | np.generic) and row_splits.ndim == 1
        if not is_vector or row_splits.dtype not in (np.int64, np.int32):
            raise TypeError("row_splits must be a 1D int32 or int64 numpy array")
        if not isinstance(values, np.ndarray | np.generic | RaggedTensorValue):
            raise TypeError("values must be a numpy array or a RaggedTensorValue")
        if isinstance(values, RaggedTensorValue) and values.row_splits.dtype != row_splits.dtype:
            raise ValueError("row_splits and values.row_splits must have the same dtype")

    @property
    def flat_values(self) -> np.ndarray:
        """Return the innermost values."""
        return (
            self.values.flat_values if isinstance(self.values, RaggedTensorValue) else self.values
        )

    @property
    def nested_row_splits(self) -> tuple[np.ndarray, ...]:
        """Return the row splits of all ragged dimensions, the outermost first."""
        inner = self.values.nested_row_splits if isinstance(self.values, RaggedTensorValue) else ()
        return (self.row_splits, *inner)

    @property
    def ragged_rank(self) -> int:
        """Return the number of ragged dimensions."""
        return len(self.nested_row_splits)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of the innermost values."""
        return self.flat_values.dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Return the shape; the sizes of ragged dimensions are None."""
        return (len(self.row_splits) - 1, None, *self.values.shape[1:])

    def to_list(self) -> list[Any]:
        """Return nested lists."""
        values = self.values
        items = values.to_list() if isinstance(values, RaggedTensorValue) else values.tolist()
        return [items[a:b] for a, b in zip(self.row_splits[:-1], self.row_splits[1:], strict=True)]

    def __str__(self) -> str:
        return f"<tf.RaggedTensorValue {self.to_list()}>"

    def __repr__(self) -> str:
        return f"tf.RaggedTensorValue(values={self.values!r}, row_splits={self.row_splits!r})"


def read_ragged_value(rows: RaggedTensor) -> RaggedTensorValue:
    """Return the value of a ragged tensor of eager execution."""
    values = rows.values
    inner = read_ragged_value(values) if isinstance(values, RaggedTensor) else values.numpy()
    return RaggedTensorValue(inner, rows.row_splits.numpy())


def constant_value(
    pylist: PyTree,
    dtype: DTypeLike | None = None,
    ragged_rank: int | None = None,
    inner_shape: PyTree = None,
    row_splits_dtype: DTypeLike = int64,
) -> RaggedTensorValue | np.ndarray:
    """Return the value of a ragged tensor of nested lists, or an array without ragged dimensions.

    Args:
      pylist: The lists.
      dtype: Dtype of the values; default that of a NumPy array of them.
      ragged_rank: Number of ragged dimensions; by default all but the outermost.
      inner_shape: Shape of the innermost values; default scalars.
      row_splits_dtype: Dtype of the row splits.

    Raises:
      ValueError: If the lists have different depths, or do not agree with the other arguments.

    Example:
      >>> tf.compat.v1.ragged.constant_value([[1, 2], [3]]).to_list()
      [[1, 2], [3]]
    """
    if isinstance(pylist, RaggedTensor | RaggedTensorValue):
        raise TypeError("pylist may not be a RaggedTensor or RaggedTensorValue.")
    rows: Any = constant(pylist, None, ragged_rank, inner_shape, None, row_splits_dtype)
    is_ragged = isinstance(rows, RaggedTensor)
    flat = (rows.flat_values if is_ragged else rows).numpy()
    numpy_dtype = None if dtype is None else as_dtype(dtype).as_numpy_dtype
    value: Any = np.asarray(np.asarray(flat).tolist(), numpy_dtype).reshape(flat.shape)
    for splits in reversed(rows.nested_row_splits if is_ragged else ()):
        value = RaggedTensorValue(value, splits.numpy())
    return value
