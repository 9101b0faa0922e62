"""`tf.image`: image processing and codecs."""

from meshflow.ops import image as _image
from meshflow.ops.image import *  # noqa: F403

__all__ = sorted(_image.__all__)
