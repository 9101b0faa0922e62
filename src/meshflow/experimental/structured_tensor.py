"""`tf.experimental.StructuredTensor`: dictionaries of tensors in a ragged shape."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import numpy as np

from meshflow.core.values.composite import CompositeTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, int64
from meshflow.core.values.shapes import ShapeLike, TensorShape, as_shape
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import PyTree
from meshflow.experimental.extension_types import BatchableExtensionType, ImmutableDict
from meshflow.ops.ragged import DynamicRaggedShape, RaggedTensor, RowPartition, constant, merge_dims


class StructuredTensor(BatchableExtensionType):
    """A tensor of dictionaries: fields with the same outer dimensions.

    Args:
      fields: The fields: tensors, ragged tensors and structured tensors.
      ragged_shape: The outer shape that all fields share.

    Example:
      >>> people = tf.experimental.StructuredTensor.from_pyval(
      ...     [{"age": 30, "pets": ["Rex"]}, {"age": 20, "pets": []}])
      >>> people.field_value("pets").to_list(), people[0].to_pyval()["pets"]
      ([[b'Rex'], []], [b'Rex'])
    """

    _fields: Mapping[str, Union[Tensor, CompositeTensor]]  # noqa: UP007 -- evaluated at run time
    _ragged_shape: DynamicRaggedShape

    def __init__(self, fields: Mapping[str, PyTree], ragged_shape: DynamicRaggedShape) -> None:
        self._fields = ImmutableDict(fields)
        self._ragged_shape = ragged_shape

    # ---- construction ----------------------------------------------------------------------

    @classmethod
    def from_pyval(cls, pyval: PyTree, typespec: object = None) -> PyTree:
        """Create a value of nested lists and dictionaries; lists without dictionaries become tensors."""
        if isinstance(pyval, Mapping):
            return cls.from_fields({key: cls.from_pyval(value) for key, value in pyval.items()})
        if not _contains_mapping(pyval):
            return constant(pyval)
        outer = DynamicRaggedShape.from_tensor(constant(_map_items(pyval, lambda item: 0)))
        names = list(dict.fromkeys(name for item in _list_items(pyval) for name in item))
        fields = {
            name: cls.from_pyval(_map_items(pyval, operator.itemgetter(name))) for name in names
        }
        return cls(fields, outer)

    @classmethod
    def from_fields(
        cls,
        fields: Mapping[str, PyTree],
        shape: ShapeLike = (),
        nrows: PyTree = None,
        row_partitions: Sequence[RowPartition] | None = None,
        validate: bool = False,
    ) -> StructuredTensor:
        """Create a value of fields that share the outer dimensions of `shape`.

        Raises:
          TypeError: If the name of a field is not a string.
          ValueError: If the shape of a field is incompatible.
        """
        static = as_shape(shape)
        rank = static.rank
        if rank is None:
            raise ValueError("StructuredTensor.from_fields: the rank of `shape` must be known.")
        converted = {}
        for name, value in fields.items():
            if not isinstance(name, str):
                raise TypeError(f"Unexpected type for key in `fields`: {name!r}")
            converted[name] = _convert_field(value)
        outer: DynamicRaggedShape | None = None
        if row_partitions is not None and rank > 1:
            outer = DynamicRaggedShape.from_row_partitions(row_partitions)
        for name, value in converted.items():
            found = _get_outer_shape(value, rank)
            if not TensorShape(value.shape[:rank]).is_compatible_with(static):
                raise ValueError(f"Shapes {static} and {value.shape[:rank]} are not compatible")
            if outer is not None and _list_row_lengths(outer) != _list_row_lengths(found):
                raise ValueError(f"Error in shape of {name}")
            outer = found if outer is None else outer
        if outer is None:
            sizes = static.as_list()
            if rank and sizes[0] is None and nrows is not None:
                sizes[0] = int(nrows)
            if None in sizes:
                raise ValueError("nrows must be specified if rank==1 and there are no fields.")
            outer = DynamicRaggedShape([], np.array(sizes, np.int64))
        return cls(converted, outer)

    @classmethod
    def from_fields_and_rank(
        cls,
        fields: Mapping[str, PyTree],
        rank: int,
        validate: bool = False,
        dtype: DTypeLike | None = None,
    ) -> StructuredTensor:
        """Create a value of fields that share `rank` outer dimensions."""
        if not fields:
            raise ValueError("Must provide at least one field")
        return cls.from_fields(fields, TensorShape([None] * rank))

    @classmethod
    def from_shape(cls, ragged_shape: DynamicRaggedShape) -> StructuredTensor:
        """Create a value without fields."""
        return cls({}, ragged_shape)

    # ---- parts -----------------------------------------------------------------------------

    @property
    def ragged_shape(self) -> DynamicRaggedShape:
        """Return the outer shape."""
        return self._ragged_shape

    @property
    def rank(self) -> int:
        """Return the number of outer dimensions."""
        return self._ragged_shape.rank

    @property
    def shape(self) -> TensorShape:
        """Return the static outer shape."""
        lengths = self._ragged_shape.static_lengths(ragged_lengths=False)
        return TensorShape([n if isinstance(n, int) else None for n in lengths])

    @property
    def row_partitions(self) -> tuple[RowPartition, ...]:
        """Return the partitions of the outer dimensions after the first."""
        partitions = list(self._ragged_shape.row_partitions)
        sizes = self._ragged_shape.get_inner_sizes()
        for position in range(1, len(sizes)):
            rows = int(np.prod(sizes[:position]))
            length = np.int64(sizes[position])
            partitions.append(RowPartition.from_uniform_row_length(length, nrows=rows))
        return tuple(partitions)

    def nrows(self) -> Tensor | None:
        """Return the size of the first dimension; None for a scalar."""
        return self._ragged_shape[0] if self.rank else None

    def field_names(self) -> tuple[str, ...]:
        """Return the names of the fields."""
        return tuple(self._fields)

    def field_value(self, field_name: str | Sequence[str]) -> PyTree:
        """Return a field, by its name or by the path of names in nested structured tensors.

        Raises:
          KeyError: If there is no such field.
        """
        first, *rest = (field_name,) if isinstance(field_name, str) else field_name
        value: PyTree = self._fields[first]
        return value.field_value(rest) if rest else value

    def with_updates(
        self, updates: Mapping[Any, PyTree], validate: bool = False
    ) -> StructuredTensor:
        """Return a copy with other fields.

        Args:
          updates: For each name or path, the new value, a function of the old one, or None to delete it.
          validate: Ignored: known shapes are checked.
        """
        fields = dict(self._fields)
        for key, value in updates.items():
            first, *rest = (key,) if isinstance(key, str) else key
            if rest:
                inner: PyTree = fields[first]
                fields[first] = inner.with_updates({tuple(rest): value})
            elif value is None:
                del fields[first]
            else:
                fields[first] = value(fields[first]) if callable(value) else _convert_field(value)
        if not fields:
            return StructuredTensor(fields, self._ragged_shape)
        return StructuredTensor.from_fields(fields, self.shape)

    def promote(self, source_path: Sequence[str], new_name: str) -> StructuredTensor:
        """Copy a field of a nested structured tensor to its parent, without the dimension between them."""
        *parent_path, child_name, _ = source_path
        parent: PyTree = self.field_value(parent_path) if parent_path else self
        value = self.field_value(source_path)
        merged = merge_dims(value, parent.rank, parent.field_value(child_name).rank - 1)
        return self.with_updates({(*parent_path, new_name): merged})

    def partition_outer_dimension(self, row_partition: RowPartition) -> StructuredTensor:
        """Split the first dimension into rows."""

        def split_field(value: PyTree) -> PyTree:
            if isinstance(value, StructuredTensor):
                return value.partition_outer_dimension(row_partition)
            return RaggedTensor.from_partition(value, row_partition)

        fields = {name: split_field(value) for name, value in self._fields.items()}
        shape = TensorShape([None] * (self.rank + 1))
        return StructuredTensor.from_fields(fields, shape)

    def merge_dims(self, outer_axis: int, inner_axis: int) -> StructuredTensor:
        """Merge outer dimensions into one."""
        outer, inner = (a % self.rank for a in (outer_axis, inner_axis))
        fields = {
            name: value.merge_dims(outer, inner)
            if isinstance(value, StructuredTensor)
            else merge_dims(value, outer, inner)
            for name, value in self._fields.items()
        }
        return StructuredTensor.from_fields(
            fields, TensorShape([None] * (self.rank - inner + outer))
        )

    def to_pyval(self) -> PyTree:
        """Return nested lists and dictionaries."""
        values = {name: _to_pyval(value) for name, value in self._fields.items()}
        if not self._fields:
            items: PyTree = {}
            for size in reversed(self._ragged_shape.get_inner_sizes()):
                items = [items] * size
            return items
        return _zip_items(values, self.rank)

    def __getitem__(self, key: PyTree) -> PyTree:
        keys = key if isinstance(key, tuple | list) else (key,)
        if len(keys) > self.rank:
            name, rest = keys[self.rank], (*keys[: self.rank], *keys[self.rank + 1 :])
            if not isinstance(name, str):
                raise ValueError(
                    f"Key for indexing a StructuredTensor must be a string, got {name!r}."
                )
            value = self.field_value(name)
            return value[rest] if rest else value
        if any(isinstance(k, str) for k in keys):
            raise TypeError(
                f"Only integers, slices, ellipsis, newaxis and scalar integer tensors are valid indices, got {key!r}."
            )
        outer: Mapping[str, PyTree] = self._fields
        fields = {name: value[tuple(keys)] for name, value in outer.items()}
        removed = sum(not isinstance(k, slice) for k in keys)
        return StructuredTensor.from_fields(fields, TensorShape([None] * (self.rank - removed)))

    def __repr__(self) -> str:
        texts = []
        for name, value in sorted(self._fields.items()):
            text = str(value).replace("\n", "\n" + " " * 12)
            texts.append(f'\n        "{name}": {text}')
        return f"<StructuredTensor(\n    fields={{{','.join(texts)}}},\n    shape={self.shape})>"


def _convert_field(value: PyTree) -> PyTree:
    if isinstance(value, CompositeTensor):
        return value
    return (
        StructuredTensor.from_pyval(value) if _contains_mapping(value) else convert_to_tensor(value)
    )


def _get_outer_shape(value: PyTree, rank: int) -> DynamicRaggedShape:
    """Return the first dimensions of the shape of a field.

    Raises:
      ValueError: If the field has fewer dimensions.
    """
    if len(value.shape) < rank:
        raise ValueError(f"A field of shape {value.shape} must have at least {rank} dimensions.")
    shape = (
        value._ragged_shape
        if isinstance(value, StructuredTensor)
        else DynamicRaggedShape.from_tensor(value)
    )
    partitions = shape.row_partitions[: max(rank - 1, 0)]
    if not partitions:
        return DynamicRaggedShape([], np.array(value.shape.as_list()[:rank], np.int64), int64)
    count = partitions[-1].require_num_values()
    inner = shape.get_inner_sizes()[1 : rank - len(partitions)]
    return DynamicRaggedShape(partitions, np.array([count, *inner], np.int64))


def _list_row_lengths(shape: DynamicRaggedShape) -> list[Any]:
    """List the size of the first dimension, and the lengths of all rows of each other one if they are known."""
    lengths = shape.static_lengths()
    result, count = lengths[:1], lengths[0] if lengths else None
    for item in lengths[1:]:
        is_size = isinstance(item, int) and isinstance(count, int)
        rows: Any = (item,) * (count or 0) if is_size else item
        result.append(rows)
        count = sum(rows) if isinstance(rows, tuple) else None
    return result


def _contains_mapping(value: PyTree) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_contains_mapping, value))
    return isinstance(value, Mapping)


def _list_items(value: PyTree) -> list[Any]:
    return (
        [x for v in value for x in _list_items(v)] if isinstance(value, list | tuple) else [value]
    )


def _map_items(value: PyTree, function: Callable[[Any], PyTree]) -> PyTree:
    """Apply a function to the dictionaries in nested lists."""
    if isinstance(value, list | tuple):
        return [_map_items(v, function) for v in value]
    return function(value)


def _to_pyval(value: PyTree) -> PyTree:
    if isinstance(value, StructuredTensor):
        return value.to_pyval()
    if isinstance(value, RaggedTensor):
        return value.to_list()
    return value.numpy().tolist() if len(value.shape) else value.numpy()


def _zip_items(values: Mapping[str, PyTree], rank: int) -> PyTree:
    if rank == 0:
        return dict(values)
    count = len(next(iter(values.values())))
    return [_zip_items({k: v[i] for k, v in values.items()}, rank - 1) for i in range(count)]
