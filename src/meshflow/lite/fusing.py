"""Operators joined: biases, batch normalization and activations go into the convolutions and products before them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshflow.lite.graph import Graph, Operator, Subgraph, Tensor
from meshflow.lite.lowering import SAME, VALID, same_pads

__all__ = ["fuse"]

# The dimension of the output channels in the weights.
CHANNELS = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 0}
_ACTIVATIONS = {"RELU": 1, "RELU6": 3}
_BROADCASTING = {"ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "BROADCAST_TO"}
_ACTIVATED = {*CHANNELS, "ADD", "SUB", "MUL"}


def fuse(graph: Graph) -> None:
    """Joins operators, in all subgraphs, as long as there are some to join."""
    for subgraph in graph.subgraphs:
        while any(_once(subgraph, rule) for rule in _RULES):
            subgraph.drop_unused()


def _once(subgraph: Subgraph, rule: Any) -> bool:
    readers, makers = subgraph.readers(), subgraph.makers()
    return any(rule(subgraph, o, readers, makers) for o in subgraph.operators)


def _six(subgraph: Subgraph, o: Operator, readers: Any, makers: Any) -> bool:
    """A RELU with the bound 6 is an operator of its own."""
    if o.code != "MINIMUM" or o.inputs[1] is None or o.inputs[1].data is None:
        return False
    first = makers.get(o.inputs[0])
    if first is None or first.code != "RELU" or not (o.inputs[1].data == 6).all():
        return False
    o.code, o.inputs, o.options = "RELU6", list(first.inputs), {}
    return True


def _one(subgraph: Subgraph, o: Operator, readers: Any, makers: Any) -> bool:
    """Between -1 and 1 is an operator of its own."""
    bounds = {"MINIMUM": 1, "MAXIMUM": -1}
    first = makers.get(o.inputs[0]) if o.code in bounds else None
    if first is None or first.code == o.code or first.code not in bounds:
        return False
    for operator in (o, first):
        data = None if operator.inputs[1] is None else operator.inputs[1].data
        if data is None or data.dtype != np.float32 or not (data == bounds[operator.code]).all():
            return False
    o.code, o.inputs, o.options = "RELU_N1_TO_1", list(first.inputs[:1]), {}
    return True


def _difference(subgraph: Subgraph, o: Operator, readers: Any, makers: Any) -> bool:
    """The square of a difference that nobody else reads."""
    first = makers.get(o.inputs[0]) if o.code == "SQUARE" else None
    if first is None or first.code != "SUB" or first.options.get("fusedActivationFunction"):
        return False
    if not _alone(subgraph, first.outputs[0], readers):
        return False
    o.code, o.inputs = "SQUARED_DIFFERENCE", list(first.inputs)
    o.options = {"kind": "SquaredDifferenceOptions"}
    return True


def _alone(subgraph: Subgraph, tensor: Tensor, readers: Any) -> bool:
    return len(readers.get(tensor, ())) == 1 and tensor not in subgraph.outputs


def _before(subgraph: Subgraph, tensor: Tensor, readers: Any, makers: Any) -> Any:
    """The convolution or product that makes a tensor, and the reshape between, for no other reader."""
    if not _alone(subgraph, tensor, readers):
        return None, None
    maker, reshape = makers.get(tensor), None
    if maker is not None and maker.code == "RESHAPE":
        reshape, source = maker, maker.inputs[0]
        if not _alone(subgraph, source, readers):
            return None, None
        maker = makers.get(source)
    if maker is None or maker.code not in CHANNELS:
        return None, None
    return maker, reshape


def _padded(subgraph: Subgraph, o: Operator, readers: Any, makers: Any) -> bool:
    """Zeros around an image that a convolution adds by itself."""
    if o.code not in ("CONV_2D", "DEPTHWISE_CONV_2D") or o.options.get("padding") != VALID:
        return False
    pad = makers.get(o.inputs[0])
    if pad is None or pad.code != "PAD" or pad.inputs[1].data is None:
        return False
    image, weights = pad.inputs[0], o.inputs[1]
    assert weights is not None
    if not _alone(subgraph, pad.outputs[0], readers):
        return False
    expected: list[Any] = [(0, 0)]
    for axis, name in ((1, "H"), (2, "W")):
        extent = (weights.shape[axis] - 1) * o.options[f"dilation{name}Factor"] + 1
        expected.append(*same_pads([image.shape[axis]], [extent], [o.options[f"stride{name}"]]))
    if [tuple(p) for p in pad.inputs[1].data.tolist()] != [*expected, (0, 0)]:
        return False
    o.inputs[0], o.options["padding"] = image, SAME
    return True


def _affine(subgraph: Subgraph, o: Operator, readers: Any, makers: Any) -> bool:
    """Numbers for each channel that a result is scaled by, or that are added to it."""
    if o.code not in ("ADD", "SUB", "MUL", "DIV") or o.options.get("fusedActivationFunction"):
        return False
    one, other = o.inputs
    if one is not None and one.data is not None and o.code in ("ADD", "MUL"):
        one, other = other, one
    if one is None or other is None or other.data is None or one.shape != o.outputs[0].shape:
        return False
    maker, reshape = _before(subgraph, one, readers, makers)
    if maker is None or maker.options.get("fusedActivationFunction"):
        return False
    weights = maker.inputs[1]
    if weights.data is None:
        return False
    channels = weights.shape[CHANNELS[maker.code]]
    numbers = _for_channels(other, one.shape, channels)
    if numbers is None:
        return False
    bias = maker.inputs[2]
    bias = np.zeros(channels, np.float32) if bias is None else bias.data
    if o.code in ("MUL", "DIV"):
        numbers = numbers if o.code == "MUL" else 1 / numbers
        shape = [1] * len(weights.shape)
        shape[CHANNELS[maker.code]] = channels
        scaled = (weights.data * numbers.reshape(shape)).astype(np.float32)
        maker.inputs[1] = Tensor(scaled.shape, scaled.dtype, weights.name, scaled)
        bias = bias * numbers
    else:
        bias = bias + (numbers if o.code == "ADD" else -numbers)
    maker.inputs[2] = Tensor((channels,), np.dtype(np.float32), "", bias.astype(np.float32))
    (reshape or maker).outputs = o.outputs
    subgraph.operators.remove(o)
    return True


def _for_channels(tensor: Tensor, shape: Any, channels: int) -> np.ndarray | None:
    """A constant as a number for each channel, if its other dimensions repeat themselves."""
    data = tensor.data
    assert data is not None
    if data.size == 1:
        return np.broadcast_to(data.reshape(-1), (channels,))
    if data.size != channels:
        return None
    padded = (1,) * (len(shape) - data.ndim) + data.shape
    for i in range(len(shape)):
        if set(padded[:i]) <= {1} and padded[i:] == tuple(shape[i:]):
            known = all(isinstance(d, int) for d in shape[i:])
            return data.reshape(-1) if known and math.prod(shape[i:]) == channels else None
    return None


def _activation(subgraph: Subgraph, o: Operator, readers: Any, makers: Any) -> bool:
    if o.code not in _ACTIVATIONS:
        return False
    source = o.inputs[0]
    assert source is not None
    if not _alone(subgraph, source, readers):
        return False
    maker, reshape = makers.get(source), None
    if maker is not None and maker.code == "RESHAPE":
        maker, reshape = _before(subgraph, source, readers, makers)
    if maker is None or maker.code not in _ACTIVATED or maker.outputs[0].dtype != np.float32:
        return False
    if maker.options.get("fusedActivationFunction"):
        return False
    maker.options["fusedActivationFunction"] = _ACTIVATIONS[o.code]
    (reshape or maker).outputs = o.outputs
    subgraph.operators.remove(o)
    return True


def _parametric(subgraph: Subgraph, o: Operator, readers: Any, makers: Any) -> bool:
    """max(x, 0) - a * max(-x, 0), with an a for each channel."""
    if o.code != "SUB" or o.options.get("fusedActivationFunction"):
        return False
    first, product = (makers.get(t) for t in o.inputs)
    if first is None or product is None or (first.code, product.code) != ("RELU", "MUL"):
        return False
    slope, rest = sorted(product.inputs, key=lambda t: t.data is None)
    second = makers.get(rest)
    if slope.data is None or second is None or second.code != "RELU":
        return False
    negated, source = makers.get(second.inputs[0]), first.inputs[0]
    if negated is None or negated.code != "NEG" or negated.inputs[0] is not source:
        return False
    if any(not _alone(subgraph, m.outputs[0], readers) for m in (first, product, second)):
        return False
    shape = slope.shape if len(slope.shape) < len(source.shape) else slope.shape[1:]
    if len(slope.shape) == len(source.shape) and slope.shape[0] != 1:
        return False
    held = Tensor(shape, slope.dtype, slope.name, slope.data.reshape(shape))
    o.code, o.inputs, o.options = "PRELU", [source, held], {}
    return True


def _reshaped(subgraph: Subgraph, o: Operator, readers: Any, makers: Any) -> bool:
    """A RESHAPE of what another one gives for it alone takes what that takes."""
    if o.code != "RESHAPE" or o.inputs[0] is None:
        return False
    before = makers.get(o.inputs[0])
    if before is None or before.code != "RESHAPE" or not _alone(subgraph, o.inputs[0], readers):
        return False
    source, result = before.inputs[0], o.outputs[0]
    assert source is not None
    if source.shape == result.shape and _taken(subgraph, o, source, readers, makers):
        return True
    o.inputs[0] = source
    return True


def _taken(subgraph: Subgraph, o: Operator, source: Tensor, readers: Any, makers: Any) -> bool:
    """Puts an operand of an operator, or of one before it, in the place of its result."""
    result = o.outputs[0]
    if result in subgraph.outputs:
        maker = makers.get(source)
        if maker is None or source in subgraph.outputs:
            return False
        # The result has the name.
        maker.outputs = [result if t is source else t for t in maker.outputs]
        source, result = result, source
    for reader in readers.get(result, ()):
        reader.inputs = [source if t is result else t for t in reader.inputs]
    subgraph.operators.remove(o)
    return True


def _unkept(subgraph: Subgraph, o: Operator, readers: Any, makers: Any) -> bool:
    """A reduction does not keep the dimensions that are dropped behind it."""
    first = makers.get(o.inputs[0]) if o.code == "RESHAPE" else None
    if (
        first is None
        or not first.options.get("keepDims")
        or "ReducerOptions" not in first.options.values()
    ):
        return False
    source, axes = first.inputs[0].shape, first.inputs[1].data.tolist()
    left = tuple(d for i, d in enumerate(source) if i not in axes)
    if o.outputs[0].shape != left or not _alone(subgraph, first.outputs[0], readers):
        return False
    first.outputs, first.options["keepDims"] = o.outputs, False
    subgraph.operators.remove(o)
    return True


def _longer(subgraph: Subgraph, o: Operator, readers: Any, makers: Any) -> bool:
    """Operators that broadcast need no dimensions of size 1 in front."""
    if o.code not in _BROADCASTING:
        return False
    rank = max(len(t.shape) for t in o.inputs)  # type: ignore[union-attr]
    for place, tensor in enumerate(o.inputs):
        maker = makers.get(tensor)
        if maker is None or maker.code != "RESHAPE":
            continue
        source = maker.inputs[0].shape
        padded = (1,) * (len(tensor.shape) - len(source)) + tuple(source)  # type: ignore[union-attr]
        others = [t for i, t in enumerate(o.inputs) if i != place]
        wide = o.code == "BROADCAST_TO" or any(len(t.shape) == rank for t in others)  # type: ignore[union-attr]
        if padded == tensor.shape and len(source) < len(padded) and wide:  # type: ignore[union-attr]
            o.inputs[place] = maker.inputs[0]
            return True
    return False


def _recast(subgraph: Subgraph, o: Operator, readers: Any, makers: Any) -> bool:
    """Integers that were made longer in between."""
    first = makers.get(o.inputs[0]) if o.code == "CAST" else None
    if first is None or first.code != "CAST":
        return False
    source, between = first.inputs[0], first.outputs[0].dtype
    if source.dtype != o.outputs[0].dtype or not np.can_cast(source.dtype, between):
        return False
    return _taken(subgraph, o, source, readers, makers)


def _turned(subgraph: Subgraph, o: Operator, readers: Any, makers: Any) -> bool:
    """A product of matrices turns its operands by itself."""
    if o.code != "BATCH_MATMUL":
        return False
    for place, option in enumerate(("adjX", "adjY")):
        maker = makers.get(o.inputs[place])
        if maker is None or maker.code != "TRANSPOSE":
            continue
        order = maker.inputs[1]
        rank = len(o.inputs[place].shape)  # type: ignore[union-attr]
        if order.data is None or order.data.tolist() != [*range(rank - 2), rank - 1, rank - 2]:
            continue
        o.inputs[place] = maker.inputs[0]
        o.options[option] = not o.options.get(option, False)
        return True
    return False


_RULES = (_six, _one, _difference, _padded, _affine, _activation, _parametric, _reshaped, _unkept, _longer, _recast, _turned)  # fmt: skip
