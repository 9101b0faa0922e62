"""`tf.RaggedTensor`: rows of different lengths, as one tensor of all values and the ends of the rows.

The ends of the rows are static. Ops on the values are compiled; a function whose row lengths depend
on values runs op by op.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from meshflow.core.dispatch import symbolic_calls
from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.runtime.errors import InvalidValueError, UnimplementedError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype, string
from meshflow.core.values.shapes import ShapeLike, TensorShape, as_shape
from meshflow.core.values.specs import TypeSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import PyTree
from meshflow.ops import array, math
from meshflow.ops.operators import install_operators

if TYPE_CHECKING:
    from meshflow.core.values.operator_types import Operators

    _Operators = Operators["RaggedTensor"]
else:
    _Operators = object

__all__ = [
    "RaggedRow",
    "RaggedTensor",
    "RaggedTensorSpec",
    "boolean_mask",
    "constant",
    "map_flat_values",
    "range",
    "row_splits_to_segment_ids",
    "stack",
]

_Values: TypeAlias = "Tensor | RaggedTensor"


def _read_integers(value: TensorLike, name: str) -> np.ndarray:
    """Return integers that determine rows, which must be static."""
    return convert_to_tensor(value).require_value(f"{name} of a RaggedTensor").astype(np.int64)


def _convert_values(values: PyTree) -> _Values:
    return values if isinstance(values, RaggedTensor) else convert_to_tensor(values)


def _compute_row_ids(splits: np.ndarray) -> np.ndarray:
    lengths = np.diff(splits)
    return np.repeat(np.arange(len(lengths)), lengths)


def concatenate_ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the positions of consecutive values in rows with some starts and lengths."""
    offsets = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(starts - offsets, lengths)


