"""ResNet-RS (arXiv:2103.07579): ResNet with squeeze-and-excitation and revised scaling rules."""

from __future__ import annotations

from typing import Any, Protocol

from meshflow.core.values.tensor import TensorLike
from meshflow.environment.types import StrPath
from meshflow.keras import initializers
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
    family,
)
from meshflow.keras.applications.imagenet_utils import decode_predictions, preprocessing
from meshflow.keras.engine.models.model import Model
from meshflow.keras.layers import Dense, Dropout, Rescaling, Reshape, add, multiply
from meshflow.keras.layers.borders import ZeroPadding2D
from meshflow.keras.layers.global_pooling import GlobalAveragePooling2D
from meshflow.keras.layers.pooling import AveragePooling2D
from meshflow.keras.layers.preprocessing.normalization import Normalization

preprocess_input = preprocessing(None)
# Image size, blocks of the four groups, dropout rate before the classifier, drop rate of the last
# blocks, and image sizes of the published weights.
_VARIANTS: dict[str, tuple[int, tuple[int, ...], float, float, tuple[int, ...]]] = {
    "50": (160, (3, 4, 6, 3), 0.25, 0.0, (160,)),
    "101": (192, (3, 4, 23, 3), 0.25, 0.0, (160, 192)),
    "152": (256, (3, 8, 36, 3), 0.25, 0.0, (192, 224, 256)),
    "200": (256, (3, 24, 36, 3), 0.25, 0.1, (256,)),
    "270": (256, (4, 29, 53, 4), 0.25, 0.1, (256,)),
    "350": (288, (4, 36, 72, 4), 0.4, 0.1, (256, 320)),
    "420": (320, (4, 44, 87, 4), 0.4, 0.1, (320,)),
}
_CHANNELS = (64, 128, 256, 512)


def _initializer() -> initializers.Initializer:
    return initializers.VarianceScaling(2.0, "fan_out", "truncated_normal")


