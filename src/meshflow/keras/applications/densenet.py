"""DenseNet (arXiv:1608.06993), in which each layer reads the features of all earlier layers."""

from __future__ import annotations

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
from meshflow.keras.applications.imagenet_utils import decode_predictions, preprocessing
from meshflow.keras.engine.models.model import Model
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.keras.layers import Concatenate
from meshflow.keras.layers.borders import ZeroPadding2D
from meshflow.keras.layers.pooling import AveragePooling2D, MaxPooling2D

__all__ = ["DenseNet121", "DenseNet169", "DenseNet201", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing("torch")
_SIZES = Sizes(224, 32)
_DEPTHS = {121: (6, 12, 24, 16), 169: (6, 12, 32, 32), 201: (6, 12, 48, 32)}
_GROWTH = 32


def _active(x: KerasTensor, name: str, norm: str = "_bn", relu: str = "_relu") -> KerasTensor:
    return activation(batch_norm(x, name + norm, epsilon=1.001e-5), "relu", name + relu)


def _densenet(layers: int, args: Wanted) -> Model:
    inputs = start(_SIZES, args)
    x = convolution(ZeroPadding2D(3)(inputs), 64, 7, "conv1/conv", 2, padding="valid")
    x = ZeroPadding2D(1)(_active(x, "conv1", "/bn", "/relu"))
    x = MaxPooling2D(3, strides=2, name="pool1")(x)
    for stage, depth in enumerate(_DEPTHS[layers], 2):
        for i in range(1, depth + 1):
            name = f"conv{stage}_block{i}"
            y = convolution(
                _active(x, f"{name}_0"), 4 * _GROWTH, 1, f"{name}_1_conv", padding="valid"
            )
            y = convolution(_active(y, f"{name}_1"), _GROWTH, 3, f"{name}_2_conv")
            x = Concatenate(axis=3, name=f"{name}_concat")([x, y])
        if stage < 5:
            name = f"pool{stage}"
            half = x.shape[-1] // 2
            x = convolution(_active(x, name), half, 1, f"{name}_conv", padding="valid")
            x = AveragePooling2D(2, strides=2, name=f"{name}_pool")(x)
    x = _active(x, "", "bn", "relu")
    x = pooled(x, args)
    name, ending = f"densenet{layers}", "" if args.include_top else "_notop"
    url = f"{URL}densenet/{name}_weights_tf_dim_ordering_tf_kernels{ending}.h5"
    return model_of(name, inputs, x, args, url)


def _described(layers: int) -> Described:
    summary = f"Create a DenseNet with {layers} weighted layers."
    return Described(f"DenseNet{layers}", summary, 224)


_of = family(Signatures.make_network, _densenet, _described)


DenseNet121, DenseNet169, DenseNet201 = _of(121), _of(169), _of(201)
