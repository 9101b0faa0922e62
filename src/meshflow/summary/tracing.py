"""`tf.summary.trace_on`: profiles of what a program does, by JAX's profiler."""

from __future__ import annotations

import logging
import shutil
import tempfile
from typing import Any

import jax

from meshflow.core.errors import NotAvailableError
from meshflow.summary.writers import state

__all__ = ["trace_export", "trace_off", "trace_on"]

_log = logging.getLogger("meshflow")


class _Tracing:
    """Whether a trace was asked for, and the folder of the profile that is being taken."""

    on = False
    folder: str | None = None


def trace_on(graph: bool = True, profiler: bool = False, profiler_outdir: Any = None) -> None:
    """Begins to record what `trace_export` writes.

    Args:
      graph: accepted; functions are XLA programs here, which TensorBoard does not draw.
      profiler: whether to take a profile.
      profiler_outdir: accepted here as in `trace_export`.

    Raises:
      NotAvailableError: when another profile is being taken.
    """
    if _Tracing.on:
        _log.warning("A trace is already being recorded.")
        return
    if profiler:
        folder = tempfile.mkdtemp(prefix="meshflow-profile-")
        try:
            jax.profiler.start_trace(folder)
        except RuntimeError as error:
            raise NotAvailableError(f"tf.summary.trace_on(profiler=True): {error}") from error
        _Tracing.folder = folder
    _Tracing.on = True


def _stop() -> str | None:
    folder, _Tracing.folder, _Tracing.on = _Tracing.folder, None, False
    if folder is not None:
        jax.profiler.stop_trace()
    return folder


def trace_off() -> None:
    """Ends the recording; nothing is written."""
    folder = _stop()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


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
    if _Tracing.folder is not None and profiler_outdir is None:
        raise ValueError("tf.summary.trace_export: a profile needs `profiler_outdir`.")
    folder = _stop()
    if folder is None:
        _log.info("No graph is written: functions are XLA programs.")
        return
    shutil.copytree(folder, profiler_outdir, dirs_exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
