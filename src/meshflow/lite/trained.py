"""Ranges that a model was trained with: of numbers that it rounded to a few bits itself."""

from __future__ import annotations

from meshflow.lite.graph import Graph, Operator, Subgraph, Tensor
from meshflow.lite.integers import MOVING, Integers

__all__ = ["take_ranges"]


def take_ranges(graph: Graph, kind: Integers) -> dict[Tensor, tuple[float, float]]:
    """Takes the operators that round to `kind` out of a model.

    Args:
      graph: the model.
      kind: of which integers it is to be.

    Returns:
      The ranges of the tensors that they gave, and of what only moves elements of these.
    """
    found: dict[Tensor, tuple[float, float]] = {}
    for subgraph in graph.subgraphs:
        rounding = [o for o in subgraph.operators if _rounds(o, kind)]
        for operator in rounding:
            _take(subgraph, operator, found)
        if rounding:
            _spread(subgraph, kind, found)
    return found


def _rounds(operator: Operator, kind: Integers) -> bool:
    return operator.code == "FAKE_QUANT" and operator.options["numBits"] == kind.dtype.itemsize * 8


def _take(subgraph: Subgraph, o: Operator, found: dict[Tensor, tuple[float, float]]) -> None:
    source, result = o.inputs[0], o.outputs[0]
    assert source is not None
    maker = subgraph.makers().get(source)
    kept = result
    if maker is None or source in subgraph.outputs:
        kept = source
    else:
        maker.outputs = [result if t is source else t for t in maker.outputs]
    subgraph.operators.remove(o)
    for reader in subgraph.operators:
        reader.inputs = [kept if t in (source, result) else t for t in reader.inputs]
    subgraph.outputs = [kept if t is result else t for t in subgraph.outputs]
    found[kept] = o.options["min"], o.options["max"]


def _spread(subgraph: Subgraph, kind: Integers, found: dict[Tensor, tuple[float, float]]) -> None:
    for operator in subgraph.operators:
        result = operator.outputs[0] if operator.outputs else None
        if result is None or result in found:
            continue
        if operator.code in kind.fixed:
            scale, zero = kind.fixed[operator.code]
            low = -zero - (1 << kind.dtype.itemsize * 8 - 1)
            found[result] = scale * low, scale * (low + (1 << kind.dtype.itemsize * 8) - 1)
        elif operator.code in MOVING:
            places = MOVING[operator.code]
            sources = operator.inputs if places is None else [operator.inputs[i] for i in places]
            limits = [found[t] for t in sources if t in found]
            if len(limits) == len(sources):
                about = min(low for low, _ in limits), max(high for _, high in limits)
                found.update(dict.fromkeys(operator.outputs, about))
