"""Convolutions, products of matrices, and pooling as ONNX nodes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshflow.deployment.equations import Equation
from meshflow.onnx.lowering import Lowering, Refused, Tensor, is_number, lowers, same_pads

__all__: list[str] = []


def _pads(pairs: Any) -> list[int]:
    return [int(low) for low, _ in pairs] + [int(high) for _, high in pairs]


def _padding(pads: Any, shape: Any, window: Any, strides: Any, dilations: Any) -> dict[str, Any]:
    """How an operator is to pad the spatial dimensions."""
    if all(is_number(n) for pair in pads for n in pair):
        return {"pads": _pads(pads)}
    extents = [(k - 1) * d + 1 for k, d in zip(window, dilations, strict=True)]
    if pads == same_pads(shape, extents, strides):
        return {"auto_pad": "SAME_UPPER"}
    raise Refused("of paddings that vary with sizes ONNX has 'SAME' only")


@lowers("conv_general_dilated")
def _convolution(l: Lowering, e: Equation) -> Tensor:
    p, d = e.params, e.params["dimension_numbers"]
    if p["batch_group_count"] != 1:
        raise Refused("ONNX does not group the images of a batch")
    x = l.transpose(l.full(e.inputs[0]), d.lhs_spec)
    kernel = l.transpose(l.full(e.inputs[1]), d.rhs_spec)
    shape = [e.outputs[0].shape[i] for i in d.out_spec]
    steps = [int(s) for s in p["window_strides"]]
    about: dict[str, Any] = {"dilations": [int(s) for s in p["rhs_dilation"]], "group": int(p["feature_group_count"])}  # fmt: skip
    pads: list[Any] = [tuple(int(n) if is_number(n) else n for n in q) for q in p["padding"]]
    if max(p["lhs_dilation"]) > 1:
        y = _transposed(l, x, kernel, shape, p, pads)
    else:
        if any(is_number(n) and n < 0 for pair in pads for n in pair):
            x = l.pad(x, [(0, 0), (0, 0), *pads], 0.0)
            pads = [(0, 0)] * len(pads)
        about |= _padding(pads, x.shape[2:], kernel.shape[2:], steps, about["dilations"])
        y = l.emit("Conv", [x, kernel], shape, x.dtype, strides=steps, **about)
    return l.transpose(y, np.argsort(d.out_spec).tolist())


def _transposed(l: Lowering, x: Tensor, kernel: Tensor, shape: Any, p: Any, pads: Any) -> Tensor:
    """A convolution over an operand with zeros between its elements: the gradient of a convolution."""
    if p["feature_group_count"] != 1 or max(p["window_strides"]) > 1 or kernel.data is None:
        raise Refused(
            "of transposed convolutions ONNX has those of constant kernels without groups"
        )
    spatial = tuple(range(2, len(x.shape)))
    weights = l.constant(np.flip(kernel.data, spatial).swapaxes(0, 1))
    reach = [(k - 1) * d for k, d in zip(kernel.shape[2:], p["rhs_dilation"], strict=True)]
    # What is left of the full result: ONNX cuts by positive padding, and adds zeros behind only.
    cut = [(r - low, r - high) for r, (low, high) in zip(reach, pads, strict=True)]
    more = [max(-high, 0) for _, high in cut]
    if any(low < 0 for low, _ in cut):
        raise Refused("its padding is wider than its kernel")
    about = {"strides": [int(s) for s in p["lhs_dilation"]], "dilations": [int(s) for s in p["rhs_dilation"]]}  # fmt: skip
    sizes = _pads([(low, max(high, 0)) for low, high in cut])
    if any(a >= s for a, s in zip(more, about["strides"], strict=True)):
        raise Refused("its padding is wider than its strides")
    return l.emit("ConvTranspose", [x, weights], shape, x.dtype, pads=sizes, output_padding=more, **about)  # fmt: skip


@lowers("dot_general")
def _product(l: Lowering, e: Equation) -> Tensor:
    (left, right), (left_batch, right_batch) = e.params["dimension_numbers"]
    one, other = (l.full(v) for v in e.inputs)
    target = e.outputs[0].dtype
    one, other = l.cast(one, target), l.cast(other, target)
    free = [i for i in range(len(one.shape)) if i not in (*left, *left_batch)]
    others = [i for i in range(len(other.shape)) if i not in (*right, *right_batch)]
    rows, columns = [one.shape[i] for i in free], [other.shape[i] for i in others]
    depth, width = math.prod(one.shape[i] for i in left), math.prod(columns)
    batch = [one.shape[i] for i in left_batch]
    x = l.transpose(one, [*left_batch, *free, *left])
    w = l.transpose(other, [*right_batch, *right, *others])
    if batch:
        x = l.reshape(x, [*batch, math.prod(rows), depth])
        y = l.emit("MatMul", [x, l.reshape(w, [*batch, depth, width])], [*x.shape[:-1], width], one.dtype)  # fmt: skip
    else:
        x = l.reshape(x, [*(rows or [1]), depth])
        y = l.emit("MatMul", [x, l.reshape(w, [depth, width])], [*x.shape[:-1], width], one.dtype)
    return l.reshape(y, [*batch, *rows, *columns])


@lowers("pool")
def _pool(l: Lowering, e: Equation) -> Tensor:
    p, x = e.params, l.full(e.inputs[0])
    kind, rank = p["kind"], len(x.shape)
    moving = [i for i in range(rank) if p["size"][i] != 1 or p["strides"][i] != 1 or tuple(p["pads"][i]) != (0, 0)]  # fmt: skip
    if not moving:
        return x
    if len(moving) > 3 or x.dtype.kind != "f":
        raise Refused("ONNX has windows over one to three dimensions, of floats")
    rest = [i for i in range(rank) if i not in moving]
    order = [*rest, *moving]
    # [everything before the last, the last, window dimensions]
    channels = x.shape[rest[-1]] if rest else 1
    flat = [math.prod(x.shape[i] for i in rest[:-1]), channels, *(x.shape[i] for i in moving)]
    y = l.reshape(l.transpose(x, order), flat)
    shape = [*flat[:2], *(e.outputs[0].shape[i] for i in moving)]
    window = [int(p["size"][i]) for i in moving]
    steps = [int(p["strides"][i]) for i in moving]
    dilations = [int(p["dilations"][i]) for i in moving]
    pads = [tuple(p["pads"][i]) for i in moving]
    about = {"kernel_shape": window, "strides": steps}
    about |= _padding(pads, flat[2:], window, steps, dilations)
    if kind == "max":
        found = l.emit("MaxPool", [y], shape, x.dtype, dilations=dilations, **about)
    else:
        if max(dilations) > 1:
            raise Refused("ONNX sums windows without gaps only")
        found = l.emit("AveragePool", [y], shape, x.dtype, count_include_pad=int(kind == "sum"), **about)  # fmt: skip
        if kind == "sum":
            found = l.binary("Mul", found, l.number(found, math.prod(window)))
    back = [e.outputs[0].shape[i] for i in order]
    return l.transpose(l.reshape(found, back), np.argsort(order).tolist())
