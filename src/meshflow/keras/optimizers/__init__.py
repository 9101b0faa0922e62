"""`tf.keras.optimizers`: optimizers and learning-rate schedules."""

from __future__ import annotations

from typing import Any

from meshflow.core.runtime.tracebacks import hide_frames_of_errors
from meshflow.environment.types import Config, Json
from meshflow.keras import registry, serialization
from meshflow.keras.optimizers import experimental, legacy, schedules
from meshflow.keras.optimizers.adafactor import Adafactor
from meshflow.keras.optimizers.adam import Adam, Adamax, AdamW, Lion, Nadam
from meshflow.keras.optimizers.adaptive import Adadelta, Adagrad, RMSprop
from meshflow.keras.optimizers.adascale import AdaScale
from meshflow.keras.optimizers.base import Optimizer
from meshflow.keras.optimizers.ftrl import Ftrl
from meshflow.keras.optimizers.lamb import Lamb
from meshflow.keras.optimizers.loss_scale_optimizer import LossScaleOptimizer
from meshflow.keras.optimizers.one_bit_adam import OneBitAdam
from meshflow.keras.optimizers.optax_adapter import OptaxOptimizer
from meshflow.keras.optimizers.sgd import SGD
from meshflow.keras.optimizers.update_rule import RuleOptimizer

__all__ = [
    "SGD",
    "AdaScale",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Lamb",
    "Lion",
    "LossScaleOptimizer",
    "Nadam",
    "OneBitAdam",
    "OptaxOptimizer",
    "Optimizer",
    "RMSprop",
    "deserialize",
    "experimental",
    "get",
    "legacy",
    "schedules",
    "serialize",
]


registry.OPTIMIZERS.table |= registry.make_name_table(
    *(
        value
        for name, value in list(globals().items())
        if name in __all__ and isinstance(value, type) and issubclass(value, RuleOptimizer)
    )
) | {f"legacy.{n.lower()}": getattr(legacy, n) for n in legacy.__all__ if n != "Optimizer"}


@hide_frames_of_errors
def get(identifier: Any, **kwargs: Any) -> Optimizer:
    """Return an optimizer for a name, class, object, configuration or optax transformation.

    Args:
      identifier: A name such as "adam", an `Optimizer` or subclass, a configuration, or an optax
        `GradientTransformation`, which is wrapped in an `OptaxOptimizer`. Optimizers of TensorFlow 1 are
        wrapped, too.
      **kwargs: `use_legacy_optimizer`, whether a name or configuration is that of a class of `legacy`.

    Raises:
      ValueError: If `identifier` is anything else.

    Example:
      >>> tf.keras.optimizers.get("adam").name
      'Adam'
    """
    is_legacy = kwargs.pop("use_legacy_optimizer", False)
    if kwargs:
        raise TypeError(f"Invalid keyword arguments: {sorted(kwargs)}.")
    if not isinstance(identifier, type):
        if hasattr(identifier, "as_keras_optimizer"):
            return identifier.as_keras_optimizer()
        if hasattr(identifier, "apply_gradients"):
            return identifier
        if hasattr(identifier, "init") and hasattr(identifier, "update"):
            return OptaxOptimizer(identifier)
    if not isinstance(identifier, (str, dict, type)):
        raise ValueError(
            f"Could not interpret optimizer identifier: {identifier!r}. Expected a name, an Optimizer, a configuration, or an optax transformation."
        )
    if isinstance(identifier, dict):
        return deserialize(identifier, use_legacy_optimizer=is_legacy)
    if is_legacy and isinstance(identifier, str):
        return registry.OPTIMIZERS.get(_find_legacy_name(identifier))
    return registry.OPTIMIZERS.get(identifier)


def serialize(optimizer: Optimizer, use_legacy_format: bool = False) -> Config:
    """Return the configuration of an optimizer.

    Args:
      optimizer: The optimizer.
      use_legacy_format: Whether to use the format of Keras up to 2.12, without module names.

    Returns:
      A dictionary with `class_name` and `config`.

    Example:
      >>> config = tf.keras.optimizers.serialize(tf.keras.optimizers.SGD(0.5))
      >>> config["class_name"], config["config"]["learning_rate"]
      ('SGD', 0.5)
    """
    return serialization.serialize(optimizer, use_legacy_format)


def deserialize(
    config: dict[str, Any], custom_objects: dict[str, Any] | None = None, **kwargs: Any
) -> Optimizer:
    """Create an optimizer from its configuration.

    Args:
      config: The result of `serialize`, here or in Keras 2. A configuration without
        `is_legacy_optimizer`, as TensorFlow wrote them until 2.10, creates the class of `legacy`.
      custom_objects: Further classes by name.
      **kwargs: `use_legacy_optimizer`, whether to create a class of `legacy`, and `use_legacy_format`, which
        is ignored.

    Raises:
      ValueError: If the class is unknown.

    Example:
      >>> config = tf.keras.optimizers.serialize(tf.keras.optimizers.SGD(0.5, momentum=0.9))
      >>> float(tf.keras.optimizers.deserialize(config).learning_rate)
      0.5
    """
    if kwargs.get("use_legacy_optimizer"):
        config = {**config, "class_name": _find_legacy_name(config["class_name"])}
    return registry.OPTIMIZERS.deserialize(config, custom_objects)


def _find_legacy_name(name: str) -> str:
    """Return the registered name of the optimizer of `legacy` that a name refers to, or the name itself."""
    names = [n for n in legacy.__all__ if n.lower() == name.lower() and n != "Optimizer"]
    return f"legacy.{names[0].lower()}" if names else name
