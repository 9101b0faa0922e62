"""Files of events, which TensorBoard reads: records (`tf.io.TFRecordWriter`) of `Event` messages."""

from __future__ import annotations

import itertools
import os
import socket
import time
from typing import Any

from meshflow.files import gfile
from meshflow.io import protos
from meshflow.io.records import TFRecordWriter

__all__ = ["EventFile"]

_numbers = itertools.count()


class EventFile:
    """A new file of events.

    Args:
      folder: where, made when it is not there.
      suffix: the end of the file's name.

    Raises:
      ImportError: when the package protobuf is not installed.
    """

    def __init__(self, folder: str, suffix: str) -> None:
        self._event = protos.Event
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        gfile.makedirs(folder)
        self._records = TFRecordWriter(f"{folder}/{name}.{next(_numbers)}{suffix}")
        self.add(0, file_version="brain.Event:2", source_metadata={"writer": "meshflow.summary"})
        self.flush()

    def add(self, step: int, **what: Any) -> None:
        """Writes an event.

        Args:
          step: its step.
          **what: its content: `summary` or `graph_def`.
        """
        event = self._event(wall_time=time.time(), step=step, **what)
        self._records.write(event.SerializeToString())

    def flush(self) -> None:
        """Hands what is kept to the file."""
        self._records.flush()

    def close(self) -> None:
        """Ends the file."""
        self._records.close()
