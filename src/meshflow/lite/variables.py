"""Variables of a converted model: LiteRT resources, which keep their values between calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.variables.random_streams import STATE_NAME
from meshflow.deployment.deployable_function import DeployableFunction
from meshflow.deployment.equations import Program, remove_unused_equations
from meshflow.lite.graph import RESOURCE, LiteModel, LiteTensor, Subgraph
from meshflow.lite.lowering import LiteLowering
from meshflow.lite.patterns import fuse_lite_patterns

if TYPE_CHECKING:
    from meshflow.core.variables.variable import Variable


class ModelVariables:
    """Variables that the signatures of a model write.

    Args:
      graph: the model; gets a subgraph that assigns the initial values if there are variables.
      signatures: functions of the model.
    """

    def __init__(self, graph: LiteModel, signatures: Sequence[DeployableFunction]) -> None:
        self._written = {id(v): v for s in signatures for v in s.traced.writes}
        self._names = {key: f"{v.name}_{i}" for i, (key, v) in enumerate(self._written.items())}
        self._graph = graph
        self._initializer_index: int | None = None

    def flatten_signature(
        self, signature: DeployableFunction
    ) -> tuple[Program, list[Variable], list[Variable]]:
        """Return the program of a signature; variables that no signature writes are constants.

        Returns:
          The program; the variables that are its inputs after the arguments; and those of which
          the new values are its outputs after the results. States of random number generators are
          not written, because LiteRT's operators keep their own.
        """
        program, read, written = signature.flatten_with_variables(list(self._written.values()))
        inputs = program.inputs[len(program.inputs) - len(read) :]
        states = {i for i, v in zip(inputs, read, strict=True) if _is_random_state(v)}
        count = len(program.outputs) - len(written)
        values = zip(program.outputs[count:], written, strict=True)
        updates = [(value, v) for value, v in values if not _is_random_state(v)]
        results = [*program.outputs[:count], *(value for value, _ in updates)]
        program = remove_unused_equations(Program(program.inputs, results, program.equations))
        return fuse_lite_patterns(program, states), read, [v for _, v in updates]

    def read_variables(
        self, lowering: LiteLowering, variables: Sequence[Variable]
    ) -> list[LiteTensor]:
        """Add operators that read variables, and return their values."""
        if self._initializer_index is not None:
            lowering.add(
                "CALL_ONCE", [], [], "CallOnceOptions", initSubgraphIndex=self._initializer_index
            )
        values = []
        for variable in variables:
            shape, dtype = _get_shape_and_dtype(variable)
            if _is_random_state(variable):
                values.append(LiteTensor(tuple(shape), dtype))
                continue
            handle = [self._add_handle(lowering, variable)]
            value = lowering.emit("READ_VARIABLE", handle, shape, dtype, "ReadVariableOptions")
            values.append(value)
        return values

    def write_variables(
        self, lowering: LiteLowering, variables: Sequence[Variable], values: Sequence[LiteTensor]
    ) -> None:
        """Add operators that assign values to variables for the next call."""
        for variable, value in zip(variables, values, strict=True):
            operands = [self._add_handle(lowering, variable), value]
            lowering.add("ASSIGN_VARIABLE", operands, [], "AssignVariableOptions")

    def add_initializer(self) -> None:
        """Add the subgraph that assigns the initial values; it must follow those of the signatures."""
        variables = [v for v in self._written.values() if not _is_random_state(v)]
        if not variables:
            return
        initializer = Subgraph("initial_values")
        self._initializer_index = len(self._graph.subgraphs)
        self._graph.subgraphs.append(initializer)
        lowering = LiteLowering(self._graph, initializer)
        values = [lowering.get_constant(np.asarray(v.value().array)) for v in variables]
        self.write_variables(lowering, variables, values)

    def _add_handle(self, lowering: LiteLowering, variable: Variable) -> LiteTensor:
        name = self._names[id(variable)]
        return lowering.emit("VAR_HANDLE", [], [], RESOURCE, "VarHandleOptions", container="", sharedName=name)  # fmt: skip


def _is_random_state(variable: Variable) -> bool:
    """Check whether a variable is the state of a random number generator."""
    name = variable.name.split("/")[-1].split(":")[0]
    return bool(name.startswith(STATE_NAME) and variable.dtype.name == "int64")


def _get_shape_and_dtype(variable: Variable) -> tuple[list[int], np.dtype]:
    if not variable.shape.is_fully_defined():
        raise UnimplementedError(
            f"tf.lite: the variable {variable.name} has the shape {variable.shape}: variables that a converted "
            "function writes need static shapes."
        )
    return variable.shape.as_list(), LiteLowering.to_supported_dtype(variable.dtype.dtype)