class RaggedTensor(_Operators):
    """Rows of different lengths.

    Create one with `tf.ragged.constant`, `tf.RaggedTensor.from_row_lengths` and its siblings, or
    `tf.strings.split`.

    Example:
      >>> import meshflow as tf
      >>> rows = tf.ragged.constant([[1, 2], [], [3]])
      >>> rows.row_lengths().numpy().tolist(), tf.reduce_sum(rows, 1).numpy().tolist()
      ([2, 0, 1], [3, 0, 3])
      >>> (rows * 10).to_list(), rows.to_tensor(-1).numpy().tolist()
      ([[10, 20], [], [30]], [[1, 2], [-1, -1], [3, -1]])
    """

    _is_tensor_like = True
    _is_composite = True
    __array_priority__ = 150

    def __init__(self, values: _Values, row_splits: np.ndarray, internal: bool = False) -> None:
        if not internal:
            raise ValueError(
                "RaggedTensor has no public constructor. Use tf.ragged.constant or a class method such as "
                "tf.RaggedTensor.from_row_splits; or pad the rows to one length."
            )
        self._values, self.host_splits = values, row_splits

    # ---- construction ----------------------------------------------------------------------

    @classmethod
    def from_row_splits(
        cls, values: PyTree, row_splits: TensorLike, name: str | None = None, validate: bool = True
    ) -> RaggedTensor:
        """Create rows from the positions in the values at which they start, and the last end."""
        values = _convert_values(values)
        splits = _read_integers(row_splits, "row_splits")
        count = len(values) if isinstance(values, RaggedTensor) else values.shape[0]
        if not splits.size or splits[0] != 0 or (np.diff(splits) < 0).any() or splits[-1] != count:
            raise InvalidValueError(
                f"Arguments to from_row_splits do not form a valid RaggedTensor: row_splits={splits.tolist()} of "
                f"{count} values must ascend from 0 to the number of values."
            )
        return cls(values, splits, internal=True)

    @classmethod
    def from_row_lengths(
        cls, values: PyTree, row_lengths: TensorLike, name: str | None = None, validate: bool = True
    ) -> RaggedTensor:
        """Create rows from their lengths."""
        lengths = _read_integers(row_lengths, "row_lengths")
        return cls.from_row_splits(values, np.concatenate([[0], np.cumsum(lengths)]))

    @classmethod
    def from_value_rowids(
        cls,
        values: PyTree,
        value_rowids: TensorLike,
        nrows: int | None = None,
        name: str | None = None,
        validate: bool = True,
    ) -> RaggedTensor:
        """Create rows from the row of each value, in ascending order."""
        ids = _read_integers(value_rowids, "value_rowids")
        if (np.diff(ids) < 0).any() or (ids < 0).any():
            raise InvalidValueError(
                f"Arguments to from_value_rowids do not form a valid RaggedTensor: expected ascending rows from 0, got {ids.tolist()}."
            )
        count = int(ids[-1]) + 1 if nrows is None and ids.size else int(nrows or 0)
        return cls.from_row_lengths(values, np.bincount(ids, minlength=count))

    @classmethod
    def from_row_starts(
        cls, values: PyTree, row_starts: TensorLike, name: str | None = None, validate: bool = True
    ) -> RaggedTensor:
        """Create rows from the positions in the values at which they start."""
        starts = _read_integers(row_starts, "row_starts")
        return cls.from_row_splits(values, np.append(starts, len(convert_to_tensor(values))))

    @classmethod
    def from_row_limits(
        cls, values: PyTree, row_limits: TensorLike, name: str | None = None, validate: bool = True
    ) -> RaggedTensor:
        """Create rows from the positions in the values at which they end."""
        return cls.from_row_splits(
            values, np.insert(_read_integers(row_limits, "row_limits"), 0, 0)
        )

    @classmethod
    def from_nested_row_splits(
        cls,
        flat_values: PyTree,
        nested_row_splits: Sequence[TensorLike],
        name: str | None = None,
        validate: bool = True,
    ) -> RaggedTensor:
        """Create several ragged dimensions from their row splits, outermost first."""
        return functools.reduce(cls.from_row_splits, reversed(nested_row_splits), flat_values)

    @classmethod
    def from_nested_row_lengths(
        cls,
        flat_values: PyTree,
        nested_row_lengths: Sequence[TensorLike],
        name: str | None = None,
        validate: bool = True,
    ) -> RaggedTensor:
        """Create several ragged dimensions from their row lengths, outermost first."""
        return functools.reduce(cls.from_row_lengths, reversed(nested_row_lengths), flat_values)

    @classmethod
    def from_tensor(
        cls, tensor: TensorLike, lengths: TensorLike | None = None, padding: PyTree = None
    ) -> RaggedTensor:
        """Create rows from a dense tensor.

        Args:
          tensor: A tensor of rank 2 or more.
          lengths: Length of each row; default all columns.
          padding: Value that ends a row where only such values follow.
        """
        dense = convert_to_tensor(tensor)
        rows, columns = dense.shape.as_list()[:2]
        if padding is not None:
            is_value = dense.require_value("values of RaggedTensor.from_tensor") != padding
            is_value = is_value.reshape(rows, columns, -1).any(-1)
            lengths = np.where(is_value, np.arange(columns) + 1, 0).max(1, initial=0)
        counts = np.full(rows, columns) if lengths is None else _read_integers(lengths, "lengths")
        is_kept = np.arange(columns) < counts[:, None]
        flat = array.reshape(dense, [rows * columns, *dense.shape.as_list()[2:]])
        values = array.gather(flat, np.flatnonzero(is_kept))
        return cls.from_row_lengths(values, is_kept.sum(1))

    @classmethod
    def from_sparse(cls, st_input: SparseTensor, name: str | None = None) -> RaggedTensor:
        """Create rows from a sparse matrix whose rows have elements only at their start."""
        rows = st_input.indices.require_value("indices of RaggedTensor.from_sparse")[:, 0]
        return cls.from_value_rowids(st_input.values, rows, st_input.shape[0])

    # ---- parts -----------------------------------------------------------------------------

    @property
    def values(self) -> PyTree:
        """Return the concatenated rows."""
        return self._values

    @property
    def flat_values(self) -> Tensor:
        """Return the innermost values, a tensor."""
        return self._values.flat_values if isinstance(self._values, RaggedTensor) else self._values

    @property
    def row_splits(self) -> Tensor:
        """Return the positions in the values at which rows start, and the last end."""
        return Tensor(self.host_splits)

    @property
    def nested_row_splits(self) -> tuple[Tensor, ...]:
        """Return the row splits of all ragged dimensions."""
        inner = self._values.nested_row_splits if isinstance(self._values, RaggedTensor) else ()
        return (self.row_splits, *inner)

    @property
    def ragged_rank(self) -> int:
        """Return the number of ragged dimensions."""
        return len(self.nested_row_splits)

    @property
    def dtype(self) -> DType:
        """Return the dtype of the values."""
        return self.flat_values.dtype

    @property
    def shape(self) -> TensorShape:
        """Return the static shape, with None for ragged dimensions."""
        return TensorShape([len(self), None, *self._values.shape.as_list()[1:]])

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    @property
    def _keras_mask(self) -> None:
        return None

    def get_shape(self) -> TensorShape:
        """Return the static shape."""
        return self.shape

    def nrows(self, out_type: DTypeLike | None = None, name: str | None = None) -> Tensor:
        """Return the number of rows."""
        return Tensor(np.int64(len(self)))

    def row_lengths(self, axis: int = 1, name: str | None = None) -> PyTree:
        """Return the length of each row."""
        if axis == 1:
            return Tensor(np.diff(self.host_splits))
        return RaggedTensor(
            cast(RaggedTensor, self._values).row_lengths(axis - 1), self.host_splits, internal=True
        )

    def row_starts(self, name: str | None = None) -> Tensor:
        """Return the position in the values at which each row starts."""
        return Tensor(self.host_splits[:-1])

    def row_limits(self, name: str | None = None) -> Tensor:
        """Return the position in the values at which each row ends."""
        return Tensor(self.host_splits[1:])

    def value_rowids(self, name: str | None = None) -> Tensor:
        """Return the row of each value."""
        return Tensor(self.compute_row_ids())

    def compute_row_ids(self) -> np.ndarray:
        """Return the row of each value, on the host."""
        return _compute_row_ids(self.host_splits)

    def bounding_shape(self, axis: int | None = None, name: str | None = None) -> Tensor:
        """Return the smallest dense shape that contains all rows."""
        width = int(np.diff(self.host_splits).max(initial=0))
        inner = (
            self._values.bounding_shape().numpy()[1:]
            if isinstance(self._values, RaggedTensor)
            else self._values.shape.as_list()[1:]
        )
        sizes = np.array([len(self), width, *inner], np.int64)
        return Tensor(sizes if axis is None else sizes[axis])

    def with_values(self, new_values: PyTree) -> RaggedTensor:
        """Return the same rows with other values."""
        return RaggedTensor.from_row_splits(new_values, self.host_splits)

    def with_flat_values(self, new_values: TensorLike) -> RaggedTensor:
        """Return the same rows with other innermost values."""
        if isinstance(self._values, RaggedTensor):
            new_values = self._values.with_flat_values(new_values)
        return self.with_values(new_values)

    def _state_parts(self) -> list[Tensor]:
        return [self.flat_values, *self.nested_row_splits]

    @classmethod
    def _with_state_parts(cls, parts: Sequence[Any]) -> RaggedTensor:
        flat_values, *splits = parts
        make = lambda values, split: cls(values, np.asarray(split.array), internal=True)
        return functools.reduce(make, reversed(splits), flat_values)

    def _components(self) -> list[Tensor]:
        return [self.flat_values]

    def _as_tensor(self) -> Tensor:
        raise TypeError(
            "A RaggedTensor has rows of different lengths: convert it with to_tensor()."
        )

    # ---- conversion ------------------------------------------------------------------------

    def to_tensor(
        self, default_value: PyTree = None, name: str | None = None, shape: PyTree = None
    ) -> Tensor:
        """Return a dense tensor, with a default value after the end of each row.

        Args:
          default_value: The value; default zero or the empty string.
          name: Ignored.
          shape: Shape of the result; None for the sizes of the longest rows. Longer rows are cut.
        """
        values: PyTree = self._values
        sizes = self.bounding_shape().numpy().tolist()
        requested = [None] * len(sizes) if shape is None else TensorShape(shape).as_list()
        sizes = [n if size is None else size for n, size in zip(sizes, requested, strict=True)]
        if isinstance(values, RaggedTensor):
            values = values.to_tensor(default_value, shape=[None, *sizes[2:]])
        empty = np.full((), b"", object) if self.dtype is string else 0
        fill = convert_to_tensor(empty if default_value is None else default_value, self.dtype)
        rows, positions = self.compute_row_ids(), np.arange(self.host_splits[-1])
        columns = positions - self.host_splits[rows]
        is_inside = (rows < sizes[0]) & (columns < sizes[1])
        table = np.full(sizes[:2], len(positions))
        table[rows[is_inside], columns[is_inside]] = positions[is_inside]
        filler = array.broadcast_to(fill, [1, *sizes[2:]])
        return array.gather(array.concat([values, filler], 0), table)

    def to_sparse(self, name: str | None = None) -> SparseTensor:
        """Return a sparse matrix with the values of each row at its start."""
        rows = self.compute_row_ids()
        indices = np.stack([rows, np.arange(len(rows)) - self.host_splits[rows]], 1)
        return SparseTensor(indices, self._values, self.bounding_shape())

    def to_list(self) -> list[Any]:
        """Return nested lists of Python values."""
        values: PyTree = self._values
        flat = values.to_list() if isinstance(values, RaggedTensor) else values.numpy().tolist()
        return [flat[a:b] for a, b in zip(self.host_splits, self.host_splits[1:], strict=False)]

    def numpy(self) -> np.ndarray:
        """Return an array of one array for each row."""
        rows = np.empty(len(self), object)
        rows[:] = [row.numpy() for row in self]
        return rows

    def __len__(self) -> int:
        return len(self.host_splits) - 1

    def __iter__(self) -> Iterator[Any]:
        return (self._get_row(int(i)) for i in np.arange(len(self)))

    def _get_row(self, index: int) -> PyTree:
        return self._values[int(self.host_splits[index]) : int(self.host_splits[index + 1])]

    def __getitem__(self, key: PyTree) -> PyTree:
        first, *rest = key if isinstance(key, tuple) else (key,)
        if not isinstance(first, slice):
            index = int(to_static_value(first, "index"))
            if not -len(self) <= index < len(self):
                raise IndexError(f"Row key {index} out of bounds")
            row = self._get_row(index % len(self))
            return row[tuple(rest)] if rest else row
        rows = self.take_rows(np.arange(len(self))[first])
        if not rest:
            return rows
        inner, *others = rest
        if not isinstance(inner, slice):
            raise InvalidValueError("Cannot index into an inner ragged dimension.")
        lengths = np.diff(rows.host_splits)
        positions = [
            np.arange(n)[inner] + start for n, start in zip(lengths, rows.host_splits, strict=False)
        ]
        flat = np.concatenate(positions) if positions else np.zeros(0, np.int64)
        values = array.gather(rows.values, flat.astype(np.int64))
        if others:
            values = values[(slice(None), *others)]
        return RaggedTensor.from_row_lengths(
            values, np.array([len(p) for p in positions], np.int64)
        )

    def take_rows(self, rows: np.ndarray) -> RaggedTensor:
        """Return some rows."""
        rows = rows.reshape(-1)
        lengths = np.diff(self.host_splits)[rows]
        positions = concatenate_ranges(self.host_splits[rows], lengths)
        return RaggedTensor.from_row_lengths(array.gather(self._values, positions), lengths)

    def __repr__(self) -> str:
        if isinstance(self.flat_values.array, np.ndarray) or hasattr(
            self.flat_values.array, "devices"
        ):
            return f"<tf.RaggedTensor {self.to_list()}>"
        return f"<tf.RaggedTensor shape={self.shape} dtype={self.dtype.name}>"

    __hash__ = object.__hash__


