"""Elements: nested tuples and dictionaries of arrays, and their specs.

Unlike in `tf.nest`, a list is no structure: it is turned into a tensor, as everywhere in `tf.data`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensorSpec
from meshflow.core.runtime import transfers
from meshflow.core.runtime.errors import DataLossError, InvalidArgumentError
from meshflow.core.values import dtypes, nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec, TypeSpec
from meshflow.core.values.tensor import HOST_CONSTANT_SIZE, Tensor
from meshflow.data import sparse_leaves
from meshflow.data.sparse_leaves import is_sparse

_ARRAY = frozenset([np.ndarray])


def normalize(
    value: Any, leaf: Callable[[Any], Any], nothing: Callable[[Any], Any] = lambda none: none
) -> Any:
    """A structure with its leaves (lists among them) changed by a function, None by another."""
    if value is None:
        return nothing(value)
    if isinstance(value, Mapping):
        changed = {k: normalize(v, leaf, nothing) for k, v in value.items()}
        return nest.like_mapping(value, changed)
    if isinstance(value, tuple):
        items = [normalize(v, leaf, nothing) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return leaf(value)


def to_array(value: Any) -> Any:
    """A leaf as a host array under TensorFlow's dtype rules; datasets and sparse tensors stay."""
    if isinstance(value, np.ndarray) and value.dtype != object and value.dtype.kind not in "US":
        return value
    if hasattr(value, "_elements") or is_sparse(value):
        return value
    if hasattr(value, "_as_tensor"):
        value = value._as_tensor()
    if not isinstance(value, Tensor):
        value = convert_to_tensor(value)
    return value._concrete("an element of a dataset")


def to_arrays(value: Any) -> Any:
    """A structure of host arrays."""
    return normalize(value, to_array)


def to_tensor(value: Any) -> Any:
    """A leaf as a tensor; datasets and sparse tensors stay."""
    if (
        type(value) is np.ndarray
        and value.size > HOST_CONSTANT_SIZE
        and value.dtype.kind in "biufc"
    ):
        return Tensor(transfers.to_device(value))
    return value if hasattr(value, "_elements") or is_sparse(value) else convert_to_tensor(value)


def to_tensors(element: Any) -> Any:
    """A structure of arrays as one of tensors."""
    if type(element) is np.ndarray:
        return to_tensor(element)
    if type(element) is tuple and _ARRAY.issuperset(map(type, element)):
        return tuple(map(to_tensor, element))
    if type(element) is dict and _ARRAY.issuperset(map(type, element.values())):
        return {key: to_tensor(array) for key, array in element.items()}
    return normalize(element, to_tensor)


def scalar(value: Any) -> Any:
    """What is in an array of one more axis as an array; strings and sparse tensors stay objects."""
    if is_sparse(value):
        return value
    return np.array(value, object) if isinstance(value, bytes) else np.asarray(value)


def packer(spec: Any) -> Callable[[list[Any]], Any]:
    """A function that puts the leaves of an element into its structure; the usual ones are quick.

    Args:
      spec: the element's spec.
    """
    if not nest.is_nested(spec):
        return lambda leaves: leaves[0]
    if type(spec) is tuple and not any(map(nest.is_nested, spec)):
        return tuple
    if type(spec) is dict and not any(map(nest.is_nested, spec.values())):
        places = {key: nest.flatten(dict.fromkeys(spec, 0) | {key: 1}).index(1) for key in spec}
        return lambda leaves: {key: leaves[place] for key, place in places.items()}
    return lambda leaves: nest.pack_sequence_as(spec, leaves)


def compatible(first: Any, second: Any) -> bool:
    """Whether two specs have the same structure, and leaves that fit together."""
    try:
        fit = map_specs(lambda a, b: a == b or a.is_compatible_with(b), first, second)
    except (TypeError, ValueError, AttributeError):
        return False
    return all(nest.flatten(fit))


class NoneTensorSpec(TypeSpec):
    """Spec of None.

    Example:
      >>> import meshflow as tf
      >>> tf.data.NoneTensorSpec() == tf.data.NoneTensorSpec()
      True
    """

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return "NoneTensorSpec()"


def spec_of(element: Any) -> Any:
    """The spec of an element."""

    def leaf(array: Any) -> Any:
        if array is None:
            return NoneTensorSpec()
        if hasattr(array, "_elements"):
            return array._type_spec
        if is_sparse(array):
            return SparseTensorSpec.from_value(array)
        return TensorSpec(array.shape, dtype_of(array))

    return normalize(element, leaf, leaf)


def spec_of_results(specs: Any) -> Any:
    """What a traced function returns, as a spec: it has specs of tensors, constants and None."""

    def leaf(value: Any) -> Any:
        if value is None:
            return NoneTensorSpec()
        return value if isinstance(value, TypeSpec) else spec_of(to_array(value))

    return map_specs(leaf, specs)


def dtype_of(array: Any) -> dtypes.DType:
    """The dtype of a host array; objects are strings."""
    return dtypes.string if array.dtype == object else dtypes.as_dtype(array.dtype)


def is_strings(spec: Any) -> bool:
    """Whether elements are string scalars, as far as their spec tells."""
    return (
        isinstance(spec, TensorSpec)
        and spec.dtype is dtypes.string
        and spec.shape.is_compatible_with([])
    )


def zeros(spec: TensorSpec) -> np.ndarray:
    """An array of zeros, or of empty strings, of a spec; open sizes are 0."""
    shape = [n or 0 for n in spec.shape.as_list()]
    if spec.dtype is dtypes.string:
        return np.full(shape, b"", object)
    return np.zeros(shape, spec.dtype.as_numpy_dtype)


