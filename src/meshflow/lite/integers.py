"""Models in integers: weights of 8 bits and activations of 8 or 16, by ranges that samples showed.

What has no operator for integers stays float32, with conversions around it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from meshflow.lite.fusing import CHANNELS
from meshflow.lite.graph import Graph, Operator, Quantization, Subgraph, Tensor
from meshflow.lite.quantizing import by_channel

__all__ = ["BYTES", "MOVING", "WORDS", "Integers", "quantize", "with_integer_ends"]

_INT8 = np.dtype(np.int8)


@dataclasses.dataclass(frozen=True)
class Integers:
    """What activations are made of.

    Attributes:
      dtype: their dtype.
      bias: the dtype of what is added to products.
      fixed: scale and zero point of operators whose results have always the same.
      without: operators that have no kernel for them.
      versions: the versions of operators that have.
    """

    dtype: np.dtype
    bias: np.dtype
    fixed: Mapping[str, tuple[float, int]]
    without: frozenset[str] = frozenset()
    versions: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def affine(self, low: float, high: float) -> Quantization:
        """How numbers between two bounds, and zero, are written; in 16 bits around zero."""
        low, high = min(low, 0.0), max(high, 0.0)
        if self.dtype == _INT8:
            scale = max(high - low, 1e-8) / 255
            zero = int(np.clip(round(-128 - low / scale), -128, 127))
        else:
            scale, zero = max(high, -low, 1e-8) / 32767, 0
        return Quantization(np.asarray([scale], np.float32), np.asarray([zero]))

    def rounded(self, data: np.ndarray, how: Quantization) -> np.ndarray:
        """Numbers as integers."""
        bounds = np.iinfo(self.dtype)
        found = np.round(data / how.scales[0]) + how.zero_points[0]
        return np.clip(found, bounds.min, bounds.max).astype(self.dtype)


BYTES = Integers(
    _INT8, np.dtype(np.int32), {"SOFTMAX": (1 / 256, -128), "LOGISTIC": (1 / 256, -128), "TANH": (1 / 128, 0), "LOG_SOFTMAX": (1 / 16, 127), "L2_NORMALIZATION": (1 / 128, 0)},
    versions={
        "ELU": 1, "LEAKY_RELU": 2, "HARD_SWISH": 1, "LOG_SOFTMAX": 2, "PRELU": 1,
        "CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 4, "TRANSPOSE_CONV": 2, "ADD": 2, "SUB": 2, "MUL": 2,
        "MEAN": 2, "SOFTMAX": 2, "LOGISTIC": 2, "TANH": 2, "MAX_POOL_2D": 2, "AVERAGE_POOL_2D": 2, "TRANSPOSE": 2,
        "STRIDED_SLICE": 2, "SLICE": 2, "PAD": 2, "PADV2": 2, "GATHER": 2, "REDUCE_MAX": 2, "REDUCE_MIN": 2,
        "CONCATENATION": 2, "PACK": 2, "MAXIMUM": 2, "MINIMUM": 2, "SPLIT_V": 2, "RELU": 2, "RELU6": 2,
        "BATCH_MATMUL": 3, "SUM": 2, "GELU": 2, "BROADCAST_TO": 3, "SELECT_V2": 1, "ARG_MAX": 2, "EQUAL": 2,
        "NOT_EQUAL": 2, "GREATER": 2, "GREATER_EQUAL": 2, "LESS": 2, "LESS_EQUAL": 2, "RESIZE_BILINEAR": 3,
        "RESIZE_NEAREST_NEIGHBOR": 3, "SPACE_TO_DEPTH": 2, "DEPTH_TO_SPACE": 2, "MIRROR_PAD": 2, "UNPACK": 2, "TILE": 2,
        "SQUARED_DIFFERENCE": 2, "L2_NORMALIZATION": 2, "SPACE_TO_BATCH_ND": 2, "BATCH_TO_SPACE_ND": 2, "RELU_N1_TO_1": 1,
    },
)  # fmt: skip
WORDS = Integers(
    np.dtype(np.int16), np.dtype(np.int64),
    dict.fromkeys(("SOFTMAX", "LOGISTIC", "TANH"), (1 / 32768, 0)),
    frozenset(("GELU", "ELU", "HARD_SWISH", "LOG_SOFTMAX", "PRELU", "ARG_MAX", "EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "SELECT_V2", "SPLIT_V", "SUM", "PACK", "SPACE_TO_DEPTH", "DEPTH_TO_SPACE", "SQUARED_DIFFERENCE", "RELU_N1_TO_1")),
    {
        "CONV_2D": 4, "DEPTHWISE_CONV_2D": 5, "FULLY_CONNECTED": 7, "TRANSPOSE_CONV": 4, "ADD": 3, "SUB": 5, "MUL": 5,
        "MEAN": 3, "SOFTMAX": 3, "LOGISTIC": 3, "TANH": 3, "MAX_POOL_2D": 3, "AVERAGE_POOL_2D": 3, "TRANSPOSE": 4,
        "STRIDED_SLICE": 4, "SLICE": 4, "PAD": 3, "PADV2": 3, "GATHER": 4, "REDUCE_MAX": 3, "REDUCE_MIN": 3,
        "CONCATENATION": 3, "MAXIMUM": 4, "MINIMUM": 4, "RELU": 3, "RELU6": 3, "BATCH_MATMUL": 4, "BROADCAST_TO": 4,
        "LEAKY_RELU": 2,
    },
)  # fmt: skip
# The places of what is multiplied, of the weights and of the bias, of operators that have weights.
_PLACES = {**dict.fromkeys(CHANNELS, (0, 1, 2)), "TRANSPOSE_CONV": (2, 1, 3)}
_CHANNELS = {**CHANNELS, "TRANSPOSE_CONV": 0}
# Their results have the scale of their operands; the places of these operands, None for all.
MOVING: dict[str, tuple[int, ...] | None] = {
    "MAX_POOL_2D": (0,), "AVERAGE_POOL_2D": (0,), "RESHAPE": (0,), "TRANSPOSE": (0,), "STRIDED_SLICE": (0,),
    "SLICE": (0,), "PAD": (0,), "PADV2": (0,), "SPLIT_V": (0,), "GATHER": (0,), "REDUCE_MAX": (0,),
    "REDUCE_MIN": (0,), "BROADCAST_TO": (0,), "CONCATENATION": None, "PACK": None, "MAXIMUM": None, "MINIMUM": None,
    "SELECT_V2": (1, 2), "RESIZE_BILINEAR": (0,), "RESIZE_NEAREST_NEIGHBOR": (0,), "SPACE_TO_DEPTH": (0,),
    "DEPTH_TO_SPACE": (0,), "MIRROR_PAD": (0,), "UNPACK": (0,), "TILE": (0,), "SPACE_TO_BATCH_ND": (0,),
    "BATCH_TO_SPACE_ND": (0,), "REVERSE_V2": (0,),
}  # fmt: skip
_FREE = {
    "ADD", "SUB", "MUL", "MEAN", "RELU", "RELU6", "BATCH_MATMUL", "GELU", "SUM", "ELU", "LEAKY_RELU", "HARD_SWISH",
    "PRELU", "SQUARED_DIFFERENCE", "RELU_N1_TO_1",
}  # fmt: skip
# They read numbers and give others than numbers.
_READING = {"ARG_MAX", "EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"}


def quantize(
    graph: Graph,
    ranges: dict[Tensor, tuple[float, float]],
    kind: Integers = BYTES,
    denied: Collection[Operator] = (),
) -> list[str]:
    """Makes the subgraphs of signatures compute in integers.

    Args:
      graph: a float model; its inputs and outputs stay float32.
      ranges: of its tensors.
      kind: of which integers.
      denied: operators that stay as they are.

    Returns:
      The codes of operators on floats that are left.
    """
    numbers = sorted({s[1] for s in graph.signatures})
    return sorted(
        {c for n in numbers for c in _Quantizer(graph.subgraphs[n], ranges, kind, denied).run()}
    )


class _Quantizer:
    def __init__(
        self,
        subgraph: Subgraph,
        ranges: dict[Tensor, tuple[float, float]],
        kind: Integers,
        denied: Collection[Operator],
    ) -> None:
        self._graph, self._ranges, self._kind, self._denied = subgraph, ranges, kind, denied
        self._group: dict[Tensor, Tensor] = {}
        self._how: dict[Tensor, Quantization] = {}
        self._integers: dict[Tensor, Tensor] = {}
        self._quantized: set[Operator] = set()

    def run(self) -> list[str]:
        self._choose()
        self._join()
        made = {t for o in self._quantized for t in _results(o)}
        found: list[Operator] = []
        given: set[Tensor] = set()
        for operator in self._graph.operators:
            if operator in self._quantized:
                for tensor in self._operands(operator):
                    if tensor.data is None and tensor not in made and tensor not in given:
                        given.add(tensor)
                        result = self._integer(tensor)
                        found.append(
                            Operator("QUANTIZE", [tensor], [result], {}, 1, operator.scope)
                        )
                found += self._rewritten(operator)
            else:
                if operator.code == "SHAPE" and operator.inputs[0] in made:
                    operator.inputs = [self._integer(t) for t in operator.inputs if t is not None]
                found += self._floats(operator.inputs, made, given)
                found.append(operator)
        found += self._floats(self._graph.outputs, made, given)
        self._graph.operators = found
        return [
            o.code
            for o in found
            if o.code not in ("QUANTIZE", "DEQUANTIZE", "SHAPE")
            and any(t is not None and t.dtype == np.float32 for t in [*o.inputs, *o.outputs])
        ]

    # ---- which operators, and which scales ---------------------------------------------------

    def _operands(self, operator: Operator) -> list[Tensor]:
        """The operands that are quantized, constants too, without weights and biases."""
        if operator.code in _PLACES:
            source = operator.inputs[_PLACES[operator.code][0]]
            return [] if source is None else [source]
        places = MOVING.get(operator.code)
        inputs = operator.inputs if places is None else [operator.inputs[i] for i in places]
        return [t for t in inputs if t is not None and t.dtype == np.float32]

    def _choose(self) -> None:
        made: set[Tensor] = set(self._graph.inputs)
        for operator in self._graph.operators:
            operands, results = self._operands(operator), _results(operator)
            known = all(t.data is not None or t in self._ranges for t in [*operands, *results])
            if not known or not operands or operator.code in self._kind.without:
                continue
            if operator in self._denied:
                continue
            if len(results) < len(operator.outputs) and operator.code not in _READING:
                continue
            if operator.code in _PLACES:
                weights, bias = _weights_of(operator)
                fits = weights is not None and weights.data is not None
                fits = fits and (bias is None or bias.data is not None)
            elif operator.code in MOVING or operator.code in _READING:
                # Moving floats costs less than converting them.
                fits = all(t in made or t.data is not None for t in operands)
            else:
                fits = operator.code in _FREE or self._is_fixed_and_fits(operator)
            if fits:
                self._quantized.add(operator)
                made.update(results)

    def _is_fixed_and_fits(self, operator: Operator) -> bool:
        """Whether the scale of an operator's results is given, and reaches as far as they do."""
        if operator.code not in self._kind.fixed:
            return False
        scale, zero = self._kind.fixed[operator.code]
        low, high = self._ranges[operator.outputs[0]]
        bounds = np.iinfo(self._kind.dtype)
        return scale * (bounds.min - zero - 1) <= low and high <= scale * (bounds.max - zero + 1)

    def _root(self, tensor: Tensor) -> Tensor:
        while tensor in self._group:
            tensor = self._group[tensor]
        return tensor

    def _join(self) -> None:
        """Finds the scale of each tensor: one for all that operators only move between."""
        limits: dict[Tensor, tuple[float, float]] = {}
        members: dict[Tensor, int] = {}
        everything: dict[Tensor, None] = {}
        for operator in self._graph.operators:
            if operator not in self._quantized:
                continue
            tensors = [*self._operands(operator), *_results(operator)]
            everything |= dict.fromkeys(tensors)
            if operator.code in MOVING:
                first = self._root(tensors[0])
                for tensor in tensors[1:]:
                    root = self._root(tensor)
                    if root is not first:
                        self._group[root] = first
        for tensor in everything:
            root = self._root(tensor)
            low, high = self._ranges.get(tensor, (0.0, 0.0))
            if tensor.data is not None and tensor.data.size:
                low, high = float(tensor.data.min()), float(tensor.data.max())
            least, most = limits.get(root, (0.0, 0.0))
            limits[root] = min(low, least), max(high, most)
            members[root] = members.get(root, 0) + 1
        self._how = {root: self._kind.affine(*limit) for root, limit in limits.items()}
        for operator in self._quantized:
            if operator.code in self._kind.fixed and members[self._root(operator.outputs[0])] == 1:
                self._how[operator.outputs[0]] = self._fixed(operator.code)

    # ---- tensors and operators of integers ---------------------------------------------------

    def _integer(self, tensor: Tensor) -> Tensor:
        if tensor not in self._integers:
            how = self._how[self._root(tensor)]
            data = None if tensor.data is None else self._kind.rounded(tensor.data, how)
            name = f"{tensor.name}/{self._kind.dtype.name}"
            made = Tensor(tensor.shape, self._kind.dtype, name, data, how)
            self._integers[tensor] = made
        return self._integers[tensor]

    def _floats(self, tensors: Any, made: set[Tensor], given: set[Tensor]) -> list[Operator]:
        """What makes numbers of integers that operators on floats read."""
        found = []
        for tensor in tensors:
            if tensor is not None and tensor in made and tensor not in given:
                given.add(tensor)
                integers = self._integer(tensor)
                found.append(Operator("DEQUANTIZE", [integers], [tensor], {}, 2))
        return found

    def _rewritten(self, operator: Operator) -> list[Operator]:
        code = operator.code
        if code == "PADV2" and operator.inputs[2] is not None:
            how = self._how[self._root(operator.outputs[0])]
            filler = operator.inputs[2]
            assert filler.data is not None
            data = self._kind.rounded(np.asarray(filler.data), how)
            operator.inputs[2] = Tensor(filler.shape, self._kind.dtype, "", data, how)
        if code in _PLACES:
            self._weights(operator)
        quantized = set(self._operands(operator))
        operator.inputs = [self._integer(t) if t in quantized else t for t in operator.inputs]
        results = operator.outputs
        numbers = set(_results(operator))
        operator.outputs = [self._integer(t) if t in numbers else t for t in results]
        operator.version = self._kind.versions.get(code, 1)
        if code in ("ADD", "SUB"):
            # Scales near a power of two are not taken for one.
            operator.options["potScaleInt16"] = False
        if code not in self._kind.fixed:
            return [operator]
        target = operator.outputs[0]
        if target.quantization is not None and target.quantization.scales[0] == np.float32(self._kind.fixed[code][0]):  # fmt: skip
            return [operator]
        own = Tensor(target.shape, self._kind.dtype, f"{target.name}/own", None, self._fixed(code))
        operator.outputs = [own]
        return [operator, Operator("QUANTIZE", [own], [target], {}, 2, operator.scope)]

    def _weights(self, operator: Operator) -> None:
        first, second, third = _PLACES[operator.code]
        source, (weights, bias) = operator.inputs[first], _weights_of(operator)
        assert source is not None and weights is not None and weights.data is not None
        step, limit = self._how[self._root(source)].scales[0], np.iinfo(np.int32)
        least: Any = 0.0
        if bias is not None and bias.data is not None:
            # Weights far smaller than biases get a scale with which these fit 32 bits; larger integers would be
            # rounded as doubles.
            least = np.abs(bias.data).astype(float) / (float(step) * (limit.max - 1))
        integers, how = by_channel(weights.data, _CHANNELS[operator.code], least)
        operator.inputs[second] = Tensor(weights.shape, _INT8, weights.name, integers, how)
        if bias is not None:
            assert bias.data is not None
            scales = how.scales * step
            data = np.clip(np.round(bias.data.astype(float) / scales), limit.min, limit.max)
            about = Quantization(scales, np.zeros(scales.size, np.int64))
            held = data.astype(self._kind.bias)
            operator.inputs[third] = Tensor(bias.shape, self._kind.bias, bias.name, held, about)

    def _fixed(self, code: str) -> Quantization:
        scale, zero = self._kind.fixed[code]
        return Quantization(np.asarray([scale], np.float32), np.asarray([zero]))