class RaggedTensorSpec(TypeSpec):
    """Shape and dtype of a ragged tensor, for example in the `element_spec` of a dataset.

    Args:
      shape: The shape, with None for ragged dimensions. None for any shape.
      dtype: Dtype of the values.
      ragged_rank: Number of ragged dimensions; 0 for rows of a ragged tensor.
      row_splits_dtype: Ignored; int64.

    Example:
      >>> import meshflow as tf
      >>> data = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1, 2], [3]]))
      >>> data.batch(2).element_spec
      RaggedTensorSpec(TensorShape([None, None]), tf.int32, 1, tf.int64)
    """

    def __init__(
        self,
        shape: ShapeLike = None,
        dtype: DTypeLike = "float32",
        ragged_rank: int | None = None,
        row_splits_dtype: DTypeLike = "int64",
    ) -> None:
        self._shape, self._dtype = as_shape(shape), as_dtype(dtype)
        default = 0 if self._shape.rank is None else self._shape.rank - 1
        self.ragged_rank = default if ragged_rank is None else ragged_rank

    @property
    def shape(self) -> TensorShape:
        """Return the static shape."""
        return self._shape

    @property
    def dtype(self) -> DType:
        """Return the dtype of the values."""
        return self._dtype

    def is_compatible_with(self, value: object) -> bool:
        """Check whether a ragged tensor, or the spec of one, has this dtype and a compatible shape."""
        return (
            isinstance(value, (RaggedTensor, RaggedTensorSpec))
            and self._dtype == value.dtype
            and self.ragged_rank == value.ragged_rank
            and self._shape.is_compatible_with(value.shape)
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RaggedTensorSpec) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"RaggedTensorSpec({self._shape!r}, {self._dtype!r}, {self.ragged_rank}, tf.int64)"


