"""The messages that describe clusters (`messages`), loaded when they are first used: they need the package protobuf."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    from meshflow.distribute.cluster import messages  # noqa: PLC0415 - it needs an optional package

    found = globals()[name] = getattr(messages, name)
    return found


def is_message(value: Any, name: str) -> bool:
    """Whether something is a message of a name, ours or TensorFlow's own.

    Args:
      value: anything.
      name: the message's.
    """
    found = getattr(getattr(value, "DESCRIPTOR", None), "full_name", "")
    return bool(found == f"tensorflow.{name}")
