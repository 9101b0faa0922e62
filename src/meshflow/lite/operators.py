"""What LiteRT has an operator of its own for, and XLA has not: the equations that `idioms` finds."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.deployment.equations import Equation
from meshflow.lite.graph import Tensor
from meshflow.lite.lowering import Lowering, lowers

__all__: list[str] = []


@lowers("one_hot")
def _one_hot(l: Lowering, e: Equation) -> Tensor:
    p, index, result = e.params, l.full(e.inputs[0]), e.outputs[0]
    shape = [n for i, n in enumerate(index.shape) if i != p["axis"]]
    numbers = l.cast(l.reshape(index, shape), np.int32)
    ends = [l.constant(np.asarray(p[k], np.dtype(result.dtype))) for k in ("on", "off")]
    inputs = [numbers, l.constant(np.int32(p["depth"])), *ends]
    return l.emit("ONE_HOT", inputs, result.shape, ends[0].dtype, "OneHotOptions", axis=p["axis"])


@lowers("resize")
def _resize(l: Lowering, e: Equation) -> Tensor:
    image, shape = l.full(e.inputs[0]), e.outputs[0].shape
    sizes = l.shape_tensor(shape[1:3])
    code, kind = {
        "bilinear": ("RESIZE_BILINEAR", "ResizeBilinearOptions"),
        "nearest": ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions"),
    }[e.params["method"]]
    return l.emit(code, [image, sizes], shape, image.dtype, kind, version=3, alignCorners=False, halfPixelCenters=True)  # fmt: skip


@lowers("space_to_depth", "depth_to_space")
def _blocks(l: Lowering, e: Equation) -> Tensor:
    image, down = l.full(e.inputs[0]), e.name == "space_to_depth"
    kind = "SpaceToDepthOptions" if down else "DepthToSpaceOptions"
    return l.emit(e.name.upper(), [image], e.outputs[0].shape, image.dtype, kind, blockSize=e.params["size"])  # fmt: skip


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
    # Without the edge itself (REFLECT) or with it (SYMMETRIC).
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
    about = {"min": p["low"], "max": p["high"], "numBits": p["bits"], "narrowRange": p["narrow"]}
    return l.emit("FAKE_QUANT", [value], value.shape, value.dtype, "FakeQuantOptions", **about)


@lowers("tile")
def _tile(l: Lowering, e: Equation) -> Tensor:
    value = l.full(e.inputs[0])
    times: Any = l.shape_tensor(e.params["reps"])
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
    """All elements as the greatest ones, of their opposites where the least come first."""
    value, axis, up = l.full(e.inputs[0]), e.params["axis"], e.name == "sort_up"
    size, rank = value.shape[axis], len(value.shape)
    order = [i for i in range(rank) if i != axis] + [axis]
    turned = l.transpose(value, order)
    if up:
        turned = _opposite(l, turned)
    results = [l.new(turned.shape, d, "sort") for d in (turned.dtype, np.int32)]
    l.add("TOPK_V2", [turned, l.size(size)], results, "TopKV2Options")
    numbers, places = results
    back = np.argsort(order).tolist()
    found = [l.transpose(t, back) for t in (_opposite(l, numbers) if up else numbers, places)]
    if not up:
        found = [found[e.params["part"]]]
    return [l.cast(t, v.dtype) for t, v in zip(found, e.outputs, strict=False)]


def _opposite(l: Lowering, value: Tensor) -> Tensor:
    if value.dtype.kind == "f":
        return l.unary("NEG", value)
    # The least integer has no negative.
    return l.binary("SUB", l.constant(np.asarray(-1, value.dtype)), value)
