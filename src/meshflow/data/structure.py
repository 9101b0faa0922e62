"""Elements of datasets: nested tuples and dictionaries of host arrays, and their specs.

Unlike in `tf.nest`, a list is not a nested structure: `tf.data` converts it to a tensor. None,
sparse tensors and datasets are leaves, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor, SparseTensorSpec, SparseTensorValue
from meshflow.core.runtime import transfers
from meshflow.core.runtime.errors import DataLossError, InvalidArgumentError
from meshflow.core.values import dtypes, nest
from meshflow.core.values.composite import (
    get_batch_encoder,
    is_composite_spec,
    is_extension,
    is_extension_spec,
)
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import ElementLeaf, TensorSpec, TypeSpec, type_spec_from_value
from meshflow.core.values.tensor import MAX_HOST_CONSTANT_SIZE, Tensor, read_tensor
from meshflow.data import sparse_leaves
from meshflow.data.sparse_leaves import is_sparse
from meshflow.environment.types import PyTree
from meshflow.ops.ragged import RaggedRow, RaggedTensor, RaggedTensorSpec
from meshflow.ops.ragged.values import RaggedTensorValue

_ARRAY = frozenset([np.ndarray])


def map_leaves(
    value: PyTree, leaf: Callable[[Any], Any], nothing: Callable[[Any], Any] = lambda none: none
) -> PyTree:
    """Apply a function to the leaves of a structure; lists are leaves, and `SparseTensorValue`s become sparse tensors.

    Args:
      value: Nested tuples and mappings.
      leaf: Function that is applied to every leaf except None.
      nothing: Function that is applied to None, by default the identity.
    """
    if value is None:
        return nothing(value)
    if isinstance(value, Mapping):
        changed = {k: map_leaves(v, leaf, nothing) for k, v in value.items()}
        return nest.rebuild_mapping(value, changed)
    if isinstance(value, SparseTensorValue):
        return leaf(SparseTensor.from_value(value))
    if isinstance(value, tuple):
        items = [map_leaves(v, leaf, nothing) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return leaf(value)


def to_array(value: Any) -> Any:
    """Convert a leaf to a host array by TensorFlow's dtype rules.

    Datasets, iterators and sparse tensors are returned as they are.
    """
    if isinstance(value, np.ndarray) and value.dtype != object and value.dtype.kind not in "US":
        return value
    if isinstance(value, ElementLeaf) or is_sparse(value):
        return value
    if isinstance(value, RaggedTensorValue):
        return RaggedTensor.from_nested_row_splits(value.flat_values, value.nested_row_splits)
    value = read_tensor(value)
    if not isinstance(value, Tensor):
        value = convert_to_tensor(value)
    return value.require_value("an element of a dataset")


def to_arrays(value: PyTree) -> PyTree:
    """Convert the leaves of a structure to host arrays."""
    return map_leaves(value, to_array)


def copy_arrays(value: PyTree) -> PyTree:
    """Copy the NumPy arrays and pandas objects of a structure, so that later changes of them have no effect.

    Read-only arrays and memory-mapped files are returned as they are.
    """
    return map_leaves(value, _copy_leaf)


def _copy_leaf(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        is_shared = value.flags.writeable and not isinstance(value, np.memmap)
    else:
        is_shared = type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "copy")
    return value.copy() if is_shared else value


def to_tensor(value: Any) -> Any:
    """Convert a leaf to a tensor; return datasets and sparse tensors as they are."""
    if (
        type(value) is np.ndarray
        and value.size > MAX_HOST_CONSTANT_SIZE
        and value.dtype.kind in "biufc"
    ):
        return Tensor(transfers.to_device(value))
    if isinstance(value, RaggedRow):
        is_numeric = value.dtype.kind in "biuf"
        return Tensor(value.array) if is_numeric else convert_to_tensor(value.array)
    if isinstance(value, ElementLeaf) or is_sparse(value):
        return value
    return convert_to_tensor(value)


def to_tensors(element: PyTree) -> PyTree:
    """Convert the leaves of a structure to tensors."""
    if type(element) is np.ndarray:
        return to_tensor(element)
    if type(element) is tuple and _ARRAY.issuperset(map(type, element)):
        return tuple(map(to_tensor, element))
    if type(element) is dict and _ARRAY.issuperset(map(type, element.values())):
        return {key: to_tensor(array) for key, array in element.items()}
    return map_leaves(element, to_tensor)


def item_to_array(value: Any) -> Any:
    """Wrap an item of an array in an array of rank 0 if it is a scalar or a string.

    Sparse tensors are returned as they are.
    """
    if is_sparse(value):
        return value
    return np.array(value, object) if isinstance(value, bytes) else np.asarray(value)


def make_packer(spec: PyTree) -> Callable[[list[Any]], Any]:
    """Return a function that packs the list of leaves of an element into its structure.

    Flat tuples and dictionaries have a faster implementation than nested structures.

    Args:
      spec: Spec of the element.
    """
    if not nest.is_nested(spec):
        return lambda leaves: leaves[0]
    if type(spec) is tuple and not any(map(nest.is_nested, spec)):
        return tuple
    if type(spec) is dict and not any(map(nest.is_nested, spec.values())):
        indices = {key: nest.flatten(dict.fromkeys(spec, 0) | {key: 1}).index(1) for key in spec}
        return lambda leaves: {key: leaves[index] for key, index in indices.items()}
    return lambda leaves: nest.pack_sequence_as(spec, leaves)


def are_compatible(first: PyTree, second: PyTree) -> bool:
    """Check whether two specs have the same structure and compatible leaves."""
    try:
        leaves_match = map_specs(lambda a, b: a == b or a.is_compatible_with(b), first, second)
    except (TypeError, ValueError, AttributeError):
        return False
    return all(nest.flatten(leaves_match))


class NoneTensorSpec(TypeSpec):
    """Spec of None.

    Example:
      >>> tf.data.NoneTensorSpec() == tf.data.NoneTensorSpec()
      True
    """

    _has_components, _is_element = False, True

    value_type = type(None)

    def _serialize(self) -> tuple[()]:
        return ()


def infer_spec(element: PyTree) -> PyTree:
    """Return the spec of an element of host arrays."""

    def leaf(array: Any) -> Any:
        if array is None:
            return NoneTensorSpec()
        if isinstance(array, ElementLeaf):
            return array._type_spec
        if is_sparse(array):
            return sparse_leaves.infer_sparse_spec(array)
        return TensorSpec(array.shape, infer_dtype(array))

    return map_leaves(element, leaf, leaf)


def infer_result_spec(specs: PyTree) -> PyTree:
    """Return the spec of the results of a traced function.

    Args:
      specs: The results in their structure: specs for tensors; constants and None as they are.
    """

    def leaf(value: Any) -> Any:
        if value is None:
            return NoneTensorSpec()
        return value if isinstance(value, TypeSpec) else infer_spec(to_array(value))

    return map_specs(leaf, specs)


def infer_dtype(array: np.ndarray) -> dtypes.DType:
    """Return the dtype of a host array; arrays of objects contain strings."""
    return dtypes.string if array.dtype == object else dtypes.as_dtype(array.dtype)


def is_string_scalar(spec: PyTree) -> bool:
    """Check whether a spec describes scalar strings; an unknown shape counts as a scalar."""
    return (
        isinstance(spec, TensorSpec)
        and spec.dtype is dtypes.string
        and spec.shape.is_compatible_with([])
    )


def make_zeros(spec: TensorSpec) -> np.ndarray:
    """Create an array of zeros or empty strings that matches a spec; unknown sizes become 0."""
    shape = [n or 0 for n in spec.shape.as_list()]
    if spec.dtype is dtypes.string:
        return np.full(shape, b"", object)
    return np.zeros(shape, spec.dtype.as_numpy_dtype)


def map_specs(fn: Callable[..., Any], *specs: PyTree) -> PyTree:
    """Apply a function to the leaves of specs that have the same structure."""
    return nest.map_structure(fn, *specs)


def is_static(spec: PyTree) -> bool:
    """Check whether a spec consists only of numeric tensors of known sizes."""
    leaves = nest.flatten(spec)
    return bool(leaves) and all(
        isinstance(s, TensorSpec) and s.dtype is not dtypes.string and s.shape.is_fully_defined()
        for s in leaves
    )


def batch_spec(spec: PyTree, size: int | None) -> PyTree:
    """Return the spec of batches of elements.

    Args:
      spec: Spec of an element.
      size: Batch size, None if it is unknown.
    """

    def leaf(s: TypeSpec) -> Any:
        if is_extension_spec(s):
            return get_batch_encoder(s).batch(s, size)
        if isinstance(s, (SparseTensorSpec, RaggedTensorSpec)):
            return s if s.shape.rank is None else s.to_batch_spec(size)
        if not isinstance(s, TensorSpec) or s.shape.rank is None:
            return s
        return TensorSpec([size, *s.shape.as_list()], s.dtype)

    return map_specs(leaf, spec)


def unbatch_spec(spec: PyTree, hint: str = "") -> PyTree:
    """Return the spec of the rows of elements.

    Args:
      spec: Spec of the elements.
      hint: Advice that is appended to the error message.

    Raises:
      ValueError: If a component is a scalar, or the sizes of the first axes differ.
    """
    spec_types = (TensorSpec, SparseTensorSpec)
    parts = [part for s in nest.flatten(spec) for part in list_encoding_specs(s)]
    rows = {s.shape[0] for s in parts if isinstance(s, spec_types) and s.shape.rank}
    rows.discard(None)
    if len(rows) > 1:
        raise ValueError(
            "Rows can be taken only of elements whose components have a matching leading dimension. "
            f"Encountered {sorted(rows)}."
        )

    def leaf(s: TypeSpec) -> Any:
        if is_extension_spec(s):
            for part in list_encoding_specs(s):
                leaf(part)
            return get_batch_encoder(s).unbatch(s)
        if isinstance(s, RaggedTensorSpec):
            return s.to_row_spec()
        value_type = getattr(s, "value_type", None)
        if isinstance(value_type, type) and issubclass(value_type, ElementLeaf):
            raise AttributeError(f"Values of {s} have no rows: map them to tensors first.")
        if not isinstance(s, spec_types) or s.shape.rank is None:
            return s
        if s.shape.rank == 0:
            raise ValueError(f"Cannot unbatch an input with scalar components. {hint}".rstrip())
        return type(s)(s.shape.as_list()[1:], s.dtype)

    return map_specs(leaf, spec)


def list_encoding_specs(spec: PyTree) -> list[Any]:
    """List the specs of the tensors that represent a leaf in a batch."""
    if not is_extension_spec(spec):
        return [spec]
    parts = nest.flatten(get_batch_encoder(spec).encoding_specs(spec))
    return [inner for part in parts for inner in list_encoding_specs(part)]


def relax_spec(spec: PyTree) -> PyTree:
    """Replace all sizes in a spec by None, because a single element determines only the ranks."""
    return map_specs(_relax_leaf, spec)


def _relax_leaf(spec: PyTree) -> PyTree:
    """Replace the sizes in the spec of a leaf, or in a part of the arguments of such a spec."""
    if isinstance(spec, RaggedTensorSpec):
        inner = spec.shape.as_list()[spec.ragged_rank + 1 :]
        sizes = [*[None] * (spec.ragged_rank + 1), *inner]
        return RaggedTensorSpec(sizes, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    if isinstance(spec, (TensorSpec, SparseTensorSpec)):
        return type(spec)([None] * len(spec.shape), spec.dtype)
    if is_extension_spec(spec):
        return spec._deserialize(_relax_leaf(spec._serialize()))
    if isinstance(spec, TensorShape):
        return TensorShape(None if spec.rank is None else [None] * spec.rank)
    if type(spec) in (list, tuple):
        return type(spec)(map(_relax_leaf, spec))
    is_mapping = isinstance(spec, Mapping)
    return {key: _relax_leaf(value) for key, value in spec.items()} if is_mapping else spec


def merge_specs(first: PyTree, second: PyTree) -> PyTree:
    """Return the most specific spec that is compatible with both specs.

    Raises:
      TypeError: If the structures or dtypes differ.
    """

    def leaf(a: TypeSpec, b: TypeSpec) -> Any:
        if is_composite_spec(a):
            return a.most_specific_compatible_type(b)
        if not isinstance(a, TensorSpec) or not isinstance(b, TensorSpec):
            return a
        if a.dtype is not b.dtype:
            raise TypeError(f"Incompatible types of datasets: {a.dtype.name} and {b.dtype.name}.")
        if a.shape.rank is None or a.shape.rank != b.shape.rank:
            return TensorSpec(None, a.dtype)
        sizes = zip(a.shape.as_list(), b.shape.as_list(), strict=True)
        return TensorSpec([x if x == y else None for x, y in sizes], a.dtype)

    try:
        return nest.map_structure(leaf, first, second)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"Incompatible dataset elements: {first} and {second} do not have the same structure. {error}"
        ) from None


def stack_elements(elements: Sequence[Any], spec: PyTree = None) -> PyTree:
    """Stack elements to a batch.

    Args:
      elements: The elements.
      spec: Spec of an element, with the static row lengths of ragged tensors.

    Raises:
      InvalidArgumentError: If the shapes of the elements differ.
    """
    columns = [nest.flatten(e) for e in elements]
    leaf_specs = [None] * len(columns[0]) if spec is None else nest.flatten(spec)
    leaves = [
        _stack_leaves(values, component, leaf_specs[component])
        for component, values in enumerate(zip(*columns, strict=True))
    ]
    return nest.pack_sequence_as(elements[0], leaves)


def _stack_leaves(values: Sequence[Any], component: int, spec: PyTree = None) -> PyTree:
    first = values[0]
    if first is None:
        return None
    if isinstance(first, ElementLeaf):
        raise AttributeError(
            f"Values of type {type(first).__name__} cannot be batched (component {component}): map them to tensors first."
        )
    if is_extension(first):
        return stack_extensions(values, spec)
    if is_sparse(first):
        return sparse_leaves.stack_sparse(values, spec)
    for i, array in enumerate(values):
        if array.shape != first.shape:
            raise InvalidArgumentError(
                f"Cannot batch tensors with different shapes in component {component}. First element had shape "
                f"{list(first.shape)} and element {i} had shape {list(array.shape)}."
            )
    return _stack_arrays(values)


def stack_extensions(values: Sequence[Any], spec: PyTree = None) -> PyTree:
    """Stack values of an extension type.

    Args:
      values: The values.
      spec: A spec that all values have, by default the most specific one.

    Raises:
      InvalidArgumentError: If the values differ in more than their sizes, or have shapes that cannot be stacked.
    """
    if spec is None:
        specs: list[Any] = list(map(type_spec_from_value, values))
        try:
            spec = functools.reduce(lambda a, b: a.most_specific_compatible_type(b), specs)
        except ValueError as error:
            raise InvalidArgumentError(f"Cannot batch values of different types: {error}") from None
    encoder = get_batch_encoder(spec)
    encoded = [encoder.encode(spec, value) for value in values]
    columns = zip(*map(nest.flatten, encoded), strict=True)
    tensors = []
    for component, (part, column) in enumerate(
        zip(nest.flatten(encoder.encoding_specs(spec)), columns, strict=True)
    ):
        leaves = list(map(to_array, column))
        if isinstance(part, RaggedTensorSpec) and type(leaves[0]) is np.ndarray:
            leaves = [RaggedRow(array, part.row_splits_dtype) for array in leaves]
        tensors.append(to_tensor(_stack_leaves(leaves, component, part)))
    return encoder.decode(
        encoder.batch(spec, len(values)), nest.pack_sequence_as(encoded[0], tensors)
    )


def split_rows(value: PyTree) -> PyTree:
    """Split a leaf along its first axis: an array as it is, and a composite tensor into a list."""
    if not is_extension(value):
        return sparse_leaves.split_rows(value) if is_sparse(value) else value
    spec: PyTree = type_spec_from_value(value)
    encoder = get_batch_encoder(spec)
    encoded = encoder.encode(spec, value, 1)
    columns = [split_rows(to_array(part)) for part in nest.flatten(encoded)]
    row_spec = encoder.unbatch(spec)
    return [
        encoder.decode(row_spec, nest.pack_sequence_as(encoded, list(map(to_tensor, row))))
        for row in zip(*columns, strict=True)
    ]


def _stack_arrays(arrays: Sequence[np.ndarray]) -> np.ndarray:
    first = arrays[0]
    if first.dtype.hasobject or any(a.dtype != first.dtype for a in arrays):
        return np.stack(arrays)
    adjacent = transfers.join_adjacent(arrays)
    if adjacent is not None:
        return adjacent
    return np.stack(arrays, out=transfers.allocate((len(arrays), *first.shape), first.dtype))


def pad_and_stack(
    elements: Sequence[Any], shapes: Sequence[Sequence[int | None] | None], values: Sequence[Any]
) -> PyTree:
    """Pad elements to one shape and stack them to a batch.

    Args:
      elements: The elements.
      shapes: For each leaf a list of sizes, where None (or -1) means the largest size in the batch.
      values: For each leaf the value to pad with.

    Raises:
      DataLossError: If an element is larger than the padded shape.
      ValueError: If the rank of a padded shape differs from that of the elements.
    """
    columns = [nest.flatten(e) for e in elements]
    leaves: list[Any] = []
    for component, arrays in enumerate(zip(*columns, strict=True)):
        shape = shapes[component]
        if shape is None:
            shape = [None] * arrays[0].ndim
        if len(shape) != arrays[0].ndim:
            raise ValueError(
                f"The padded shape {shape} is not compatible with the shape {list(arrays[0].shape)} of the "
                f"corresponding input component {component}."
            )
        largest = [max(a.shape[d] for a in arrays) for d in range(arrays[0].ndim)]
        padded_shape = [
            n if w in (None, -1) else int(w) for w, n in zip(shape, largest, strict=True)
        ]
        if any(n > f for n, f in zip(largest, padded_shape, strict=True)):
            raise DataLossError(
                f"Attempted to pad to a smaller size than the input element: component {component} has an element of "
                f"sizes up to {largest}, padded shape {padded_shape}."
            )
        batch: Any = np.full([len(arrays), *padded_shape], values[component], arrays[0].dtype)
        for i, array in enumerate(arrays):
            # NumPy would store an array of rank 0 as an object of its own.
            batch[(i, *(slice(0, n) for n in array.shape))] = array if array.ndim else array[()]
        leaves.append(batch)
    return nest.pack_sequence_as(elements[0], leaves)
