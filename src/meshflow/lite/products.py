"""Lowering rules of convolutions, matrix products and pooling to LiteRT's operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from meshflow.deployment.equations import DimSize, Equation, Value
from meshflow.deployment.lowering import LoweringError, Pads, compute_same_padding
from meshflow.lite.graph import LiteTensor
from meshflow.lite.lowering import SAME, VALID, LiteLowering, is_static, register_rule


def _pad_windows(
    l: LiteLowering, x: LiteTensor, pads: Pads, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], filler: ArrayLike = 0.0
) -> tuple[LiteTensor, int]:  # fmt: skip
    """Pad [batch, *spatial, channels] unless LiteRT's mode does; return it with the padding mode."""
    pads = [tuple(p) for p in pads]
    if pads == [(0, 0)] * len(pads):
        return x, VALID
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if pads == compute_same_padding(x.shape[1:-1], extents, strides):
        return x, SAME
    if any(is_static(n) and n < 0 for p in pads for n in p):
        raise LoweringError("its padding is negative")
    return l.pad(x, [(0, 0), *pads, (0, 0)], filler), VALID


# ---- convolutions --------------------------------------------------------------------------


@register_rule("conv_general_dilated")
def _lower_convolution(l: LiteLowering, e: Equation) -> LiteTensor:
    p, d = e.params, e.params["dimension_numbers"]
    if p["batch_group_count"] != 1:
        raise LoweringError("LiteRT does not group the images of a batch")
    x, kernel = (l.get_tensor(v) for v in e.inputs)
    if len(x.shape) not in (3, 4, 5):
        raise LoweringError("LiteRT supports convolutions over one to three dimensions only")
    x = l.transpose(x, (d.lhs_spec[0], *d.lhs_spec[2:], d.lhs_spec[1]))
    # [*spatial, in, out]
    kernel = l.transpose(kernel, (*d.rhs_spec[2:], d.rhs_spec[1], d.rhs_spec[0]))
    params: dict[str, Any] = {
        "strides": list(p["window_strides"]),
        "pads": [tuple(int(n) if is_static(n) else n for n in q) for q in p["padding"]],
        "dilations": list(p["rhs_dilation"]),
        "lhs_dilations": list(p["lhs_dilation"]),
        "groups": p["feature_group_count"],
    }
    out = d.out_spec
    shape = [e.outputs[0].shape[i] for i in (out[0], *out[2:], out[1])]
    y = _convolve(l, x, kernel, shape, **params)
    order = np.argsort([out[0], *out[2:], out[1]]).tolist()
    return l.transpose(y, order)


