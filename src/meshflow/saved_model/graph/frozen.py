"""Graphs in files of their own, whose variables are constants: parts of them as functions.

`wrap_function` calls a function that imports a graph, and gives the graph; its `prune` gives what some tensors of the
graph are computed by from others.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from typing import Any

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, as_dtype
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.saved_model.graph.attributes import Node, reference
from meshflow.saved_model.graph.interpreter import Library
from meshflow.saved_model.graph.messages import GraphDef
from meshflow.saved_model.graph.parts import part_of_graph
from meshflow.saved_model.graph.programs import slots_of

__all__ = ["GraphDef", "ImportedGraph", "WrappedFunction", "import_graph_def", "wrap_function"]

_importing: contextvars.ContextVar[ImportedGraph | None] = contextvars.ContextVar(
    "importing", default=None
)


class GraphOperation:
    """A node of an imported graph.

    Attributes:
      name: its name.
      type: TensorFlow's op.
    """

    def __init__(self, graph: ImportedGraph, node: Node) -> None:
        self.graph, self.node_def, self._node = graph, node._proto, node
        self.name, self.type = graph.prefix + node.name, node.op

    def get_attr(self, name: str) -> Any:
        """One of its attributes."""
        return self._node[name]

    @property
    def inputs(self) -> tuple[GraphTensor, ...]:
        """The tensors that it takes."""
        prefix = self.graph.prefix
        return tuple(GraphTensor(self.graph, f"{prefix}{n}:{i}") for n, _, i in self._node.inputs)

    @property
    def outputs(self) -> tuple[GraphTensor, ...]:
        """The first of the tensors that it gives."""
        return (GraphTensor(self.graph, f"{self.name}:0"),)

    def __repr__(self) -> str:
        return f"<tf.Operation '{self.name}' type={self.type}>"


class GraphTensor:
    """A tensor of an imported graph.

    Attributes:
      name: the name of the node that gives it, with the number of the output.
    """

    def __init__(self, graph: ImportedGraph, name: str) -> None:
        node, _, self.value_index = reference(name)
        self.graph, self.op = graph, graph.get_operation_by_name(node)
        self.name = f"{node}:{self.value_index}"

    @property
    def dtype(self) -> DType:
        """Its dtype, as far as the node says it."""
        for key in ("dtype", "DstT", "T", "Tparams"):
            if key in self.op.node_def.attr:
                return as_dtype(self.op.node_def.attr[key].type)
        return as_dtype("float32")

    @property
    def shape(self) -> TensorShape:
        """That of a placeholder; else unknown."""
        attributes = self.op.node_def.attr
        return TensorShape(self.op.get_attr("shape") if "shape" in attributes else None)

    def __repr__(self) -> str:
        return f"<tf.Tensor '{self.name}' shape={self.shape} dtype={self.dtype.name}>"


class ImportedGraph:
    """A graph that was read.

    Args:
      variable: gives the variable that a node stands for; none where the file has no values of them.

    Attributes:
      prefix: what is before the names that nodes have in the file.
    """

    def __init__(self, variable: Callable[[Node], Variable] | None = None) -> None:
        self.prefix, self._variable = "", variable
        self._definition: Any = None
        self.nodes: dict[str, Node] = {}
        self.library = Library([])

    def take(self, definition: Any, prefix: str) -> None:
        """Imports a graph."""
        if self._definition is not None:
            raise UnimplementedError(
                "tf.compat.v1.wrap_function: one graph can be imported, not several."
            )
        self._definition, self.prefix = definition, prefix
        self.nodes = {n.name: Node(n) for n in definition.node}
        self.library = Library(definition.library.function)

    def variable(self, node: Node) -> Variable:
        """The variable that a node stands for.

        Raises:
          UnimplementedError: for a graph that is no SavedModel's.
        """
        if self._variable is None:
            raise UnimplementedError(
                f"The graph has variables, whose values are not in it: {node.name}. Freeze it first, or load the SavedModel."
            )
        return self._variable(node)

    def as_graph_def(self) -> Any:
        """What it was read from."""
        return self._definition

    def get_operations(self) -> list[GraphOperation]:
        """Its nodes."""
        return [GraphOperation(self, node) for node in self.nodes.values()]

    def get_operation_by_name(self, name: str) -> GraphOperation:
        """A node.

        Raises:
          KeyError: when there is none of that name.
        """
        node = (
            self.nodes.get(name.removeprefix(self.prefix)) if name.startswith(self.prefix) else None
        )
        if node is None:
            raise KeyError(f"The name '{name}' refers to an Operation not in the graph.")
        return GraphOperation(self, node)

    def get_tensor_by_name(self, name: str) -> GraphTensor:
        """A tensor, `node:0`.

        Raises:
          KeyError: when there is none of that name.
        """
        return GraphTensor(self, name)

    def as_graph_element(self, obj: Any, *_: Any, **__: Any) -> Any:
        """A tensor for `node:0`, a node for `node`; what is one already as it is."""
        if isinstance(obj, (GraphTensor, GraphOperation)):
            return obj
        return GraphTensor(self, obj) if ":" in obj else self.get_operation_by_name(obj)


def import_graph_def(
    graph_def: Any,
    input_map: Any = None,
    return_elements: Sequence[str] | None = None,
    name: str | None = None,
) -> Any:
    """Reads a graph, inside a function that `wrap_function` calls.

    Args:
      graph_def: a `tf.compat.v1.GraphDef`.
      input_map: not available: feed tensors by `prune`.
      return_elements: names of tensors and nodes to return.
      name: what is put before the names, with a slash; default "import".

    Raises:
      UnimplementedError: outside of such a function, or with an `input_map`.
    """
    graph = _importing.get()
    if graph is None or input_map:
        raise UnimplementedError(
            "tf.compat.v1.import_graph_def reads a graph inside of a function without arguments that is given to "
            "tf.compat.v1.wrap_function; its `prune(feeds, fetches)` gives a function of the graph's tensors."
        )
    prefix = "import" if name is None else name
    graph.take(graph_def, f"{prefix}/" if prefix else "")
    if return_elements is None:
        return None
    return [graph.as_graph_element(element) for element in return_elements]


def wrap_function(
    fn: Callable[[], Any], signature: Any, name: str | None = None
) -> WrappedFunction:
    """The graph that a function imports.

    Args:
      fn: calls `tf.compat.v1.import_graph_def`.
      signature: an empty list.
      name: ignored.

    Raises:
      UnimplementedError: for functions that take arguments or do other things of version 1: use `tf.function`.
    """
    graph = ImportedGraph()
    token = _importing.set(graph)
    try:
        if not signature:
            fn()
    finally:
        _importing.reset(token)
    if graph.as_graph_def() is None:
        raise UnimplementedError(
            "tf.compat.v1.wrap_function takes functions without arguments that import a graph: for others use "
            "tf.function."
        )
    return WrappedFunction(graph)


class WrappedFunction:
    """A graph, of which parts are functions.

    Attributes:
      graph: the graph.
    """

    def __init__(self, graph: ImportedGraph) -> None:
        self.graph = graph

    def prune(
        self, feeds: Any, fetches: Any, name: str | None = None, input_signature: Any = None
    ) -> PrunedFunction:
        """What computes some tensors of the graph from others.

        Args:
          feeds: tensors of the graph or their names, nested; the function takes them in their order, or by the names of
            their nodes.
          fetches: those that it returns, in the same structure.
          name: the function's name.
          input_signature: ignored.

        Raises:
          KeyError: for names that are not in the graph.
          UnimplementedError: when a variable is needed.
        """
        find = self.graph.as_graph_element
        return PrunedFunction(
            self.graph,
            nest.map_structure(find, feeds),
            nest.map_structure(find, fetches),
            name or "pruned",
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Nothing: what was imported is used by `prune`."""


