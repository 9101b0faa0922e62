"""`tf.debugging`: assertions and checks."""

from meshflow.core.runtime.unavailable_names import explain_names as _explain_names
from meshflow.ops import debugging as _debugging
from meshflow.ops.debugging import *  # noqa: F403

__all__ = sorted(_debugging.__all__)

__getattr__ = _explain_names("tf.debugging")
