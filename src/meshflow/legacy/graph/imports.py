"""Import of TensorFlow's graphs into a graph: an operation for each node, which the interpreter of graphs runs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.tracing.trace import TensorSlot, init_scope
from meshflow.core.values.dtypes import DType, float32
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import PyTree
from meshflow.keras.engine.layer.shape_inference import infer_op_outputs
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.legacy.graph.calls import fill_ranks
from meshflow.legacy.graph.execution import Run, suspend_recording
from meshflow.legacy.graph.graph import Graph
from meshflow.legacy.graph.operations import Operation, SymbolicTensor
from meshflow.legacy.graph.variables import ImportedVariable, initialize
from meshflow.saved_model.graph.format.messages import Message, NodeDef
from meshflow.saved_model.graph.format.node_attributes import (
    GraphNode,
    parse_reference,
    parse_shape,
)
from meshflow.saved_model.graph.format.nodes import parse_dtype_enum
from meshflow.saved_model.graph.ops.gradients import UPDATE_OPS
from meshflow.saved_model.graph.reading.graph_programs import GraphProgram
from meshflow.saved_model.graph.reading.interpreter import (
    FunctionLibrary,
    GraphRun,
    list_output_names,
)
from meshflow.saved_model.graph.reading.subgraphs import VARIABLE_OPS

# Attributes with the dtypes of all outputs, and with that of each output.
_TYPE_LISTS = ("Tout", "output_types", "out_types", "dtypes", "component_types")
_TYPES = ("dtype", "DstT", "out_type", "output_type", "T", "Tparams")
# Attributes with the number of outputs.
_COUNTS = {"Split": "num_split", "SplitV": "num_split", "Unpack": "num", "Unstack": "num"}
# Damaged messages may declare any number of outputs.
_MAX_OUTPUTS = 1 << 16
_INITIALIZERS = ("Assign", "AssignVariableOp")
_INITIALIZED_PREDICATES = ("IsVariableInitialized", "VarIsInitializedOp")
# Ops that write variables, by their names for variables that are values.
_UPDATES = {
    "AssignAdd": "AssignAddVariableOp",
    "AssignSub": "AssignSubVariableOp",
    **{op.removeprefix("Resource"): op for op in UPDATE_OPS},
}
_OPS_WITHOUT_OUTPUTS = {"Assert", "AssignVariableOp", "NoOp", "SaveV2", *_UPDATES.values()}
_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")


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
        # A loop instead of recursion: a graph may be deeper than Python's stack.
        pending = [] if self._known is not None else [self]
        while pending:
            tensor = pending[-1]
            inputs = [t for t in tensor.op.inputs if isinstance(t, _ImportedTensor)]
            unknown = [t for t in inputs if t._known is None]
            if not unknown:
                tensor._known = pending.pop()._infer()[tensor.value_index]
            pending += unknown
        assert self._known is not None
        return self._known

    @symbol.setter
    def symbol(self, value: KerasTensor | None) -> None:
        self._known = value


def import_nodes(
    graph: Graph, definition: Message, prefix: str, input_map: Mapping[str, Any]
) -> dict[str, Any]:
    """Add the nodes of a `GraphDef` to a graph.

    Args:
      graph: The graph.
      definition: The `GraphDef`.
      prefix: Prefix of the names, which ends with a slash or is empty.
      input_map: Tensors that replace outputs of nodes, by their names, as "node:0".

    Returns:
      The operations by the names of the nodes, and the replacing tensors by the names of outputs, with the index.

    Raises:
      ValueError: If names are not valid or not unique, nodes form a cycle, or an input does not exist.
    """
    return _Importer(graph, definition, prefix, input_map).run()


class _Importer:
    """State of one import; see `import_nodes`."""

    def __init__(
        self, graph: Graph, definition: Message, prefix: str, input_map: Mapping[str, Any]
    ) -> None:
        self._graph, self._prefix = graph, prefix
        self._nodes: dict[str, GraphNode] = {}
        self._library = FunctionLibrary(definition.library.function)
        self._replaced: dict[str, SymbolicTensor] = {
            _complete(k): graph.as_graph_element(v, allow_operation=False)
            for k, v in input_map.items()
        }
        self._operations: dict[str, Operation] = {}
        self._variables: dict[str, ImportedVariable] = {}
        # The number of outputs that other nodes read.
        self._counts: dict[str, int] = {}
        existing = {o.name for o in graph.get_operations()}
        for proto in definition.node:
            name = proto.name
            if not _NAME.fullmatch(name):
                raise ValueError(f"Node {name!r}: Node name contains invalid characters.")
            if name in self._nodes:
                raise ValueError(f"Node {name!r} is not unique.")
            if prefix + name in existing:
                raise ValueError(f"Node name {prefix + name!r} already exists in the Graph.")
            self._nodes[name] = GraphNode(proto)
            for source, _, index in self._nodes[name].inputs:
                self._counts[source] = max(self._counts.get(source, 0), index + 1)
        unknown = [
            k for k in self._replaced if k.partition(":")[0] not in {*self._nodes, *self._counts}
        ]
        if unknown:
            raise ValueError(
                f"Attempted to map inputs that were not found in graph_def: [{', '.join(unknown)}]"
            )

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
            if found in self._operations:
                pending.pop()
                continue
            missing = [n for n in self._list_sources(found) if n not in self._operations]
            if not missing:
                self._operations[found] = operation = self._add(self._nodes[found])
                for source in self._nodes[found].control_inputs:
                    operation._add_control_input(self._operations[source])
            elif found in opened:
                raise ValueError(
                    f"Node {found!r} depends on its own result: the nodes form a cycle."
                )
            opened.add(found)
            pending += missing

    def _list_sources(self, name: str) -> list[str]:
        """Return the nodes that a node needs, except for that of the next iteration of a loop of TensorFlow 1."""
        node = self._nodes[name]
        sources = [n for n, _, i in node.inputs if f"{n}:{i}" not in self._replaced]
        sources += node.control_inputs
        for source in sources:
            if source not in self._nodes:
                raise ValueError(f"Node {name!r}: Unknown input node {source!r}.")
        if node.op == "Merge":
            return [n for n in sources if self._nodes[n].op != "NextIteration"]
        return sources

    def _add(self, node: GraphNode) -> Operation:
        graph, name = self._graph, f"{self._prefix}{node.name}/"
        if node.op == "Placeholder":
            shape = node["shape"] if "shape" in node.proto.attr else None
            return graph.make_placeholder(_get_dtype(node), shape, name).op
        if node.op == "Const":
            with suspend_recording():
                value = Tensor(np.asarray(node["value"]))
            return graph.make_constant(value, name).op
        if node.op in VARIABLE_OPS:
            found = ImportedVariable(
                graph,
                graph.name_operation(name),
                node.op,
                TensorShape(node["shape"]),
                _get_dtype(node),
            )
            graph.add_variable(found)
            self._variables[node.name] = found
            return found.op
        # The next iteration of a loop of TensorFlow 1 is missing; such nodes cannot run.
        references = [r for r in node.inputs if self._is_known(r)]
        held = [self._find_variable(r) for r in references]
        # Variables are no inputs, because their operations would read values that they may not have.
        pairs = zip(references, held, strict=True)
        arguments = [self._find_input(node, *r) for r, v in pairs if v is None]
        count = self._count_outputs(node)
        program = self._make_program(node, references, held, count)

        def compute(run: Run) -> Sequence[Any]:
            values = [run.read(t) for t in arguments]
            variables = operation.variables
            if node.op in _INITIALIZERS and variables:
                return [initialize(variables[0], values[0])][:count]
            if node.op in _INITIALIZED_PREDICATES and variables:
                return [Tensor(np.array(variables[0].is_set))]
            for variable in variables:
                variable.check_set()
            return list(program.call(values))

        operation = Operation(graph, graph.name_operation(name), node.op, compute, arguments)
        operation.variables = [v for v in held if v is not None]
        infer = functools.cache(lambda: _infer_specs(node, program, arguments, count))
        operation.outputs = [_ImportedTensor(operation, i, infer) for i in range(count)]
        for tensor in arguments:
            tensor.add_reader(operation)
        return operation

    def _find_variable(self, reference: tuple[str, str, int]) -> ImportedVariable | None:
        """Return the variable that an input refers to."""
        name, _, index = reference
        return None if f"{name}:{index}" in self._replaced else self._variables.get(name)

    def _is_known(self, reference: tuple[str, str, int]) -> bool:
        name, _, index = reference
        return name in self._operations or f"{name}:{index}" in self._replaced

    def _find_input(self, node: GraphNode, name: str, part: str, index: int) -> SymbolicTensor:
        replaced = self._replaced.get(f"{name}:{index}")
        if replaced is not None:
            return replaced
        outputs = self._operations[name].outputs
        if not 0 <= index < len(outputs):
            raise ValueError(
                f"Node {node.name!r}: Connecting to invalid output {index} of source node {name} which has "
                f"{len(outputs)} outputs."
            )
        tensor: SymbolicTensor = outputs[index]
        return tensor

    def _count_outputs(self, node: GraphNode) -> int:
        if node.op in _OPS_WITHOUT_OUTPUTS:
            return 0
        attributes = node.proto.attr
        lists = [len(attributes[k].list.type) for k in _TYPE_LISTS if k in attributes]
        if node.op == "IdentityN":
            lists.append(len(attributes["T"].list.type))
        if node.op in _COUNTS:
            lists.append(attributes[_COUNTS[node.op]].i)
        if "_output_shapes" in attributes:
            lists.append(len(attributes["_output_shapes"].list.shape))
        named = len(list_output_names(node.op))
        count = max(lists or [named or 1, self._counts.get(node.name, 0)])
        if count > _MAX_OUTPUTS:
            raise ValueError(f"Node {node.name!r} has {count} outputs, more than {_MAX_OUTPUTS}.")
        return count

    def _make_program(
        self,
        node: GraphNode,
        references: list[tuple[str, str, int]],
        held: list[ImportedVariable | None],
        count: int,
    ) -> GraphProgram:
        """Return the program of one node, as a function of its inputs that are not variables."""
        update = _UPDATES.get(node.op)
        # Updates run as ops of resource variables, which have no results: the program returns the new value.
        evaluated = node if update is None else _rename_op(node, update)
        num_arguments = held.count(None)

        def body(run: GraphRun, values: list[Any]) -> list[Any]:
            arguments, variables = iter(values[:num_arguments]), iter(values[num_arguments:])
            found: dict[str, Any] = {}
            for (name, _, index), variable in zip(references, held, strict=True):
                value = next(arguments if variable is None else variables)
                if variable is not None and not update and variable.op.type != "VarHandleOp":
                    value = run.read(value)
                found.setdefault(name, {})[index] = value
            run.evaluate({node.name: evaluated}, found, [node.name], node.name)
            if update:
                return [run.read(values[num_arguments])]
            return list(found[node.name])

        slots = [TensorSlot(i) for i in range(count)]
        specs = [TensorSpec(None, float32)] * count
        host = self._library.needs_host([node])
        captured = [v for v in held if v is not None]
        return GraphProgram(node.name, self._library, body, captured, slots, specs, host)


def _rename_op(node: GraphNode, op: str) -> GraphNode:
    """Return a copy of a node with another op."""
    renamed = NodeDef()
    renamed.CopyFrom(node.proto)
    renamed.op = op
    return GraphNode(renamed)


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
