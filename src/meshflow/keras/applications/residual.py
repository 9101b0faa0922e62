"""ResNet (arXiv:1512.03385) and ResNet V2 (arXiv:1603.05027), which normalizes before convolving."""

from __future__ import annotations

from typing import Any

from meshflow.core.values.tensor import Tensor
from meshflow.keras.applications.common import (
    URL,
    ImageSizes,
    activate,
    apply_head,
    build_model,
    convolve,
    create_input,
    normalize_batch,
)
from meshflow.keras.applications.constructors import (
    NetworkArguments,
    NetworkDescription,
    Signatures,
    create_constructor_factory,
)
from meshflow.keras.engine.models.model import Model
from meshflow.keras.layers import Add
from meshflow.keras.layers.borders import ZeroPadding2D
from meshflow.keras.layers.pooling import MaxPooling2D

_SIZES = ImageSizes(224, 32)
_DEPTHS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_EPSILON = 1.001e-5


def _normalize(x: Tensor, name: str) -> Tensor:
    return normalize_batch(x, f"{name}_bn", epsilon=_EPSILON)


def _apply_block(x: Tensor, filters: int, stride: int, first: bool, name: str) -> Tensor:
    shortcut = x
    options: dict[str, Any] = {"use_bias": True}
    if first:
        shortcut = convolve(x, 4 * filters, 1, f"{name}_0_conv", stride, padding="valid", **options)
        shortcut = _normalize(shortcut, f"{name}_0")
    x = convolve(x, filters, 1, f"{name}_1_conv", stride, padding="valid", **options)
    x = activate(_normalize(x, f"{name}_1"), "relu", f"{name}_1_relu")
    x = convolve(x, filters, 3, f"{name}_2_conv", **options)
    x = activate(_normalize(x, f"{name}_2"), "relu", f"{name}_2_relu")
    x = convolve(x, 4 * filters, 1, f"{name}_3_conv", padding="valid", **options)
    x = Add(name=f"{name}_add")([shortcut, _normalize(x, f"{name}_3")])
    return activate(x, "relu", f"{name}_out")


def _apply_block_v2(x: Tensor, filters: int, stride: int, first: bool, name: str) -> Tensor:
    preactivation = activate(_normalize(x, f"{name}_preact"), "relu", f"{name}_preact_relu")
    if first:
        shortcut = convolve(
            preactivation, 4 * filters, 1, f"{name}_0_conv", stride, padding="valid", use_bias=True
        )
    else:
        shortcut = MaxPooling2D(1, strides=stride)(x) if stride > 1 else x
    x = convolve(preactivation, filters, 1, f"{name}_1_conv", padding="valid")
    x = activate(_normalize(x, f"{name}_1"), "relu", f"{name}_1_relu")
    x = ZeroPadding2D(1, name=f"{name}_2_pad")(x)
    x = convolve(x, filters, 3, f"{name}_2_conv", stride, padding="valid")
    x = activate(_normalize(x, f"{name}_2"), "relu", f"{name}_2_relu")
    x = convolve(x, 4 * filters, 1, f"{name}_3_conv", padding="valid", use_bias=True)
    return Add(name=f"{name}_out")([shortcut, x])


def _build_resnet(variant: tuple[int, bool], args: NetworkArguments) -> Model:
    layers, is_v2 = variant
    inputs = create_input(_SIZES, args)
    x = ZeroPadding2D(3, name="conv1_pad")(inputs)
    x = convolve(x, 64, 7, "conv1_conv", 2, padding="valid", use_bias=True)
    if not is_v2:
        x = activate(_normalize(x, "conv1"), "relu", "conv1_relu")
    x = ZeroPadding2D(1, name="pool1_pad")(x)
    x = MaxPooling2D(3, strides=2, name="pool1_pool")(x)
    for stage, depth in enumerate(_DEPTHS[layers], 2):
        filters = 32 * 2 ** (stage - 1)
        for i in range(1, depth + 1):
            # The first version downsamples in the first block of a stage, the second one in the
            # last block.
            if is_v2:
                stride = 2 if i == depth and stage < 5 else 1
                x = _apply_block_v2(x, filters, stride, i == 1, f"conv{stage}_block{i}")
            else:
                stride = 2 if i == 1 and stage > 2 else 1
                x = _apply_block(x, filters, stride, i == 1, f"conv{stage}_block{i}")
    if is_v2:
        x = activate(_normalize(x, "post"), "relu", "post_relu")
    x = apply_head(x, args)
    name = f"resnet{layers}{'v2' if is_v2 else ''}"
    ending = "" if args.include_top else "_notop"
    url = f"{URL}resnet/{name}_weights_tf_dim_ordering_tf_kernels{ending}.h5"
    return build_model(name, inputs, x, args, url)


def _describe(variant: tuple[int, bool]) -> NetworkDescription:
    layers, is_v2 = variant
    summary = f"Create a ResNet{' V2' if is_v2 else ''} with {layers} weighted layers."
    return NetworkDescription(f"ResNet{layers}{'V2' if is_v2 else ''}", summary, 224)


_create = create_constructor_factory(Signatures.make_network, _build_resnet, _describe)


ResNet50, ResNet101, ResNet152 = _create((50, False)), _create((101, False)), _create((152, False))
ResNet50V2, ResNet101V2, ResNet152V2 = (
    _create((50, True)),
    _create((101, True)),
    _create((152, True)),
)
