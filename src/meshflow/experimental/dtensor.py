"""`tf.experimental.dtensor`: tensors that are sharded over a mesh of devices by a layout."""

from meshflow.dtensor import *  # noqa: F403
from meshflow.dtensor import __all__ as __all__
