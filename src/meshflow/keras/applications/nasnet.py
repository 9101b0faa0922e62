"""NASNet (arXiv:1707.07012): two kinds of cells that a search found, repeated.

Each cell sees the outputs of the last two, the older of which is first brought to the newer's size and channels.
"""

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
from meshflow.keras.applications.families import Described, Wanted, family
from meshflow.keras.applications.imagenet_utils import decode_predictions, preprocessing
from meshflow.keras.engine.models.model import Model
from meshflow.keras.layers import Dense, SeparableConv2D, add, concatenate
from meshflow.keras.layers.borders import Cropping2D, ZeroPadding2D
from meshflow.keras.layers.global_pooling import GlobalAveragePooling2D
from meshflow.keras.layers.pooling import AveragePooling2D, MaxPooling2D

__all__ = ["NASNetLarge", "NASNetMobile", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing("tf")
# Of each variant: side of images, channels at the end, cells between reductions, channels of the stem, whether the
# cell after a reduction sees what is two cells before it.
_VARIANTS = {"Mobile": (224, 1056, 4, 32, False), "Large": (331, 4032, 6, 96, True)}
_MULTIPLIER = 2


def _norm(x: Any, name: str) -> Any:
    return batch_norm(x, name, momentum=0.9997, epsilon=1e-3)


def _relu(x: Any, name: str | None = None) -> Any:
    return activation(x, "relu", name)


def _conv(x: Any, filters: int, name: str, size: int = 1, **options: Any) -> Any:
    return convolution(x, filters, size, name, kernel_initializer="he_normal", **options)


def _separable(x: Any, filters: int, size: int, name: str, strides: int = 1) -> Any:
    """Twice: relu, a separable convolution, normalization; the first time with a step."""
    x = _relu(x)
    padding = "same"
    if strides == 2:
        x, padding = padded_for_stride(x, size, f"separable_conv_1_pad_{name}"), "valid"
    for number in (1, 2):
        if number == 2:
            x, padding, strides = _relu(x), "same", 1
        layer = SeparableConv2D(
            filters,
            size,
            strides=strides,
            padding=padding,
            use_bias=False,
            kernel_initializer="he_normal",
            name=f"separable_conv_{number}_{name}",
        )
        x = _norm(layer(x), f"separable_conv_{number}_bn_{name}")
    return x


def _adjusted(older: Any, x: Any, filters: int, name: str) -> Any:
    """The older output with the newer's size and channels."""
    if older is None:
        return x
    if older.shape[1] != x.shape[1]:
        older = _relu(older, f"adjust_relu_1_{name}")
        moved = ZeroPadding2D(((0, 1), (0, 1)))(older)
        moved = Cropping2D(((1, 0), (1, 0)))(moved)
        parts = []
        for number, part in ((1, older), (2, moved)):
            part = AveragePooling2D(1, strides=2, name=f"adjust_avg_pool_{number}_{name}")(part)
            parts.append(_conv(part, filters // 2, f"adjust_conv_{number}_{name}"))
        return _norm(concatenate(parts, axis=3), f"adjust_bn_{name}")
    if older.shape[-1] != filters:
        older = _conv(_relu(older), filters, f"adjust_conv_projection_{name}")
        return _norm(older, f"adjust_bn_{name}")
    return older


def _average(x: Any, name: str) -> Any:
    return AveragePooling2D(3, strides=1, padding="same", name=name)(x)


def _normal(x: Any, older: Any, filters: int, name: str) -> tuple[Any, Any]:
    """A cell that keeps the size; gives its output and its input."""
    p = _adjusted(older, x, filters, name)
    h = _norm(_conv(_relu(x), filters, f"normal_conv_1_{name}"), f"normal_bn_1_{name}")
    pairs = [
        (
            _separable(h, filters, 5, f"normal_left1_{name}"),
            _separable(p, filters, 3, f"normal_right1_{name}"),
        ),
        (
            _separable(p, filters, 5, f"normal_left2_{name}"),
            _separable(p, filters, 3, f"normal_right2_{name}"),
        ),
        (_average(h, f"normal_left3_{name}"), p),
        (_average(p, f"normal_left4_{name}"), _average(p, f"normal_right4_{name}")),
        (_separable(h, filters, 3, f"normal_left5_{name}"), h),
    ]
    sums = [add(list(pair), name=f"normal_add_{n}_{name}") for n, pair in enumerate(pairs, 1)]
    return concatenate([p, *sums], axis=3, name=f"normal_concat_{name}"), x


def _reduction(x: Any, older: Any, filters: int, name: str) -> tuple[Any, Any]:
    """A cell that halves the size; gives its output and its input."""
    p = _adjusted(older, x, filters, name)
    h = _norm(_conv(_relu(x), filters, f"reduction_conv_1_{name}"), f"reduction_bn_1_{name}")
    wide = padded_for_stride(h, 3, f"reduction_pad_1_{name}")

    def separable(inputs: Any, size: int, place: str, strides: int = 2) -> Any:
        return _separable(inputs, filters, size, f"reduction_{place}_{name}", strides)

    first = [separable(h, 5, "left1"), separable(p, 7, "right1")]
    x1 = add(first, name=f"reduction_add_1_{name}")
    most = MaxPooling2D(3, strides=2, name=f"reduction_left2_{name}")(wide)
    x2 = add([most, separable(p, 7, "right2")], name=f"reduction_add_2_{name}")
    mean = AveragePooling2D(3, strides=2, name=f"reduction_left3_{name}")(wide)
    x3 = add([mean, separable(p, 5, "right3")], name=f"reduction_add3_{name}")
    x4 = add([x2, _average(x1, f"reduction_left4_{name}")])
    fifth = separable(x1, 3, "left4", strides=1)
    most = MaxPooling2D(3, strides=2, name=f"reduction_right5_{name}")(wide)
    x5 = add([fifth, most], name=f"reduction_add4_{name}")
    return concatenate([x2, x3, x4, x5], axis=3, name=f"reduction_concat_{name}"), x


def _cells(x: Any, filters: int, blocks: int, skips: bool) -> Any:
    """All cells, after the stem."""
    older = None
    x, older = _reduction(x, older, filters // _MULTIPLIER**2, "stem_1")
    x, older = _reduction(x, older, filters // _MULTIPLIER, "stem_2")
    for part in range(3):
        if part:
            filters *= _MULTIPLIER
            x, newer = _reduction(x, older, filters, f"reduce_{part * blocks}")
            older = older if skips else newer
        for number in range(blocks):
            first = part * blocks + bool(part)
            x, older = _normal(x, older, filters, str(first + number))
    return _relu(x)


def _nasnet(kind: str, wanted: Wanted) -> Model:
    size, channels, blocks, stem, skips = _VARIANTS[kind]
    inputs = start(Sizes(size, 32), wanted)
    x = _conv(inputs, stem, "stem_conv1", 3, strides=2, padding="valid")
    x = _cells(_norm(x, "stem_bn1"), channels // 24, blocks, skips)
    if wanted.include_top:
        x = GlobalAveragePooling2D()(x)
        x = Dense(wanted.classes, activation=wanted.classifier_activation, name="predictions")(x)
    else:
        x = pooled_features(x, wanted.pooling, named=False)
    file = f"{URL}nasnet/NASNet-{kind.lower()}{'' if wanted.include_top else '-no-top'}.h5"
    return model_of("NASNet", inputs, x, wanted, file)


class _Signature(Protocol):
    @staticmethod
    def of(
        input_shape: Any = None,
        include_top: bool = True,
        weights: Any = "imagenet",
        input_tensor: Any = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: Any = "softmax",
    ) -> Model:
        """TensorFlow's."""
        ...


def _described(kind: str) -> Described:
    what = f"NASNet, the {'small' if kind == 'Mobile' else 'large'} one."
    return Described(f"NASNet{kind}", what, _VARIANTS[kind][0])


_of = family(_Signature.of, _nasnet, _described)


NASNetMobile, NASNetLarge = _of("Mobile"), _of("Large")
