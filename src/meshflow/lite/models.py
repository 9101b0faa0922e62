"""What a converter makes of signatures: one model with a subgraph for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.deployment.programs import Deployable

# They fill the table of primitives.
from meshflow.lite import elementwise, loops, operators, products, scattering, shaping  # noqa: F401
from meshflow.lite.fusing import fuse
from meshflow.lite.graph import Graph, Subgraph, Tensor
from meshflow.lite.lowering import Lowering
from meshflow.lite.variables import Variables

__all__ = ["model_of"]


def model_of(signatures: Sequence[Deployable]) -> Graph:
    """A float model.

    Args:
      signatures: what it is to compute; the first is what interpreters run that ask for none by name.

    Raises:
      UnimplementedError: for a primitive that cannot be converted, naming it, its layer and why.
    """
    graph = Graph([Subgraph("main" if i == 0 else s.name) for i, s in enumerate(signatures)])
    variables = Variables(graph, signatures)
    variables.initialize()
    for number, signature in enumerate(signatures):
        _fill(graph, graph.subgraphs[number], signature, variables)
        names = signature.name, number, signature.inputs, signature.outputs
        graph.signatures.append(names)
    for subgraph in graph.subgraphs:
        subgraph.drop_unused()
    fuse(graph)
    return graph


def _fill(graph: Graph, subgraph: Subgraph, signature: Deployable, variables: Variables) -> None:
    program, read, written = variables.program(signature)
    for name, value in zip(signature.inputs, program.inputs, strict=False):
        if value.dtype.name in ("float64", "bfloat16", "complex128"):
            raise UnimplementedError(
                f"tf.lite: the input {name} is {value.dtype.name}, which LiteRT does not compute with: use float32."
            )
        tensor = Tensor(value.shape, value.dtype, f"{signature.name}_{name}:0")
        subgraph.inputs.append(tensor)
    lowering = Lowering(graph, subgraph)
    held = variables.read(lowering, read)
    inputs = [*(lowering.cast(t, t.dtype) for t in subgraph.inputs), *held]
    found = lowering.run(program, inputs)
    results, kept = found[: len(signature.outputs)], found[len(signature.outputs) :]
    for name, value, tensor in zip(signature.outputs, program.outputs, results, strict=False):
        if value.dtype == np.int8:
            tensor = lowering.emit("CAST", [tensor], tensor.shape, np.dtype(np.int8))
        if tensor.data is not None or tensor in subgraph.inputs or tensor in subgraph.outputs:
            tensor = lowering.copy(tensor)
        tensor.name = f"{signature.name}_{name}"
        subgraph.outputs.append(tensor)
    variables.write(lowering, written, kept)
    if not (subgraph.outputs or written) or np.any([t.dtype == object for t in subgraph.outputs]):
        raise UnimplementedError(f"tf.lite: signature {signature.name} returns no tensors.")
