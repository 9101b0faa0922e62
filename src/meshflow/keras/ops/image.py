"""`keras.ops.image`: sizes, colors, patches and geometric transforms of images."""

from meshflow.keras.ops.image_warps import *  # noqa: F403
from meshflow.keras.ops.image_warps import __all__ as _warping
from meshflow.keras.ops.images import *  # noqa: F403
from meshflow.keras.ops.images import __all__ as _images

__all__ = [*_images, *_warping]
