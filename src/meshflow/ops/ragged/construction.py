"""Construction of ragged tensors from row lengths, row splits, dense and sparse tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.runtime.context import GraphRecorder, context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import nest
from meshflow.core.values.composite import CompositeTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype, int64
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.unknown_sizes import Result, compute_on_host
from meshflow.environment.types import Array, PyTree
from meshflow.ops import array
from meshflow.ops.deferred_host_values import DeferredValue
from meshflow.ops.ragged.partition import (
    RowPartition,
    Size,
    concatenate_ranges,
    convert_integers,
    find_value,
    get_namespace,
    make_size,
)

F = TypeVar("F", bound=Callable[..., Any])
Rows = TypeVar("Rows", bound="RaggedRows")
Values: TypeAlias = "Tensor | RaggedRows"


def convert_values(values: PyTree, dtype: DTypeLike | None = None) -> Values:
    """Convert values to a tensor unless they are a ragged tensor or the value of one."""
    if isinstance(values, RaggedRows | DeferredValue):
        return values
    to_ragged = getattr(values, "to_ragged_tensor", None)
    return to_ragged(dtype) if to_ragged else convert_to_tensor(values, dtype)


def record_without_shape(function: F) -> F:
    """Make a function of tensors and ragged tensors of unknown rank a single operation of a version 1 graph.

    Such a function is traced for several ranks when the graph is built, and runs on the values of a session.
    """

    @functools.wraps(function)
    def public(*args: Any, **kwargs: Any) -> Any:
        graph = find_recorder(args, kwargs)
        return function(*args, **kwargs) if graph is None else graph.call(public, args, kwargs)

    return public


def find_recorder(args: Any, kwargs: Any) -> GraphRecorder | None:
    """Return the version 1 graph that records a call because it lacks a rank or row splits; None otherwise."""
    if context.graph is None or context.trace is not None:
        return None
    leaves = [v for v in nest.flatten((args, kwargs)) if isinstance(v, Tensor | RaggedRows)]
    must_record = any(
        v.shape.rank is None or (isinstance(v, RaggedRows) and v.partition.static_nrows is None)
        for v in leaves
    )
    return context.graph if must_record else None


def count_rows(values: PyTree) -> Any:
    """Return the number of rows; None if the rank is unknown."""
    if values.shape.rank == 0:
        raise InvalidValueError(f"values: shape {values.shape} must have rank at least 1")
    return None if values.shape.rank is None else values.shape[0]


class RaggedRows(CompositeTensor):
    """Values and their partition into rows, and the class methods of `tf.RaggedTensor` that create it."""

    def __init__(self, values: Values, row_partition: RowPartition, internal: bool = False) -> None:
        if not internal:
            raise ValueError(
                "RaggedTensor has no public constructor. Use tf.ragged.constant or a class method such as "
                "tf.RaggedTensor.from_row_splits."
            )
        self._values, self._partition = values, row_partition

    @property
    def values(self) -> PyTree:
        """Return the concatenated rows."""
        return self._values

    @property
    def partition(self) -> RowPartition:
        """Return the partition of the values into rows."""
        return self._partition

    @property
    def nested_partitions(self) -> tuple[RowPartition, ...]:
        """Return the partitions of all ragged dimensions, outermost first."""
        inner = self.values.nested_partitions if isinstance(self._values, RaggedRows) else ()
        return (self._partition, *inner)

    @property
    def flat_values(self) -> Tensor:
        """Return the innermost values, a tensor."""
        return self._values.flat_values if isinstance(self._values, RaggedRows) else self._values

    @property
    def dtype(self) -> DType:
        """Return the dtype of the values."""
        return self.flat_values.dtype

    @property
    def shape(self) -> TensorShape:
        """Return the static shape, with None for ragged dimensions."""
        partition = self._partition
        if self._values.shape.rank is None:
            return TensorShape(None)
        lengths = [partition.static_nrows, partition.static_uniform_row_length]
        return TensorShape([*lengths, *self._values.shape.as_list()[1:]]).show()

    def with_values(self, new_values: PyTree) -> Self:
        """Return the same rows with other values."""
        values = convert_values(new_values)
        known, count = self._partition.static_nvals, count_rows(values)
        if known is not None and known != count:
            raise InvalidValueError(
                f"RaggedTensor.with_values: expected {known} values for these rows, got {count}."
            )
        return self.from_partition(values, self._partition)

    @classmethod
    def from_partition(cls, values: PyTree, partition: RowPartition) -> Self:
        """Create rows from a partition of values.

        Raises:
          ValueError: If the row splits of nested rows have different dtypes.
        """
        if isinstance(values, RaggedRows) and values.partition.dtype is not partition.dtype:
            raise ValueError(
                f"Argument `row_partition` of RaggedTensor with dtype {partition.dtype.name} does not match the row "
                f"splits of the values, {values.partition.dtype.name}. Use with_row_splits_dtype to convert them."
            )
        return cls(values, partition, internal=True)

    @classmethod
    def from_row_splits(
        cls, values: PyTree, row_splits: TensorLike, name: str | None = None, validate: bool = True
    ) -> Self:
        """Create rows from the positions in the values at which they start, and the last end."""
        return _make_rows(cls, RowPartition.from_row_splits, values, row_splits, validate)

    @classmethod
    def from_row_lengths(
        cls, values: PyTree, row_lengths: TensorLike, name: str | None = None, validate: bool = True
    ) -> Self:
        """Create rows from their lengths."""
        return _make_rows(cls, RowPartition.from_row_lengths, values, row_lengths, validate)

    @classmethod
    def from_value_rowids(
        cls,
        values: PyTree,
        value_rowids: TensorLike,
        nrows: TensorLike | None = None,
        name: str | None = None,
        validate: bool = True,
    ) -> Self:
        """Create rows from the row of each value, in ascending order."""
        values, ids = _convert_parts(values, value_rowids)
        partition = RowPartition.from_value_rowids(ids, nrows, validate)
        if count_rows(values) != partition.static_nvals:
            raise InvalidValueError(
                "Arguments to from_value_rowids do not form a valid RaggedTensor: there are "
                f"{partition.static_nvals} value_rowids for {count_rows(values)} values."
            )
        return cls.from_partition(values, partition)

    @classmethod
    def from_row_starts(
        cls, values: PyTree, row_starts: TensorLike, name: str | None = None, validate: bool = True
    ) -> Self:
        """Create rows from the positions in the values at which they start."""
        values, starts = _convert_parts(values, row_starts)
        partition = RowPartition.from_row_starts(starts, count_rows(values), validate)
        return cls.from_partition(values, partition)

    @classmethod
    def from_row_limits(
        cls, values: PyTree, row_limits: TensorLike, name: str | None = None, validate: bool = True
    ) -> Self:
        """Create rows from the positions in the values at which they end."""
        return _make_rows(cls, RowPartition.from_row_limits, values, row_limits, validate)

    @classmethod
    def from_uniform_row_length(
        cls,
        values: PyTree,
        uniform_row_length: TensorLike,
        nrows: TensorLike | None = None,
        validate: bool = True,
        name: str | None = None,
    ) -> Self:
        """Create rows of one length; `nrows` is required if that is 0."""
        values, length = _convert_parts(values, uniform_row_length)
        partition = RowPartition.from_uniform_row_length(
            length, count_rows(values), nrows, validate
        )
        return cls.from_partition(values, partition)

    @classmethod
    def from_nested_row_splits(
        cls,
        flat_values: PyTree,
        nested_row_splits: Sequence[TensorLike],
        name: str | None = None,
        validate: bool = True,
    ) -> Self:
        """Create several ragged dimensions from their row splits, outermost first."""
        make = functools.partial(cls.from_row_splits, validate=validate)
        return _nest_rows(make, flat_values, nested_row_splits, "nested_row_splits")

    @classmethod
    def from_nested_row_lengths(
        cls,
        flat_values: PyTree,
        nested_row_lengths: Sequence[TensorLike],
        name: str | None = None,
        validate: bool = True,
    ) -> Self:
        """Create several ragged dimensions from their row lengths, outermost first."""
        make = functools.partial(cls.from_row_lengths, validate=validate)
        return _nest_rows(make, flat_values, nested_row_lengths, "nested_row_lengths")

    @classmethod
    def from_nested_value_rowids(
        cls,
        flat_values: PyTree,
        nested_value_rowids: Sequence[TensorLike],
        nested_nrows: Sequence[TensorLike] | None = None,
        name: str | None = None,
        validate: bool = True,
    ) -> Self:
        """Create several ragged dimensions from the rows of values, outermost first."""
        if nested_nrows is not None and len(nested_nrows) != len(nested_value_rowids):
            raise ValueError("nested_nrows must have the same length as nested_value_rowids")
        counts = iter(reversed(nested_nrows or [None] * len(nested_value_rowids)))
        make = lambda values, ids: cls.from_value_rowids(values, ids, next(counts), None, validate)
        return _nest_rows(make, flat_values, nested_value_rowids, "nested_value_rowids")

    @classmethod
    @record_without_shape
    def from_tensor(
        cls,
        tensor: TensorLike,
        lengths: PyTree = None,
        padding: PyTree = None,
        ragged_rank: int = 1,
        name: str | None = None,
        row_splits_dtype: DTypeLike = int64,
    ) -> Self:
        """Create rows from a dense tensor.

        Args:
          tensor: A tensor of a rank above `ragged_rank`.
          lengths: Length of each row; default all columns. A tuple has one item for each ragged dimension.
          padding: Value that ends a row where only such values follow.
          ragged_rank: Number of ragged dimensions.
          name: Ignored.
          row_splits_dtype: Dtype of the row splits.
        """
        if lengths is not None and padding is not None:
            raise ValueError("Specify argument `lengths` or `padding`, but not both.")
        if not isinstance(ragged_rank, int):
            raise TypeError(f"Argument `ragged_rank` must be an int. Received {ragged_rank}.")
        if ragged_rank <= 0:
            raise ValueError(
                f"Argument `ragged_rank` must be greater than 0. Received {ragged_rank}."
            )
        dense, dtype = convert_to_tensor(tensor), as_dtype(row_splits_dtype)
        dense.shape.with_rank_at_least(ragged_rank + 1)
        nested = (
            isinstance(lengths, list | tuple)
            and bool(lengths)
            and not isinstance(lengths[0], int | float | np.number)
        )
        if nested and ragged_rank not in (1, len(lengths)):
            raise ValueError(
                f"If Argument `lengths` is a tuple of row_lengths, argument `ragged_rank` must be len(lengths): {len(lengths)}. "
                f"Received ragged_rank: {ragged_rank}."
            )
        if nested:
            dense.shape.with_rank_at_least(len(lengths) + 1)
            outer, *inner = lengths
            rows = cls.from_tensor(dense, outer, row_splits_dtype=dtype)
            if not inner:
                return rows
            return rows.with_values(cls.from_tensor(rows.values, (*inner,), row_splits_dtype=dtype))
        sizes = dense.shape.as_list()
        num_rows, columns = sizes[:2]
        flat = array.reshape(dense, [num_rows * columns, *sizes[2:]])
        if ragged_rank > 1:
            values = cls.from_tensor(flat, lengths, padding, ragged_rank - 1, None, dtype)
            return cls.from_uniform_row_length(values, convert_integers(columns, dtype), num_rows)
        if padding is not None:
            lengths = padding_lengths(dense, padding)
        if lengths is None:
            partition = RowPartition.from_uniform_row_length(
                convert_integers(columns, dtype), num_rows * columns, num_rows
            )
            return cls.from_partition(flat, partition)
        lengths = convert_integers(lengths, name="lengths")
        if lengths.ndim != 1:
            raise ValueError(f"lengths: shape {lengths.shape} must have rank 1")

        def find(counts: Array, columns: Size) -> list[Array]:
            counts, xp = counts.clip(0, columns), get_namespace(counts)
            starts = xp.arange(counts.shape[0]) * columns
            return [concatenate_ranges(starts, counts), counts]

        results: list[Result] = [((None,), np.int64), ((lengths.array.shape[0],), dtype.dtype)]
        use = "lengths of RaggedTensor.from_tensor"
        positions, counts = compute_on_host(find, [lengths, make_size(columns)], results, use)
        return cls.from_row_lengths(array.gather(flat, positions), counts)

    @classmethod
    def from_sparse(
        cls, st_input: SparseTensor, name: str | None = None, row_splits_dtype: DTypeLike = int64
    ) -> Self:
        """Create rows from a sparse matrix with elements only at the start of its rows.

        Raises:
          TypeError: If the argument is not a sparse tensor.
          ValueError: If it is not a matrix.
          InvalidArgumentError: If its rows have gaps.
        """
        if not isinstance(st_input, SparseTensor):
            raise TypeError(
                f"Argument `st_input` must be of type SparseTensor, got {type(st_input).__name__}."
            )
        if st_input.shape.rank != 2:
            raise ValueError(f"rank(st_input) must be 2. Received {st_input.shape.rank}.")
        indices, size = st_input.indices, st_input.shape[0]
        ids = convert_integers(indices[:, 0], as_dtype(row_splits_dtype))
        count = st_input.dense_shape[0] if size is None else make_size(size)
        rows = cls.from_value_rowids(st_input.values, ids, count)
        found, columns = find_value(indices), find_value(rows.partition.offsets_in_rows())
        if found is not None and columns is not None and not np.array_equal(columns, found[:, 1]):
            raise InvalidValueError(
                "SparseTensor is not right-ragged: its rows have gaps, or are not in order."
            )
        return rows


def _convert_parts(values: PyTree, rows: TensorLike) -> tuple[Values, TensorLike]:
    """Convert values, and Python integers to the dtype of their row splits."""
    values = convert_values(values)
    if isinstance(values, RaggedRows) and not hasattr(rows, "dtype"):
        rows = convert_integers(rows, values.partition.dtype)
    return values, rows


def _make_rows(
    cls: type[Rows],
    make: Callable[..., RowPartition],
    values: PyTree,
    rows: TensorLike,
    validate: bool,
) -> Rows:
    values, rows = _convert_parts(values, rows)
    return cls.from_partition(values, make(rows, validate, num_values=count_rows(values)))


def _nest_rows(
    make: Callable[..., RaggedRows], flat_values: PyTree, rows: Sequence[TensorLike], name: str
) -> Any:
    if isinstance(rows, Tensor):
        raise TypeError(f"Argument `{name}` must be a list of Tensors. Received a Tensor.")
    return functools.reduce(make, reversed(list(rows)), convert_values(flat_values))


def padding_lengths(dense: Tensor, value: PyTree) -> Tensor:
    """Return the length of each row of a dense tensor without the padding at its end."""
    fill = convert_to_tensor(value, dense.dtype).require_value("padding")
    if fill.shape != tuple(dense.shape)[2:]:
        raise ValueError(
            f"Shapes {fill.shape} and {dense.shape[2:]} are incompatible: the padding must have the shape of the values."
        )

    def find(values: Array) -> list[Array]:
        is_value, xp = (values != fill).any(tuple(range(2, values.ndim))), get_namespace(values)
        return [xp.where(is_value, xp.arange(is_value.shape[1]) + 1, 0).max(1, initial=0)]

    results = [(dense.array.shape[:1], np.int64)]
    return compute_on_host(find, [dense], results, "values of RaggedTensor.from_tensor")[0]
