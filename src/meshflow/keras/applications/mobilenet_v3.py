"""MobileNet V3 (arXiv:1905.02244): MobileNet V2 with squeeze-and-excitation and hard swish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import StrPath
from meshflow.keras.applications.common import (
    URL,
    ImageSizes,
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
    InputShape,
    NetworkArguments,
    NetworkDescription,
    create_constructor_factory,
)
from meshflow.keras.applications.imagenet_utils import create_preprocess_input, decode_predictions
from meshflow.keras.engine.models.model import Model
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

preprocess_input = create_preprocess_input(None)
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


def _apply_relu(x: Tensor) -> Tensor:
    return ReLU()(x)


def _apply_hard_sigmoid(x: Tensor) -> Tensor:
    return ReLU(6.0)(x + 3.0) * (1.0 / 6.0)


def _apply_hard_swish(x: Tensor) -> Tensor:
    return Multiply()([x, _apply_hard_sigmoid(x)])


def _normalize(x: Tensor, name: str) -> Tensor:
    return normalize_batch(x, f"{name}/BatchNorm", momentum=0.999)


def _squeeze_and_excite(x: Tensor, name: str) -> Tensor:
    """Scale the channels by factors that depend on their global means."""
    channels = x.shape[-1]
    y = GlobalAveragePooling2D(keepdims=True, name=f"{name}AvgPool")(x)
    y = convolve(y, round_channels(channels * 0.25), 1, f"{name}Conv", use_bias=True)
    y = ReLU(name=f"{name}Relu")(y)
    y = _apply_hard_sigmoid(convolve(y, channels, 1, f"{name}Conv_1", use_bias=True))
    return Multiply(name=f"{name}Mul")([x, y])


def _apply_block(
    x: Tensor,
    expansion: float,
    filters: int,
    window: int,
    stride: int,
    has_excitation: bool,
    activate: Callable[[Tensor], Tensor],
    index: int,
) -> Tensor:
    inputs, input_channels = x, x.shape[-1]
    name = f"expanded_conv_{index}/" if index else "expanded_conv/"
    if index:
        x = convolve(x, round_channels(input_channels * expansion), 1, f"{name}expand")
        x = activate(_normalize(x, f"{name}expand"))
    if stride == 2:
        x = pad_for_stride(x, window, f"{name}depthwise/pad")
    padding = "same" if stride == 1 else "valid"
    options: dict[str, Any] = {"strides": stride, "padding": padding, "use_bias": False}
    x = DepthwiseConv2D(window, name=f"{name}depthwise", **options)(x)
    x = activate(_normalize(x, f"{name}depthwise"))
    if has_excitation:
        x = _squeeze_and_excite(x, f"{name}squeeze_excite/")
    x = _normalize(convolve(x, filters, 1, f"{name}project"), f"{name}project")
    return Add(name=f"{name}Add")([inputs, x]) if stride == 1 and input_channels == filters else x


def _get_weights_url(size: str, alpha: float, minimalistic: bool, include_top: bool) -> str:
    """Return the URL of the ImageNet weights."""
    suffix = "_minimalistic" if minimalistic else ""
    ending = "" if include_top else "_no_top_v2"
    file = f"weights_mobilenet_v3_{size}{suffix}_224_{alpha}_float{ending}.h5"
    return f"{URL}mobilenet_v3/{file}"


class _MobileNetV3Arguments(NetworkArguments):
    alpha: float
    minimalistic: bool
    dropout_rate: float


def _build_mobilenet(size: str, args: _MobileNetV3Arguments) -> Model:
    blocks, head_channels = (_SMALL, 1024) if size == "small" else (_LARGE, 1280)
    if args.weights == "imagenet" and args.alpha not in (
        (1.0,) if args.minimalistic else (0.75, 1.0)
    ):
        raise ValueError(
            "If imagenet weights are being loaded, alpha can be one of `0.75`, `1.0` for non minimalistic or `1.0` "
            f"for minimalistic only. Received: alpha={args.alpha}, minimalistic={args.minimalistic}"
        )
    inputs = create_input(ImageSizes(224, 32), args)
    swish = _apply_relu if args.minimalistic else _apply_hard_swish
    x = Rescaling(1.0 / 127.5, -1.0)(inputs) if args.include_preprocessing else inputs
    x = swish(_normalize(convolve(x, 16, 3, "Conv", 2), "Conv"))
    for index, (expansion, filters, window, stride, has_excitation, has_swish) in enumerate(blocks):
        x = _apply_block(
            x,
            expansion,
            round_channels(filters * args.alpha),
            3 if args.minimalistic else window,
            stride,
            has_excitation and not args.minimalistic,
            swish if has_swish else _apply_relu,
            index,
        )
    x = swish(_normalize(convolve(x, round_channels(x.shape[-1] * 6), 1, "Conv_1"), "Conv_1"))
    if args.include_top:
        x = GlobalAveragePooling2D(keepdims=True)(x)
        channels = round_channels(head_channels * args.alpha) if args.alpha > 1.0 else head_channels
        x = swish(convolve(x, channels, 1, "Conv_2", use_bias=True))
        if args.dropout_rate > 0:
            x = Dropout(args.dropout_rate)(x)
        x = Flatten()(convolve(x, args.classes, 1, "Logits", use_bias=True))
        x = Activation(args.classifier_activation, name="Predictions")(x)
    else:
        x = pool_features(x, args.pooling)
    url = _get_weights_url(size, args.alpha, args.minimalistic, args.include_top)
    return build_model(f"MobilenetV3{size}", inputs, x, args, url)


class _MobileNetV3Signature(Protocol):
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


def _describe(size: str) -> NetworkDescription:
    arguments = {
        "minimalistic": "Whether windows have size 3, without hard swish and squeeze-and-excitation.",
        "dropout_rate": "Dropout rate before the classifier.",
        "include_preprocessing": "Whether the model scales the images; otherwise they have values from -1 to 1.",
    }
    summary = f"Create a {size} MobileNet V3 for images with values from 0 to 255."
    return NetworkDescription(f"MobileNetV3{size.capitalize()}", summary, 224, arguments=arguments)


_create = create_constructor_factory(
    _MobileNetV3Signature.make_network, _build_mobilenet, _describe
)


MobileNetV3Small, MobileNetV3Large = _create("small"), _create("large")
