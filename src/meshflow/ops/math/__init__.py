"""`tf.math`, `tf.add`, ...: arithmetic, elementwise functions, reductions."""

from meshflow.ops.math.arithmetic import *
from meshflow.ops.math.arithmetic import __all__ as _arithmetic
from meshflow.ops.math.clipping import *
from meshflow.ops.math.clipping import __all__ as _clipping
from meshflow.ops.math.elementwise import *
from meshflow.ops.math.elementwise import __all__ as _elementwise
from meshflow.ops.math.largest import *
from meshflow.ops.math.largest import __all__ as _largest
from meshflow.ops.math.reductions import *
from meshflow.ops.math.reductions import __all__ as _reductions
from meshflow.ops.math.segments import *
from meshflow.ops.math.segments import __all__ as _segments
from meshflow.ops.math.sequences import *
from meshflow.ops.math.sequences import __all__ as _sequences

__all__ = [
    *(*_arithmetic, *_clipping, *_elementwise, *_largest, *_reductions, *_segments),
    *_sequences,
]
