"""`tf.linalg`: linear algebra."""

from meshflow.ops import linalg as _linalg
from meshflow.ops import linear_operators as _operators
from meshflow.ops.linalg import *  # noqa: F403
from meshflow.ops.linear_operators import *  # noqa: F403

__all__ = sorted([*_linalg.__all__, *_operators.__all__])
