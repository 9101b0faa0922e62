"""MobileNet V3 (arXiv:1905.02244): MobileNet V2 with squeeze-and-excitation and hard swish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from meshflow.core.values.tensor import TensorLike
from meshflow.environment.types import StrPath
from meshflow.keras.applications.common import (
    URL,
    Sizes,
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
    InputShape,
    Wanted,
    family,
)
from meshflow.keras.applications.imagenet_utils import decode_predictions, preprocessing
from meshflow.keras.applications.mobilenet_v2 import rounded
from meshflow.keras.engine.models.model import Model
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.keras.layers import (
    Activation,
    Add,
    DepthwiseConv2D,
    Dropout,
    Flatten,
    Multiply,
    ReLU,
    Rescaling,
)
from meshflow.keras.layers.global_pooling import GlobalAveragePooling2D

__all__ = ["MobileNetV3Large", "MobileNetV3Small", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing(None)
# Expansion, channels, window, stride, squeeze-and-excitation and hard swish of each block.
_SMALL = (
    (1, 16, 3, 2, True, False),
    (72 / 16, 24, 3, 2, False, False),
    (88 / 24, 24, 3, 1, False, False),
    (4, 40, 5, 2, True, True),
    (6, 40, 5, 1, True, True),
    (6, 40, 5, 1, True, True),
    (3, 48, 5, 1, True, True),
    (3, 48, 5, 1, True, True),
    (6, 96, 5, 2, True, True),
    (6, 96, 5, 1, True, True),
    (6, 96, 5, 1, True, True),
)
_LARGE = (
    (1, 16, 3, 1, False, False),
    (4, 24, 3, 2, False, False),
    (3, 24, 3, 1, False, False),
    (3, 40, 5, 2, True, False),
    (3, 40, 5, 1, True, False),
    (3, 40, 5, 1, True, False),
    (6, 80, 3, 2, False, True),
    (2.5, 80, 3, 1, False, True),
    (2.3, 80, 3, 1, False, True),
    (2.3, 80, 3, 1, False, True),
    (6, 112, 3, 1, True, True),
    (6, 112, 3, 1, True, True),
    (6, 160, 5, 2, True, True),
    (6, 160, 5, 1, True, True),
    (6, 160, 5, 1, True, True),
)


def _relu(x: KerasTensor) -> KerasTensor:
    return ReLU()(x)


def _cheap_sigmoid(x: KerasTensor) -> KerasTensor:
    return ReLU(6.0)(x + 3.0) * (1.0 / 6.0)


def _cheap_swish(x: KerasTensor) -> KerasTensor:
    return Multiply()([x, _cheap_sigmoid(x)])


def _normed(x: KerasTensor, name: str) -> KerasTensor:
    return batch_norm(x, f"{name}/BatchNorm", momentum=0.999)


def _attended(x: KerasTensor, name: str) -> KerasTensor:
    """Scale the channels by factors that depend on their global means."""
    channels = x.shape[-1]
    y = GlobalAveragePooling2D(keepdims=True, name=f"{name}AvgPool")(x)
    y = convolution(y, rounded(channels * 0.25), 1, f"{name}Conv", use_bias=True)
    y = ReLU(name=f"{name}Relu")(y)
    y = _cheap_sigmoid(convolution(y, channels, 1, f"{name}Conv_1", use_bias=True))
    return Multiply(name=f"{name}Mul")([x, y])


def _block(
    x: KerasTensor,
    expansion: float,
    filters: int,
    window: int,
    stride: int,
    has_excitation: bool,
    activate: Callable[[KerasTensor], KerasTensor],
    index: int,
) -> KerasTensor:
    inputs, input_channels = x, x.shape[-1]
    name = f"expanded_conv_{index}/" if index else "expanded_conv/"
    if index:
        x = convolution(x, rounded(input_channels * expansion), 1, f"{name}expand")
        x = activate(_normed(x, f"{name}expand"))
    if stride == 2:
        x = padded_for_stride(x, window, f"{name}depthwise/pad")
    padding = "same" if stride == 1 else "valid"
    options: dict[str, Any] = {"strides": stride, "padding": padding, "use_bias": False}
    x = DepthwiseConv2D(window, name=f"{name}depthwise", **options)(x)
    x = activate(_normed(x, f"{name}depthwise"))
    if has_excitation:
        x = _attended(x, f"{name}squeeze_excite/")
    x = _normed(convolution(x, filters, 1, f"{name}project"), f"{name}project")
    return Add(name=f"{name}Add")([inputs, x]) if stride == 1 and input_channels == filters else x


def _trained_weights(size: str, alpha: float, minimalistic: bool, include_top: bool) -> str:
    """Return the URL of the ImageNet weights."""
    suffix = "_minimalistic" if minimalistic else ""
    ending = "" if include_top else "_no_top_v2"
    file = f"weights_mobilenet_v3_{size}{suffix}_224_{alpha}_float{ending}.h5"
    return f"{URL}mobilenet_v3/{file}"


class _Wanted(Wanted):
    alpha: float
    minimalistic: bool
    dropout_rate: float


def _mobilenet(size: str, args: _Wanted) -> Model:
    blocks, head_channels = (_SMALL, 1024) if size == "small" else (_LARGE, 1280)
    if args.weights == "imagenet" and args.alpha not in (
        (1.0,) if args.minimalistic else (0.75, 1.0)
    ):
        raise ValueError(
            "If imagenet weights are being loaded, alpha can be one of `0.75`, `1.0` for non minimalistic or `1.0` "
            f"for minimalistic only. Received: alpha={args.alpha}, minimalistic={args.minimalistic}"
        )
    inputs = start(Sizes(224, 32), args)
    swish = _relu if args.minimalistic else _cheap_swish
    x = Rescaling(1.0 / 127.5, -1.0)(inputs) if args.include_preprocessing else inputs
    x = swish(_normed(convolution(x, 16, 3, "Conv", 2), "Conv"))
    for index, (expansion, filters, window, stride, has_excitation, has_swish) in enumerate(blocks):
        x = _block(
            x,
            expansion,
            rounded(filters * args.alpha),
            3 if args.minimalistic else window,
            stride,
            has_excitation and not args.minimalistic,
            swish if has_swish else _relu,
            index,
        )
    x = swish(_normed(convolution(x, rounded(x.shape[-1] * 6), 1, "Conv_1"), "Conv_1"))
    if args.include_top:
        x = GlobalAveragePooling2D(keepdims=True)(x)
        channels = rounded(head_channels * args.alpha) if args.alpha > 1.0 else head_channels
        x = swish(convolution(x, channels, 1, "Conv_2", use_bias=True))
        if args.dropout_rate > 0:
            x = Dropout(args.dropout_rate)(x)
        x = Flatten()(convolution(x, args.classes, 1, "Logits", use_bias=True))
        x = Activation(args.classifier_activation, name="Predictions")(x)
    else:
        x = pooled_features(x, args.pooling)
    url = _trained_weights(size, args.alpha, args.minimalistic, args.include_top)
    return model_of(f"MobilenetV3{size}", inputs, x, args, url)


class _Signature(Protocol):
    @staticmethod
    def make_network(
        input_shape: InputShape = None,
        alpha: float = 1.0,
        minimalistic: bool = False,
        include_top: bool = True,
        weights: StrPath | None = "imagenet",
        input_tensor: TensorLike = None,
        classes: int = 1000,
        pooling: str | None = None,
        dropout_rate: float = 0.2,
        classifier_activation: ActivationLike = "softmax",
        include_preprocessing: bool = True,
    ) -> Model:
        """Create a MobileNet V3."""
        ...


def _described(size: str) -> Described:
    arguments = {
        "minimalistic": "Whether windows have size 3, without hard swish and squeeze-and-excitation.",
        "dropout_rate": "Dropout rate before the classifier.",
        "include_preprocessing": "Whether the model scales the images; otherwise they have values from -1 to 1.",
    }
    summary = f"Create a {size} MobileNet V3 for images with values from 0 to 255."
    return Described(f"MobileNetV3{size.capitalize()}", summary, 224, arguments=arguments)


_of = family(_Signature.make_network, _mobilenet, _described)


MobileNetV3Small, MobileNetV3Large = _of("small"), _of("large")
