"""Requests that wait are joined: one call of the model for many."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

import numpy as np

__all__ = ["Batcher", "rows_of_call", "sizes_up_to"]

Arrays = Mapping[str, np.ndarray]
# The shapes of rows, the rows, how many, and who waits for their results.
_Item = tuple[Any, Arrays, int, asyncio.Future[Arrays]]


def sizes_up_to(most: int) -> list[int]:
    """The numbers of rows that joined calls have, so that few programs are compiled.

    Args:
      most: the greatest.

    Example:
      >>> from meshflow.serving.batching import sizes_up_to
      >>> sizes_up_to(12)
      [1, 2, 4, 8, 12]
    """
    found = [1]
    while found[-1] * 2 < most:
        found.append(found[-1] * 2)
    return found if most <= 1 else [*found, most]


def rows_of_call(rows: int, most: int) -> int:
    """How many rows the call for some rows has.

    Args:
      rows: how many are asked for.
      most: the greatest number of joined calls. Those of one large request have the next number of three binary digits
        and zeros: at most a quarter is added, and four programs are compiled until the rows are twice as many.

    Example:
      >>> from meshflow.serving.batching import rows_of_call
      >>> [rows_of_call(n, 32) for n in (3, 32, 33, 64, 1000)]
      [4, 32, 40, 64, 1024]
    """
    if rows <= most:
        return next(size for size in sizes_up_to(most) if size >= rows)
    step = 1 << max(rows.bit_length() - 3, 0)
    return -(-rows // step) * step


class Batcher:
    """Calls a function with the rows of several requests at once.

    While one call runs, requests gather for the next, so that nobody waits who is alone. With `wait`
    seconds, a call also waits for more rows. A request that is larger than `most` is a call of its own.

    Args:
      run: takes and gives arrays by name, all of as many rows.
      executor: where it runs.
      most: the greatest number of rows of a call for several requests.
      wait: seconds that a call waits for more.
    """

    def __init__(
        self, run: Callable[[Arrays], Arrays], executor: Executor, most: int, wait: float
    ) -> None:
        self._run, self._executor, self._most, self._wait = run, executor, most, wait
        self._waiting: deque[_Item] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._came = asyncio.Event()
        self.calls = self.rows = 0

    async def submit(self, arrays: Arrays) -> Arrays:
        """The results for a request's rows, in a call of its own or with others."""
        rows = len(next(iter(arrays.values())))
        key = tuple((name, a.shape[1:]) for name, a in arrays.items())
        future: asyncio.Future[Arrays] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, arrays, rows, future))
        self._came.set()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        while self._waiting:
            if self._wait:
                await self._gather()
            group = self._next()
            if group:
                await self._answer(group)

    async def _gather(self) -> None:
        """Waits until there is a whole batch, but not longer than `wait`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._wait
        while sum(rows for _, _, rows, _ in self._waiting) < self._most:
            self._came.clear()
            try:
                await asyncio.wait_for(self._came.wait(), end - loop.time())
            except TimeoutError:
                return

    def _next(self) -> list[_Item]:
        """Requests of the same shapes, in the order they came, as many as fit."""
        group: list[_Item] = []
        left: deque[_Item] = deque()
        total = 0
        while self._waiting:
            item = self._waiting.popleft()
            if item[3].cancelled():
                continue
            fits = not group or (item[0] == group[0][0] and total + item[2] <= self._most)
            (group if fits else left).append(item)
            total += item[2] if fits else 0
        self._waiting = left
        return group

    async def _answer(self, group: list[_Item]) -> None:
        """Runs requests together, or one by one where that fails: one request's values may be at fault."""
        rows = sum(item[2] for item in group)
        padded = rows_of_call(rows, self._most)
        feed = {n: _joined([item[1][n] for item in group], padded - rows) for n in group[0][1]}
        try:
            results = await self._called(feed, rows)
        except Exception as error:
            if len(group) == 1:
                _give(group[0], error)
                return
            results = {}
        if not results or any(a.shape[:1] != (padded,) for a in results.values()):
            for item in group:
                try:
                    _give(item, await self._called(item[1], item[2]))
                except Exception as error:
                    _give(item, error)
            return
        at = 0
        for item in group:
            _give(item, {n: a[at : at + item[2]] for n, a in results.items()})
            at += item[2]

    async def _called(self, feed: Arrays, rows: int) -> Arrays:
        self.calls += 1
        self.rows += rows
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._run, feed)


def _give(item: _Item, result: Arrays | Exception) -> None:
    """Tells who waits for a request."""
    future = item[3]
    if future.done():
        return  # nobody waits any more
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def _joined(parts: list[np.ndarray], more: int) -> np.ndarray:
    """Arrays one after the other, and the last row again as often as is asked for."""
    if more:
        # A row that is known to be valid: zeros may be no index.
        parts = [*parts, np.repeat(parts[-1][-1:], more, axis=0)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
