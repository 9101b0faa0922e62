"""Inception V3 (arXiv:1512.00567): blocks of parallel convolutions with different windows."""

from __future__ import annotations

from typing import Any

from meshflow.core.values.tensor import TensorLike
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
    create_constructor,
)
from meshflow.keras.applications.imagenet_utils import create_preprocess_input, decode_predictions
from meshflow.keras.engine.models.model import Model
from meshflow.keras.layers import concatenate
from meshflow.keras.layers.pooling import AveragePooling2D, MaxPooling2D

__all__ = ["InceptionV3", "decode_predictions", "preprocess_input"]

preprocess_input = create_preprocess_input("tf")
_SIZES = ImageSizes(299, 75)


def convolve_chain(x: TensorLike, *steps: tuple[Any, ...]) -> TensorLike:
    """Apply convolutions (channels, window), or (channels, window, stride) without padding."""
    for filters, window, *step in steps:
        if step:
            x = convolve(x, filters, window, None, step[0], padding="valid")
        else:
            x = convolve(x, filters, window)
        x = activate(normalize_batch(x, scale=False), "relu")
    return x


def max_pool(x: TensorLike) -> TensorLike:
    """Apply max pooling with window 3 and stride 2."""
    return MaxPooling2D(3, strides=2)(x)


def _average_pool(x: TensorLike) -> TensorLike:
    return AveragePooling2D(3, strides=1, padding="same")(x)


def _concatenate(name: str, *branches: TensorLike) -> TensorLike:
    return concatenate(list(branches), axis=3, name=name)


def _apply_expanded_block(x: TensorLike, index: int) -> TensorLike:
    first = convolve_chain(x, (320, 1))
    fork = convolve_chain(x, (384, 1))
    second = concatenate(
        [convolve_chain(fork, (384, (1, 3))), convolve_chain(fork, (384, (3, 1)))],
        axis=3,
        name=f"mixed9_{index - 9}",
    )
    fork = convolve_chain(x, (448, 1), (384, 3))
    third = concatenate(
        [convolve_chain(fork, (384, (1, 3))), convolve_chain(fork, (384, (3, 1)))], axis=3
    )
    return _concatenate(
        f"mixed{index}", first, second, third, convolve_chain(_average_pool(x), (192, 1))
    )


def _build_inception(args: NetworkArguments) -> Model:
    inputs = create_input(_SIZES, args)
    x = max_pool(convolve_chain(inputs, (32, 3, 2), (32, 3, 1), (64, 3)))
    x = max_pool(convolve_chain(x, (80, 1, 1), (192, 3, 1)))
    for index, num_filters in enumerate((32, 64, 64)):
        x = _concatenate(
            f"mixed{index}",
            convolve_chain(x, (64, 1)),
            convolve_chain(x, (48, 1), (64, 5)),
            convolve_chain(x, (64, 1), (96, 3), (96, 3)),
            convolve_chain(_average_pool(x), (num_filters, 1)),
        )
    x = _concatenate(
        "mixed3",
        convolve_chain(x, (384, 3, 2)),
        convolve_chain(x, (64, 1), (96, 3), (96, 3, 2)),
        max_pool(x),
    )
    for index, c in enumerate((128, 160, 160, 192), 4):
        x = _concatenate(
            f"mixed{index}",
            convolve_chain(x, (192, 1)),
            convolve_chain(x, (c, 1), (c, (1, 7)), (192, (7, 1))),
            convolve_chain(x, (c, 1), (c, (7, 1)), (c, (1, 7)), (c, (7, 1)), (192, (1, 7))),
            convolve_chain(_average_pool(x), (192, 1)),
        )
    x = _concatenate(
        "mixed8",
        convolve_chain(x, (192, 1), (320, 3, 2)),
        convolve_chain(x, (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2)),
        max_pool(x),
    )
    x = _apply_expanded_block(_apply_expanded_block(x, 9), 10)
    x = apply_head(x, args)
    ending = "" if args.include_top else "_notop"
    url = f"{URL}inception_v3/inception_v3_weights_tf_dim_ordering_tf_kernels{ending}.h5"
    return build_model("inception_v3", inputs, x, args, url)


InceptionV3 = create_constructor(
    Signatures.make_network,
    _build_inception,
    NetworkDescription("InceptionV3", "Create an Inception V3 model.", 299),
)
