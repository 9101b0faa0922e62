"""A parameter server in another process: the service there, and its proxy in this process."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from meshflow.core.runtime.context import writing
from meshflow.distribute.parameter_server import placed
from meshflow.distribute.parameter_server.closures import dumps, loads
from meshflow.distribute.parameter_server.journal import Journal
from meshflow.distribute.parameter_server.messages import (
    Ballot,
    Change,
    Decision,
    Done,
    Push,
    Rows,
    Wish,
)
from meshflow.distribute.parameter_server.server import Held, ParameterServer
from meshflow.distribute.parameter_server.wire import Caller, Lost, Wire, connect
from meshflow.environment.types import Array, ArrayLike
from meshflow.profiler.annotations import Trace

# Larger values are copied before they are sent.
_LARGE = 1 << 16

__all__ = ["RemoteServer", "ServerService"]


class ServerLocator(Protocol):
    """Lookup of a server's current process."""

    def __call__(self, index: int, known: int, /) -> tuple[str, int]:
        """Return the address and the number of starts of a server, once it exceeds `known`."""


class ServerService:
    """Methods of a parameter server for callers in other processes.

    Args:
      index: Index of the server.
      folder: Folder of its journal, or None.
    """

    def __init__(self, index: int, folder: str | None) -> None:
        self._server = ParameterServer(index, copies_on_write=placed.possible())
        # Counter of the calls of `exchange`, for profiles.
        self._asked = itertools.count()
        # The pickles of constraints and optimizers, for the journal.
        self._constraints: dict[int, bytes] = {}
        self._optimizers: dict[int, bytes] = {}
        # Values that workers read in shared memory. This second reference keeps programs from
        # updating them in place.
        self._away: dict[int, Array] = {}
        self._calls: dict[str, Callable[..., Any]] = {
            "create": self._create,
            "write": self._server.write,
            "adopt": self._adopt,
            "stage": self._server.stage,
            "exchange": self._server.exchange,
        }
        self._journal: Journal | None = None
        if folder is not None:
            self._journal = Journal(folder)
            self._recover(self._journal)

    def methods(self, connection: Wire) -> dict[str, Callable[..., Any]]:
        """Return the methods that may be called, by name.

        Args:
          connection: The connection of the caller.
        """
        logged = {name: functools.partial(self._noted, name) for name in self._calls}
        exchange = functools.partial(self._exchange, connection)
        return {**logged, "read": self._server.read, "exchange": exchange}

    def _noted(self, method: str, *args: Any) -> Any:
        """Write a call that changes the state to the journal, and then execute it."""
        if self._journal is None:
            return self._calls[method](*args)
        with writing:
            self._journal.append((method, args))
            result = self._calls[method](*args)
            state_bytes = self._server.size
            if self._journal.size > max(4 * state_bytes, self._journal.least):
                self._journal.snapshot((self._server.state(), self._constraints, self._optimizers))
        return result

    def _exchange(
        self, connection: Wire, push: Push | Decision | None, wish: Wish, floor: int
    ) -> Change:
        server = self._server
        with writing, Trace("exchange", step_num=next(self._asked), _r=1):
            if push is None or server.knows(push.closure):
                reply = server.exchange(push, wish, floor, connection.lend)
            else:
                # The record contains the push, but not the values that the worker requests.
                with connection.placing(server.renewed(push, wish)):
                    applied = self._noted("exchange", push, Wish(), floor)
                reply = server.exchange(None, wish, floor, connection.lend)
                reply.staleness, reply.refused = applied.staleness, applied.refused
            for key, value in reply.values.items():
                variable = server.resolve(key)
                assert isinstance(variable, Held)
                if self._away.get(key) is not variable._value:
                    self._away.pop(key, None)
                if isinstance(value, Rows) or value.nbytes < _LARGE:
                    continue
                if connection.fits(value):
                    self._away[key] = value
                    continue
                # The next update can change the value in place while the copy is sent.
                reply.values[key] = copied = connection.lend(value.shape, value.dtype)
                np.copyto(copied, np.asarray(value))
        return reply

    def _recover(self, journal: Journal) -> None:
        records = journal.recover()
        snapshot = next(records)
        if snapshot is not None:
            state, self._constraints, self._optimizers = snapshot
            constraints = {key: loads(data, {}) for key, data in self._constraints.items()}
            self._server.restore(state, constraints)
            for key, data in self._optimizers.items():
                self._adopt(key, data)
        for method, args in records:
            # An error was reported to the caller when the call was first executed.
            with contextlib.suppress(Exception):
                self._calls[method](*args)

    def _create(self, key: int, value: Array, name: str, constraint: bytes | None) -> None:
        if constraint is not None:
            self._constraints[key] = constraint
        self._server.create(key, value, name, None if constraint is None else loads(constraint, {}))

    def _adopt(self, key: int, optimizer: bytes) -> None:
        self._optimizers[key] = optimizer
        resolve: dict[str, Callable[..., Any]] = {
            "variable": lambda key, _: self._server.resolve(key),
            "strategy": lambda: None,
        }
        self._server.adopt(key, loads(optimizer, resolve))


