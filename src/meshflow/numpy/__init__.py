"""NumPy's functions on tensors, public as `tf.experimental.numpy`.

Arrays are tensors (`tnp.ndarray` is `tf.Tensor`), so the results work in every op, under
`tf.GradientTape`, in
`tf.function` and in `Dataset.map`.
"""

from meshflow.numpy import fft, linalg, random
from meshflow.numpy.behavior import experimental_enable_numpy_behavior
from meshflow.numpy.conversion import array, asanyarray, asarray, ascontiguousarray, copy
from meshflow.numpy.creation import *
from meshflow.numpy.creation import __all__ as _creation
from meshflow.numpy.elementwise import *
from meshflow.numpy.elementwise import __all__ as _elementwise
from meshflow.numpy.inspection import *
from meshflow.numpy.inspection import __all__ as _inspection
from meshflow.numpy.manipulation import *
from meshflow.numpy.manipulation import __all__ as _manipulation
from meshflow.numpy.products import *
from meshflow.numpy.products import __all__ as _products
from meshflow.numpy.reductions import *
from meshflow.numpy.reductions import __all__ as _reductions
from meshflow.numpy.value_dependent_shapes import *
from meshflow.numpy.value_dependent_shapes import __all__ as _value_dependent_shapes

__all__ = [
    "array",
    "asanyarray",
    "asarray",
    "ascontiguousarray",
    "copy",
    "experimental_enable_numpy_behavior",
    "fft",
    "linalg",
    "random",
    *_manipulation,
    *_value_dependent_shapes,
    *_creation,
    *_elementwise,
    *_inspection,
    *_products,
    *_reductions,
]
