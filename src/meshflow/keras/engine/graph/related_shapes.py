"""Shapes of symbolic tensors that follow from the same sizes of the inputs of their graph."""

from __future__ import annotations

from collections.abc import Sequence

from meshflow.core.tracing.trace import trace_shapes
from meshflow.core.values.specs import TensorSpec
from meshflow.keras.engine.graph.graph import LayerGraph
from meshflow.keras.engine.layer import shape_inference
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor


def _trace_related_shapes(tensors: Sequence[KerasTensor], size: int) -> list[TensorSpec]:
    """Return the specs of symbolic tensors if each unknown size of an input is `size`."""
    inputs: dict[int, KerasTensor] = {}
    seen: set[int] = set()
    stack = list(tensors)
    while stack:
        tensor = stack.pop()
        if id(tensor) not in seen:
            seen.add(id(tensor))
            if tensor.node.is_input:
                inputs[id(tensor)] = tensor
            stack.extend(tensor.node.keras_inputs)
    graph = LayerGraph("related_shapes", list(inputs.values()), list(tensors))
    specs = [
        TensorSpec([size if n is None else n for n in t.shape], t.dtype) for t in inputs.values()
    ]
    result: list[TensorSpec] = trace_shapes(graph.run, (specs,), {})
    return result


shape_inference.register_graph_trace(_trace_related_shapes)
