"""Writers of event files, and the default writer and step of summaries.

A writer buffers up to `max_queue` summaries, or those of two minutes, before it writes them to its
file.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, SupportsInt, TypeAlias

import numpy as np

from meshflow.core.runtime.context import ThreadState
from meshflow.environment.types import StrPath
from meshflow.files.paths import to_path_string
from meshflow.io.event_files import EventFile

# A training step: an integer, a scalar tensor or a variable; None for the default step.
StepLike: TypeAlias = SupportsInt | None


class SummaryState(ThreadState):
    """Thread-local settings of summaries.

    Attributes:
      writer: The default writer, or None.
      step: The default step, or None.
      recording: Condition of `record_if`: a bool, a tensor, a function that returns one, or None.
    """

    def __init__(self) -> None:
        self.writer: SummaryWriter | None = None
        self.step: StepLike = None
        self.recording: Any = None


state = SummaryState()


def get_step() -> StepLike:
    """Return the default step of summaries; None if there is none.

    Example:
      >>> tf.summary.experimental.set_step(3)
      >>> tf.summary.experimental.get_step()
      3
      >>> tf.summary.experimental.set_step(None)
    """
    return state.step


def set_step(step: StepLike) -> None:
    """Set the default step of summaries.

    Args:
      step: An integer, a tensor, or a variable, which is read for each summary; None for no step.

    Example:
      >>> tf.summary.experimental.set_step(7)
      >>> tf.summary.experimental.get_step()
      7
      >>> tf.summary.experimental.set_step(None)
    """
    state.step = step


class SummaryWriter:
    """Base class of writers; `create_file_writer` and `create_noop_writer` create them.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     isinstance(tf.summary.create_file_writer(folder), tf.summary.SummaryWriter)
      True
    """

    def set_as_default(self, step: StepLike = None) -> None:
        """Make this the default writer of the thread.

        Args:
          step: Default step; None keeps the current default.
        """
        self._check_open()
        state.writer = self
        if step is not None:
            state.step = step

    @contextmanager
    def as_default(self, step: StepLike = None) -> Iterator[SummaryWriter]:
        """Make this the default writer in the block.

        Args:
          step: Default step in the block; None keeps the current default.

        Raises:
          RuntimeError: The writer is closed.
        """
        self._check_open()
        before = state.writer, state.step
        state.writer = self
        if step is not None:
            state.step = step
        try:
            yield self
        finally:
            self.flush()
            state.writer = before[0]
            if step is not None:
                state.step = before[1]

    def init(self) -> None:
        """Do nothing, since a new writer is ready for use."""

    def flush(self) -> None:
        """Write buffered summaries to the file."""

    def close(self) -> None:
        """Close the file."""

    def add(self, step: int, **content: Any) -> None:
        """Write an event.

        Args:
          step: Training step of the event.
          **content: Content of the event: `summary` or `graph_def`.
        """

    def _check_open(self) -> None:
        """Raise an error if the writer is closed."""


class _NoopWriter(SummaryWriter):
    """A writer that drops all summaries."""


_open_writers: weakref.WeakSet[Any] = weakref.WeakSet()


class _FileWriter(SummaryWriter):
    def __init__(self, folder: str, max_queue: int, flush_millis: int, suffix: str) -> None:
        self._file = EventFile(folder, suffix)
        self._lock = threading.Lock()
        self._max_queue, self._flush_seconds = max_queue, flush_millis / 1000
        self._num_buffered, self._closed, self._last_flush = 0, False, time.monotonic()
        _open_writers.add(self)

    def add(self, step: int, **content: Any) -> None:
        with self._lock:
            if self._closed:
                return
            self._file.add(step, **content)
            self._num_buffered += 1
            due = (
                self._num_buffered >= self._max_queue
                or time.monotonic() - self._last_flush > self._flush_seconds
            )
        if due:
            self.flush()

    def flush(self) -> None:
        with self._lock:
            if not self._closed:
                self._file.flush()
            self._num_buffered, self._last_flush = 0, time.monotonic()

    def close(self) -> None:
        with self._lock:
            # A flush would fail if the interpreter already closed the file at exit.
            if not self._closed:
                self._file.close()
            self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"SummaryWriter {self!r} is already closed")


@atexit.register
def _close_all() -> None:
    for writer in list(_open_writers):
        writer.close()


def create_file_writer(
    logdir: StrPath,
    max_queue: int | None = None,
    flush_millis: int | None = None,
    filename_suffix: str | None = None,
    name: str | None = None,
    experimental_trackable: bool = False,
    experimental_mesh: object = None,
) -> SummaryWriter:
    """Create a writer of summaries to an event file for TensorBoard.

    Args:
      logdir: Folder of the file; it is created if it does not exist.
      max_queue: Maximum number of buffered summaries; default 10.
      flush_millis: Maximum milliseconds between writes; default two minutes.
      filename_suffix: Ending of the file name; default '.v2'.
      name: Ignored.
      experimental_trackable: Ignored.
      experimental_mesh: Ignored.

    Raises:
      ValueError: `logdir` is None.
      ImportError: The package protobuf is not installed.

    Example:
      >>> import os, tempfile
      >>> folder = tempfile.mkdtemp()
      >>> with tf.summary.create_file_writer(folder).as_default():
      ...     for step in range(3):
      ...         _ = tf.summary.scalar("loss", 1 / (step + 1), step=step)
      >>> [name.startswith("events.out.tfevents.") for name in os.listdir(folder)]
      [True]
    """
    if logdir is None:
        raise ValueError("Argument `logdir` cannot be None")
    folder = to_path_string(logdir)
    return _FileWriter(
        folder,
        10 if max_queue is None else int(np.asarray(max_queue)),
        120_000 if flush_millis is None else int(np.asarray(flush_millis)),
        ".v2" if filename_suffix is None else filename_suffix,
    )


def create_noop_writer() -> SummaryWriter:
    """Create a writer that drops all summaries.

    Example:
      >>> with tf.summary.create_noop_writer().as_default():
      ...     print(tf.summary.scalar("loss", 1.0, step=0).numpy())
      False
    """
    return _NoopWriter()


def flush(writer: SummaryWriter | None = None, name: str | None = None) -> None:
    """Write the buffered summaries of a writer to its file.

    Args:
      writer: The writer; default the current one, if any.
      name: Ignored.

    Example:
      >>> import glob, os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with tf.summary.create_file_writer(folder).as_default():
      ...         _ = tf.summary.scalar("loss", 0.5, step=0)
      ...         _ = tf.summary.flush()
      ...         len(glob.glob(os.path.join(folder, "events*")))
      1
    """
    current = state.writer if writer is None else writer
    if current is not None:
        current.flush()
