"""`tf.keras.experimental`: names that were settled later."""

from meshflow.keras.optimizers.schedules import CosineDecay, CosineDecayRestarts
from meshflow.keras.utils.sidecar_evaluator import SidecarEvaluator

__all__ = ["CosineDecay", "CosineDecayRestarts", "SidecarEvaluator"]
