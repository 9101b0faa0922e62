"""`tf.types.experimental.distributed`: values of several replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshflow.core.runtime.unavailable_names import explain_names as _explain_names

if TYPE_CHECKING:
    from meshflow.distribute.replicas.values import PerReplica
    from meshflow.distribute.replicas.values import PerReplica as Mirrored

__all__ = ["Mirrored", "PerReplica"]

_VALUES = "meshflow.distribute.replicas.values:PerReplica"
__getattr__ = _explain_names(
    "tf.types.experimental.distributed", {"Mirrored": _VALUES, "PerReplica": _VALUES}
)
