"""`tf.profiler`: where the time of a program goes, recorded by JAX's profiler."""

from meshflow.profiler import experimental

__all__ = ["experimental"]
