"""`tf.keras.backend.experimental`: which random numbers Keras draws."""

from __future__ import annotations

__all__ = [
    "disable_tf_random_generator",
    "enable_tf_random_generator",
    "is_tf_random_generator_enabled",
]

_state = {"enabled": True}


def enable_tf_random_generator() -> None:
    """Accepted: layers draw from generators, with numbers that do not depend on devices, in any case.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.backend.experimental.enable_tf_random_generator()
      >>> tf.keras.backend.experimental.is_tf_random_generator_enabled()
      True
    """
    _state["enabled"] = True


def disable_tf_random_generator() -> None:
    """Accepted; changes what `is_tf_random_generator_enabled` says only."""
    _state["enabled"] = False


def is_tf_random_generator_enabled() -> bool:
    """What was last asked for; True at first."""
    return _state["enabled"]
