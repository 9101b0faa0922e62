"""`tf.summary.trace_on`: profiles of a program, recorded by JAX's profiler."""

from __future__ import annotations

import logging
import os

from meshflow.environment.types import StrPath
from meshflow.profiler import sessions
from meshflow.summary.writers import StepLike, state

__all__ = ["trace_export", "trace_off", "trace_on"]

_log = logging.getLogger("meshflow")


class _Tracing:
    """Whether a trace is active, and whether it includes a profile."""

    on = False
    profiling = False


def trace_on(
    graph: bool = True, profiler: bool = False, profiler_outdir: StrPath | None = None
) -> None:
    """Start to record a trace, which `trace_export` writes.

    Args:
      graph: Ignored; functions are XLA programs, which TensorBoard cannot draw.
      profiler: Whether to record a profile.
      profiler_outdir: Ignored; pass it to `trace_export`.

    Raises:
      AlreadyExistsError: Another profile is being recorded.
    """
    if _Tracing.on:
        _log.warning("A trace is already being recorded.")
        return
    if profiler:
        sessions.start("tf.summary.trace_export")
        _Tracing.profiling = True
    _Tracing.on = True


def _stop(folder: str | None) -> bool:
    """Stop the trace and write its profile, if any, to the folder; return whether there was one."""
    profiling, _Tracing.profiling, _Tracing.on = _Tracing.profiling, False, False
    if profiling:
        sessions.finish(folder)
    return profiling


def trace_off() -> None:
    """Stop the trace without writing it."""
    _stop(None)


def trace_export(name: str, step: StepLike = None, profiler_outdir: StrPath | None = None) -> None:
    """Stop the trace and write its profile.

    Args:
      name: Ignored.
      step: Training step; default `tf.summary.experimental.get_step()`.
      profiler_outdir: Folder of the profile: TensorBoard's log folder.

    Raises:
      ValueError: There is no trace, no step, or no folder for a profile.
    """
    if not _Tracing.on:
        raise ValueError("Must enable trace before export through tf.summary.trace_on.")
    if step is None and state.step is None:
        raise ValueError("No step set. Please specify one through the `step` argument.")
    if _Tracing.profiling and profiler_outdir is None:
        raise ValueError("tf.summary.trace_export: `profiler_outdir` is required for a profile.")
    if not _stop(None if profiler_outdir is None else os.fspath(profiler_outdir)):
        _log.info("No graph was written, because functions are XLA programs.")
