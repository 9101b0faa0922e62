"""Inception V3 (arXiv:1512.00567): blocks of parallel convolutions with different windows."""

from __future__ import annotations

from typing import Any

from meshflow.core.values.tensor import TensorLike
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
from meshflow.keras.layers import concatenate
from meshflow.keras.layers.pooling import AveragePooling2D, MaxPooling2D

__all__ = ["InceptionV3", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing("tf")
_SIZES = Sizes(299, 75)


def chain(x: TensorLike, *steps: tuple[Any, ...]) -> TensorLike:
    """Apply convolutions (channels, window), or (channels, window, stride) without padding."""
    for filters, window, *step in steps:
        if step:
            x = convolution(x, filters, window, None, step[0], padding="valid")
        else:
            x = convolution(x, filters, window)
        x = activation(batch_norm(x, scale=False), "relu")
    return x


def shrunk(x: TensorLike) -> TensorLike:
    """Apply max pooling with window 3 and stride 2."""
    return MaxPooling2D(3, strides=2)(x)


def _blurred(x: TensorLike) -> TensorLike:
    return AveragePooling2D(3, strides=1, padding="same")(x)


def _mixed(name: str, *branches: TensorLike) -> TensorLike:
    return concatenate(list(branches), axis=3, name=name)


def _wide(x: TensorLike, index: int) -> TensorLike:
    first = chain(x, (320, 1))
    fork = chain(x, (384, 1))
    second = concatenate(
        [chain(fork, (384, (1, 3))), chain(fork, (384, (3, 1)))],
        axis=3,
        name=f"mixed9_{index - 9}",
    )
    fork = chain(x, (448, 1), (384, 3))
    third = concatenate([chain(fork, (384, (1, 3))), chain(fork, (384, (3, 1)))], axis=3)
    return _mixed(f"mixed{index}", first, second, third, chain(_blurred(x), (192, 1)))


def _inception(args: Wanted) -> Model:
    inputs = start(_SIZES, args)
    x = shrunk(chain(inputs, (32, 3, 2), (32, 3, 1), (64, 3)))
    x = shrunk(chain(x, (80, 1, 1), (192, 3, 1)))
    for index, num_filters in enumerate((32, 64, 64)):
        x = _mixed(
            f"mixed{index}",
            chain(x, (64, 1)),
            chain(x, (48, 1), (64, 5)),
            chain(x, (64, 1), (96, 3), (96, 3)),
            chain(_blurred(x), (num_filters, 1)),
        )
    x = _mixed("mixed3", chain(x, (384, 3, 2)), chain(x, (64, 1), (96, 3), (96, 3, 2)), shrunk(x))
    for index, c in enumerate((128, 160, 160, 192), 4):
        x = _mixed(
            f"mixed{index}",
            chain(x, (192, 1)),
            chain(x, (c, 1), (c, (1, 7)), (192, (7, 1))),
            chain(x, (c, 1), (c, (7, 1)), (c, (1, 7)), (c, (7, 1)), (192, (1, 7))),
            chain(_blurred(x), (192, 1)),
        )
    x = _mixed(
        "mixed8",
        chain(x, (192, 1), (320, 3, 2)),
        chain(x, (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2)),
        shrunk(x),
    )
    x = _wide(_wide(x, 9), 10)
    x = pooled(x, args)
    ending = "" if args.include_top else "_notop"
    url = f"{URL}inception_v3/inception_v3_weights_tf_dim_ordering_tf_kernels{ending}.h5"
    return model_of("inception_v3", inputs, x, args, url)


InceptionV3 = constructor(
    Signatures.make_network,
    _inception,
    Described("InceptionV3", "Create an Inception V3 model.", 299),
)