class PrunedFunction:
    """A part of a graph: called with tensors, gives tensors.

    Attributes:
      graph: the graph.
      inputs: the graph's tensors that it takes.
      outputs: those that it returns.
      structured_outputs: the latter, nested as they were asked for.
    """

    def __init__(self, graph: ImportedGraph, feeds: Any, fetches: Any, name: str) -> None:
        self.graph, self.name, self.structured_outputs = graph, name, fetches
        self.inputs, self.outputs = nest.flatten(feeds), nest.flatten(fetches)
        self._names = [tensor.op.name for tensor in self.inputs]
        fed = [t.op._node.name for t in self.inputs]
        wanted = [(t.op._node.name, t.value_index) for t in self.outputs]
        specs = [TensorSpec(None, t.dtype) for t in self.outputs]
        structure = slots_of(nest.map_structure(lambda t: TensorSpec(None, t.dtype), fetches))[0]
        self._program = part_of_graph(
            name, graph.library, graph.nodes, fed, wanted, graph.variable, structure, specs
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the fetched tensors.

        Args:
          *args: values of the fed tensors in their order.
          **kwargs: values by the names of their nodes.

        Raises:
          TypeError: for another number of tensors, or other names.
        """
        whole = len(args) + len(kwargs) == len(self._names)
        flat = list(args) if whole else nest.flatten(args)
        names = self._names[len(flat) :]
        if len(flat) > len(self._names) or set(kwargs) != set(names):
            raise TypeError(
                f"{self.name} takes the tensors {self._names}, got {len(flat)} in their order and {sorted(kwargs)} by name."
            )
        given = [*flat, *(kwargs[n] for n in names)]
        tensors: list[Tensor] = [
            convert_to_tensor(value, dtype_hint=like.dtype)
            for value, like in zip(given, self.inputs, strict=True)
        ]
        return self._program.call(tensors)
