"""Inception-ResNet V2 (arXiv:1602.07261): Inception's windows, added to what they looked at."""

from __future__ import annotations

from typing import Any

from meshflow.core.values.shapes import TensorShape
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
    """The first of two tensors, and a fraction of the second.

    Args:
      scale: the fraction.
    """

    def __init__(self, scale: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale = scale

    def call(self, inputs: Any) -> Any:
        """The sum."""
        first, second = inputs
        return first + second * self.scale

    def compute_output_shape(self, input_shape: Any) -> TensorShape:
        """The first shape."""
        return TensorShape(input_shape[0])

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "scale": self.scale}


# Of each kind of block: the chains that look at its input.
_CHAINS: dict[str, tuple[tuple[tuple[Any, ...], ...], ...]] = {
    "block35": (((32, 1),), ((32, 1), (32, 3)), ((32, 1), (48, 3), (64, 3))),
    "block17": (((192, 1),), ((128, 1), (160, (1, 7)), (192, (7, 1)))),
    "block8": (((192, 1),), ((192, 1), (224, (1, 3)), (256, (3, 1)))),
}


def _block(x: Any, kind: str, number: int, scale: float, last: bool = False) -> Any:
    name = f"{kind}_{number}"
    seen = [chain(x, *steps) for steps in _CHAINS[kind]]
    found = concatenate(seen, axis=3, name=f"{name}_mixed")
    found = convolution(found, x.shape[-1], 1, f"{name}_conv", use_bias=True)
    x = CustomScaleLayer(scale)([x, found])
    return x if last else activation(x, "relu", f"{name}_ac")


def _inception_resnet(wanted: Wanted) -> Model:
    inputs = start(_SIZES, wanted)
    x = shrunk(chain(inputs, (32, 3, 2), (32, 3, 1), (64, 3)))
    x = shrunk(chain(x, (80, 1, 1), (192, 3, 1)))
    branches = [
        chain(x, (96, 1)),
        chain(x, (48, 1), (64, 5)),
        chain(x, (64, 1), (96, 3), (96, 3)),
    ]
    blurred = AveragePooling2D(3, strides=1, padding="same")(x)
    x = concatenate([*branches, chain(blurred, (64, 1))], axis=3, name="mixed_5b")
    for number in range(1, 11):
        x = _block(x, "block35", number, 0.17)
    branches = [chain(x, (384, 3, 2)), chain(x, (256, 1), (256, 3), (384, 3, 2))]
    x = concatenate([*branches, shrunk(x)], axis=3, name="mixed_6a")
    for number in range(1, 21):
        x = _block(x, "block17", number, 0.1)
    branches = [
        chain(x, (256, 1), (384, 3, 2)),
        chain(x, (256, 1), (288, 3, 2)),
        chain(x, (256, 1), (288, 3), (320, 3, 2)),
    ]
    x = concatenate([*branches, shrunk(x)], axis=3, name="mixed_7a")
    for number in range(1, 10):
        x = _block(x, "block8", number, 0.2)
    x = _block(x, "block8", 10, 1.0, last=True)
    x = batch_norm(convolution(x, 1536, 1, "conv_7b"), "conv_7b_bn", scale=False)
    x = pooled(activation(x, "relu", "conv_7b_ac"), wanted)
    ending = "" if wanted.include_top else "_notop"
    name = "inception_resnet_v2"
    file = f"{URL}{name}/{name}_weights_tf_dim_ordering_tf_kernels{ending}.h5"
    return model_of(name, inputs, x, wanted, file)


InceptionResNetV2 = constructor(
    Signatures.plain, _inception_resnet, Described("InceptionResNetV2", "Inception-ResNet V2.", 299)
)
