"""MobileNet (arXiv:1704.04861): convolutions by channel, then by place."""

from __future__ import annotations

from typing import Any, Protocol

from meshflow.keras.applications.common import (
    URL,
    Sizes,
    activation,
    batch_norm,
    convolution,
    model_of,
    pooled_features,
    start,
)
from meshflow.keras.applications.families import Described, Wanted, constructor
from meshflow.keras.applications.imagenet_utils import decode_predictions, preprocessing
from meshflow.keras.engine.models.model import Model
from meshflow.keras.layers import Activation, DepthwiseConv2D, Dropout, Reshape
from meshflow.keras.layers.borders import ZeroPadding2D
from meshflow.keras.layers.global_pooling import GlobalAveragePooling2D

__all__ = ["MobileNet", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing("tf")
# Channels and step of each block.
_BLOCKS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1),) * 5,
    *((1024, 2), (1024, 1)),
)
_ALPHAS = {0.25: "2_5", 0.5: "5_0", 0.75: "7_5", 1.0: "1_0"}
# Image sizes that there are weights for.
TRAINED = (128, 160, 192, 224)


class _Signature(Protocol):
    @staticmethod
    def of(
        input_shape: Any = None,
        alpha: float = 1.0,
        depth_multiplier: int = 1,
        dropout: float = 0.001,
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
    depth_multiplier: int
    dropout: float


def _mobilenet(wanted: _Wanted) -> Model:
    rows = trained_size(wanted.input_shape)
    if wanted.weights == "imagenet" and (
        wanted.depth_multiplier != 1 or wanted.alpha not in _ALPHAS
    ):
        raise ValueError(
            "If imagenet weights are being loaded, depth multiplier must be 1 and alpha can be one of `0.25`, `0.50`, "
            f"`0.75` or `1.0` only. Received: depth_multiplier={wanted.depth_multiplier}, alpha={wanted.alpha}"
        )
    inputs = start(Sizes(rows, 32), wanted)
    x = convolution(inputs, int(32 * wanted.alpha), 3, "conv1", 2)
    x = activation(batch_norm(x, "conv1_bn"), "relu6", "conv1_relu")
    for i, (filters, step) in enumerate(_BLOCKS, 1):
        if step == 2:
            x = ZeroPadding2D(((0, 1), (0, 1)), name=f"conv_pad_{i}")(x)
        x = DepthwiseConv2D(
            3,
            strides=step,
            padding="same" if step == 1 else "valid",
            depth_multiplier=wanted.depth_multiplier,
            use_bias=False,
            name=f"conv_dw_{i}",
        )(x)
        x = activation(batch_norm(x, f"conv_dw_{i}_bn"), "relu6", f"conv_dw_{i}_relu")
        x = convolution(x, int(filters * wanted.alpha), 1, f"conv_pw_{i}")
        x = activation(batch_norm(x, f"conv_pw_{i}_bn"), "relu6", f"conv_pw_{i}_relu")
    if wanted.include_top:
        x = GlobalAveragePooling2D(keepdims=True)(x)
        x = Dropout(wanted.dropout, name="dropout")(x)
        x = convolution(x, wanted.classes, 1, "conv_preds", use_bias=True)
        x = Reshape((wanted.classes,), name="reshape_2")(x)
        x = Activation(wanted.classifier_activation, name="predictions")(x)
    else:
        x = pooled_features(x, wanted.pooling)
    ending = "" if wanted.include_top else "_no_top"
    file = f"{URL}mobilenet/mobilenet_{_ALPHAS.get(wanted.alpha)}_{rows}_tf{ending}.h5"
    size = rows if wanted.weights == "imagenet" else inputs.shape[1]
    return model_of(f"mobilenet_{wanted.alpha:0.2f}_{size}", inputs, x, wanted, file)


_MEANINGS = {
    "depth_multiplier": "output channels per input channel of convolutions by channel.",
    "dropout": "share dropped before the classifier in training.",
}
MobileNet = constructor(
    _Signature.of, _mobilenet, Described("MobileNet", "MobileNet.", 224, arguments=_MEANINGS)
)


def trained_size(input_shape: Any) -> int:
    """The image size that weights were trained with for a shape; 224 unless it is another of these."""
    sides = None if input_shape is None else tuple(input_shape)[:2]
    if sides is None or sides[0] != sides[1] or sides[0] not in TRAINED:
        return 224
    return sides[0]
