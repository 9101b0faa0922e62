"""`tf.keras.models.experimental`: models that are trained in a special way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshflow.core.runtime.unavailable_names import explain_names as _explain_names

if TYPE_CHECKING:
    from meshflow.keras.linear_models import SharpnessAwareMinimization

__all__ = ["SharpnessAwareMinimization"]

__getattr__ = _explain_names(
    "tf.keras.models.experimental", {"SharpnessAwareMinimization": "meshflow.keras.linear_models"}
)
