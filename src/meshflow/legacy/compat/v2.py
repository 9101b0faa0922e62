"""`tf.compat.v2`: the package itself."""

from meshflow.legacy.compat.public_package import tf as _tf

# A module with `__path__` is a package, so that its namespaces can be imported by their paths.
__path__: list[str] = []

__all__ = list(_tf.__all__)


def __getattr__(name: str) -> object:
    if name == "enable_v2_behavior":
        return _tf.compat.v1.enable_v2_behavior
    return getattr(_tf, name)
