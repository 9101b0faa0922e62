"""Lowering rules of convolutions, matrix products and pooling to ONNX nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.deployment.equations import DimSize, Equation
from meshflow.deployment.lowering import Pads, compute_same_padding
from meshflow.onnx.lowering import LoweringError, OnnxLowering, OnnxTensor, is_static, register_rule


def _to_onnx_pads(pairs: Pads) -> list[int]:
    return [int(low) for low, _ in pairs] + [int(high) for _, high in pairs]


def _make_padding_attributes(
    pads: Pads, shape: Sequence[DimSize], window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> dict[str, Any]:  # fmt: skip
    """Return the attributes by which an operator pads its spatial dimensions."""
    if all(is_static(n) for pair in pads for n in pair):
        return {"pads": _to_onnx_pads(pads)}
    extents = [(k - 1) * d + 1 for k, d in zip(window, dilations, strict=True)]
    if pads == compute_same_padding(shape, extents, strides):
        return {"auto_pad": "SAME_UPPER"}
    raise LoweringError("ONNX supports symbolic padding only as 'SAME'")


@register_rule("conv_general_dilated")
def _lower_convolution(l: OnnxLowering, e: Equation) -> OnnxTensor:
    p, d = e.params, e.params["dimension_numbers"]
    if p["batch_group_count"] != 1:
        raise LoweringError("ONNX does not group the images of a batch")
    x = l.transpose(l.get_tensor(e.inputs[0]), d.lhs_spec)
    kernel = l.transpose(l.get_tensor(e.inputs[1]), d.rhs_spec)
    shape = [e.outputs[0].shape[i] for i in d.out_spec]
    strides = [int(s) for s in p["window_strides"]]
    attrs: dict[str, Any] = {"dilations": [int(s) for s in p["rhs_dilation"]], "group": int(p["feature_group_count"])}  # fmt: skip
    pads: list[Any] = [tuple(int(n) if is_static(n) else n for n in q) for q in p["padding"]]
    if max(p["lhs_dilation"]) > 1:
        y = _convolve_transposed(l, x, kernel, shape, p, pads)
    else:
        if any(is_static(n) and n < 0 for pair in pads for n in pair):
            x = l.pad(x, [(0, 0), (0, 0), *pads], 0.0)
            pads = [(0, 0)] * len(pads)
        attrs |= _make_padding_attributes(
            pads, x.shape[2:], kernel.shape[2:], strides, attrs["dilations"]
        )
        y = l.emit("Conv", [x, kernel], shape, x.dtype, strides=strides, **attrs)
    return l.transpose(y, np.argsort(d.out_spec).tolist())


def _convolve_transposed(
    l: OnnxLowering,
    x: OnnxTensor,
    kernel: OnnxTensor,
    shape: list[DimSize],
    p: Mapping[str, Any],
    pads: Pads,
) -> OnnxTensor:
    """Convolve an operand with dilation, which is the gradient of a strided convolution."""
    if p["feature_group_count"] != 1 or max(p["window_strides"]) > 1 or kernel.data is None:
        raise LoweringError(
            "ONNX's transposed convolutions have constant kernels and no groups here"
        )
    spatial = tuple(range(2, len(x.shape)))
    weights = l.get_constant(np.flip(kernel.data, spatial).swapaxes(0, 1))
    extents = [(k - 1) * d for k, d in zip(kernel.shape[2:], p["rhs_dilation"], strict=True)]
    # ONNX crops the full result by positive padding, and appends zeros by output_padding.
    cut = [(r - low, r - high) for r, (low, high) in zip(extents, pads, strict=True)]
    output_padding = [max(-high, 0) for _, high in cut]
    if any(low < 0 for low, _ in cut):
        raise LoweringError("its padding is wider than its kernel")
    attrs = {"strides": [int(s) for s in p["lhs_dilation"]], "dilations": [int(s) for s in p["rhs_dilation"]]}  # fmt: skip
    sizes = _to_onnx_pads([(low, max(high, 0)) for low, high in cut])
    if any(a >= s for a, s in zip(output_padding, attrs["strides"], strict=True)):
        raise LoweringError("its padding is wider than its strides")
    return l.emit("ConvTranspose", [x, weights], shape, x.dtype, pads=sizes, output_padding=output_padding, **attrs)  # fmt: skip


@register_rule("dot_general")
def _lower_dot_general(l: OnnxLowering, e: Equation) -> OnnxTensor:
    (left, right), (left_batch, right_batch) = e.params["dimension_numbers"]
    lhs, rhs = (l.get_tensor(v) for v in e.inputs)
    target = e.outputs[0].dtype
    lhs, rhs = l.cast(lhs, target), l.cast(rhs, target)
    free = [i for i in range(len(lhs.shape)) if i not in (*left, *left_batch)]
    others = [i for i in range(len(rhs.shape)) if i not in (*right, *right_batch)]
    rows, columns = [lhs.shape[i] for i in free], [rhs.shape[i] for i in others]
    depth, width = math.prod(lhs.shape[i] for i in left), math.prod(columns)
    batch = [lhs.shape[i] for i in left_batch]
    x = l.transpose(lhs, [*left_batch, *free, *left])
    w = l.transpose(rhs, [*right_batch, *right, *others])
    if batch:
        x = l.reshape(x, [*batch, math.prod(rows), depth])
        y = l.emit("MatMul", [x, l.reshape(w, [*batch, depth, width])], [*x.shape[:-1], width], lhs.dtype)  # fmt: skip
    else:
        x = l.reshape(x, [*(rows or [1]), depth])
        y = l.emit("MatMul", [x, l.reshape(w, [depth, width])], [*x.shape[:-1], width], lhs.dtype)
    return l.reshape(y, [*batch, *rows, *columns])


@register_rule("pool")
def _lower_pool(l: OnnxLowering, e: Equation) -> OnnxTensor:
    p, x = e.params, l.get_tensor(e.inputs[0])
    reduction, rank = p["kind"], len(x.shape)
    window_axes = [i for i in range(rank) if p["size"][i] != 1 or p["strides"][i] != 1 or tuple(p["pads"][i]) != (0, 0)]  # fmt: skip
    if not window_axes:
        return x
    if len(window_axes) > 3 or x.dtype.kind != "f":
        raise LoweringError("ONNX pools floats over one to three dimensions only")
    other_axes = [i for i in range(rank) if i not in window_axes]
    order = [*other_axes, *window_axes]
    # [other dimensions except the last one, last other dimension, window dimensions]
    channels = x.shape[other_axes[-1]] if other_axes else 1
    flat = [
        math.prod(x.shape[i] for i in other_axes[:-1]),
        channels,
        *(x.shape[i] for i in window_axes),
    ]
    y = l.reshape(l.transpose(x, order), flat)
    shape = [*flat[:2], *(e.outputs[0].shape[i] for i in window_axes)]
    window = [int(p["size"][i]) for i in window_axes]
    strides = [int(p["strides"][i]) for i in window_axes]
    dilations = [int(p["dilations"][i]) for i in window_axes]
    pads = [tuple(p["pads"][i]) for i in window_axes]
    attrs = {"kernel_shape": window, "strides": strides}
    attrs |= _make_padding_attributes(pads, flat[2:], window, strides, dilations)
    if reduction == "max":
        result = l.emit("MaxPool", [y], shape, x.dtype, dilations=dilations, **attrs)
    else:
        if max(dilations) > 1:
            raise LoweringError("ONNX's average pooling has no dilation")
        result = l.emit("AveragePool", [y], shape, x.dtype, count_include_pad=int(reduction == "sum"), **attrs)  # fmt: skip
        if reduction == "sum":
            result = l.emit_binary("Mul", result, l.make_scalar(result, math.prod(window)))
    transposed_shape = [e.outputs[0].shape[i] for i in order]
    return l.transpose(l.reshape(result, transposed_shape), np.argsort(order).tolist())
