"""`tf.image`: resizing, cropping, flipping, colours, random changes."""

from meshflow.ops.image.color import *
from meshflow.ops.image.color import __all__ as _color
from meshflow.ops.image.geometry import *
from meshflow.ops.image.geometry import __all__ as _geometry
from meshflow.ops.image.randomized import *
from meshflow.ops.image.randomized import __all__ as _randomized

__all__ = [*_color, *_geometry, *_randomized]
