"""`tf.RaggedTensor`: rows of different lengths, as one tensor of all values and a partition into rows.

Partitions are computed on the host in eager code and traced in functions (`partition.py`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.composite import CompositeSpec
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype, float32, int32, int64
from meshflow.core.values.shapes import ShapeLike, TensorShape, as_shape
from meshflow.core.values.specs import TensorSpec, type_spec_from_value
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import PyTree
from meshflow.ops import array
from meshflow.ops.operators import install_operators
from meshflow.ops.ragged import indexing, padding
from meshflow.ops.ragged.construction import (
    RaggedRows,
    Values,
    count_rows,
    record_without_shape,
)
from meshflow.ops.ragged.formatting import format_rows
from meshflow.ops.ragged.partition import (
    RowPartition,
    convert_integers,
    find_largest,
    find_value,
    make_size,
)

if TYPE_CHECKING:
    from meshflow.core.values.operator_types import Operators

    _Operators = Operators["RaggedTensor"]
else:
    _Operators = object

__all__ = [
    "RaggedTensor",
    "RaggedTensorSpec",
    "get_positive_axis",
    "merge_dims",
]


def get_positive_axis(axis: int, rank: int, name: str = "axis") -> int:
    """Return a nonnegative axis.

    Raises:
      TypeError: If the axis is not an integer.
      ValueError: If the axis is out of bounds.
    """
    if not isinstance(axis, int | np.integer):
        raise TypeError(f"{name} must be an int; got {type(axis).__name__}")
    if not -rank <= axis < rank:
        raise ValueError(f"{name}={axis} out of bounds: expected {-rank}<={name}<{rank}")
    return int(axis) % rank if rank else 0


class RaggedTensor(RaggedRows, _Operators):
    """Rows of different lengths.

    Create one with `tf.ragged.constant`, `tf.RaggedTensor.from_row_lengths` and its siblings, or
    `tf.strings.split`.

    Example:
      >>> rows = tf.ragged.constant([[1, 2], [], [3]])
      >>> rows.row_lengths().numpy().tolist(), tf.reduce_sum(rows, 1).numpy().tolist()
      ([2, 0, 1], [3, 0, 3])
      >>> (rows * 10).to_list(), rows.to_tensor(-1).numpy().tolist()
      ([[10, 20], [], [30]], [[1, 2], [-1, -1], [3, -1]])
    """

    _is_extension = False

    _is_tensor_like = True
    _keras_mask = None
    __array_priority__ = 150

    # ---- parts -----------------------------------------------------------------------------

    @property
    def row_splits(self) -> Tensor:
        """Return the positions in the values at which rows start, and the last end."""
        return self._partition.row_splits()

    @property
    def host_splits(self) -> np.ndarray:
        """Return the row splits on the host."""
        return self._partition.read_splits()

    @property
    def uniform_row_length(self) -> Tensor | None:
        """Return the length of all rows if they were created with one length, or None."""
        return self._partition.uniform_row_length()

    @property
    def nested_row_splits(self) -> tuple[Tensor, ...]:
        """Return the row splits of all ragged dimensions, outermost first."""
        return tuple(p.row_splits() for p in self.nested_partitions)

    @property
    def ragged_rank(self) -> int:
        """Return the number of ragged dimensions."""
        return len(self.nested_partitions)

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return self.ragged_rank + len(self.flat_values.shape)

    def get_shape(self) -> TensorShape:
        """Return the static shape."""
        return self.shape.show()

    def consumers(self) -> list[Any]:
        """Return an empty list: the operations that use the rows are not recorded."""
        return []

    def nrows(self, out_type: DTypeLike | None = None, name: str | None = None) -> Tensor:
        """Return the number of rows."""
        dtype = self._partition.dtype if out_type is None else as_dtype(out_type)
        return make_size(self._partition.static_nrows, dtype)

    @record_without_shape
    def row_lengths(self, axis: int = 1, name: str | None = None) -> PyTree:
        """Return the length of each row of an axis."""
        axis = get_positive_axis(axis, len(self.shape))
        if axis == 0:
            return self.nrows()
        if axis == 1:
            return self._partition.row_lengths()
        if isinstance(self._values, RaggedTensor):
            return self.with_values(self._values.row_lengths(axis - 1))
        sizes = self._values.shape.as_list()
        count = make_size(sizes[axis - 1], self._partition.dtype)
        return self.with_values(array.broadcast_to(count, sizes[: axis - 1]))

    def nested_row_lengths(self, name: str | None = None) -> tuple[Tensor, ...]:
        """Return the row lengths of all ragged dimensions, outermost first."""
        return tuple(p.row_lengths() for p in self.nested_partitions)

    def row_starts(self, name: str | None = None) -> Tensor:
        """Return the position in the values at which each row starts."""
        return self._partition.row_starts()

    def row_limits(self, name: str | None = None) -> Tensor:
        """Return the position in the values at which each row ends."""
        return self._partition.row_limits()

    def value_rowids(self, name: str | None = None) -> Tensor:
        """Return the row of each value."""
        return self._partition.value_rowids()

    def nested_value_rowids(self, name: str | None = None) -> tuple[Tensor, ...]:
        """Return the rows of values of all ragged dimensions, outermost first."""
        return tuple(p.value_rowids() for p in self.nested_partitions)

    @record_without_shape
    def bounding_shape(
        self, axis: PyTree = None, name: str | None = None, out_type: DTypeLike | None = None
    ) -> Tensor:
        """Return the smallest dense shape that contains all rows, or its sizes along some axes."""
        dtype = self._partition.dtype if out_type is None else as_dtype(out_type)
        partitions = self.nested_partitions
        sizes = [make_size(partitions[0].static_nrows)]
        sizes += [find_largest(p.row_lengths()) for p in partitions]
        sizes += [make_size(n) for n in self.flat_values.shape.as_list()[1:]]
        if isinstance(axis, int | np.integer):
            if not -len(sizes) <= axis < len(sizes):
                raise InvalidValueError(f"axis={axis} out of bounds of {len(sizes)} dimensions")
            return convert_integers(sizes[get_positive_axis(int(axis), len(sizes))], dtype)
        vector = array.stack([convert_integers(s, dtype) for s in sizes])
        return vector if axis is None else array.gather(vector, axis)

    def with_flat_values(self, new_values: TensorLike) -> RaggedTensor:
        """Return the same rows with other innermost values."""
        if isinstance(self._values, RaggedTensor):
            new_values = self._values.with_flat_values(new_values)
        return self.with_values(new_values)

    def with_row_splits_dtype(self, dtype: DTypeLike) -> RaggedTensor:
        """Return the same rows with row splits of another dtype, int32 or int64."""
        values = self._values
        if isinstance(values, RaggedTensor):
            values = values.with_row_splits_dtype(dtype)
        return RaggedTensor(values, self._partition.with_dtype(dtype), internal=True)

    @record_without_shape
    def merge_dims(self, outer_axis: int, inner_axis: int) -> PyTree:
        """Merge the dimensions from `outer_axis` to `inner_axis` into one."""
        rank = len(self.shape)
        outer = get_positive_axis(outer_axis, rank, "outer_axis")
        inner = get_positive_axis(inner_axis, rank, "inner_axis")
        if outer > inner:
            raise ValueError(
                f"Expected outer_axis ({outer_axis}) to be less than or equal to inner_axis ({inner_axis})"
            )
        return merge_dims(self, outer, inner)

    # ---- composite -------------------------------------------------------------------------

    def _split(self) -> tuple[list[Tensor], Hashable]:
        lengths = tuple(p.static_uniform_row_length for p in self.nested_partitions)
        return [self.flat_values, *self.nested_row_splits], lengths

    @classmethod
    def _join(cls, parts: Sequence[Any], static: Any) -> RaggedTensor:
        return join_parts(parts, static)

    @property
    def _type_spec(self) -> RaggedTensorSpec:
        return RaggedTensorSpec.from_value(self)

    def _components(self) -> list[Tensor]:
        return [self.flat_values]

    def _with_components(self, components: Sequence[Any]) -> RaggedTensor:
        return self.with_flat_values(components[0])

    def _as_tensor(self) -> Tensor:
        raise InvalidValueError(
            "A RaggedTensor has rows of different lengths: convert it with to_tensor()."
        )

    # ---- conversion ------------------------------------------------------------------------

    @record_without_shape
    def to_tensor(
        self, default_value: PyTree = None, name: str | None = None, shape: PyTree = None
    ) -> Tensor:
        """Return a dense tensor, with a default value after the end of each row.

        Args:
          default_value: The value; default zero or the empty string.
          name: Ignored.
          shape: Shape of the result; None for the sizes of the longest rows. Longer rows are cut.
        """
        return padding.pad_rows(self, default_value, shape)

    @record_without_shape
    def to_sparse(self, name: str | None = None) -> SparseTensor:
        """Return a sparse tensor with the values of each row at its start."""
        return SparseTensor(
            padding.list_coordinates(self),
            padding.flatten_values(self),
            self.bounding_shape(out_type=int64),
        )

    def to_list(self) -> list[Any]:
        """Return nested lists of Python values.

        Raises:
          ValueError: In a traced function.
        """
        flat = self.flat_values
        if find_value(flat) is None:
            raise ValueError("to_list can only be used in eager mode, where values are known.")
        rows: Any = flat.numpy().tolist()
        for partition in reversed(self.nested_partitions):
            splits = partition.read_splits().tolist()
            rows = [rows[a:b] for a, b in itertools.pairwise(splits)]
        return rows

    def numpy(self) -> np.ndarray:
        """Return an array with one array for each row, or a dense array if all rows have one length."""
        if find_value(self.flat_values) is None:
            raise ValueError("RaggedTensor.numpy() is only supported in eager mode.")
        values = self.values.numpy()
        rows = np.split(values, self.host_splits[1:-1]) if self.host_splits.size > 1 else []
        if not rows:
            return np.zeros((0, 0, *values.shape[1:]), values.dtype)
        if all(len(row) == len(rows[0]) for row in rows):
            return np.array(rows)
        result = np.empty(len(rows), object)
        result[:] = rows
        return result

    def __bool__(self) -> bool:
        raise TypeError("RaggedTensor may not be used as a boolean.")

    def __iter__(self) -> Iterator[Any]:
        return (self[int(i)] for i in np.arange(self._partition.static_nrows))

    def __autograph_for__(self) -> None:
        """Let Python iterate over the rows, which have different sizes."""

    @record_without_shape
    def __getitem__(self, key: PyTree) -> PyTree:
        return indexing.get_item(self, list(key) if isinstance(key, tuple | list) else [key])

    def take_rows(self, rows: np.ndarray) -> RaggedTensor:
        """Return some rows."""
        return indexing.take_rows(self, rows.reshape(-1))

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        parts = [self.flat_values, *self.nested_row_splits]
        if all(hasattr(part, "numpy") and find_value(part) is not None for part in parts):
            return f"<tf.RaggedTensor {format_rows(self.numpy())}>"
        return f"tf.RaggedTensor(values={self._values!r}, row_splits={self.row_splits!r})"

    def __hash__(self) -> int:
        if context.graph is not None:
            return id(self)  # A key of the values for a session.
        raise TypeError("RaggedTensor is unhashable.")


def join_parts(parts: Sequence[Any], lengths: Sequence[int | None]) -> RaggedTensor:
    """Return a ragged tensor from its innermost values and row splits, without checks.

    Args:
      parts: The innermost values, and the row splits of each ragged dimension.
      lengths: For each ragged dimension, the length of all rows, or None.
    """
    values, *splits = parts
    for split, length in zip(reversed(splits), reversed(lengths), strict=True):
        partition = RowPartition(split, length, count_rows(values), internal=True)
        values = RaggedTensor(values, partition, internal=True)
    return values


def merge_dims(value: PyTree, outer: int, inner: int) -> PyTree:
    """Merge the dimensions from `outer` to `inner` of a ragged or dense tensor."""
    if outer == inner:
        return value
    if not isinstance(value, RaggedTensor):
        sizes = value.shape.as_list()
        merged = functools.reduce(lambda a, b: a * b, sizes[outer : inner + 1])
        return array.reshape(value, [*sizes[:outer], merged, *sizes[inner + 1 :]])
    if outer == 0:
        return merge_dims(value.values, 0, inner - 1)
    if outer > 1:
        return value.with_values(merge_dims(value.values, outer - 1, inner - 1))
    values, splits = value.values, value.row_splits
    for axis in range(outer, inner):
        if not isinstance(values, RaggedTensor):
            factor = functools.reduce(
                lambda a, b: a * b, values.shape.as_list()[1 : inner - axis + 1]
            )
            splits = splits * factor
            values = merge_dims(values, 0, inner - axis)
            break
        splits = array.gather(values.row_splits, splits)
        values = values.values
    return RaggedTensor.from_row_splits(values, splits, validate=False)


class RaggedTensorSpec(CompositeSpec):
    """Shape and dtype of a ragged tensor, for example in the `element_spec` of a dataset.

    Args:
      shape: The shape, with None for ragged dimensions. None for any shape.
      dtype: Dtype of the values.
      ragged_rank: Number of ragged dimensions; 0 for rows of a ragged tensor.
      row_splits_dtype: Dtype of the row splits.
      flat_values_spec: Spec of the innermost values; by default one of `dtype`.

    Example:
      >>> data = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1, 2], [3]]))
      >>> data.batch(2).element_spec
      RaggedTensorSpec(TensorShape([None, None]), tf.int32, 1, tf.int64)
    """

    def __init__(
        self,
        shape: ShapeLike = None,
        dtype: DTypeLike | None = float32,
        ragged_rank: int | None = None,
        row_splits_dtype: DTypeLike = int64,
        flat_values_spec: TensorSpec | None = None,
    ) -> None:
        self._shape, self._row_splits_dtype = as_shape(shape), as_dtype(row_splits_dtype)
        if flat_values_spec is not None:
            dtype = flat_values_spec.dtype
        elif dtype is None:
            raise ValueError("At least one of dtype or flat_values_spec must be provided")
        self._dtype, self._flat_values_spec = as_dtype(dtype), flat_values_spec
        if self._row_splits_dtype not in (int32, int64):
            raise ValueError(f"row_splits_dtype must be int32 or int64, got {row_splits_dtype}.")
        rank = self._shape.rank
        if ragged_rank is None:
            if rank is None:
                raise ValueError("Must specify ragged_rank or a shape with a known rank.")
            ragged_rank = rank - 1
        if not isinstance(ragged_rank, int):
            raise TypeError(f"Argument `ragged_rank` must be an int. Received {ragged_rank!r}.")
        if rank is not None and ragged_rank >= max(rank, 1):
            raise ValueError(
                f"Argument `ragged_rank` ({ragged_rank}) must be less than rank ({rank})."
            )
        self._ragged_rank = ragged_rank

    @classmethod
    def from_value(cls, value: Values) -> RaggedTensorSpec:
        """Return the spec of a ragged tensor, or of a tensor as ragged rank 0."""
        if not isinstance(value, RaggedTensor):
            return cls(value.shape, value.dtype, 0)
        return cls(value.shape, value.dtype, value.ragged_rank, value.row_splits.dtype)

    @property
    def shape(self) -> TensorShape:
        """Return the static shape."""
        return self._shape

    @property
    def dtype(self) -> DType:
        """Return the dtype of the values."""
        return self._dtype

    @property
    def ragged_rank(self) -> int:
        """Return the number of ragged dimensions."""
        return self._ragged_rank

    @property
    def row_splits_dtype(self) -> DType:
        """Return the dtype of the row splits."""
        return self._row_splits_dtype

    @property
    def flat_values_spec(self) -> TensorSpec | None:
        """Return the explicit spec of the innermost values, or None."""
        return self._flat_values_spec

    @property
    def value_type(self) -> type:
        """Return `tf.RaggedTensor`, or `tf.Tensor` if there are no ragged dimensions."""
        return RaggedTensor if self._ragged_rank > 0 else Tensor

    @property
    def _component_specs(self) -> list[TensorSpec]:
        count, sizes = self._ragged_rank, None if self._shape.rank is None else [*self._shape]
        if count == 0:
            return [TensorSpec(self._shape, self._dtype)]
        inner = None if sizes is None else [None, *sizes[count + 1 :]]
        first = None if sizes is None or sizes[0] is None else sizes[0] + 1
        splits = [TensorSpec([n], self._row_splits_dtype) for n in (first, *[None] * (count - 1))]
        return [self._flat_values_spec or TensorSpec(inner, self._dtype), *splits]

    def _to_components(self, value: PyTree) -> list[Tensor]:
        if not isinstance(value, RaggedTensor):
            return [value]
        return [value.flat_values, *value.nested_row_splits]

    def _from_components(self, components: Sequence[Any]) -> Values:
        if self._ragged_rank == 0:
            return components[0]
        sizes = [*self._shape] if self._shape.rank else [None] * (self._ragged_rank + 1)
        return join_parts(components, sizes[1 : self._ragged_rank + 1])

    def to_batch_spec(self, size: int | None) -> RaggedTensorSpec:
        """Return the spec of batches of such tensors."""
        sizes = [size, *self._shape.as_list()]
        return RaggedTensorSpec(sizes, self.dtype, self.ragged_rank + 1, self.row_splits_dtype)

    def to_row_spec(self) -> RaggedTensorSpec:
        """Return the spec of the rows of such tensors."""
        sizes = self._shape.as_list()[1:]
        return RaggedTensorSpec(sizes, self.dtype, self.ragged_rank - 1, self.row_splits_dtype)

    _batch, _unbatch = to_batch_spec, to_row_spec

    def _serialize(self) -> tuple[Any, ...]:
        parts = self._shape, self._dtype, self._ragged_rank, self._row_splits_dtype
        return parts if self._flat_values_spec is None else (*parts, self._flat_values_spec)

    def is_compatible_with(self, value: object) -> bool:
        """Check whether a ragged tensor, or the spec of one, has this dtype and a compatible shape."""
        if isinstance(value, Tensor) and self._ragged_rank == 0:
            value = RaggedTensorSpec.from_value(value)
        if isinstance(value, RaggedTensor):
            value = type_spec_from_value(value)
        return (
            isinstance(value, RaggedTensorSpec)
            and self._dtype == value.dtype
            and self._ragged_rank == value.ragged_rank
            and (not self._ragged_rank or self._row_splits_dtype == value.row_splits_dtype)
            and self._shape.is_compatible_with(value.shape)
        )


_hash = RaggedTensor.__hash__
install_operators(RaggedTensor)
RaggedTensor.__hash__ = _hash  # type: ignore[method-assign]
