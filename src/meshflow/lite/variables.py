"""Variables that a converted model keeps from call to call: LiteRT's resources, given their values by the first call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.variables.random import STATE_NAME
from meshflow.deployment.equations import Program, without_unused
from meshflow.deployment.programs import Deployable
from meshflow.lite.graph import RESOURCE, Graph, Subgraph, Tensor
from meshflow.lite.idioms import with_operators
from meshflow.lite.lowering import Lowering, kept_dtype

__all__ = ["Variables"]


class Variables:
    """What the signatures of a model write.

    Args:
      graph: the model, which gets a subgraph with the initial values if there are variables.
      signatures: the functions.
    """

    def __init__(self, graph: Graph, signatures: Sequence[Deployable]) -> None:
        self._written = {id(v): v for s in signatures for v in s.traced.writes}
        self._names = {key: f"{v.name}_{i}" for i, (key, v) in enumerate(self._written.items())}
        self._graph = graph
        self._first: int | None = None

    def program(self, signature: Deployable) -> tuple[Program, list[Any], list[Any]]:
        """What a signature computes; of variables that are written by none the values are constants.

        Args:
          signature: the function.

        Returns:
          (a program, the variables that are its inputs after the arguments, those whose new values are its results
          after the others). LiteRT's random operators keep the states of theirs themselves.
        """
        program, read, written = signature.with_variables(list(self._written.values()))
        places = program.inputs[len(program.inputs) - len(read) :]
        states = {p for p, v in zip(places, read, strict=True) if _is_random(v)}
        count = len(program.outputs) - len(written)
        values = zip(program.outputs[count:], written, strict=True)
        kept = [(value, v) for value, v in values if not _is_random(v)]
        results = [*program.outputs[:count], *(value for value, _ in kept)]
        program = without_unused(Program(program.inputs, results, program.equations))
        return with_operators(program, states), read, [v for _, v in kept]

    def read(self, lowering: Lowering, variables: Sequence[Any]) -> list[Tensor]:
        """The values that a call begins with.

        Args:
          lowering: of the call.
          variables: which.
        """
        if self._first is not None:
            lowering.add("CALL_ONCE", [], [], "CallOnceOptions", initSubgraphIndex=self._first)
        found = []
        for variable in variables:
            shape, dtype = _about(variable)
            if _is_random(variable):
                found.append(Tensor(tuple(shape), dtype))
                continue
            handle = [self._handle(lowering, variable)]
            found.append(
                lowering.emit("READ_VARIABLE", handle, shape, dtype, "ReadVariableOptions")
            )
        return found

    def write(self, lowering: Lowering, variables: Sequence[Any], values: Sequence[Tensor]) -> None:
        """Keeps values for the next call.

        Args:
          lowering: of the call.
          variables: which.
          values: of them.
        """
        for variable, value in zip(variables, values, strict=True):
            operands = [self._handle(lowering, variable), value]
            lowering.add("ASSIGN_VARIABLE", operands, [], "AssignVariableOptions")

    def initialize(self) -> None:
        """Adds the subgraph with the initial values, which is to come after those of the signatures."""
        variables = [v for v in self._written.values() if not _is_random(v)]
        if not variables:
            return
        first = Subgraph("initial_values")
        self._first = len(self._graph.subgraphs)
        self._graph.subgraphs.append(first)
        lowering = Lowering(self._graph, first)
        values = [lowering.constant(np.asarray(v._as_tensor()._value)) for v in variables]
        self.write(lowering, variables, values)

    def _handle(self, lowering: Lowering, variable: Any) -> Tensor:
        name = self._names[id(variable)]
        return lowering.emit("VAR_HANDLE", [], [], RESOURCE, "VarHandleOptions", container="", sharedName=name)  # fmt: skip


def _is_random(variable: Any) -> bool:
    """Whether a variable is the state of a stream of random numbers."""
    name = variable.name.split("/")[-1].split(":")[0]
    return bool(name.startswith(STATE_NAME) and variable.dtype.name == "int64")


def _about(variable: Any) -> tuple[list[int], np.dtype]:
    if not variable.shape.is_fully_defined():
        raise UnimplementedError(
            f"tf.lite: the variable {variable.name} has the shape {variable.shape}: those that a converted function "
            "writes need all their sizes."
        )
    return variable.shape.as_list(), kept_dtype(variable.dtype.dtype)
