"""Xception (arXiv:1610.02357): separable convolutions with residual connections."""

from __future__ import annotations

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
from meshflow.keras.layers import SeparableConv2D, add
from meshflow.keras.layers.pooling import MaxPooling2D

__all__ = ["Xception", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing("tf")
_SIZES = Sizes(299, 71)
# Index, and channels of the two convolutions, of each block with stride 2.
_ENTRY = ((2, 128, 128), (3, 256, 256), (4, 728, 728))


def _separable(
    x: TensorLike,
    filters: int,
    name: str,
    has_pre_activation: bool = True,
    has_post_activation: bool = False,
) -> TensorLike:
    if has_pre_activation:
        x = activation(x, "relu", f"{name}_act")
    x = SeparableConv2D(filters, 3, padding="same", use_bias=False, name=name)(x)
    x = batch_norm(x, f"{name}_bn")
    return activation(x, "relu", f"{name}_act") if has_post_activation else x


def _shrinking(x: TensorLike, index: int, first: int, second: int) -> TensorLike:
    shortcut = batch_norm(convolution(x, second, 1, None, 2))
    # The input of block 2 is activated already.
    x = _separable(x, first, f"block{index}_sepconv1", has_pre_activation=index != 2)
    x = _separable(x, second, f"block{index}_sepconv2")
    x = MaxPooling2D(3, strides=2, padding="same", name=f"block{index}_pool")(x)
    return add([x, shortcut])


def _xception(args: Wanted) -> Model:
    inputs = start(_SIZES, args)
    x: TensorLike = inputs
    for i, filters in ((1, 32), (2, 64)):
        name = f"block1_conv{i}"
        x = convolution(x, filters, 3, name, 3 - i, padding="valid")
        x = activation(batch_norm(x, f"{name}_bn"), "relu", f"{name}_act")
    for block in _ENTRY:
        x = _shrinking(x, *block)
    for index in range(5, 13):
        shortcut = x
        for i in (1, 2, 3):
            x = _separable(x, 728, f"block{index}_sepconv{i}")
        x = add([x, shortcut])
    x = _shrinking(x, 13, 728, 1024)
    x = _separable(x, 1536, "block14_sepconv1", has_pre_activation=False, has_post_activation=True)
    x = _separable(x, 2048, "block14_sepconv2", has_pre_activation=False, has_post_activation=True)
    x = pooled(x, args)
    ending = "" if args.include_top else "_notop"
    url = f"{URL}xception/xception_weights_tf_dim_ordering_tf_kernels{ending}.h5"
    return model_of("xception", inputs, x, args, url)


Xception = constructor(
    Signatures.make_network, _xception, Described("Xception", "Create an Xception model.", 299)
)
