"""VGG (arXiv:1409.1556): blocks of 3x3 convolutions."""

from __future__ import annotations

from typing import Any

from meshflow.keras.applications.common import URL, Sizes, model_of, pooled_features, start
from meshflow.keras.engine.models.model import Model
from meshflow.keras.layers import Conv2D, Dense, Flatten
from meshflow.keras.layers.pooling import MaxPooling2D

__all__ = ["VGG16", "VGG19"]

_SIZES = Sizes(224, 32)
_FILTERS = (64, 128, 256, 512, 512)


def _vgg(
    name: str,
    depths: tuple[int, ...],
    include_top: bool,
    weights: Any,
    input_tensor: Any,
    input_shape: Any,
    pooling: str | None,
    classes: int,
    classifier_activation: Any,
) -> Any:
    inputs = start(_SIZES, input_shape, input_tensor, include_top, weights, classes)
    x = inputs
    for block, (depth, filters) in enumerate(zip(depths, _FILTERS, strict=True), 1):
        for i in range(1, depth + 1):
            label = f"block{block}_conv{i}"
            x = Conv2D(filters, 3, padding="same", activation="relu", name=label)(x)
        x = MaxPooling2D(2, strides=2, name=f"block{block}_pool")(x)
    if include_top:
        x = Flatten(name="flatten")(x)
        x = Dense(4096, activation="relu", name="fc1")(x)
        x = Dense(4096, activation="relu", name="fc2")(x)
        x = Dense(classes, activation=classifier_activation, name="predictions")(x)
    else:
        x = pooled_features(x, pooling)
    ending = "" if include_top else "_notop"
    file = f"{URL}{name}/{name}_weights_tf_dim_ordering_tf_kernels{ending}.h5"
    return model_of(name, inputs, input_tensor, x, weights, file)


def VGG16(
    include_top: bool = True,
    weights: Any = "imagenet",
    input_tensor: Any = None,
    input_shape: Any = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: Any = "softmax",
) -> Model:
    """VGG with 16 layers that have weights.

    Args:
      include_top: whether the classifier is part of the model.
      weights: None, 'imagenet' (downloaded once), or the path of a file of weights.
      input_tensor: a symbolic tensor to begin with, instead of an `Input`.
      input_shape: (height, width, channels); default (224, 224, 3).
      pooling: without a classifier, 'avg' or 'max' pools the features of all places.
      classes: how many classes the classifier has.
      classifier_activation: the classifier's activation; None for logits.

    Raises:
      ValueError: for shapes, weights or classes that do not go together.
    """
    options = (include_top, weights, input_tensor, input_shape, pooling, classes)
    return _vgg("vgg16", (2, 2, 3, 3, 3), *options, classifier_activation)


def VGG19(
    include_top: bool = True,
    weights: Any = "imagenet",
    input_tensor: Any = None,
    input_shape: Any = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: Any = "softmax",
) -> Model:
    """VGG with 19 layers that have weights; arguments as for `VGG16`."""
    options = (include_top, weights, input_tensor, input_shape, pooling, classes)
    return _vgg("vgg19", (2, 2, 4, 4, 4), *options, classifier_activation)