class RaggedRow:
    """A row of a ragged tensor in a dataset, which batches put together again.

    Args:
      array: The values.
    """

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __len__(self) -> int:
        return len(self.array)


def split_rows(ragged: RaggedTensor) -> list[Any]:
    """Return the rows of a ragged tensor as elements of a dataset."""
    return [r if isinstance(r, RaggedTensor) else RaggedRow(r.numpy()) for r in ragged]


def _join_rows(rows: Sequence[_Values]) -> RaggedTensor:
    return RaggedTensor.from_row_lengths(
        array.concat(rows, 0), np.array([len(row) for row in rows], np.int64)
    )


def stack_rows(rows: Sequence[Any]) -> RaggedTensor:
    """Stack elements of a dataset to a ragged tensor."""
    values = [r if isinstance(r, RaggedTensor) else convert_to_tensor(r.array) for r in rows]
    return _join_rows(values)


def make_spec(value: RaggedTensor | RaggedRow) -> RaggedTensorSpec:
    """Return the spec of an element of a dataset."""
    if isinstance(value, RaggedTensor):
        return RaggedTensorSpec(value.shape, value.dtype, value.ragged_rank)
    dtype = string if value.dtype == object else as_dtype(value.dtype)
    return RaggedTensorSpec([None, *value.shape[1:]], dtype, 0)


