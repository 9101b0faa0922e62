"""Integer quantization: int8 weights, and int8 or int16 activations with calibrated ranges.

Operators without an integer kernel remain in float32, between conversions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

import numpy as np
from numpy.typing import DTypeLike

from meshflow.lite.fusion import CHANNELS
from meshflow.lite.graph import LiteModel, LiteOperator, LiteTensor, Quantization, Subgraph
from meshflow.lite.weight_quantization import quantize_symmetric

_INT8 = np.dtype(np.int8)


@dataclasses.dataclass(frozen=True)
class IntegerTypes:
    """Integer types of a quantized model.

    Attributes:
      dtype: dtype of activations.
      bias: dtype of biases.
      fixed: scale and zero point of operators that require them for their results.
      without: operators without a kernel for these types.
      versions: versions of the operators that have one.
    """

    dtype: np.dtype
    bias: np.dtype
    fixed: Mapping[str, tuple[float, int]]
    without: frozenset[str] = frozenset()
    versions: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def choose_quantization(self, low: float, high: float) -> Quantization:
        """Return the quantization of a range that includes zero; symmetric for int16."""
        low, high = min(low, 0.0), max(high, 0.0)
        if self.dtype == _INT8:
            scale = max(high - low, 1e-8) / 255
            zero = int(np.clip(round(-128 - low / scale), -128, 127))
        else:
            scale, zero = max(high, -low, 1e-8) / 32767, 0
        return Quantization(np.asarray([scale], np.float32), np.asarray([zero]))

    def quantize_array(self, data: np.ndarray, quantization: Quantization) -> np.ndarray:
        """Quantize an array of floats."""
        bounds = np.iinfo(self.dtype)
        steps = np.round(data / quantization.scales[0]) + quantization.zero_points[0]
        return np.clip(steps, bounds.min, bounds.max).astype(self.dtype)


INT8 = IntegerTypes(
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
INT16 = IntegerTypes(
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
# Indices of the data, the weights and the bias among the operands of operators with weights.
_OPERAND_INDICES = {**dict.fromkeys(CHANNELS, (0, 1, 2)), "TRANSPOSE_CONV": (2, 1, 3)}
_CHANNEL_AXES = {**CHANNELS, "TRANSPOSE_CONV": 0}
# Operators with results of the same scale as some operands; the indices of these, None for all.
SAME_SCALE_OPERANDS: dict[str, tuple[int, ...] | None] = {
    "MAX_POOL_2D": (0,), "AVERAGE_POOL_2D": (0,), "RESHAPE": (0,), "TRANSPOSE": (0,), "STRIDED_SLICE": (0,),
    "SLICE": (0,), "PAD": (0,), "PADV2": (0,), "SPLIT_V": (0,), "GATHER": (0,), "REDUCE_MAX": (0,),
    "REDUCE_MIN": (0,), "BROADCAST_TO": (0,), "CONCATENATION": None, "PACK": None, "MAXIMUM": None, "MINIMUM": None,
    "SELECT_V2": (1, 2), "RESIZE_BILINEAR": (0,), "RESIZE_NEAREST_NEIGHBOR": (0,), "SPACE_TO_DEPTH": (0,),
    "DEPTH_TO_SPACE": (0,), "MIRROR_PAD": (0,), "UNPACK": (0,), "TILE": (0,), "SPACE_TO_BATCH_ND": (0,),
    "BATCH_TO_SPACE_ND": (0,), "REVERSE_V2": (0,),
}  # fmt: skip
_ANY_SCALE_OPERATORS = {
    "ADD", "SUB", "MUL", "MEAN", "RELU", "RELU6", "BATCH_MATMUL", "GELU", "SUM", "ELU", "LEAKY_RELU", "HARD_SWISH",
    "PRELU", "SQUARED_DIFFERENCE", "RELU_N1_TO_1",
}  # fmt: skip
# Operators that take quantized operands, but have other results.
_UNQUANTIZED_RESULT_OPERATORS = {
    "ARG_MAX",
    "EQUAL",
    "NOT_EQUAL",
    "GREATER",
    "GREATER_EQUAL",
    "LESS",
    "LESS_EQUAL",
}


def quantize_graph(
    graph: LiteModel,
    ranges: dict[LiteTensor, tuple[float, float]],
    kind: IntegerTypes = INT8,
    denied: Collection[LiteOperator] = (),
) -> list[str]:
    """Quantize the subgraphs of signatures in place.

    Args:
      graph: a float model; its inputs and outputs remain float32.
      ranges: minimum and maximum of its tensors.
      kind: the integer types to quantize to.
      denied: operators that remain in float32.

    Returns:
      The codes of the operators that remain in float32.
    """
    indices = sorted({s[1] for s in graph.signatures})
    return sorted(
        {c for n in indices for c in _Quantizer(graph.subgraphs[n], ranges, kind, denied).run()}
    )


class _Quantizer:
    def __init__(
        self,
        subgraph: Subgraph,
        ranges: dict[LiteTensor, tuple[float, float]],
        kind: IntegerTypes,
        denied: Collection[LiteOperator],
    ) -> None:
        self._graph, self._ranges, self._kind, self._denied = subgraph, ranges, kind, denied
        self._scale_groups: dict[LiteTensor, LiteTensor] = {}
        self._quantizations: dict[LiteTensor, Quantization] = {}
        self._integer_tensors: dict[LiteTensor, LiteTensor] = {}
        self._quantized: set[LiteOperator] = set()

    def run(self) -> list[str]:
        self._choose_operators()
        self._choose_quantizations()
        computed = {t for o in self._quantized for t in _get_float_results(o)}
        operators: list[LiteOperator] = []
        converted: set[LiteTensor] = set()
        for operator in self._graph.operators:
            if operator in self._quantized:
                for tensor in self._get_quantized_operands(operator):
                    if tensor.data is None and tensor not in computed and tensor not in converted:
                        converted.add(tensor)
                        result = self._get_integer_tensor(tensor)
                        operators.append(
                            LiteOperator("QUANTIZE", [tensor], [result], {}, 1, operator.scope)
                        )
                operators += self._quantize_operator(operator)
            else:
                if operator.code == "SHAPE" and operator.inputs[0] in computed:
                    operator.inputs = [
                        self._get_integer_tensor(t) for t in operator.inputs if t is not None
                    ]
                operators += self._dequantize(operator.inputs, computed, converted)
                operators.append(operator)
        operators += self._dequantize(self._graph.outputs, computed, converted)
        self._graph.operators = operators
        return [
            o.code
            for o in operators
            if o.code not in ("QUANTIZE", "DEQUANTIZE", "SHAPE")
            and any(t is not None and t.dtype == np.float32 for t in [*o.inputs, *o.outputs])
        ]

    # ---- which operators, and which scales ---------------------------------------------------

    def _get_quantized_operands(self, operator: LiteOperator) -> list[LiteTensor]:
        """Return the operands to quantize, including constants but not weights and biases."""
        if operator.code in _OPERAND_INDICES:
            source = operator.inputs[_OPERAND_INDICES[operator.code][0]]
            return [] if source is None else [source]
        indices = SAME_SCALE_OPERANDS.get(operator.code)
        inputs = operator.inputs if indices is None else [operator.inputs[i] for i in indices]
        return [t for t in inputs if t is not None and t.dtype == np.float32]

    def _choose_operators(self) -> None:
        computed: set[LiteTensor] = set(self._graph.inputs)
        for operator in self._graph.operators:
            operands, results = self._get_quantized_operands(operator), _get_float_results(operator)
            has_ranges = all(t.data is not None or t in self._ranges for t in [*operands, *results])
            if not has_ranges or not operands or operator.code in self._kind.without:
                continue
            if operator in self._denied:
                continue
            if (
                len(results) < len(operator.outputs)
                and operator.code not in _UNQUANTIZED_RESULT_OPERATORS
            ):
                continue
            if operator.code in _OPERAND_INDICES:
                weights, bias = _get_weights(operator)
                is_quantizable = weights is not None and weights.data is not None
                is_quantizable = is_quantizable and (bias is None or bias.data is not None)
            elif (
                operator.code in SAME_SCALE_OPERANDS
                or operator.code in _UNQUANTIZED_RESULT_OPERATORS
            ):
                # Moving floats costs less than converting them.
                is_quantizable = all(t in computed or t.data is not None for t in operands)
            else:
                is_quantizable = operator.code in _ANY_SCALE_OPERATORS or self._fits_fixed_scale(
                    operator
                )
            if is_quantizable:
                self._quantized.add(operator)
                computed.update(results)

    def _fits_fixed_scale(self, operator: LiteOperator) -> bool:
        """Check whether an operator has a fixed scale that covers the range of its results."""
        if operator.code not in self._kind.fixed:
            return False
        scale, zero = self._kind.fixed[operator.code]
        low, high = self._ranges[operator.outputs[0]]
        bounds = np.iinfo(self._kind.dtype)
        return scale * (bounds.min - zero - 1) <= low and high <= scale * (bounds.max - zero + 1)

    def _find_group(self, tensor: LiteTensor) -> LiteTensor:
        while tensor in self._scale_groups:
            tensor = self._scale_groups[tensor]
        return tensor

    def _choose_quantizations(self) -> None:
        """Choose quantizations; tensors that same-scale operators connect share one."""
        limits: dict[LiteTensor, tuple[float, float]] = {}
        members: dict[LiteTensor, int] = {}
        tensors_in_order: dict[LiteTensor, None] = {}
        for operator in self._graph.operators:
            if operator not in self._quantized:
                continue
            tensors = [*self._get_quantized_operands(operator), *_get_float_results(operator)]
            tensors_in_order |= dict.fromkeys(tensors)
            if operator.code in SAME_SCALE_OPERANDS:
                first = self._find_group(tensors[0])
                for tensor in tensors[1:]:
                    root = self._find_group(tensor)
                    if root is not first:
                        self._scale_groups[root] = first
        for tensor in tensors_in_order:
            root = self._find_group(tensor)
            low, high = self._ranges.get(tensor, (0.0, 0.0))
            if tensor.data is not None and tensor.data.size:
                low, high = float(tensor.data.min()), float(tensor.data.max())
            lowest, highest = limits.get(root, (0.0, 0.0))
            limits[root] = min(low, lowest), max(high, highest)
            members[root] = members.get(root, 0) + 1
        self._quantizations = {
            root: self._kind.choose_quantization(*limit) for root, limit in limits.items()
        }
        for operator in self._quantized:
            if (
                operator.code in self._kind.fixed
                and members[self._find_group(operator.outputs[0])] == 1
            ):
                self._quantizations[operator.outputs[0]] = self._get_fixed_quantization(
                    operator.code
                )

    # ---- integer tensors and operators -------------------------------------------------------

    def _get_integer_tensor(self, tensor: LiteTensor) -> LiteTensor:
        if tensor not in self._integer_tensors:
            quantization = self._quantizations[self._find_group(tensor)]
            data = (
                None
                if tensor.data is None
                else self._kind.quantize_array(tensor.data, quantization)
            )
            name = f"{tensor.name}/{self._kind.dtype.name}"
            integers = LiteTensor(tensor.shape, self._kind.dtype, name, data, quantization)
            self._integer_tensors[tensor] = integers
        return self._integer_tensors[tensor]

    def _dequantize(
        self,
        tensors: Iterable[LiteTensor | None],
        computed: set[LiteTensor],
        converted: set[LiteTensor],
    ) -> list[LiteOperator]:
        """Return operators that dequantize the tensors that float operators read."""
        operators = []
        for tensor in tensors:
            if tensor is not None and tensor in computed and tensor not in converted:
                converted.add(tensor)
                operators.append(
                    LiteOperator("DEQUANTIZE", [self._get_integer_tensor(tensor)], [tensor], {}, 2)
                )
        return operators

    def _quantize_operator(self, operator: LiteOperator) -> list[LiteOperator]:
        code = operator.code
        if code == "PADV2" and operator.inputs[2] is not None:
            quantization = self._quantizations[self._find_group(operator.outputs[0])]
            filler = operator.inputs[2]
            assert filler.data is not None
            data = self._kind.quantize_array(np.asarray(filler.data), quantization)
            operator.inputs[2] = LiteTensor(filler.shape, self._kind.dtype, "", data, quantization)
        if code in _OPERAND_INDICES:
            self._quantize_weights(operator)
        quantized = set(self._get_quantized_operands(operator))
        operator.inputs = [
            self._get_integer_tensor(t) if t in quantized else t for t in operator.inputs
        ]
        results = operator.outputs
        float_results = set(_get_float_results(operator))
        operator.outputs = [
            self._get_integer_tensor(t) if t in float_results else t for t in results
        ]
        operator.version = self._kind.versions.get(code, 1)
        if code in ("ADD", "SUB"):
            # LiteRT must not round scales to powers of two.
            operator.options["potScaleInt16"] = False
        if code not in self._kind.fixed:
            return [operator]
        target = operator.outputs[0]
        if target.quantization is not None and target.quantization.scales[0] == np.float32(self._kind.fixed[code][0]):  # fmt: skip
            return [operator]
        fixed_result = LiteTensor(
            target.shape,
            self._kind.dtype,
            f"{target.name}/own",
            None,
            self._get_fixed_quantization(code),
        )
        operator.outputs = [fixed_result]
        return [operator, LiteOperator("QUANTIZE", [fixed_result], [target], {}, 2, operator.scope)]

    def _quantize_weights(self, operator: LiteOperator) -> None:
        first, second, third = _OPERAND_INDICES[operator.code]
        source, (weights, bias) = operator.inputs[first], _get_weights(operator)
        assert source is not None and weights is not None and weights.data is not None
        step, limit = self._quantizations[self._find_group(source)].scales[0], np.iinfo(np.int32)
        min_scales: np.ndarray | float = 0.0
        if bias is not None and bias.data is not None:
            # The scale of weights must be large enough that the bias fits 32 bits; doubles would
            # round larger integers.
            min_scales = np.abs(bias.data).astype(float) / (float(step) * (limit.max - 1))
        integers, quantization = quantize_symmetric(
            weights.data, _CHANNEL_AXES[operator.code], min_scales
        )
        operator.inputs[second] = LiteTensor(
            weights.shape, _INT8, weights.name, integers, quantization
        )
        if bias is not None:
            assert bias.data is not None
            scales = quantization.scales * step
            data = np.clip(np.round(bias.data.astype(float) / scales), limit.min, limit.max)
            bias_quantization = Quantization(scales, np.zeros(scales.size, np.int64))
            integer_bias = data.astype(self._kind.bias)
            operator.inputs[third] = LiteTensor(
                bias.shape, self._kind.bias, bias.name, integer_bias, bias_quantization
            )

    def _get_fixed_quantization(self, code: str) -> Quantization:
        scale, zero = self._kind.fixed[code]
        return Quantization(np.asarray([scale], np.float32), np.asarray([zero]))


def _get_float_results(operator: LiteOperator) -> list[LiteTensor]:
    return [t for t in operator.outputs if t.dtype == np.float32]


def _get_weights(operator: LiteOperator) -> tuple[LiteTensor | None, LiteTensor | None]:
    """Return the weights and the bias of an operator."""
    _, second, third = _OPERAND_INDICES[operator.code]
    return operator.inputs[second], operator.inputs[third] if third < len(operator.inputs) else None


def quantize_inputs_and_outputs(
    graph: LiteModel,
    ranges: dict[LiteTensor, tuple[float, float]],
    inputs: DTypeLike,
    outputs: DTypeLike,
    kind: IntegerTypes = INT8,
) -> None:
    """Quantize the inputs and outputs of quantized signatures in place.

    Args:
      graph: a model after `quantize_graph`.
      ranges: minimum and maximum of the tensors of the float model.
      inputs: dtype of inputs: float32 (unchanged), that of the activations, or uint8 for int8.
      outputs: dtype of outputs, one of the same.
      kind: the integer types of the model.
    """
    for _, index, _, _ in graph.signatures:
        subgraph = graph.subgraphs[index]
        quantizations = {
            t: kind.choose_quantization(*ranges[t])
            for t in [*subgraph.inputs, *subgraph.outputs]
            if t in ranges
        }
        if np.dtype(inputs) != np.float32:
            subgraph.inputs = [
                _quantize_input(subgraph, t, np.dtype(inputs), quantizations)
                for t in subgraph.inputs
            ]
        if np.dtype(outputs) != np.float32:
            subgraph.outputs = [_quantize_output(subgraph, t, np.dtype(outputs), quantizations) for t in subgraph.outputs]  # fmt: skip
        subgraph.remove_unused_operators()


def _make_integer_tensor(
    quantization: Quantization, like: LiteTensor, dtype: np.dtype
) -> LiteTensor:
    """Return a tensor with the name of another; the integers of uint8 are shifted by 128."""
    offset = 128 if dtype == np.uint8 else 0
    shifted = Quantization(quantization.scales, quantization.zero_points + offset)
    return LiteTensor(like.shape, dtype, like.name, None, shifted)


def _quantize_input(
    subgraph: Subgraph,
    tensor: LiteTensor,
    dtype: np.dtype,
    quantizations: dict[LiteTensor, Quantization],
) -> LiteTensor:
    """Quantize an input, and dequantize it for operators on floats."""
    if tensor not in quantizations:
        return tensor
    consumers = [o for o in subgraph.operators if tensor in o.inputs]
    operator = next((o for o in consumers if o.code == "QUANTIZE"), None)
    if operator is not None and dtype != np.uint8:
        subgraph.operators.remove(operator)
        result = operator.outputs[0]
        result.name = tensor.name
    else:
        quantization = None if operator is None else operator.outputs[0].quantization
        result = _make_integer_tensor(quantization or quantizations[tensor], tensor, dtype)
        if operator is not None:
            operator.inputs = [result]
    for other in consumers:
        if other.code == "SHAPE":
            other.inputs = [result]
    if any(tensor in o.inputs for o in subgraph.operators):
        tensor.name += "/numbers"
        # LiteRT has DEQUANTIZE of int8 on all devices, but not of uint8.
        source = result
        if dtype == np.uint8:
            source = _make_integer_tensor(quantizations[tensor], tensor, np.dtype(np.int8))
        subgraph.operators.insert(0, LiteOperator("DEQUANTIZE", [source], [tensor], {}, 2))
        if source is not result:
            subgraph.operators.insert(0, LiteOperator("QUANTIZE", [result], [source], {}, 2))
    return result


def _quantize_output(
    subgraph: Subgraph,
    tensor: LiteTensor,
    dtype: np.dtype,
    quantizations: dict[LiteTensor, Quantization],
) -> LiteTensor:
    """Quantize an output."""
    if tensor not in quantizations:
        return tensor
    operator = subgraph.find_producers().get(tensor)
    source = None if operator is None or operator.code != "DEQUANTIZE" else operator.inputs[0]
    if source is not None and dtype != np.uint8:
        source.name = tensor.name
        return source
    if source is None:
        source_dtype = np.dtype(np.int8) if dtype == np.uint8 else dtype
        source = _make_integer_tensor(quantizations[tensor], tensor, source_dtype)
        tensor.name += "/numbers"
        subgraph.operators.append(LiteOperator("QUANTIZE", [tensor], [source], {}, 1))
        if dtype != np.uint8:
            return source
    assert source.quantization is not None
    result = _make_integer_tensor(source.quantization, source, dtype)
    subgraph.operators.append(LiteOperator("QUANTIZE", [source], [result], {}, 2))
    return result