def _conv(
    x: TensorLike, filters: int, size: int, name: str, strides: int = 1, **options: Any
) -> TensorLike:
    """Apply a convolution that keeps the size, or has explicit padding for a stride."""
    if strides > 1:
        x = ZeroPadding2D((size - 1) // 2)(x)
        options = {"padding": "valid", **options}
    return convolution(
        x, filters, size, name, strides, kernel_initializer=_initializer(), **options
    )


def _norm(x: TensorLike, name: str) -> TensorLike:
    return batch_norm(x, name, momentum=0.0, epsilon=1e-5)


def _weighed(x: TensorLike, channels: int, name: str) -> TensorLike:
    """Scale the channels by factors that depend on their global means."""
    factors = GlobalAveragePooling2D(name=f"{name}_se_squeeze")(x)
    factors = Reshape((1, 1, x.shape[-1]), name=f"{name}_se_reshape")(factors)
    steps = ((channels, "relu", "reduce"), (x.shape[-1], "sigmoid", "expand"))
    for filters, kind, step in steps:
        options: dict[str, Any] = {"use_bias": True, "activation": kind}
        factors = _conv(factors, filters, 1, f"{name}_se_{step}", **options)
    return multiply([x, factors], name=f"{name}_se_excite")


def _block(
    x: TensorLike, channels: int, strides: int, has_projection: bool, drop_rate: float, name: str
) -> TensorLike:
    skip = x
    if has_projection:
        if strides > 1:
            pooling = AveragePooling2D(2, strides, "same", name=f"{name}__projection_pooling")
            skip = pooling(skip)
        skip = _conv(skip, 4 * channels, 1, f"{name}__projection_conv")
        skip = _norm(skip, f"{name}__projection_batch_norm")
    x = _norm(_conv(x, channels, 1, f"{name}__conv_1"), f"{name}_batch_norm_1")
    x = activation(x, "relu", f"{name}__act_1")
    x = _norm(_conv(x, channels, 3, f"{name}__conv_2", strides), f"{name}__batch_norm_2")
    x = activation(x, "relu", f"{name}__act_2")
    x = _norm(_conv(x, 4 * channels, 1, f"{name}__conv_3"), f"{name}__batch_norm_3")
    x = _weighed(x, channels, f"{name}__se")
    if drop_rate:
        x = Dropout(drop_rate, noise_shape=(None, 1, 1, 1), name=f"{name}__drop")(x)
    return activation(add([x, skip]), "relu", f"{name}__output_act")


def _stem(x: TensorLike) -> TensorLike:
    for index, (filters, strides) in enumerate(((32, 2), (32, 1), (64, 1), (64, 2)), 1):
        x = _conv(x, filters, 3, f"stem_1_stem_conv_{index}", strides)
        x = _norm(x, f"stem_1_stem_batch_norm_{index}")
        x = activation(x, "relu", f"stem_1_stem_act_{index}")
    return x


def _trained(variant: str, weights: StrPath | None) -> tuple[StrPath | None, int]:
    """Split 'imagenet-i160' into 'imagenet' and the image size; other weights have a default size."""
    size, *_, sides = _VARIANTS[variant]
    if isinstance(weights, str) and weights.startswith("imagenet-i"):
        side = weights.removeprefix("imagenet-i")
        if side not in map(str, sides):
            known = ", ".join(f"'imagenet-i{s}'" for s in sides)
            raise ValueError(f"ResNetRS{variant}: weights must be one of {known}, got {weights!r}.")
        return "imagenet", int(side)
    return weights, size if size in sides else sides[0]


def _resnet_rs(variant: str, args: Wanted) -> Model:
    size, depths, dropout, drop_rate, _ = _VARIANTS[variant]
    args.weights, side = _trained(variant, args.weights)
    inputs = start(Sizes(size, 32), args)
    x = inputs
    if args.include_preprocessing:
        x = Rescaling(1.0 / 255)(x)
        if x.shape[-1] == 3:
            variance = [0.229**2, 0.224**2, 0.225**2]
            x = Normalization(mean=[0.485, 0.456, 0.406], variance=variance, axis=3)(x)
    x = _stem(x)
    for group, (depth, channels) in enumerate(zip(depths, _CHANNELS, strict=True), 2):
        for block in range(depth):
            strides = 2 if group > 2 and not block else 1
            name = f"BlockGroup{group}__block_{block}"
            x = _block(x, channels, strides, not block, drop_rate * group / 5, name)
    if args.include_top:
        x = GlobalAveragePooling2D(name="avg_pool")(x)
        x = Dropout(dropout, name="top_dropout")(x)
        x = Dense(args.classes, activation=args.classifier_activation, name="predictions")(x)
    else:
        x = pooled_features(x, args.pooling)
    name = f"resnet-rs-{variant}"
    url = f"{URL}resnet_rs/{name}-i{side}{'' if args.include_top else '_notop'}.h5"
    return model_of(name, inputs, x, args, url)


class _Signature(Protocol):
    @staticmethod
    def make_network(
        include_top: bool = True,
        weights: StrPath | None = "imagenet",
        classes: int = 1000,
        input_shape: InputShape = None,
        input_tensor: TensorLike = None,
        pooling: str | None = None,
        classifier_activation: ActivationLike = "softmax",
        include_preprocessing: bool = True,
    ) -> Model:
        """Create a ResNet-RS."""
        ...


def _described(variant: str) -> Described:
    summary = f"Create a ResNet-RS with {variant} layers for images with values from 0 to 255."
    return Described(f"ResNetRS{variant}", summary, _VARIANTS[variant][0])


_of = family(_Signature.make_network, _resnet_rs, _described)


ResNetRS50, ResNetRS101, ResNetRS152, ResNetRS200 = map(_of, ("50", "101", "152", "200"))
ResNetRS270, ResNetRS350, ResNetRS420 = map(_of, ("270", "350", "420"))
__all__ = [*(f"ResNetRS{kind}" for kind in _VARIANTS), "decode_predictions", "preprocess_input"]
