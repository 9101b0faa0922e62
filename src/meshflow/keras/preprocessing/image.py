"""`tf.keras.preprocessing.image`."""

from meshflow.keras.utils.images import (
    array_to_img,
    img_to_array,
    load_img,
    save_img,
    smart_resize,
)

__all__ = ["array_to_img", "img_to_array", "load_img", "save_img", "smart_resize"]
