"""Images as networks want them, and names for what they answer."""

from __future__ import annotations

import json
from typing import Any, Protocol

import numpy as np

from meshflow.core.dispatch import op_names
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.keras import settings
from meshflow.keras.utils.files import get_file
from meshflow.ops import array, math

__all__ = ["decode_predictions", "preprocess_input"]

CLASSES_URL = (
    "https://storage.googleapis.com/download.tensorflow.org/data/imagenet_class_index.json"
)
CLASSES_MD5 = "c2c37ea517e94d9795004a39431a14cb"

# What is subtracted from, and then divides, each channel.
_MODES: dict[str, tuple[float, list[float], list[float]]] = {
    "tf": (127.5, [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]),
    "torch": (255.0, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "caffe": (1.0, [103.939, 116.779, 123.68], [1.0, 1.0, 1.0]),
}


def preprocess_input(
    x: Any, data_format: str | None = None, mode: str = "caffe"
) -> Tensor | np.ndarray:
    """Images scaled as a network was trained with.

    Args:
      x: images with values 0 to 255, an array or tensor of three or four dimensions, RGB.
      data_format: 'channels_last' or 'channels_first'.
      mode: 'caffe' (BGR, without ImageNet's mean), 'tf' (-1 to 1) or 'torch' (0 to 1, without the
        mean, by the deviation).

    Returns:
      An array for an array, a tensor for a tensor.

    Raises:
      ValueError: for another mode, format or rank.

    Example:
      >>> import numpy as np
      >>> import meshflow as tf
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
    plain = isinstance(x, np.ndarray)
    if plain and not np.issubdtype(x.dtype, np.floating):
        x = x.astype(settings.floatx())
    images = x if plain or hasattr(x, "_keras_history") else convert_to_tensor(x)
    if not plain and not images.dtype.is_floating:
        images = math.cast(images, settings.floatx())
    axis = -1 if data_format == "channels_last" else -3
    scale, means, deviations = _MODES[mode]
    if mode == "caffe":
        images = np.flip(images, axis) if plain else array.reverse(images, [axis % len(x.shape)])
    kind = images.dtype if plain else images.dtype.as_numpy_dtype
    along = [-1] + [1] * (-1 - axis)
    mean, deviation = (np.reshape(np.asarray(v, kind), along) for v in (means, deviations))
    return (images / np.asarray(scale, kind) - mean) / deviation


class Preprocessing(Protocol):
    """Images as a network wants them; see `preprocess_input`."""

    def __call__(self, x: Any, data_format: str | None = None) -> Any: ...


def preprocessing(mode: str | None) -> Preprocessing:
    """The `preprocess_input` of a network; without a mode images stay as they are."""

    def preprocess_input_of(x: Any, data_format: str | None = None) -> Any:
        return x if mode is None else preprocess_input(x, data_format, mode)

    preprocess_input_of.__name__ = "preprocess_input"
    preprocess_input_of.__doc__ = (
        "Images as this network wants them; arguments as for `imagenet_utils.preprocess_input`."
    )
    name = f"keras.applications.imagenet_utils.preprocess_input_{mode}"
    return op_names.nameable(preprocess_input_of, name)


def decode_predictions(preds: Any, top: int = 5) -> list[list[tuple[str, str, float]]]:
    """Names of the classes that a network finds most probable.

    Args:
      preds: probabilities [batch, 1000].
      top: how many names for each image.

    Returns:
      For each image a list of (WordNet's number, name, probability).

    Raises:
      ValueError: for another shape.
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
    found = []
    for row in probabilities:
        best = row.argsort()[-top:][::-1]
        found.append([(*names[str(i)], row[i]) for i in best])
    return found
