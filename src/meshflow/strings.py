"""`tf.strings`: text, computed on the host when it is known."""

from meshflow.ops.strings import *  # noqa: F403
from meshflow.ops.strings import __all__
