"""TensorBoard's event files: record files of `Event` messages."""

from __future__ import annotations

import itertools
import os
import socket
import time
from typing import Any

from meshflow.files import gfile
from meshflow.io import protos
from meshflow.io.records import TFRecordWriter

_file_counter = itertools.count()


class EventFile:
    """A new event file.

    Args:
      folder: Folder of the file; it is created if it does not exist.
      suffix: Ending of the file name.

    Raises:
      ImportError: The package protobuf is not installed.
    """

    def __init__(self, folder: str, suffix: str) -> None:
        self._event_class = protos.Event
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        gfile.makedirs(folder)
        self._records = TFRecordWriter(f"{folder}/{name}.{next(_file_counter)}{suffix}")
        self.add(0, file_version="brain.Event:2", source_metadata={"writer": "meshflow.summary"})
        self.flush()

    def add(self, step: int, **content: Any) -> None:
        """Write an event.

        Args:
          step: Training step of the event.
          **content: Content of the event: a field of the message `Event`, such as `summary` or `graph_def`.
        """
        event = self._event_class(wall_time=time.time(), step=step, **content)
        self.write(event.SerializeToString())

    def write(self, event: bytes) -> None:
        """Write a serialized event."""
        self._records.write(event)

    def flush(self) -> None:
        """Pass buffered events to the file."""
        self._records.flush()

    def close(self) -> None:
        """Close the file."""
        self._records.close()
