"""`tf.keras.backend.experimental`: which generator random layers use; there is one only."""

from __future__ import annotations

__all__ = [
    "disable_tf_random_generator",
    "enable_tf_random_generator",
    "is_tf_random_generator_enabled",
]


def enable_tf_random_generator() -> None:
    """Nothing to do: random layers always use generators whose state is a variable."""


def disable_tf_random_generator() -> None:
    """Accepted; random layers go on using generators whose state is a variable."""


def is_tf_random_generator_enabled() -> bool:
    """Always True."""
    return True
