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
from meshflow.saved_model.graph.format.node_attributes import (
    GraphNode,
    as_host_array,
    as_static_ints,
)
from meshflow.saved_model.graph.ops.public_functions import make_op, to_arrays, to_tensor


def _resize_by_area(node: GraphNode, images: Array, size: Array) -> Array:
    if node["align_corners"]:
        raise UnimplementedError("ResizeArea with align_corners=True is not supported")
    return image.resize(to_tensor(images), as_static_ints(size), "area").array.astype(jnp.float32)


def _scale_and_translate(
    node: GraphNode, images: Array, size: Array, scale: Array, translation: Array
) -> Array:
    """Resize images with antialiasing, or by a method that only `ScaleAndTranslate` supports."""
    height, width = as_static_ints(size)
    scales = as_host_array(scale)
    expected = np.array([height / images.shape[1], width / images.shape[2]], np.float32)
    if np.any(as_host_array(translation)) or not np.allclose(scales, expected, rtol=1e-5):
        raise UnimplementedError("ScaleAndTranslate is only supported for plain resizing")
    method = {"triangle": "bilinear", "keyscubic": "bicubic"}.get(
        node.text("kernel_type"), node.text("kernel_type")
    )
    resized = image.resize(
        to_tensor(images), [height, width], method, antialias=node["antialias"]
    ).array
    return resized.astype(jnp.float32)


def _crop_and_resize(
    node: GraphNode, images: Array, bounds: Array, box_indices: Array, size: Array
) -> Array:
    crops = image.crop_and_resize(
        to_tensor(images),
        to_tensor(bounds),
        to_tensor(box_indices),
        as_static_ints(size),
        node.text("method"),
        node["extrapolation_value"],
    )
    return crops.array


def _suppress_non_max(
    node: GraphNode, bounds: Array, scores: Array, *limits: Array
) -> Array | list[Any]:
    """Select boxes by non-max suppression. Their number depends on values, so the host runs it."""
    max_output_size, *thresholds = map(as_host_array, limits)
    defaults = [0.5, -np.inf]
    overlap, min_score = [float(v) for v in thresholds[:2]] + defaults[len(thresholds[:2]) :]
    inputs = (
        to_tensor(as_host_array(bounds)),
        to_tensor(as_host_array(scores)),
        int(max_output_size),
    )
    if node.op == "NonMaxSuppressionV5":
        sigma = float(thresholds[2]) if len(thresholds) > 2 else 0.0
        found = image.non_max_suppression_with_scores(*inputs, overlap, min_score, sigma)
        selected, values = to_arrays(found)
        return [selected, values, np.array(len(selected), np.int32)]
    selected = image.non_max_suppression(*inputs, overlap, min_score).array
    if node.op != "NonMaxSuppressionV4":
        return selected
    count = np.array(len(selected), np.int32)
    missing = int(max_output_size) - len(selected) if node["pad_to_max_output_size"] else 0
    return [jnp.pad(selected, (0, missing)), count]


def _combine_non_max_suppression(
    node: GraphNode, bounds: Array, scores: Array, *limits: Array
) -> Any:
    max_per_class, max_total, overlap, min_score = limits
    results = image.combined_non_max_suppression(
        to_tensor(bounds),
        to_tensor(scores),
        as_static_ints(max_per_class)[0],
        as_static_ints(max_total)[0],
        float(as_host_array(overlap)),
        float(as_host_array(min_score)),
        node["pad_per_class"],
        node["clip_boxes"],
    )
    return to_arrays(tuple(results))


def _max_pool_with_argmax(node: GraphNode, x: Array) -> Array:
    results = nn.max_pool_with_argmax(
        to_tensor(x),
        node["ksize"],
        node["strides"],
        node.text("padding"),
        output_dtype=node.dtype("Targmax").name,
        include_batch_in_index=node["include_batch_in_index"],
    )
    return to_arrays(results)


def _dilate(node: GraphNode, x: Array, filters: Array) -> Array:
    dilated = nn.dilation2d(
        to_tensor(x),
        to_tensor(filters),
        node["strides"],
        node.text("padding"),
        "NHWC",
        node["rates"],
    )
    return dilated.array


def _quantize_and_dequantize(
    node: GraphNode, x: Array, low: Array, high: Array, bits: Array | None = None
) -> Array:
    axis = node["axis"]
    result = quantization.quantize_and_dequantize_v2(
        to_tensor(x),
        to_tensor(low),
        to_tensor(high),
        node["signed_input"],
        node["num_bits"] if bits is None else int(as_host_array(bits)),
        node["range_given"],
        node.text("round_mode") if node.op != "QuantizeAndDequantizeV3" else "HALF_TO_EVEN",
        narrow_range=node["narrow_range"],
        axis=None if axis == -1 else axis,
    )
    return result.array


_QUANTIZATION_ARGUMENTS = {"num_bits": "num_bits", "narrow_range": "narrow_range"}

IMAGE_OPS: dict[str, Callable[..., Any]] = {
    "ResizeArea": _resize_by_area,
    "ScaleAndTranslate": _scale_and_translate,
    "CropAndResize": _crop_and_resize,
    "ExtractImagePatches": make_op(
        image.extract_patches, sizes="ksizes", strides="strides", rates="rates", padding="padding"
    ),
    "RGBToHSV": make_op(image.rgb_to_hsv),
    "HSVToRGB": make_op(image.hsv_to_rgb),
    "AdjustContrastv2": make_op(image.adjust_contrast),
    "AdjustHue": make_op(image.adjust_hue),
    "AdjustSaturation": make_op(image.adjust_saturation),
    **dict.fromkeys(
        (
            "NonMaxSuppression",
            "NonMaxSuppressionV2",
            "NonMaxSuppressionV3",
            "NonMaxSuppressionV4",
            "NonMaxSuppressionV5",
        ),
        _suppress_non_max,
    ),
    "CombinedNonMaxSuppression": _combine_non_max_suppression,
    "DrawBoundingBoxesV2": make_op(boxes.draw_bounding_boxes),
    "MaxPoolWithArgmax": _max_pool_with_argmax,
    "Dilation2D": _dilate,
    "LRN": make_op(
        nn.local_response_normalization,
        depth_radius="depth_radius",
        bias="bias",
        alpha="alpha",
        beta="beta",
    ),
    "FakeQuantWithMinMaxArgs": make_op(
        quantization.fake_quant_with_min_max_args, min="min", max="max", **_QUANTIZATION_ARGUMENTS
    ),
    "FakeQuantWithMinMaxVars": make_op(
        quantization.fake_quant_with_min_max_vars, **_QUANTIZATION_ARGUMENTS
    ),
    "FakeQuantWithMinMaxVarsPerChannel": make_op(
        quantization.fake_quant_with_min_max_vars_per_channel, **_QUANTIZATION_ARGUMENTS
    ),
    **dict.fromkeys(
        ("QuantizeAndDequantizeV2", "QuantizeAndDequantizeV3", "QuantizeAndDequantizeV4"),
        _quantize_and_dequantize,
    ),
}
