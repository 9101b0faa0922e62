"""`keras.ops.numpy`: the ops with NumPy's names."""

from meshflow.keras.ops.creation import *  # noqa: F403
from meshflow.keras.ops.creation import __all__ as _creation
from meshflow.keras.ops.elementwise import *  # noqa: F403
from meshflow.keras.ops.elementwise import __all__ as _elementwise
from meshflow.keras.ops.joining import *  # noqa: F403
from meshflow.keras.ops.joining import __all__ as _joining
from meshflow.keras.ops.loops import vectorize
from meshflow.keras.ops.matrices import slogdet
from meshflow.keras.ops.products import (
    correlate,
    cross,
    dot,
    einsum,
    inner,
    kron,
    matmul,
    outer,
    tensordot,
    vdot,
)
from meshflow.keras.ops.reductions import *  # noqa: F403
from meshflow.keras.ops.reductions import __all__ as _reductions
from meshflow.keras.ops.selection import *  # noqa: F403
from meshflow.keras.ops.selection import __all__ as _selection
from meshflow.keras.ops.shaping import *  # noqa: F403
from meshflow.keras.ops.shaping import __all__ as _shaping

__all__ = [
    *_creation,
    *_elementwise,
    *_joining,
    *_reductions,
    *_selection,
    *_shaping,
    "vectorize",
    "slogdet",
    "correlate",
    "cross",
    "dot",
    "einsum",
    "inner",
    "kron",
    "matmul",
    "outer",
    "tensordot",
    "vdot",
]
