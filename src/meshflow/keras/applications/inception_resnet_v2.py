"""Inception-ResNet V2 (arXiv:1602.07261): Inception blocks with residual connections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from meshflow.core.values.shapes import ShapeLike, TensorShape
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
from meshflow.keras.applications.inception_v3 import convolve_chain, max_pool
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.layer_arguments import RegularizedArguments
from meshflow.keras.engine.models.model import Model
from meshflow.keras.layers import concatenate
from meshflow.keras.layers.pooling import AveragePooling2D

__all__ = ["InceptionResNetV2", "decode_predictions", "preprocess_input"]

preprocess_input = create_preprocess_input("tf")
_SIZES = ImageSizes(299, 75)


class CustomScaleLayer(Layer):
    """Sum of a tensor and a scaled second tensor.

    Args:
      scale: Factor of the second tensor.
      **kwargs: Arguments of `Layer`.
    """

    def __init__(self, scale: float, **kwargs: Unpack[RegularizedArguments]) -> None:
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


def _apply_block(
    x: TensorLike, kind: str, index: int, scale: float, is_last: bool = False
) -> TensorLike:
    name = f"{kind}_{index}"
    branches = [convolve_chain(x, *steps) for steps in _CHAINS[kind]]
    residual = concatenate(branches, axis=3, name=f"{name}_mixed")
    residual = convolve(residual, x.shape[-1], 1, f"{name}_conv", use_bias=True)
    x = CustomScaleLayer(scale)([x, residual])
    return x if is_last else activate(x, "relu", f"{name}_ac")


def _build_inception_resnet(args: NetworkArguments) -> Model:
    inputs = create_input(_SIZES, args)
    x = max_pool(convolve_chain(inputs, (32, 3, 2), (32, 3, 1), (64, 3)))
    x = max_pool(convolve_chain(x, (80, 1, 1), (192, 3, 1)))
    branches = [
        convolve_chain(x, (96, 1)),
        convolve_chain(x, (48, 1), (64, 5)),
        convolve_chain(x, (64, 1), (96, 3), (96, 3)),
    ]
    pooled_features = AveragePooling2D(3, strides=1, padding="same")(x)
    x = concatenate([*branches, convolve_chain(pooled_features, (64, 1))], axis=3, name="mixed_5b")
    for index in range(1, 11):
        x = _apply_block(x, "block35", index, 0.17)
    branches = [convolve_chain(x, (384, 3, 2)), convolve_chain(x, (256, 1), (256, 3), (384, 3, 2))]
    x = concatenate([*branches, max_pool(x)], axis=3, name="mixed_6a")
    for index in range(1, 21):
        x = _apply_block(x, "block17", index, 0.1)
    branches = [
        convolve_chain(x, (256, 1), (384, 3, 2)),
        convolve_chain(x, (256, 1), (288, 3, 2)),
        convolve_chain(x, (256, 1), (288, 3), (320, 3, 2)),
    ]
    x = concatenate([*branches, max_pool(x)], axis=3, name="mixed_7a")
    for index in range(1, 10):
        x = _apply_block(x, "block8", index, 0.2)
    x = _apply_block(x, "block8", 10, 1.0, is_last=True)
    x = normalize_batch(convolve(x, 1536, 1, "conv_7b"), "conv_7b_bn", scale=False)
    x = apply_head(activate(x, "relu", "conv_7b_ac"), args)
    ending = "" if args.include_top else "_notop"
    name = "inception_resnet_v2"
    url = f"{URL}{name}/{name}_weights_tf_dim_ordering_tf_kernels{ending}.h5"
    return build_model(name, inputs, x, args, url)


InceptionResNetV2 = create_constructor(
    Signatures.make_network,
    _build_inception_resnet,
    NetworkDescription("InceptionResNetV2", "Create an Inception-ResNet V2 model.", 299),
)
