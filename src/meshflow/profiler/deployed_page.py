"""HTML page of a deployed model's profile: time, memory and calls of each operator."""

from __future__ import annotations

import os
from typing import Any

from meshflow._version import __version__
from meshflow.environment.types import StrPath
from meshflow.files.replacing import replacing
from meshflow.profiler.description import FORMAT
from meshflow.profiler.filling import filled
from meshflow.profiler.operators import Operator

__all__ = ["page", "write_page"]


def page(profile: Any) -> str:
    """Return the page of a `DeployedProfile` as HTML."""
    name = os.path.basename(profile.file.rstrip("/")) or profile.file
    data = {
        "format": FORMAT,
        "version": __version__,
        "name": name,
        "file": profile.file,
        "runtime": profile.runtime,
        "batch": profile.batch,
        "runs": profile.runs,
        "load": _micro(profile.load_seconds),
        "first": _micro(profile.first_seconds),
        "call": _micro(profile.seconds),
        "note": profile.note,
        "operators": [_operator(o) for o in profile.operators],
    }
    return filled("model", name, data)


def _operator(operator: Operator) -> dict[str, Any]:
    first = operator.first_seconds
    return {
        "name": operator.name,
        "kind": operator.kind,
        "calls": round(operator.calls, 2),
        "time": _micro(operator.seconds),
        "first": None if first is None else _micro(first),
        "bytes": operator.bytes,
    }


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def write_page(profile: Any, path: StrPath) -> str:
    """Write the page of a `DeployedProfile`, locally or to an object store; return the path."""
    path = os.fspath(path)
    with replacing(path, "w") as file:
        file.write(page(profile))
    return path
