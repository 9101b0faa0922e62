"""Weights in fewer bits, while activations stay float32: int8 for each channel, or float16."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from meshflow.lite.fusing import CHANNELS
from meshflow.lite.graph import Graph, Operator, Quantization, Subgraph, Tensor

__all__ = ["by_channel", "float16_weights", "int8_weights"]

# Smaller tensors save nothing.
_LEAST = 1024
_VERSIONS = {"CONV_2D": 5, "DEPTHWISE_CONV_2D": 6, "FULLY_CONNECTED": 12}


def by_channel(
    data: np.ndarray, dimension: int | None, least: np.ndarray | float = 0.0
) -> tuple[np.ndarray, Quantization]:
    """Numbers as int8, symmetric around 0.

    Args:
      data: the numbers.
      dimension: that of which each index gets a scale of its own; None for one scale.
      least: what the scales are at least, one for each index or one for all.

    Returns:
      (integers, how they stand for the numbers).
    """
    axes = tuple(i for i in range(data.ndim) if i != dimension)
    largest = np.abs(data).max(axes, keepdims=True)
    scales = np.where(largest > 0, largest / _greatest_steps(data, largest, axes), 1.0)
    shape = [-1 if i == dimension else 1 for i in range(data.ndim)]
    scales = np.maximum(scales, np.asarray(least).reshape(shape)).astype(np.float32)
    integers = np.clip(np.round(data / scales), -127, 127).astype(np.int8)
    flat = scales.reshape(-1)
    return integers, Quantization(flat, np.zeros(flat.size, np.int64), dimension or 0)


def _greatest_steps(data: np.ndarray, largest: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """How many steps the largest number has: 127, or fewer where training has rounded all numbers to so many."""
    rows = np.moveaxis(data, axes, range(-len(axes), 0)).reshape(largest.size, -1)
    ratios = rows / np.where(largest > 0, largest, 1.0).reshape(-1, 1)
    found = np.full(largest.size, 127.0)
    if rows.shape[1] < 8:
        return found.reshape(largest.shape)
    counts = np.arange(1, 128)
    # Most numbers are ruled out by a few of them.
    some: np.ndarray = ratios[:, :: max(rows.shape[1] // 32, 1), None] * counts
    fits: np.ndarray = np.all(np.abs(some - np.round(some)) < 1e-3, axis=1)
    for row in np.flatnonzero(np.any(fits, axis=1)):
        for count in counts[fits[row]]:
            steps = ratios[row] * count
            if (np.abs(steps - np.round(steps)) < 1e-3).all():
                found[row] = count
                break
    return found.reshape(largest.shape)


def int8_weights(graph: Graph, denied: Collection[Operator] = ()) -> None:
    """Makes the weights of convolutions and products, and tables, int8; LiteRT quantizes what they meet as it runs.

    Args:
      graph: the model.
      denied: operators that stay as they are.
    """
    for subgraph in graph.subgraphs:
        for operator in list(subgraph.operators):
            if operator in denied:
                continue
            if operator.code in CHANNELS:
                weights = operator.inputs[1]
                if _large(weights):
                    assert weights is not None and weights.data is not None
                    operator.inputs[1] = _integers(weights, CHANNELS[operator.code])
                    operator.version = _VERSIONS[operator.code]
            elif operator.code == "GATHER" and _large(operator.inputs[0]):
                _table(subgraph, operator)


def _large(tensor: Tensor | None) -> bool:
    if tensor is None or tensor.data is None:
        return False
    return tensor.dtype == np.float32 and tensor.data.size >= _LEAST


def _integers(tensor: Tensor, dimension: int | None) -> Tensor:
    assert tensor.data is not None
    integers, how = by_channel(tensor.data, dimension)
    return Tensor(tensor.shape, integers.dtype, tensor.name, integers, how)


def _table(subgraph: Subgraph, operator: Operator) -> None:
    """Rows of integers are gathered, and made numbers afterwards."""
    table, (result,) = operator.inputs[0], operator.outputs
    assert table is not None
    small = _integers(table, None)
    rows = Tensor(result.shape, small.dtype, f"{result.name}/int8", None, small.quantization)
    operator.inputs[0], operator.outputs = small, [rows]
    operator.version = 2
    numbers = Operator("DEQUANTIZE", [rows], [result], {}, 2, operator.scope)
    subgraph.operators.insert(subgraph.operators.index(operator) + 1, numbers)


def float16_weights(graph: Graph) -> None:
    """Makes constants float16, which LiteRT makes float32 before it begins, or computes with where it can."""
    for subgraph in graph.subgraphs:
        wide: dict[Tensor, Tensor] = {}
        first: list[Operator] = []
        for operator in subgraph.operators:
            for place, tensor in enumerate(operator.inputs):
                if tensor is None or tensor.data is None or tensor.dtype != np.float32 or tensor.data.size < 2:  # fmt: skip
                    continue
                if tensor not in wide:
                    data = tensor.data.astype(np.float16)
                    half = Tensor(tensor.shape, data.dtype, f"{tensor.name}/float16", data)
                    wide[tensor] = Tensor(tensor.shape, tensor.dtype, tensor.name)
                    first.append(Operator("DEQUANTIZE", [half], [wide[tensor]], {}, 3))
                operator.inputs[place] = wide[tensor]
        subgraph.operators[:0] = first
