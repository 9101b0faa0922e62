"""`tf.image`: resizing, cropping, flipping, colors, boxes, image files, random augmentation."""

from meshflow.ops.image.boxes import *
from meshflow.ops.image.boxes import __all__ as _boxes
from meshflow.ops.image.codecs import *
from meshflow.ops.image.codecs import __all__ as _codecs
from meshflow.ops.image.color import *
from meshflow.ops.image.color import __all__ as _color
from meshflow.ops.image.distorted_boxes import *
from meshflow.ops.image.distorted_boxes import __all__ as _distorted_boxes
from meshflow.ops.image.filters import *
from meshflow.ops.image.filters import __all__ as _filters
from meshflow.ops.image.geometry import *
from meshflow.ops.image.geometry import __all__ as _geometry
from meshflow.ops.image.glimpses import *
from meshflow.ops.image.glimpses import __all__ as _glimpses
from meshflow.ops.image.random_augmentation import *
from meshflow.ops.image.random_augmentation import __all__ as _randomized

__all__ = [
    *_boxes,
    *_codecs,
    *_color,
    *_distorted_boxes,
    *_filters,
    *_geometry,
    *_glimpses,
    *_randomized,
]
