"""EfficientNet V2 (arXiv:2104.00298): EfficientNet with full convolutions in the early blocks."""

from __future__ import annotations

import math
from typing import Any

from meshflow.core.values.tensor import Tensor
from meshflow.keras.applications.common import (
    URL,
    ImageSizes,
    activate,
    build_model,
    create_input,
    normalize_batch,
    pool_features,
)
from meshflow.keras.applications.constructors import (
    NetworkArguments,
    NetworkDescription,
    Signatures,
    create_constructor_factory,
)
from meshflow.keras.applications.efficientnet import (
    KERNEL_INITIALIZER,
    add_residual,
    classify,
    convolve_initialized,
    squeeze_and_excite,
)
from meshflow.keras.applications.imagenet_utils import create_preprocess_input, decode_predictions
from meshflow.keras.engine.models.model import Model
from meshflow.keras.layers import DepthwiseConv2D, Rescaling
from meshflow.keras.layers.preprocessing.normalization import Normalization

__all__ = [
    *(f"EfficientNetV2{size}" for size in ("B0", "B1", "B2", "B3", "L", "M", "S")),
    "decode_predictions",
    "preprocess_input",
]

preprocess_input = create_preprocess_input(None)
# Repeats, output channels, expansion, stride and squeeze-and-excitation of each stage.
_B = (
    (1, 16, 1, 1, False),
    (2, 32, 4, 2, False),
    (2, 48, 4, 2, False),
    (3, 96, 4, 2, True),
    (5, 112, 6, 1, True),
    (8, 192, 6, 2, True),
)
_S = (
    (2, 24, 1, 1, False),
    (4, 48, 4, 2, False),
    (4, 64, 4, 2, False),
    (6, 128, 4, 2, True),
    (9, 160, 6, 1, True),
    (15, 256, 6, 2, True),
)
_M = (
    (3, 24, 1, 1, False),
    (5, 48, 4, 2, False),
    (5, 80, 4, 2, False),
    (7, 160, 4, 2, True),
    (14, 176, 6, 1, True),
    (18, 304, 6, 2, True),
    (5, 512, 6, 1, True),
)
_L = (
    (4, 32, 1, 1, False),
    (7, 64, 4, 2, False),
    (7, 96, 4, 2, False),
    (10, 192, 4, 2, True),
    (19, 224, 6, 1, True),
    (25, 384, 6, 2, True),
    (7, 640, 6, 1, True),
)
# Stages, channels of the stem, width, depth and image size of each variant.
_VARIANTS = {
    "B0": (_B, 32, 1.0, 1.0, 224),
    "B1": (_B, 32, 1.0, 1.1, 240),
    "B2": (_B, 32, 1.1, 1.2, 260),
    "B3": (_B, 32, 1.2, 1.4, 300),
    "S": (_S, 24, 1.0, 1.0, 384),
    "M": (_M, 24, 1.0, 1.0, 480),
    "L": (_L, 32, 1.0, 1.0, 480),
}
_MEAN, _VARIANCE = (0.485, 0.456, 0.406), (0.229**2, 0.224**2, 0.225**2)


def _normalize_and_activate(x: Tensor, norm: str, name: str) -> Tensor:
    return activate(normalize_batch(x, norm, momentum=0.9), "swish", name)


def _apply_block(
    x: Tensor,
    filters: int,
    expansion: int,
    stride: int,
    is_depthwise: bool,
    drop_rate: float,
    name: str,
) -> Tensor:
    inputs, input_channels = x, x.shape[-1]
    if expansion != 1:
        # Without the depthwise convolution, the expanding convolution has the window and the
        # stride.
        window_and_stride = (1, 1) if is_depthwise else (3, stride)
        x = convolve_initialized(
            x,
            input_channels * expansion,
            window_and_stride[0],
            f"{name}expand_conv",
            window_and_stride[1],
        )
        x = _normalize_and_activate(x, f"{name}expand_bn", f"{name}expand_activation")
    if is_depthwise:
        options: dict[str, Any] = {"strides": stride, "padding": "same", "use_bias": False}
        x = DepthwiseConv2D(
            3, depthwise_initializer=KERNEL_INITIALIZER, name=f"{name}dwconv2", **options
        )(x)
        x = _normalize_and_activate(x, f"{name}bn", f"{name}activation")
        x = squeeze_and_excite(x, max(1, int(input_channels * 0.25)), f"{name}se_")
    if expansion != 1:
        x = convolve_initialized(x, filters, 1, f"{name}project_conv")
        x = normalize_batch(x, f"{name}project_bn", momentum=0.9)
    else:
        x = convolve_initialized(x, filters, 3, f"{name}project_conv", stride)
        x = _normalize_and_activate(x, f"{name}project_bn", f"{name}project_activation")
    return (
        add_residual(x, inputs, drop_rate, name) if stride == 1 and filters == input_channels else x
    )


def _round_filters(filters: float) -> int:
    """Round a number of channels to the nearest multiple of 8."""
    return max(8, int(filters + 4) // 8 * 8)


def _scale_images(x: Tensor, variant: str) -> Tensor:
    """Scale images with values 0 to 255 as in the training of the variant."""
    if variant[0] != "B":
        return Rescaling(1.0 / 128.0, -1)(x)
    return Normalization(mean=_MEAN, variance=_VARIANCE, axis=3)(Rescaling(1.0 / 255.0)(x))


def _build_efficientnet(variant: str, args: NetworkArguments) -> Model:
    stages, stem, width, depth, size = _VARIANTS[variant]
    inputs = create_input(ImageSizes(size, 32), args)
    x = _scale_images(inputs, variant) if args.include_preprocessing else inputs
    x = convolve_initialized(x, _round_filters(stem * width), 3, "stem_conv", 2)
    x = _normalize_and_activate(x, "stem_bn", "stem_activation")
    index, total = 0, sum(repeats for repeats, *_ in stages)
    for stage, (repeats, filters, expansion, stride, is_depthwise) in enumerate(stages):
        for i in range(math.ceil(depth * repeats)):
            x = _apply_block(
                x,
                _round_filters(filters * width),
                expansion,
                stride if i == 0 else 1,
                is_depthwise,
                0.2 * index / total,
                f"block{stage + 1}{chr(97 + i)}_",
            )
            index += 1
    x = convolve_initialized(x, _round_filters(1280 * width), 1, "top_conv")
    x = _normalize_and_activate(x, "top_bn", "top_activation")
    if args.include_top:
        x = classify(x, 0.2, args.classes, args.classifier_activation)
    else:
        x = pool_features(x, args.pooling)
    name = f"efficientnetv2-{variant.lower()}"
    url = f"{URL}efficientnet_v2/{name}{'' if args.include_top else '_notop'}.h5"
    return build_model(name, inputs, x, args, url)


def _describe(variant: str) -> NetworkDescription:
    summary = f"Create an EfficientNet V2 {variant} model for images with values from 0 to 255."
    return NetworkDescription(f"EfficientNetV2{variant}", summary, _VARIANTS[variant][4])


_create = create_constructor_factory(
    Signatures.make_scaling_network, _build_efficientnet, _describe
)


EfficientNetV2B0, EfficientNetV2B1, EfficientNetV2B2 = _create("B0"), _create("B1"), _create("B2")
EfficientNetV2B3, EfficientNetV2S, EfficientNetV2M = _create("B3"), _create("S"), _create("M")
EfficientNetV2L = _create("L")
