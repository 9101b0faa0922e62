"""MobileNet V2 (arXiv:1801.04381): narrow residual connections around wide depthwise convolutions."""

from __future__ import annotations

from typing import Any, Protocol

from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import StrPath
from meshflow.keras.applications.common import (
    URL,
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
    InputShape,
    NetworkArguments,
    NetworkDescription,
    create_constructor,
)
from meshflow.keras.applications.imagenet_utils import create_preprocess_input, decode_predictions
from meshflow.keras.applications.mobilenet import get_trained_size
from meshflow.keras.engine.models.model import Model
from meshflow.keras.layers import Add, Dense, DepthwiseConv2D
from meshflow.keras.layers.global_pooling import GlobalAveragePooling2D

__all__ = ["MobileNetV2", "decode_predictions", "preprocess_input"]

preprocess_input = create_preprocess_input("tf")
# Expansion, channels, repeats and stride of each stage.
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


def _normalize(x: Tensor, name: str) -> Tensor:
    return normalize_batch(x, name, momentum=0.999)


def _apply_block(x: Tensor, expansion: int, filters: int, stride: int, name: str) -> Tensor:
    inputs, input_channels = x, x.shape[-1]
    if expansion != 1:
        x = convolve(x, expansion * input_channels, 1, f"{name}expand")
        x = activate(_normalize(x, f"{name}expand_BN"), "relu6", f"{name}expand_relu")
    if stride == 2:
        x = pad_for_stride(x, 3, f"{name}pad")
    padding = "same" if stride == 1 else "valid"
    options: dict[str, Any] = {"strides": stride, "padding": padding, "use_bias": False}
    x = DepthwiseConv2D(3, name=f"{name}depthwise", **options)(x)
    x = activate(_normalize(x, f"{name}depthwise_BN"), "relu6", f"{name}depthwise_relu")
    x = _normalize(convolve(x, filters, 1, f"{name}project"), f"{name}project_BN")
    return Add(name=f"{name}add")([inputs, x]) if input_channels == filters and stride == 1 else x


class _MobileNetV2Signature(Protocol):
    @staticmethod
    def make_network(
        input_shape: InputShape = None,
        alpha: float = 1.0,
        include_top: bool = True,
        weights: StrPath | None = "imagenet",
        input_tensor: TensorLike = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: ActivationLike = "softmax",
    ) -> Model:
        """Create a MobileNet V2."""
        ...


class _MobileNetV2Arguments(NetworkArguments):
    alpha: float


def _build_mobilenet(args: _MobileNetV2Arguments) -> Model:
    rows = (
        96 if tuple(args.input_shape or ())[:2] == (96, 96) else get_trained_size(args.input_shape)
    )
    if args.weights == "imagenet" and args.alpha not in _ALPHAS:
        raise ValueError(
            "If imagenet weights are being loaded, alpha must be one of `0.35`, `0.50`, `0.75`, `1.0`, `1.3` and `1.4` "
            f"only. Received: alpha={args.alpha}"
        )
    inputs = create_input(ImageSizes(rows, 32), args)
    x = convolve(inputs, round_channels(32 * args.alpha), 3, "Conv1", 2)
    x = activate(_normalize(x, "bn_Conv1"), "relu6", "Conv1_relu")
    index = 0
    for expansion, filters, repeats, stride in _STAGES:
        for i in range(repeats):
            name = f"block_{index}_" if index else "expanded_conv_"
            x = _apply_block(
                x, expansion, round_channels(filters * args.alpha), stride if i == 0 else 1, name
            )
            index += 1
    x = convolve(x, round_channels(1280 * max(args.alpha, 1.0)), 1, "Conv_1", padding="valid")
    x = activate(_normalize(x, "Conv_1_bn"), "relu6", "out_relu")
    if args.include_top:
        x = GlobalAveragePooling2D()(x)
        x = Dense(args.classes, activation=args.classifier_activation, name="predictions")(x)
    else:
        x = pool_features(x, args.pooling)
    ending = "" if args.include_top else "_no_top"
    url = f"{URL}mobilenet_v2/mobilenet_v2_weights_tf_dim_ordering_tf_kernels_{args.alpha}_{rows}{ending}.h5"
    size = rows if args.weights == "imagenet" else inputs.shape[1]
    return build_model(f"mobilenetv2_{args.alpha:0.2f}_{size}", inputs, x, args, url)


MobileNetV2 = create_constructor(
    _MobileNetV2Signature.make_network,
    _build_mobilenet,
    NetworkDescription("MobileNetV2", "Create a MobileNet V2.", 224),
)
