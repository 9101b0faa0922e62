"""`tf.image`."""

from meshflow.ops.image import *  # noqa: F403
from meshflow.ops.image import __all__
