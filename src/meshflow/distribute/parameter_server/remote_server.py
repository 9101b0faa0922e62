"""A parameter server in another process: what it answers there, and what calls it here."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

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
from meshflow.distribute.parameter_server.server import ParameterServer
from meshflow.distribute.parameter_server.wire import Caller, Lost, Wire, connect
from meshflow.profiler.annotations import Trace

# From so many bytes on a value is copied before it is sent.
_LARGE = 1 << 16

__all__ = ["RemoteServer", "ServerService"]


class ServerService:
    """A parameter server's methods, for callers in other processes.

    Args:
      number: its number.
      folder: where it keeps its journal, or None.
    """

    def __init__(self, number: int, folder: str | None) -> None:
        self._server = ParameterServer(number, renews=placed.possible())
        # How often it was asked, for profiles.
        self._asked = itertools.count()
        # What came as pickles, for the journal.
        self._constraints: dict[int, bytes] = {}
        self._optimizers: dict[int, bytes] = {}
        # Values that workers have in the same memory: known twice, they are not changed in place.
        self._away: dict[int, Any] = {}
        self._calls: dict[str, Callable[..., Any]] = {
            "create": self._create,
            "write": self._server.write,
            "adopt": self._adopt,
            "stage": self._server.stage,
            "exchange": self._server.exchange,
        }
        self._journal = None
        if folder is not None:
            self._journal = Journal(folder)
            self._recover(self._journal)

    def methods(self, wire: Wire) -> dict[str, Callable[..., Any]]:
        """What may be called.

        Args:
          wire: the connection of who calls.
        """
        noted = {name: functools.partial(self._noted, name) for name in self._calls}
        exchange = functools.partial(self._exchange, wire)
        return {**noted, "read": self._server.read, "exchange": exchange}

    def _noted(self, method: str, *args: Any) -> Any:
        """Does what changes something, after it was written down."""
        if self._journal is None:
            return self._calls[method](*args)
        with writing:
            self._journal.append((method, args))
            done = self._calls[method](*args)
            state = self._server.size
            if self._journal.size > max(4 * state, self._journal.least):
                self._journal.snapshot((self._server.state(), self._constraints, self._optimizers))
        return done

    def _exchange(self, wire: Wire, push: Push | Decision | None, wish: Wish, floor: int) -> Change:
        server = self._server
        with writing, Trace("exchange", step_num=next(self._asked), _r=1):
            if push is None or server.knows(push.closure):
                change = server.exchange(push, wish, floor, wire.lend)
            else:
                # What is done to the values is written down, and not which of them the worker wants.
                with wire.placing(server.renewed(push, wish)):
                    done = self._noted("exchange", push, Wish(), floor)
                change = server.exchange(None, wish, floor, wire.lend)
                change.staleness, change.refused = done.staleness, done.refused
            for key, value in change.values.items():
                if self._away.get(key) is not server.resolve(key)._value:
                    self._away.pop(key, None)
                if isinstance(value, Rows) or value.nbytes < _LARGE:
                    continue
                if wire.fits(value):
                    self._away[key] = value
                    continue
                # While it is sent the next update can be done in place, without fresh memory.
                change.values[key] = copied = wire.lend(value.shape, value.dtype)
                np.copyto(copied, np.asarray(value))
        return change

    def _recover(self, journal: Journal) -> None:
        records = journal.recover()
        kept = next(records)
        if kept is not None:
            state, self._constraints, self._optimizers = kept
            constraints = {key: loads(data, {}) for key, data in self._constraints.items()}
            self._server.restore(state, constraints)
            for key, data in self._optimizers.items():
                self._adopt(key, data)
        for method, args in records:
            # An error was told to who called.
            with contextlib.suppress(Exception):
                self._calls[method](*args)

    def _create(self, key: int, value: Any, name: str, constraint: bytes | None) -> None:
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
    """A parameter server in another process. One that died is waited for, and told again.

    Args:
      number: its number.
      where: gives its address and how often it has begun, when it has begun more often than known.
      secret: the job's.
    """

    def __init__(
        self, number: int, where: Callable[[int, int], tuple[str, int]], secret: str
    ) -> None:
        self.number = number
        self._where, self._secret = where, secret
        self._caller: Caller | None = None
        self._begun = self._order = 0
        self._lock = threading.RLock()
        self.sent = self.received = 0

    def create(self, key: int, value: Any, name: str, constraint: Any = None) -> None:
        """See `ParameterServer.create`."""
        data = None if constraint is None else dumps(constraint, description="the constraint")
        self._call("create", key, value, name, data)

    def read(self, keys: Sequence[int]) -> tuple[int, dict[int, Any]]:
        """See `ParameterServer.read`."""
        found: tuple[int, dict[int, Any]] = self._call("read", tuple(keys))
        return found

    def write(self, key: int, value: Any, adds: bool = False) -> int:
        """See `ParameterServer.write`."""
        with self._lock:
            self._order += 1
            clock: int = self._call("write", key, value, adds, self._order)
        return clock

    def adopt(self, key: int, optimizer: bytes) -> None:
        """See `ParameterServer.adopt`.

        Args:
          key: the optimizer's key.
          optimizer: its pickle, with names for hosted variables.
        """
        self._call("adopt", key, optimizer)

    def stage(self, push: Push, ballot: Ballot, floor: int = 0) -> Done | None:
        """See `ParameterServer.stage`."""
        done: Done | None = self._call("stage", push, ballot, floor)
        return done

    def exchange(self, push: Push | Decision | None, wish: Wish, floor: int = 0) -> Change:
        """See `ParameterServer.exchange`."""
        change: Change = self._call("exchange", push, wish, floor)
        return change

    def _call(self, method: str, *args: Any) -> Any:
        """Everything that is called may be called again: the server knows what it has done."""
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
        """The connection; None before the first call, and when the server was lost."""
        caller = self._caller
        return None if caller is None else caller.wire

    def close(self) -> None:
        """Ends the connection."""
        caller, self._caller = self._caller, None
        if caller is not None:
            self.sent += caller.wire.sent
            self.received += caller.wire.received
            caller.wire.close()

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received."""
        wire = self.wire
        return (
            (self.sent, self.received)
            if wire is None
            else (self.sent + wire.sent, self.received + wire.received)
        )
