"""`tf.compat.v2`: the package itself."""

import meshflow as _tf

__all__ = list(_tf.__all__)


def __getattr__(name: str) -> object:
    return getattr(_tf, name)
