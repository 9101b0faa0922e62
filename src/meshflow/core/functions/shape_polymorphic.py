"""Concrete functions with unknown sizes or strings in their specs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard

import numpy as np

from meshflow.core.dispatch.composite import SparseTensorSpec
from meshflow.core.functions.call_arguments import (
    CallArguments,
    convert_to_spec,
    is_tensor_argument,
    to_spec,
)
from meshflow.core.functions.concrete_function import ConcreteFunction
from meshflow.core.functions.signatures import Args, Kwargs, name_specs
from meshflow.core.functions.signed_function import SignedFunction
from meshflow.core.runtime.errors import ValueNeededError
from meshflow.core.tracing.trace import TracedFunction
from meshflow.core.values import dtypes, nest
from meshflow.core.values.composite import (
    can_split,
    is_composite_spec,
    list_part_sizes,
)
from meshflow.core.values.specs import TensorSpec, TypeSpec
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import PyTree


class TraceableFunction(Protocol):
    """Interface of a `tf.function` for its concrete functions."""

    _name: str
    _arguments: CallArguments

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        """Run the function."""

    def get_concrete_for(self, args: Args, kwargs: Kwargs) -> ConcreteFunction:
        """Return the concrete function for a signature without unknown sizes."""

    def find_general_for(
        self, args: Args, kwargs: Kwargs, sizes: Sequence[Sequence[int | None]]
    ) -> ConcreteFunction | None:
        """Return a trace with symbolic sizes that is valid for specs, or None."""


# The value of unknown sizes for which a function is traced with symbols: it must be larger than usual windows.
_TYPICAL_SIZE = 32


class ShapePolymorphicFunction(SignedFunction):
    """A concrete function with unknown sizes in its specs, which is traced once with symbolic sizes if possible.

    Otherwise, and with strings, it is traced for each actual size.

    Attributes:
      structured_input_signature: (args, kwargs) with `TensorSpec`s for tensors.
    """

    def __init__(self, function: TraceableFunction, args: Args, kwargs: Kwargs) -> None:
        self._function = function
        self._template = (args, kwargs)
        self.name = function._name
        self._parameters = function._arguments.list_parameter_names()
        self.structured_input_signature = name_specs(
            nest.map_structure(to_spec, (args, kwargs)), self._parameters
        )

        # The function is traced now, so that its side effects and errors occur now.
        self._general = self._trace_with_symbols()

    def _trace_with_symbols(self) -> ConcreteFunction | None:
        specs = [s for s in nest.flatten_parts(self._template) if isinstance(s, TensorSpec)]
        if any(s.shape.rank is None for s in specs) or has_string_specs(self._template):
            return None
        sizes: list[Sequence[int | None]] = []
        for leaf in nest.flatten(self._template):
            if is_composite_spec(leaf):
                # The parts of a value may have another order than the components of its spec.
                sizes += [part or () for part in list_part_sizes(leaf)]
            elif isinstance(leaf, TensorSpec):
                sizes.append(leaf.shape.as_list())
        return self._function.find_general_for(*self._set_sizes(_TYPICAL_SIZE), sizes)

    @property
    def _any_traced(self) -> TracedFunction:
        return self._trace_size(2 if self._general is None else _TYPICAL_SIZE).traced

    def _set_sizes(self, size: int) -> tuple[Args, Kwargs]:
        """Return the arguments with a known size instead of all unknown ones, and empty strings for specs of strings."""
        sized = nest.map_structure(lambda s: _replace_unknown_sizes(s, size), self._template)
        args, kwargs = nest.map_structure(_make_empty_strings, sized)
        return args, kwargs

    def _trace_size(self, size: int) -> ConcreteFunction:
        return self._function.get_concrete_for(*self._set_sizes(size))

    @property
    def structured_outputs(self) -> PyTree:
        """Return the result structure, with None for sizes that depend on unknown input sizes."""
        if self._general is not None:
            return self._general.structured_outputs
        traces: list[SignedFunction] = [self._trace_size(2), self._trace_size(3)]
        if self in traces:
            # A composite argument has unknown sizes for each size of its spec.
            raise ValueNeededError(
                f"{self.name} needs values of its composite arguments, so the specs of its results are unknown. Call it, "
                "and use tf.type_spec_from_value."
            )
        first, second = (trace.structured_outputs for trace in traces)
        return nest.map_structure(
            lambda a, b: (
                a.most_specific_compatible_type(b)
                if (isinstance(a, TensorSpec) or is_composite_spec(a))
                else a
            ),
            first,
            second,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        """Run the function on tensors that match the specs."""
        template = nest.flatten(self._template)
        values = iter(self._match_arguments(self._specs, args, kwargs))
        full = []
        for spec in template:
            is_tensor = isinstance(spec, TypeSpec) or is_tensor_argument(spec)
            full.append(
                convert_to_spec(self.name, to_spec(spec), next(values)) if is_tensor else spec
            )
        positional, named = nest.pack_sequence_as(self._template, full)
        return self._function(*positional, **named)


def has_string_specs(arguments: PyTree) -> bool:
    """Check whether arguments contain specs of strings; their values are known only in a call."""
    return any(_is_string_spec(leaf) for leaf in nest.flatten(arguments))


def _is_string_spec(leaf: object) -> TypeGuard[TensorSpec]:
    return isinstance(leaf, TensorSpec) and leaf.dtype is dtypes.string


def _make_empty_strings(leaf: PyTree) -> PyTree:
    return Tensor(np.full(leaf.shape, b"", object)) if _is_string_spec(leaf) else leaf


def _replace_unknown_sizes(spec: Any, size: int) -> Any:
    if isinstance(spec, SparseTensorSpec) and spec.shape.rank is not None and can_split(spec):
        return spec.set_sizes(size)
    if is_composite_spec(spec) and can_split(spec):
        return spec.fill_components(lambda part: _replace_unknown_sizes(part, size))
    if not isinstance(spec, TensorSpec):
        return spec
    if spec.shape.rank is None:
        # For an unknown rank, the rank changes with `size` instead.
        return TensorSpec([1] * (size - 2), spec.dtype, spec.name)
    return TensorSpec([size if d is None else d for d in spec.shape], spec.dtype, spec.name)
