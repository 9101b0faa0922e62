"""Recording of profiles of this process, one at a time."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import jax

from meshflow.core.dispatch.tiers import TierSettings
from meshflow.core.runtime.errors import AlreadyExistsError, OpError, UnavailableError
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.copies import copy_folder
from meshflow.files.paths import get_file_system, to_path_string
from meshflow.io.event_files import EventFile
from meshflow.profiler.description import SUFFIX, MemorySamples, describe_process, get_worker_name
from meshflow.profiler.folders import PROFILES, load_report, write_page
from meshflow.profiler.report import Report

_log = logging.getLogger("meshflow")


class ProfilerOptions(NamedTuple):
    """Options of the tracers.

    Attributes:
      host_tracer_level: Level of events on the host: 0 none, 1 user annotations, 2 important
        events, 3 all events.
      python_tracer_level: 1 records calls of Python functions, which slows the program down.
      device_tracer_level: Ignored; devices are always traced.
      delay_ms: Milliseconds to wait before the profile starts, so that several hosts start
        together; None to start immediately.

    Example:
      >>> tf.profiler.experimental.ProfilerOptions(host_tracer_level=3).python_tracer_level
      0
    """

    host_tracer_level: int = 2
    python_tracer_level: int = 0
    device_tracer_level: int = 1
    delay_ms: int | None = None


class _RecordingSession(NamedTuple):
    logdir: str
    # Temporary folder of the recording, copied to the log folder when it is complete.
    temporary_folder: str
    memory: MemorySamples


_lock = threading.Lock()
_session: _RecordingSession | None = None


def is_running() -> bool:
    """Check whether a profile of this process is being recorded."""
    return _session is not None


def start(logdir: StrPath, options: ProfilerOptions | None = None) -> None:
    """Start a profile of this process.

    Args:
      logdir: TensorBoard's log folder, local or in an object store; `stop` writes to its
        `plugins/profile`.
      options: Options of the tracers; default: `ProfilerOptions()`.

    Raises:
      AlreadyExistsError: If a profile is being taken already.

    Example:
      >>> import glob, tempfile
      >>> folder = tempfile.mkdtemp()
      >>> tf.profiler.experimental.start(folder)
      >>> y = tf.matmul(tf.ones([8, 8]), tf.ones([8, 8]))
      >>> tf.profiler.experimental.stop()
      >>> len(glob.glob(folder + "/plugins/profile/*/*.xplane.pb"))
      1
    """
    path = to_path_string(logdir)
    get_file_system(
        path
    )  # Report a missing package for the store before recording, not afterwards.
    _start_trace(path, options or ProfilerOptions())


def _start_trace(logdir: str, options: ProfilerOptions) -> None:
    global _session
    with _lock:
        if _session is not None:
            raise AlreadyExistsError(
                f"Another profile is being taken, for {_session.logdir}. Call tf.profiler.experimental.stop() first."
            )
        jax_options = jax.profiler.ProfileOptions()
        jax_options.host_tracer_level = options.host_tracer_level
        jax_options.python_tracer_level = options.python_tracer_level
        if options.delay_ms:
            time.sleep(options.delay_ms / 1000)
        folder = tempfile.mkdtemp(prefix="meshflow-profile-")
        try:
            jax.profiler.start_trace(folder, profiler_options=jax_options)
        except RuntimeError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise AlreadyExistsError(f"Another profile is being taken: {error}") from error
        TierSettings.is_profiling = True
        _session = _RecordingSession(logdir, folder, MemorySamples())


def stop(save: bool = True) -> None:
    """Stop the profile.

    Args:
      save: Whether to write it.

    Raises:
      UnavailableError: If no profile is being taken.
    """
    if _session is None:
        raise UnavailableError(
            "Cannot export profiling results: no profile is being taken. Call "
            "tf.profiler.experimental.start(logdir) first."
        )
    finish_session(_session.logdir if save else None)


def finish_session(logdir: str | None) -> Report | None:
    """Stop the profile and write it to a folder, or discard it for None.

    Returns:
      The report; None if the profile is discarded or cannot be read.
    """
    session = _stop_trace()
    try:
        if logdir is not None:
            folder = _add_description(session)
            copy_folder(session.temporary_folder, logdir)
            _write_event_file(logdir)
            return _write_page(gfile.join(logdir, PROFILES, folder.name))
        return None
    finally:
        shutil.rmtree(session.temporary_folder, ignore_errors=True)


def record_profile(
    duration_ms: float, options: ProfilerOptions, is_cancelled: Callable[[], bool]
) -> dict[str, bytes]:
    """Record a profile of this process for a time, for another process.

    Args:
      duration_ms: Milliseconds to record.
      options: Options of the tracers.
      is_cancelled: Checks whether the client has cancelled the request.

    Returns:
      Contents of the files by the endings of their names.

    Raises:
      AlreadyExistsError: If a profile is being taken already.
    """
    _start_trace("another process", options)
    try:
        deadline = time.monotonic() + duration_ms / 1000
        while (remaining := deadline - time.monotonic()) > 0 and not is_cancelled():
            time.sleep(min(remaining, 0.05))
    finally:
        session = _stop_trace()
    try:
        folder = _add_description(session)
        return {f.name[f.name.index(".") :]: f.read_bytes() for f in folder.iterdir()}
    finally:
        shutil.rmtree(session.temporary_folder, ignore_errors=True)


def _stop_trace() -> _RecordingSession:
    """Stop the trace and return its session."""
    global _session
    assert _session is not None
    session = _session
    try:
        jax.profiler.stop_trace()
    finally:
        session.memory.stop()
        _session = None
        TierSettings.is_profiling = False
    return session


def _add_description(session: _RecordingSession) -> Path:
    """Write this process's description next to its trace and rename the files; return their folder."""
    (folder,) = Path(session.temporary_folder).glob(f"{PROFILES}/*")
    for file in list(folder.iterdir()):
        # The host's name may contain dots, and the extension contains two.
        host = file.name.removesuffix(".xplane.pb").removesuffix(".trace.json.gz")
        stem = "_".join([host.replace(".", "-"), *get_worker_name().split()])
        file.rename(folder / (stem + file.name[len(host) :]))
    description = json.dumps(describe_process(session.memory))
    (folder / (stem + SUFFIX)).write_text(description, encoding="utf-8")
    return folder


