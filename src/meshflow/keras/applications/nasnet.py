"""NASNet (arXiv:1707.07012): two types of cells from an architecture search, repeated.

Each cell reads the outputs of the last two cells. The older output is first adapted to the size and
the number of channels of the newer one.
"""

from __future__ import annotations

from typing import Any, Protocol

from meshflow.core.values.tensor import TensorLike
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
from meshflow.keras.layers import Dense, SeparableConv2D, add, concatenate
from meshflow.keras.layers.borders import Cropping2D, ZeroPadding2D
from meshflow.keras.layers.global_pooling import GlobalAveragePooling2D
from meshflow.keras.layers.pooling import AveragePooling2D, MaxPooling2D
from meshflow.keras.literals import Padding

__all__ = ["NASNetLarge", "NASNetMobile", "decode_predictions", "preprocess_input"]

preprocess_input = create_preprocess_input("tf")
# Image size, final channels, cells between reductions and channels of the stem of each variant, and
# whether the cell after a reduction reads the output two cells earlier.
_VARIANTS = {"Mobile": (224, 1056, 4, 32, False), "Large": (331, 4032, 6, 96, True)}
_MULTIPLIER = 2


def _normalize(x: TensorLike, name: str) -> TensorLike:
    return normalize_batch(x, name, momentum=0.9997, epsilon=1e-3)


def _apply_relu(x: TensorLike, name: str | None = None) -> TensorLike:
    return activate(x, "relu", name)


def _convolve(x: TensorLike, filters: int, name: str, size: int = 1, **options: Any) -> TensorLike:
    return convolve(x, filters, size, name, kernel_initializer="he_normal", **options)


def _convolve_separable(
    x: TensorLike, filters: int, size: int, name: str, strides: int = 1
) -> TensorLike:
    """Apply relu, a separable convolution and normalization twice, the first time with the stride."""
    x = _apply_relu(x)
    padding: Padding = "same"
    if strides == 2:
        x, padding = pad_for_stride(x, size, f"separable_conv_1_pad_{name}"), "valid"
    for index in (1, 2):
        if index == 2:
            x, padding, strides = _apply_relu(x), "same", 1
        layer = SeparableConv2D(
            filters,
            size,
            strides=strides,
            padding=padding,
            use_bias=False,
            kernel_initializer="he_normal",
            name=f"separable_conv_{index}_{name}",
        )
        x = _normalize(layer(x), f"separable_conv_{index}_bn_{name}")
    return x