def _results(operator: Operator) -> list[Tensor]:
    return [t for t in operator.outputs if t.dtype == np.float32]


def _weights_of(operator: Operator) -> tuple[Tensor | None, Tensor | None]:
    """Weights and bias, if there are any."""
    _, second, third = _PLACES[operator.code]
    return operator.inputs[second], operator.inputs[third] if third < len(operator.inputs) else None


def with_integer_ends(
    graph: Graph,
    ranges: dict[Tensor, tuple[float, float]],
    inputs: Any,
    outputs: Any,
    kind: Integers = BYTES,
) -> None:
    """Makes inputs and outputs of quantized signatures integers, too.

    Args:
      graph: of `quantize`.
      ranges: of the tensors of the float model.
      inputs, outputs: float32 (as they are), the dtype of the integers, or uint8 for those of 8 bits.
      kind: of which integers the model is.
    """
    for _, number, _, _ in graph.signatures:
        subgraph = graph.subgraphs[number]
        how = {
            t: kind.affine(*ranges[t]) for t in [*subgraph.inputs, *subgraph.outputs] if t in ranges
        }
        if np.dtype(inputs) != np.float32:
            subgraph.inputs = [_opened(subgraph, t, np.dtype(inputs), how) for t in subgraph.inputs]
        if np.dtype(outputs) != np.float32:
            subgraph.outputs = [_closed(subgraph, t, np.dtype(outputs), how) for t in subgraph.outputs]  # fmt: skip
        subgraph.drop_unused()


