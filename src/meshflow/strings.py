"""`tf.strings`: text, computed on the host when it is known."""

from meshflow.ops import strings as _strings
from meshflow.ops.strings import *  # noqa: F403

__all__ = sorted(_strings.__all__)
