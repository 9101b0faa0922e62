"""Writers of event files, and which one summaries go to.

A file is records (`tf.io.TFRecordWriter`) of `Event` messages. A writer keeps the events of up to
`max_queue` summaries, or of two minutes, before it writes them.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from meshflow.files.paths import text
from meshflow.io.event_files import EventFile

__all__ = [
    "State",
    "SummaryWriter",
    "create_file_writer",
    "create_noop_writer",
    "flush",
    "get_step",
    "set_step",
    "state",
]


class State(threading.local):
    """What this thread's summaries are written with.

    Attributes:
      writer: the default writer, or None.
      step: the default step, or None.
      recording: whether summaries are recorded: a bool, a tensor, a function giving one, or None.
    """

    def __init__(self) -> None:
        self.writer: SummaryWriter | None = None
        self.step: Any = None
        self.recording: Any = None


state = State()


def get_step() -> Any:
    """The step that summaries are written with when they name none; None when there is none.

    Example:
      >>> import meshflow as tf
      >>> tf.summary.experimental.set_step(3)
      >>> tf.summary.experimental.get_step()
      3
      >>> tf.summary.experimental.set_step(None)
    """
    return state.step


def set_step(step: Any) -> None:
    """Sets the step that summaries are written with when they name none.

    Args:
      step: an integer, a tensor, or a variable, which is read for each summary; None for no step.

    Example:
      >>> import meshflow as tf
      >>> tf.summary.experimental.set_step(7)
      >>> tf.summary.experimental.get_step()
      7
      >>> tf.summary.experimental.set_step(None)
    """
    state.step = step


class SummaryWriter:
    """Takes summaries. Base class; `create_file_writer` and `create_noop_writer` make writers.

    Example:
      >>> import meshflow as tf
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     isinstance(tf.summary.create_file_writer(folder), tf.summary.SummaryWriter)
      True
    """

    def set_as_default(self, step: Any = None) -> None:
        """Makes this the writer of all later summaries of this thread.

        Args:
          step: a default step for them; default: as before.
        """
        self._check_open()
        state.writer = self
        if step is not None:
            state.step = step

    @contextmanager
    def as_default(self, step: Any = None) -> Iterator[SummaryWriter]:
        """A context in which this is the writer of summaries.

        Args:
          step: a default step for them; default: as outside.

        Raises:
          RuntimeError: when the writer is closed.
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
        """Nothing: a writer is ready when it is made."""

    def flush(self) -> None:
        """Hands what is kept to the file."""

    def close(self) -> None:
        """Ends the file."""

    def add(self, step: int, **what: Any) -> None:
        """Writes an event.

        Args:
          step: its step.
          **what: its content: `summary` or `graph_def`.
        """

    def _check_open(self) -> None:
        """Raises when the writer is closed."""


class _NoopWriter(SummaryWriter):
    """Takes summaries and drops them."""


_open_writers: weakref.WeakSet[Any] = weakref.WeakSet()


class _FileWriter(SummaryWriter):
    def __init__(self, folder: str, max_queue: int, flush_millis: int, suffix: str) -> None:
        self._file = EventFile(folder, suffix)
        self._lock = threading.Lock()
        self._most, self._seconds = max_queue, flush_millis / 1000
        self._kept, self._closed, self._flushed = 0, False, time.monotonic()
        _open_writers.add(self)

    def add(self, step: int, **what: Any) -> None:
        with self._lock:
            if self._closed:
                return
            self._file.add(step, **what)
            self._kept += 1
            due = self._kept >= self._most or time.monotonic() - self._flushed > self._seconds
        if due:
            self.flush()

    def flush(self) -> None:
        with self._lock:
            if not self._closed:
                self._file.flush()
            self._kept, self._flushed = 0, time.monotonic()

    def close(self) -> None:
        with self._lock:
            # Without a flush before, which fails where the end of the program ended the file already.
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
    logdir: Any,
    max_queue: int | None = None,
    flush_millis: int | None = None,
    filename_suffix: str | None = None,
    name: str | None = None,
    experimental_trackable: bool = False,
    experimental_mesh: Any = None,
) -> SummaryWriter:
    """A writer of summaries to an event file, which TensorBoard reads.

    Args:
      logdir: the folder of the file, which is made when it is not there.
      max_queue: after how many summaries they are written; default 10.
      flush_millis: after how many milliseconds; default two minutes.
      filename_suffix: end of the file's name; default '.v2'.
      name: ignored.
      experimental_trackable: accepted.
      experimental_mesh: accepted.

    Raises:
      ValueError: when `logdir` is None.
      ImportError: when the package protobuf is not installed.

    Example:
      >>> import os, tempfile
      >>> import meshflow as tf
      >>> folder = tempfile.mkdtemp()
      >>> with tf.summary.create_file_writer(folder).as_default():
      ...     for step in range(3):
      ...         _ = tf.summary.scalar("loss", 1 / (step + 1), step=step)
      >>> [name.startswith("events.out.tfevents.") for name in os.listdir(folder)]
      [True]
    """
    if logdir is None:
        raise ValueError("Argument `logdir` cannot be None")
    folder = text(logdir)
    return _FileWriter(
        folder,
        10 if max_queue is None else int(np.asarray(max_queue)),
        120_000 if flush_millis is None else int(np.asarray(flush_millis)),
        ".v2" if filename_suffix is None else filename_suffix,
    )


def create_noop_writer() -> SummaryWriter:
    """A writer that drops all summaries.

    Example:
      >>> import meshflow as tf
      >>> with tf.summary.create_noop_writer().as_default():
      ...     print(tf.summary.scalar("loss", 1.0, step=0).numpy())
      False
    """
    return _NoopWriter()


def flush(writer: SummaryWriter | None = None, name: str | None = None) -> None:
    """Hands what a writer keeps to its file.

    Args:
      writer: the writer; default the current one, if there is one.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> import glob, os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with tf.summary.create_file_writer(folder).as_default():
      ...         _ = tf.summary.scalar("loss", 0.5, step=0)
      ...         _ = tf.summary.flush()
      ...         len(glob.glob(os.path.join(folder, "events*")))
      1
    """
    found = state.writer if writer is None else writer
    if found is not None:
        found.flush()
