"""EfficientNet V2 (arXiv:2104.00298): early blocks of plain convolutions, later ones as in EfficientNet."""

from __future__ import annotations

import math
from typing import Any

from meshflow.keras.applications.common import (
    URL,
    Sizes,
    activation,
    batch_norm,
    model_of,
    pooled_features,
    start,
)
from meshflow.keras.applications.efficientnet import KERNEL, added, attended, classified, convolved
from meshflow.keras.applications.families import Described, Signatures, Wanted, family
from meshflow.keras.applications.imagenet_utils import decode_predictions, preprocessing
from meshflow.keras.engine.models.model import Model
from meshflow.keras.layers import DepthwiseConv2D, Rescaling
from meshflow.keras.layers.preprocessing.normalization import Normalization

__all__ = [
    *(f"EfficientNetV2{size}" for size in ("B0", "B1", "B2", "B3", "L", "M", "S")),
    "decode_predictions",
    "preprocess_input",
]

preprocess_input = preprocessing(None)
# Of each stage: repeats, output channels, expansion, step, whether it attends to channels.
_B = (
    (1, 16, 1, 1, False),
    (2, 32, 4, 2, False),
    (2, 48, 4, 2, False),
    (3, 96, 4, 2, True),
    (5, 112, 6, 1, True),
    (8, 192, 6, 2, True),
)
_S = (
    (2, 24, 1, 1, False),
    (4, 48, 4, 2, False),
    (4, 64, 4, 2, False),
    (6, 128, 4, 2, True),
    (9, 160, 6, 1, True),
    (15, 256, 6, 2, True),
)
_M = (
    (3, 24, 1, 1, False),
    (5, 48, 4, 2, False),
    (5, 80, 4, 2, False),
    (7, 160, 4, 2, True),
    (14, 176, 6, 1, True),
    (18, 304, 6, 2, True),
    (5, 512, 6, 1, True),
)
_L = (
    (4, 32, 1, 1, False),
    (7, 64, 4, 2, False),
    (7, 96, 4, 2, False),
    (10, 192, 4, 2, True),
    (19, 224, 6, 1, True),
    (25, 384, 6, 2, True),
    (7, 640, 6, 1, True),
)
# Of each variant: stages, channels of the stem, width, depth, image size.
_VARIANTS = {
    "B0": (_B, 32, 1.0, 1.0, 224),
    "B1": (_B, 32, 1.0, 1.1, 240),
    "B2": (_B, 32, 1.1, 1.2, 260),
    "B3": (_B, 32, 1.2, 1.4, 300),
    "S": (_S, 24, 1.0, 1.0, 384),
    "M": (_M, 24, 1.0, 1.0, 480),
    "L": (_L, 32, 1.0, 1.0, 480),
}
_MEAN, _VARIANCE = (0.485, 0.456, 0.406), (0.229**2, 0.224**2, 0.225**2)


def _activated(x: Any, norm: str, name: str) -> Any:
    return activation(batch_norm(x, norm, momentum=0.9), "swish", name)


def _block(
    x: Any, filters: int, expansion: int, step: int, attends: bool, drop: float, name: str
) -> Any:
    inputs, entering = x, x.shape[-1]
    if expansion != 1:
        # One convolution widens and moves where the block does not work channel by channel.
        widening = (1, 1) if attends else (3, step)
        x = convolved(x, entering * expansion, widening[0], f"{name}expand_conv", widening[1])
        x = _activated(x, f"{name}expand_bn", f"{name}expand_activation")
    if attends:
        options: dict[str, Any] = {"strides": step, "padding": "same", "use_bias": False}
        x = DepthwiseConv2D(3, depthwise_initializer=KERNEL, name=f"{name}dwconv2", **options)(x)
        x = _activated(x, f"{name}bn", f"{name}activation")
        x = attended(x, max(1, int(entering * 0.25)), f"{name}se_")
    if expansion != 1:
        x = convolved(x, filters, 1, f"{name}project_conv")
        x = batch_norm(x, f"{name}project_bn", momentum=0.9)
    else:
        x = convolved(x, filters, 3, f"{name}project_conv", step)
        x = _activated(x, f"{name}project_bn", f"{name}project_activation")
    return added(x, inputs, drop, name) if step == 1 and filters == entering else x


def _rounded(filters: float) -> int:
    """The nearest multiple of 8."""
    return max(8, int(filters + 4) // 8 * 8)


def _scaled(x: Any, kind: str) -> Any:
    """Images of values 0 to 255 as the variants were trained with."""
    if kind[0] != "B":
        return Rescaling(1.0 / 128.0, -1)(x)
    return Normalization(mean=_MEAN, variance=_VARIANCE, axis=3)(Rescaling(1.0 / 255.0)(x))


def _efficientnet(kind: str, wanted: Wanted) -> Model:
    stages, stem, width, depth, size = _VARIANTS[kind]
    inputs = start(Sizes(size, 32), wanted)
    x = _scaled(inputs, kind) if wanted.include_preprocessing else inputs
    x = convolved(x, _rounded(stem * width), 3, "stem_conv", 2)
    x = _activated(x, "stem_bn", "stem_activation")
    done, total = 0, sum(repeats for repeats, *_ in stages)
    for stage, (repeats, filters, expansion, step, attends) in enumerate(stages):
        for i in range(math.ceil(depth * repeats)):
            x = _block(
                x,
                _rounded(filters * width),
                expansion,
                step if i == 0 else 1,
                attends,
                0.2 * done / total,
                f"block{stage + 1}{chr(97 + i)}_",
            )
            done += 1
    x = convolved(x, _rounded(1280 * width), 1, "top_conv")
    x = _activated(x, "top_bn", "top_activation")
    if wanted.include_top:
        x = classified(x, 0.2, wanted.classes, wanted.classifier_activation)
    else:
        x = pooled_features(x, wanted.pooling)
    name = f"efficientnetv2-{kind.lower()}"
    file = f"{URL}efficientnet_v2/{name}{'' if wanted.include_top else '_notop'}.h5"
    return model_of(name, inputs, x, wanted, file)


def _described(kind: str) -> Described:
    what = f"EfficientNet V2 {kind}; images have values 0 to 255."
    return Described(f"EfficientNetV2{kind}", what, _VARIANTS[kind][4])


_of = family(Signatures.scaling, _efficientnet, _described)


EfficientNetV2B0, EfficientNetV2B1, EfficientNetV2B2 = _of("B0"), _of("B1"), _of("B2")
EfficientNetV2B3, EfficientNetV2S, EfficientNetV2M = _of("B3"), _of("S"), _of("M")
EfficientNetV2L = _of("L")
