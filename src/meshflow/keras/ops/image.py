"""`keras.ops.image`: sizes, colors, patches and geometric transforms of images."""

from meshflow.keras.ops.images import *  # noqa: F403
from meshflow.keras.ops.images import __all__ as _images
from meshflow.keras.ops.warping import *  # noqa: F403
from meshflow.keras.ops.warping import __all__ as _warping

__all__ = [*_images, *_warping]
