"""`tf.keras.ops`: Keras 3's tensor functions.

The functions have NumPy's names and Keras' dtypes: functions of real numbers convert integers to
`floatx()`, Python numbers adopt the dtype of the other operands, and a result has 64 bits only if
an operand has.

Example:
  >>> tf.keras.ops.mean([1, 2]).numpy()
  np.float32(1.5)
"""

from meshflow.keras.ops import image, linalg, nn, numpy
from meshflow.keras.ops.activations import *
from meshflow.keras.ops.activations import __all__ as _activations
from meshflow.keras.ops.attention import *
from meshflow.keras.ops.attention import __all__ as _attention
from meshflow.keras.ops.classes import *
from meshflow.keras.ops.classes import __all__ as _classes
from meshflow.keras.ops.concatenation import *
from meshflow.keras.ops.concatenation import __all__ as _joining
from meshflow.keras.ops.conversions import *
from meshflow.keras.ops.conversions import __all__ as _conversions
from meshflow.keras.ops.creation import *
from meshflow.keras.ops.creation import __all__ as _creation
from meshflow.keras.ops.ctc import *
from meshflow.keras.ops.ctc import __all__ as _ctc
from meshflow.keras.ops.elementwise import *
from meshflow.keras.ops.elementwise import __all__ as _elementwise
from meshflow.keras.ops.loops import *
from meshflow.keras.ops.loops import __all__ as _loops
from meshflow.keras.ops.matrices import *
from meshflow.keras.ops.matrices import __all__ as _matrices
from meshflow.keras.ops.normalization import *
from meshflow.keras.ops.normalization import __all__ as _normalization
from meshflow.keras.ops.products import *
from meshflow.keras.ops.products import __all__ as _products
from meshflow.keras.ops.reductions import *
from meshflow.keras.ops.reductions import __all__ as _reductions
from meshflow.keras.ops.selection import *
from meshflow.keras.ops.selection import __all__ as _selection
from meshflow.keras.ops.shape_ops import *
from meshflow.keras.ops.shape_ops import __all__ as _shaping
from meshflow.keras.ops.transforms import *
from meshflow.keras.ops.transforms import __all__ as _transforms
from meshflow.keras.ops.updates import *
from meshflow.keras.ops.updates import __all__ as _updates
from meshflow.keras.ops.windows import *
from meshflow.keras.ops.windows import __all__ as _windows

__all__ = [
    *(
        *_activations,
        *_attention,
        *_classes,
        *_conversions,
        *_creation,
        *_ctc,
        *_elementwise,
        *_joining,
        *_loops,
        *_matrices,
    ),
    *(*_normalization, *_products, *_reductions, *_selection, *_shaping, *_transforms, *_updates),
    *(*_windows, "image", "linalg", "nn", "numpy"),
]
