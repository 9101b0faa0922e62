"""MobileNet V3 (arXiv:1905.02244): V2's blocks with attention to channels and a cheap swish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

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
from meshflow.keras.applications.families import Described, Wanted, family
from meshflow.keras.applications.imagenet_utils import decode_predictions, preprocessing
from meshflow.keras.applications.mobilenet_v2 import rounded
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

preprocess_input = preprocessing(None)
# Of each block: expansion, channels, window, step, whether it attends to channels, whether its
# activation is the cheap swish.
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


def _relu(x: Any) -> Any:
    return ReLU()(x)


def _cheap_sigmoid(x: Any) -> Any:
    return ReLU(6.0)(x + 3.0) * (1.0 / 6.0)


def _cheap_swish(x: Any) -> Any:
    return Multiply()([x, _cheap_sigmoid(x)])


def _normed(x: Any, name: str) -> Any:
    return batch_norm(x, f"{name}/BatchNorm", momentum=0.999)


def _attended(x: Any, name: str) -> Any:
    """Channels weighted by what the whole image says of them."""
    wide = x.shape[-1]
    y = GlobalAveragePooling2D(keepdims=True, name=f"{name}AvgPool")(x)
    y = convolution(y, rounded(wide * 0.25), 1, f"{name}Conv", use_bias=True)
    y = ReLU(name=f"{name}Relu")(y)
    y = _cheap_sigmoid(convolution(y, wide, 1, f"{name}Conv_1", use_bias=True))
    return Multiply(name=f"{name}Mul")([x, y])


def _block(
    x: Any,
    expansion: float,
    filters: int,
    window: int,
    step: int,
    attends: bool,
    activate: Callable[[Any], Any],
    number: int,
) -> Any:
    inputs, entering = x, x.shape[-1]
    name = f"expanded_conv_{number}/" if number else "expanded_conv/"
    if number:
        x = convolution(x, rounded(entering * expansion), 1, f"{name}expand")
        x = activate(_normed(x, f"{name}expand"))
    if step == 2:
        x = padded_for_stride(x, window, f"{name}depthwise/pad")
    padding = "same" if step == 1 else "valid"
    options: dict[str, Any] = {"strides": step, "padding": padding, "use_bias": False}
    x = DepthwiseConv2D(window, name=f"{name}depthwise", **options)(x)
    x = activate(_normed(x, f"{name}depthwise"))
    if attends:
        x = _attended(x, f"{name}squeeze_excite/")
    x = _normed(convolution(x, filters, 1, f"{name}project"), f"{name}project")
    return Add(name=f"{name}Add")([inputs, x]) if step == 1 and entering == filters else x


def _trained_weights(kind: str, alpha: float, minimalistic: bool, include_top: bool) -> str:
    """The URL of ImageNet's weights."""
    minimal = "_minimalistic" if minimalistic else ""
    ending = "" if include_top else "_no_top_v2"
    file = f"weights_mobilenet_v3_{kind}{minimal}_224_{alpha}_float{ending}.h5"
    return f"{URL}mobilenet_v3/{file}"


class _Wanted(Wanted):
    alpha: float
    minimalistic: bool
    dropout_rate: float


def _mobilenet(kind: str, wanted: _Wanted) -> Model:
    blocks, last = (_SMALL, 1024) if kind == "small" else (_LARGE, 1280)
    if wanted.weights == "imagenet" and wanted.alpha not in (
        (1.0,) if wanted.minimalistic else (0.75, 1.0)
    ):
        raise ValueError(
            "If imagenet weights are being loaded, alpha can be one of `0.75`, `1.0` for non minimalistic or `1.0` "
            f"for minimalistic only. Received: alpha={wanted.alpha}, minimalistic={wanted.minimalistic}"
        )
    inputs = start(Sizes(224, 32), wanted)
    swish = _relu if wanted.minimalistic else _cheap_swish
    x = Rescaling(1.0 / 127.5, -1.0)(inputs) if wanted.include_preprocessing else inputs
    x = swish(_normed(convolution(x, 16, 3, "Conv", 2), "Conv"))
    for number, (expansion, filters, window, step, attends, swishes) in enumerate(blocks):
        x = _block(
            x,
            expansion,
            rounded(filters * wanted.alpha),
            3 if wanted.minimalistic else window,
            step,
            attends and not wanted.minimalistic,
            swish if swishes else _relu,
            number,
        )
    x = swish(_normed(convolution(x, rounded(x.shape[-1] * 6), 1, "Conv_1"), "Conv_1"))
    if wanted.include_top:
        x = GlobalAveragePooling2D(keepdims=True)(x)
        wide = rounded(last * wanted.alpha) if wanted.alpha > 1.0 else last
        x = swish(convolution(x, wide, 1, "Conv_2", use_bias=True))
        if wanted.dropout_rate > 0:
            x = Dropout(wanted.dropout_rate)(x)
        x = Flatten()(convolution(x, wanted.classes, 1, "Logits", use_bias=True))
        x = Activation(wanted.classifier_activation, name="Predictions")(x)
    else:
        x = pooled_features(x, wanted.pooling)
    file = _trained_weights(kind, wanted.alpha, wanted.minimalistic, wanted.include_top)
    return model_of(f"MobilenetV3{kind}", inputs, x, wanted, file)


class _Signature(Protocol):
    @staticmethod
    def of(
        input_shape: Any = None,
        alpha: float = 1.0,
        minimalistic: bool = False,
        include_top: bool = True,
        weights: Any = "imagenet",
        input_tensor: Any = None,
        classes: int = 1000,
        pooling: str | None = None,
        dropout_rate: float = 0.2,
        classifier_activation: Any = "softmax",
        include_preprocessing: bool = True,
    ) -> Model:
        """TensorFlow's."""
        ...


def _described(kind: str) -> Described:
    arguments = {
        "minimalistic": "whether windows are 3 wide, and ReLU takes the place of swish and attention.",
        "dropout_rate": "share of the classifier's features that training drops.",
        "include_preprocessing": "whether images are scaled in the model; otherwise they have values -1 to 1.",
    }
    what = f"MobileNet V3, {kind}; images have values 0 to 255."
    return Described(f"MobileNetV3{kind.capitalize()}", what, 224, arguments=arguments)


_of = family(_Signature.of, _mobilenet, _described)


MobileNetV3Small, MobileNetV3Large = _of("small"), _of("large")
