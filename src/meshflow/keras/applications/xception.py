"""Xception (arXiv:1610.02357): separable convolutions between shortcuts."""

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
from meshflow.keras.applications.families import Described, Signatures, Wanted, constructor
from meshflow.keras.applications.imagenet_utils import decode_predictions, preprocessing
from meshflow.keras.engine.models.model import Model
from meshflow.keras.layers import SeparableConv2D, add
from meshflow.keras.layers.pooling import MaxPooling2D

__all__ = ["Xception", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing("tf")
_SIZES = Sizes(299, 71)
# Of each block with a step of 2: its number, and the channels of its two convolutions.
_ENTRY = ((2, 128, 128), (3, 256, 256), (4, 728, 728))


def _separable(x: Any, filters: int, name: str, before: bool = True, after: bool = False) -> Any:
    if before:
        x = activation(x, "relu", f"{name}_act")
    x = SeparableConv2D(filters, 3, padding="same", use_bias=False, name=name)(x)
    x = batch_norm(x, f"{name}_bn")
    return activation(x, "relu", f"{name}_act") if after else x


def _shrinking(x: Any, number: int, first: int, second: int) -> Any:
    shortcut = batch_norm(convolution(x, second, 1, None, 2))
    # The features that enter block 2 are activated already.
    x = _separable(x, first, f"block{number}_sepconv1", before=number != 2)
    x = _separable(x, second, f"block{number}_sepconv2")
    x = MaxPooling2D(3, strides=2, padding="same", name=f"block{number}_pool")(x)
    return add([x, shortcut])


def _xception(wanted: Wanted) -> Model:
    inputs = start(_SIZES, wanted)
    x = inputs
    for i, filters in ((1, 32), (2, 64)):
        name = f"block1_conv{i}"
        x = convolution(x, filters, 3, name, 3 - i, padding="valid")
        x = activation(batch_norm(x, f"{name}_bn"), "relu", f"{name}_act")
    for block in _ENTRY:
        x = _shrinking(x, *block)
    for number in range(5, 13):
        shortcut = x
        for i in (1, 2, 3):
            x = _separable(x, 728, f"block{number}_sepconv{i}")
        x = add([x, shortcut])
    x = _shrinking(x, 13, 728, 1024)
    x = _separable(x, 1536, "block14_sepconv1", before=False, after=True)
    x = _separable(x, 2048, "block14_sepconv2", before=False, after=True)
    x = pooled(x, wanted)
    ending = "" if wanted.include_top else "_notop"
    file = f"{URL}xception/xception_weights_tf_dim_ordering_tf_kernels{ending}.h5"
    return model_of("xception", inputs, x, wanted, file)


Xception = constructor(Signatures.plain, _xception, Described("Xception", "Xception.", 299))
