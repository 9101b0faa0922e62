"""RegNet (arXiv:2003.13678): stages of bottlenecks with grouped convolutions.

The Y variants also have squeeze-and-excitation.
"""

from __future__ import annotations

from typing import Any

from meshflow.core.values.tensor import Tensor
from meshflow.keras import settings
from meshflow.keras.applications.common import (
    URL,
    ImageSizes,
    build_model,
    convolve,
    create_input,
    normalize_batch,
    pool_features,
)
from meshflow.keras.applications.constructors import (
    NetworkArguments,
    NetworkDescription,
    Signatures,
    create_constructor_factory,
)
from meshflow.keras.applications.imagenet_utils import create_preprocess_input, decode_predictions
from meshflow.keras.engine.models.model import Model
from meshflow.keras.layers import Conv2D, Dense, ReLU, Rescaling
from meshflow.keras.layers.global_pooling import GlobalAveragePooling2D

preprocess_input = create_preprocess_input(None)
# Number of blocks and of channels of the four stages, and channels of a group, of each variant.
_VARIANTS = {
    "X002": ((1, 1, 4, 7), (24, 56, 152, 368), 8),
    "X004": ((1, 2, 7, 12), (32, 64, 160, 384), 16),
    "X006": ((1, 3, 5, 7), (48, 96, 240, 528), 24),
    "X008": ((1, 3, 7, 5), (64, 128, 288, 672), 16),
    "X016": ((2, 4, 10, 2), (72, 168, 408, 912), 24),
    "X032": ((2, 6, 15, 2), (96, 192, 432, 1008), 48),
    "X040": ((2, 5, 14, 2), (80, 240, 560, 1360), 40),
    "X064": ((2, 4, 10, 1), (168, 392, 784, 1624), 56),
    "X080": ((2, 5, 15, 1), (80, 240, 720, 1920), 120),
    "X120": ((2, 5, 11, 1), (224, 448, 896, 2240), 112),
    "X160": ((2, 6, 13, 1), (256, 512, 896, 2048), 128),
    "X320": ((2, 7, 13, 1), (336, 672, 1344, 2520), 168),
    "Y002": ((1, 1, 4, 7), (24, 56, 152, 368), 8),
    "Y004": ((1, 3, 6, 6), (48, 104, 208, 440), 8),
    "Y006": ((1, 3, 7, 4), (48, 112, 256, 608), 16),
    "Y008": ((1, 3, 8, 2), (64, 128, 320, 768), 16),
    "Y016": ((2, 6, 17, 2), (48, 120, 336, 888), 24),
    "Y032": ((2, 5, 13, 1), (72, 216, 576, 1512), 24),
    "Y040": ((2, 6, 12, 2), (128, 192, 512, 1088), 64),
    "Y064": ((2, 7, 14, 2), (144, 288, 576, 1296), 72),
    "Y080": ((2, 4, 10, 1), (168, 448, 896, 2016), 56),
    "Y120": ((2, 5, 11, 1), (224, 448, 896, 2240), 112),
    "Y160": ((2, 4, 11, 1), (224, 448, 1232, 3024), 112),
    "Y320": ((2, 5, 12, 1), (232, 696, 1392, 3712), 232),
}


def _convolve(x: Tensor, filters: int, size: int, name: str, **options: Any) -> Tensor:
    options = {"padding": "valid", **options}
    return convolve(x, filters, size, name, kernel_initializer="he_normal", **options)


def _normalize(x: Tensor, name: str) -> Tensor:
    return normalize_batch(x, name, momentum=0.9, epsilon=1e-5)


def _squeeze_and_excite(x: Tensor, channels: int, name: str) -> Tensor:
    """Scale the channels by factors that depend on their global means."""
    name = f"{name}_squeeze_and_excite"
    factors = GlobalAveragePooling2D(keepdims=True, name=f"{name}_gap")(x)
    for filters, kind, step in (
        (channels, "relu", "squeeze"),
        (x.shape[-1], "sigmoid", "excite"),
    ):
        factors = Conv2D(
            filters, 1, activation=kind, kernel_initializer="he_normal", name=f"{name}_{step}"
        )(factors)
    return factors * x


