"""`tf.experimental.DynamicRaggedShape`: the shape of a ragged or dense tensor, with row partitions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch import symbolic_calls
from meshflow.core.dispatch.composite import join_dense_shape, split_dense_shape
from meshflow.core.values.composite import CompositeSpec, CompositeTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype, int32, int64
from meshflow.core.values.shapes import ShapeLike, as_shape
from meshflow.core.values.specs import TensorSpec, type_spec_from_value
from meshflow.core.values.symbolic_sizes import get_sizes, has_symbolic_size, make_sizes_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import PyTree
from meshflow.ops import array
from meshflow.ops.ragged.construction import convert_values
from meshflow.ops.ragged.elementwise import broadcast, get_op_name
from meshflow.ops.ragged.partition import (
    RowPartition,
    RowPartitionSpec,
    convert_integers,
    find_value,
)
from meshflow.ops.ragged.tensor import RaggedTensor


def _make_sizes(sizes: Sequence[Any], dtype: DType) -> Tensor:
    if has_symbolic_size(sizes):
        return make_sizes_tensor(tuple(sizes), dtype.dtype)
    return Tensor(np.array(sizes, dtype.dtype))


class DynamicRaggedShape(CompositeTensor):
    """The shape of a ragged or dense tensor: row partitions, and the shape of the innermost values.

    Args:
      row_partitions: Partitions of the ragged dimensions, outermost first.
      inner_shape: Shape of the innermost values.
      dtype: Dtype of the partitions and the shape, int32 or int64.
      validate: Ignored: known values are checked.
      static_inner_shape: Ignored.

    Example:
      >>> tf.experimental.DynamicRaggedShape.from_lengths([2, (1, 2)])
      <DynamicRaggedShape lengths=[2, (1, 2)] num_row_partitions=1>
    """

    _is_extension = False

    def __init__(
        self,
        row_partitions: Sequence[RowPartition],
        inner_shape: TensorLike,
        dtype: DTypeLike | None = None,
        validate: bool = False,
        static_inner_shape: object = None,
    ) -> None:
        for partition in row_partitions:
            if not isinstance(partition, RowPartition):
                raise TypeError(f"row_partitions should contain RowPartitions, got {partition!r}.")
        default = row_partitions[0].dtype if row_partitions else int64
        self._dtype = default if dtype is None else as_dtype(dtype)
        self._partitions = tuple(p.with_dtype(self._dtype) for p in row_partitions)
        self._inner_shape = convert_integers(inner_shape, self._dtype)
        if len(self._inner_shape.shape) != 1:
            raise ValueError(f"inner_shape must be a vector, got shape {self._inner_shape.shape}.")

    # ---- construction ----------------------------------------------------------------------

    @classmethod
    def from_lengths(
        cls, lengths: Sequence[Any], num_row_partitions: int | None = None, dtype: DTypeLike = int64
    ) -> DynamicRaggedShape:
        """Create a shape of sizes, and tuples with the lengths of ragged rows."""
        if not isinstance(lengths, list | tuple):
            raise ValueError(f"lengths should be a list or tuple, got {lengths!r}.")
        target = as_dtype(dtype)
        last = max([i for i, n in enumerate(lengths) if isinstance(n, list | tuple)], default=0)
        if lengths and isinstance(lengths[0], list | tuple):
            raise ValueError(
                "lengths[0] must be an integer: the outermost dimension is not ragged."
            )
        if num_row_partitions is None:
            num_row_partitions = last
        elif num_row_partitions < last:
            raise ValueError(
                f"num_row_partitions should be at least {last}, got {num_row_partitions}."
            )
        elif num_row_partitions >= max(len(lengths), 1):
            raise ValueError(
                f"num_row_partitions should be less than {len(lengths)}, got {num_row_partitions}."
            )
        count = int(lengths[0]) if lengths else 0
        partitions = []
        for item in lengths[1 : num_row_partitions + 1]:
            if isinstance(item, list | tuple):
                if len(item) != count:
                    raise ValueError(f"lengths: expected {count} row lengths, got {tuple(item)}.")
                partition = RowPartition.from_row_lengths(np.array(item, target.dtype))
            else:
                size = np.asarray(item, target.dtype)
                partition = RowPartition.from_uniform_row_length(size, int(item) * count, count)
            partitions.append(partition)
            count = partition.require_num_values()
        inner = [count, *lengths[num_row_partitions + 1 :]] if lengths else []
        return cls(partitions, np.array(inner, target.dtype), target)

    @classmethod
    def from_row_partitions(
        cls, row_partitions: Sequence[RowPartition], dtype: DTypeLike | None = None
    ) -> DynamicRaggedShape:
        """Create the shape of ragged tensors of scalars."""
        if not row_partitions:
            raise ValueError("row_partitions cannot be empty")
        partition = row_partitions[-1]
        return cls(row_partitions, [partition.require_num_values()], dtype)

    @classmethod
    def from_tensor(cls, t: PyTree, dtype: DTypeLike | None = None) -> DynamicRaggedShape:
        """Return the shape of a ragged or dense tensor."""
        value = convert_values(t)
        if isinstance(value, RaggedTensor):
            target = value.partition.dtype if dtype is None else as_dtype(dtype)
            sizes = value.flat_values.shape.as_list()
            return cls(value.nested_partitions, _make_sizes(sizes, target), target)
        target = int64 if dtype is None else as_dtype(dtype)
        return cls([], _make_sizes(value.shape.as_list(), target), target)

    # ---- parts -----------------------------------------------------------------------------

    @property
    def dtype(self) -> DType:
        """Return the dtype of the partitions and the shape."""
        return self._dtype

    @property
    def row_partitions(self) -> tuple[RowPartition, ...]:
        """Return the partitions, outermost first."""
        return self._partitions

    @property
    def num_row_partitions(self) -> int:
        """Return the number of partitions."""
        return len(self._partitions)

    @property
    def inner_shape(self) -> Tensor:
        """Return the shape of the innermost values."""
        return self._inner_shape

    @property
    def inner_rank(self) -> int:
        """Return the number of dimensions of the innermost values."""
        return int(self._inner_shape.shape[0])

    @property
    def rank(self) -> int:
        """Return the number of dimensions."""
        return self.num_row_partitions + self.inner_rank

    def get_inner_sizes(self) -> list[Any]:
        """Return the sizes of the innermost values, which must be known."""
        sizes = get_sizes(self._inner_shape)
        if sizes is None:
            sizes = self._inner_shape.require_value("the sizes of a DynamicRaggedShape")
        return sizes.tolist()

    @classmethod
    def _from_inner_shape(
        cls, inner_shape: TensorLike, dtype: DTypeLike | None = None
    ) -> DynamicRaggedShape:
        """Return the shape of a dense tensor; libraries call this private method of TensorFlow."""
        return cls((), inner_shape, dtype)

    def static_lengths(self, ragged_lengths: bool = True) -> list[Any]:
        """Return sizes, and tuples with the lengths of ragged rows (None if they are unknown)."""
        inner = self.get_inner_sizes()
        if not self._partitions:
            return inner
        lengths: list[Any] = [self._partitions[0].static_nrows]
        for partition in self._partitions:
            if partition.is_uniform():
                lengths.append(partition.static_uniform_row_length)
                continue
            known = find_value(partition.row_lengths()) if ragged_lengths else None
            lengths.append(None if known is None else tuple(known.tolist()))
        return [*lengths, *inner[1:]]

    def is_uniform(self, axis: int) -> bool:
        """Check whether a dimension has one size."""
        if axis < 0:
            raise IndexError("Negative axis values are not supported")
        if self.rank <= axis:
            raise IndexError(f"Expected axis={axis} < rank={self.rank}")
        return not 0 < axis <= self.num_row_partitions or self._partitions[axis - 1].is_uniform()

    def with_dtype(self, dtype: DTypeLike) -> DynamicRaggedShape:
        """Return the shape with another dtype."""
        return DynamicRaggedShape(self._partitions, self._inner_shape, dtype)

    def __getitem__(self, index: int | slice) -> PyTree:
        if isinstance(index, slice):
            start, stop, step = index.indices(self.rank)
            if step != 1:
                raise IndexError("Cannot stride through a shape")
            return self._slice(start, max(stop, start))
        index = index + self.rank if index < 0 else index
        if not 0 <= index < self.rank:
            raise IndexError(f"Index must be in [0, {self.rank}), got {index}.")
        if not self.is_uniform(index):
            raise ValueError(f"Index {index} is not uniform")
        if index == 0 and self._partitions:
            return convert_integers(self._partitions[0].nrows(), self._dtype)
        if index <= self.num_row_partitions and self._partitions:
            return self._partitions[index - 1].uniform_row_length()
        return self._inner_shape[index - self.num_row_partitions]

    def _slice(self, start: int, stop: int) -> DynamicRaggedShape:
        lengths = self.static_lengths()[start:stop]
        if lengths and isinstance(lengths[0], tuple):
            raise ValueError(f"Index {start} is not uniform")
        return DynamicRaggedShape.from_lengths(lengths, dtype=self._dtype)

    def wrap(self, values: PyTree) -> PyTree:
        """Return a tensor of this shape with some innermost values."""
        return functools.reduce(RaggedTensor.from_partition, reversed(self._partitions), values)

    # ---- composite -------------------------------------------------------------------------

    def _split(self) -> tuple[list[Tensor], Hashable]:
        lengths = tuple(p.static_uniform_row_length for p in self._partitions)
        parts, static = split_dense_shape(
            [p.row_splits() for p in self._partitions], self._inner_shape
        )
        return parts, (lengths, self._dtype, static)

    @classmethod
    def _join(cls, parts: Sequence[Any], static: Any) -> DynamicRaggedShape:
        *splits, inner_shape = parts
        lengths, dtype, shape_static = static
        partitions = [
            RowPartition(s, n, internal=True) for s, n in zip(splits, lengths, strict=True)
        ]
        shape = cls.__new__(cls)
        shape.__dict__.update(
            _inner_shape=join_dense_shape(inner_shape, shape_static),
            _dtype=dtype,
            _partitions=tuple(partitions),
        )
        return shape

    @property
    def _type_spec(self) -> DynamicRaggedShapeSpec:
        known = find_value(self._inner_shape)
        sizes = [None] * self.inner_rank if known is None else known.tolist()
        partitions = [type_spec_from_value(p) for p in self._partitions]
        return DynamicRaggedShapeSpec(partitions, sizes, self._dtype)

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, DynamicRaggedShape) or self._dtype is not other.dtype:
            return False
        return Tensor(np.array(self.static_lengths() == other.static_lengths()))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        lengths = self.static_lengths()
        text = ", ".join(map(str, lengths))
        return f"<DynamicRaggedShape lengths=[{text}] num_row_partitions={self.num_row_partitions}>"


class DynamicRaggedShapeSpec(CompositeSpec):
    """The spec of a `DynamicRaggedShape`, also `tf.experimental.DynamicRaggedShape.Spec`.

    Args:
      row_partitions: Specs of the partitions, outermost first.
      static_inner_shape: Static shape of the innermost values.
      dtype: Dtype of the partitions and the shape, int32 or int64.

    Raises:
      TypeError: If a partition is no `RowPartitionSpec`.
      ValueError: If there are partitions, and the innermost values are a scalar.

    Example:
      >>> shape = tf.experimental.DynamicRaggedShape.from_lengths([2, (1, 2)])
      >>> spec = tf.experimental.DynamicRaggedShape.Spec.from_value(shape)
      >>> spec.rank, spec.num_row_partitions, spec.inner_rank
      (2, 1, 1)
    """

    value_type = DynamicRaggedShape

    def __init__(
        self, row_partitions: Sequence[Any], static_inner_shape: ShapeLike, dtype: DTypeLike
    ) -> None:
        self._partitions, self._inner_shape = tuple(row_partitions), as_shape(static_inner_shape)
        for spec in self._partitions:
            if not isinstance(spec, RowPartitionSpec):
                raise TypeError(f"row_partitions should contain RowPartitionSpecs, got {spec!r}.")
        if self._partitions and self._inner_shape.rank == 0:
            raise ValueError("If row_partitions are provided, must have inner_rank > 0.")
        self._dtype = as_dtype(dtype)
        if self._dtype not in (int32, int64):
            raise ValueError(f"dtype must be tf.int32 or tf.int64, got {self._dtype.name}.")

    def __repr__(self) -> str:
        parts = f"row_partitions={self._partitions}, static_inner_shape={self._inner_shape!r}"
        return f"DynamicRaggedShape.Spec({parts}, dtype={self._dtype!r})"

    @classmethod
    def from_value(cls, value: PyTree) -> DynamicRaggedShapeSpec:
        """Return the spec of the shape of a ragged or dense tensor, or of a shape."""
        is_shape = isinstance(value, DynamicRaggedShape)
        shape: DynamicRaggedShape = value if is_shape else DynamicRaggedShape.from_tensor(value)
        return shape._type_spec

    @property
    def dtype(self) -> DType:
        """Return the dtype of the partitions and the shape."""
        return self._dtype

    @property
    def inner_rank(self) -> int | None:
        """Return the number of dimensions of the innermost values, or None."""
        return self._inner_shape.rank

    @property
    def num_row_partitions(self) -> int:
        """Return the number of partitions."""
        return len(self._partitions)

    @property
    def rank(self) -> int | None:
        """Return the number of dimensions, or None."""
        inner_rank = self.inner_rank
        return None if inner_rank is None else inner_rank + self.num_row_partitions

    def with_dtype(self, dtype: DTypeLike) -> DynamicRaggedShapeSpec:
        """Return the spec with another dtype."""
        partitions = [spec.with_dtype(dtype) for spec in self._partitions]
        return DynamicRaggedShapeSpec(partitions, self._inner_shape, dtype)

    @property
    def _component_specs(self) -> list[Any]:
        return [TensorSpec([self.inner_rank], self._dtype), *self._partitions]

    def _to_components(self, value: DynamicRaggedShape) -> list[Any]:
        return [value.inner_shape, *value.row_partitions]

    def _from_components(self, components: Sequence[Any]) -> DynamicRaggedShape:
        return DynamicRaggedShape(components[1:], components[0], self._dtype)

    def _serialize(self) -> tuple[Any, ...]:
        return self._partitions, self._inner_shape, self._dtype


DynamicRaggedShape.Spec = DynamicRaggedShapeSpec  # type: ignore[attr-defined]


# ---- ops ---------------------------------------------------------------------------------------


def _make_shape(
    input: PyTree, out_type: DTypeLike | None = None, name: str | None = None
) -> DynamicRaggedShape:
    return DynamicRaggedShape.from_tensor(input, out_type or int32)


def _make_zeros(shape: DynamicRaggedShape) -> PyTree:
    return shape.wrap(array.zeros(shape.get_inner_sizes(), "int32"))


def _broadcast_to(input: PyTree, shape: PyTree, name: str | None = None) -> PyTree:
    if not isinstance(shape, DynamicRaggedShape):
        return NotImplemented
    value = convert_values(input)
    sizes = shape.get_inner_sizes()
    if not shape.row_partitions and not isinstance(value, RaggedTensor):
        return array.broadcast_to(value, sizes)
    flat, make = broadcast([value, _make_zeros(shape)])
    result = array.broadcast_to(flat[0], flat[1].shape)
    return make(result)


def _reshape(tensor: PyTree, shape: PyTree, name: str | None = None) -> PyTree:
    value = convert_values(tensor)
    flat = value.flat_values if isinstance(value, RaggedTensor) else value
    if not isinstance(shape, DynamicRaggedShape):
        return array.reshape(flat, shape)
    return shape.wrap(array.reshape(flat, shape.get_inner_sizes()))


def _broadcast_shapes(shape_x: PyTree, shape_y: PyTree) -> DynamicRaggedShape:
    shapes = [
        s if isinstance(s, DynamicRaggedShape) else DynamicRaggedShape([], convert_to_tensor(s))
        for s in (shape_x, shape_y)
    ]
    zeros = [_make_zeros(s) for s in shapes]
    if not any(isinstance(z, RaggedTensor) for z in zeros):
        return DynamicRaggedShape.from_tensor(zeros[0] + zeros[1])
    flat, make = broadcast(zeros)
    return DynamicRaggedShape.from_tensor(make(flat[0] + flat[1]), shapes[0].dtype)


def _make_filled(
    public: Callable[..., Any], shape: DynamicRaggedShape, *args: Any, **kwargs: Any
) -> PyTree:
    return shape.wrap(public(shape.get_inner_sizes(), *args, **kwargs))


RAGGED_OPS: dict[str, Callable[..., Any]] = {
    "shape": _make_shape,
    "broadcast_to": _broadcast_to,
    "reshape": _reshape,
    "broadcast_dynamic_shape": _broadcast_shapes,
}


def _call_with_shape(
    public: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> PyTree:
    name = get_op_name(public)
    kwargs = {k: v for k, v in kwargs.items() if k != "name"}
    if name in RAGGED_OPS and name != "shape":
        return RAGGED_OPS[name](*args, **kwargs)
    if name in ("ones", "zeros") and (args or "shape" in kwargs):
        shape = args[0] if args else kwargs.pop("shape")
        return _make_filled(public, shape, *args[1:], **kwargs)
    if name == "fill":
        dims = args[0] if args else kwargs.pop("dims")
        return _make_filled(public, dims, *args[1:], **kwargs)
    return NotImplemented


symbolic_calls.register_composite_type(DynamicRaggedShape, _call_with_shape)
