"""Processes that parse requests and format responses, with a deadline and a limit of memory."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

from meshflow.core.runtime.errors import AbortedError, DeadlineExceededError, UnavailableError
from meshflow.core.runtime.worker_process import WorkerProcess
from meshflow.serving import codecs
from meshflow.serving.batching import Arrays

if sys.platform == "linux":
    import resource

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
# Arguments of this size are converted in the event loop, which takes a few milliseconds.
_MAX_INLINE_BYTES = 1 << 15
# Python's lists of the smallest values in JSON take up to 32 bytes for one byte of the text.
_MEMORY_RATIO, _MIN_MEMORY = 32, 1 << 30
_START_SECONDS = 60.0
# A process that still uses more memory after a call is replaced, to return it to the system.
_MAX_IDLE_MEMORY = 1 << 29


class CodecPool:
    """Worker processes that call functions of `codecs`.

    Args:
      processes: Number of processes; they start when they are needed.
      max_seconds: Maximum time of a call; afterwards its process is killed.
      max_bytes: Maximum size of a request; the memory of a process is limited to a multiple of it.
    """

    def __init__(self, processes: int, max_seconds: float, max_bytes: int) -> None:
        self._threads = ThreadPoolExecutor(processes, "codec")
        self._max_seconds = max_seconds
        self._max_memory = max(_MIN_MEMORY, _MEMORY_RATIO * max_bytes)
        self._own = threading.local()
        self._workers: set[WorkerProcess] = set()
        self._processes = processes
        self.failures = 0

    async def run(self, is_small: bool, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Return the result of a function.

        Args:
          is_small: Whether to call the function in this thread, because its arguments are small.
          function: A function that can be pickled, as its arguments and its result.
          *args: Its arguments.

        Raises:
          DeadlineExceededError: The call took too long.
          UnavailableError: The process died.
          MemoryError: The process has not enough memory.
        """
        if is_small:
            return function(*args)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._call, function, *args)

    @staticmethod
    def is_small_request(content: bytes | bytearray, encoding: str = "") -> bool:
        """Check whether a request is small enough to be parsed at once."""
        return not encoding and len(content) <= _MAX_INLINE_BYTES

    @staticmethod
    def is_small_result(arrays: Arrays) -> bool:
        """Check whether results are small enough to be formatted at once."""
        if sum(a.size for a in arrays.values()) * 8 > _MAX_INLINE_BYTES:
            return False
        texts = (a for a in arrays.values() if a.dtype == object)
        return sum(len(text) for a in texts for text in a.reshape(-1)) <= _MAX_INLINE_BYTES

    def start(self) -> None:
        """Start all processes in the background."""
        for _ in range(self._processes):
            self._threads.submit(self._get_worker)

    def close(self) -> None:
        """End all processes and their calls."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in list(self._workers):
            worker.process.kill()
            if worker.index is None:
                worker.stop()

    def _get_worker(self) -> WorkerProcess:
        """Return the worker of this thread."""
        worker: WorkerProcess | None = getattr(self._own, "worker", None)
        if worker is None:
            worker = WorkerProcess(pickle.dumps(_call_function), "meshflow serve")
            self._own.worker = worker
            self._workers.add(worker)
            # The imports of a process do not count as time of its first call.
            self._compute(
                worker, _START_SECONDS, codecs.decode_json_request, b"{}", "", 2, "predict", {}
            )
        return worker

    def _call(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call a function in the worker of this thread."""
        try:
            return self._compute(self._get_worker(), self._max_seconds, function, *args)
        except AbortedError as error:
            raise UnavailableError(str(error)) from None

    def _compute(
        self, worker: WorkerProcess, max_seconds: float, function: Callable[[*Ts], T], *args: *Ts
    ) -> T:
        """Call a function in a worker, which is ended if it does not return in time."""
        is_reusable = False
        try:
            worker.start(0, 0, (self._max_memory, function, args))
            if not worker.connection.poll(max_seconds):
                raise DeadlineExceededError(
                    f"The request or response was not converted within {max_seconds:g} seconds."
                )
            result, is_reusable = worker.receive_result()
        finally:
            self.failures += worker.index is not None
            if not is_reusable:
                del self._own.worker
                self._workers.discard(worker)
                worker.process.kill()
                worker.stop()
        if isinstance(result, Exception):
            raise result
        return result


def _call_function(
    max_memory: int, function: Callable[[*Ts], T], args: tuple[*Ts]
) -> tuple[T | Exception, bool]:
    """Call a function in a worker process.

    Returns:
      The result or the error, and whether the process can compute more.
    """
    if gc.isenabled():
        # JSON has no reference cycles, and searching for them takes most of the time of parsing.
        gc.disable()
        gc.freeze()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if sys.platform == "linux":
            resource.setrlimit(resource.RLIMIT_DATA, (max_memory, max_memory))
    result: T | Exception
    try:
        result = function(*args)
    except Exception as error:
        result = error.with_traceback(None)
        # The context could hold large arguments.
        result.__context__ = None
    gc.collect()
    return result, _count_resident_bytes() <= _MAX_IDLE_MEMORY


def _count_resident_bytes() -> int:
    """Return the memory of this process; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