# ---- ops on ragged tensors -------------------------------------------------------------------


def _reduce(
    public: Callable[..., Any], x: RaggedTensor, axis: PyTree = None, keepdims: PyTree = False
) -> PyTree:
    axes = to_static_value(axis, "axis")
    if axes is None:
        return public(x.flat_values)
    axes = sorted(a % x.ndim for a in (axes if isinstance(axes, tuple) else (axes,)))
    if keepdims and (axes[0] == 0 or len(axes) > 1):
        raise UnimplementedError(
            f"{public.__name__} of a RaggedTensor over axes {axes} with keepdims."
        )
    # The last axis is reduced first, which preserves the meaning of the others.
    for a in reversed(axes):
        x = _reduce_axis(public, x, a)
    return array.expand_dims(x, axes[0]) if keepdims else x


def _reduce_axis(public: Callable[..., Any], x: PyTree, axis: int) -> PyTree:
    if not isinstance(x, RaggedTensor):
        return public(x, axis=axis)
    if axis > 1:
        return x.with_values(_reduce_axis(public, x.values, axis - 1))
    if isinstance(x.values, RaggedTensor):
        if axis == 0:
            raise UnimplementedError(f"{public.__name__} of nested ragged rows over axis 0.")
        return _join_rows([_reduce_axis(public, row, 0) for row in x])
    ids = x.compute_row_ids()
    segments = ids if axis == 1 else np.arange(len(ids)) - x.host_splits[ids]
    count = len(x) if axis == 1 else int(np.diff(x.host_splits).max(initial=0))
    name = public.__name__.removeprefix("reduce_")
    if name in ("any", "all"):
        flags = x.values if name == "any" else math.logical_not(x.values)
        found = math.unsorted_segment_sum(math.cast(flags, "int32"), segments, count) > 0
        return found if name == "any" else math.logical_not(found)
    return getattr(math, f"unsorted_segment_{name}")(x.values, segments, count)


def _apply_to_rows(
    public: Callable[..., Any], x: RaggedTensor, *args: Any, **kwargs: Any
) -> PyTree:
    return _join_rows([public(row, *args, **kwargs) for row in x])


