"""Import of TensorFlow's graphs into a graph: an operation for each node, which the interpreter of graphs runs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.tracing.trace import TensorSlot, init_scope
from meshflow.core.values.dtypes import DType, float32
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.keras.engine.layer.shape_inference import infer_op_outputs
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.legacy.graph.calls import fill_ranks
from meshflow.legacy.graph.execution import Run, suspend_recording
from meshflow.legacy.graph.graph import Graph
from meshflow.legacy.graph.operations import Operation, SymbolicTensor
from meshflow.saved_model.graph.format.messages import Message
from meshflow.saved_model.graph.format.node_attributes import (
    GraphNode,
    parse_reference,
    parse_shape,
)
from meshflow.saved_model.graph.format.nodes import parse_dtype_enum
from meshflow.saved_model.graph.reading.graph_programs import GraphProgram
from meshflow.saved_model.graph.reading.interpreter import (
    FunctionLibrary,
    GraphRun,
    list_output_names,
)
from meshflow.saved_model.graph.reading.subgraphs import VARIABLE_OPS

__all__ = ["import_nodes"]

# Attributes with the dtypes of all outputs, and with that of each output.
_TYPE_LISTS = ("Tout", "output_types", "out_types", "dtypes", "component_types")
_TYPES = ("dtype", "DstT", "out_type", "output_type", "T", "Tparams", "DstT")
# Attributes with the number of outputs.
_COUNTS = {"Split": "num_split", "SplitV": "num_split", "Unpack": "num", "Unstack": "num"}


class _ImportedTensor(SymbolicTensor):
    """Output of a node; its shape is inferred at the first use."""

    __slots__ = ("_infer", "_known")

    def __init__(
        self, op: Operation, value_index: int, infer: Callable[[], list[KerasTensor]]
    ) -> None:
        self._infer = infer
        self._known: KerasTensor | None = None
        super().__init__(op, value_index, None, None)  # type: ignore[arg-type]

    @property
    def symbol(self) -> KerasTensor:
        """Return the shape and dtype."""
        if self._known is None:
            self._known = self._infer()[self.value_index]
        return self._known

    @symbol.setter
    def symbol(self, value: KerasTensor | None) -> None:
        self._known = value


def import_nodes(
    graph: Graph,
    definition: Message,
    prefix: str = "",
    input_map: Mapping[str, Any] | None = None,
    find_variable: Callable[[GraphNode], Variable] | None = None,
) -> dict[str, Any]:
    """Add the nodes of a `GraphDef` to a graph.

    Args:
      graph: The graph.
      definition: The `GraphDef`.
      prefix: Prefix of the names, which ends with a slash or is empty.
      input_map: Tensors that replace outputs of nodes, by their names, as "node:0".
      find_variable: Function that returns the variable of a variable node. By default, such nodes cannot run.

    Returns:
      The operations by the names of the nodes, and the replaced tensors by the names in `input_map`.
    """
    return _Importer(graph, definition, prefix, input_map or {}, find_variable).run()


@contextlib.contextmanager
def create_outside_of_graphs() -> Iterator[None]:
    """Run a block at once; its variables belong to no graph, so that all sessions share their values."""
    saved, context.variable_creators = context.variable_creators, []
    try:
        with suspend_recording():
            yield
    finally:
        context.variable_creators = saved


class _Importer:
    """State of one import; see `import_nodes`."""

    def __init__(
        self,
        graph: Graph,
        definition: Message,
        prefix: str,
        input_map: Mapping[str, Any],
        find_variable: Callable[[GraphNode], Variable] | None,
    ) -> None:
        self._graph, self._prefix = graph, prefix
        self._nodes = {n.name: GraphNode(n) for n in definition.node}
        self._library = FunctionLibrary(definition.library.function)
        self._replaced = {_complete(k): v for k, v in input_map.items()}
        self._find_variable = find_variable
        self._variables: dict[str, Variable] = {}
        self._operations: dict[str, Operation] = {}
        # The number of outputs that other nodes read.
        self._counts: dict[str, int] = {}
        for node in self._nodes.values():
            for name, _, index in node.inputs:
                self._counts[name] = max(self._counts.get(name, 0), index + 1)

    def run(self) -> dict[str, Any]:
        with init_scope(), self._graph.as_default(), self._graph.control_dependencies(None):
            for name in self._nodes:
                self._add_with_inputs(name)
        return {**self._operations, **self._replaced}

    def _add_with_inputs(self, name: str) -> None:
        pending = [name]
        opened: set[str] = set()
        while pending:
            found = pending[-1]
            if found in self._operations or found not in self._nodes:
                pending.pop()
                continue
            node = self._nodes[found]
            needed = [n for n, _, i in node.inputs if f"{n}:{i}" not in self._replaced]
            missing = [
                n
                for n in (*needed, *node.control_inputs)
                if n not in self._operations and n in self._nodes
            ]
            # The nodes of loops of TensorFlow 1 depend on their own results, and cannot run.
            if missing and found not in opened:
                opened.add(found)
                pending += missing
                continue
            self._operations[found] = self._add(node)
            pending.pop()

    def _add(self, node: GraphNode) -> Operation:
        graph, name = self._graph, f"{self._prefix}{node.name}/"
        if node.op in VARIABLE_OPS and self._find_variable is not None:
            return self._add_variable(node, name)
        if node.op == "Placeholder":
            shape = node["shape"] if "shape" in node.proto.attr else None
            return graph.make_placeholder(_get_dtype(node), shape, name).op
        if node.op == "Const":
            with suspend_recording():
                value = Tensor(np.asarray(node["value"]))
            return graph.make_constant(value, name).op
        references = [r for r in node.inputs if r[0] not in self._variables]
        inputs = [t for t in map(self._find_input, references) if t is not None]
        variables = list(dict.fromkeys(n for n, _, _ in node.inputs if n in self._variables))
        count = self._count_outputs(node)
        program = self._make_program(node, references, variables, count)

        def compute(run: Run) -> Sequence[Any]:
            return list(program.call([run.read(t) for t in inputs]))

        controls = [self._operations[n] for n in node.control_inputs if n in self._operations]
        operation = Operation(graph, graph.name_operation(name), node.op, compute, inputs, controls)
        operation.variables = [self._variables[n] for n in variables]
        infer = functools.cache(lambda: _infer_specs(node, program, inputs, count))
        operation.outputs = [_ImportedTensor(operation, i, infer) for i in range(count)]
        for tensor in inputs:
            tensor.add_reader(operation)
        return operation

    def _add_variable(self, node: GraphNode, name: str) -> Operation:
        assert self._find_variable is not None
        with create_outside_of_graphs():
            variable = self._variables[node.name] = self._find_variable(node)
        graph = self._graph
        operation = Operation(
            graph, graph.name_operation(name), node.op, lambda run: [variable._as_tensor()], ()
        )
        operation.add_output(TensorSpec(variable.shape, variable.dtype))
        return operation

    def _find_input(self, reference: tuple[str, str, int]) -> SymbolicTensor | None:
        name, _, index = reference
        replaced = self._replaced.get(f"{name}:{index}")
        if replaced is not None:
            tensor: SymbolicTensor = self._graph.as_graph_element(replaced, allow_operation=False)
            return tensor
        operation = self._operations.get(name)
        return None if operation is None else operation.outputs[index]

    def _count_outputs(self, node: GraphNode) -> int:
        attributes = node.proto.attr
        lists = [len(attributes[k].list.type) for k in _TYPE_LISTS if k in attributes]
        if node.op == "IdentityN":
            lists.append(len(attributes["T"].list.type))
        if node.op in _COUNTS:
            lists.append(attributes[_COUNTS[node.op]].i)
        if "_output_shapes" in attributes:
            lists.append(len(attributes["_output_shapes"].list.shape))
        named = len(list_output_names(node.op))
        return max(lists or [named or 1, self._counts.get(node.name, 0)])

    def _make_program(
        self, node: GraphNode, references: list[Any], variables: list[str], count: int
    ) -> GraphProgram:
        """Return the program of one node, as a function of its inputs."""
        has_values = [self._nodes[n].op != "VarHandleOp" for n in variables]

        def body(run: GraphRun, values: list[Any]) -> list[Any]:
            found: dict[str, Any] = {}
            for (name, _, index), value in zip(references, values, strict=False):
                found.setdefault(name, {})[index] = value
            for name, ref, has_value in zip(
                variables, values[len(references) :], has_values, strict=True
            ):
                found[name] = {0: run.read(ref) if has_value else ref}
            run.evaluate({node.name: node}, found, [node.name], node.name)
            return list(found[node.name])

        captured = [self._variables[n] for n in variables]
        slots = [TensorSlot(i) for i in range(count)]
        specs = [TensorSpec(None, float32)] * count
        host = self._library.needs_host([node])
        return GraphProgram(node.name, self._library, body, captured, slots, specs, host)


def _infer_specs(
    node: GraphNode, program: GraphProgram, inputs: list[SymbolicTensor], count: int
) -> list[KerasTensor]:
    """Return the shapes and dtypes of the outputs of a node; unknown ones if they cannot be inferred."""
    attributes = node.proto.attr
    if "_output_shapes" in attributes:
        shapes = [parse_shape(s) for s in attributes["_output_shapes"].list.shape]
        return [KerasTensor(TensorSpec(s, _get_dtype(node, i))) for i, s in enumerate(shapes)]

    def call(*values: PyTree) -> list[Any]:
        return list(program.call(list(values)))

    with suspend_recording():
        for symbols in fill_ranks(inputs):
            try:
                found = list(infer_op_outputs(call, tuple(symbols), {}))
            except Exception:
                continue
            if all(t.shape.rank is not None for t in inputs):
                return found
            return [KerasTensor(TensorSpec(None, t.dtype)) for t in found]
    return [KerasTensor(TensorSpec(None, _get_dtype(node, i))) for i in range(count)]


def _get_dtype(node: GraphNode, index: int = 0) -> DType:
    """Return the dtype of an output that the attributes of a node declare, or float32."""
    attributes = node.proto.attr
    for key in (*_TYPE_LISTS, "T"):
        types = attributes[key].list.type if key in attributes else ()
        if index < len(types):
            return parse_dtype_enum(types[index])
    for key in _TYPES:
        if key in attributes and attributes[key].type:
            return parse_dtype_enum(attributes[key].type)
    return float32


def _complete(name: str) -> str:
    """Return the name of a tensor with its index."""
    node, _, index = parse_reference(name)
    return f"{node}:{index}"
