"""What the applications share: input shapes, the classifier on top, weight files, and small layer calls."""

from __future__ import annotations

from typing import Any

from meshflow.files import gfile
from meshflow.keras import settings
from meshflow.keras.applications.families import Wanted
from meshflow.keras.engine.graph.input_layer import Input
from meshflow.keras.engine.models.functional import Functional
from meshflow.keras.layers import Activation, BatchNormalization, Conv2D, Dense, ReLU
from meshflow.keras.layers.borders import ZeroPadding2D
from meshflow.keras.layers.global_pooling import GlobalAveragePooling2D, GlobalMaxPooling2D
from meshflow.keras.utils.files import get_file
from meshflow.keras.utils.graphs import get_source_inputs

__all__ = ["Sizes", "activation", "batch_norm", "convolution", "model_of", "pooled", "start"]

URL = "https://storage.googleapis.com/tensorflow/keras-applications/"


class Sizes:
    """Sizes of images that a network takes.

    Args:
      default: height and width when none are given.
      least: the smallest height and width.
    """

    def __init__(self, default: int, least: int) -> None:
        self.default, self.least = default, least

    def shape(self, given: Any, top: bool, weights: Any) -> tuple[Any, ...]:
        """A checked shape without the batch.

        Args:
          given: the user's shape, or None.
          top: whether the classifier is wanted.
          weights: the user's `weights`.

        Raises:
          ValueError: for other channels than the weights', or images that are too small.
        """
        first = settings.image_data_format() == "channels_first"
        if first:
            raise NotImplementedError(
                "tf.keras.applications need images with channels last: set_image_data_format('channels_last')."
            )
        side = self.default
        if given is None:
            return (side, side, 3) if top else (None, None, 3)
        shape = tuple(given)
        if len(shape) != 3:
            raise ValueError("`input_shape` must be a tuple of three integers.")
        if weights == "imagenet" and shape[-1] != 3:
            raise ValueError(f"The input must have 3 channels; Received `input_shape={shape}`")
        if weights == "imagenet" and top and shape != (side, side, 3):
            raise ValueError(
                f"When setting `include_top=True` and loading `imagenet` weights, `input_shape` should be "
                f"{(side, side, 3)}. Received: input_shape={shape}"
            )
        if any(s is not None and s < self.least for s in shape[:2]):
            raise ValueError(
                f"Input size must be at least {self.least}x{self.least}; Received: input_shape={shape}"
            )
        if top and None in shape:
            raise ValueError(
                "If `include_top` is True, you should specify a static `input_shape`. "
                f"Received: input_shape={shape}"
            )
        return shape


def start(sizes: Sizes, wanted: Wanted) -> Any:
    """The symbolic input of a network, after its arguments are checked.

    Raises:
      ValueError: for weights that are neither known nor a file, or do not fit the number of classes.
    """
    weights, top = wanted.weights, wanted.include_top
    if not (weights in ("imagenet", None) or gfile.exists(weights)):
        raise ValueError(
            "The `weights` argument should be either `None` (random initialization), `imagenet` (pre-training on "
            f"ImageNet), or the path to the weights file to be loaded. Received `weights={weights}`"
        )
    if weights == "imagenet" and top and wanted.classes != 1000:
        raise ValueError(
            'If using `weights` as `"imagenet"` with `include_top` as true, `classes` should be 1000. '
            f"Received `classes={wanted.classes}`"
        )
    begin = wanted.input_tensor
    shape = sizes.shape(wanted.input_shape, top and begin is None, weights)
    return Input(shape=shape) if begin is None else begin


def pooled(x: Any, wanted: Wanted) -> Any:
    """The classifier, or pooled features, or the features."""
    if wanted.include_top:
        x = GlobalAveragePooling2D(name="avg_pool")(x)
        return Dense(wanted.classes, activation=wanted.classifier_activation, name="predictions")(x)
    return pooled_features(x, wanted.pooling)


def pooled_features(x: Any, pooling: str | None, named: bool = True) -> Any:
    """Features of the whole image: 'avg' or 'max' over all places; None leaves the places."""
    if pooling not in ("avg", "max"):
        return x
    layer = GlobalAveragePooling2D if pooling == "avg" else GlobalMaxPooling2D
    return layer(name=f"{pooling}_pool" if named else None)(x)


def model_of(name: str, inputs: Any, outputs: Any, wanted: Wanted, file: str) -> Functional:
    """The finished model with its weights.

    Args:
      name: the model's name.
      inputs: where it begins.
      outputs: where it ends.
      wanted: has the user's tensor, whose own inputs are the model's, and which weights are loaded.
      file: URL of ImageNet's weights.

    Raises:
      OSError: when weights cannot be downloaded.
    """
    begin = inputs
    if wanted.input_tensor is not None:
        found = get_source_inputs(wanted.input_tensor)
        begin = found[0] if len(found) == 1 else found
    model = Functional(begin, outputs, name=name)
    if wanted.weights == "imagenet":
        model.load_weights(get_file(file.rsplit("/", 1)[-1], file, cache_subdir="models"))
    elif wanted.weights is not None:
        model.load_weights(wanted.weights)
    return model


def convolution(
    x: Any, filters: int, size: Any, name: str | None = None, strides: Any = 1, **options: Any
) -> Any:
    """`Conv2D` without a bias that keeps the size, unless told otherwise."""
    options = {"padding": "same", "use_bias": False, **options}
    return Conv2D(filters, size, strides=strides, name=name, **options)(x)


def batch_norm(x: Any, name: str | None = None, **options: Any) -> Any:
    """`BatchNormalization` of the channels."""
    return BatchNormalization(axis=3, name=name, **options)(x)


def activation(x: Any, kind: str, name: str | None = None) -> Any:
    """`Activation`; 'relu6' is a `ReLU` up to 6."""
    return ReLU(6.0, name=name)(x) if kind == "relu6" else Activation(kind, name=name)(x)


def padded_for_stride(x: Any, size: int, name: str) -> Any:
    """Zeros around images, so that a window of a size with step 2 and no padding meets all of them."""
    half = size // 2
    pairs = tuple((half - (1 if n is None else 1 - n % 2), half) for n in x.shape.as_list()[1:3])
    return ZeroPadding2D(pairs, name=name)(x)
