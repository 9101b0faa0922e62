"""`tf.keras.preprocessing`: loading and augmentation of images, text and sequences."""

from meshflow.keras.utils.directories import (
    image_dataset_from_directory,
    text_dataset_from_directory,
)
from meshflow.keras.utils.timeseries import timeseries_dataset_from_array
from meshflow.legacy.preprocessing import image, sequence, text

__all__ = [
    "image",
    "image_dataset_from_directory",
    "sequence",
    "text",
    "text_dataset_from_directory",
    "timeseries_dataset_from_array",
]
