"""Lazy access to the messages of `cluster_messages`, which need the package protobuf."""

from __future__ import annotations

from typing import Any, TypeGuard


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    from meshflow.distribute.cluster import cluster_messages  # noqa: PLC0415 - optional dependency

    message_class = globals()[name] = getattr(cluster_messages, name)
    return message_class


def is_message(value: object, name: str) -> TypeGuard[Any]:
    """Check whether a value is a message of Meshflow or TensorFlow with a name.

    Args:
      value: Value to check.
      name: Name of the message, without package.
    """
    full_name = getattr(getattr(value, "DESCRIPTOR", None), "full_name", "")
    return bool(full_name == f"tensorflow.{name}")
