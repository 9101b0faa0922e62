"""Convolutions, products of matrices, and pooling as LiteRT's operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.deployment.equations import Equation
from meshflow.lite.graph import Tensor
from meshflow.lite.lowering import SAME, VALID, Lowering, Refused, is_number, lowers, same_pads

__all__: list[str] = []


def _padding(
    l: Lowering, x: Tensor, pads: Any, kernel: Any, strides: Any, dilations: Any, filler: Any = 0.0
) -> tuple[Tensor, int]:
    """A tensor [batch, *spatial, channels], padded if LiteRT does not do so itself, and how LiteRT is to pad it."""
    pads = [tuple(p) for p in pads]
    if pads == [(0, 0)] * len(pads):
        return x, VALID
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if pads == same_pads(x.shape[1:-1], extents, strides):
        return x, SAME
    if any(is_number(n) and n < 0 for p in pads for n in p):
        raise Refused("it cuts its operand")
    return l.pad(x, [(0, 0), *pads, (0, 0)], filler), VALID


# ---- convolutions --------------------------------------------------------------------------


@lowers("conv_general_dilated")
def _convolution(l: Lowering, e: Equation) -> Tensor:
    p, d = e.params, e.params["dimension_numbers"]
    if p["batch_group_count"] != 1:
        raise Refused("LiteRT does not group the images of a batch")
    x, kernel = (l.full(v) for v in e.inputs)
    if len(x.shape) not in (3, 4, 5):
        raise Refused("LiteRT has convolutions over one to three dimensions")
    x = l.transpose(x, (d.lhs_spec[0], *d.lhs_spec[2:], d.lhs_spec[1]))
    # [*spatial, in, out]
    kernel = l.transpose(kernel, (*d.rhs_spec[2:], d.rhs_spec[1], d.rhs_spec[0]))
    about = {
        "strides": list(p["window_strides"]),
        "pads": [tuple(int(n) if is_number(n) else n for n in q) for q in p["padding"]],
        "dilations": list(p["rhs_dilation"]),
        "between": list(p["lhs_dilation"]),
        "groups": p["feature_group_count"],
    }
    out = d.out_spec
    shape = [e.outputs[0].shape[i] for i in (out[0], *out[2:], out[1])]
    y = _channels_last(l, x, kernel, shape, **about)
    order = np.argsort([out[0], *out[2:], out[1]]).tolist()
    return l.transpose(y, order)


def _channels_last(
    l: Lowering, x: Tensor, kernel: Tensor, shape: list[Any], **about: Any
) -> Tensor:
    """A convolution of [batch, *spatial, channels] and [*spatial, in, out]."""
    if len(x.shape) == 3:
        wide = {k: [1, *v] for k, v in about.items() if k in ("strides", "dilations", "between")}
        wide |= {"pads": [(0, 0), *about["pads"]], "groups": about["groups"]}
        x = l.reshape(x, (x.shape[0], 1, *x.shape[1:]))
        kernel = l.reshape(kernel, (1, *kernel.shape))
        y = _channels_last(l, x, kernel, [shape[0], 1, *shape[1:]], **wide)
        return l.reshape(y, shape)
    if len(x.shape) == 5:
        return _in_three_dimensions(l, x, kernel, shape, **about)
    if max(about["between"]) > 1:
        return _transposed(l, x, kernel, shape, **about)
    strides, dilations, groups = about["strides"], about["dilations"], about["groups"]
    x, padding = _padding(l, x, about["pads"], kernel.shape[:2], strides, dilations)
    steps = {"padding": padding, "strideH": strides[0], "strideW": strides[1]}
    steps |= {"dilationHFactor": dilations[0], "dilationWFactor": dilations[1]}
    bias = l.constant(np.zeros(kernel.shape[3], np.float32))
    if groups == x.shape[3] and kernel.shape[2] == 1 and groups > 1:
        # [1, height, width, channels * multiplier]
        weights = l.reshape(kernel, (1, *kernel.shape[:2], kernel.shape[3]))
        return l.emit("DEPTHWISE_CONV_2D", [x, weights, bias], shape, x.dtype, "DepthwiseConv2DOptions", depthMultiplier=kernel.shape[3] // groups, **steps)  # fmt: skip
    weights = l.transpose(kernel, (3, 0, 1, 2))
    return l.emit("CONV_2D", [x, weights, bias], shape, x.dtype, "Conv2DOptions", **steps)


def _in_three_dimensions(l: Lowering, x: Tensor, kernel: Tensor, shape: list[Any], **about: Any) -> Tensor:  # fmt: skip
    if max(about["between"]) > 1 or about["groups"] != 1:
        raise Refused("of convolutions over three dimensions LiteRT has plain ones only")
    strides, dilations = about["strides"], about["dilations"]
    x, padding = _padding(l, x, about["pads"], kernel.shape[:3], strides, dilations)
    steps = {f"stride{k}": s for k, s in zip("DHW", strides, strict=True)}
    steps |= {f"dilation{k}Factor": s for k, s in zip("DHW", dilations, strict=True)}
    return l.emit("CONV_3D", [x, kernel], shape, x.dtype, "Conv3DOptions", padding=padding, **steps)


def _transposed(l: Lowering, x: Tensor, kernel: Tensor, shape: list[Any], **about: Any) -> Tensor:
    """A convolution over an operand with zeros between its elements: the gradient of a convolution."""
    if about["groups"] != 1 or max(about["dilations"]) > 1 or max(about["strides"]) > 1:
        raise Refused("of transposed convolutions LiteRT has plain ones only")
    # LiteRT's kernel is that of the convolution whose gradient this is: turned around.
    weights = l.transpose(l.reverse(kernel, (0, 1)), (3, 0, 1, 2))
    steps, pads = about["between"], about["pads"]
    sizes = [k for k in kernel.shape[:2]]
    same = same_pads(shape[1:3], sizes, steps)
    fits = [(k - 1 - p[0], k - 1 - p[1]) for k, p in zip(sizes, pads, strict=True)]
    whole = [-(-n // s) == m if is_number(n) else False for n, s, m in zip(shape[1:3], steps, x.shape[1:3], strict=True)]  # fmt: skip
    options = {"strideH": steps[0], "strideW": steps[1]}
    if all(whole) and fits == same:
        inputs = [l.shape_tensor(shape), weights, x]
        return l.emit("TRANSPOSE_CONV", inputs, shape, x.dtype, "TransposeConvOptions", padding=SAME, **options)  # fmt: skip
    full = [shape[0], *((n - 1) * s + k for n, s, k in zip(x.shape[1:3], steps, sizes, strict=True)), shape[3]]  # fmt: skip
    inputs = [l.shape_tensor(full), weights, x]
    y = l.emit("TRANSPOSE_CONV", inputs, full, x.dtype, "TransposeConvOptions", padding=VALID, **options)  # fmt: skip
    # What is cut off at the edges, or added to them.
    edges = [(p[0] - k + 1, p[1] - k + 1) for k, p in zip(sizes, pads, strict=True)]
    starts = [0, *(max(-low, 0) for low, _ in edges), 0]
    limits = [full[0], *(n + min(high, 0) for n, (_, high) in zip(full[1:3], edges, strict=True)), full[3]]  # fmt: skip
    more = [(max(low, 0), max(high, 0)) for low, high in edges]
    return l.pad(l.slice(y, starts, limits), [(0, 0), *more, (0, 0)], 0.0)


# ---- products ------------------------------------------------------------------------------


def _size_of(sizes: Sequence[Any]) -> Any:
    return math.prod(sizes)


@lowers("dot_general")
def _product(l: Lowering, e: Equation) -> Tensor:
    return _of_matrices(l, e)


def _of_matrices(l: Lowering, e: Equation) -> Tensor:
    (left, right), (left_batch, right_batch) = e.params["dimension_numbers"]
    one, other = (l.full(v) for v in e.inputs)
    if one.dtype != np.float32:
        one, other = l.cast(one, np.float32), l.cast(other, np.float32)
    if other.data is None and one.data is not None and not left_batch:
        # The weights come second.
        return _swapped(l, e, one, other, left, right)
    free = [i for i in range(len(one.shape)) if i not in (*left, *left_batch)]
    others = [i for i in range(len(other.shape)) if i not in (*right, *right_batch)]
    rows, columns = [one.shape[i] for i in free], [other.shape[i] for i in others]
    depth = _size_of([one.shape[i] for i in left])
    if other.data is not None and not left_batch:
        x = l.transpose(one, [*free, *left])
        x = l.reshape(x, [*rows, depth] if len(left) != 1 else x.shape)
        weights = l.reshape(l.transpose(other, [*others, *right]), [_size_of(columns), depth])
        if not rows:
            x = l.reshape(x, [1, depth])
        shape = [*(rows or [1]), weights.shape[0]]
        y = l.emit("FULLY_CONNECTED", [x, weights, None], shape, np.float32, "FullyConnectedOptions", keepNumDims=len(shape) > 2)  # fmt: skip
        y = l.reshape(y, [*rows, *columns])
        return l.cast(y, e.outputs[0].dtype)
    batch = [one.shape[i] for i in left_batch]
    x = l.transpose(one, [*left_batch, *free, *left])
    x = l.reshape(x, [*batch, _size_of(rows), depth])
    w = l.transpose(other, [*right_batch, *right, *others])
    w = l.reshape(w, [*batch, depth, _size_of(columns)])
    y = l.emit("BATCH_MATMUL", [x, w], [*batch, x.shape[-2], w.shape[-1]], np.float32, "BatchMatMulOptions")  # fmt: skip
    return l.cast(l.reshape(y, [*batch, *rows, *columns]), e.outputs[0].dtype)


def _swapped(l: Lowering, e: Equation, one: Tensor, other: Tensor, left: Any, right: Any) -> Tensor:
    turned = Equation("dot_general", e.inputs[::-1], [], {"dimension_numbers": ((right, left), ((), ()))}, e.scope)  # fmt: skip
    rows = len(other.shape) - len(right)
    columns = len(one.shape) - len(left)
    shape = e.outputs[0].shape
    turned.outputs = [type(e.outputs[0])((*shape[columns:], *shape[:columns]), e.outputs[0].dtype)]
    y = _of_matrices(l, turned)
    return l.transpose(y, [*range(rows, rows + columns), *range(rows)])


# ---- pooling -------------------------------------------------------------------------------


@lowers("pool")
def _pool(l: Lowering, e: Equation) -> Tensor:
    p, x = e.params, l.full(e.inputs[0])
    kind, rank = p["kind"], len(x.shape)
    moving = [i for i in range(rank) if p["size"][i] != 1 or p["strides"][i] != 1 or tuple(p["pads"][i]) != (0, 0)]  # fmt: skip
    if not moving:
        return x
    if len(moving) > 2 or max(p["dilations"]) > 1 or x.dtype != np.float32:
        return _pool_by_slices(l, e, x)
    rest = [i for i in range(rank) if i not in moving]
    # [everything else but the last, window dimensions, last]
    order = [*rest[:-1], *moving, *rest[-1:]]
    turned = l.transpose(x, order)
    spatial = moving if len(moving) == 2 else [None, *moving]
    sizes = [1 if i is None else x.shape[i] for i in spatial]
    flat = [_size_of([x.shape[i] for i in rest[:-1]]), *sizes, x.shape[rest[-1]] if rest else 1]
    y = l.reshape(turned, flat)
    window = [1 if i is None else p["size"][i] for i in spatial]
    steps = [1 if i is None else p["strides"][i] for i in spatial]
    pads = [(0, 0) if i is None else p["pads"][i] for i in spatial]
    shape = [flat[0], *(1 if i is None else e.outputs[0].shape[i] for i in spatial), flat[3]]
    y = _pool_flat(l, y, shape, kind, window, steps, pads)
    back = [e.outputs[0].shape[i] for i in order]
    return l.transpose(l.reshape(y, back), np.argsort(order).tolist())


def _pool_flat(
    l: Lowering, y: Tensor, shape: Any, kind: str, window: Any, steps: Any, pads: Any
) -> Tensor:
    """Pooling of [batch, height, width, channels]."""
    ones = [1] * len(window)
    filler = -np.inf if kind == "max" else 0.0
    padded, padding = _padding(l, y, pads, window, steps, ones, filler)
    if kind == "average" and padded is not y:
        raise Refused(f"LiteRT averages without padding only with its own, not with {pads}")
    if kind == "sum" and padding == SAME:
        padded, padding = l.pad(y, [(0, 0), *pads, (0, 0)], 0.0), VALID
    code = "MAX_POOL_2D" if kind == "max" else "AVERAGE_POOL_2D"
    found = l.emit(code, [padded], shape, y.dtype, "Pool2DOptions", padding=padding, strideH=steps[0], strideW=steps[1], filterHeight=window[0], filterWidth=window[1])  # fmt: skip
    if kind != "sum":
        return found
    return l.binary("MUL", found, l.constant(np.float32(math.prod(window))))


def _pool_by_slices(l: Lowering, e: Equation, x: Tensor) -> Tensor:
    """Windows of any number of dimensions: maxima or sums of strided slices."""
    p, shape = e.params, e.outputs[0].shape
    if p["kind"] == "average" and any(map(any, p["pads"])):
        raise Refused("LiteRT averages over padded windows in two dimensions only")
    if math.prod(p["size"]) > 512:
        raise Refused(f"windows of {list(p['size'])} are too large for LiteRT's operators")
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    x = l.pad(x, p["pads"], np.asarray(lowest if p["kind"] == "max" else 0, x.dtype))
    found: Tensor | None = None
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
        found = part if found is None else l.binary(code, found, part)
    assert found is not None
    if p["kind"] == "average":
        count = np.asarray(math.prod(p["size"]), x.dtype)
        found = l.binary("DIV", found, l.constant(count))
    return found
