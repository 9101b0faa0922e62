"""Construction of a model with one subgraph for each signature."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.deployment.deployable_function import DeployableFunction

# These modules register the lowering rules.
from meshflow.lite import (  # noqa: F401
    array_ops,
    elementwise,
    loops,
    pattern_operators,
    products,
    scatter,
)
from meshflow.lite.fusion import fuse
from meshflow.lite.graph import LiteModel, LiteTensor, Subgraph
from meshflow.lite.lowering import LiteLowering
from meshflow.lite.variables import ModelVariables


def build_model(signatures: Sequence[DeployableFunction]) -> LiteModel:
    """Build and fuse a float model.

    Args:
      signatures: functions to convert; interpreters run the first one by default.

    Raises:
      UnimplementedError: if a primitive cannot be converted; names the primitive and its layer.
    """
    graph = LiteModel([Subgraph("main" if i == 0 else s.name) for i, s in enumerate(signatures)])
    variables = ModelVariables(graph, signatures)
    variables.add_initializer()
    for index, signature in enumerate(signatures):
        _lower_signature(graph, graph.subgraphs[index], signature, variables)
        names = signature.name, index, signature.inputs, signature.outputs
        graph.signatures.append(names)
    for subgraph in graph.subgraphs:
        subgraph.remove_unused_operators()
    fuse(graph)
    return graph


def _lower_signature(
    graph: LiteModel, subgraph: Subgraph, signature: DeployableFunction, variables: ModelVariables
) -> None:
    program, reads, writes = variables.flatten_signature(signature)
    for name, value in zip(signature.inputs, program.inputs, strict=False):
        if value.dtype.name in ("float64", "bfloat16", "complex128"):
            raise UnimplementedError(
                f"tf.lite: the input {name} is {value.dtype.name}, which LiteRT does not support: use float32."
            )
        tensor = LiteTensor(value.shape, value.dtype, f"{signature.name}_{name}:0")
        subgraph.inputs.append(tensor)
    lowering = LiteLowering(graph, subgraph)
    values = variables.read_variables(lowering, reads)
    inputs = [*(lowering.cast(t, t.dtype) for t in subgraph.inputs), *values]
    tensors = lowering.lower_program(program, inputs)
    results, new_values = tensors[: len(signature.outputs)], tensors[len(signature.outputs) :]
    for name, value, tensor in zip(signature.outputs, program.outputs, results, strict=False):
        if value.dtype == np.int8:
            tensor = lowering.emit("CAST", [tensor], tensor.shape, np.dtype(np.int8))
        if tensor.data is not None or tensor in subgraph.inputs or tensor in subgraph.outputs:
            tensor = lowering.copy(tensor)
        tensor.name = f"{signature.name}_{name}"
        subgraph.outputs.append(tensor)
    variables.write_variables(lowering, writes, new_values)
    if not (subgraph.outputs or writes) or np.any([t.dtype == object for t in subgraph.outputs]):
        raise UnimplementedError(f"tf.lite: signature {signature.name} returns no tensors.")
