"""`tf.linalg`: linear algebra."""

from meshflow.ops import linalg as _linalg
from meshflow.ops import linear_operators as _operators
from meshflow.ops.linalg import *  # noqa: F403
from meshflow.ops.linear_operators import *  # noqa: F403
from meshflow.ops.linear_operators import experimental as experimental

# `__path__` makes the namespaces importable by their paths.
__path__: list[str] = []

__all__ = sorted([*_linalg.__all__, *_operators.__all__, "experimental"])
