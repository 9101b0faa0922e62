"""Ranges of quantization-aware training, taken from FAKE_QUANT operators."""

from __future__ import annotations

from meshflow.lite.graph import LiteModel, LiteOperator, LiteTensor, Subgraph
from meshflow.lite.integer_quantization import SAME_SCALE_OPERANDS, IntegerTypes


def extract_trained_ranges(
    graph: LiteModel, kind: IntegerTypes
) -> dict[LiteTensor, tuple[float, float]]:
    """Remove the FAKE_QUANT operators of the bit width of `kind`, and return their ranges.

    Args:
      graph: the model.
      kind: the integer types to quantize to.

    Returns:
      The ranges of their results, and of tensors that only move elements of these.
    """
    ranges: dict[LiteTensor, tuple[float, float]] = {}
    for subgraph in graph.subgraphs:
        rounding = [o for o in subgraph.operators if _is_fake_quant(o, kind)]
        for operator in rounding:
            _remove_fake_quant(subgraph, operator, ranges)
        if rounding:
            _propagate_ranges(subgraph, kind, ranges)
    return ranges


def _is_fake_quant(operator: LiteOperator, kind: IntegerTypes) -> bool:
    return operator.code == "FAKE_QUANT" and operator.options["numBits"] == kind.dtype.itemsize * 8


def _remove_fake_quant(
    subgraph: Subgraph, o: LiteOperator, ranges: dict[LiteTensor, tuple[float, float]]
) -> None:
    source, result = o.inputs[0], o.outputs[0]
    assert source is not None
    producer = subgraph.find_producers().get(source)
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


def _propagate_ranges(
    subgraph: Subgraph, kind: IntegerTypes, ranges: dict[LiteTensor, tuple[float, float]]
) -> None:
    for operator in subgraph.operators:
        result = operator.outputs[0] if operator.outputs else None
        if result is None or result in ranges:
            continue
        if operator.code in kind.fixed:
            scale, zero = kind.fixed[operator.code]
            low = -zero - (1 << kind.dtype.itemsize * 8 - 1)
            ranges[result] = scale * low, scale * (low + (1 << kind.dtype.itemsize * 8) - 1)
        elif operator.code in SAME_SCALE_OPERANDS:
            positions = SAME_SCALE_OPERANDS[operator.code]
            sources = (
                operator.inputs if positions is None else [operator.inputs[i] for i in positions]
            )
            limits = [ranges[t] for t in sources if t in ranges]
            if len(limits) == len(sources):
                limit = min(low for low, _ in limits), max(high for _, high in limits)
                ranges.update(dict.fromkeys(operator.outputs, limit))
