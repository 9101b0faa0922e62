"""Lazy access to the message classes of `messages`, which require the package protobuf."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    from meshflow.io import messages  # noqa: PLC0415 - the module needs an optional package

    message = globals()[name] = getattr(messages, name)
    return message
