"""A concrete function whose specs have unknown sizes."""

from __future__ import annotations

from typing import Any, Protocol

from meshflow.core.functions.call_arguments import CallArguments, becomes_tensor, fit_leaf, spec_of
from meshflow.core.functions.concrete_function import ConcreteFunction, Signed
from meshflow.core.functions.signatures import named_specs
from meshflow.core.tracing.trace import Traced
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec, TypeSpec


class Traceable(Protocol):
    """A `tf.function`, as far as its concrete functions ask it."""

    _name: str
    _arguments: CallArguments

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function."""

    def concrete_for(self, args: Any, kwargs: Any) -> ConcreteFunction:
        """The concrete function of a signature whose sizes are all known."""


class ShapePolymorphicFunction(Signed):
    """A concrete function whose specs have unknown sizes: traced for each size it meets.

    Attributes:
      structured_input_signature: (args, kwargs) with `TensorSpec`s for tensors.
    """

    def __init__(self, function: Traceable, args: Any, kwargs: Any) -> None:
        self._function = function
        self._template = (args, kwargs)
        self.name = function._name
        self._parameters = function._arguments.parameter_names()
        self.structured_input_signature = named_specs(
            nest.map_structure(spec_of, (args, kwargs)), self._parameters
        )

    @property
    def _any_traced(self) -> Traced:
        return self._sized(2).traced

    def _sized(self, size: int) -> ConcreteFunction:
        args, kwargs = nest.map_structure(lambda s: _with_size(s, size), self._template)
        return self._function.concrete_for(args, kwargs)

    @property
    def structured_outputs(self) -> Any:
        """The result structure; sizes that vary with the input's are None."""
        first, second = self._sized(2).structured_outputs, self._sized(3).structured_outputs
        return nest.map_structure(
            lambda a, b: a.most_specific_compatible_type(b) if isinstance(a, TensorSpec) else a,
            first,
            second,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function on tensors that fit the specs."""
        template = nest.flatten(self._template)
        specs = [
            s for s in nest.flatten(self.structured_input_signature) if isinstance(s, TypeSpec)
        ]
        given = iter(self._tensor_arguments(specs, args, kwargs))
        full = []
        for spec in template:
            fits = isinstance(spec, TypeSpec) or becomes_tensor(spec)
            full.append(fit_leaf(self.name, spec_of(spec), next(given)) if fits else spec)
        positional, named = nest.pack_sequence_as(self._template, full)
        return self._function(*positional, **named)


def _with_size(spec: Any, size: int) -> Any:
    if not isinstance(spec, TensorSpec):
        return spec
    if spec.shape.rank is None:
        # Of unknown rank: other ranks stand for other sizes.
        return TensorSpec([1] * (size - 2), spec.dtype, spec.name)
    return TensorSpec([size if d is None else d for d in spec.shape], spec.dtype, spec.name)
