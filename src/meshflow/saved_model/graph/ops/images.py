"""Images, boxes, patches, and numbers in few bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.ops import image, nn, quantization
from meshflow.ops.image import boxes
from meshflow.saved_model.graph.attributes import Node, numbers, on_host
from meshflow.saved_model.graph.ops.public import arrays_of, by, tensor_of

__all__ = ["IMAGES"]


def _resized_by_area(node: Node, images: Any, size: Any) -> Any:
    if node["align_corners"]:
        raise UnimplementedError("ResizeArea with align_corners is not known")
    return image.resize(tensor_of(images), numbers(size), "area")._value.astype(jnp.float32)


def _scaled(node: Node, images: Any, size: Any, scale: Any, translation: Any) -> Any:
    """`tf.image.resize` with antialiasing, or by a method that has only this op."""
    height, width = numbers(size)
    scales = on_host(scale)
    usual = np.array([height / images.shape[1], width / images.shape[2]], np.float32)
    if np.any(on_host(translation)) or not np.allclose(scales, usual, rtol=1e-5):
        raise UnimplementedError("ScaleAndTranslate by more than what resizing does is not known")
    method = {"triangle": "bilinear", "keyscubic": "bicubic"}.get(
        node.text("kernel_type"), node.text("kernel_type")
    )
    found = image.resize(
        tensor_of(images), [height, width], method, antialias=node["antialias"]
    )._value
    return found.astype(jnp.float32)


def _cropped(node: Node, images: Any, places: Any, rows: Any, size: Any) -> Any:
    found = image.crop_and_resize(
        tensor_of(images),
        tensor_of(places),
        tensor_of(rows),
        numbers(size),
        node.text("method"),
        node["extrapolation_value"],
    )
    return found._value


def _patches(node: Node, images: Any) -> Any:
    found = image.extract_patches(
        tensor_of(images), node["ksizes"], node["strides"], node["rates"], node.text("padding")
    )
    return found._value


def _kept(node: Node, places: Any, scores: Any, *limits: Any) -> Any:
    """Non-max suppression: how many boxes are left, their values tell."""
    most, *thresholds = map(on_host, limits)
    usual = [0.5, -np.inf]
    overlap, least = [float(v) for v in thresholds[:2]] + usual[len(thresholds[:2]) :]
    given = tensor_of(on_host(places)), tensor_of(on_host(scores)), int(most)
    if node.op == "NonMaxSuppressionV5":
        soft = float(thresholds[2]) if len(thresholds) > 2 else 0.0
        found = image.non_max_suppression_with_scores(*given, overlap, least, soft)
        kept, values = arrays_of(found)
        return [kept, values, np.array(len(kept), np.int32)]
    kept = image.non_max_suppression(*given, overlap, least)._value
    if node.op != "NonMaxSuppressionV4":
        return kept
    count = np.array(len(kept), np.int32)
    missing = int(most) - len(kept) if node["pad_to_max_output_size"] else 0
    return [jnp.pad(kept, (0, missing)), count]


def _combined(
    node: Node, places: Any, scores: Any, each: Any, total: Any, overlap: Any, least: Any
) -> Any:
    found = image.combined_non_max_suppression(
        tensor_of(places),
        tensor_of(scores),
        numbers(each)[0],
        numbers(total)[0],
        float(on_host(overlap)),
        float(on_host(least)),
        node["pad_per_class"],
        node["clip_boxes"],
    )
    return arrays_of(tuple(found))


def _largest_with_places(node: Node, x: Any) -> Any:
    found = nn.max_pool_with_argmax(
        tensor_of(x),
        node["ksize"],
        node["strides"],
        node.text("padding"),
        output_dtype=node.dtype("Targmax").name,
        include_batch_in_index=node["include_batch_in_index"],
    )
    return arrays_of(found)


def _dilated(node: Node, x: Any, filters: Any) -> Any:
    found = nn.dilation2d(
        tensor_of(x),
        tensor_of(filters),
        node["strides"],
        node.text("padding"),
        "NHWC",
        node["rates"],
    )
    return found._value


def _there_and_back(node: Node, x: Any, low: Any, high: Any, bits: Any = None) -> Any:
    axis = node["axis"]
    found = quantization.quantize_and_dequantize_v2(
        tensor_of(x),
        tensor_of(low),
        tensor_of(high),
        node["signed_input"],
        node["num_bits"] if bits is None else int(on_host(bits)),
        node["range_given"],
        node.text("round_mode") if node.op != "QuantizeAndDequantizeV3" else "HALF_TO_EVEN",
        narrow_range=node["narrow_range"],
        axis=None if axis == -1 else axis,
    )
    return found._value


_RANGE = {"num_bits": "num_bits", "narrow_range": "narrow_range"}

IMAGES: dict[str, Callable[..., Any]] = {
    "ResizeArea": _resized_by_area,
    "ScaleAndTranslate": _scaled,
    "CropAndResize": _cropped,
    "ExtractImagePatches": _patches,
    "RGBToHSV": by(image.rgb_to_hsv),
    "HSVToRGB": by(image.hsv_to_rgb),
    "AdjustContrastv2": by(image.adjust_contrast),
    "AdjustHue": by(image.adjust_hue),
    "AdjustSaturation": by(image.adjust_saturation),
    **dict.fromkeys(
        (
            "NonMaxSuppression",
            "NonMaxSuppressionV2",
            "NonMaxSuppressionV3",
            "NonMaxSuppressionV4",
            "NonMaxSuppressionV5",
        ),
        _kept,
    ),
    "CombinedNonMaxSuppression": _combined,
    "DrawBoundingBoxesV2": by(boxes.draw_bounding_boxes),
    "MaxPoolWithArgmax": _largest_with_places,
    "Dilation2D": _dilated,
    "LRN": by(
        nn.local_response_normalization,
        depth_radius="depth_radius",
        bias="bias",
        alpha="alpha",
        beta="beta",
    ),
    "FakeQuantWithMinMaxArgs": by(
        quantization.fake_quant_with_min_max_args, min="min", max="max", **_RANGE
    ),
    "FakeQuantWithMinMaxVars": by(quantization.fake_quant_with_min_max_vars, **_RANGE),
    "FakeQuantWithMinMaxVarsPerChannel": by(
        quantization.fake_quant_with_min_max_vars_per_channel, **_RANGE
    ),
    **dict.fromkeys(
        ("QuantizeAndDequantizeV2", "QuantizeAndDequantizeV3", "QuantizeAndDequantizeV4"),
        _there_and_back,
    ),
}
