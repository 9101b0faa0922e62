"""Composite arguments and results of saved functions; their programs take and return tensors.

A program takes the components of a composite value (`CompositeSpec._to_components`) in place of the
value, as in TensorFlow: the values and row splits of a ragged tensor; the indices, values and dense
shape of a sparse one; the components of the fields of an extension type.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import IndexedSlicesSpec, SparseTensor, SparseTensorSpec
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import DataLossError
from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.tracing.trace import CompositeResultSlot, TensorSlot
from meshflow.core.values import nest
from meshflow.core.values.composite import (
    CompositeSpec,
    CompositeTensor,
    find_spec_name,
    is_composite_spec,
    named_spec_classes,
)
from meshflow.core.values.specs import TensorSpec, type_spec_from_value
from meshflow.core.values.symbolic_sizes import has_symbolic_size, make_sizes_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.values.unknown_sizes import can_have_unknown_sizes, compute_size
from meshflow.environment.types import PyTree
from meshflow.ops.ragged.partition import RowPartitionSpec
from meshflow.ops.ragged.tensor import RaggedTensorSpec

# Symbol of the first axes of arguments if these are equal.
BATCH = "batch"
_SPEC_CLASSES: dict[str, type[CompositeSpec]] = {
    c.__name__: c for c in (SparseTensorSpec, IndexedSlicesSpec, RaggedTensorSpec, RowPartitionSpec)
}


class UnsavableError(Exception):
    """Error for a value that cannot be written to a file."""


def get_spec_name(spec: CompositeSpec) -> str:
    """Return the name of the class of a spec in files.

    Raises:
      UnsavableError: If it is the spec of an extension type without a name.
    """
    if type(spec) in _SPEC_CLASSES.values():
        return type(spec).__name__
    name = find_spec_name(type(spec))
    if name is not None:
        return name
    raise UnsavableError(
        f"a {spec.value_type.__name__}, which has no name in files. Define the attribute __name__ = "
        f"'package.{spec.value_type.__name__}' in the class"
    )


def get_spec_state(spec: CompositeSpec) -> PyTree:
    """Return the arguments of a spec in files."""
    return spec._serialize()


def make_spec(name: str, state: PyTree) -> CompositeSpec:
    """Return a spec from the name of its class in files and the result of its `_serialize`.

    An extension type that is not defined becomes an anonymous one with the same fields.

    Raises:
      DataLossError: If the state does not fit the class.
    """
    spec_class = _SPEC_CLASSES.get(name) or named_spec_classes.get(name)
    try:
        if spec_class is None:
            types = get_public_package().experimental.extension_types
            spec_class = types.make_anonymous_class(tuple([field for field, _ in state])).Spec
        return spec_class._deserialize(tuple(state))
    except (AttributeError, TypeError, ValueError) as error:
        raise DataLossError(f"a {name} cannot be made of {state!r}: {error}") from error


def list_component_specs(structure: PyTree) -> list[TensorSpec]:
    """List the specs of tensors in a structure, with those of the components of composite values."""
    return [s for s in nest.flatten_parts(structure) if isinstance(s, TensorSpec)]


def list_components(spec: CompositeSpec, value: PyTree) -> list[Any]:
    """List the tensors of a composite value, in the order of `list_component_specs`."""
    if is_composite_spec(value):
        return list(list_component_specs(value))
    specs, components = (
        nest.flatten(s) for s in (spec._component_specs, spec._to_components(value))
    )
    tensors: list[Any] = []
    for part_spec, part in zip(specs, components, strict=True):
        is_composite = is_composite_spec(part_spec)
        tensors += list_components(part_spec, part) if is_composite else [part]
    return tensors


def make_result_slot(spec: CompositeSpec, parts: Sequence[Any]) -> CompositeResultSlot:
    """Return the placeholder of a composite result, given the slots of its components."""
    split = nest.split_composites(spec)
    is_list = type(split) is list and all(isinstance(leaf, TensorSpec) for leaf in split)
    make = spec._from_components if is_list else functools.partial(_join_components, spec, split)
    return CompositeResultSlot(make, list(parts), spec)


def _join_components(spec: CompositeSpec, split: PyTree, components: Sequence[Any]) -> PyTree:
    return nest.join_composites(spec, nest.pack_sequence_as(split, components))


def replace_slots(structure: PyTree, specs: Sequence[Any]) -> PyTree:
    """Return a nested result with specs for tensors and composite tensors.

    Args:
      structure: Result with slots.
      specs: Specs of the tensors by the index of their slots.
    """

    def replace(leaf: PyTree) -> PyTree:
        if isinstance(leaf, CompositeResultSlot):
            return leaf.spec
        return specs[leaf.index] if isinstance(leaf, TensorSlot) else leaf

    return nest.map_structure(replace, structure)


class ComponentSpec(TensorSpec):
    """Spec of a component of a composite argument.

    Attributes:
      first: The first size, in terms of symbols of `jax.export`, if it is unknown; None if it relates to no other.
    """

    __slots__ = ("first",)

    def __init__(self, spec: TensorSpec, first: str | None, name: str | None = None) -> None:
        super().__init__(spec.shape, spec.dtype, name or spec.name)
        self.first = first


def _split_arguments(arguments: PyTree) -> PyTree:
    """Replace each composite spec by a list of `ComponentSpec`s."""
    counts = itertools.count()

    def split(leaf: PyTree) -> PyTree:
        return split_spec(leaf) if is_composite_spec(leaf) else leaf

    def split_spec(spec: CompositeSpec) -> PyTree:
        first, components = f"values{next(counts)}", spec._component_specs
        if isinstance(spec, RaggedTensorSpec) and spec.ragged_rank:
            values, *splits = components
            num_rows = ["batch + 1", *(f"rows{next(counts)}" for _ in splits[1:])]
            return [ComponentSpec(values, first), *map(ComponentSpec, splits, num_rows)]
        if isinstance(spec, (SparseTensorSpec, IndexedSlicesSpec)):
            return [ComponentSpec(s, first) for s in components]
        return nest.map_structure(split_field, components)

    def split_field(leaf: PyTree) -> PyTree:
        if is_composite_spec(leaf):
            return split_spec(leaf)
        return ComponentSpec(leaf, None) if isinstance(leaf, TensorSpec) else leaf

    return nest.map_structure(split, arguments)


class ComponentFunction:
    """Function of the components of composite arguments, which returns those of composite results.

    Args:
      function: Function of composite values.
      args: Its arguments, with specs for tensors and composite tensors.
      kwargs: Its keyword arguments.

    Attributes:
      arguments: (args, kwargs) with lists of `ComponentSpec`s in place of composite specs.
    """

    def __init__(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self.__name__ = getattr(function, "__name__", "function")
        self._function, self._arguments = function, (tuple(args), dict(kwargs))
        self.arguments = _split_arguments(self._arguments)
        self._results: PyTree = None

    def call(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Call the function with lists of components in place of composite arguments."""
        values = nest.join_composites(self._arguments, (args, kwargs))
        args, kwargs = nest.map_structure(_specify_dense_shape, self._arguments, values)
        return self._function(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        """Call the function, and return lists of components in place of composite results."""
        results = self.call(*args, **kwargs)
        self._results = nest.map_structure(_get_spec, results)
        return nest.map_structure(_split_result, self._results, results)

    def join_slots(self, structure: PyTree) -> PyTree:
        """Return the nested result, given the structure of the results of `__call__` with slots."""
        leaves = [
            make_result_slot(spec, nest.flatten(part)) if is_composite_spec(spec) else part
            for spec, part in zip(
                nest.flatten(self._results),
                nest.flatten_up_to(self._results, structure),
                strict=True,
            )
        ]
        return nest.pack_sequence_as(self._results, leaves)


def _specify_dense_shape(spec: PyTree, value: PyTree) -> PyTree:
    """Replace the dense shape of a sparse argument by its sizes, which ops need."""
    recorder = context.host_recorder
    if not isinstance(spec, SparseTensorSpec) or spec.shape.rank is None:
        return value
    sizes = spec.shape.as_list()
    if None in sizes and recorder is None:
        if not can_have_unknown_sizes():
            return value
        computed = [
            compute_size(operator.itemgetter(axis), [value.dense_shape], "a dense shape")
            if n is None
            else n
            for axis, n in enumerate(sizes)
        ]
        return SparseTensor(
            value.indices, value.values, make_sizes_tensor(tuple(computed), np.int64)
        )
    if None in sizes:
        # The first dimension may be that of the batch, as in dense arguments.
        known = [BATCH if axis == 0 and n is None else n for axis, n in enumerate(sizes)]
        sizes = recorder.record_sizes(value.dense_shape, known)
    if has_symbolic_size(sizes):
        dense_shape = make_sizes_tensor(tuple(sizes), np.int64)
    else:
        dense_shape = Tensor(np.array(sizes, np.int64))
    return value.with_dense_shape(dense_shape)


def _get_spec(leaf: PyTree) -> PyTree:
    return type_spec_from_value(leaf) if isinstance(leaf, CompositeTensor) else None


def _split_result(spec: CompositeSpec | None, leaf: PyTree) -> PyTree:
    return leaf if spec is None else list_components(spec, leaf)
