"""Lowering rules of the equations that `patterns` creates, for operators that only LiteRT has."""

from __future__ import annotations

import numpy as np

from meshflow.deployment.equations import Equation
from meshflow.lite.graph import Tensor
from meshflow.lite.lowering import Lowering, lowers

__all__: list[str] = []


@lowers("one_hot")
def _one_hot(l: Lowering, e: Equation) -> Tensor:
    p, index, result = e.params, l.full(e.inputs[0]), e.outputs[0]
    shape = [n for i, n in enumerate(index.shape) if i != p["axis"]]
    indices = l.cast(l.reshape(index, shape), np.int32)
    values = [l.constant(np.asarray(p[k], np.dtype(result.dtype))) for k in ("on", "off")]
    inputs = [indices, l.constant(np.int32(p["depth"])), *values]
    return l.emit("ONE_HOT", inputs, result.shape, values[0].dtype, "OneHotOptions", axis=p["axis"])


@lowers("resize")
def _resize(l: Lowering, e: Equation) -> Tensor:
    image, shape = l.full(e.inputs[0]), e.outputs[0].shape
    sizes = l.shape_tensor(shape[1:3])
    code, table = {
        "bilinear": ("RESIZE_BILINEAR", "ResizeBilinearOptions"),
        "nearest": ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions"),
    }[e.params["method"]]
    return l.emit(code, [image, sizes], shape, image.dtype, table, version=3, alignCorners=False, halfPixelCenters=True)  # fmt: skip


@lowers("space_to_depth", "depth_to_space")
def _blocks(l: Lowering, e: Equation) -> Tensor:
    image, is_space_to_depth = l.full(e.inputs[0]), e.name == "space_to_depth"
    table = "SpaceToDepthOptions" if is_space_to_depth else "DepthToSpaceOptions"
    return l.emit(e.name.upper(), [image], e.outputs[0].shape, image.dtype, table, blockSize=e.params["size"])  # fmt: skip


@lowers("space_to_batch", "batch_to_space")
def _batches(l: Lowering, e: Equation) -> Tensor:
    image = l.full(e.inputs[0])
    sizes = l.constant(np.asarray(e.params["sizes"], np.int32))
    edges = l.constant(np.zeros((2, 2), np.int32))
    return l.emit(f"{e.name.upper()}_ND", [image, sizes, edges], e.outputs[0].shape, image.dtype)


@lowers("mirror_pad")
def _mirror_pad(l: Lowering, e: Equation) -> Tensor:
    value = l.full(e.inputs[0])
    pads = l.constant(np.asarray(e.params["pads"], np.int32))
    # REFLECT (0) omits the edge, and SYMMETRIC (1) repeats it.
    mode = 0 if e.params["mode"] else 1
    return l.emit("MIRROR_PAD", [value, pads], e.outputs[0].shape, value.dtype, "MirrorPadOptions", mode=mode)  # fmt: skip


@lowers("floor_mod", "floor_div")
def _divisions(l: Lowering, e: Equation) -> Tensor:
    return l.binary(e.name.upper(), *map(l.least, e.inputs))


@lowers("l2_normalization")
def _l2_normalization(l: Lowering, e: Equation) -> Tensor:
    value = l.full(e.inputs[0])
    return l.emit("L2_NORMALIZATION", [value], value.shape, value.dtype, "L2NormOptions")


@lowers("fake_quant")
def _fake_quant(l: Lowering, e: Equation) -> Tensor:
    p, value = e.params, l.full(e.inputs[0])
    options = {"min": p["low"], "max": p["high"], "numBits": p["bits"], "narrowRange": p["narrow"]}
    return l.emit("FAKE_QUANT", [value], value.shape, value.dtype, "FakeQuantOptions", **options)


@lowers("tile")
def _tile(l: Lowering, e: Equation) -> Tensor:
    value = l.full(e.inputs[0])
    times = l.shape_tensor(e.params["reps"])
    return l.emit("TILE", [value, times], e.outputs[0].shape, value.dtype, "TileOptions")


@lowers("unpack")
def _unpack(l: Lowering, e: Equation) -> list[Tensor]:
    value = l.full(e.inputs[0])
    results = [l.new(v.shape, v.dtype, "unpack") for v in e.outputs]
    l.add("UNPACK", [value], results, "UnpackOptions", num=len(results), axis=e.params["axis"])
    return results


@lowers("random_uniform", "random_standard_normal")
def _random(l: Lowering, e: Equation) -> Tensor:
    shape = e.outputs[0].shape
    return l.emit(e.name.upper(), [l.shape_tensor(shape)], shape, np.float32, "RandomOptions")


@lowers("sort_up", "sort_down")
def _sorted(l: Lowering, e: Equation) -> list[Tensor]:
    """Lower a sort to TOPK_V2 of all elements, of the negated ones for an ascending order."""
    value, axis, is_ascending = l.full(e.inputs[0]), e.params["axis"], e.name == "sort_up"
    size, rank = value.shape[axis], len(value.shape)
    order = [i for i in range(rank) if i != axis] + [axis]
    transposed = l.transpose(value, order)
    if is_ascending:
        transposed = _opposite(l, transposed)
    results = [l.new(transposed.shape, d, "sort") for d in (transposed.dtype, np.int32)]
    l.add("TOPK_V2", [transposed, l.size(size)], results, "TopKV2Options")
    values, indices = results
    inverse = np.argsort(order).tolist()
    outputs = [
        l.transpose(t, inverse) for t in (_opposite(l, values) if is_ascending else values, indices)
    ]
    if not is_ascending:
        outputs = [outputs[e.params["part"]]]
    return [l.cast(t, v.dtype) for t, v in zip(outputs, e.outputs, strict=False)]


def _opposite(l: Lowering, value: Tensor) -> Tensor:
    if value.dtype.kind == "f":
        return l.unary("NEG", value)
    # The minimum of an integer dtype has no negative value, but -1 - x exists for all x.
    return l.binary("SUB", l.constant(np.asarray(-1, value.dtype)), value)
