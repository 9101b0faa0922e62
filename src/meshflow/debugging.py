"""`tf.debugging`: checks."""

from meshflow.ops.debugging import *  # noqa: F403
from meshflow.ops.debugging import __all__
