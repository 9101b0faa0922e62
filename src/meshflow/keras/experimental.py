"""`tf.keras.experimental`: learning rates under the names that they had before they were settled."""

from meshflow.keras.optimizers.schedules import CosineDecay, CosineDecayRestarts

__all__ = ["CosineDecay", "CosineDecayRestarts"]
