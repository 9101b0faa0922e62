"""`tf.keras.backend.experimental`: a switch without effect, kept for compatibility."""

from __future__ import annotations

__all__ = [
    "disable_tf_random_generator",
    "enable_tf_random_generator",
    "is_tf_random_generator_enabled",
]

_state = {"enabled": True}


def enable_tf_random_generator() -> None:
    """Record that generators are enabled; this has no other effect.

    Layers always draw from generators, and their numbers do not depend on the devices.

    Example:
      >>> tf.keras.backend.experimental.enable_tf_random_generator()
      >>> tf.keras.backend.experimental.is_tf_random_generator_enabled()
      True
    """
    _state["enabled"] = True


def disable_tf_random_generator() -> None:
    """Record that generators are disabled; this has no other effect."""
    _state["enabled"] = False


def is_tf_random_generator_enabled() -> bool:
    """Return the last recorded state; True by default."""
    return _state["enabled"]
