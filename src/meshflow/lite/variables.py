"""Variables that a converted model keeps from call to call: LiteRT's resources, given their values by the first call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.deployment.programs import Deployable
from meshflow.lite.graph import RESOURCE, Graph, Subgraph, Tensor
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

    @property
    def all(self) -> list[Any]:
        """Those that are written; the others are constants."""
        return list(self._written.values())

    def read(self, lowering: Lowering, variables: Sequence[Any]) -> list[Tensor]:
        """The values that a call begins with.

        Args:
          lowering: of the call.
          variables: which.
        """
        if variables and self._first is not None:
            lowering.add("CALL_ONCE", [], [], "CallOnceOptions", initSubgraphIndex=self._first)
        found = []
        for variable in variables:
            shape, dtype = _about(variable)
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
        if not self._written:
            return
        first = Subgraph("initial_values")
        self._first = len(self._graph.subgraphs)
        self._graph.subgraphs.append(first)
        lowering = Lowering(self._graph, first)
        values = [lowering.constant(np.asarray(v._as_tensor()._value)) for v in self.all]
        self.write(lowering, self.all, values)

    def _handle(self, lowering: Lowering, variable: Any) -> Tensor:
        name = self._names[id(variable)]
        return lowering.emit("VAR_HANDLE", [], [], RESOURCE, "VarHandleOptions", container="", sharedName=name)  # fmt: skip


def _about(variable: Any) -> tuple[list[int], np.dtype]:
    if not variable.shape.is_fully_defined():
        raise UnimplementedError(
            f"tf.lite: the variable {variable.name} has the shape {variable.shape}: those that a converted function "
            "writes need all their sizes."
        )
    return variable.shape.as_list(), kept_dtype(variable.dtype.dtype)
