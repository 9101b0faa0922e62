"""Models of integers that compute each operator on floats, too, and say how far the results are apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from meshflow.lite.graph import Graph, Operator, Subgraph, Tensor

__all__ = ["VERIFY", "float_forms", "verify"]

# LiteRT's operator, whose result is the difference between integers and floats.
VERIFY = "NumericVerify"
# Differences beyond this many scales are what its log tells, which nobody asks for.
_TOLERANCE = 5.0


def float_forms(graph: Graph) -> dict[Operator, Operator]:
    """Each operator of a float model as it is before `Calibrated.quantize` rewrites it."""
    return {
        o: dataclasses.replace(
            o, inputs=list(o.inputs), outputs=list(o.outputs), options=dict(o.options)
        )
        for o in graph.operators()
    }


def verify(graph: Graph, floats: Mapping[Operator, Operator]) -> None:
    """Puts beside each operator on integers the same one on floats, of the same operands, and their difference.

    Args:
      graph: a model of integers.
      floats: its operators before, as `float_forms` tells them.
    """
    for subgraph in graph.subgraphs:
        _Verifier(floats).run(subgraph)


class _Verifier:
    def __init__(self, floats: Mapping[Operator, Operator]) -> None:
        self._floats = floats
        self._numbers: dict[Tensor, Tensor] = {}
        self._operators: list[Operator] = []

    def run(self, subgraph: Subgraph) -> None:
        for operator in subgraph.operators:
            self._operators.append(operator)
            source, result = operator.inputs[0] if operator.inputs else None, operator.outputs[0]
            if operator.code == "QUANTIZE" and source is not None and source.dtype == np.float32:
                self._numbers[result] = source
            elif operator.code == "DEQUANTIZE" and source is not None:
                self._numbers[source] = result
            elif operator in self._floats:
                self._compare(operator, self._floats[operator])
        subgraph.operators = self._operators
        places = {t: i for i, t in enumerate(subgraph.tensors())}
        for operator in subgraph.operators:
            if operator.code == VERIFY and operator.inputs[0] is not None:
                operator.outputs[0].name += f":{places[operator.inputs[0]]}"

    def _compare(self, operator: Operator, before: Operator) -> None:
        pairs = list(zip(operator.outputs, before.outputs, strict=True))
        if not any(t.quantization for t, _ in pairs):
            return
        operands = zip(operator.inputs, before.inputs, strict=True)
        inputs = [self._number(t) if _moves(t, f) else f for t, f in operands]
        outputs = [dataclasses.replace(f, name=f"{f.name}/float") for _, f in pairs]
        self._operators.append(dataclasses.replace(before, inputs=inputs, outputs=outputs))
        for (tensor, named), number in zip(pairs, outputs, strict=True):
            difference = Tensor(number.shape, number.dtype, f"{VERIFY}/{named.name}")
            options = {"tolerance": _TOLERANCE, "log_if_failed": False}
            self._operators.append(Operator(VERIFY, [tensor, number], [difference], options))

    def _number(self, tensor: Tensor | None) -> Tensor:
        assert tensor is not None
        if tensor not in self._numbers:
            number = Tensor(tensor.shape, np.dtype(np.float32), f"{tensor.name}/number")
            self._operators.append(Operator("DEQUANTIZE", [tensor], [number], {}, 2))
            self._numbers[tensor] = number
        return self._numbers[tensor]


def _moves(tensor: Tensor | None, before: Tensor | None) -> bool:
    """Whether an operand is computed, and in integers."""
    if tensor is None or before is None or tensor.data is not None:
        return False
    return tensor.quantization is not None and before.dtype == np.float32
