"""EfficientNet (arXiv:1905.11946): depth, width and image size grow together."""

from __future__ import annotations

import math
from typing import Any

from meshflow.core.values.tensor import Tensor
from meshflow.keras.applications.common import (
    ImageSizes,
    activate,
    build_model,
    convolve,
    create_input,
    normalize_batch,
    pad_for_stride,
    pool_features,
    round_channels,
)
from meshflow.keras.applications.constructors import (
    ActivationLike,
    NetworkArguments,
    NetworkDescription,
    Signatures,
    create_constructor_factory,
)
from meshflow.keras.applications.imagenet_utils import create_preprocess_input, decode_predictions
from meshflow.keras.engine.models.model import Model
from meshflow.keras.layers import Add, Dense, DepthwiseConv2D, Dropout, Multiply, Rescaling, Reshape
from meshflow.keras.layers.global_pooling import GlobalAveragePooling2D
from meshflow.keras.layers.preprocessing.normalization import Normalization

__all__ = [
    *(f"EfficientNetB{n}" for n in range(8)),
    "decode_predictions",
    "preprocess_input",
]

preprocess_input = create_preprocess_input(None)
URL = "https://storage.googleapis.com/keras-applications/"
# Width, depth, image size and dropout rate of each variant.
_VARIANTS = (
    (1.0, 1.0, 224, 0.2),
    (1.0, 1.1, 240, 0.2),
    (1.1, 1.2, 260, 0.3),
    (1.2, 1.4, 300, 0.3),
    (1.4, 1.8, 380, 0.4),
    (1.6, 2.2, 456, 0.4),
    (1.8, 2.6, 528, 0.5),
    (2.0, 3.1, 600, 0.5),
)
# Window size, repeats, output channels, expansion and stride of each stage.
_STAGES = (
    (3, 1, 16, 1, 1),
    (3, 2, 24, 6, 2),
    (5, 2, 40, 6, 2),
    (3, 3, 80, 6, 2),
    (5, 3, 112, 6, 1),
    (5, 4, 192, 6, 2),
    (3, 1, 320, 6, 1),
)
KERNEL_INITIALIZER = {
    "class_name": "VarianceScaling",
    "config": {"scale": 2.0, "mode": "fan_out", "distribution": "truncated_normal"},
}
DENSE_INITIALIZER = {
    "class_name": "VarianceScaling",
    "config": {"scale": 1.0 / 3.0, "mode": "fan_out", "distribution": "uniform"},
}


