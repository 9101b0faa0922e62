"""ResNet (arXiv:1512.03385) and ResNet V2 (arXiv:1603.05027), which normalizes before convolving."""

from __future__ import annotations

from typing import Any

from meshflow.keras.applications.common import (
    URL,
    Sizes,
    activation,
    batch_norm,
    convolution,
    model_of,
    pooled,
    start,
)
from meshflow.keras.applications.families import Described, Signatures, Wanted, family
from meshflow.keras.engine.models.model import Model
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.keras.layers import Add
from meshflow.keras.layers.borders import ZeroPadding2D
from meshflow.keras.layers.pooling import MaxPooling2D

__all__ = ["ResNet50", "ResNet50V2", "ResNet101", "ResNet101V2", "ResNet152", "ResNet152V2"]

_SIZES = Sizes(224, 32)
_DEPTHS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_EPSILON = 1.001e-5


def _normed(x: KerasTensor, name: str) -> KerasTensor:
    return batch_norm(x, f"{name}_bn", epsilon=_EPSILON)


def _block(x: KerasTensor, filters: int, stride: int, first: bool, name: str) -> KerasTensor:
    shortcut = x
    options: dict[str, Any] = {"use_bias": True}
    if first:
        shortcut = convolution(
            x, 4 * filters, 1, f"{name}_0_conv", stride, padding="valid", **options
        )
        shortcut = _normed(shortcut, f"{name}_0")
    x = convolution(x, filters, 1, f"{name}_1_conv", stride, padding="valid", **options)
    x = activation(_normed(x, f"{name}_1"), "relu", f"{name}_1_relu")
    x = convolution(x, filters, 3, f"{name}_2_conv", **options)
    x = activation(_normed(x, f"{name}_2"), "relu", f"{name}_2_relu")
    x = convolution(x, 4 * filters, 1, f"{name}_3_conv", padding="valid", **options)
    x = Add(name=f"{name}_add")([shortcut, _normed(x, f"{name}_3")])
    return activation(x, "relu", f"{name}_out")


def _block_v2(x: KerasTensor, filters: int, stride: int, first: bool, name: str) -> KerasTensor:
    preactivation = activation(_normed(x, f"{name}_preact"), "relu", f"{name}_preact_relu")
    if first:
        shortcut = convolution(
            preactivation, 4 * filters, 1, f"{name}_0_conv", stride, padding="valid", use_bias=True
        )
    else:
        shortcut = MaxPooling2D(1, strides=stride)(x) if stride > 1 else x
    x = convolution(preactivation, filters, 1, f"{name}_1_conv", padding="valid")
    x = activation(_normed(x, f"{name}_1"), "relu", f"{name}_1_relu")
    x = ZeroPadding2D(1, name=f"{name}_2_pad")(x)
    x = convolution(x, filters, 3, f"{name}_2_conv", stride, padding="valid")
    x = activation(_normed(x, f"{name}_2"), "relu", f"{name}_2_relu")
    x = convolution(x, 4 * filters, 1, f"{name}_3_conv", padding="valid", use_bias=True)
    return Add(name=f"{name}_out")([shortcut, x])


def _resnet(variant: tuple[int, bool], args: Wanted) -> Model:
    layers, is_v2 = variant
    inputs = start(_SIZES, args)
    x = ZeroPadding2D(3, name="conv1_pad")(inputs)
    x = convolution(x, 64, 7, "conv1_conv", 2, padding="valid", use_bias=True)
    if not is_v2:
        x = activation(_normed(x, "conv1"), "relu", "conv1_relu")
    x = ZeroPadding2D(1, name="pool1_pad")(x)
    x = MaxPooling2D(3, strides=2, name="pool1_pool")(x)
    for stage, depth in enumerate(_DEPTHS[layers], 2):
        filters = 32 * 2 ** (stage - 1)
        for i in range(1, depth + 1):
            # The first version downsamples in the first block of a stage, the second one in the
            # last block.
            if is_v2:
                stride = 2 if i == depth and stage < 5 else 1
                x = _block_v2(x, filters, stride, i == 1, f"conv{stage}_block{i}")
            else:
                stride = 2 if i == 1 and stage > 2 else 1
                x = _block(x, filters, stride, i == 1, f"conv{stage}_block{i}")
    if is_v2:
        x = activation(_normed(x, "post"), "relu", "post_relu")
    x = pooled(x, args)
    name = f"resnet{layers}{'v2' if is_v2 else ''}"
    ending = "" if args.include_top else "_notop"
    url = f"{URL}resnet/{name}_weights_tf_dim_ordering_tf_kernels{ending}.h5"
    return model_of(name, inputs, x, args, url)


def _described(variant: tuple[int, bool]) -> Described:
    layers, is_v2 = variant
    summary = f"Create a ResNet{' V2' if is_v2 else ''} with {layers} weighted layers."
    return Described(f"ResNet{layers}{'V2' if is_v2 else ''}", summary, 224)


_of = family(Signatures.make_network, _resnet, _described)


ResNet50, ResNet101, ResNet152 = _of((50, False)), _of((101, False)), _of((152, False))
ResNet50V2, ResNet101V2, ResNet152V2 = _of((50, True)), _of((101, True)), _of((152, True))