def _convolve(l: LiteLowering, x: LiteTensor, kernel: LiteTensor, shape: list[DimSize], **params: Any) -> LiteTensor:  # fmt: skip
    """Convolve [batch, *spatial, channels] with a kernel [*spatial, in, out]."""
    if len(x.shape) == 3:
        params_2d = {k: [1, *params[k]] for k in ("strides", "dilations", "lhs_dilations")}
        params_2d |= {"pads": [(0, 0), *params["pads"]], "groups": params["groups"]}
        x = l.reshape(x, (x.shape[0], 1, *x.shape[1:]))
        kernel = l.reshape(kernel, (1, *kernel.shape))
        y = _convolve(l, x, kernel, [shape[0], 1, *shape[1:]], **params_2d)
        return l.reshape(y, shape)
    if len(x.shape) == 5:
        return _convolve_3d(l, x, kernel, shape, **params)
    if max(params["lhs_dilations"]) > 1:
        return _convolve_transposed(l, x, kernel, shape, **params)
    strides, dilations, groups = params["strides"], params["dilations"], params["groups"]
    x, padding = _pad_windows(l, x, params["pads"], kernel.shape[:2], strides, dilations)
    options = {"padding": padding, "strideH": strides[0], "strideW": strides[1]}
    options |= {"dilationHFactor": dilations[0], "dilationWFactor": dilations[1]}
    bias = l.get_constant(np.zeros(kernel.shape[3], np.float32))
    if groups == x.shape[3] and kernel.shape[2] == 1 and groups > 1:
        # [1, height, width, channels * multiplier]
        weights = l.reshape(kernel, (1, *kernel.shape[:2], kernel.shape[3]))
        return l.emit("DEPTHWISE_CONV_2D", [x, weights, bias], shape, x.dtype, "DepthwiseConv2DOptions", depthMultiplier=kernel.shape[3] // groups, **options)  # fmt: skip
    weights = l.transpose(kernel, (3, 0, 1, 2))
    return l.emit("CONV_2D", [x, weights, bias], shape, x.dtype, "Conv2DOptions", **options)


def _convolve_3d(l: LiteLowering, x: LiteTensor, kernel: LiteTensor, shape: list[DimSize], **params: Any) -> LiteTensor:  # fmt: skip
    if max(params["lhs_dilations"]) > 1 or params["groups"] != 1:
        raise LoweringError("LiteRT's convolutions over three dimensions have no groups and are not transposed")  # fmt: skip
    strides, dilations = params["strides"], params["dilations"]
    x, padding = _pad_windows(l, x, params["pads"], kernel.shape[:3], strides, dilations)
    options = {f"stride{k}": s for k, s in zip("DHW", strides, strict=True)}
    options |= {f"dilation{k}Factor": s for k, s in zip("DHW", dilations, strict=True)}
    return l.emit("CONV_3D", [x, kernel], shape, x.dtype, "Conv3DOptions", padding=padding, **options)  # fmt: skip


def _convolve_transposed(l: LiteLowering, x: LiteTensor, kernel: LiteTensor, shape: list[DimSize], **params: Any) -> LiteTensor:  # fmt: skip
    """Convolve an operand with dilation, which is the gradient of a strided convolution."""
    if params["groups"] != 1 or max(params["dilations"]) > 1 or max(params["strides"]) > 1:
        raise LoweringError("LiteRT's transposed convolutions have no groups and no dilated kernel")
    # LiteRT takes the kernel of the strided convolution, which is the reversed one.
    weights = l.transpose(l.reverse(kernel, (0, 1)), (3, 0, 1, 2))
    strides, pads, sizes = params["lhs_dilations"], params["pads"], list(kernel.shape[:2])
    adjoint_pads = [(k - 1 - p[0], k - 1 - p[1]) for k, p in zip(sizes, pads, strict=True)]
    divides = [is_static(n) and -(-n // s) == m for n, s, m in zip(shape[1:3], strides, x.shape[1:3], strict=True)]  # fmt: skip
    options = {"strideH": strides[0], "strideW": strides[1]}
    if all(divides) and adjoint_pads == compute_same_padding(shape[1:3], sizes, strides):
        inputs = [l.make_shape_tensor(shape), weights, x]
        return l.emit("TRANSPOSE_CONV", inputs, shape, x.dtype, "TransposeConvOptions", padding=SAME, **options)  # fmt: skip
    full = [shape[0], *((n - 1) * s + k for n, s, k in zip(x.shape[1:3], strides, sizes, strict=True)), shape[3]]  # fmt: skip
    inputs = [l.make_shape_tensor(full), weights, x]
    y = l.emit("TRANSPOSE_CONV", inputs, full, x.dtype, "TransposeConvOptions", padding=VALID, **options)  # fmt: skip
    # The full result is cropped by negative and padded by positive edges.
    edges = [(p[0] - k + 1, p[1] - k + 1) for k, p in zip(sizes, pads, strict=True)]
    starts = [0, *(max(-low, 0) for low, _ in edges), 0]
    limits = [full[0], *(n + min(high, 0) for n, (_, high) in zip(full[1:3], edges, strict=True)), full[3]]  # fmt: skip
    padding = [(max(low, 0), max(high, 0)) for low, high in edges]
    return l.pad(l.slice(y, starts, limits), [(0, 0), *padding, (0, 0)], 0.0)


# ---- products ------------------------------------------------------------------------------


@register_rule("dot_general")
def _lower_dot_general(l: LiteLowering, e: Equation) -> LiteTensor:
    (left, right), (left_batch, right_batch) = e.params["dimension_numbers"]
    lhs, rhs = (l.cast(l.get_tensor(v), np.float32) for v in e.inputs)
    if rhs.data is None and lhs.data is not None and not left_batch:
        # FULLY_CONNECTED takes the weights as its second operand.
        return _lower_swapped_dot_general(l, e, lhs, rhs, left, right)
    free = [i for i in range(len(lhs.shape)) if i not in (*left, *left_batch)]
    others = [i for i in range(len(rhs.shape)) if i not in (*right, *right_batch)]
    rows, columns = [lhs.shape[i] for i in free], [rhs.shape[i] for i in others]
    depth = math.prod([lhs.shape[i] for i in left])
    if rhs.data is not None and not left_batch:
        x = l.transpose(lhs, [*free, *left])
        x = l.reshape(x, [*rows, depth] if len(left) != 1 else x.shape)
        weights = l.reshape(l.transpose(rhs, [*others, *right]), [math.prod(columns), depth])
        if not rows:
            x = l.reshape(x, [1, depth])
        shape = [*(rows or [1]), weights.shape[0]]
        y = l.emit("FULLY_CONNECTED", [x, weights, None], shape, np.float32, "FullyConnectedOptions", keepNumDims=len(shape) > 2)  # fmt: skip
        y = l.reshape(y, [*rows, *columns])
        return l.cast(y, e.outputs[0].dtype)
    batch = [lhs.shape[i] for i in left_batch]
    x = l.transpose(lhs, [*left_batch, *free, *left])
    x = l.reshape(x, [*batch, math.prod(rows), depth])
    w = l.transpose(rhs, [*right_batch, *right, *others])
    w = l.reshape(w, [*batch, depth, math.prod(columns)])
    y = l.emit("BATCH_MATMUL", [x, w], [*batch, x.shape[-2], w.shape[-1]], np.float32, "BatchMatMulOptions")  # fmt: skip
    return l.cast(l.reshape(y, [*batch, *rows, *columns]), e.outputs[0].dtype)


def _lower_swapped_dot_general(
    l: LiteLowering,
    e: Equation,
    lhs: LiteTensor,
    rhs: LiteTensor,
    left: Sequence[int],
    right: Sequence[int],
) -> LiteTensor:
    rows, columns = len(rhs.shape) - len(right), len(lhs.shape) - len(left)
    result, dimensions = e.outputs[0], ((right, left), ((), ()))
    output = Value((*result.shape[columns:], *result.shape[:columns]), result.dtype)
    swapped = Equation("dot_general", e.inputs[::-1], [output], {"dimension_numbers": dimensions}, e.scope)  # fmt: skip
    return l.transpose(_lower_dot_general(l, swapped), [*range(rows, rows + columns), *range(rows)])


# ---- pooling -------------------------------------------------------------------------------


@register_rule("pool")
def _lower_pool(l: LiteLowering, e: Equation) -> LiteTensor:
    p, x = e.params, l.get_tensor(e.inputs[0])
    reduction, rank = p["kind"], len(x.shape)
    window_axes = [i for i in range(rank) if p["size"][i] != 1 or p["strides"][i] != 1 or tuple(p["pads"][i]) != (0, 0)]  # fmt: skip
    if not window_axes:
        return x
    if len(window_axes) > 2 or max(p["dilations"]) > 1 or x.dtype != np.float32:
        return _pool_by_slices(l, e, x)
    other_axes = [i for i in range(rank) if i not in window_axes]
    # [all other dimensions except the last one, window dimensions, last other dimension]
    order = [*other_axes[:-1], *window_axes, *other_axes[-1:]]
    transposed = l.transpose(x, order)
    spatial = window_axes if len(window_axes) == 2 else [None, *window_axes]
    sizes = [1 if i is None else x.shape[i] for i in spatial]
    flat = [math.prod([x.shape[i] for i in other_axes[:-1]]), *sizes, x.shape[other_axes[-1]] if other_axes else 1]  # fmt: skip
    y = l.reshape(transposed, flat)
    window = [1 if i is None else p["size"][i] for i in spatial]
    strides = [1 if i is None else p["strides"][i] for i in spatial]
    pads = [(0, 0) if i is None else p["pads"][i] for i in spatial]
    shape = [flat[0], *(1 if i is None else e.outputs[0].shape[i] for i in spatial), flat[3]]
    y = _pool_2d(l, y, shape, reduction, window, strides, pads)
    transposed_shape = [e.outputs[0].shape[i] for i in order]
    return l.transpose(l.reshape(y, transposed_shape), np.argsort(order).tolist())


def _pool_2d(
    l: LiteLowering, x: LiteTensor, shape: list[DimSize], reduction: str, window: list[int], strides: list[int], pads: Pads
) -> LiteTensor:  # fmt: skip
    """Pool [batch, height, width, channels]."""
    filler = -np.inf if reduction == "max" else 0.0
    padded, padding = _pad_windows(l, x, pads, window, strides, [1] * len(window), filler)
    if reduction == "average" and padded is not x:
        raise LoweringError(
            f"LiteRT's averages exclude the padding of its own modes only, not {pads}"
        )
    if reduction == "sum" and padding == SAME:
        padded, padding = l.pad(x, [(0, 0), *pads, (0, 0)], 0.0), VALID
    code = "MAX_POOL_2D" if reduction == "max" else "AVERAGE_POOL_2D"
    result = l.emit(code, [padded], shape, x.dtype, "Pool2DOptions", padding=padding, strideH=strides[0], strideW=strides[1], filterHeight=window[0], filterWidth=window[1])  # fmt: skip
    if reduction != "sum":
        return result
    return l.emit_binary("MUL", result, l.get_constant(np.float32(math.prod(window))))


def _pool_by_slices(l: LiteLowering, e: Equation, x: LiteTensor) -> LiteTensor:
    """Pool over any number of dimensions, as the maximum or sum of strided slices."""
    p, shape = e.params, e.outputs[0].shape
    if p["kind"] == "average" and any(map(any, p["pads"])):
        raise LoweringError("LiteRT averages over padded windows in two dimensions only")
    if math.prod(p["size"]) > 512:
        raise LoweringError(f"windows of {list(p['size'])} have more than 512 elements")
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    x = l.pad(x, p["pads"], np.asarray(lowest if p["kind"] == "max" else 0, x.dtype))
    result: LiteTensor | None = None
    for offset in np.ndindex(*p["size"]):
        starts = [o * d for o, d in zip(offset, p["dilations"], strict=True)]
        limits = [
            n if k == 1 and s == 1 else start + (m - 1) * s + 1
            for n, m, k, s, start in zip(
                x.shape, shape, p["size"], p["strides"], starts, strict=True
            )
        ]
        part = l.slice(x, starts, limits, p["strides"])
        code = "MAXIMUM" if p["kind"] == "max" else "ADD"
        result = part if result is None else l.emit_binary(code, result, part)
    assert result is not None
    if p["kind"] == "average":
        count = np.asarray(math.prod(p["size"]), x.dtype)
        result = l.emit_binary("DIV", result, l.get_constant(count))
    return result