def _adapt_older(older: TensorLike | None, x: TensorLike, filters: int, name: str) -> TensorLike:
    """Adapt the older output to the size and channels of the newer one."""
    if older is None:
        return x
    if older.shape[1] != x.shape[1]:
        older = _apply_relu(older, f"adjust_relu_1_{name}")
        shifted = Cropping2D(((1, 0), (1, 0)))(ZeroPadding2D(((0, 1), (0, 1)))(older))
        parts = []
        for index, part in ((1, older), (2, shifted)):
            part = AveragePooling2D(1, strides=2, name=f"adjust_avg_pool_{index}_{name}")(part)
            parts.append(_convolve(part, filters // 2, f"adjust_conv_{index}_{name}"))
        return _normalize(concatenate(parts, axis=3), f"adjust_bn_{name}")
    if older.shape[-1] != filters:
        older = _convolve(_apply_relu(older), filters, f"adjust_conv_projection_{name}")
        return _normalize(older, f"adjust_bn_{name}")
    return older


def _average_pool(x: TensorLike, name: str) -> TensorLike:
    return AveragePooling2D(3, strides=1, padding="same", name=name)(x)


def _apply_normal_cell(
    x: TensorLike, older: TensorLike | None, filters: int, name: str
) -> tuple[TensorLike, TensorLike]:
    """Apply a cell that keeps the size; return its output and its input."""
    p = _adapt_older(older, x, filters, name)
    h = _normalize(
        _convolve(_apply_relu(x), filters, f"normal_conv_1_{name}"), f"normal_bn_1_{name}"
    )
    pairs = [
        (
            _convolve_separable(h, filters, 5, f"normal_left1_{name}"),
            _convolve_separable(p, filters, 3, f"normal_right1_{name}"),
        ),
        (
            _convolve_separable(p, filters, 5, f"normal_left2_{name}"),
            _convolve_separable(p, filters, 3, f"normal_right2_{name}"),
        ),
        (_average_pool(h, f"normal_left3_{name}"), p),
        (_average_pool(p, f"normal_left4_{name}"), _average_pool(p, f"normal_right4_{name}")),
        (_convolve_separable(h, filters, 3, f"normal_left5_{name}"), h),
    ]
    sums = [add(list(pair), name=f"normal_add_{n}_{name}") for n, pair in enumerate(pairs, 1)]
    return concatenate([p, *sums], axis=3, name=f"normal_concat_{name}"), x


def _apply_reduction_cell(
    x: TensorLike, older: TensorLike | None, filters: int, name: str
) -> tuple[TensorLike, TensorLike]:
    """Apply a cell that halves the size; return its output and its input."""
    p = _adapt_older(older, x, filters, name)
    h = _normalize(
        _convolve(_apply_relu(x), filters, f"reduction_conv_1_{name}"), f"reduction_bn_1_{name}"
    )
    padded_h = pad_for_stride(h, 3, f"reduction_pad_1_{name}")

    def separable(inputs: TensorLike, size: int, label: str, strides: int = 2) -> TensorLike:
        return _convolve_separable(inputs, filters, size, f"reduction_{label}_{name}", strides)

    first = [separable(h, 5, "left1"), separable(p, 7, "right1")]
    x1 = add(first, name=f"reduction_add_1_{name}")
    pooled_h = MaxPooling2D(3, strides=2, name=f"reduction_left2_{name}")(padded_h)
    x2 = add([pooled_h, separable(p, 7, "right2")], name=f"reduction_add_2_{name}")
    averaged_h = AveragePooling2D(3, strides=2, name=f"reduction_left3_{name}")(padded_h)
    x3 = add([averaged_h, separable(p, 5, "right3")], name=f"reduction_add3_{name}")
    x4 = add([x2, _average_pool(x1, f"reduction_left4_{name}")])
    fifth = separable(x1, 3, "left4", strides=1)
    pooled_h = MaxPooling2D(3, strides=2, name=f"reduction_right5_{name}")(padded_h)
    x5 = add([fifth, pooled_h], name=f"reduction_add4_{name}")
    return concatenate([x2, x3, x4, x5], axis=3, name=f"reduction_concat_{name}"), x


def _apply_cells(x: TensorLike, filters: int, blocks: int, skips: bool) -> TensorLike:
    """Apply all cells after the stem."""
    older = None
    x, older = _apply_reduction_cell(x, older, filters // _MULTIPLIER**2, "stem_1")
    x, older = _apply_reduction_cell(x, older, filters // _MULTIPLIER, "stem_2")
    for group in range(3):
        if group:
            filters *= _MULTIPLIER
            x, newer = _apply_reduction_cell(x, older, filters, f"reduce_{group * blocks}")
            older = older if skips else newer
        for index in range(blocks):
            first = group * blocks + bool(group)
            x, older = _apply_normal_cell(x, older, filters, str(first + index))
    return _apply_relu(x)


def _build_nasnet(variant: str, args: NetworkArguments) -> Model:
    size, channels, blocks, stem_filters, skips = _VARIANTS[variant]
    inputs = create_input(ImageSizes(size, 32), args)
    x = _convolve(inputs, stem_filters, "stem_conv1", 3, strides=2, padding="valid")
    x = _apply_cells(_normalize(x, "stem_bn1"), channels // 24, blocks, skips)
    if args.include_top:
        x = GlobalAveragePooling2D()(x)
        x = Dense(args.classes, activation=args.classifier_activation, name="predictions")(x)
    else:
        x = pool_features(x, args.pooling, is_named=False)
    url = f"{URL}nasnet/NASNet-{variant.lower()}{'' if args.include_top else '-no-top'}.h5"
    return build_model("NASNet", inputs, x, args, url)


class _NASNetSignature(Protocol):
    @staticmethod
    def make_network(
        input_shape: InputShape = None,
        include_top: bool = True,
        weights: StrPath | None = "imagenet",
        input_tensor: TensorLike = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: ActivationLike = "softmax",
    ) -> Model:
        """Create a NASNet."""
        ...


def _describe(variant: str) -> NetworkDescription:
    summary = f"Create a {'small' if variant == 'Mobile' else 'large'} NASNet."
    return NetworkDescription(f"NASNet{variant}", summary, _VARIANTS[variant][0])


_create = create_constructor_factory(_NASNetSignature.make_network, _build_nasnet, _describe)


NASNetMobile, NASNetLarge = _create("Mobile"), _create("Large")
