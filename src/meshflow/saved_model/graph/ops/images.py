"""Images, bounding boxes, patches and quantization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.environment.types import Array
from meshflow.ops import image, nn, quantization
from meshflow.ops.image import boxes
from meshflow.saved_model.graph.attributes import Node, numbers, on_host
from meshflow.saved_model.graph.ops.public import arrays_of, by, tensor_of

__all__ = ["IMAGES"]


def _resized_by_area(node: Node, images: Array, size: Array) -> Array:
    if node["align_corners"]:
        raise UnimplementedError("ResizeArea with align_corners=True is not supported")
    return image.resize(tensor_of(images), numbers(size), "area")._value.astype(jnp.float32)


def _scaled(node: Node, images: Array, size: Array, scale: Array, translation: Array) -> Array:
    """Resize images with antialiasing, or by a method that only `ScaleAndTranslate` supports."""
    height, width = numbers(size)
    scales = on_host(scale)
    expected = np.array([height / images.shape[1], width / images.shape[2]], np.float32)
    if np.any(on_host(translation)) or not np.allclose(scales, expected, rtol=1e-5):
        raise UnimplementedError("ScaleAndTranslate is only supported for plain resizing")
    method = {"triangle": "bilinear", "keyscubic": "bicubic"}.get(
        node.text("kernel_type"), node.text("kernel_type")
    )
    resized = image.resize(
        tensor_of(images), [height, width], method, antialias=node["antialias"]
    )._value
    return resized.astype(jnp.float32)


def _cropped(node: Node, images: Array, bounds: Array, box_indices: Array, size: Array) -> Array:
    crops = image.crop_and_resize(
        tensor_of(images),
        tensor_of(bounds),
        tensor_of(box_indices),
        numbers(size),
        node.text("method"),
        node["extrapolation_value"],
    )
    return crops._value


def _kept(node: Node, bounds: Array, scores: Array, *limits: Array) -> Array | list[Any]:
    """Select boxes by non-max suppression. Their number depends on values, so the host runs it."""
    max_output_size, *thresholds = map(on_host, limits)
    defaults = [0.5, -np.inf]
    overlap, min_score = [float(v) for v in thresholds[:2]] + defaults[len(thresholds[:2]) :]
    inputs = tensor_of(on_host(bounds)), tensor_of(on_host(scores)), int(max_output_size)
    if node.op == "NonMaxSuppressionV5":
        sigma = float(thresholds[2]) if len(thresholds) > 2 else 0.0
        found = image.non_max_suppression_with_scores(*inputs, overlap, min_score, sigma)
        selected, values = arrays_of(found)
        return [selected, values, np.array(len(selected), np.int32)]
    selected = image.non_max_suppression(*inputs, overlap, min_score)._value
    if node.op != "NonMaxSuppressionV4":
        return selected
    count = np.array(len(selected), np.int32)
    missing = int(max_output_size) - len(selected) if node["pad_to_max_output_size"] else 0
    return [jnp.pad(selected, (0, missing)), count]


def _combined(node: Node, bounds: Array, scores: Array, *limits: Array) -> Any:
    max_per_class, max_total, overlap, min_score = limits
    results = image.combined_non_max_suppression(
        tensor_of(bounds),
        tensor_of(scores),
        numbers(max_per_class)[0],
        numbers(max_total)[0],
        float(on_host(overlap)),
        float(on_host(min_score)),
        node["pad_per_class"],
        node["clip_boxes"],
    )
    return arrays_of(tuple(results))


def _largest_with_places(node: Node, x: Array) -> Array:
    results = nn.max_pool_with_argmax(
        tensor_of(x),
        node["ksize"],
        node["strides"],
        node.text("padding"),
        output_dtype=node.dtype("Targmax").name,
        include_batch_in_index=node["include_batch_in_index"],
    )
    return arrays_of(results)


def _dilated(node: Node, x: Array, filters: Array) -> Array:
    dilated = nn.dilation2d(
        tensor_of(x),
        tensor_of(filters),
        node["strides"],
        node.text("padding"),
        "NHWC",
        node["rates"],
    )
    return dilated._value


def _there_and_back(
    node: Node, x: Array, low: Array, high: Array, bits: Array | None = None
) -> Array:
    axis = node["axis"]
    result = quantization.quantize_and_dequantize_v2(
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
    return result._value


_RANGE = {"num_bits": "num_bits", "narrow_range": "narrow_range"}

IMAGES: dict[str, Callable[..., Any]] = {
    "ResizeArea": _resized_by_area,
    "ScaleAndTranslate": _scaled,
    "CropAndResize": _cropped,
    "ExtractImagePatches": by(
        image.extract_patches, sizes="ksizes", strides="strides", rates="rates", padding="padding"
    ),
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
