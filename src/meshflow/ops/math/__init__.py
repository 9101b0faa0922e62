"""`tf.math`, `tf.add`, ...: arithmetic, elementwise functions, reductions."""

from meshflow.ops.casting import *
from meshflow.ops.casting import __all__ as _casting
from meshflow.ops.math.arithmetic import *
from meshflow.ops.math.arithmetic import __all__ as _arithmetic
from meshflow.ops.math.clipping import *
from meshflow.ops.math.clipping import __all__ as _clipping
from meshflow.ops.math.comparison import *
from meshflow.ops.math.comparison import __all__ as _comparison
from meshflow.ops.math.division import *
from meshflow.ops.math.division import __all__ as _division
from meshflow.ops.math.elementwise import *
from meshflow.ops.math.elementwise import __all__ as _elementwise
from meshflow.ops.math.largest import *
from meshflow.ops.math.largest import __all__ as _largest
from meshflow.ops.math.products import *
from meshflow.ops.math.products import __all__ as _products
from meshflow.ops.math.reductions import *
from meshflow.ops.math.reductions import __all__ as _reductions
from meshflow.ops.math.segments import *
from meshflow.ops.math.segments import __all__ as _segments
from meshflow.ops.math.sequences import *
from meshflow.ops.math.sequences import __all__ as _sequences

__all__ = [
    *_arithmetic,
    *_casting,
    *_clipping,
    *_comparison,
    *_division,
    *_elementwise,
    *_largest,
    *_products,
    *_reductions,
    *_segments,
    *_sequences,
]