def _reduce_join(
    public: Callable[..., Any], x: RaggedTensor, axis: PyTree = None, *args: Any, **kwargs: Any
) -> Tensor:
    if axis is None or int(axis) % x.ndim != 1 or x.ndim != 2:
        raise UnimplementedError("reduce_join of a RaggedTensor takes axis=1.")
    return array.stack([public(row, 0, *args, **kwargs) for row in x])


def _expand_dims(x: RaggedTensor, axis: PyTree) -> RaggedTensor:
    axis = int(axis) % (x.ndim + 1)
    if axis == 0:
        return RaggedTensor.from_row_lengths(x, np.array([len(x)]))
    if axis == 1:
        return RaggedTensor.from_row_lengths(x, np.ones(len(x), np.int64))
    return x.with_values(array.expand_dims(x.values, axis - 1))


def _concat(values: Sequence[Any], axis: PyTree) -> RaggedTensor:
    parts = [v if isinstance(v, RaggedTensor) else RaggedTensor.from_tensor(v) for v in values]
    axis = int(axis) % parts[0].ndim
    joined = array.concat([p.values for p in parts], max(axis - 1, 0))
    if axis > 1:
        return parts[0].with_values(joined)
    lengths = [np.diff(p.host_splits) for p in parts]
    if axis == 0:
        return RaggedTensor.from_row_lengths(joined, np.concatenate(lengths))
    starts = np.cumsum([0, *[p.host_splits[-1] for p in parts]])
    order = [
        np.arange(part.host_splits[row], part.host_splits[row + 1]) + start
        for row in np.arange(len(parts[0]))
        for part, start in zip(parts, starts, strict=False)
    ]
    flat = np.concatenate(order) if order else np.zeros(0, np.int64)
    return RaggedTensor.from_row_lengths(array.gather(joined, flat), np.sum(lengths, 0))


def _gather(params: PyTree, indices: PyTree, axis: int = 0, batch_dims: int = 0) -> PyTree:
    if axis or batch_dims:
        raise UnimplementedError("tf.gather of a RaggedTensor takes axis=0 and batch_dims=0.")
    if isinstance(indices, RaggedTensor):
        return map_flat_values(lambda flat: array.gather(params, flat), indices)
    rows = _read_integers(indices, "indices")
    if rows.size and (rows.min() < 0 or rows.max() >= len(params)):
        raise InvalidValueError(
            f"tf.gather: indices {rows.tolist()} are not in [0, {len(params)})."
        )
    return params.take_rows(rows) if rows.ndim else params[int(rows)]


def _align(value: PyTree, model: RaggedTensor) -> PyTree:
    """Return the values of an operand for the flat values of a ragged tensor."""
    if isinstance(value, (list, tuple)) and any(isinstance(v, RaggedTensor) for v in value):
        return [_align(v, model) for v in value]
    if isinstance(value, RaggedTensor):
        if any(
            not np.array_equal(a.array, b.array)
            for a, b in zip(value.nested_row_splits, model.nested_row_splits, strict=True)
        ):
            raise InvalidValueError("Ragged operands must have the same row lengths.")
        return value.flat_values
    if not isinstance(value, (Tensor, np.ndarray)) or not value.shape:
        return value
    tensor = convert_to_tensor(value)
    if tensor.shape.rank == model.ndim and tensor.shape[1] == 1 and model.ragged_rank == 1:
        # One value for each row.
        return array.gather(array.squeeze(tensor, 1), model.compute_row_ids())
    return tensor


def map_flat_values(op: Callable[..., Any], *args: Any, **kwargs: Any) -> PyTree:
    """Apply a function to the innermost values of ragged tensors with the same rows.

    Example:
      >>> import meshflow as tf
      >>> tf.ragged.map_flat_values(tf.square, tf.ragged.constant([[1, 2], [3]])).to_list()
      [[1, 4], [9]]
    """
    operands = [
        v
        for value in (*args, *kwargs.values())
        for v in (value if isinstance(value, (list, tuple)) else [value])
    ]
    model = next((v for v in operands if isinstance(v, RaggedTensor)), None)
    if model is None:
        return op(*args, **kwargs)
    flat = [_align(v, model) for v in args]
    return model.with_flat_values(op(*flat, **{k: _align(v, model) for k, v in kwargs.items()}))