def map_specs(fn: Callable[..., Any], *specs: Any) -> Any:
    """A function of the leaves of specs of the same structure."""
    return nest.map_structure(fn, *specs)


def static(spec: Any) -> bool:
    """Whether a spec is of numbers of known sizes only."""
    leaves = nest.flatten(spec)
    return bool(leaves) and all(
        isinstance(s, TensorSpec) and s.dtype is not dtypes.string and s.shape.is_fully_defined()
        for s in leaves
    )


def batched(spec: Any, size: int | None) -> Any:
    """The spec of batches of elements."""

    def leaf(s: Any) -> Any:
        if isinstance(s, SparseTensorSpec):
            return sparse_leaves.batched(s, size)
        if not isinstance(s, TensorSpec) or s.shape.rank is None:
            return s
        return TensorSpec([size, *s.shape.as_list()], s.dtype)

    return map_specs(leaf, spec)


def unbatched(spec: Any, hint: str = "") -> Any:
    """The spec of the rows of elements.

    Args:
      spec: the spec of the elements.
      hint: what to do, for the error.

    Raises:
      ValueError: for scalars, and for parts of different numbers of rows.
    """
    kinds = (TensorSpec, SparseTensorSpec)
    rows = {s.shape[0] for s in nest.flatten(spec) if isinstance(s, kinds) and s.shape.rank}
    rows.discard(None)
    if len(rows) > 1:
        raise ValueError(
            "Rows can be taken only of elements whose components have a matching leading dimension. "
            f"Encountered {sorted(rows)}."
        )

    def leaf(s: Any) -> Any:
        if not isinstance(s, kinds) or s.shape.rank is None:
            return s
        if s.shape.rank == 0:
            raise ValueError(f"Cannot unbatch an input with scalar components. {hint}".rstrip())
        return type(s)(s.shape.as_list()[1:], s.dtype)

    return map_specs(leaf, spec)


def relaxed(spec: Any) -> Any:
    """A spec with all sizes open: one element tells the ranks only."""
    kinds = (TensorSpec, SparseTensorSpec)
    return map_specs(
        lambda s: type(s)([None] * len(s.shape), s.dtype) if isinstance(s, kinds) else s, spec
    )


def merged(first: Any, second: Any) -> Any:
    """The most specific spec that both fit.

    Raises:
      TypeError: when structures or dtypes differ.
    """

    def leaf(a: Any, b: Any) -> Any:
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
            f"Two datasets do not have the same structure of elements: {first} and {second}. {error}"
        ) from None


def stack(elements: Sequence[Any]) -> Any:
    """A batch of elements.

    Raises:
      InvalidArgumentError: when their shapes differ.
    """
    columns = [nest.flatten(e) for e in elements]
    leaves: list[Any] = []
    for component, arrays in enumerate(zip(*columns, strict=True)):
        first = arrays[0]
        if first is None:
            leaves.append(None)
            continue
        if is_sparse(first):
            leaves.append(sparse_leaves.stacked(arrays))
            continue
        for i, array in enumerate(arrays):
            if array.shape != first.shape:
                raise InvalidArgumentError(
                    f"Cannot batch tensors with different shapes in component {component}. First element had shape "
                    f"{list(first.shape)} and element {i} had shape {list(array.shape)}."
                )
        leaves.append(_stacked(arrays))
    return nest.pack_sequence_as(elements[0], leaves)


def _stacked(arrays: Sequence[np.ndarray]) -> np.ndarray:
    first = arrays[0]
    if first.dtype.hasobject or any(a.dtype != first.dtype for a in arrays):
        return np.stack(arrays)
    whole = transfers.joined(arrays)
    if whole is not None:
        return whole
    return np.stack(arrays, out=transfers.fresh((len(arrays), *first.shape), first.dtype))


def padded(elements: Sequence[Any], shapes: Any, values: Any) -> Any:
    """A batch of elements, each padded to one shape.

    Args:
      elements: the elements.
      shapes: for each leaf a list of sizes, None (or -1) for the largest of the batch.
      values: for each leaf the number to pad with.

    Raises:
      DataLossError: when an element is larger than its shape.
    """
    columns = [nest.flatten(e) for e in elements]
    leaves: list[Any] = []
    for component, arrays in enumerate(zip(*columns, strict=True)):
        wanted = shapes[component]
        if wanted is None:
            wanted = [None] * arrays[0].ndim
        if len(wanted) != arrays[0].ndim:
            raise ValueError(
                f"The padded shape {wanted} is not compatible with the shape {list(arrays[0].shape)} of the "
                f"corresponding input component {component}."
            )
        largest = [max(a.shape[d] for a in arrays) for d in range(arrays[0].ndim)]
        full = [n if w in (None, -1) else int(w) for w, n in zip(wanted, largest, strict=True)]
        if any(n > f for n, f in zip(largest, full, strict=True)):
            raise DataLossError(
                f"Attempted to pad to a smaller size than the input element: component {component} has an element of "
                f"sizes up to {largest}, padded shape {full}."
            )
        batch: Any = np.full([len(arrays), *full], values[component], arrays[0].dtype)
        for i, array in enumerate(arrays):
            batch[(i, *(slice(0, n) for n in array.shape))] = array
        leaves.append(batch)
    return nest.pack_sequence_as(elements[0], leaves)


def shapes_of(spec: Any) -> Any:
    """The shapes of a spec."""
    return map_specs(lambda s: s.shape if isinstance(s, TensorSpec) else TensorShape([]), spec)
