"""MobileNet V2 (arXiv:1801.04381): narrow shortcuts around wide convolutions by channel."""

from __future__ import annotations

from typing import Any, Protocol

from meshflow.keras.applications.common import (
    URL,
    Sizes,
    activation,
    batch_norm,
    convolution,
    model_of,
    padded_for_stride,
    pooled_features,
    start,
)
from meshflow.keras.applications.families import Described, Wanted, constructor
from meshflow.keras.applications.imagenet_utils import decode_predictions, preprocessing
from meshflow.keras.applications.mobilenet import trained_size
from meshflow.keras.engine.models.model import Model
from meshflow.keras.layers import Add, Dense, DepthwiseConv2D
from meshflow.keras.layers.global_pooling import GlobalAveragePooling2D

__all__ = ["MobileNetV2", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing("tf")
# Of each stage: expansion, channels, repeats, step.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_ALPHAS = (0.35, 0.5, 0.75, 1.0, 1.3, 1.4)


def rounded(channels: float) -> int:
    """A multiple of 8 near a number of channels, not below nine tenths of it."""
    found = max(8, int(channels + 4) // 8 * 8)
    return found + 8 if found < 0.9 * channels else found


def _normed(x: Any, name: str) -> Any:
    return batch_norm(x, name, momentum=0.999)


def _block(x: Any, expansion: int, filters: int, step: int, name: str) -> Any:
    inputs, entering = x, x.shape[-1]
    if expansion != 1:
        x = convolution(x, expansion * entering, 1, f"{name}expand")
        x = activation(_normed(x, f"{name}expand_BN"), "relu6", f"{name}expand_relu")
    if step == 2:
        x = padded_for_stride(x, 3, f"{name}pad")
    padding = "same" if step == 1 else "valid"
    options: dict[str, Any] = {"strides": step, "padding": padding, "use_bias": False}
    x = DepthwiseConv2D(3, name=f"{name}depthwise", **options)(x)
    x = activation(_normed(x, f"{name}depthwise_BN"), "relu6", f"{name}depthwise_relu")
    x = _normed(convolution(x, filters, 1, f"{name}project"), f"{name}project_BN")
    return Add(name=f"{name}add")([inputs, x]) if entering == filters and step == 1 else x


class _Signature(Protocol):
    @staticmethod
    def of(
        input_shape: Any = None,
        alpha: float = 1.0,
        include_top: bool = True,
        weights: Any = "imagenet",
        input_tensor: Any = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: Any = "softmax",
    ) -> Model:
        """TensorFlow's."""
        ...


class _Wanted(Wanted):
    alpha: float


def _mobilenet(wanted: _Wanted) -> Model:
    rows = (
        96 if tuple(wanted.input_shape or ())[:2] == (96, 96) else trained_size(wanted.input_shape)
    )
    if wanted.weights == "imagenet" and wanted.alpha not in _ALPHAS:
        raise ValueError(
            "If imagenet weights are being loaded, alpha must be one of `0.35`, `0.50`, `0.75`, `1.0`, `1.3` and `1.4` "
            f"only. Received: alpha={wanted.alpha}"
        )
    inputs = start(Sizes(rows, 32), wanted)
    x = convolution(inputs, rounded(32 * wanted.alpha), 3, "Conv1", 2)
    x = activation(_normed(x, "bn_Conv1"), "relu6", "Conv1_relu")
    number = 0
    for expansion, filters, repeats, step in _STAGES:
        for i in range(repeats):
            name = f"block_{number}_" if number else "expanded_conv_"
            x = _block(x, expansion, rounded(filters * wanted.alpha), step if i == 0 else 1, name)
            number += 1
    x = convolution(x, rounded(1280 * max(wanted.alpha, 1.0)), 1, "Conv_1", padding="valid")
    x = activation(_normed(x, "Conv_1_bn"), "relu6", "out_relu")
    if wanted.include_top:
        x = GlobalAveragePooling2D()(x)
        x = Dense(wanted.classes, activation=wanted.classifier_activation, name="predictions")(x)
    else:
        x = pooled_features(x, wanted.pooling)
    ending = "" if wanted.include_top else "_no_top"
    file = f"{URL}mobilenet_v2/mobilenet_v2_weights_tf_dim_ordering_tf_kernels_{wanted.alpha}_{rows}{ending}.h5"
    size = rows if wanted.weights == "imagenet" else inputs.shape[1]
    return model_of(f"mobilenetv2_{wanted.alpha:0.2f}_{size}", inputs, x, wanted, file)


MobileNetV2 = constructor(_Signature.of, _mobilenet, Described("MobileNetV2", "MobileNet V2.", 224))
