"""Frozen graphs, which hold variables as constants, and functions made of parts of them.

`wrap_function` calls a function that imports a graph by `import_graph_def`. The `prune` method of
the result makes a function that computes some tensors of the graph from others.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshflow.core.config.graph_mode import GraphBase, Operation
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, as_dtype
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.saved_model.graph.format.messages import Message
from meshflow.saved_model.graph.format.node_attributes import GraphNode, parse_reference
from meshflow.saved_model.graph.format.nodes import parse_dtype_enum
from meshflow.saved_model.graph.reading.graph_programs import make_result_slots
from meshflow.saved_model.graph.reading.interpreter import FunctionLibrary
from meshflow.saved_model.graph.reading.subgraphs import extract_subgraph

_current_import: contextvars.ContextVar[ImportedGraph | None] = contextvars.ContextVar(
    "importing", default=None
)


class GraphOperation(Operation):
    """Node of an imported graph.

    Attributes:
      name: Name of the node, with the prefix of the import.
      type: TensorFlow's op.
    """

    def __init__(self, graph: ImportedGraph, node: GraphNode) -> None:
        self.graph, self.node_def, self.graph_node = graph, node.proto, node
        self.name, self.type = graph.prefix + node.name, node.op

    def get_attr(self, name: str) -> Any:
        """Return an attribute of the node."""
        value = self.graph_node[name]
        return parse_dtype_enum(value) if name in ("T", "dtype", "SrcT", "DstT") else value

    @property
    def inputs(self) -> tuple[GraphTensor, ...]:
        """Return the input tensors."""
        prefix = self.graph.prefix
        return tuple(
            GraphTensor(self.graph, f"{prefix}{n}:{i}") for n, _, i in self.graph_node.inputs
        )

    @property
    def outputs(self) -> list[GraphTensor]:
        """Return the output tensors; only the first one if the graph does not have their shapes."""
        shapes = self.node_def.attr["_output_shapes"].list.shape if self._has_shapes else [None]
        return [GraphTensor(self.graph, f"{self.name}:{i}") for i in range(len(shapes))]

    @property
    def control_inputs(self) -> list[GraphOperation]:
        """Return the operations that must run before this one."""
        names = [n[1:] for n in self.node_def.input if n.startswith("^")]
        return [self.graph.get_operation_by_name(self.graph.prefix + n) for n in names]

    @property
    def device(self) -> str:
        """Return the device of the node, or an empty string."""
        return self.node_def.device

    @property
    def _has_shapes(self) -> bool:
        return "_output_shapes" in self.node_def.attr

    def __repr__(self) -> str:
        return f"<tf.Operation '{self.name}' type={self.type}>"


class GraphTensor:
    """Output tensor of a node of an imported graph.

    Attributes:
      name: Name of the node and index of the output, as "node:0".
    """

    def __init__(self, graph: ImportedGraph, name: str) -> None:
        node, _, self.value_index = parse_reference(name)
        self.graph, self.op = graph, graph.get_operation_by_name(node)
        self.name = f"{node}:{self.value_index}"

    @property
    def dtype(self) -> DType:
        """Return the dtype in the attributes of the node, or float32 if there is none."""
        if "_output_types" in self.op.node_def.attr:
            return parse_dtype_enum(
                self.op.node_def.attr["_output_types"].list.type[self.value_index]
            )
        for key in ("dtype", "DstT", "T", "Tparams"):
            if key in self.op.node_def.attr:
                return parse_dtype_enum(self.op.node_def.attr[key].type)
        return as_dtype("float32")

    @property
    def shape(self) -> TensorShape:
        """Return the shape in the attributes of the node, or an unknown shape."""
        attributes = self.op.node_def.attr
        if self.op._has_shapes:
            shape = attributes["_output_shapes"].list.shape[self.value_index]
            return TensorShape(
                None if shape.unknown_rank else [None if d.size < 0 else d.size for d in shape.dim]
            )
        return TensorShape(self.op.get_attr("shape") if "shape" in attributes else None)

    def consumers(self) -> list[GraphOperation]:
        """Return the operations that take the tensor as an input."""
        operations = self.graph.get_operations()
        return [op for op in operations if any(t.name == self.name for t in op.inputs)]

    def __repr__(self) -> str:
        return f"<tf.Tensor '{self.name}' shape={self.shape} dtype={self.dtype.name}>"


class ImportedGraph(GraphBase):
    """Graph that was imported.

    Args:
      variable: Function that returns the variable of a variable node. Default: reading variables
        fails.

    Attributes:
      prefix: Prefix of all node names.
    """

    def __init__(self, variable: Callable[[GraphNode], Variable] | None = None) -> None:
        super().__init__()
        self.prefix, self._get_variable = "", variable
        self._definition: Message | None = None
        self.nodes: dict[str, GraphNode] = {}
        self.library = FunctionLibrary([])

    def load_definition(self, definition: Message, prefix: str) -> None:
        """Import a `GraphDef`, with a prefix for the names of its nodes."""
        if self._definition is not None:
            raise UnimplementedError(
                "tf.compat.v1.wrap_function: a function can import only one graph, and this one imports several."
            )
        self._definition, self.prefix = definition, prefix
        self.nodes = {n.name: GraphNode(n) for n in definition.node}
        self.library = FunctionLibrary(definition.library.function)

    def get_variable(self, node: GraphNode) -> Variable:
        """Return the variable of a variable node.

        Raises:
          UnimplementedError: If the graph is not part of a SavedModel.
        """
        if self._get_variable is None:
            raise UnimplementedError(
                f"The graph has variables, whose values are not in it: {node.name}. Freeze it first, or load the SavedModel."
            )
        return self._get_variable(node)

    def as_graph_def(self, from_version: object = None, add_shapes: bool = False) -> Message | None:
        """Return the `GraphDef`, or None if nothing was imported. The arguments are ignored."""
        return self._definition

    def get_operations(self) -> list[GraphOperation]:
        """Return all nodes."""
        return [GraphOperation(self, node) for node in self.nodes.values()]

    def get_operation_by_name(self, name: str) -> GraphOperation:
        """Return the node with a name.

        Raises:
          KeyError: If there is no such node.
        """
        node = (
            self.nodes.get(name.removeprefix(self.prefix)) if name.startswith(self.prefix) else None
        )
        if node is None:
            raise KeyError(f"The name '{name}' refers to an Operation not in the graph.")
        return GraphOperation(self, node)

    def get_tensor_by_name(self, name: str) -> GraphTensor:
        """Return the tensor with a name such as "node:0".

        Raises:
          KeyError: If the graph has no such node.
        """
        return GraphTensor(self, name)

    def as_graph_element(
        self, obj: str | GraphTensor | GraphOperation, *_: Any, **__: Any
    ) -> GraphTensor | GraphOperation:
        """Return the tensor for "node:0", or the node for "node"; return other objects unchanged."""
        if isinstance(obj, (GraphTensor, GraphOperation)):
            return obj
        return GraphTensor(self, obj) if ":" in obj else self.get_operation_by_name(obj)


def import_graph_def(
    graph_def: Message,
    input_map: Mapping[str, Any] | None = None,
    return_elements: Sequence[str] | None = None,
    name: str | None = None,
) -> list[GraphTensor | Tensor | Operation] | None:
    """Import a graph into the graph of the context, or in a function that `wrap_function` calls.

    Args:
      graph_def: A `tf.compat.v1.GraphDef`.
      input_map: Tensors that replace outputs of nodes, by name. Not supported in a function.
      return_elements: Names of the tensors and nodes to return. Default: return None.
      name: Prefix of all names, without the slash. Default: "import".

    Raises:
      UnimplementedError: If it is called outside such a function, or with an `input_map`.
    """
    graph = _current_import.get()
    if graph is None and context.graph is not None and context.trace is None:
        recorder: Any = context.graph
        elements: list[Any] | None = recorder.import_graph_def(
            graph_def, input_map, return_elements, name
        )
        return elements
    if graph is None or input_map:
        raise UnimplementedError(
            "tf.compat.v1.import_graph_def can only be called in a tf.Graph or, without input_map, in a function without "
            "arguments that is passed to tf.compat.v1.wrap_function. Feed tensors by the `prune(feeds, fetches)` method of "
            "its result."
        )
    prefix = "import" if name is None else name
    graph.load_definition(graph_def, f"{prefix}/" if prefix else "")
    if return_elements is None:
        return None
    return [graph.as_graph_element(element) for element in return_elements]


def find_import(fn: Callable[[], object]) -> WrappedFunction | None:
    """Run a function, and return the graph that it imports by `tf.compat.v1.import_graph_def`, or None."""
    graph = ImportedGraph()
    token = _current_import.set(graph)
    try:
        fn()
    finally:
        _current_import.reset(token)
    return None if graph.as_graph_def() is None else WrappedFunction(graph)


class WrappedFunction:
    """Imported graph with a method that makes functions of parts of it.

    Attributes:
      graph: The graph.
    """

    def __init__(self, graph: ImportedGraph) -> None:
        self.graph = graph

    def prune(
        self,
        feeds: PyTree,
        fetches: PyTree,
        name: str | None = None,
        input_signature: object = None,
    ) -> PrunedFunction:
        """Make a function that computes some tensors of the graph from others.

        Args:
          feeds: Nested tensors of the graph or their names. The function takes their values by
            position, or by the names of the nodes.
          fetches: Nested tensors to return.
          name: Name of the function, for errors.
          input_signature: Ignored.

        Raises:
          KeyError: If the graph does not have one of the tensors.
          UnimplementedError: If the value of a variable is required.
        """
        find = self.graph.as_graph_element
        return PrunedFunction(
            self.graph,
            nest.map_structure(find, feeds),
            nest.map_structure(find, fetches),
            name or "pruned",
        )

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the imported graph is only used through `prune`."""


