"""HTML page of a deployed model's profile: time, memory and calls of each operator."""

from __future__ import annotations

import os
from typing import Any

from meshflow._version import __version__
from meshflow.environment.types import StrPath
from meshflow.files.atomic_writes import replace_file
from meshflow.profiler.description import FORMAT
from meshflow.profiler.operators import OperatorCosts
from meshflow.profiler.page_template import fill_template


def format_page(profile: Any) -> str:
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
        "load": _to_microseconds(profile.load_seconds),
        "first": _to_microseconds(profile.first_seconds),
        "call": _to_microseconds(profile.seconds),
        "note": profile.note,
        "operators": [_format_operator(o) for o in profile.operators],
    }
    return fill_template("model", name, data)


def _format_operator(operator: OperatorCosts) -> dict[str, Any]:
    first = operator.first_seconds
    return {
        "name": operator.name,
        "kind": operator.kind,
        "calls": round(operator.calls, 2),
        "time": _to_microseconds(operator.seconds),
        "first": None if first is None else _to_microseconds(first),
        "bytes": operator.bytes,
    }


def _to_microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def write_page(profile: Any, path: StrPath) -> str:
    """Write the page of a `DeployedProfile`, locally or to an object store; return the path."""
    path = os.fspath(path)
    with replace_file(path, "w") as file:
        file.write(format_page(profile))
    return path
