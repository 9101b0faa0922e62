"""Operator fusion: biases, batch normalization and activations are folded into their producers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.deployment.equations import DimSize
from meshflow.deployment.lowering import compute_same_padding
from meshflow.lite.graph import LiteModel, LiteOperator, LiteTensor, Subgraph
from meshflow.lite.lowering import SAME, VALID

# Dimension of the output channels in the weights.
CHANNELS = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 0}
_FUSED_ACTIVATIONS = {"RELU": 1, "RELU6": 3}
_BROADCASTING_OPERATORS = {"ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "BROADCAST_TO"}
_OPERATORS_WITH_ACTIVATION = {*CHANNELS, "ADD", "SUB", "MUL"}


@dataclasses.dataclass(frozen=True)
class _Dataflow:
    """Consumers and producers of the tensors of a subgraph; an absent operand, None, has neither."""

    subgraph: Subgraph
    consumers: Mapping[LiteTensor, list[LiteOperator]]
    producers: Mapping[Any, Any]

    def has_single_consumer(self, tensor: LiteTensor) -> bool:
        """Check whether one operator reads a tensor, which is no output."""
        return len(self.consumers.get(tensor, ())) == 1 and tensor not in self.subgraph.outputs


def fuse(graph: LiteModel) -> None:
    """Fuse operators in all subgraphs, until no rule applies."""
    for subgraph in graph.subgraphs:
        while _fuse_once(subgraph):
            subgraph.remove_unused_operators()


def _fuse_once(subgraph: Subgraph) -> bool:
    for rule in _RULES:
        dataflow = _Dataflow(subgraph, subgraph.find_consumers(), subgraph.find_producers())
        if any(rule(dataflow, o) for o in subgraph.operators):
            return True
    return False


def _fuse_relu6(g: _Dataflow, o: LiteOperator) -> bool:
    """Match a RELU and a MINIMUM of 6."""
    if o.code != "MINIMUM" or o.inputs[1] is None or o.inputs[1].data is None:
        return False
    first = g.producers.get(o.inputs[0])
    if first is None or first.code != "RELU" or not (o.inputs[1].data == 6).all():
        return False
    o.code, o.inputs, o.options = "RELU6", list(first.inputs), {}
    return True


def _fuse_relu_n1_to_1(g: _Dataflow, o: LiteOperator) -> bool:
    """Match a MINIMUM of 1 and a MAXIMUM of -1 in any order."""
    bounds = {"MINIMUM": 1, "MAXIMUM": -1}
    first = g.producers.get(o.inputs[0]) if o.code in bounds else None
    if first is None or first.code == o.code or first.code not in bounds:
        return False
    for operator in (o, first):
        data = None if operator.inputs[1] is None else operator.inputs[1].data
        if data is None or data.dtype != np.float32 or not (data == bounds[operator.code]).all():
            return False
    o.code, o.inputs, o.options = "RELU_N1_TO_1", list(first.inputs[:1]), {}
    return True


def _fuse_squared_difference(g: _Dataflow, o: LiteOperator) -> bool:
    """Match the square of a difference."""
    first = g.producers.get(o.inputs[0]) if o.code == "SQUARE" else None
    if first is None or first.code != "SUB" or first.options.get("fusedActivationFunction"):
        return False
    if not g.has_single_consumer(first.outputs[0]):
        return False
    o.code, o.inputs = "SQUARED_DIFFERENCE", list(first.inputs)
    o.options = {"kind": "SquaredDifferenceOptions"}
    return True


def _find_weighted_producer(g: _Dataflow, tensor: LiteTensor) -> tuple[Any, LiteOperator | None]:
    """Return the convolution or product that only this tensor consumes, and a RESHAPE between them."""
    if not g.has_single_consumer(tensor):
        return None, None
    producer, reshape = g.producers.get(tensor), None
    if producer is not None and producer.code == "RESHAPE":
        reshape, source = producer, producer.inputs[0]
        if not g.has_single_consumer(source):
            return None, None
        producer = g.producers.get(source)
    if producer is None or producer.code not in CHANNELS:
        return None, None
    return producer, reshape


def _fuse_padding(g: _Dataflow, o: LiteOperator) -> bool:
    """Match a convolution of an image that is padded with zeros like mode 'SAME'."""
    if o.code not in ("CONV_2D", "DEPTHWISE_CONV_2D") or o.options.get("padding") != VALID:
        return False
    pad = g.producers.get(o.inputs[0])
    if pad is None or pad.code != "PAD" or pad.inputs[1].data is None:
        return False
    image, weights = pad.inputs[0], o.inputs[1]
    assert weights is not None
    if not g.has_single_consumer(pad.outputs[0]):
        return False
    expected: list[Any] = [(0, 0)]
    for axis, name in ((1, "H"), (2, "W")):
        extent = (weights.shape[axis] - 1) * o.options[f"dilation{name}Factor"] + 1
        expected.append(
            *compute_same_padding([image.shape[axis]], [extent], [o.options[f"stride{name}"]])
        )
    if [tuple(p) for p in pad.inputs[1].data.tolist()] != [*expected, (0, 0)]:
        return False
    o.inputs[0], o.options["padding"] = image, SAME
    return True


def _fuse_affine(g: _Dataflow, o: LiteOperator) -> bool:
    """Match a scale or bias of each output channel of a convolution or product."""
    if o.code not in ("ADD", "SUB", "MUL", "DIV") or o.options.get("fusedActivationFunction"):
        return False
    x, y = o.inputs
    if x is not None and x.data is not None and o.code in ("ADD", "MUL"):
        x, y = y, x
    if x is None or y is None or y.data is None or x.shape != o.outputs[0].shape:
        return False
    producer, reshape = _find_weighted_producer(g, x)
    if producer is None or producer.options.get("fusedActivationFunction"):
        return False
    weights = producer.inputs[1]
    if weights.data is None:
        return False
    channels = weights.shape[CHANNELS[producer.code]]
    factors = _expand_to_channels(y, x.shape, channels)
    if factors is None:
        return False
    bias = producer.inputs[2]
    bias = np.zeros(channels, np.float32) if bias is None else bias.data
    if o.code in ("MUL", "DIV"):
        factors = factors if o.code == "MUL" else 1 / factors
        shape = [1] * len(weights.shape)
        shape[CHANNELS[producer.code]] = channels
        scaled = (weights.data * factors.reshape(shape)).astype(np.float32)
        producer.inputs[1] = LiteTensor(scaled.shape, scaled.dtype, weights.name, scaled)
        bias = bias * factors
    else:
        bias = bias + (factors if o.code == "ADD" else -factors)
    producer.inputs[2] = LiteTensor((channels,), np.dtype(np.float32), "", bias.astype(np.float32))
    (reshape or producer).outputs = o.outputs
    g.subgraph.operators.remove(o)
    return True


def _expand_to_channels(
    tensor: LiteTensor, shape: Sequence[DimSize], channels: int
) -> np.ndarray | None:
    """Return a constant as one value per channel, or None if it varies along other dimensions."""
    data = tensor.data
    assert data is not None
    if data.size == 1:
        return np.broadcast_to(data.reshape(-1), (channels,))
    if data.size != channels:
        return None
    padded = (1,) * (len(shape) - data.ndim) + data.shape
    for i in range(len(shape)):
        if set(padded[:i]) <= {1} and padded[i:] == tuple(shape[i:]):
            is_static = all(isinstance(d, int) for d in shape[i:])
            return data.reshape(-1) if is_static and math.prod(shape[i:]) == channels else None
    return None


def _fuse_activation(g: _Dataflow, o: LiteOperator) -> bool:
    if o.code not in _FUSED_ACTIVATIONS:
        return False
    source = o.inputs[0]
    assert source is not None
    if not g.has_single_consumer(source):
        return False
    producer, reshape = g.producers.get(source), None
    if producer is not None and producer.code == "RESHAPE":
        producer, reshape = _find_weighted_producer(g, source)
    if producer is None or producer.code not in _OPERATORS_WITH_ACTIVATION:
        return False
    if producer.outputs[0].dtype != np.float32:
        return False
    if producer.options.get("fusedActivationFunction"):
        return False
    producer.options["fusedActivationFunction"] = _FUSED_ACTIVATIONS[o.code]
    (reshape or producer).outputs = o.outputs
    g.subgraph.operators.remove(o)
    return True


def _fuse_prelu(g: _Dataflow, o: LiteOperator) -> bool:
    """Match max(x, 0) - slope * max(-x, 0) with a slope for each channel."""
    if o.code != "SUB" or o.options.get("fusedActivationFunction"):
        return False
    first, product = (g.producers.get(t) for t in o.inputs)
    if first is None or product is None or (first.code, product.code) != ("RELU", "MUL"):
        return False
    slope, rest = sorted(product.inputs, key=lambda t: t.data is None)
    second = g.producers.get(rest)
    if slope.data is None or second is None or second.code != "RELU":
        return False
    negated, source = g.producers.get(second.inputs[0]), first.inputs[0]
    if negated is None or negated.code != "NEG" or negated.inputs[0] is not source:
        return False
    if any(not g.has_single_consumer(m.outputs[0]) for m in (first, product, second)):
        return False
    shape = slope.shape if len(slope.shape) < len(source.shape) else slope.shape[1:]
    if len(slope.shape) == len(source.shape) and slope.shape[0] != 1:
        return False
    slopes = LiteTensor(shape, slope.dtype, slope.name, slope.data.reshape(shape))
    o.code, o.inputs, o.options = "PRELU", [source, slopes], {}
    return True


def _merge_reshapes(g: _Dataflow, o: LiteOperator) -> bool:
    """Let a RESHAPE read the operand of the RESHAPE before it."""
    if o.code != "RESHAPE" or o.inputs[0] is None:
        return False
    first = g.producers.get(o.inputs[0])
    if first is None or first.code != "RESHAPE" or not g.has_single_consumer(o.inputs[0]):
        return False
    source, result = first.inputs[0], o.outputs[0]
    assert source is not None
    if source.shape == result.shape and _forward_operand(g, o, source):
        return True
    o.inputs[0] = source
    return True


def _forward_operand(g: _Dataflow, o: LiteOperator, source: LiteTensor) -> bool:
    """Replace the result of an operator by a tensor, and remove the operator."""
    result = o.outputs[0]
    if result in g.subgraph.outputs:
        producer = g.producers.get(source)
        if producer is None or source in g.subgraph.outputs:
            return False
        # An output of the subgraph keeps its name, so the producer of the operand computes it.
        producer.outputs = [result if t is source else t for t in producer.outputs]
        source, result = result, source
    for reader in g.consumers.get(result, ()):
        reader.inputs = [source if t is result else t for t in reader.inputs]
    g.subgraph.operators.remove(o)
    return True


def _fuse_dropped_dimensions(g: _Dataflow, o: LiteOperator) -> bool:
    """Match a reduction that keeps the dimensions and a RESHAPE that removes them."""
    first = g.producers.get(o.inputs[0]) if o.code == "RESHAPE" else None
    if first is None or not first.options.get("keepDims"):
        return False
    if "ReducerOptions" not in first.options.values():
        return False
    source, axes = first.inputs[0].shape, first.inputs[1].data.tolist()
    shape = tuple(d for i, d in enumerate(source) if i not in axes)
    if o.outputs[0].shape != shape or not g.has_single_consumer(first.outputs[0]):
        return False
    first.outputs, first.options["keepDims"] = o.outputs, False
    g.subgraph.operators.remove(o)
    return True


def _remove_leading_ones(g: _Dataflow, o: LiteOperator) -> bool:
    """Remove a RESHAPE that only adds leading dimensions of size 1, which broadcasting adds too."""
    if o.code not in _BROADCASTING_OPERATORS:
        return False
    rank = max(len(t.shape) for t in o.inputs)  # type: ignore[union-attr]
    for position, tensor in enumerate(o.inputs):
        producer = g.producers.get(tensor)
        if producer is None or producer.code != "RESHAPE":
            continue
        source = producer.inputs[0].shape
        padded = (1,) * (len(tensor.shape) - len(source)) + tuple(source)  # type: ignore[union-attr]
        others = [t for i, t in enumerate(o.inputs) if i != position]
        is_broadcast = o.code == "BROADCAST_TO" or any(len(t.shape) == rank for t in others)  # type: ignore[union-attr]
        if padded == tensor.shape and len(source) < len(padded) and is_broadcast:  # type: ignore[union-attr]
            o.inputs[position] = producer.inputs[0]
            return True
    return False


def _remove_cast_pair(g: _Dataflow, o: LiteOperator) -> bool:
    """Remove a cast to a wider dtype and the cast back."""
    first = g.producers.get(o.inputs[0]) if o.code == "CAST" else None
    if first is None or first.code != "CAST":
        return False
    source, between = first.inputs[0], first.outputs[0].dtype
    if source.dtype != o.outputs[0].dtype or not np.can_cast(source.dtype, between):
        return False
    return _forward_operand(g, o, source)


def _fuse_transpose(g: _Dataflow, o: LiteOperator) -> bool:
    """Match a BATCH_MATMUL of a transposed operand."""
    if o.code != "BATCH_MATMUL":
        return False
    for position, option in enumerate(("adjX", "adjY")):
        producer = g.producers.get(o.inputs[position])
        if producer is None or producer.code != "TRANSPOSE":
            continue
        order = producer.inputs[1]
        rank = len(o.inputs[position].shape)  # type: ignore[union-attr]
        if order.data is None or order.data.tolist() != [*range(rank - 2), rank - 1, rank - 2]:
            continue
        o.inputs[position] = producer.inputs[0]
        o.options[option] = not o.options.get(option, False)
        return True
    return False


_RULES = (_fuse_relu6, _fuse_relu_n1_to_1, _fuse_squared_difference, _fuse_padding, _fuse_affine, _fuse_activation, _fuse_prelu, _merge_reshapes, _fuse_dropped_dimensions, _remove_leading_ones, _remove_cast_pair, _fuse_transpose)  # fmt: skip
