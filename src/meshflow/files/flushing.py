"""Large files go to the disk while they are still being written, so that the flush at their end has little left."""

from __future__ import annotations

import concurrent.futures
import os
from types import TracebackType
from typing import IO, Any

__all__ = ["Flushing"]

_BYTES = 1 << 24
_flush = getattr(os, "fdatasync", os.fsync)


class Flushing:
    """Flushes a file by a thread whenever so much more was written; a context in which it is written.

    Args:
      file: a file of this machine; others (stores') are left alone.

    Raises:
      OSError: at the end, what the flushes met.

    Example:
      >>> import os, tempfile
      >>> from meshflow.files.flushing import Flushing
      >>> with tempfile.TemporaryFile() as file, Flushing(file) as flushing:
      ...     flushing.wrote(file.write(bytes(1 << 24)))
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._waiting = file, 0
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self._begun: list[concurrent.futures.Future[Any]] = []
        try:
            self._descriptor: int | None = file.fileno()
        except (AttributeError, OSError):
            self._descriptor = None

    def wrote(self, count: int) -> None:
        """Notes that so many bytes more were written."""
        self._waiting += count
        if self._waiting < _BYTES or self._descriptor is None:
            return
        self._waiting = 0
        if self._pool is None:
            self._pool = concurrent.futures.ThreadPoolExecutor(1, "flush")
        self._begun.append(self._pool.submit(_flush, self._descriptor))

    def __enter__(self) -> Flushing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        if kind is None:
            for flush in self._begun:
                flush.result()
