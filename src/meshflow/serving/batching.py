"""Batching of concurrent requests into single calls of the model."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
# The names and row shapes of a request, its arrays, its number of rows, and the future of its results.
_Request = tuple[tuple[Any, ...], Arrays, int, asyncio.Future[Arrays]]


def list_batch_sizes(max_rows: int) -> list[int]:
    """Return the batch sizes that are compiled; rounding up to them limits the number of programs.

    Args:
      max_rows: Largest batch size.

    Example:
      >>> from meshflow.serving.batching import list_batch_sizes
      >>> list_batch_sizes(12)
      [1, 2, 4, 8, 12]
    """
    sizes = [1]
    while sizes[-1] * 2 < max_rows:
        sizes.append(sizes[-1] * 2)
    return sizes if max_rows <= 1 else [*sizes, max_rows]


def round_up_rows(rows: int, max_rows: int) -> int:
    """Return the number of rows that a call is padded to.

    Args:
      rows: Number of requested rows.
      max_rows: Largest batch size. A single larger request is rounded up to a number with three
        significant binary digits: this adds at most a quarter, and four programs are compiled per
        power of two.

    Example:
      >>> from meshflow.serving.batching import round_up_rows
      >>> [round_up_rows(n, 32) for n in (3, 32, 33, 64, 1000)]
      [4, 32, 40, 64, 1024]
    """
    if rows <= max_rows:
        return next(size for size in list_batch_sizes(max_rows) if size >= rows)
    step = 1 << max(rows.bit_length() - 3, 0)
    return -(-rows // step) * step


class Batcher:
    """Queue that answers several requests with one call of a function.

    While a call runs, new requests accumulate for the next call, so that a single request is never
    delayed. With `wait` seconds, a call also waits for more rows. A request with more than
    `max_rows` rows gets its own call.

    Args:
      run: Function from arrays by name to arrays by name, all with the same number of rows.
      executor: Executor of the calls.
      max_rows: Largest number of rows of a call for several requests.
      wait: Seconds that a call waits for more rows.
    """

    def __init__(
        self, run: Callable[[Arrays], Arrays], executor: Executor, max_rows: int, wait: float
    ) -> None:
        self._run, self._executor, self._max_rows, self._wait = run, executor, max_rows, wait
        self._waiting: deque[_Request] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._new_request = asyncio.Event()
        self.calls = self.rows = 0

    async def submit(self, arrays: Arrays) -> Arrays:
        """Return the results for the rows of a request, which may share a call with others."""
        rows = len(next(iter(arrays.values())))
        key = tuple((name, a.shape[1:]) for name, a in arrays.items())
        future: asyncio.Future[Arrays] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, arrays, rows, future))
        self._new_request.set()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._run_batches())
        return await future

    async def _run_batches(self) -> None:
        while self._waiting:
            if self._wait:
                await self._wait_for_rows()
            group = self._take_batch()
            if group:
                await self._answer_batch(group)

    async def _wait_for_rows(self) -> None:
        """Wait until there is a full batch, but at most `wait` seconds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._wait
        while sum(rows for _, _, rows, _ in self._waiting) < self._max_rows:
            self._new_request.clear()
            try:
                await asyncio.wait_for(self._new_request.wait(), end - loop.time())
            except TimeoutError:
                return

    def _take_batch(self) -> list[_Request]:
        """Take requests with equal row shapes from the queue, in order, as many as fit."""
        batch: list[_Request] = []
        remaining: deque[_Request] = deque()
        total = 0
        while self._waiting:
            item = self._waiting.popleft()
            if item[3].cancelled():
                continue
            fits = not batch or (item[0] == batch[0][0] and total + item[2] <= self._max_rows)
            (batch if fits else remaining).append(item)
            total += item[2] if fits else 0
        self._waiting = remaining
        return batch

    async def _answer_batch(self, batch: list[_Request]) -> None:
        """Run a batch; if it fails, run its requests separately, because one may be invalid."""
        rows = sum(item[2] for item in batch)
        padded = round_up_rows(rows, self._max_rows)
        try:
            results = await self._call_model([item[1] for item in batch], rows, padded - rows)
        except Exception as error:
            if len(batch) == 1:
                _set_result(batch[0], error)
                return
            results = {}
        if not results or any(a.shape[:1] != (padded,) for a in results.values()):
            for item in batch:
                try:
                    _set_result(item, await self._call_model([item[1]], item[2]))
                except Exception as error:
                    _set_result(item, error)
            return
        offset = 0
        for item in batch:
            _set_result(item, {n: a[offset : offset + item[2]] for n, a in results.items()})
            offset += item[2]

    async def _call_model(self, feeds: list[Arrays], rows: int, padding: int = 0) -> Arrays:
        """Run the model on the rows of several requests."""
        self.calls += 1
        self.rows += rows

        def run_rows() -> Arrays:
            # Copying large arrays in the event loop would delay other requests.
            return self._run(
                {n: _concatenate_rows([feed[n] for feed in feeds], padding) for n in feeds[0]}
            )

        return await asyncio.get_running_loop().run_in_executor(self._executor, run_rows)


def _set_result(item: _Request, result: Arrays | Exception) -> None:
    """Complete the future of a request."""
    future = item[3]
    if future.done():
        return  # The client has disconnected.
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def _concatenate_rows(parts: list[np.ndarray], padding: int) -> np.ndarray:
    """Concatenate arrays, and repeat the last row `padding` times."""
    if padding:
        # The last row is known to be valid, while zeros may not be.
        parts = [*parts, np.repeat(parts[-1][-1:], padding, axis=0)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
