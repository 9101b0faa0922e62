"""`tf.keras.experimental`: former names of classes that have moved."""

from meshflow.keras.optimizers.schedules import CosineDecay, CosineDecayRestarts
from meshflow.keras.utils.sidecar_evaluator import SidecarEvaluator

__all__ = ["CosineDecay", "CosineDecayRestarts", "SidecarEvaluator"]
