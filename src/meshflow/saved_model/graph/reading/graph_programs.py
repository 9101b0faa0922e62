"""Functions of TensorFlow's graphs as programs of restored functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.runtime.errors import DataLossError, InvalidArgumentError, ValueNeededError
from meshflow.core.tracing.trace import TensorSlot, TracedFunction, fill_slots
from meshflow.core.values import nest
from meshflow.core.values.composite import is_composite_spec
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Array, PyTree
from meshflow.ops.casting import cast
from meshflow.ops.random import stateful
from meshflow.saved_model.graph.format.node_attributes import HostRequired
from meshflow.saved_model.graph.reading.interpreter import (
    FunctionLibrary,
    GraphRun,
    RandomKeyRequired,
    VariableRef,
    requires_host,
)
from meshflow.saved_model.manifest.composite_values import list_component_specs, make_result_slot

# Function that computes flat results from flat arguments and captured values, in a run.
GraphBody = Callable[[GraphRun, list[Any]], list[Any]]


def make_result_slots(structure: PyTree) -> tuple[PyTree, list[TensorSpec]]:
    """Assign numbers to the tensors of a nested result in TensorFlow's order.

    Args:
      structure: Nested result with a spec for each tensor and composite tensor.

    Returns:
      The nested result with `TensorSlot`s in place of specs, and the specs of its tensors.
    """
    specs: list[TensorSpec] = []

    def make_slot(leaf: PyTree) -> PyTree:
        if isinstance(leaf, TensorSpec):
            specs.append(leaf)
            return TensorSlot(len(specs) - 1)
        if not is_composite_spec(leaf):
            return leaf
        return make_result_slot(leaf, [make_slot(part) for part in list_component_specs(leaf)])

    slots = [make_slot(leaf) for leaf in nest.flatten(structure)]
    return nest.pack_sequence_as(structure, slots), specs


class GraphProgram:
    """Function of a graph, compiled for each combination of shapes, or run op by op on the host.

    It runs on the host if it contains strings or tables, or sizes that it computes at run time.

    Args:
      name: Name of the function, for errors.
      library: Functions that it calls.
      body: Function that computes the results in a run, for the arguments followed by the captured
        values.
      captured: Captured variables, static arrays and tables.
      structure: Nested result with `TensorSlot`s.
      specs: Specs of the results.
      runs_on_host: Whether it contains ops that only the host can run.
      digest: Bytes that identify the program in files, or None.
    """

    def __init__(
        self,
        name: str,
        library: FunctionLibrary,
        body: GraphBody,
        captured: Sequence[Any],
        structure: PyTree,
        specs: Sequence[TensorSpec],
        runs_on_host: bool = False,
        digest: bytes | None = None,
    ) -> None:
        self.digest = digest
        self._name, self._library, self._body = name, library, body
        variables: dict[int, Variable] = {}
        self._captured = []
        for item in captured:
            if isinstance(item, Variable):
                variables.setdefault(id(item), item)
                item = VariableRef(list(variables).index(id(item)))
            self._captured.append(item)
        self.captures: list[Any] = list(variables.values())
        self._structure, self._specs = structure, list(specs)
        self._traced_by_shapes: dict[Any, TracedFunction] = {}
        # A program that draws random numbers takes their key as its last argument.
        self._needs_key = False
        self._runs_on_host = runs_on_host or any(requires_host(c) for c in self._captured)

    @property
    def runs_on_host(self) -> bool:
        """Return whether the program is known to need the host."""
        return self._runs_on_host

    @property
    def out_specs(self) -> list[TensorSpec]:
        """Return the specs of the results."""
        return self._specs

    def call(self, tensors: Sequence[Tensor]) -> PyTree:
        """Run the program, including its assignments to variables.

        Raises:
          UnimplementedError: If an op is not supported. The error names the op and its node.
          DataLossError: If the graph is damaged. The error names the file and the node.
        """
        try:
            return self._call(tensors)
        except DataLossError as error:
            source = self._library.source
            raise error if source in str(error) else DataLossError(f"{source}: {error}") from None

    def _call(self, tensors: Sequence[Tensor]) -> PyTree:
        if not self._runs_on_host and all(t.dtype.name != "string" for t in tensors):
            try:
                return self._call_compiled(tensors)
            except HostRequired:
                self._runs_on_host = True
        try:
            return self._call_on_host(tensors)
        except HostRequired:
            raise ValueNeededError(
                f"{self._name} needs strings, tables or sizes that are computed at run time, so it runs op by op."
            ) from None

    def _call_compiled(self, tensors: Sequence[Tensor]) -> PyTree:
        if not self._needs_key:
            try:
                return self._trace(tensors).call(tensors)
            except RandomKeyRequired:
                self._needs_key = True
        arguments = [*tensors, _draw_key()]
        return self._trace(arguments).call(arguments)

    def _trace(self, tensors: Sequence[Tensor]) -> TracedFunction:
        key = tuple(tuple(t.shape.as_list()) for t in tensors)
        if key not in self._traced_by_shapes:
            written: list[int] = []
            num_arguments = len(tensors)

            def run(*arrays: jax.Array) -> list[jax.Array]:
                key = arrays[num_arguments - 1] if self._needs_key else None
                state = GraphRun(self._library, arrays[num_arguments:], key=key)
                results = self._body(
                    state, [*arrays[: num_arguments - self._needs_key], *self._captured]
                )
                written[:] = state.written
                return [
                    self._convert_result(r) for r in (*results, *(state.values[n] for n in written))
                ]

            arrays = [t.array for t in tensors] + [v._value for v in self.captures]
            specs = [jax.ShapeDtypeStruct(tuple(a.shape), a.dtype) for a in arrays]
            closed = jax.make_jaxpr(run)(*specs)
            writes = [self.captures[n] for n in written]
            count = len(closed.out_avals) - len(writes)
            self._traced_by_shapes[key] = TracedFunction(
                self._name, closed, self.captures, writes, self._structure, count
            )
        return self._traced_by_shapes[key]

    def _convert_result(self, value: object) -> jax.Array:
        if not hasattr(value, "dtype") or requires_host(value):
            raise InvalidArgumentError(
                f"{self._name} returns {value!r}, expected an array of numbers."
            )
        return jnp.asarray(value)

    def _call_on_host(self, tensors: Sequence[Tensor]) -> PyTree:
        arguments = [t.require_value("what sizes or strings are made of") for t in tensors]
        values = [v._value for v in self.captures]
        key: Any = _draw_key().array
        state = GraphRun(self._library, values, host=True, key=key)
        results = self._body(state, [*arguments, *self._captured])
        for index in state.written:
            self.captures[index].assign(Tensor(state.values[index]))
        outputs = [Tensor(r if requires_host(r) else jnp.asarray(r)) for r in results]
        return fill_slots(self._structure, outputs)


def _draw_key() -> Tensor:
    """Draw two words of key data from the generator that `tf.random.set_seed` seeds."""
    words = stateful.uniform([2], 0, np.iinfo(np.int32).max, "int32")
    return cast(words, "uint32")


def to_static_array(value: Tensor | Array) -> np.ndarray:
    """Convert a constant to a NumPy array, so that its value is known while a program is traced."""
    return np.asarray(value.array if isinstance(value, Tensor) else value)