class PrunedFunction:
    """Function that computes some tensors of an imported graph from others.

    Attributes:
      graph: The graph.
      inputs: Tensors of the graph that the function takes the values of.
      outputs: Tensors that the function returns.
      structured_outputs: The same tensors, nested as they were requested.
    """

    def __init__(self, graph: ImportedGraph, feeds: PyTree, fetches: PyTree, name: str) -> None:
        self.graph, self.name, self.structured_outputs = graph, name, fetches
        self.inputs: list[GraphTensor] = nest.flatten(feeds)
        self.outputs: list[GraphTensor] = nest.flatten(fetches)
        self._names = [tensor.op.name for tensor in self.inputs]
        fed = [t.op.graph_node.name for t in self.inputs]
        fetched = [(t.op.graph_node.name, t.value_index) for t in self.outputs]
        specs = [TensorSpec(None, t.dtype) for t in self.outputs]
        structure = make_result_slots(
            nest.map_structure(lambda t: TensorSpec(None, t.dtype), fetches)
        )[0]
        self._program = extract_subgraph(
            name, graph.library, graph.nodes, fed, fetched, graph.get_variable, structure, specs
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the fetched tensors.

        Args:
          *args: Values of the fed tensors, in their order.
          **kwargs: Values by the names of the nodes.

        Raises:
          TypeError: If the number of values or a name does not match.
        """
        is_flat = len(args) + len(kwargs) == len(self._names)
        flat = list(args) if is_flat else nest.flatten(args)
        names = self._names[len(flat) :]
        if len(flat) > len(self._names) or set(kwargs) != set(names):
            raise TypeError(
                f"{self.name} takes the tensors {self._names}, got {len(flat)} values by position and {sorted(kwargs)} by "
                "name."
            )
        values = [*flat, *(kwargs[n] for n in names)]
        tensors: list[Tensor] = [
            convert_to_tensor(value, dtype_hint=tensor.dtype)
            for value, tensor in zip(values, self.inputs, strict=True)
        ]
        return self._program.call(tensors)