class RemoteServer:
    """Proxy of a parameter server in another process.

    If the server dies, calls wait for its restart and are repeated.

    Args:
      index: Index of the server.
      locate: Function that returns the address of the server and its number of starts, once that
        exceeds a known number.
      secret: Secret of the job.

    Attributes:
      sent: Bytes sent on earlier connections.
      received: Bytes received on earlier connections.
    """

    def __init__(self, index: int, locate: ServerLocator, secret: str) -> None:
        self.number = index
        self._where, self._secret = locate, secret
        self._caller: Caller | None = None
        self._begun = self._order = 0
        self._lock = threading.RLock()
        self.sent = self.received = 0

    def create(
        self, key: int, value: Array, name: str, constraint: Callable[..., Any] | None = None
    ) -> None:
        """See `ParameterServer.create`."""
        data = None if constraint is None else dumps(constraint, description="the constraint")
        self._call("create", key, value, name, data)

    def read(self, keys: Sequence[int]) -> tuple[int, dict[int, Array]]:
        """See `ParameterServer.read`."""
        clock_and_values: tuple[int, dict[int, Array]] = self._call("read", tuple(keys))
        return clock_and_values

    def write(self, key: int, value: ArrayLike, adds: bool = False) -> int:
        """See `ParameterServer.write`."""
        with self._lock:
            self._order += 1
            clock: int = self._call("write", key, value, adds, self._order)
        return clock

    def adopt(self, key: int, optimizer: bytes) -> None:
        """See `ParameterServer.add_optimizer`.

        Args:
          key: Key of the optimizer.
          optimizer: Pickle of the optimizer, with persistent ids for hosted variables.
        """
        self._call("adopt", key, optimizer)

    def stage(self, push: Push, ballot: Ballot, floor: int = 0) -> Done | None:
        """See `ParameterServer.stage`."""
        applied: Done | None = self._call("stage", push, ballot, floor)
        return applied

    def exchange(self, push: Push | Decision | None, wish: Wish, floor: int = 0) -> Change:
        """See `ParameterServer.exchange`."""
        reply: Change = self._call("exchange", push, wish, floor)
        return reply

    def _call(self, method: str, *args: Any) -> Any:
        """Call a method of the server, repeating the call after a restart.

        The server recognizes calls that it has executed already.
        """
        with self._lock:
            while True:
                if self._caller is None:
                    address, self._begun = self._where(self.number, self._begun)
                try:
                    if self._caller is None:
                        self._caller = Caller(connect(address, self._secret))
                    return self._caller.call(method, *args)
                except Lost:
                    self.close()

    @property
    def wire(self) -> Wire | None:
        """Return the connection, or None before the first call and after the loss of the server."""
        caller = self._caller
        return None if caller is None else caller.wire

    def close(self) -> None:
        """Close the connection."""
        caller, self._caller = self._caller, None
        if caller is not None:
            self.sent += caller.wire.sent
            self.received += caller.wire.received
            caller.wire.close()

    @property
    def traffic(self) -> tuple[int, int]:
        """Return the numbers of bytes sent and received."""
        connection = self.wire
        return (
            (self.sent, self.received)
            if connection is None
            else (self.sent + connection.sent, self.received + connection.received)
        )
