"""`tf.linalg.LinearOperator`: matrices that are defined by their products, such as diagonal ones."""

import meshflow.ops.linear_operators.calls as _  # Registers the functions of operators.
from meshflow.ops.linear_operators.block_operators import *
from meshflow.ops.linear_operators.block_operators import __all__ as _blocks
from meshflow.ops.linear_operators.combinations import *
from meshflow.ops.linear_operators.combinations import __all__ as _combinations
from meshflow.ops.linear_operators.convolutions import *
from meshflow.ops.linear_operators.convolutions import __all__ as _convolutions
from meshflow.ops.linear_operators.linear_operator import *
from meshflow.ops.linear_operators.linear_operator import __all__ as _base
from meshflow.ops.linear_operators.matrices import *
from meshflow.ops.linear_operators.matrices import __all__ as _matrices

__all__ = [*_base, *_blocks, *_combinations, *_convolutions, *_matrices]
