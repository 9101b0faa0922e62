"""Values of ragged tensors as NumPy arrays: the results of TensorFlow 1's sessions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch import symbolic_calls
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype
from meshflow.environment.types import PyTree
from meshflow.ops.ragged.construction import Values
from meshflow.ops.ragged.factories import constant
from meshflow.ops.ragged.tensor import RaggedTensor

__all__ = ["RaggedTensorValue", "constant_value", "convert_rows", "read_ragged_value"]


class RaggedTensorValue:
    """Rows of different lengths as arrays, a constant for `tf.RaggedTensor`.

    Args:
      values: Array of the concatenated rows, or the value of inner rows.
      row_splits: Vector of int32 or int64: the positions in the values at which rows start, and the last end.

    Raises:
      TypeError: If an argument has another type.
      ValueError: If the row splits of inner rows have another dtype.

    Example:
      >>> tf.compat.v1.ragged.RaggedTensorValue(np.array([1, 2, 3]), np.array([0, 2, 2, 3])).to_list()
      [[1, 2], [], [3]]
    """

    def __init__(self, values: Any, row_splits: np.ndarray) -> None:
        is_vector = isinstance(row_splits, np.ndarray) and row_splits.ndim == 1
        if not is_vector or row_splits.dtype not in (np.int32, np.int64):
            raise TypeError(
                f"row_splits must be a 1D int32 or int64 numpy array, got {row_splits!r}"
            )
        if not isinstance(values, np.ndarray | np.generic | RaggedTensorValue):
            raise TypeError(f"values must be a numpy array or a RaggedTensorValue, got {values!r}")
        if isinstance(values, RaggedTensorValue) and values.row_splits.dtype != row_splits.dtype:
            raise ValueError("row_splits and values.row_splits must have the same dtype")
        self.values: Any = values
        self.row_splits: np.ndarray = row_splits

    @property
    def dtype(self) -> np.dtype:
        """Return the dtype of the innermost values."""
        return self.values.dtype

    @property
    def flat_values(self) -> np.ndarray:
        """Return the innermost values."""
        return self.values.flat_values if self.ragged_rank > 1 else self.values

    @property
    def nested_row_splits(self) -> tuple[np.ndarray, ...]:
        """Return the row splits of all ragged dimensions, outermost first."""
        inner = self.values.nested_row_splits if self.ragged_rank > 1 else ()
        return (self.row_splits, *inner)

    @property
    def ragged_rank(self) -> int:
        """Return the number of ragged dimensions."""
        is_nested = isinstance(self.values, RaggedTensorValue)
        return 1 + (self.values.ragged_rank if is_nested else 0)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Return the shape, with None for ragged dimensions."""
        return (len(self.row_splits) - 1, None, *self.values.shape[1:])

    def to_list(self) -> list[Any]:
        """Return nested lists of Python values."""
        items = self.values.to_list() if self.ragged_rank > 1 else self.values.tolist()
        return [items[a:b] for a, b in itertools.pairwise(self.row_splits.tolist())]

    def to_ragged_tensor(
        self, dtype: DTypeLike | None = None, dtype_hint: DTypeLike | None = None
    ) -> RaggedTensor:
        """Convert to a ragged tensor."""
        values = convert_rows(self.values, dtype, dtype_hint)
        return RaggedTensor.from_row_splits(values, self.row_splits, validate=False)

    def __str__(self) -> str:
        return f"<tf.RaggedTensorValue {self.to_list()}>"

    def __repr__(self) -> str:
        return f"tf.RaggedTensorValue(values={self.values!r}, row_splits={self.row_splits!r})"


def read_ragged_value(rows: Any, dtype: np.dtype | None = None) -> Any:
    """Return the value of a ragged tensor, or the array of a tensor; by default with arrays of its dtype."""
    if not isinstance(rows, RaggedTensor):
        values = rows.numpy() if hasattr(rows, "numpy") else rows.eval()
        return values if dtype is None else np.asarray(values).astype(dtype)
    splits = read_ragged_value(rows.row_splits)
    return RaggedTensorValue(read_ragged_value(rows.values, dtype), splits)


def convert_rows(
    value: PyTree,
    dtype: DTypeLike | None = None,
    preferred_dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Values:
    """Convert a value to a tensor, or the value of a ragged tensor to a ragged tensor.

    Raises:
      ValueError: If a ragged tensor has another dtype.
    """
    if isinstance(value, RaggedTensorValue):
        return value.to_ragged_tensor(dtype, preferred_dtype)
    if not isinstance(value, RaggedTensor):
        return convert_to_tensor(value, dtype, preferred_dtype)
    if dtype is not None and value.dtype is not as_dtype(dtype):
        raise ValueError(
            f"Tensor conversion requested dtype {as_dtype(dtype).name} for RaggedTensor with dtype {value.dtype.name}: "
            "use tf.cast to convert."
        )
    return value


def _call_with_values(
    public: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> PyTree:
    """Call an op with ragged tensors in the place of their values."""
    if not symbolic_calls.has_symbolic(args, kwargs, RaggedTensorValue):
        return NotImplemented
    convert = lambda v: v.to_ragged_tensor() if isinstance(v, RaggedTensorValue) else v
    args, kwargs = nest.map_structure(convert, (args, kwargs))
    return public(*args, **kwargs)


def constant_value(
    pylist: PyTree,
    dtype: DTypeLike | None = None,
    ragged_rank: int | None = None,
    inner_shape: PyTree = None,
    row_splits_dtype: DTypeLike = "int64",
) -> RaggedTensorValue | np.ndarray:
    """Create the value of a ragged tensor of nested lists; see `tf.ragged.constant`.

    The default dtype is NumPy's, for example int64 for integers. Without ragged dimensions, the result is an array.

    Example:
      >>> tf.compat.v1.ragged.constant_value([[1, 2], [3]])
      tf.RaggedTensorValue(values=array([1, 2, 3]), row_splits=array([0, 2, 3]))
    """
    leaves = [np.ravel(leaf) for leaf in jax.tree_util.tree_leaves(pylist)]
    array_dtype = np.concatenate(leaves or [np.zeros(0)]).dtype
    kind = "string" if array_dtype.kind in "SUO" else as_dtype(array_dtype)
    rows = constant(pylist, kind, ragged_rank, inner_shape, None, row_splits_dtype)
    if dtype is not None:
        array_dtype = dtype if isinstance(dtype, np.dtype) else np.dtype(as_dtype(dtype).dtype)
    return read_ragged_value(rows, array_dtype)


symbolic_calls.register_composite_type(RaggedTensorValue, _call_with_values)
