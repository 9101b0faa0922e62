"""Frozen graphs: `GraphDef`s that hold the values of variables, as TensorFlow's tools for deployment expect them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from meshflow.core.functions.signed_function import SignedFunction
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.values import nest
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import PyTree
from meshflow.saved_model.graph.format.messages import GraphDef, Message
from meshflow.saved_model.graph.format.node_attributes import GraphNode
from meshflow.saved_model.graph.format.nodes import (
    add_node,
    make_shape,
    make_shape_list,
    make_tensor,
)
from meshflow.saved_model.graph.reading.imported_graphs import (
    ImportedGraph,
    PrunedFunction,
    WrappedFunction,
)
from meshflow.saved_model.graph.reading.subgraphs import collect_dependencies
from meshflow.saved_model.graph.writing.program_functions import add_module
from meshflow.saved_model.programs.stablehlo import export_traced, trace_for_export

__all__ = [
    "convert_variables_to_constants_v2",
    "extract_sub_graph",
    "make_frozen_graph",
    "remove_training_nodes",
]

# The version of TensorFlow 2.15's graphs.
_PRODUCER = 1645


def make_frozen_graph(
    function: Callable[..., Sequence[Tensor]],
    inputs: Sequence[tuple[str, TensorSpec, np.ndarray | None]],
    outputs: Sequence[str],
) -> Message:
    """Return a `GraphDef` with a placeholder for each argument of a function, and a node for each result.

    One node between them has the function as a StableHLO program; variables are constants.

    Args:
      function: Function of tensors that returns a list of tensors.
      inputs: Name, spec and default value, or None, of each argument.
      outputs: Name of each result.

    Raises:
      UnimplementedError: If the function needs strings or tables.
    """
    specs = [spec for _, spec, _ in inputs]
    if any(spec.dtype.dtype == object for spec in specs):
        raise UnimplementedError(
            "Graphs with strings cannot be frozen. Use tf.saved_model.save with a signature."
        )
    traced = trace_for_export(lambda *args: list(function(*args)), specs, {})
    exported = export_traced(traced, portable=True)
    definition = GraphDef()
    definition.versions.producer = _PRODUCER
    nodes, values = definition.node, []
    for name, spec, default in inputs:
        dtype = as_dtype(spec.dtype)
        shape = make_shape(None if spec.shape.rank is None else spec.shape.as_list())
        if default is None:
            values.append(add_node(nodes, name, "Placeholder", dtype=dtype, shape=shape))
            continue
        source = _add_constant(nodes, f"{name}/input", default)
        values.append(
            add_node(nodes, name, "PlaceholderWithDefault", [source], dtype=dtype, shape=shape)
        )
    names = {name for name, _, _ in inputs} | {*outputs}
    for capture in traced.captures:
        name = str(getattr(capture, "name", "captured")).partition(":")[0]
        while name in names:
            name += "_1"
        names.add(name)
        values.append(_add_constant(nodes, name, np.asarray(capture._as_tensor().array)))
    holder: Any = SimpleNamespace(node_def=nodes)
    results = add_module(holder, "program", exported, values)
    for name, result, aval in zip(outputs, results, exported.out_avals, strict=False):
        add_node(
            nodes,
            name,
            "Identity",
            [result.replace(":output:", ":")],
            T=as_dtype(aval.dtype),
            _output_shapes=make_shape_list([aval.shape]),
        )
    return definition


def _add_constant(nodes: Any, name: str, value: np.ndarray) -> str:
    dtype = as_dtype(value.dtype)
    return add_node(nodes, name, "Const", dtype=dtype, value=make_tensor(value))


def convert_variables_to_constants_v2(
    func: SignedFunction, lower_control_flow: bool = True, aggressive_inlining: bool = False
) -> PrunedFunction:
    """Return a function with a graph that holds the values of variables as constants.

    Its graph has the nodes of the arguments and results, and one node for the program between them.

    Args:
      func: A concrete function.
      lower_control_flow: Ignored: the program is StableHLO.
      aggressive_inlining: Ignored.

    Example:
      >>> w = tf.Variable(2.0)
      >>> double = tf.function(lambda x: x * w).get_concrete_function(tf.TensorSpec([None], tf.float32))
      >>> frozen = convert_variables_to_constants_v2(double)
      >>> [node.op for node in frozen.graph.as_graph_def().node]
      ['Placeholder', 'Const', 'XlaCallModule', 'Identity']
      >>> frozen(tf.constant([1.0, 2.0]))[0].numpy().tolist()
      [2.0, 4.0]
    """
    view, call_function = func.graph, cast(Callable[..., PyTree], func)
    num_arguments = len(func.inputs) - len(func.captured_inputs)
    inputs = [t.op.name for t in view.inputs[:num_arguments]]
    outputs = [t.op.name for t in view.outputs]
    specs = [TensorSpec(t.shape, t.dtype) for t in func.inputs[:num_arguments]]

    def call(*tensors: Tensor) -> list[Tensor]:
        supply = iter(tensors)
        args, kwargs = nest.map_structure(
            lambda leaf: next(supply) if isinstance(leaf, TensorSpec) else leaf,
            func.structured_input_signature,
        )
        results = call_function(*args, **kwargs)
        return [t for t in nest.flatten(results) if isinstance(t, Tensor)]

    graph = ImportedGraph()
    triples = [(n, s, None) for n, s in zip(inputs, specs, strict=True)]
    graph.load_definition(make_frozen_graph(call, triples, outputs), "")
    return WrappedFunction(graph).prune(
        [f"{n}:0" for n in inputs], [f"{n}:0" for n in outputs], func.name
    )


def extract_sub_graph(graph_def: Message, dest_nodes: Sequence[str]) -> Message:
    """Return the nodes that some nodes depend on.

    Args:
      graph_def: A `GraphDef`.
      dest_nodes: Names of the nodes.

    Raises:
      TypeError: If `dest_nodes` is a string.
    """
    if isinstance(dest_nodes, str):
        raise TypeError("dest_nodes must be an iterable of strings.")
    nodes = {n.name: GraphNode(n) for n in graph_def.node}
    kept = {node.name for node in collect_dependencies(nodes, dest_nodes, ())}
    part = GraphDef()
    part.node.extend(n for n in graph_def.node if n.name in kept)
    part.library.CopyFrom(graph_def.library)
    part.versions.CopyFrom(graph_def.versions)
    return part


def remove_training_nodes(input_graph: Message, protected_nodes: Sequence[str] = ()) -> Message:
    """Return a graph without `Identity` and `CheckNumerics` nodes between others.

    Args:
      input_graph: A `GraphDef`.
      protected_nodes: Names of nodes that are kept.
    """
    controls = {i[1:] for n in input_graph.node for i in n.input if i.startswith("^")}
    kept = {*protected_nodes, *controls}
    removed = {
        n.name: n.input[0]
        for n in input_graph.node
        if n.op in ("Identity", "CheckNumerics") and n.name not in kept and len(n.input) == 1
    }
    read = {i.partition(":")[0] for n in input_graph.node for i in n.input}

    def find_source(reference: str) -> str:
        passed = set()
        while (name := reference.removesuffix(":0")) in removed and name not in passed:
            passed.add(name)
            reference = removed[name]
        return reference

    result = GraphDef()
    for node in input_graph.node:
        if node.name in removed and node.name in read:
            continue
        copied = result.node.add()
        copied.CopyFrom(node)
        copied.input[:] = map(find_source, node.input)
    result.library.CopyFrom(input_graph.library)
    result.versions.CopyFrom(input_graph.versions)
    return result
