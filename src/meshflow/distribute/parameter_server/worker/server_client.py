"""Client of a worker for all servers: pulls, pushes, and the choice between attempts."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any, ParamSpec, TypeVar

from meshflow.core.runtime.annotations import COMMUNICATION, region
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import AbortedError, ResourceExhaustedError
from meshflow.distribute.parameter_server.server.attempts import FAILED
from meshflow.distribute.parameter_server.transport.connection import ConnectionLostError
from meshflow.distribute.parameter_server.transport.messages import (
    Ballot,
    CompletedAttempt,
    Decision,
    ExchangeReply,
    PullRequest,
    Push,
    ServerInterface,
    VariableRows,
)
from meshflow.distribute.parameter_server.variables.hosted_variable import ClosureContext
from meshflow.environment.types import Array

# If the pushes for the other servers have more bytes in total, staging costs less than forwarding
# them to the first server.
MAX_FORWARDED_BYTES = 1 << 18

_P = ParamSpec("_P")
_R = TypeVar("_R")


class AttemptFailedError(AbortedError):
    """The servers have recorded that a closure has failed in another attempt, and apply none."""


class PartialClosureError(ResourceExhaustedError):
    """A server cannot write a closure, which others may have applied. It ends the job."""


class ServerClient:
    """Client of one worker for all servers. It performs one exchange at a time.

    Args:
      servers: The servers.
      are_remote: Whether the servers are in other processes, so that concurrent calls save time.

    Attributes:
      clocks: Clock of each server at the last pull.
      pulled_keys: Keys of the variables that are pulled, by server.
      replies: Replies that the worker has not processed yet, by exchange and server.
    """

    def __init__(self, servers: Sequence[ServerInterface], are_remote: bool = False) -> None:
        self._servers = servers
        self._map: Callable[..., Any] = map
        if are_remote and len(servers) > 1:
            self._map = ThreadPoolExecutor(len(servers), "meshflow-exchange").map
        self.clocks = [-1] * len(servers)
        self.pulled_keys: list[set[int]] = [set() for _ in servers]
        self.replies: deque[list[ExchangeReply]] = deque()
        # By server, the closures for which it stores the pushes of other servers, although these
        # have applied them by now.
        self._settled: list[list[int]] = [[] for _ in servers]
        self._last_traffic = (0, 0)
        self._lock = threading.Lock()

    def pull(self, floor: int) -> None:
        """Pull the values that have changed from all servers.

        Args:
          floor: Closures with smaller ids are finished.
        """
        with self._lock:
            self._exchange_all([None] * len(self._servers), floor)

    def pull_variable(self, server_index: int, key: int) -> Array:
        """Pull a variable that was never pulled before.

        Args:
          server_index: Index of its server.
          key: Key of the variable.
        """
        reply = call_outside_closure(
            self._servers[server_index].exchange, None, PullRequest(unknown=(key,))
        )
        # The client's clock is not advanced, because the other changes have not been pulled.
        self.pulled_keys[server_index].add(key)
        value = reply.values[key]
        assert not isinstance(value, VariableRows)
        return value

    def count_traffic(self) -> tuple[int, int]:
        """Return the numbers of bytes sent to and received from servers since the last call."""
        with self._lock:
            counts = [server.traffic for server in self._servers]
            total = sum(c[0] for c in counts), sum(c[1] for c in counts)
            last, self._last_traffic = self._last_traffic, total
            return total[0] - last[0], total[1] - last[1]

    def push(
        self, closure: int, attempt: int, floor: int, pushes: Sequence[Push | None]
    ) -> tuple[list[ExchangeReply], bool]:
        """Have the servers apply the writes of a closure, all of the same attempt.

        Each server gets one message, or two if several pushes are large or if there were other
        attempts.

        Args:
          closure: Id of the closure.
          attempt: Id of the attempt.
          floor: Closures with smaller ids are finished.
          pushes: The push for each server, or None.

        Returns:
          The replies, and whether some push had been applied before.
        """
        order = None if attempt else _choose_order(pushes)
        replies, chosen_attempt = self._decide(closure, attempt, (0, attempt), floor, pushes, order)
        if chosen_attempt == FAILED:
            raise AttemptFailedError(f"An earlier attempt at closure {closure} has failed.")
        return replies, chosen_attempt != attempt or any(c.repeated for c in replies)

    def settle(self, closure: int, attempt: int, floor: int) -> None:
        """Have the servers complete another attempt at a closure, or apply none of them.

        Args:
          closure: Id of the closure.
          attempt: Id of an attempt that has failed.
          floor: Closures with smaller ids are finished.
        """
        nothing = [Push(closure, attempt=FAILED) for _ in self._servers]
        self._decide(closure, FAILED, (1, attempt), floor, nothing, None)

    def _decide(
        self,
        closure: int,
        attempt: int,
        ballot: Ballot,
        floor: int,
        pushes: Sequence[Push | None],
        order: Sequence[int] | None,
    ) -> tuple[list[ExchangeReply], int]:
        """Push the writes of an attempt in an order of the servers or, without one, in two phases.

        Returns:
          The replies, and the id of the attempt that was applied.

        Raises:
          PartialClosureError: If the disk of a server stays full.
        """
        try:
            return self._decide_repeatedly(closure, attempt, ballot, floor, pushes, order)
        except ConnectionLostError:
            raise
        except OSError as error:
            raise PartialClosureError(
                f"Closure {closure} may be applied on some parameter servers only, because one cannot write: {error}. "
                "The job has ended. Make room on the disk, and continue from the last checkpoint."
            ) from error

    def _decide_repeatedly(
        self,
        closure: int,
        attempt: int,
        ballot: Ballot,
        floor: int,
        pushes: Sequence[Push | None],
        order: Sequence[int] | None,
    ) -> tuple[list[ExchangeReply], int]:
        chosen_attempt = attempt
        with self._lock, region(COMMUNICATION, "exchange"):
            while True:
                if order is None:
                    if ballot > (0, 0):
                        # Earlier attempts may have staged pushes on the other servers.
                        pushes = [p or Push(closure, attempt=attempt) for p in pushes]
                    chosen_attempt, messages = self._stage_all(
                        closure, attempt, pushes, ballot, floor
                    )
                    replies = self._exchange_all(messages, floor)
                    if any(c.repeated for c in replies):
                        # The servers may have applied another attempt after the staging.
                        chosen_attempt, _ = self._stage_all(closure, attempt, pushes, ballot, floor)
                else:
                    replies = self._push_in_order(pushes, order, floor)
                refusals = [c.refused for c in replies if c.refused is not None]
                if not refusals:
                    return replies, chosen_attempt
                order, ballot = None, (max(refusals) + 1, ballot[1])

    def _stage_all(
        self,
        closure: int,
        attempt: int,
        pushes: Sequence[Push | None],
        ballot: Ballot,
        floor: int,
    ) -> tuple[int, list[Decision | None]]:
        """Stage all pushes, and return the attempt to apply and the decision for each server."""
        options = ballot, floor
        applied = list(self._map(self._stage_one, self._servers, pushes, repeat(options)))
        chosen_attempt = next((d.attempt for d in applied if d is not None), attempt)
        for index, push in itertools.chain(*(d.others.items() for d in applied if d is not None)):
            if applied[index] is None:
                self._stage_one(self._servers[index], push, options)
        decision = Decision(closure, chosen_attempt, ballot)
        return chosen_attempt, [None if p is None else decision for p in pushes]

    @staticmethod
    def _stage_one(
        server: ServerInterface, push: Push | None, options: tuple[Ballot, int]
    ) -> CompletedAttempt | None:
        if push is None:
            return None
        return call_outside_closure(server.stage, push, *options)

    def _push_in_order(
        self, pushes: Sequence[Push | None], order: Sequence[int], floor: int
    ) -> list[ExchangeReply]:
        """Send all pushes to one server, and then the others' pushes to them; see `attempts`.

        Args:
          pushes: The push for each server.
          order: Indices of the servers in order, or nothing if only one server has a push.
          floor: Closures with smaller ids are finished.
        """
        if not order:
            return [_refuse_repeated(reply) for reply in self._exchange_all(pushes, floor)]
        first, *others = order
        push = pushes[first]
        assert push is not None
        other_pushes = {n: p for n in others if (p := pushes[n]) is not None}
        message = dataclasses.replace(push, others=other_pushes)
        reply = _refuse_repeated(
            self._exchange_one(self._servers[first], message, self._make_request(first), floor)
        )
        if reply.refused is not None:
            return [reply]
        requests = [(self._servers[n], pushes[n], self._make_request(n)) for n in others]
        other_replies = self._map(self._exchange_one, *zip(*requests, strict=True), repeat(floor))
        replies = dict(zip(others, other_replies, strict=True))
        if all(c.refused is None for c in replies.values()):
            self._settled[first].append(push.closure)
        return self._record_replies([replies.get(n, reply) for n in range(len(pushes))])

    def _exchange_all(
        self, pushes: Sequence[Push | Decision | None], floor: int
    ) -> list[ExchangeReply]:
        requests = [self._make_request(index) for index in range(len(self._servers))]
        replies = self._map(self._exchange_one, self._servers, pushes, requests, repeat(floor))
        return self._record_replies(list(replies))

    def _make_request(self, index: int) -> PullRequest:
        settled, self._settled[index] = self._settled[index], []
        return PullRequest(
            self.clocks[index], tuple(self.pulled_keys[index]), settled=tuple(settled)
        )

    def _record_replies(self, replies: list[ExchangeReply]) -> list[ExchangeReply]:
        self.clocks = [change.clock for change in replies]
        self.replies.append(replies)
        return replies

    @staticmethod
    def _exchange_one(
        server: ServerInterface, push: Push | Decision | None, wish: PullRequest, floor: int
    ) -> ExchangeReply:
        return call_outside_closure(server.exchange, push, wish, floor)


def _refuse_repeated(reply: ExchangeReply) -> ExchangeReply:
    """Mark a reply as refused if the push had been applied before.

    It may have been applied by another attempt, which has other pushes for the other servers.
    """
    if reply.repeated:
        reply.refused = 0
    return reply


def _choose_order(pushes: Sequence[Push | None]) -> list[int] | None:
    """Return the order of the servers, of which the one with the largest push is the first.

    The order is empty if at most one server has a push, and None if the first server would get too
    large pushes for the others.
    """
    sizes = {n: push.nbytes for n, push in enumerate(pushes) if push is not None}
    if len(sizes) < 2:
        return []
    first = max(sizes, key=lambda n: sizes[n])
    if sum(sizes.values()) - sizes[first] > MAX_FORWARDED_BYTES:
        return None
    return [first, *(n for n in range(len(pushes)) if n != first)]


@contextlib.contextmanager
def closure_scope(running: ClosureContext | None) -> Iterator[None]:
    """Set the closure that this thread runs.

    Args:
      running: The closure, or None to run code outside closures.
    """
    saved, context.worker_closure = context.worker_closure, running
    try:
        yield
    finally:
        context.worker_closure = saved


def call_outside_closure(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call a function outside the current closure.

    A server in this process, or the constructor of a hosted variable, must not see the closure.

    Args:
      function: The function.
      *args: Its arguments.
      **kwargs: Its keyword arguments.
    """
    with closure_scope(None):
        return function(*args, **kwargs)
