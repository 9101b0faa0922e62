"""`tf.linalg`."""

from meshflow.ops import banded as _banded
from meshflow.ops import linalg as _linalg
from meshflow.ops import lu as _lu
from meshflow.ops.banded import *  # noqa: F403
from meshflow.ops.linalg import *  # noqa: F403
from meshflow.ops.lu import *  # noqa: F403

__all__ = sorted([*_banded.__all__, *_linalg.__all__, *_lu.__all__])
