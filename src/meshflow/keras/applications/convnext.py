"""ConvNeXt (arXiv:2201.03545): a convolutional network with design choices of transformers."""

from __future__ import annotations

from typing import Any, Unpack

from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras import initializers
from meshflow.keras.applications.common import (
    URL,
    ImageSizes,
    build_model,
    create_input,
    pool_features,
)
from meshflow.keras.applications.constructors import (
    NetworkArguments,
    NetworkDescription,
    Signatures,
    create_constructor_factory,
)
from meshflow.keras.applications.imagenet_utils import create_preprocess_input, decode_predictions
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.layer_arguments import RegularizedArguments
from meshflow.keras.engine.models.model import Model
from meshflow.keras.engine.models.sequential import Sequential
from meshflow.keras.layers import Activation, Conv2D, Dense, LayerNormalization
from meshflow.keras.layers.global_pooling import GlobalAveragePooling2D
from meshflow.keras.layers.preprocessing.normalization import Normalization

__all__ = [
    *(f"ConvNeXt{size}" for size in ("Base", "Large", "Small", "Tiny", "XLarge")),
    "decode_predictions",
    "preprocess_input",
]

preprocess_input = create_preprocess_input(None)
# Number of blocks and of channels of the four stages of each variant.
_VARIANTS = {
    "Tiny": ((3, 3, 9, 3), (96, 192, 384, 768)),
    "Small": ((3, 3, 27, 3), (96, 192, 384, 768)),
    "Base": ((3, 3, 27, 3), (128, 256, 512, 1024)),
    "Large": ((3, 3, 27, 3), (192, 384, 768, 1536)),
    "XLarge": ((3, 3, 27, 3), (256, 512, 1024, 2048)),
}


class LayerScale(Layer):
    """Trainable factor for each channel, initialized to a small value.

    Args:
      init_values: Initial value of the factors.
      projection_dim: Number of channels.
      **kwargs: Arguments of `Layer`.
    """

    def __init__(
        self, init_values: float, projection_dim: int, **kwargs: Unpack[RegularizedArguments]
    ) -> None:
        super().__init__(**kwargs)
        self.init_values, self.projection_dim = init_values, projection_dim

    def build(self, input_shape: ShapeLike) -> None:
        """Create the factors."""
        self.gamma = self.add_weight(
            "gamma",
            (self.projection_dim,),
            initializer=initializers.Constant(self.init_values),
        )
        self.built = True

    def call(self, x: TensorLike) -> TensorLike:
        """Return the scaled channels."""
        return x * self.gamma

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Return the shape of the input."""
        return TensorShape(input_shape)

    def get_config(self) -> dict[str, Any]:
        """Return the configuration."""
        config = {"init_values": self.init_values, "projection_dim": self.projection_dim}
        return {**super().get_config(), **config}


def _create_norm(name: str) -> LayerNormalization:
    return LayerNormalization(epsilon=1e-6, name=name)


def _apply_block(x: Tensor, name: str) -> Tensor:
    inputs, channels = x, x.shape[-1]
    name = f"{name}_"
    x = Conv2D(channels, 7, padding="same", groups=channels, name=f"{name}depthwise_conv")(x)
    x = _create_norm(f"{name}layernorm")(x)
    x = Dense(4 * channels, name=f"{name}pointwise_conv_1")(x)
    x = Activation("gelu", name=f"{name}gelu")(x)
    x = Dense(channels, name=f"{name}pointwise_conv_2")(x)
    x = LayerScale(1e-6, channels, name=f"{name}layer_scale")(x)
    return inputs + Activation("linear", name=f"{name}identity")(x)


def _build_convnext(variant: str, args: NetworkArguments) -> Model:
    name = args.model_name
    depths, widths = _VARIANTS[variant]
    inputs = create_input(ImageSizes(224, 32), args)
    x = inputs
    if args.include_preprocessing:
        mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        x = Normalization(
            mean=[255 * m for m in mean],
            variance=[(255 * d) ** 2 for d in deviation],
            name=f"{name}_prestem_normalization",
        )(x)
    stem = [
        Conv2D(widths[0], 4, strides=4, name=f"{name}_stem_conv"),
        _create_norm(f"{name}_stem_layernorm"),
    ]
    x = Sequential(stem, name=f"{name}_stem")(x)
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        if stage:
            # Keras numbers the downsampling blocks from 0.
            down = f"{name}_downsampling"
            steps = [
                _create_norm(f"{down}_layernorm_{stage - 1}"),
                Conv2D(width, 2, strides=2, name=f"{down}_conv_{stage - 1}"),
            ]
            x = Sequential(steps, name=f"{down}_block_{stage - 1}")(x)
        for block in range(depth):
            x = _apply_block(x, f"{name}_stage_{stage}_block_{block}")
    if args.include_top:
        x = GlobalAveragePooling2D(name=f"{name}_head_gap")(x)
        x = _create_norm(f"{name}_head_layernorm")(x)
        x = Dense(args.classes, activation=args.classifier_activation, name=f"{name}_head_dense")(x)
    else:
        x = LayerNormalization(epsilon=1e-6)(pool_features(x, args.pooling, is_named=False))
    url = f"{URL}convnext/convnext_{variant.lower()}{'' if args.include_top else '_notop'}.h5"
    return build_model(name, inputs, x, args, url)


def _describe(variant: str) -> NetworkDescription:
    summary = f"Create a ConvNeXt {variant} model for images with values from 0 to 255."
    return NetworkDescription(f"ConvNeXt{variant}", summary, 224, f"convnext_{variant.lower()}")


_create = create_constructor_factory(Signatures.make_named_network, _build_convnext, _describe)


ConvNeXtTiny, ConvNeXtSmall, ConvNeXtBase = _create("Tiny"), _create("Small"), _create("Base")
ConvNeXtLarge, ConvNeXtXLarge = _create("Large"), _create("XLarge")
