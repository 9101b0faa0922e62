"""Functions with one signature: their descriptions, and the arguments of their calls."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

from meshflow.core.functions.signatures import (
    Args,
    FunctionSpec,
    FunctionType,
    Kwargs,
    Signature,
    format_function_type,
    make_function_type,
    match_arguments,
)
from meshflow.core.tracing.trace import TracedFunction, is_array_like
from meshflow.core.values import dtypes, nest
from meshflow.core.values.specs import TensorSpec, TypeSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import ClosedJaxpr, PyTree


class SignedFunction:
    """Base class of functions with one signature: their call arguments and descriptions.

    Attributes:
      name: Name of the function.
      structured_input_signature: (args, kwargs) with `TensorSpec`s for tensors.
    """

    name: str
    structured_input_signature: Signature
    _parameters: Sequence[str] = ()

    @property
    def structured_outputs(self) -> PyTree:
        """Return the result structure with specs for tensors."""
        raise NotImplementedError

    @property
    def _any_traced(self) -> TracedFunction:
        """Return the traced function, or one of several that differ only in sizes."""
        raise NotImplementedError

    def add_to_graph(self, g: object = None, overwrite: bool = False) -> None:
        """Do nothing: traces are not parts of a graph."""

    add_gradient_functions_to_graph = add_to_graph

    @property
    def inputs(self) -> list[Any]:
        """Return the specs of the tensor arguments, then the captures."""
        return [*self._specs, *self.captured_inputs]

    @property
    def _specs(self) -> list[Any]:
        """List the specs of the tensor arguments and composite ones."""
        return [s for s in nest.flatten(self.structured_input_signature) if isinstance(s, TypeSpec)]

    @property
    def outputs(self) -> list[TensorSpec]:
        """Return the specs of the result tensors."""
        return [s for s in nest.flatten(self.structured_outputs) if isinstance(s, TensorSpec)]

    @property
    def output_shapes(self) -> PyTree:
        """Return the shapes of the results."""
        return nest.map_structure(
            lambda s: s.shape if isinstance(s, TensorSpec) else s, self.structured_outputs
        )

    @property
    def output_dtypes(self) -> PyTree:
        """Return the dtypes of the results."""
        return nest.map_structure(
            lambda s: s.dtype if isinstance(s, TensorSpec) else s, self.structured_outputs
        )

    @property
    def captured_inputs(self) -> list[Any]:
        """Return the outer tensors and variables that the function uses."""
        return list(self._any_traced.captures)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Return the variables that the function reads or writes."""
        return tuple(c for c in self.captured_inputs if isinstance(c, Variable))

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """Return the trainable variables that the function reads or writes."""
        return tuple(v for v in self.variables if v.trainable)

    @property
    def closed_jaxpr(self) -> ClosedJaxpr:
        """Return the computation as a JAX `ClosedJaxpr`."""
        return self._any_traced.closed_jaxpr

    @functools.cached_property
    def graph(self) -> Any:
        """Return a description of the function as TensorFlow's graph, with a node for each op."""
        # The graph belongs to a higher layer; most programs do not need it.
        module = importlib.import_module("meshflow.saved_model.graph.writing.trace_graphs")
        return module.make_function_graph(self)

    @property
    def function_def(self) -> Any:
        """Return the graph as TensorFlow's `FunctionDef` message."""
        return self.graph.function_def

    @property
    def function_type(self) -> FunctionType:
        """Return the signature, with the specs of tensors as annotations."""
        return make_function_type(
            self.structured_input_signature, self._parameters, self.structured_outputs
        )

    @property
    def _function_spec(self) -> FunctionSpec:
        """Return the parameters; libraries read this attribute of TensorFlow."""
        return FunctionSpec(self.function_type, self.structured_input_signature[0], self.name)

    def _match_arguments(self, specs: Sequence[Any], args: Args, kwargs: Kwargs) -> list[Any]:
        """Match the arguments of a call, or only its tensors, to the specs."""
        try:
            return match_arguments(
                self.name, self.structured_input_signature, self._parameters, args, kwargs
            )
        except TypeError:
            values = nest.flatten(args)
            for spec in specs[len(values) :]:
                if spec.name in kwargs:
                    values.append(kwargs[spec.name])
            counts = (len(specs), len(nest.flatten(args)) + len(kwargs))
            if counts != (len(values),) * 2 or not all(
                is_array_like(v) or isinstance(v, Variable) for v in values
            ):
                raise
            return values

    def pretty_printed_signature(self, verbose: bool = True) -> str:
        """Describe the parameters and results; only in one line if not verbose."""
        if not verbose:
            return str(self.function_type)
        captures = {id(c): _get_capture_spec(c) for c in self.captured_inputs}
        return format_function_type(self.function_type, captures)

    def __repr__(self) -> str:
        return (
            f"<ConcreteFunction {self.pretty_printed_signature(verbose=False)} at 0x{id(self):X}>"
        )

    def __str__(self) -> str:
        return f"ConcreteFunction {self.pretty_printed_signature()}"


def _get_capture_spec(captured: Tensor | Variable) -> TensorSpec:
    if isinstance(captured, Variable):
        return TensorSpec([], dtypes.resource)
    return TensorSpec(captured.shape, captured.dtype)
