"""Preprocessing of images for ImageNet networks, and the names of the classes they predict."""

from __future__ import annotations

import json
from typing import Protocol

import numpy as np

from meshflow.core.dispatch import op_names
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import ArrayLike
from meshflow.keras import settings
from meshflow.keras.utils.files import get_file
from meshflow.ops import array, math

__all__ = ["decode_predictions", "preprocess_input"]

CLASSES_URL = (
    "https://storage.googleapis.com/download.tensorflow.org/data/imagenet_class_index.json"
)
CLASSES_MD5 = "c2c37ea517e94d9795004a39431a14cb"

# Scale, means and standard deviations of the channels, in the order in which they are applied.
_MODES: dict[str, tuple[float, list[float], list[float]]] = {
    "tf": (127.5, [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]),
    "torch": (255.0, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "caffe": (1.0, [103.939, 116.779, 123.68], [1.0, 1.0, 1.0]),
}


def preprocess_input(
    x: TensorLike, data_format: str | None = None, mode: str = "caffe"
) -> Tensor | np.ndarray:
    """Scale images as in the training of a network.

    Args:
      x: RGB images with values 0 to 255, an array or tensor of rank 3 or 4.
      data_format: 'channels_last' or 'channels_first'.
      mode: 'caffe' (BGR, minus ImageNet's mean), 'tf' (-1 to 1) or 'torch' (0 to 1, then normalized
        with ImageNet's mean and standard deviation).

    Returns:
      An array for an array, and a tensor for a tensor.

    Raises:
      ValueError: If the mode or format is unknown.

    Example:
      >>> import numpy as np
      >>> tf.keras.applications.mobilenet_v2.preprocess_input(np.array([[[0.0, 127.5, 255.0]]]))
      array([[[-1.,  0.,  1.]]])
    """
    if mode not in _MODES:
        raise ValueError(
            f"Expected mode to be one of `caffe`, `tf` or `torch`. Received: mode={mode}"
        )
    data_format = data_format or settings.image_data_format()
    if data_format not in ("channels_first", "channels_last"):
        raise ValueError(
            "Expected data_format to be one of `channels_first` or `channels_last`. "
            f"Received: data_format={data_format}"
        )
    is_array = isinstance(x, np.ndarray)
    if is_array and not np.issubdtype(x.dtype, np.floating):
        x = x.astype(settings.floatx())
    images = x if is_array or hasattr(x, "_keras_history") else convert_to_tensor(x)
    if not is_array and not images.dtype.is_floating:
        images = math.cast(images, settings.floatx())
    axis = -1 if data_format == "channels_last" else -3
    scale, means, deviations = _MODES[mode]
    if mode == "caffe":
        images = np.flip(images, axis) if is_array else array.reverse(images, [axis % len(x.shape)])
    dtype = images.dtype if is_array else images.dtype.as_numpy_dtype
    channel_shape = [-1] + [1] * (-1 - axis)
    mean, deviation = (np.reshape(np.asarray(v, dtype), channel_shape) for v in (means, deviations))
    return (images / np.asarray(scale, dtype) - mean) / deviation


class Preprocessing(Protocol):
    """Function that scales images for a network; see `preprocess_input`."""

    def __call__(self, x: TensorLike, data_format: str | None = None) -> TensorLike: ...


def create_preprocess_input(mode: str | None) -> Preprocessing:
    """Create the `preprocess_input` of a network; None as the mode leaves images unchanged."""

    def preprocess(x: TensorLike, data_format: str | None = None) -> TensorLike:
        return x if mode is None else preprocess_input(x, data_format, mode)

    preprocess.__name__ = "preprocess_input"
    preprocess.__doc__ = (
        "Scale images for this network; see `imagenet_utils.preprocess_input` for the arguments."
    )
    name = f"keras.applications.imagenet_utils.preprocess_input_{mode}"
    return op_names.register_name(preprocess, name)


def decode_predictions(preds: ArrayLike, top: int = 5) -> list[list[tuple[str, str, float]]]:
    """Return the most probable classes of each image.

    Args:
      preds: Probabilities, [batch, 1000].
      top: Number of classes per image.

    Returns:
      For each image a list of tuples (WordNet id, name, probability).

    Raises:
      ValueError: If the shape differs.
    """
    probabilities = np.asarray(preds)
    if probabilities.ndim != 2 or probabilities.shape[1] != 1000:
        raise ValueError(
            "`decode_predictions` expects a batch of predictions (i.e. a 2D array of shape (samples, 1000)). "
            f"Received array with shape: {probabilities.shape}"
        )
    path = get_file(
        "imagenet_class_index.json", CLASSES_URL, cache_subdir="models", file_hash=CLASSES_MD5
    )
    with open(path) as file:
        names = json.load(file)
    predictions = []
    for row in probabilities:
        best = row.argsort()[-top:][::-1]
        predictions.append([(*names[str(i)], row[i]) for i in best])
    return predictions
