"""Ranges of quantization-aware training, taken from FAKE_QUANT operators."""

from __future__ import annotations

from meshflow.lite.graph import Graph, Operator, Subgraph, Tensor
from meshflow.lite.integers import MOVING, Integers

__all__ = ["take_ranges"]


def take_ranges(graph: Graph, kind: Integers) -> dict[Tensor, tuple[float, float]]:
    """Remove the FAKE_QUANT operators of the bit width of `kind`, and return their ranges.

    Args:
      graph: the model.
      kind: the integer types to quantize to.

    Returns:
      The ranges of their results, and of tensors that only move elements of these.
    """
    ranges: dict[Tensor, tuple[float, float]] = {}
    for subgraph in graph.subgraphs:
        rounding = [o for o in subgraph.operators if _rounds(o, kind)]
        for operator in rounding:
            _take(subgraph, operator, ranges)
        if rounding:
            _spread(subgraph, kind, ranges)
    return ranges


def _rounds(operator: Operator, kind: Integers) -> bool:
    return operator.code == "FAKE_QUANT" and operator.options["numBits"] == kind.dtype.itemsize * 8


def _take(subgraph: Subgraph, o: Operator, ranges: dict[Tensor, tuple[float, float]]) -> None:
    source, result = o.inputs[0], o.outputs[0]
    assert source is not None
    producer = subgraph.makers().get(source)
    remaining = result
    if producer is None or source in subgraph.outputs:
        remaining = source
    else:
        producer.outputs = [result if t is source else t for t in producer.outputs]
    subgraph.operators.remove(o)
    for consumer in subgraph.operators:
        consumer.inputs = [remaining if t in (source, result) else t for t in consumer.inputs]
    subgraph.outputs = [remaining if t is result else t for t in subgraph.outputs]
    ranges[remaining] = o.options["min"], o.options["max"]


def _spread(subgraph: Subgraph, kind: Integers, ranges: dict[Tensor, tuple[float, float]]) -> None:
    for operator in subgraph.operators:
        result = operator.outputs[0] if operator.outputs else None
        if result is None or result in ranges:
            continue
        if operator.code in kind.fixed:
            scale, zero = kind.fixed[operator.code]
            low = -zero - (1 << kind.dtype.itemsize * 8 - 1)
            ranges[result] = scale * low, scale * (low + (1 << kind.dtype.itemsize * 8) - 1)
        elif operator.code in MOVING:
            positions = MOVING[operator.code]
            sources = (
                operator.inputs if positions is None else [operator.inputs[i] for i in positions]
            )
            limits = [ranges[t] for t in sources if t in ranges]
            if len(limits) == len(sources):
                limit = min(low for low, _ in limits), max(high for _, high in limits)
                ranges.update(dict.fromkeys(operator.outputs, limit))