def convolve_initialized(x: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """Apply a convolution with the kernel initializer of EfficientNet."""
    return convolve(x, *arguments, kernel_initializer=KERNEL_INITIALIZER, **options)


def squeeze_and_excite(x: Tensor, num_squeezed: int, name: str) -> Tensor:
    """Scale the channels by factors that depend on their global means (squeeze and excitation)."""
    channels = x.shape[-1]
    y = GlobalAveragePooling2D(name=f"{name}squeeze")(x)
    y = Reshape((1, 1, channels), name=f"{name}reshape")(y)
    y = convolve_initialized(y, num_squeezed, 1, f"{name}reduce", activation="swish", use_bias=True)
    y = convolve_initialized(y, channels, 1, f"{name}expand", activation="sigmoid", use_bias=True)
    return Multiply(name=f"{name}excite")([x, y])


def add_residual(x: Tensor, inputs: Tensor, drop_rate: float, name: str) -> Tensor:
    """Add a residual connection; training drops the branch for a random fraction of the images."""
    if drop_rate > 0:
        x = Dropout(drop_rate, noise_shape=(None, 1, 1, 1), name=f"{name}drop")(x)
    return Add(name=f"{name}add")([x, inputs])


def classify(x: Tensor, dropout: float, classes: int, activation: ActivationLike) -> Tensor:
    """Apply global pooling, dropout and the classifier."""
    x = GlobalAveragePooling2D(name="avg_pool")(x)
    x = Dropout(dropout, name="top_dropout")(x)
    return Dense(classes, activation, kernel_initializer=DENSE_INITIALIZER, name="predictions")(x)


def _apply_block(
    x: Tensor,
    window: int,
    filters: int,
    expansion: int,
    stride: int,
    drop_rate: float,
    name: str,
) -> Tensor:
    inputs, input_channels = x, x.shape[-1]
    if expansion != 1:
        x = convolve_initialized(x, input_channels * expansion, 1, f"{name}expand_conv")
        x = activate(normalize_batch(x, f"{name}expand_bn"), "swish", f"{name}expand_activation")
    if stride == 2:
        x = pad_for_stride(x, window, f"{name}dwconv_pad")
    x = DepthwiseConv2D(
        window,
        strides=stride,
        padding="valid" if stride == 2 else "same",
        use_bias=False,
        depthwise_initializer=KERNEL_INITIALIZER,
        name=f"{name}dwconv",
    )(x)
    x = activate(normalize_batch(x, f"{name}bn"), "swish", f"{name}activation")
    x = squeeze_and_excite(x, max(1, int(input_channels * 0.25)), f"{name}se_")
    x = convolve_initialized(x, filters, 1, f"{name}project_conv")
    x = normalize_batch(x, f"{name}project_bn")
    return (
        add_residual(x, inputs, drop_rate, name) if stride == 1 and filters == input_channels else x
    )


def _build_efficientnet(variant: int, args: NetworkArguments) -> Model:
    width, depth, size, dropout = _VARIANTS[variant]
    inputs = create_input(ImageSizes(size, 32), args)
    x = Normalization(axis=3)(Rescaling(1.0 / 255.0)(inputs))
    if args.weights == "imagenet":
        # The weights were trained with variances in place of standard deviations, so the scales are
        # adapted.
        x = Rescaling([1.0 / math.sqrt(s) for s in (0.229, 0.224, 0.225)])(x)
    x = pad_for_stride(x, 3, "stem_conv_pad")
    x = convolve_initialized(x, round_channels(32 * width), 3, "stem_conv", 2, padding="valid")
    x = activate(normalize_batch(x, "stem_bn"), "swish", "stem_activation")
    repeats = [math.ceil(depth * stage[1]) for stage in _STAGES]
    index, total = 0, float(sum(math.ceil(depth * r) for _, r, *_ in _STAGES))
    for stage, (window, _, filters, expansion, stride) in enumerate(_STAGES):
        for i in range(repeats[stage]):
            x = _apply_block(
                x,
                window,
                round_channels(filters * width),
                expansion,
                stride if i == 0 else 1,
                0.2 * index / total,
                f"block{stage + 1}{chr(97 + i)}_",
            )
            index += 1
    x = convolve_initialized(x, round_channels(1280 * width), 1, "top_conv")
    x = activate(normalize_batch(x, "top_bn"), "swish", "top_activation")
    if args.include_top:
        x = classify(x, dropout, args.classes, args.classifier_activation)
    else:
        x = pool_features(x, args.pooling)
    name = f"efficientnetb{variant}"
    url = f"{URL}{name}{'' if args.include_top else '_notop'}.h5"
    return build_model(name, inputs, x, args, url)


def _describe(variant: int) -> NetworkDescription:
    summary = f"Create an EfficientNet B{variant} model for images with values from 0 to 255."
    return NetworkDescription(f"EfficientNetB{variant}", summary, _VARIANTS[variant][2])


_create = create_constructor_factory(Signatures.make_network, _build_efficientnet, _describe)


EfficientNetB0, EfficientNetB1, EfficientNetB2 = _create(0), _create(1), _create(2)
EfficientNetB3, EfficientNetB4, EfficientNetB5 = _create(3), _create(4), _create(5)
EfficientNetB6, EfficientNetB7 = _create(6), _create(7)
