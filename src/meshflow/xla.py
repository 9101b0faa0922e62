"""`tf.xla`: compilation by XLA."""

from meshflow.core.functions import xla_experimental as experimental

# `__path__` makes the namespaces importable by their paths.
__path__: list[str] = []

__all__ = ["experimental"]
