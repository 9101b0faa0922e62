"""The messages of record files (`messages`), loaded when they are first used: they need the package protobuf."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    from meshflow.io import messages  # noqa: PLC0415 - it needs an optional package

    found = globals()[name] = getattr(messages, name)
    return found
