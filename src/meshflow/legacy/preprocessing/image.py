"""`tf.keras.preprocessing.image`: loading and augmentation of images."""

from meshflow.keras.utils.images import (
    array_to_img,
    img_to_array,
    load_img,
    save_img,
    smart_resize,
)
from meshflow.legacy.preprocessing.affine import (
    apply_affine_transform,
    apply_brightness_shift,
    apply_channel_shift,
    random_brightness,
    random_channel_shift,
    random_rotation,
    random_shear,
    random_shift,
    random_zoom,
)
from meshflow.legacy.preprocessing.file_iterators import DataFrameIterator, DirectoryIterator
from meshflow.legacy.preprocessing.generator import ImageDataGenerator
from meshflow.legacy.preprocessing.iterators import Iterator, NumpyArrayIterator

__all__ = [
    "DataFrameIterator",
    "DirectoryIterator",
    "ImageDataGenerator",
    "Iterator",
    "NumpyArrayIterator",
    "apply_affine_transform",
    "apply_brightness_shift",
    "apply_channel_shift",
    "array_to_img",
    "img_to_array",
    "load_img",
    "random_brightness",
    "random_channel_shift",
    "random_rotation",
    "random_shear",
    "random_shift",
    "random_zoom",
    "save_img",
    "smart_resize",
]
