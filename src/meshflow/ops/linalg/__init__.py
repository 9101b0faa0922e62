"""`tf.linalg`: factorizations, linear solvers, norms, diagonals."""

from meshflow.ops.array import eye
from meshflow.ops.linalg.banded import *
from meshflow.ops.linalg.banded import __all__ as _banded
from meshflow.ops.linalg.diagonal import *
from meshflow.ops.linalg.diagonal import __all__ as _diagonal
from meshflow.ops.linalg.factorizations import *
from meshflow.ops.linalg.factorizations import __all__ as _factorizations
from meshflow.ops.linalg.functions import *
from meshflow.ops.linalg.functions import __all__ as _functions
from meshflow.ops.linalg.lu import *
from meshflow.ops.linalg.lu import __all__ as _lu
from meshflow.ops.linalg.products import *
from meshflow.ops.linalg.products import __all__ as _products
from meshflow.ops.linalg.solving import *
from meshflow.ops.linalg.solving import __all__ as _solving
from meshflow.ops.math import cross, global_norm, l2_normalize, matmul, tensordot

__all__ = [
    *_banded,
    *_diagonal,
    *_factorizations,
    *_functions,
    *_lu,
    *_products,
    *_solving,
    "cross",
    "eye",
    "global_norm",
    "l2_normalize",
    "matmul",
    "tensordot",
]
