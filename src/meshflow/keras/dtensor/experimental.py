"""`tf.keras.dtensor.experimental`: layouts of weights by name, and optimizers."""

from meshflow.keras.dtensor import optimizers
from meshflow.keras.engine.layer.layout_map import LayoutMap, layout_map_scope

# An empty `__path__` allows `import` of the nested namespaces by their dotted names.
__path__: list[str] = []

__all__ = ["LayoutMap", "layout_map_scope", "optimizers"]