def _bytes(how: Quantization, like: Tensor, dtype: np.dtype) -> Tensor:
    """A tensor under the name of another, of integers, or of bytes 128 above them."""
    more = 128 if dtype == np.uint8 else 0
    about = Quantization(how.scales, how.zero_points + more)
    return Tensor(like.shape, dtype, like.name, None, about)


def _opened(subgraph: Subgraph, tensor: Tensor, dtype: np.dtype, how: Any) -> Tensor:
    """An input as integers, and as numbers for operators that read these."""
    if tensor not in how:
        return tensor
    readers = [o for o in subgraph.operators if tensor in o.inputs]
    operator = next((o for o in readers if o.code == "QUANTIZE"), None)
    if operator is not None and dtype != np.uint8:
        subgraph.operators.remove(operator)
        made = operator.outputs[0]
        made.name = tensor.name
    else:
        same = None if operator is None else operator.outputs[0].quantization
        made = _bytes(same or how[tensor], tensor, dtype)
        if operator is not None:
            operator.inputs = [made]
    for other in readers:
        if other.code == "SHAPE":
            other.inputs = [made]
    if any(tensor in o.inputs for o in subgraph.operators):
        tensor.name += "/numbers"
        # LiteRT makes numbers of int8 everywhere, of bytes not.
        before = made
        if dtype == np.uint8:
            before = _bytes(how[tensor], tensor, np.dtype(np.int8))
        subgraph.operators.insert(0, Operator("DEQUANTIZE", [before], [tensor], {}, 2))
        if before is not made:
            subgraph.operators.insert(0, Operator("QUANTIZE", [made], [before], {}, 2))
    return made


def _closed(subgraph: Subgraph, tensor: Tensor, dtype: np.dtype, how: Any) -> Tensor:
    """A result as integers."""
    if tensor not in how:
        return tensor
    operator = subgraph.makers().get(tensor)
    source = None if operator is None or operator.code != "DEQUANTIZE" else operator.inputs[0]
    if source is not None and dtype != np.uint8:
        source.name = tensor.name
        return source
    if source is None:
        own = np.dtype(np.int8) if dtype == np.uint8 else dtype
        source = _bytes(how[tensor], tensor, own)
        tensor.name += "/numbers"
        subgraph.operators.append(Operator("QUANTIZE", [tensor], [source], {}, 1))
        if dtype != np.uint8:
            return source
    assert source.quantization is not None
    made = _bytes(source.quantization, source, dtype)
    subgraph.operators.append(Operator("QUANTIZE", [source], [made], {}, 2))
    return made
