"""What a worker says to its servers, and what it hears: pulls, pushes, and which attempt at a closure they do."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any

from meshflow.core.runtime.annotations import COMMUNICATION, region
from meshflow.core.runtime.context import context
from meshflow.distribute.parameter_server.messages import (
    Ballot,
    Change,
    Decision,
    Done,
    Push,
    Wish,
)

__all__ = ["Exchanges", "entered", "outside"]

# A server hears of so many bytes that others are to do: two messages to each cost as much as copying them.
TOLD = 1 << 18


class Exchanges:
    """The exchanges of one worker with its servers, one at a time.

    Args:
      servers: the servers, each with `exchange` and `stage`.
      apart: whether they are in other processes, and are asked at the same time.

    Attributes:
      clocks: each server's clock of what was pulled.
      known: by server, the variables that are pulled.
      arrived: answers that nobody has taken yet.
    """

    def __init__(self, servers: Sequence[Any], apart: bool = False) -> None:
        self._servers = servers
        self._all: Callable[..., Any] = map
        if apart and len(servers) > 1:
            self._all = ThreadPoolExecutor(len(servers), "meshflow-exchange").map
        self.clocks = [-1] * len(servers)
        self.known: list[set[int]] = [set() for _ in servers]
        self.arrived: deque[list[Change]] = deque()
        # By server, closures that it was told first of, and does not know yet that the others' parts are done.
        self._settled: list[list[int]] = [[] for _ in servers]
        self._counted = (0, 0)
        self._lock = threading.Lock()

    def pull(self, floor: int) -> None:
        """Asks all servers for what has changed.

        Args:
          floor: closures with smaller numbers are over.
        """
        with self._lock:
            self._ask_all([None] * len(self._servers), floor)

    def first(self, number: int, key: int) -> Any:
        """The value of a variable that was never pulled before.

        Args:
          number: the server that has it.
          key: the variable.
        """
        change = outside(self._servers[number].exchange, None, Wish(unknown=(key,)))
        # The clock stays: what else has changed since is pulled with everything.
        self.known[number].add(key)
        return change.values[key]

    def traffic(self) -> tuple[int, int]:
        """Bytes sent to servers and received from them since the last call."""
        with self._lock:
            counts = [server.traffic for server in self._servers]
            now = sum(c[0] for c in counts), sum(c[1] for c in counts)
            before, self._counted = self._counted, now
            return now[0] - before[0], now[1] - before[1]

    def push(
        self, closure: int, attempt: int, floor: int, pushes: Sequence[Push | None]
    ) -> tuple[list[Change], bool]:
        """Has servers do what a closure wrote, all of one attempt; their answers, and whether it was done before.

        One message goes to each server, and two where several have much to do, or there were other attempts.

        Args:
          closure: the closure's number.
          attempt: the attempt's.
          floor: closures with smaller numbers are over.
          pushes: what each server is to do.
        """
        with self._lock, region(COMMUNICATION, "exchange"):
            ballot, chosen = (0, attempt), attempt
            order = None if attempt else _in_turn(pushes)
            while True:
                if order is None:
                    chosen, messages = self._staged(closure, pushes, ballot, floor)
                    changes = self._ask_all(messages, floor)
                else:
                    changes = self._ask_in_turn(pushes, order, floor)
                refused = [c.refused for c in changes if c.refused is not None]
                if not refused:
                    return changes, chosen != attempt or any(c.repeated for c in changes)
                order, ballot = None, (max(refused) + 1, attempt)

    def _staged(
        self, closure: int, pushes: Sequence[Push | None], ballot: Ballot, floor: int
    ) -> tuple[int, list[Decision | None]]:
        """The attempt that is to be done, and what tells servers so."""
        attempt = ballot[1]
        if ballot > (0, 0):
            # Other attempts may have something for other servers.
            pushes = [p or Push(closure, attempt=attempt) for p in pushes]
        rest = ballot, floor
        done = list(self._all(self._stage, self._servers, pushes, repeat(rest)))
        chosen = next((d.attempt for d in done if d is not None), attempt)
        for number, part in itertools.chain(*(d.others.items() for d in done if d is not None)):
            if done[number] is None:
                self._stage(self._servers[number], part, rest)
        decision = Decision(closure, chosen, ballot)
        return chosen, [None if p is None else decision for p in pushes]

    @staticmethod
    def _stage(server: Any, push: Push | None, rest: tuple[Ballot, int]) -> Done | None:
        if push is None:
            return None
        done: Done | None = outside(server.stage, push, *rest)
        return done

    def _ask_in_turn(
        self, pushes: Sequence[Push | None], order: Sequence[int], floor: int
    ) -> list[Change]:
        """Has one server do its part, which then knows what others are to do, and then those; see `attempts`.

        Args:
          pushes: what each server is to do.
          order: the one that is asked first, if others have something to do; all of them otherwise.
          floor: closures with smaller numbers are over.
        """
        if not order:
            return [_doubted(change) for change in self._ask_all(pushes, floor)]
        first, *others = order
        push = pushes[first]
        assert push is not None
        known = {n: p for n in others if (p := pushes[n]) is not None}
        message = dataclasses.replace(push, others=known)
        change = _doubted(self._ask(self._servers[first], message, self._wish(first), floor))
        if change.refused is not None:
            return [change]
        asked = [(self._servers[n], pushes[n], self._wish(n)) for n in others]
        answers = self._all(self._ask, *zip(*asked, strict=True), repeat(floor))
        changes = dict(zip(others, answers, strict=True))
        if all(c.refused is None for c in changes.values()):
            self._settled[first].append(push.closure)
        return self._heard([changes.get(n, change) for n in range(len(pushes))])

    def _ask_all(self, pushes: Sequence[Push | Decision | None], floor: int) -> list[Change]:
        wishes = [self._wish(number) for number in range(len(self._servers))]
        answers = self._all(self._ask, self._servers, pushes, wishes, repeat(floor))
        return self._heard(list(answers))

    def _wish(self, number: int) -> Wish:
        settled, self._settled[number] = self._settled[number], []
        return Wish(self.clocks[number], tuple(self.known[number]), settled=tuple(settled))

    def _heard(self, changes: list[Change]) -> list[Change]:
        self.clocks = [change.clock for change in changes]
        self.arrived.append(changes)
        return changes

    @staticmethod
    def _ask(server: Any, push: Push | Decision | None, wish: Wish, floor: int) -> Change:
        change: Change = outside(server.exchange, push, wish, floor)
        return change


def _doubted(change: Change) -> Change:
    """An answer, refused where the push had been done: perhaps by another attempt, which has something else for others."""
    if change.repeated:
        change.refused = 0
    return change


def _in_turn(pushes: Sequence[Push | None]) -> list[int] | None:
    """In which order servers are asked: first the one with the largest part, and no order where only one has any.

    None where the first one would get too much besides its own part.
    """
    sizes = {n: push.nbytes for n, push in enumerate(pushes) if push is not None}
    if len(sizes) < 2:
        return []
    first = max(sizes, key=lambda n: sizes[n])
    if sum(sizes.values()) - sizes[first] > TOLD:
        return None
    return [first, *(n for n in range(len(pushes)) if n != first)]


@contextlib.contextmanager
def entered(running: Any) -> Iterator[None]:
    """What runs inside is a part of a closure, or of none.

    Args:
      running: the closure, as a worker runs it; None for none.
    """
    saved, context.closure = context.closure, running
    try:
        yield
    finally:
        context.closure = saved


def outside(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls what must not find the closure: a server, or a variable's constructor, in one process with the worker.

    Args:
      function: the function.
      *args: its arguments.
      **kwargs: its keyword arguments.
    """
    with entered(None):
        return function(*args, **kwargs)