# Modules of ops that are applied to the innermost values, and further such ops.
_ELEMENTWISE_MODULES = (
    *("arithmetic", "casting", "clipping", "comparison", "division", "elementwise", "special"),
    *("strings", "unicode"),
)
_ELEMENTWISE_OPS = frozenset(
    [
        *("add_n", "as_string", "cast", "identity", "is_finite", "is_inf", "is_nan", "join"),
        *("length", "lower", "one_hot", "regex_full_match", "regex_replace", "strip", "substr"),
        *("stop_gradient", "to_hash_bucket", "to_hash_bucket_fast", "to_hash_bucket_strong"),
        *("to_number", "upper", "where", "zeros_like", "ones_like", "maximum", "minimum"),
        *("elu", "gelu", "leaky_relu", "relu", "relu6", "selu", "sigmoid", "silu", "swish", "tanh"),
    ]
)
_OPS: dict[str, Callable[..., Any]] = {
    "concat": _concat,
    "expand_dims": _expand_dims,
    "gather": _gather,
    "stack": lambda values, axis=0: stack(values, axis),
}


def _call_op(public: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
    """Apply an op to arguments with ragged tensors.

    Raises:
      UnimplementedError: If the op does not support them.
    """
    name = getattr(getattr(public, "op", None), "name", public.__name__)
    kwargs = {k: v for k, v in kwargs.items() if k != "name"}
    if name == "reduce_join":
        return _reduce_join(public, *args, **kwargs)
    is_segment_op = name.startswith("reduce_") and hasattr(math, f"unsorted_segment_{name[7:]}")
    if is_segment_op or name in ("reduce_any", "reduce_all"):
        return _reduce(public, *args, **kwargs)
    if name == "ngrams":
        return _apply_to_rows(public, *args, **kwargs)
    if name in _OPS:
        return _OPS[name](*args, **kwargs)
    module = public.__module__.rpartition(".")[2]
    if module in _ELEMENTWISE_MODULES or name in _ELEMENTWISE_OPS:
        return map_flat_values(public, *args, **kwargs)
    raise UnimplementedError(f"{name} of a RaggedTensor is not available: use to_tensor() first.")


install_operators(RaggedTensor)
symbolic_calls.register_symbolic_type(RaggedTensor, _call_op)


# ---- tf.ragged ---------------------------------------------------------------------------------


def constant(
    pylist: PyTree,
    dtype: DTypeLike | None = None,
    ragged_rank: int | None = None,
    inner_shape: PyTree = None,
    name: str | None = None,
    row_splits_dtype: DTypeLike = "int64",
) -> PyTree:
    """Create a ragged tensor of nested lists.

    Args:
      pylist: The lists.
      dtype: Dtype of the values.
      ragged_rank: Number of ragged dimensions; by default all but the outermost.
      inner_shape: Shape of the innermost values; default scalars.
      name: Ignored.
      row_splits_dtype: Ignored; int64.

    Example:
      >>> import meshflow as tf
      >>> tf.ragged.constant([[1, 2], [3]])
      <tf.RaggedTensor [[1, 2], [3]]>
    """
    inner_rank = 0 if inner_shape is None else len(tuple(inner_shape))

    def find_depth(value: PyTree) -> int:
        if isinstance(value, (list, tuple, np.ndarray)) and np.ndim(value[:0]):
            return 1 + max(map(find_depth, value), default=0)
        return 0

    rank = find_depth(pylist) - 1 - inner_rank if ragged_rank is None else ragged_rank
    splits: list[np.ndarray] = []
    level = list(pylist)
    for _ in np.arange(max(rank, 0)):
        if not all(hasattr(row, "__len__") for row in level):
            raise ValueError(
                "tf.ragged.constant: expected values with the same depth, got a list next to a scalar."
            )
        splits.append(np.cumsum([0, *[len(row) for row in level]]))
        level = [item for row in level for item in row]
    values: PyTree = (
        convert_to_tensor(level, dtype)
        if level
        else array.zeros([0, *(inner_shape or ())], dtype or "float32")
    )
    return RaggedTensor.from_nested_row_splits(values, splits) if splits else values


def boolean_mask(data: PyTree, mask: PyTree, name: str | None = None) -> PyTree:
    """Select values of rows; the result has the selected values of each row.

    Args:
      data: A ragged or dense tensor.
      mask: Booleans of the same rows, or one for each row.
      name: Ignored.

    Example:
      >>> import meshflow as tf
      >>> rows = tf.ragged.constant([[1, 2, 3], [4]])
      >>> tf.ragged.boolean_mask(rows, rows > 1).to_list()
      [[2, 3], [4]]
    """
    if not isinstance(mask, RaggedTensor):
        flags = convert_to_tensor(mask)
        if flags.shape.rank == 1:
            rows = np.flatnonzero(flags.require_value("a mask of tf.ragged.boolean_mask"))
            return (
                data.take_rows(rows) if isinstance(data, RaggedTensor) else array.gather(data, rows)
            )
        mask = RaggedTensor.from_tensor(flags)
    if not isinstance(data, RaggedTensor):
        data = RaggedTensor.from_tensor(data)
    flags = mask.flat_values.require_value("a mask of tf.ragged.boolean_mask")
    if isinstance(data.values, RaggedTensor) and isinstance(mask.values, RaggedTensor):
        return data.with_values(boolean_mask(data.values, mask.values))
    counts = np.bincount(data.compute_row_ids()[flags], minlength=len(data))
    return RaggedTensor.from_row_lengths(array.gather(data.values, np.flatnonzero(flags)), counts)


def range(
    starts: TensorLike,
    limits: TensorLike | None = None,
    deltas: TensorLike = 1,
    dtype: DTypeLike | None = None,
    name: str | None = None,
    row_splits_dtype: DTypeLike = "int64",
) -> RaggedTensor:
    """Create a row of numbers for each start, limit and step.

    Example:
      >>> import meshflow as tf
      >>> tf.ragged.range([2, 0, 3]).to_list()
      [[0, 1], [], [0, 1, 2]]
    """
    first, last = (0, starts) if limits is None else (starts, limits)
    bounds = [
        convert_to_tensor(v).require_value("bounds of tf.ragged.range")
        for v in (first, last, deltas)
    ]
    rows = [
        np.arange(*row)
        for row in zip(*np.broadcast_arrays(*map(np.atleast_1d, bounds)), strict=True)
    ]
    flat = convert_to_tensor(np.concatenate(rows).astype(bounds[1].dtype))
    values = flat if dtype is None else math.cast(flat, dtype)
    return RaggedTensor.from_row_lengths(values, np.array([len(row) for row in rows]))


def stack(values: Sequence[Any], axis: int = 0, name: str | None = None) -> RaggedTensor:
    """Stack tensors of different sizes as rows.

    Example:
      >>> import meshflow as tf
      >>> tf.ragged.stack([[1, 2], [3]]).to_list()
      [[1, 2], [3]]
    """
    if axis:
        raise UnimplementedError("tf.ragged.stack takes axis=0.")
    return _join_rows([_convert_values(v) for v in values])


def row_splits_to_segment_ids(
    splits: TensorLike, name: str | None = None, out_type: DTypeLike | None = None
) -> Tensor:
    """Return the row of each value for row splits.

    Example:
      >>> import meshflow as tf
      >>> tf.ragged.row_splits_to_segment_ids([0, 2, 3]).numpy().tolist()
      [0, 0, 1]
    """
    return Tensor(_compute_row_ids(_read_integers(splits, "splits")))


def split_strings(
    texts: np.ndarray, split: Callable[[bytes], list[Any]], to_tensor: Callable[[list[Any]], Tensor]
) -> PyTree:
    """Split strings: a scalar to a vector, and others to rows.

    Args:
      texts: Host array of strings.
      split: Function that splits one string.
      to_tensor: Function that makes a tensor of the parts of all strings.
    """
    if not texts.ndim:
        return to_tensor(split(texts.item()))
    rows = [split(text) for text in texts.reshape(-1).tolist()]
    lengths = np.array([len(row) for row in rows], np.int64)
    result = RaggedTensor.from_row_lengths(to_tensor([p for row in rows for p in row]), lengths)
    for k in np.arange(texts.ndim - 1, 0, -1):
        outer = int(np.prod(texts.shape[:k]))
        result = RaggedTensor.from_row_lengths(result, np.full(outer, texts.shape[k]))
    return result
