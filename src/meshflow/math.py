"""`tf.math`: mathematical functions."""

from meshflow.ops import math as _math
from meshflow.ops.math import *  # noqa: F403
from meshflow.ops.math import special as special
from meshflow.ops.nn import log_softmax, softmax, softplus, softsign  # noqa: F401

# `__path__` makes the namespaces importable by their paths.
__path__: list[str] = []

__all__ = sorted(
    [n for n in _math.__all__ if "bitwise" not in n]
    + ["log_softmax", "softmax", "softplus", "softsign", "special"]
)
