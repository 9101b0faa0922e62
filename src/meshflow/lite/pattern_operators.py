"""Lowering rules of the equations that `patterns` creates, for operators that only LiteRT has."""

from __future__ import annotations

import numpy as np

from meshflow.deployment.equations import Equation
from meshflow.lite.graph import LiteTensor
from meshflow.lite.lowering import LiteLowering, register_rule


@register_rule("one_hot")
def _lower_one_hot(l: LiteLowering, e: Equation) -> LiteTensor:
    p, index, result = e.params, l.get_tensor(e.inputs[0]), e.outputs[0]
    shape = [n for i, n in enumerate(index.shape) if i != p["axis"]]
    indices = l.cast(l.reshape(index, shape), np.int32)
    values = [l.get_constant(np.asarray(p[k], np.dtype(result.dtype))) for k in ("on", "off")]
    inputs = [indices, l.get_constant(np.int32(p["depth"])), *values]
    return l.emit("ONE_HOT", inputs, result.shape, values[0].dtype, "OneHotOptions", axis=p["axis"])


@register_rule("resize")
def _lower_resize(l: LiteLowering, e: Equation) -> LiteTensor:
    image, shape = l.get_tensor(e.inputs[0]), e.outputs[0].shape
    sizes = l.make_shape_tensor(shape[1:3])
    code, table = {
        "bilinear": ("RESIZE_BILINEAR", "ResizeBilinearOptions"),
        "nearest": ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions"),
    }[e.params["method"]]
    return l.emit(code, [image, sizes], shape, image.dtype, table, version=3, alignCorners=False, halfPixelCenters=True)  # fmt: skip


@register_rule("space_to_depth", "depth_to_space")
def _lower_depth_and_space(l: LiteLowering, e: Equation) -> LiteTensor:
    image, is_space_to_depth = l.get_tensor(e.inputs[0]), e.name == "space_to_depth"
    table = "SpaceToDepthOptions" if is_space_to_depth else "DepthToSpaceOptions"
    return l.emit(e.name.upper(), [image], e.outputs[0].shape, image.dtype, table, blockSize=e.params["size"])  # fmt: skip


@register_rule("space_to_batch", "batch_to_space")
def _lower_batch_and_space(l: LiteLowering, e: Equation) -> LiteTensor:
    image = l.get_tensor(e.inputs[0])
    sizes = l.get_constant(np.asarray(e.params["sizes"], np.int32))
    edges = l.get_constant(np.zeros((2, 2), np.int32))
    return l.emit(f"{e.name.upper()}_ND", [image, sizes, edges], e.outputs[0].shape, image.dtype)


@register_rule("mirror_pad")
def _lower_mirror_pad(l: LiteLowering, e: Equation) -> LiteTensor:
    value = l.get_tensor(e.inputs[0])
    pads = l.get_constant(np.asarray(e.params["pads"], np.int32))
    # REFLECT (0) omits the edge, and SYMMETRIC (1) repeats it.
    mode = 0 if e.params["mode"] else 1
    return l.emit("MIRROR_PAD", [value, pads], e.outputs[0].shape, value.dtype, "MirrorPadOptions", mode=mode)  # fmt: skip


@register_rule("floor_mod", "floor_div")
def _lower_floor_division(l: LiteLowering, e: Equation) -> LiteTensor:
    return l.emit_binary(e.name.upper(), *map(l.get_base, e.inputs))


@register_rule("l2_normalization")
def _lower_l2_normalization(l: LiteLowering, e: Equation) -> LiteTensor:
    value = l.get_tensor(e.inputs[0])
    return l.emit("L2_NORMALIZATION", [value], value.shape, value.dtype, "L2NormOptions")


@register_rule("fake_quant")
def _lower_fake_quant(l: LiteLowering, e: Equation) -> LiteTensor:
    p, value = e.params, l.get_tensor(e.inputs[0])
    options = {"min": p["low"], "max": p["high"], "numBits": p["bits"], "narrowRange": p["narrow"]}
    return l.emit("FAKE_QUANT", [value], value.shape, value.dtype, "FakeQuantOptions", **options)


@register_rule("tile")
def _lower_tile(l: LiteLowering, e: Equation) -> LiteTensor:
    value = l.get_tensor(e.inputs[0])
    times = l.make_shape_tensor(e.params["reps"])
    return l.emit("TILE", [value, times], e.outputs[0].shape, value.dtype, "TileOptions")


@register_rule("unpack")
def _lower_unpack(l: LiteLowering, e: Equation) -> list[LiteTensor]:
    value = l.get_tensor(e.inputs[0])
    results = [l.new_tensor(v.shape, v.dtype, "unpack") for v in e.outputs]
    l.add("UNPACK", [value], results, "UnpackOptions", num=len(results), axis=e.params["axis"])
    return results


@register_rule("random_uniform", "random_standard_normal")
def _lower_random(l: LiteLowering, e: Equation) -> LiteTensor:
    shape = e.outputs[0].shape
    return l.emit(e.name.upper(), [l.make_shape_tensor(shape)], shape, np.float32, "RandomOptions")


@register_rule("sort_up", "sort_down")
def _lower_sort(l: LiteLowering, e: Equation) -> list[LiteTensor]:
    """Lower a sort to TOPK_V2 of all elements, of the negated ones for an ascending order."""
    value, axis, is_ascending = l.get_tensor(e.inputs[0]), e.params["axis"], e.name == "sort_up"
    size, rank = value.shape[axis], len(value.shape)
    order = [i for i in range(rank) if i != axis] + [axis]
    transposed = l.transpose(value, order)
    if is_ascending:
        transposed = _negate(l, transposed)
    results = [l.new_tensor(transposed.shape, d, "sort") for d in (transposed.dtype, np.int32)]
    l.add("TOPK_V2", [transposed, l.get_size(size)], results, "TopKV2Options")
    values, indices = results
    inverse = np.argsort(order).tolist()
    outputs = [
        l.transpose(t, inverse) for t in (_negate(l, values) if is_ascending else values, indices)
    ]
    if not is_ascending:
        outputs = [outputs[e.params["part"]]]
    return [l.cast(t, v.dtype) for t, v in zip(outputs, e.outputs, strict=False)]


def _negate(l: LiteLowering, value: LiteTensor) -> LiteTensor:
    if value.dtype.kind == "f":
        return l.emit_unary("NEG", value)
    # The minimum of an integer dtype has no negative value, but -1 - x exists for all x.
    return l.emit_binary("SUB", l.get_constant(np.asarray(-1, value.dtype)), value)
