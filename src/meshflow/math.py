"""`tf.math`."""

from meshflow.ops import math as _math
from meshflow.ops.math import *  # noqa: F403
from meshflow.ops.nn import log_softmax, softmax, softplus, softsign  # noqa: F401

__all__ = sorted(
    [n for n in _math.__all__ if "bitwise" not in n]
    + ["log_softmax", "softmax", "softplus", "softsign", "special"]
)


def __getattr__(name: str) -> object:
    if name == "special":
        from meshflow.ops import math

        return math
    raise AttributeError(f"module 'meshflow.math' has no attribute {name!r}")
