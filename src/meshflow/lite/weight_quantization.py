"""Quantization of weights to int8 per channel, or to float16; activations remain float32."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from meshflow.lite.fusion import CHANNELS
from meshflow.lite.graph import LiteModel, LiteOperator, LiteTensor, Quantization, Subgraph

# Quantization of smaller tensors saves too little memory.
_MIN_ELEMENTS = 1024
_HYBRID_VERSIONS = {"CONV_2D": 5, "DEPTHWISE_CONV_2D": 6, "FULLY_CONNECTED": 12}


def quantize_symmetric(
    data: np.ndarray, dimension: int | None, min_scales: np.ndarray | float = 0.0
) -> tuple[np.ndarray, Quantization]:
    """Quantize an array to int8, symmetric around 0.

    Args:
      data: float array.
      dimension: dimension of which each index has its own scale; None for one scale.
      min_scales: lower bound of the scales, for each index or for all.

    Returns:
      The integers and their quantization.
    """
    axes = tuple(i for i in range(data.ndim) if i != dimension)
    largest = np.abs(data).max(axes, keepdims=True)
    scales = np.where(largest > 0, largest / _count_steps(data, largest, axes), 1.0)
    shape = [-1 if i == dimension else 1 for i in range(data.ndim)]
    scales = np.maximum(scales, np.asarray(min_scales).reshape(shape)).astype(np.float32)
    integers = np.clip(np.round(data / scales), -127, 127).astype(np.int8)
    flat = scales.reshape(-1)
    return integers, Quantization(flat, np.zeros(flat.size, np.int64), dimension or 0)


def _count_steps(data: np.ndarray, largest: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Return the integer of the largest value: 127, or less if training rounded to fewer."""
    rows = np.moveaxis(data, axes, range(-len(axes), 0)).reshape(largest.size, -1)
    ratios = rows / np.where(largest > 0, largest, 1.0).reshape(-1, 1)
    num_steps = np.full(largest.size, 127.0)
    if rows.shape[1] < 8:
        return num_steps.reshape(largest.shape)
    counts = np.arange(1, 128)
    # A sample of the values excludes most counts.
    sample: np.ndarray = ratios[:, :: max(rows.shape[1] // 32, 1), None] * counts
    fits: np.ndarray = np.all(np.abs(sample - np.round(sample)) < 1e-3, axis=1)
    for row in np.flatnonzero(np.any(fits, axis=1)):
        for count in counts[fits[row]]:
            steps = ratios[row] * count
            if (np.abs(steps - np.round(steps)) < 1e-3).all():
                num_steps[row] = count
                break
    return num_steps.reshape(largest.shape)


def quantize_weights_to_int8(graph: LiteModel, denied: Collection[LiteOperator] = ()) -> None:
    """Quantize weights and embedding tables to int8; LiteRT quantizes the other operands at run time.

    Args:
      graph: the model.
      denied: operators that remain in float32.
    """
    for subgraph in graph.subgraphs:
        for operator in list(subgraph.operators):
            if operator in denied:
                continue
            if operator.code in CHANNELS:
                weights = operator.inputs[1]
                if _is_large_float_constant(weights):
                    assert weights is not None and weights.data is not None
                    operator.inputs[1] = _quantize_tensor(weights, CHANNELS[operator.code])
                    operator.version = _HYBRID_VERSIONS[operator.code]
            elif operator.code == "GATHER" and _is_large_float_constant(operator.inputs[0]):
                _quantize_table(subgraph, operator)


def _is_large_float_constant(tensor: LiteTensor | None) -> bool:
    if tensor is None or tensor.data is None:
        return False
    return tensor.dtype == np.float32 and tensor.data.size >= _MIN_ELEMENTS


def _quantize_tensor(tensor: LiteTensor, dimension: int | None) -> LiteTensor:
    assert tensor.data is not None
    integers, quantization = quantize_symmetric(tensor.data, dimension)
    return LiteTensor(tensor.shape, integers.dtype, tensor.name, integers, quantization)


def _quantize_table(subgraph: Subgraph, operator: LiteOperator) -> None:
    """Gather rows of an int8 table, and dequantize them."""
    table, (result,) = operator.inputs[0], operator.outputs
    assert table is not None
    quantized = _quantize_tensor(table, None)
    rows = LiteTensor(
        result.shape, quantized.dtype, f"{result.name}/int8", None, quantized.quantization
    )
    operator.inputs[0], operator.outputs = quantized, [rows]
    operator.version = 2
    dequantize = LiteOperator("DEQUANTIZE", [rows], [result], {}, 2, operator.scope)
    subgraph.operators.insert(subgraph.operators.index(operator) + 1, dequantize)


def quantize_weights_to_float16(graph: LiteModel) -> None:
    """Convert constants to float16; LiteRT may convert them back before it computes."""
    for subgraph in graph.subgraphs:
        restored: dict[LiteTensor, LiteTensor] = {}
        dequantizers: list[LiteOperator] = []
        for operator in subgraph.operators:
            for position, tensor in enumerate(operator.inputs):
                if tensor is None or tensor.data is None or tensor.dtype != np.float32 or tensor.data.size < 2:  # fmt: skip
                    continue
                if tensor not in restored:
                    data = tensor.data.astype(np.float16)
                    half = LiteTensor(tensor.shape, data.dtype, f"{tensor.name}/float16", data)
                    restored[tensor] = LiteTensor(tensor.shape, tensor.dtype, tensor.name)
                    dequantizers.append(
                        LiteOperator("DEQUANTIZE", [half], [restored[tensor]], {}, 3)
                    )
                operator.inputs[position] = restored[tensor]
        subgraph.operators[:0] = dequantizers
