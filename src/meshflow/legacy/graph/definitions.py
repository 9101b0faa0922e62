"""`GraphDef`s of graphs: a description of the operations, and frozen graphs that other programs can run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.legacy.graph.execution import Run, sort_operations, suspend_recording
from meshflow.legacy.graph.graph import Graph
from meshflow.legacy.graph.imports import import_nodes
from meshflow.legacy.graph.operations import Operation, SymbolicTensor
from meshflow.legacy.graph.sessions import Session
from meshflow.saved_model.graph.format.messages import GraphDef, Message
from meshflow.saved_model.graph.format.nodes import (
    add_node,
    make_shape,
    make_shape_list,
    make_tensor,
    make_type_list,
    to_dtype_enum,
)
from meshflow.saved_model.graph.writing.frozen_graphs import make_frozen_graph

_PLACEHOLDERS = ("Placeholder", "PlaceholderWithDefault")
# Constants with more elements have no value in a description.
_MAX_ELEMENTS = 1 << 16


def describe_graph(graph: Graph) -> Message:
    """Return the operations of a graph as a `GraphDef`, with their types, inputs, shapes and dtypes.

    The nodes describe the calls of functions, without all of their arguments; see `freeze_graph` for nodes that run.
    """
    definition = GraphDef()
    definition.versions.producer = 1645
    for operation in graph.get_operations():
        inputs = [t.name.removesuffix(":0") for t in operation.inputs]
        inputs += [f"^{o.name}" for o in operation.control_inputs]
        outputs = operation.outputs
        attributes: dict[str, Any] = {
            "_output_shapes": make_shape_list([_list_sizes(t) for t in outputs]),
            "_output_types": make_type_list([to_dtype_enum(t.dtype) for t in outputs]),
        }
        typed = [*operation.inputs, *outputs]
        if operation.type in (*_PLACEHOLDERS, "Const", "VarHandleOp") and outputs:
            attributes["dtype"] = as_dtype(outputs[0].dtype)
        elif typed:
            attributes["T"] = as_dtype(typed[0].dtype)
        if operation.type in (*_PLACEHOLDERS, "VarHandleOp") and outputs:
            attributes["shape"] = make_shape(_list_sizes(outputs[0]))
        value = outputs[0].find_known_value() if operation.type == "Const" and outputs else None
        if value is not None and value.size <= _MAX_ELEMENTS:
            attributes["value"] = make_tensor(value)
        add_node(definition.node, operation.name, operation.type, inputs, **attributes)
        definition.node[-1].device = operation.device
    return definition


def freeze_graph(
    session: Session, outputs: Iterable[Operation], inputs: Iterable[SymbolicTensor] = ()
) -> Message:
    """Return a `GraphDef` that computes the results of operations, with the values of variables as constants.

    It has the placeholders that the results depend on, one node for the program, and the operations.

    Args:
      session: The session that holds the values of variables.
      outputs: The operations.
      inputs: Other placeholders that the result has, and tensors that are replaced by placeholders.

    Raises:
      UnimplementedError: If the operations use strings.
    """
    roots, fed = list(outputs), {id(t): t for t in inputs}
    operations = sort_operations(roots, fed)
    for operation in operations:
        if operation.type in _PLACEHOLDERS:
            fed.setdefault(id(operation.outputs[0]), operation.outputs[0])
    operations = [o for o in operations if not o.outputs or id(o.outputs[0]) not in fed]
    results = [t for o in roots for t in o.outputs[:1]]

    def call(*values: Tensor) -> list[Any]:
        run = Run(dict(zip(fed, values, strict=True)))
        run.execute(operations)
        return [run.read(t) for t in results]

    with suspend_recording(), session.hold_variables():
        triples = [
            (t.op.name, TensorSpec(t.shape, t.dtype), _find_default(t)) for t in fed.values()
        ]
        return make_frozen_graph(call, triples, [t.op.name for t in results])


def _find_default(tensor: SymbolicTensor) -> np.ndarray | None:
    """Return the default value of a placeholder, or None."""
    if tensor.op.type != "PlaceholderWithDefault":
        return None
    return np.asarray(tensor.op.compute(Run({}))[0].array)


def _list_sizes(tensor: SymbolicTensor) -> list[Any] | None:
    return None if tensor.shape.rank is None else tensor.shape.as_list()


def import_graph_def(
    graph: Graph,
    graph_def: Message,
    input_map: dict[str, Any] | None = None,
    return_elements: Sequence[str] | None = None,
    name: str | None = None,
) -> list[Any] | None:
    """Add the nodes of a `GraphDef` to a graph; see `tf.import_graph_def`."""
    if not hasattr(graph_def, "node"):
        raise TypeError("Argument `graph_def` must be a GraphDef proto.")
    prefix = f"{graph.unique_name('import' if name is None else name)}/" if name != "" else ""
    found = import_nodes(graph, graph_def, prefix, input_map or {})
    if return_elements is None:
        return None
    results: list[Any] = []
    for element in return_elements:
        node, colon, index = element.partition(":")
        if element in found:
            results.append(found[element])
            continue
        outputs = found[node].outputs if colon and node in found else []
        if not index.isdecimal() or int(index) >= len(outputs):
            raise ValueError(f"Requested return_element {element!r} not found in graph_def.")
        results.append(outputs[int(index)])
    return results


def convert_variables_to_constants(
    sess: Session,
    input_graph_def: Message | None,
    output_node_names: Sequence[str],
    variable_names_whitelist: object = None,
    variable_names_blacklist: object = None,
) -> Message:
    """Return a `GraphDef` of operations of a session, with the values of variables as constants; see `freeze_graph`.

    Args:
      sess: The session.
      input_graph_def: Ignored: the graph is that of the session.
      output_node_names: Names of the operations.
      variable_names_whitelist: Ignored: all variables become constants.
      variable_names_blacklist: Ignored.

    Raises:
      ValueError: If there is no such operation.
    """
    names = {o.name for o in sess.graph.get_operations()}
    for name in output_node_names:
        if name not in names:
            raise ValueError(f"{name} is not in graph")
    return freeze_graph(sess, map(sess.graph.get_operation_by_name, output_node_names))