def _apply_block(
    x: Tensor, filters: int, group_size: int, strides: int, has_excitation: bool, name: str
) -> Tensor:
    inputs, skip = x, x
    if strides != 1:
        skip = _convolve(x, filters, 1, f"{name}_skip_1x1", strides=strides)
        skip = _normalize(skip, f"{name}_skip_bn")
    window = {"strides": strides, "groups": filters // group_size, "padding": "same"}
    for size, step, options in ((1, "conv_1x1_1", {}), (3, "conv_3x3", window)):
        x = _normalize(
            _convolve(x, filters, size, f"{name}_{step}", **options), f"{name}_{step}_bn"
        )
        x = ReLU(name=f"{name}_{step}_relu")(x)
    if has_excitation:
        x = _squeeze_and_excite(x, int(inputs.shape[-1] * 0.25), name)
    x = _normalize(_convolve(x, filters, 1, f"{name}_conv_1x1_2"), f"{name}_conv_1x1_2_bn")
    return ReLU(name=f"{name}_exit_relu")(x + skip)


def _build_regnet(variant: str, args: NetworkArguments) -> Model:
    name = args.model_name
    depths, widths, group_size = _VARIANTS[variant]
    inputs = create_input(ImageSizes(224, 32), args)
    x = inputs
    if args.include_preprocessing:
        x = Rescaling(1.0 / 255.0, name=f"{name}_prestem_rescaling")(x)
    x = _convolve(x, 32, 3, f"{name}_stem_conv", strides=2, padding="same")
    x = ReLU(name=f"{name}_stem_relu")(_normalize(x, f"{name}_stem_bn"))
    for stage, (depth, filters) in enumerate(zip(depths, widths, strict=True)):
        for block in range(depth):
            label = f"{name}_Stage_{stage}_{variant[0]}Block_{block}"
            x = _apply_block(x, filters, group_size, 1 if block else 2, variant[0] == "Y", label)
    if args.include_top:
        # tf-keras numbers these heads and ignores `classifier_activation`.
        head = settings.get_uid("head")
        x = GlobalAveragePooling2D(name=f"{head}_head_gap")(x)
        x = Dense(args.classes, name=f"{head}head_dense")(x)
    else:
        x = pool_features(x, args.pooling, is_named=False)
    url = f"{URL}regnet/regnet{variant.lower()}{'' if args.include_top else '_notop'}.h5"
    return build_model(name, inputs, x, args, url)


def _describe(variant: str) -> NetworkDescription:
    summary = (
        f"Create a RegNet{variant} for images with values from 0 to 255, with logits as outputs."
    )
    return NetworkDescription(f"RegNet{variant}", summary, 224, f"regnet{variant.lower()}")


_create = create_constructor_factory(Signatures.make_named_network, _build_regnet, _describe)


RegNetX002, RegNetX004, RegNetX006, RegNetX008 = map(_create, ("X002", "X004", "X006", "X008"))
RegNetX016, RegNetX032, RegNetX040, RegNetX064 = map(_create, ("X016", "X032", "X040", "X064"))
RegNetX080, RegNetX120, RegNetX160, RegNetX320 = map(_create, ("X080", "X120", "X160", "X320"))
RegNetY002, RegNetY004, RegNetY006, RegNetY008 = map(_create, ("Y002", "Y004", "Y006", "Y008"))
RegNetY016, RegNetY032, RegNetY040, RegNetY064 = map(_create, ("Y016", "Y032", "Y040", "Y064"))
RegNetY080, RegNetY120, RegNetY160, RegNetY320 = map(_create, ("Y080", "Y120", "Y160", "Y320"))
__all__ = [*(f"RegNet{kind}" for kind in _VARIANTS), "decode_predictions", "preprocess_input"]
