"""`tf.linalg`: linear algebra."""

from meshflow.ops import linalg as _linalg
from meshflow.ops.linalg import *  # noqa: F403

__all__ = sorted(_linalg.__all__)
