"""`tf.keras.dtensor.experimental`: layouts of weights by their names, and the optimizers."""

from meshflow.keras.dtensor import optimizers
from meshflow.keras.engine.layer.layout_map import LayoutMap, layout_map_scope

# Lets its namespaces be imported by their paths.
__path__: list[str] = []

__all__ = ["LayoutMap", "layout_map_scope", "optimizers"]
