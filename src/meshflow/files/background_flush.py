"""Background flushes of large files during writes, so that the final flush is short."""

from __future__ import annotations

import concurrent.futures
import os
from types import TracebackType
from typing import IO, Any

_FLUSH_BYTES = 1 << 24
_flush = getattr(os, "fdatasync", os.fsync)


class BackgroundFlusher:
    """Context manager that flushes a file on a thread after every 16 MiB of new data.

    Args:
      file: A local file. A file without a descriptor, such as one in a store, is not flushed.

    Raises:
      OSError: A flush failed; raised at the end of the block.

    Example:
      >>> import os, tempfile
      >>> from meshflow.files.background_flush import BackgroundFlusher
      >>> with tempfile.TemporaryFile() as file, BackgroundFlusher(file) as flusher:
      ...     flusher.count_bytes(file.write(bytes(1 << 24)))
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._unflushed_bytes = file, 0
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self._flushes: list[concurrent.futures.Future[Any]] = []
        try:
            self._descriptor: int | None = file.fileno()
        except (AttributeError, OSError):
            self._descriptor = None

    def count_bytes(self, count: int) -> None:
        """Record that `count` more bytes were written, and start a flush when due."""
        self._unflushed_bytes += count
        if self._unflushed_bytes < _FLUSH_BYTES or self._descriptor is None:
            return
        self._unflushed_bytes = 0
        if self._pool is None:
            self._pool = concurrent.futures.ThreadPoolExecutor(1, "flush")
        self._flushes.append(self._pool.submit(_flush, self._descriptor))

    def __enter__(self) -> BackgroundFlusher:
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
            for flush in self._flushes:
                flush.result()
