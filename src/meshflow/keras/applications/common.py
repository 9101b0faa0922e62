"""Helpers of the applications: input shapes, classifiers, weight files, and short layer calls."""

from __future__ import annotations

from typing import Any, TypeAlias

from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.keras import settings
from meshflow.keras.applications.constructors import InputShape, NetworkArguments
from meshflow.keras.engine.graph.input_layer import Input
from meshflow.keras.engine.models.functional import Functional
from meshflow.keras.layers import Activation, BatchNormalization, Conv2D, Dense, ReLU
from meshflow.keras.layers.borders import ZeroPadding2D
from meshflow.keras.layers.global_pooling import GlobalAveragePooling2D, GlobalMaxPooling2D
from meshflow.keras.utils.files import get_file
from meshflow.keras.utils.graphs import get_source_inputs

IntPair: TypeAlias = int | tuple[int, int]

URL = "https://storage.googleapis.com/tensorflow/keras-applications/"


class ImageSizes:
    """Image sizes that a network accepts.

    Args:
      default_size: Default height and width.
      min_size: Smallest height and width.
    """

    def __init__(self, default_size: int, min_size: int) -> None:
        self.default_size, self.min_size = default_size, min_size

    def check_shape(
        self, input_shape: InputShape, include_top: bool, weights: StrPath | None
    ) -> tuple[int | None, ...]:
        """Check an input shape and return it without the batch axis.

        Args:
          input_shape: Shape that the user passed, or None.
          include_top: Whether the network has a classifier.
          weights: The `weights` argument.

        Raises:
          ValueError: If the channels differ from those of the weights, or if the images are too
            small.
        """
        if settings.image_data_format() == "channels_first":
            raise NotImplementedError(
                "tf.keras.applications need images with channels last: set_image_data_format('channels_last')."
            )
        side = self.default_size
        if input_shape is None:
            return (side, side, 3) if include_top else (None, None, 3)
        shape = tuple(input_shape)
        if len(shape) != 3:
            raise ValueError("`input_shape` must be a tuple of three integers.")
        if weights == "imagenet" and shape[-1] != 3:
            raise ValueError(f"The input must have 3 channels; Received `input_shape={shape}`")
        if weights == "imagenet" and include_top and shape != (side, side, 3):
            raise ValueError(
                f"When setting `include_top=True` and loading `imagenet` weights, `input_shape` should be "
                f"{(side, side, 3)}. Received: input_shape={shape}"
            )
        if any(s is not None and s < self.min_size for s in shape[:2]):
            raise ValueError(
                f"Input size must be at least {self.min_size}x{self.min_size}; Received: input_shape={shape}"
            )
        if include_top and None in shape:
            raise ValueError(
                "If `include_top` is True, you should specify a static `input_shape`. "
                f"Received: input_shape={shape}"
            )
        return shape


def create_input(sizes: ImageSizes, args: NetworkArguments) -> Tensor:
    """Check the arguments of a network and return its symbolic input.

    Raises:
      ValueError: If the weights are neither known nor a file, or do not match the number of
        classes.
    """
    weights, include_top = args.weights, args.include_top
    if not (weights in ("imagenet", None) or gfile.exists(weights)):
        raise ValueError(
            "The `weights` argument should be either `None` (random initialization), `imagenet` (pre-training on "
            f"ImageNet), or the path to the weights file to be loaded. Received `weights={weights}`"
        )
    if weights == "imagenet" and include_top and args.classes != 1000:
        raise ValueError(
            'If using `weights` as `"imagenet"` with `include_top` as true, `classes` should be 1000. '
            f"Received `classes={args.classes}`"
        )
    tensor = args.input_tensor
    shape = sizes.check_shape(args.input_shape, include_top and tensor is None, weights)
    return Input(shape=shape) if tensor is None else tensor


def apply_head(x: TensorLike, args: NetworkArguments) -> TensorLike:
    """Apply the classifier, or else pool the features as `pooling` requests."""
    if args.include_top:
        x = GlobalAveragePooling2D(name="avg_pool")(x)
        return Dense(args.classes, activation=args.classifier_activation, name="predictions")(x)
    return pool_features(x, args.pooling)


def pool_features(x: TensorLike, pooling: str | None, is_named: bool = True) -> TensorLike:
    """Pool features over the image: 'avg' or 'max'; another value returns them unchanged."""
    if pooling not in ("avg", "max"):
        return x
    layer = GlobalAveragePooling2D if pooling == "avg" else GlobalMaxPooling2D
    return layer(name=f"{pooling}_pool" if is_named else None)(x)


def build_model(
    name: str, inputs: Tensor, outputs: Tensor, args: NetworkArguments, url: str
) -> Functional:
    """Create the model and load its weights.

    Args:
      name: Name of the model.
      inputs: Input of the network.
      outputs: Output of the network.
      args: Arguments of the constructor. The inputs of `input_tensor` become those of the
        model.
      url: URL of the ImageNet weights.

    Raises:
      OSError: If the weights cannot be downloaded.
    """
    model_inputs: Tensor | list[Tensor] = inputs
    if args.input_tensor is not None:
        sources: list[Tensor] = [*get_source_inputs(args.input_tensor)]
        model_inputs = sources[0] if len(sources) == 1 else sources
    model = Functional(model_inputs, outputs, name=name)
    if args.weights == "imagenet":
        model.load_weights(get_file(url.rsplit("/", 1)[-1], url, cache_subdir="models"))
    elif args.weights is not None:
        model.load_weights(args.weights)
    return model


def convolve(
    x: TensorLike,
    filters: int,
    size: IntPair,
    name: str | None = None,
    strides: IntPair = 1,
    **options: Any,
) -> TensorLike:
    """Apply a `Conv2D` with defaults for this package: no bias, and padding that keeps the size."""
    options = {"padding": "same", "use_bias": False, **options}
    return Conv2D(filters, size, strides=strides, name=name, **options)(x)


def normalize_batch(x: TensorLike, name: str | None = None, **options: Any) -> TensorLike:
    """Apply a `BatchNormalization` over the channels."""
    return BatchNormalization(axis=3, name=name, **options)(x)


def activate(x: TensorLike, kind: str, name: str | None = None) -> TensorLike:
    """Apply an `Activation`, or a `ReLU` with maximum 6 for 'relu6'."""
    return ReLU(6.0, name=name)(x) if kind == "relu6" else Activation(kind, name=name)(x)


def pad_for_stride(x: TensorLike, size: int, name: str) -> TensorLike:
    """Pad images with zeros so that a strided window without padding covers all pixels."""
    half = size // 2
    pairs = tuple((half - (1 if n is None else 1 - n % 2), half) for n in x.shape.as_list()[1:3])
    return ZeroPadding2D(pairs, name=name)(x)


def round_channels(channels: float) -> int:
    """Round a number of channels to a multiple of 8 that is at least nine tenths of it."""
    multiple = max(8, int(channels + 4) // 8 * 8)
    return multiple + 8 if multiple < 0.9 * channels else multiple
