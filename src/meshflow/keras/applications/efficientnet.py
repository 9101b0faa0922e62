"""EfficientNet (arXiv:1905.11946): depth, width and image size grow together."""

from __future__ import annotations

import math
from typing import Any

from meshflow.keras.applications.common import (
    Sizes,
    activation,
    batch_norm,
    convolution,
    model_of,
    padded_for_stride,
    pooled_features,
    start,
)
from meshflow.keras.applications.families import (
    ActivationLike,
    Described,
    Signatures,
    Wanted,
    family,
)
from meshflow.keras.applications.imagenet_utils import decode_predictions, preprocessing
from meshflow.keras.engine.models.model import Model
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.keras.layers import Add, Dense, DepthwiseConv2D, Dropout, Multiply, Rescaling, Reshape
from meshflow.keras.layers.global_pooling import GlobalAveragePooling2D
from meshflow.keras.layers.preprocessing.normalization import Normalization

__all__ = [
    *(f"EfficientNetB{n}" for n in range(8)),
    "decode_predictions",
    "preprocess_input",
]

preprocess_input = preprocessing(None)
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
KERNEL = {
    "class_name": "VarianceScaling",
    "config": {"scale": 2.0, "mode": "fan_out", "distribution": "truncated_normal"},
}
DENSE = {
    "class_name": "VarianceScaling",
    "config": {"scale": 1.0 / 3.0, "mode": "fan_out", "distribution": "uniform"},
}


def convolved(x: KerasTensor, *arguments: Any, **options: Any) -> KerasTensor:
    """Apply a convolution with the kernel initializer of EfficientNet."""
    return convolution(x, *arguments, kernel_initializer=KERNEL, **options)


def attended(x: KerasTensor, num_squeezed: int, name: str) -> KerasTensor:
    """Scale the channels by factors that depend on their global means (squeeze and excitation)."""
    channels = x.shape[-1]
    y = GlobalAveragePooling2D(name=f"{name}squeeze")(x)
    y = Reshape((1, 1, channels), name=f"{name}reshape")(y)
    y = convolved(y, num_squeezed, 1, f"{name}reduce", activation="swish", use_bias=True)
    y = convolved(y, channels, 1, f"{name}expand", activation="sigmoid", use_bias=True)
    return Multiply(name=f"{name}excite")([x, y])


def added(x: KerasTensor, inputs: KerasTensor, drop_rate: float, name: str) -> KerasTensor:
    """Add a residual connection; training drops the branch for a random fraction of the images."""
    if drop_rate > 0:
        x = Dropout(drop_rate, noise_shape=(None, 1, 1, 1), name=f"{name}drop")(x)
    return Add(name=f"{name}add")([x, inputs])


def classified(
    x: KerasTensor, dropout: float, classes: int, activation: ActivationLike
) -> KerasTensor:
    """Apply global pooling, dropout and the classifier."""
    x = GlobalAveragePooling2D(name="avg_pool")(x)
    x = Dropout(dropout, name="top_dropout")(x)
    return Dense(classes, activation, kernel_initializer=DENSE, name="predictions")(x)


def _block(
    x: KerasTensor,
    window: int,
    filters: int,
    expansion: int,
    stride: int,
    drop_rate: float,
    name: str,
) -> KerasTensor:
    inputs, input_channels = x, x.shape[-1]
    if expansion != 1:
        x = convolved(x, input_channels * expansion, 1, f"{name}expand_conv")
        x = activation(batch_norm(x, f"{name}expand_bn"), "swish", f"{name}expand_activation")
    if stride == 2:
        x = padded_for_stride(x, window, f"{name}dwconv_pad")
    x = DepthwiseConv2D(
        window,
        strides=stride,
        padding="valid" if stride == 2 else "same",
        use_bias=False,
        depthwise_initializer=KERNEL,
        name=f"{name}dwconv",
    )(x)
    x = activation(batch_norm(x, f"{name}bn"), "swish", f"{name}activation")
    x = attended(x, max(1, int(input_channels * 0.25)), f"{name}se_")
    x = convolved(x, filters, 1, f"{name}project_conv")
    x = batch_norm(x, f"{name}project_bn")
    return added(x, inputs, drop_rate, name) if stride == 1 and filters == input_channels else x


def _rounded(filters: float) -> int:
    """Round a number of channels to a multiple of 8 that is at least nine tenths of it."""
    multiple = max(8, int(filters + 4) // 8 * 8)
    return multiple + 8 if multiple < 0.9 * filters else multiple


def _efficientnet(variant: int, args: Wanted) -> Model:
    width, depth, size, dropout = _VARIANTS[variant]
    inputs = start(Sizes(size, 32), args)
    x = Normalization(axis=3)(Rescaling(1.0 / 255.0)(inputs))
    if args.weights == "imagenet":
        # The weights were trained with variances in place of standard deviations, so the scales are
        # adapted.
        x = Rescaling([1.0 / math.sqrt(s) for s in (0.229, 0.224, 0.225)])(x)
    x = padded_for_stride(x, 3, "stem_conv_pad")
    x = convolved(x, _rounded(32 * width), 3, "stem_conv", 2, padding="valid")
    x = activation(batch_norm(x, "stem_bn"), "swish", "stem_activation")
    repeats = [math.ceil(depth * stage[1]) for stage in _STAGES]
    index, total = 0, float(sum(math.ceil(depth * r) for _, r, *_ in _STAGES))
    for stage, (window, _, filters, expansion, stride) in enumerate(_STAGES):
        for i in range(repeats[stage]):
            x = _block(
                x,
                window,
                _rounded(filters * width),
                expansion,
                stride if i == 0 else 1,
                0.2 * index / total,
                f"block{stage + 1}{chr(97 + i)}_",
            )
            index += 1
    x = convolved(x, _rounded(1280 * width), 1, "top_conv")
    x = activation(batch_norm(x, "top_bn"), "swish", "top_activation")
    if args.include_top:
        x = classified(x, dropout, args.classes, args.classifier_activation)
    else:
        x = pooled_features(x, args.pooling)
    name = f"efficientnetb{variant}"
    url = f"{URL}{name}{'' if args.include_top else '_notop'}.h5"
    return model_of(name, inputs, x, args, url)


def _described(variant: int) -> Described:
    summary = f"Create an EfficientNet B{variant} model for images with values from 0 to 255."
    return Described(f"EfficientNetB{variant}", summary, _VARIANTS[variant][2])


_of = family(Signatures.make_network, _efficientnet, _described)


EfficientNetB0, EfficientNetB1, EfficientNetB2 = _of(0), _of(1), _of(2)
EfficientNetB3, EfficientNetB4, EfficientNetB5 = _of(3), _of(4), _of(5)
EfficientNetB6, EfficientNetB7 = _of(6), _of(7)
