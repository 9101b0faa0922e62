"""Parts of a main graph as programs: what computes some of its tensors from others, and from variables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from meshflow.core.runtime.errors import DataLossError
from meshflow.core.values.specs import TensorSpec
from meshflow.core.variables.variable import Variable
from meshflow.saved_model.graph.attributes import Node
from meshflow.saved_model.graph.interpreter import Library, Run
from meshflow.saved_model.graph.programs import GraphProgram

__all__ = ["VARIABLE_OPS", "part_of_graph"]

# Ops that are variables: the last two give values, and no handles.
VARIABLE_OPS = ("VarHandleOp", "VariableV2", "Variable")


def part_of_graph(
    name: str,
    library: Library,
    nodes: Mapping[str, Node],
    fed: Sequence[str],
    wanted: Sequence[tuple[str, int]],
    variable: Callable[[Node], Variable],
    structure: Any,
    specs: Sequence[TensorSpec],
) -> GraphProgram:
    """A program that takes values of some nodes and gives outputs of others.

    Args:
      name: its name, for errors.
      library: the graph's functions.
      nodes: the graph's nodes by name.
      fed: names of the nodes that it takes the first outputs of.
      wanted: names of nodes with numbers of their outputs.
      variable: gives the variable that a node stands for.
      structure: the nested result with `Slot`s.
      specs: specs of the results.

    Raises:
      DataLossError: for a node that is not there.
    """
    reached = _reached(nodes, [n for n, _ in wanted], fed)
    held = [node for node in reached if node.op in VARIABLE_OPS]
    names = [*fed, *(node.name for node in held)]
    read = [node.name for node in held if node.op != "VarHandleOp"]

    def body(run: Run, values: list[Any]) -> list[Any]:
        found: dict[str, Any] = {n: [v] for n, v in zip(names, values, strict=True)}
        for one in read:
            found[one] = [run.read(found[one][0])]
        run.evaluate(nodes, found, [n for n, _ in wanted], name)
        return [found[n][index] for n, index in wanted]

    host = library.needs_host(reached)
    return GraphProgram(name, library, body, [variable(n) for n in held], structure, specs, host)


def _reached(nodes: Mapping[str, Node], wanted: Iterable[str], fed: Collection[str]) -> list[Node]:
    """Nodes that some need."""
    waiting, seen, found = list(wanted), set(fed), []
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in nodes:
            raise DataLossError(f"the graph has no node {name!r}, which it uses.")
        found.append(nodes[name])
        waiting += [n for n, _, _ in found[-1].inputs]
    return found
