"""`tf.compat`: other versions' names."""

from meshflow.compat import v1, v2

__all__ = ["v1", "v2"]
