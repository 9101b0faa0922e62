"""Parts of the main graph as programs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from meshflow.core.runtime.errors import DataLossError
from meshflow.core.values.specs import TensorSpec
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.saved_model.graph.format.node_attributes import GraphNode
from meshflow.saved_model.graph.reading.graph_programs import GraphProgram
from meshflow.saved_model.graph.reading.interpreter import FunctionLibrary, GraphRun

# The nodes of these ops are variables. The outputs of the last two are values instead of handles.
VARIABLE_OPS = ("VarHandleOp", "VariableV2", "Variable")


def extract_subgraph(
    name: str,
    library: FunctionLibrary,
    nodes: Mapping[str, GraphNode],
    fed: Sequence[str],
    fetched: Sequence[tuple[str, int]],
    variable: Callable[[GraphNode], Variable],
    structure: PyTree,
    specs: Sequence[TensorSpec],
) -> GraphProgram:
    """Return a program that computes outputs of some nodes from the values of others.

    Args:
      name: Name of the program, for errors.
      library: Functions of the graph.
      nodes: Nodes of the graph by name.
      fed: Names of the nodes to replace by arguments; each argument is the first output of the
        node.
      fetched: (name of a node, index of the output) of each result.
      variable: Function that returns the variable of a variable node.
      structure: Nested result with `TensorSlot`s.
      specs: Specs of the results.

    Raises:
      DataLossError: If a node is missing from the graph.
    """
    required = collect_dependencies(nodes, [n for n, _ in fetched], fed)
    variable_nodes = [node for node in required if node.op in VARIABLE_OPS]
    names = [*fed, *(node.name for node in variable_nodes)]
    value_nodes = [node.name for node in variable_nodes if node.op != "VarHandleOp"]

    def body(run: GraphRun, values: list[Any]) -> list[Any]:
        found: dict[str, Any] = {n: [v] for n, v in zip(names, values, strict=True)}
        for node_name in value_nodes:
            found[node_name] = [run.read(found[node_name][0])]
        run.evaluate(nodes, found, [n for n, _ in fetched], name)
        return [found[n][index] for n, index in fetched]

    host = library.needs_host(required)
    return GraphProgram(
        name, library, body, [variable(n) for n in variable_nodes], structure, specs, host
    )


def collect_dependencies(
    nodes: Mapping[str, GraphNode], targets: Iterable[str], fed: Collection[str]
) -> list[GraphNode]:
    """Return the nodes that some nodes depend on, up to the fed ones."""
    pending, seen, found = list(targets), set(fed), []
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in nodes:
            raise DataLossError(f"the graph has no node {name!r}, which it uses.")
        found.append(nodes[name])
        pending += [n for n, _, _ in found[-1].inputs]
    return found
