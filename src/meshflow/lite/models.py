"""What a converter makes of signatures: one model with a subgraph for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.deployment.programs import Deployable

# They fill the table of primitives.
from meshflow.lite import elementwise, loops, products, shaping  # noqa: F401
from meshflow.lite.fusing import fuse
from meshflow.lite.graph import Graph, Subgraph, Tensor
from meshflow.lite.lowering import Lowering

__all__ = ["model_of"]


def model_of(signatures: Sequence[Deployable]) -> Graph:
    """A float model.

    Args:
      signatures: what it is to compute; the first is what interpreters run that ask for none by name.

    Raises:
      UnimplementedError: for a primitive that cannot be converted, naming it, its layer and why.
    """
    graph = Graph([Subgraph("main" if i == 0 else s.name) for i, s in enumerate(signatures)])
    for number, signature in enumerate(signatures):
        _fill(graph, graph.subgraphs[number], signature)
        names = signature.name, number, signature.inputs, signature.outputs
        graph.signatures.append(names)
    for subgraph in graph.subgraphs:
        subgraph.drop_unused()
    fuse(graph)
    return graph


def _fill(graph: Graph, subgraph: Subgraph, signature: Deployable) -> None:
    for name, value in zip(signature.inputs, signature.program.inputs, strict=True):
        if value.dtype.name in ("float64", "bfloat16", "complex128"):
            raise UnimplementedError(
                f"tf.lite: the input {name} is {value.dtype.name}, which LiteRT does not compute with: use float32."
            )
        tensor = Tensor(value.shape, value.dtype, f"{signature.name}_{name}:0")
        subgraph.inputs.append(tensor)
    lowering = Lowering(graph, subgraph)
    inputs = [lowering.cast(t, t.dtype) for t in subgraph.inputs]
    results = []
    for name, tensor in zip(
        signature.outputs, lowering.run(signature.program, inputs), strict=True
    ):
        if tensor.data is not None or tensor in subgraph.inputs or tensor in results:
            tensor = lowering.copy(tensor)
        tensor.name = f"{signature.name}_{name}"
        results.append(tensor)
    subgraph.outputs = results
    if not subgraph.outputs or np.any([t.dtype == object for t in results]):
        raise UnimplementedError(f"tf.lite: signature {signature.name} returns no tensors.")
