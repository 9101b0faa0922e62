"""DenseNet (arXiv:1608.06993), in which each layer reads the features of all earlier layers."""

from __future__ import annotations

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
from meshflow.keras.applications.imagenet_utils import create_preprocess_input, decode_predictions
from meshflow.keras.engine.models.model import Model
from meshflow.keras.layers import Concatenate
from meshflow.keras.layers.borders import ZeroPadding2D
from meshflow.keras.layers.pooling import AveragePooling2D, MaxPooling2D

__all__ = ["DenseNet121", "DenseNet169", "DenseNet201", "decode_predictions", "preprocess_input"]

preprocess_input = create_preprocess_input("torch")
_SIZES = ImageSizes(224, 32)
_DEPTHS = {121: (6, 12, 24, 16), 169: (6, 12, 32, 32), 201: (6, 12, 48, 32)}
_GROWTH = 32


def _normalize_and_activate(x: Tensor, name: str, norm: str = "_bn", relu: str = "_relu") -> Tensor:
    return activate(normalize_batch(x, name + norm, epsilon=1.001e-5), "relu", name + relu)


def _build_densenet(layers: int, args: NetworkArguments) -> Model:
    inputs = create_input(_SIZES, args)
    x = convolve(ZeroPadding2D(3)(inputs), 64, 7, "conv1/conv", 2, padding="valid")
    x = ZeroPadding2D(1)(_normalize_and_activate(x, "conv1", "/bn", "/relu"))
    x = MaxPooling2D(3, strides=2, name="pool1")(x)
    for stage, depth in enumerate(_DEPTHS[layers], 2):
        for i in range(1, depth + 1):
            name = f"conv{stage}_block{i}"
            y = convolve(
                _normalize_and_activate(x, f"{name}_0"),
                4 * _GROWTH,
                1,
                f"{name}_1_conv",
                padding="valid",
            )
            y = convolve(_normalize_and_activate(y, f"{name}_1"), _GROWTH, 3, f"{name}_2_conv")
            x = Concatenate(axis=3, name=f"{name}_concat")([x, y])
        if stage < 5:
            name = f"pool{stage}"
            half = x.shape[-1] // 2
            x = convolve(_normalize_and_activate(x, name), half, 1, f"{name}_conv", padding="valid")
            x = AveragePooling2D(2, strides=2, name=f"{name}_pool")(x)
    x = _normalize_and_activate(x, "", "bn", "relu")
    x = apply_head(x, args)
    name, ending = f"densenet{layers}", "" if args.include_top else "_notop"
    url = f"{URL}densenet/{name}_weights_tf_dim_ordering_tf_kernels{ending}.h5"
    return build_model(name, inputs, x, args, url)


def _describe(layers: int) -> NetworkDescription:
    summary = f"Create a DenseNet with {layers} weighted layers."
    return NetworkDescription(f"DenseNet{layers}", summary, 224)


_create = create_constructor_factory(Signatures.make_network, _build_densenet, _describe)


DenseNet121, DenseNet169, DenseNet201 = _create(121), _create(169), _create(201)
