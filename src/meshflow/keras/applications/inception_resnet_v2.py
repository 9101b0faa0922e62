"""Inception-ResNet V2 (arXiv:1602.07261): Inception blocks with residual connections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.values.shapes import ShapeLike, TensorShape
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
from meshflow.keras.applications.inception_v3 import chain, shrunk
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.models.model import Model
from meshflow.keras.layers import concatenate
from meshflow.keras.layers.pooling import AveragePooling2D

__all__ = ["InceptionResNetV2", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing("tf")
_SIZES = Sizes(299, 75)


class CustomScaleLayer(Layer):
    """Sum of a tensor and a scaled second tensor.

    Args:
      scale: Factor of the second tensor.
      **kwargs: Arguments of `Layer`.
    """

    def __init__(self, scale: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale = scale

    def call(self, inputs: Sequence[TensorLike]) -> TensorLike:
        """Return the sum."""
        first, second = inputs
        return first + second * self.scale

    def compute_output_shape(self, input_shape: Sequence[ShapeLike]) -> TensorShape:
        """Return the shape of the first input."""
        return TensorShape(input_shape[0])

    def get_config(self) -> dict[str, Any]:
        """Return the configuration."""
        return {**super().get_config(), "scale": self.scale}


# Chains of convolutions (channels, window) in each block type.
_CHAINS: dict[str, tuple[tuple[tuple[Any, ...], ...], ...]] = {
    "block35": (((32, 1),), ((32, 1), (32, 3)), ((32, 1), (48, 3), (64, 3))),
    "block17": (((192, 1),), ((128, 1), (160, (1, 7)), (192, (7, 1)))),
    "block8": (((192, 1),), ((192, 1), (224, (1, 3)), (256, (3, 1)))),
}


def _block(x: TensorLike, kind: str, index: int, scale: float, is_last: bool = False) -> TensorLike:
    name = f"{kind}_{index}"
    branches = [chain(x, *steps) for steps in _CHAINS[kind]]
    residual = concatenate(branches, axis=3, name=f"{name}_mixed")
    residual = convolution(residual, x.shape[-1], 1, f"{name}_conv", use_bias=True)
    x = CustomScaleLayer(scale)([x, residual])
    return x if is_last else activation(x, "relu", f"{name}_ac")


def _inception_resnet(args: Wanted) -> Model:
    inputs = start(_SIZES, args)
    x = shrunk(chain(inputs, (32, 3, 2), (32, 3, 1), (64, 3)))
    x = shrunk(chain(x, (80, 1, 1), (192, 3, 1)))
    branches = [
        chain(x, (96, 1)),
        chain(x, (48, 1), (64, 5)),
        chain(x, (64, 1), (96, 3), (96, 3)),
    ]
    pooled_features = AveragePooling2D(3, strides=1, padding="same")(x)
    x = concatenate([*branches, chain(pooled_features, (64, 1))], axis=3, name="mixed_5b")
    for index in range(1, 11):
        x = _block(x, "block35", index, 0.17)
    branches = [chain(x, (384, 3, 2)), chain(x, (256, 1), (256, 3), (384, 3, 2))]
    x = concatenate([*branches, shrunk(x)], axis=3, name="mixed_6a")
    for index in range(1, 21):
        x = _block(x, "block17", index, 0.1)
    branches = [
        chain(x, (256, 1), (384, 3, 2)),
        chain(x, (256, 1), (288, 3, 2)),
        chain(x, (256, 1), (288, 3), (320, 3, 2)),
    ]
    x = concatenate([*branches, shrunk(x)], axis=3, name="mixed_7a")
    for index in range(1, 10):
        x = _block(x, "block8", index, 0.2)
    x = _block(x, "block8", 10, 1.0, is_last=True)
    x = batch_norm(convolution(x, 1536, 1, "conv_7b"), "conv_7b_bn", scale=False)
    x = pooled(activation(x, "relu", "conv_7b_ac"), args)
    ending = "" if args.include_top else "_notop"
    name = "inception_resnet_v2"
    url = f"{URL}{name}/{name}_weights_tf_dim_ordering_tf_kernels{ending}.h5"
    return model_of(name, inputs, x, args, url)


InceptionResNetV2 = constructor(
    Signatures.make_network,
    _inception_resnet,
    Described("InceptionResNetV2", "Create an Inception-ResNet V2 model.", 299),
)
