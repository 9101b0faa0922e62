"""Debug models that run each quantized operator on floats too, and compare the results."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from meshflow.lite.graph import LiteModel, LiteOperator, LiteTensor, Subgraph

# LiteRT's custom operator that returns the difference between quantized and float values.
VERIFY = "NumericVerify"
# Differences above this number of scales would be logged, but logging is off.
_TOLERANCE = 5.0


def copy_operators(graph: LiteModel) -> dict[LiteOperator, LiteOperator]:
    """Copy the operators of a float model, before `CalibratedModel.quantize` rewrites them."""
    return {
        o: dataclasses.replace(
            o, inputs=list(o.inputs), outputs=list(o.outputs), options=dict(o.options)
        )
        for o in graph.iterate_operators()
    }


def add_verification(graph: LiteModel, floats: Mapping[LiteOperator, LiteOperator]) -> None:
    """Add a float operator and a comparison for each quantized operator, with the same operands.

    Args:
      graph: a quantized model.
      floats: result of `copy_operators` for the float model.
    """
    for subgraph in graph.subgraphs:
        _Verifier(floats).run(subgraph)


class _Verifier:
    def __init__(self, floats: Mapping[LiteOperator, LiteOperator]) -> None:
        self._floats = floats
        self._float_tensors: dict[LiteTensor, LiteTensor] = {}
        self._operators: list[LiteOperator] = []

    def run(self, subgraph: Subgraph) -> None:
        for operator in subgraph.operators:
            self._operators.append(operator)
            source, result = operator.inputs[0] if operator.inputs else None, operator.outputs[0]
            if operator.code == "QUANTIZE" and source is not None and source.dtype == np.float32:
                self._float_tensors[result] = source
            elif operator.code == "DEQUANTIZE" and source is not None:
                self._float_tensors[source] = result
            elif operator in self._floats:
                self._add_comparison(operator, self._floats[operator])
        subgraph.operators = self._operators
        indices = {t: i for i, t in enumerate(subgraph.list_tensors())}
        for operator in subgraph.operators:
            if operator.code == VERIFY and operator.inputs[0] is not None:
                operator.outputs[0].name += f":{indices[operator.inputs[0]]}"

    def _add_comparison(self, operator: LiteOperator, before: LiteOperator) -> None:
        pairs = list(zip(operator.outputs, before.outputs, strict=True))
        if not any(t.quantization for t, _ in pairs):
            return
        operands = zip(operator.inputs, before.inputs, strict=True)
        inputs = [self._dequantize(t) if _is_quantized_operand(t, f) else f for t, f in operands]
        outputs = [dataclasses.replace(f, name=f"{f.name}/float") for _, f in pairs]
        self._operators.append(dataclasses.replace(before, inputs=inputs, outputs=outputs))
        for (tensor, named), output in zip(pairs, outputs, strict=True):
            difference = LiteTensor(output.shape, output.dtype, f"{VERIFY}/{named.name}")
            options = {"tolerance": _TOLERANCE, "log_if_failed": False}
            self._operators.append(LiteOperator(VERIFY, [tensor, output], [difference], options))

    def _dequantize(self, tensor: LiteTensor | None) -> LiteTensor:
        assert tensor is not None
        if tensor not in self._float_tensors:
            output = LiteTensor(tensor.shape, np.dtype(np.float32), f"{tensor.name}/number")
            self._operators.append(LiteOperator("DEQUANTIZE", [tensor], [output], {}, 2))
            self._float_tensors[tensor] = output
        return self._float_tensors[tensor]


def _is_quantized_operand(tensor: LiteTensor | None, before: LiteTensor | None) -> bool:
    """Check whether an operand is computed and quantized."""
    if tensor is None or before is None or tensor.data is not None:
        return False
    return tensor.quantization is not None and before.dtype == np.float32
