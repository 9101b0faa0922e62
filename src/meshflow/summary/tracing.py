"""`tf.summary.trace_on`: graphs of the functions of a program, and profiles by JAX's profiler."""

from __future__ import annotations

import logging
import os

from meshflow.core.functions.concrete_function import FunctionSettings
from meshflow.core.values.convert import convert_to_tensor
from meshflow.environment.protobuf_messages import declare_messages
from meshflow.environment.types import StrPath
from meshflow.profiler import sessions
from meshflow.summary.recording import make_metadata, write
from meshflow.summary.writers import StepLike, state

_log = logging.getLogger("meshflow")


_RunMetadata = declare_messages(
    "meshflow/run_metadata.proto",
    {
        "RunMetadata": {"function_graphs": (4, "*FunctionGraphs")},
        # The field is a `GraphDef`.
        "FunctionGraphs": {"pre_optimization_graph": (2, "bytes")},
    },
)["RunMetadata"]


class _TraceState:
    """Whether a trace is active, and whether it includes a profile."""

    is_active = False
    is_profiling = False


def trace_on(
    graph: bool = True, profiler: bool = False, profiler_outdir: StrPath | None = None
) -> None:
    """Start to record a trace, which `trace_export` writes.

    Args:
      graph: Whether to record the graphs of the functions that are called.
      profiler: Whether to record a profile.
      profiler_outdir: Ignored; pass it to `trace_export`.

    Raises:
      AlreadyExistsError: Another profile is being recorded.
    """
    if _TraceState.is_active:
        _log.warning("A trace is already being recorded.")
        return
    if profiler:
        sessions.start("tf.summary.trace_export")
        _TraceState.is_profiling = True
    FunctionSettings.called = {} if graph else None
    _TraceState.is_active = True


def _stop(folder: str | None) -> bool:
    """Stop the trace and write its profile, if any, to the folder; return whether there was one."""
    profiling, _TraceState.is_profiling, _TraceState.is_active = (
        _TraceState.is_profiling,
        False,
        False,
    )
    if profiling:
        sessions.finish_session(folder)
    return profiling


def trace_off() -> None:
    """Stop the trace without writing it."""
    FunctionSettings.called = None
    _stop(None)


def trace_export(name: str, step: StepLike = None, profiler_outdir: StrPath | None = None) -> None:
    """Stop the trace; write its graphs to the default writer, and its profile to a folder.

    Args:
      name: Tag of the graphs in TensorBoard.
      step: Training step; default `tf.summary.experimental.get_step()`.
      profiler_outdir: Folder of the profile: TensorBoard's log folder.

    Raises:
      ValueError: There is no trace, no step, or no folder for a profile.
    """
    if not _TraceState.is_active:
        raise ValueError("Must enable trace before export through tf.summary.trace_on.")
    if step is None and state.step is None:
        raise ValueError("No step set. Please specify one through the `step` argument.")
    if _TraceState.is_profiling and profiler_outdir is None:
        raise ValueError("tf.summary.trace_export: `profiler_outdir` is required for a profile.")
    called, FunctionSettings.called = FunctionSettings.called, None
    _stop(None if profiler_outdir is None else os.fspath(profiler_outdir))
    if called is not None:
        run = _RunMetadata()
        for function in called.values():
            graph = function.graph.as_graph_def().SerializeToString()
            run.function_graphs.add(pre_optimization_graph=graph)
        metadata = make_metadata("graph_run_metadata_graph", content=b"1")
        write(name, convert_to_tensor(run.SerializeToString()), step, metadata)
