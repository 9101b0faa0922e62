"""Array ops: creation, shapes, joining and splitting, slicing, gather and scatter, sorting."""

from meshflow.ops.array.blocks import *
from meshflow.ops.array.blocks import __all__ as _blocks
from meshflow.ops.array.creation import *
from meshflow.ops.array.creation import __all__ as _creation
from meshflow.ops.array.gather_scatter import *
from meshflow.ops.array.gather_scatter import __all__ as _gather_scatter
from meshflow.ops.array.inspection import *
from meshflow.ops.array.inspection import __all__ as _inspection
from meshflow.ops.array.joining import *
from meshflow.ops.array.joining import __all__ as _joining
from meshflow.ops.array.ordering import *
from meshflow.ops.array.ordering import __all__ as _ordering
from meshflow.ops.array.repeating import *
from meshflow.ops.array.repeating import __all__ as _repeating
from meshflow.ops.array.shaping import *
from meshflow.ops.array.shaping import __all__ as _shaping
from meshflow.ops.array.slicing import *
from meshflow.ops.array.slicing import __all__ as _slicing

__all__ = [
    *_blocks,
    *_creation,
    *_gather_scatter,
    *_inspection,
    *_joining,
    *_ordering,
    *_repeating,
    *_shaping,
    *_slicing,
]
