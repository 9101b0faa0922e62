"""Array ops: making, shaping, joining, picking and placing."""

from meshflow.ops.array.creation import *
from meshflow.ops.array.creation import __all__ as _creation
from meshflow.ops.array.gather_scatter import *
from meshflow.ops.array.gather_scatter import __all__ as _gather_scatter
from meshflow.ops.array.ordering import *
from meshflow.ops.array.ordering import __all__ as _ordering
from meshflow.ops.array.shaping import *
from meshflow.ops.array.shaping import __all__ as _shaping

__all__ = [*_creation, *_gather_scatter, *_ordering, *_shaping]
