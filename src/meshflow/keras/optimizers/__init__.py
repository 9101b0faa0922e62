"""`tf.keras.optimizers`: optimizers and learning-rate schedules."""

from __future__ import annotations

from typing import Any

from meshflow.keras import identify
from meshflow.keras.optimizers import rules as _rules
from meshflow.keras.optimizers import schedules
from meshflow.keras.optimizers.base import Optimizer
from meshflow.keras.optimizers.optax_adapter import OptaxOptimizer
from meshflow.keras.optimizers.rules import *

__all__ = [
    *_rules.__all__,
    "OptaxOptimizer",
    "Optimizer",
    "deserialize",
    "get",
    "schedules",
    "serialize",
]

_TABLE = identify.name_table(*[getattr(_rules, n) for n in _rules.__all__])


def get(identifier: Any) -> Any:
    """An optimizer from a name, class, object, configuration, or optax transformation.

    Raises:
      ValueError: for anything else.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.optimizers.get("adam").name
      'Adam'
    """
    if hasattr(identifier, "apply_gradients") and not isinstance(identifier, type):
        return identifier
    if (
        hasattr(identifier, "init")
        and hasattr(identifier, "update")
        and not isinstance(identifier, type)
    ):
        return OptaxOptimizer(identifier)
    if identifier is None or not isinstance(identifier, (str, dict, type)):
        raise ValueError(
            f"Could not interpret optimizer identifier: {identifier!r}. Expected a name, an Optimizer, a configuration, or an optax transformation."
        )
    return identify.lookup(identifier, _TABLE, "optimizer")


def serialize(optimizer: Any) -> Any:
    """The configuration of an optimizer."""
    return identify.serialize(optimizer)


def deserialize(config: Any, custom_objects: Any = None) -> Any:
    """The optimizer with a configuration."""
    return identify.lookup(config, _TABLE, "optimizer", custom_objects)
