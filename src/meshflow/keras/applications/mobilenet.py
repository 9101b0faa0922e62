"""MobileNet (arXiv:1704.04861): depthwise convolutions followed by pointwise ones."""

from __future__ import annotations

from typing import Protocol

from meshflow.core.values.tensor import TensorLike
from meshflow.environment.types import StrPath
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
from meshflow.keras.applications.families import (
    ActivationLike,
    Described,
    InputShape,
    Wanted,
    constructor,
)
from meshflow.keras.applications.imagenet_utils import decode_predictions, preprocessing
from meshflow.keras.engine.models.model import Model
from meshflow.keras.layers import Activation, DepthwiseConv2D, Dropout, Reshape
from meshflow.keras.layers.borders import ZeroPadding2D
from meshflow.keras.layers.global_pooling import GlobalAveragePooling2D

__all__ = ["MobileNet", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing("tf")
# Channels and stride of each block.
_BLOCKS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1),) * 5,
    *((1024, 2), (1024, 1)),
)
_ALPHAS = {0.25: "2_5", 0.5: "5_0", 0.75: "7_5", 1.0: "1_0"}
# Image sizes for which weights were published.
TRAINED = (128, 160, 192, 224)


class _Signature(Protocol):
    @staticmethod
    def make_network(
        input_shape: InputShape = None,
        alpha: float = 1.0,
        depth_multiplier: int = 1,
        dropout: float = 0.001,
        include_top: bool = True,
        weights: StrPath | None = "imagenet",
        input_tensor: TensorLike = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: ActivationLike = "softmax",
    ) -> Model:
        """Create a MobileNet."""
        ...


class _Wanted(Wanted):
    alpha: float
    depth_multiplier: int
    dropout: float


def _mobilenet(args: _Wanted) -> Model:
    rows = trained_size(args.input_shape)
    if args.weights == "imagenet" and (args.depth_multiplier != 1 or args.alpha not in _ALPHAS):
        raise ValueError(
            "If imagenet weights are being loaded, depth multiplier must be 1 and alpha can be one of `0.25`, `0.50`, "
            f"`0.75` or `1.0` only. Received: depth_multiplier={args.depth_multiplier}, alpha={args.alpha}"
        )
    inputs = start(Sizes(rows, 32), args)
    x = convolution(inputs, int(32 * args.alpha), 3, "conv1", 2)
    x = activation(batch_norm(x, "conv1_bn"), "relu6", "conv1_relu")
    for i, (filters, stride) in enumerate(_BLOCKS, 1):
        if stride == 2:
            x = ZeroPadding2D(((0, 1), (0, 1)), name=f"conv_pad_{i}")(x)
        x = DepthwiseConv2D(
            3,
            strides=stride,
            padding="same" if stride == 1 else "valid",
            depth_multiplier=args.depth_multiplier,
            use_bias=False,
            name=f"conv_dw_{i}",
        )(x)
        x = activation(batch_norm(x, f"conv_dw_{i}_bn"), "relu6", f"conv_dw_{i}_relu")
        x = convolution(x, int(filters * args.alpha), 1, f"conv_pw_{i}")
        x = activation(batch_norm(x, f"conv_pw_{i}_bn"), "relu6", f"conv_pw_{i}_relu")
    if args.include_top:
        x = GlobalAveragePooling2D(keepdims=True)(x)
        x = Dropout(args.dropout, name="dropout")(x)
        x = convolution(x, args.classes, 1, "conv_preds", use_bias=True)
        x = Reshape((args.classes,), name="reshape_2")(x)
        x = Activation(args.classifier_activation, name="predictions")(x)
    else:
        x = pooled_features(x, args.pooling)
    ending = "" if args.include_top else "_no_top"
    url = f"{URL}mobilenet/mobilenet_{_ALPHAS.get(args.alpha)}_{rows}_tf{ending}.h5"
    size = rows if args.weights == "imagenet" else inputs.shape[1]
    return model_of(f"mobilenet_{args.alpha:0.2f}_{size}", inputs, x, args, url)


_MEANINGS = {
    "depth_multiplier": "Number of output channels per input channel of depthwise convolutions.",
    "dropout": "Dropout rate before the classifier.",
}
MobileNet = constructor(
    _Signature.make_network,
    _mobilenet,
    Described("MobileNet", "Create a MobileNet.", 224, arguments=_MEANINGS),
)


def trained_size(input_shape: InputShape) -> int:
    """Return the size of square images if weights exist for it, and 224 otherwise."""
    sides = None if input_shape is None else tuple(input_shape)[:2]
    if sides is None or sides[0] != sides[1] or sides[0] not in TRAINED:
        return 224
    return sides[0]