def _write_page(folder: str) -> Report | None:
    try:
        report = load_report(folder)
        path = write_page(folder, report)
    except OpError as error:
        # The traces are complete even without the page.
        _log.warning("The page of the profile could not be written: %s", error)
        return None
    _log.info("Open %s to see the profile.", path)
    return report


def _write_event_file(logdir: str) -> None:
    """Write an empty event file, because TensorBoard ignores folders without one."""
    if any("tfevents" in name for name in gfile.listdir(logdir)):
        return
    # If the packages that write event files are missing, xprof can still read the profile.
    with contextlib.suppress(ImportError):
        EventFile(logdir, ".profile-empty").close()


class Profile:
    """Records a profile of a `with` block.

    Args:
      logdir: Log folder, as in `start`.
      options: Options of the tracers, as in `start`.

    Raises:
      AlreadyExistsError: On entry, if a profile is being taken already.

    Example:
      >>> import os, tempfile
      >>> folder = tempfile.mkdtemp()
      >>> with tf.profiler.experimental.Profile(folder):
      ...     y = tf.reduce_sum(tf.ones([8]))
      >>> os.listdir(folder + "/plugins")
      ['profile']
    """

    def __init__(self, logdir: StrPath, options: ProfilerOptions | None = None) -> None:
        self._logdir, self._options = logdir, options

    def __enter__(self) -> None:
        start(self._logdir, self._options)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stop()
