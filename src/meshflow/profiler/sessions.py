"""One profile at a time of this process: begun, ended, and moved to its folder."""

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
from typing import Any, NamedTuple

import jax

from meshflow.core.runtime.errors import AlreadyExistsError, OpError, UnavailableError
from meshflow.files import gfile
from meshflow.files.copies import copy_folder
from meshflow.files.paths import remote, text
from meshflow.io.event_files import EventFile
from meshflow.profiler.description import SUFFIX, MemorySamples, describe, worker_name
from meshflow.profiler.folders import PROFILES, load, write_page
from meshflow.profiler.report import Report

__all__ = ["Profile", "ProfilerOptions", "record", "running", "start", "stop"]

_log = logging.getLogger("meshflow")


class ProfilerOptions(NamedTuple):
    """What a profile records.

    Attributes:
      host_tracer_level: of the program on the host: 0 nothing, 1 what users name, 2 what matters,
        3 everything.
      python_tracer_level: 1 records calls of Python functions, which slows the program down.
      device_tracer_level: accepted; what devices do is always recorded.
      delay_ms: milliseconds to wait before the profile begins, so that several hosts begin
        together; None for not at all.

    Example:
      >>> import meshflow as tf
      >>> tf.profiler.experimental.ProfilerOptions(host_tracer_level=3).python_tracer_level
      0
    """

    host_tracer_level: int = 2
    python_tracer_level: int = 0
    device_tracer_level: int = 1
    delay_ms: int | None = None


class _Session(NamedTuple):
    logdir: str
    # Where it is recorded; the log folder gets it when it is complete.
    recorded: str
    memory: MemorySamples


_lock = threading.Lock()
_session: _Session | None = None


def running() -> bool:
    """Whether a profile of this process is being taken."""
    return _session is not None


def start(logdir: Any, options: ProfilerOptions | None = None) -> None:
    """Begins a profile of this process.

    Args:
      logdir: the folder, the one that TensorBoard is shown, here or in a store; `stop` writes to its `plugins/profile`.
      options: what to record; default `ProfilerOptions()`.

    Raises:
      AlreadyExistsError: when a profile is being taken.

    Example:
      >>> import glob, tempfile
      >>> import meshflow as tf
      >>> folder = tempfile.mkdtemp()
      >>> tf.profiler.experimental.start(folder)
      >>> y = tf.matmul(tf.ones([8, 8]), tf.ones([8, 8]))
      >>> tf.profiler.experimental.stop()
      >>> len(glob.glob(folder + "/plugins/profile/*/*.xplane.pb"))
      1
    """
    logdir = text(logdir)
    remote(logdir)  # what is missing for a store is said before the work, not after it
    _begin(logdir, options or ProfilerOptions())


def _begin(logdir: str, options: ProfilerOptions) -> None:
    global _session
    with _lock:
        if _session is not None:
            raise AlreadyExistsError(
                f"Another profile is being taken, for {_session.logdir}. Call tf.profiler.experimental.stop() first."
            )
        chosen = jax.profiler.ProfileOptions()
        chosen.host_tracer_level = options.host_tracer_level
        chosen.python_tracer_level = options.python_tracer_level
        if options.delay_ms:
            time.sleep(options.delay_ms / 1000)
        recorded = tempfile.mkdtemp(prefix="meshflow-profile-")
        try:
            jax.profiler.start_trace(recorded, profiler_options=chosen)
        except RuntimeError as error:
            shutil.rmtree(recorded, ignore_errors=True)
            raise AlreadyExistsError(f"Another profile is being taken: {error}") from error
        _session = _Session(logdir, recorded, MemorySamples())


def stop(save: bool = True) -> None:
    """Ends the profile.

    Args:
      save: whether to write it.

    Raises:
      UnavailableError: when no profile is being taken.
    """
    if _session is None:
        raise UnavailableError(
            "Cannot export profiling results: no profile is being taken. Call "
            "tf.profiler.experimental.start(logdir) first."
        )
    finish(_session.logdir if save else None)


def finish(logdir: str | None) -> Report | None:
    """Ends the profile that is being taken and writes it to a folder, or nowhere.

    Returns:
      What it says; None where it is not written or cannot be read.
    """
    ended = _end()
    try:
        if logdir is not None:
            folder = _described(ended)
            copy_folder(ended.recorded, logdir)
            _show(logdir)
            return _write_page(gfile.join(logdir, PROFILES, folder.name))
        return None
    finally:
        shutil.rmtree(ended.recorded, ignore_errors=True)


def record(
    duration_ms: float, options: ProfilerOptions, cancelled: Callable[[], bool]
) -> dict[str, bytes]:
    """Takes a profile of this process for a time, for somebody else.

    Args:
      duration_ms: for how long.
      options: what to record.
      cancelled: a function that says whether nobody waits for it any more.

    Returns:
      Contents of the files by the ends of their names.

    Raises:
      AlreadyExistsError: when a profile is being taken.
    """
    _begin("another process", options)
    try:
        until = time.monotonic() + duration_ms / 1000
        while (left := until - time.monotonic()) > 0 and not cancelled():
            time.sleep(min(left, 0.05))
    finally:
        ended = _end()
    try:
        folder = _described(ended)
        return {f.name[f.name.index(".") :]: f.read_bytes() for f in folder.iterdir()}
    finally:
        shutil.rmtree(ended.recorded, ignore_errors=True)


def _end() -> _Session:
    """Ends the profile."""
    global _session
    assert _session is not None
    ended = _session
    try:
        jax.profiler.stop_trace()
    finally:
        ended.memory.stop()
        _session = None
    return ended


def _described(ended: _Session) -> Path:
    """Puts what this process says of itself beside its trace, under this worker's name; their folder."""
    (folder,) = Path(ended.recorded).glob(f"{PROFILES}/*")
    for file in list(folder.iterdir()):
        # A host's name may have points; what follows it has two.
        host = file.name.removesuffix(".xplane.pb").removesuffix(".trace.json.gz")
        stem = "_".join([host.replace(".", "-"), *worker_name().split()])
        file.rename(folder / (stem + file.name[len(host) :]))
    said = json.dumps(describe(ended.memory))
    (folder / (stem + SUFFIX)).write_text(said, encoding="utf-8")
    return folder


def _write_page(folder: str) -> Report | None:
    try:
        report = load(folder)
        path = write_page(folder, report)
    except OpError as error:
        # The profile is there all the same.
        _log.warning("The page of the profile could not be written: %s", error)
        return None
    _log.info("Open %s to see where the time goes.", path)
    return report


def _show(logdir: str) -> None:
    """Leaves an event file beside a profile: TensorBoard looks at no folder without one."""
    if any("tfevents" in name for name in gfile.listdir(logdir)):
        return
    # Without the packages that write events, xprof shows the folder still.
    with contextlib.suppress(ImportError):
        EventFile(logdir, ".profile-empty").close()


class Profile:
    """Takes a profile of what happens inside a `with` block.

    Args:
      logdir: as in `start`.
      options: as in `start`.

    Raises:
      AlreadyExistsError: on entry, when a profile is being taken.

    Example:
      >>> import os, tempfile
      >>> import meshflow as tf
      >>> folder = tempfile.mkdtemp()
      >>> with tf.profiler.experimental.Profile(folder):
      ...     y = tf.reduce_sum(tf.ones([8]))
      >>> os.listdir(folder + "/plugins")
      ['profile']
    """

    def __init__(self, logdir: Any, options: ProfilerOptions | None = None) -> None:
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
