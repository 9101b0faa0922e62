"""`tf.summary.trace_on`: profiles of what a program does, by JAX's profiler."""

from __future__ import annotations

import logging
import os
from typing import Any

from meshflow.profiler import sessions
from meshflow.summary.writers import state

__all__ = ["trace_export", "trace_off", "trace_on"]

_log = logging.getLogger("meshflow")


class _Tracing:
    """Whether a trace was asked for, and whether with a profile."""

    on = False
    profiling = False


def trace_on(graph: bool = True, profiler: bool = False, profiler_outdir: Any = None) -> None:
    """Begins to record what `trace_export` writes.

    Args:
      graph: accepted; functions are XLA programs here, which TensorBoard does not draw.
      profiler: whether to take a profile.
      profiler_outdir: accepted here as in `trace_export`.

    Raises:
      AlreadyExistsError: when another profile is being taken.
    """
    if _Tracing.on:
        _log.warning("A trace is already being recorded.")
        return
    if profiler:
        sessions.start("tf.summary.trace_export")
        _Tracing.profiling = True
    _Tracing.on = True


def _stop(folder: str | None) -> bool:
    """Ends the recording; returns whether there was a profile, which goes to the folder."""
    profiling, _Tracing.profiling, _Tracing.on = _Tracing.profiling, False, False
    if profiling:
        sessions.finish(folder)
    return profiling


def trace_off() -> None:
    """Ends the recording; nothing is written."""
    _stop(None)


def trace_export(name: str, step: Any = None, profiler_outdir: Any = None) -> None:
    """Ends the recording and writes the profile.

    Args:
      name: ignored.
      step: an integer; default `tf.summary.experimental.get_step()`.
      profiler_outdir: the folder of the profile, the one that TensorBoard is shown.

    Raises:
      ValueError: when nothing is recorded, when there is no step, or no folder for a profile.
    """
    if not _Tracing.on:
        raise ValueError("Must enable trace before export through tf.summary.trace_on.")
    if step is None and state.step is None:
        raise ValueError("No step set. Please specify one through the `step` argument.")
    if _Tracing.profiling and profiler_outdir is None:
        raise ValueError("tf.summary.trace_export: a profile needs `profiler_outdir`.")
    if not _stop(None if profiler_outdir is None else os.fspath(profiler_outdir)):
        _log.info("No graph is written: functions are XLA programs.")
