"""`tf.keras.experimental`: former names of classes that have moved."""

from typing import TYPE_CHECKING

from meshflow.core.runtime.unavailable_names import explain_names as _explain_names
from meshflow.keras.optimizers.schedules import CosineDecay, CosineDecayRestarts
from meshflow.keras.utils.sidecar_evaluator import SidecarEvaluator

if TYPE_CHECKING:
    from meshflow.keras.linear_models import LinearModel, SequenceFeatures, WideDeepModel

__all__ = [
    "CosineDecay",
    "CosineDecayRestarts",
    "LinearModel",
    "SequenceFeatures",
    "SidecarEvaluator",
    "WideDeepModel",
]

_MODELS = ("LinearModel", "SequenceFeatures", "WideDeepModel")
__getattr__ = _explain_names(
    "tf.keras.experimental", dict.fromkeys(_MODELS, "meshflow.keras.linear_models")
)
