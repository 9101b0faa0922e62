"""`tf.linalg`."""

from meshflow.ops.linalg import *  # noqa: F403
from meshflow.ops.linalg import __all__
