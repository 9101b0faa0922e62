"""Shorter tracebacks, without the internal frames between two lines of user code.

`JAX_TRACEBACK_FILTERING=off`, JAX's own switch, keeps all frames.
"""

from __future__ import annotations

import os
from functools import cache
from types import TracebackType

import jax

_CORE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@cache
def _list_hidden_paths() -> tuple[str, ...]:
    folders = [os.path.join(_CORE, "autograph"), os.path.join(_CORE, "staging")]
    folders.append(os.path.dirname(os.path.abspath(jax.__file__)))
    return (*(folder + os.sep for folder in folders), os.path.join(_CORE, "trace.py"))


def filter_traceback(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of AutoGraph, staging, tracing and JAX."""
    if os.environ.get("JAX_TRACEBACK_FILTERING") == "off":
        return traceback
    entries: list[TracebackType] = []
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_list_hidden_paths()):
            entries.append(traceback)
        traceback = traceback.tb_next
    result: TracebackType | None = None
    for entry in reversed(entries):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result
