"""`tf.compat.v2`: the package itself."""

from meshflow.legacy.compat.surface import tf as _tf

# A module with `__path__` is a package, so that its namespaces can be imported by their paths.
__path__: list[str] = []

__all__ = list(_tf.__all__)


def __getattr__(name: str) -> object:
    return getattr(_tf, name)
