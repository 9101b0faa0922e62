"""One profile at a time of this process: begun, ended, and moved to its folder."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from types import TracebackType
from typing import Any, NamedTuple

import jax

from meshflow.core.runtime.errors import AlreadyExistsError, UnavailableError
from meshflow.files import gfile
from meshflow.files.copies import copy_folder
from meshflow.files.paths import remote, text
from meshflow.io.event_files import EventFile

__all__ = ["Profile", "ProfilerOptions", "running", "start", "stop"]


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
    global _session
    if _session is not None:
        raise AlreadyExistsError(
            f"Another profile is being taken, for {_session.logdir}. Call tf.profiler.experimental.stop() first."
        )
    options = options or ProfilerOptions()
    chosen = jax.profiler.ProfileOptions()
    chosen.host_tracer_level = options.host_tracer_level
    chosen.python_tracer_level = options.python_tracer_level
    if options.delay_ms:
        time.sleep(options.delay_ms / 1000)
    logdir = text(logdir)
    remote(logdir)  # what is missing for a store is said before the work, not after it
    recorded = tempfile.mkdtemp(prefix="meshflow-profile-")
    try:
        jax.profiler.start_trace(recorded, profiler_options=chosen)
    except RuntimeError as error:
        shutil.rmtree(recorded, ignore_errors=True)
        raise AlreadyExistsError(f"Another profile is being taken: {error}") from error
    _session = _Session(logdir, recorded)


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


def finish(logdir: str | None) -> None:
    """Ends the profile that is being taken and writes it to a folder, or nowhere."""
    global _session
    assert _session is not None
    recorded, _session = _session.recorded, None
    try:
        jax.profiler.stop_trace()
        if logdir is not None:
            copy_folder(recorded, logdir)
            _show(logdir)
    finally:
        shutil.rmtree(recorded, ignore_errors=True)


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
