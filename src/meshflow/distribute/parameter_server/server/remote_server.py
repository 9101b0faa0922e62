"""A parameter server in another process: the service there, and its proxy in this process."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from meshflow.core.runtime.context import variable_lock
from meshflow.distribute.parameter_server.closures.pickling import dumps, loads
from meshflow.distribute.parameter_server.server.journal import Journal
from meshflow.distribute.parameter_server.server.parameter_server import (
    ParameterServer,
    ServerVariable,
)
from meshflow.distribute.parameter_server.transport import output_buffers
from meshflow.distribute.parameter_server.transport.connection import (
    Connection,
    ConnectionLostError,
    RemoteCaller,
    connect,
)
from meshflow.distribute.parameter_server.transport.messages import (
    Ballot,
    CompletedAttempt,
    Decision,
    ExchangeReply,
    PullRequest,
    Push,
    VariableRows,
)
from meshflow.environment.types import Array, ArrayLike
from meshflow.files.storage import LOCAL_STORAGE, Storage
from meshflow.profiler.annotations import Trace

_log = logging.getLogger("meshflow")
# A server with a full disk is called again for this many seconds.
_FULL_DISK_SECONDS, _FULL_DISK_ERRORS = 60.0, (errno.ENOSPC, errno.EDQUOT)
# Larger values are copied before they are sent.
_MIN_COPIED_BYTES = 1 << 16


class ServerLocator(Protocol):
    """Lookup of a server's current process."""

    def __call__(self, index: int, known: int, /) -> tuple[str, int]:
        """Return the address and the number of starts of a server, once it exceeds `known`."""


class ServerService:
    """Methods of a parameter server for callers in other processes.

    Args:
      index: Index of the server.
      folder: Folder of its journal, or None.
      storage: Storage of the folder.

    Raises:
      DataLossError: If the journal is damaged.
    """

    def __init__(self, index: int, folder: str | None, storage: Storage = LOCAL_STORAGE) -> None:
        self._server = ParameterServer(index, copies_on_write=output_buffers.is_supported())
        # Counter of the calls of `exchange`, for profiles.
        self._exchange_ids = itertools.count()
        # The pickles of constraints and optimizers, for the journal.
        self._constraints: dict[int, bytes] = {}
        self._optimizers: dict[int, bytes] = {}
        # Values that workers read in shared memory. This second reference keeps programs from
        # updating them in place.
        self._shared_values: dict[int, Array] = {}
        self._calls: dict[str, Callable[..., Any]] = {
            "create": self._create,
            "write": self._server.write,
            "adopt": self._adopt,
            "stage": self._server.stage,
            "exchange": self._server.exchange,
        }
        self._journal: Journal | None = None
        if folder is not None:
            self._journal = Journal(folder, storage)
            self._recover(self._journal)

    def methods(self, connection: Connection) -> dict[str, Callable[..., Any]]:
        """Return the methods that may be called, by name.

        Args:
          connection: The connection of the caller.
        """
        methods: dict[str, Callable[..., Any]] = {
            **{name: functools.partial(self._call_logged, name) for name in self._calls},
            "read": self._server.read,
            "exchange": functools.partial(self._exchange, connection),
        }
        if self._journal is None:
            return methods
        return {name: functools.partial(self._call_as_owner, f) for name, f in methods.items()}

    def _call_as_owner(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function, and check before its result is sent that this server was not replaced."""
        result = function(*args)
        assert self._journal is not None
        self._journal.check_ownership()
        return result

    def _call_logged(self, method: str, *args: Any) -> Any:
        """Write a call that changes the state to the journal, and then execute it."""
        if self._journal is None:
            return self._calls[method](*args)
        with variable_lock:
            self._journal.append((method, args))
            result = self._calls[method](*args)
            state_bytes = self._server.size
            if self._journal.size > max(4 * state_bytes, self._journal.min_snapshot_bytes):
                self._journal.write_snapshot(
                    (self._server.get_state(), self._constraints, self._optimizers)
                )
        return result

    def _exchange(
        self, connection: Connection, push: Push | Decision | None, wish: PullRequest, floor: int
    ) -> ExchangeReply:
        server = self._server
        with variable_lock, Trace("exchange", step_num=next(self._exchange_ids), _r=1):
            if push is None or server.has_applied(push.closure):
                reply = server.exchange(push, wish, floor, connection.lend)
            else:
                # The record contains the push, but not the values that the worker requests.
                with connection.offer_output_memory(server.find_copied_sizes(push, wish)):
                    applied = self._call_logged("exchange", push, PullRequest(), floor)
                reply = server.exchange(None, wish, floor, connection.lend)
                reply.staleness, reply.refused = applied.staleness, applied.refused
            for key, value in reply.values.items():
                variable = server.resolve(key)
                assert isinstance(variable, ServerVariable)
                if self._shared_values.get(key) is not variable.stored_array:
                    self._shared_values.pop(key, None)
                if isinstance(value, VariableRows) or value.nbytes < _MIN_COPIED_BYTES:
                    continue
                if connection.can_share(value):
                    self._shared_values[key] = value
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

    def _create(
        self, key: int, value: Array, name: str, constraint: bytes | None, order: int = 0
    ) -> None:
        if not self._server.record_order(order):
            return
        if constraint is not None:
            self._constraints[key] = constraint
        self._server.create(key, value, name, None if constraint is None else loads(constraint, {}))

    def _adopt(self, key: int, optimizer: bytes, order: int = 0) -> None:
        if not self._server.record_order(order):
            return
        self._optimizers[key] = optimizer
        resolve: dict[str, Callable[..., Any]] = {
            "variable": lambda key, _: self._server.resolve(key),
            "strategy": lambda: None,
        }
        self._server.add_optimizer(key, loads(optimizer, resolve))


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
        self.index = index
        self._locate, self._secret = locate, secret
        self._caller: RemoteCaller | None = None
        self._num_starts = self._order = 0
        self._lock = threading.RLock()
        self.sent = self.received = 0

    def create(
        self, key: int, value: Array, name: str, constraint: Callable[..., Any] | None = None
    ) -> None:
        """See `ParameterServer.create`."""
        data = None if constraint is None else dumps(constraint, description="the constraint")
        self._call_in_order("create", key, value, name, data)

    def read(self, keys: Sequence[int]) -> tuple[int, dict[int, Array]]:
        """See `ParameterServer.read`."""
        clock_and_values: tuple[int, dict[int, Array]] = self._call("read", tuple(keys))
        return clock_and_values

    def write(self, key: int, value: ArrayLike, adds: bool = False) -> int:
        """See `ParameterServer.write`."""
        clock: int = self._call_in_order("write", key, value, adds)
        return clock

    def add_optimizer(self, key: int, optimizer: bytes) -> None:
        """See `ParameterServer.add_optimizer`.

        Args:
          key: Key of the optimizer.
          optimizer: Pickle of the optimizer, with persistent ids for hosted variables.
        """
        self._call_in_order("adopt", key, optimizer)

    def stage(self, push: Push, ballot: Ballot, floor: int = 0) -> CompletedAttempt | None:
        """See `ParameterServer.stage`."""
        applied: CompletedAttempt | None = self._call("stage", push, ballot, floor)
        return applied

    def exchange(
        self, push: Push | Decision | None, wish: PullRequest, floor: int = 0
    ) -> ExchangeReply:
        """See `ParameterServer.exchange`."""
        reply: ExchangeReply = self._call("exchange", push, wish, floor)
        return reply

    def _call_in_order(self, method: str, *args: Any) -> Any:
        """Call a method with a sequence number; see `ParameterServer.record_order`."""
        with self._lock:
            self._order += 1
            return self._call(method, *args, self._order)

    def _call(self, method: str, *args: Any) -> Any:
        """Call a method of the server, repeating the call after a restart.

        The server recognizes calls that it has executed already. While its disk is full, the call is
        repeated for some time, because other servers may have applied their part of a closure.
        """
        deadline: float | None = None
        with self._lock:
            while True:
                if self._caller is None:
                    address, self._num_starts = self._locate(self.index, self._num_starts)
                try:
                    if self._caller is None:
                        self._caller = RemoteCaller(connect(address, self._secret))
                    return self._caller.call(method, *args)
                except ConnectionLostError:
                    self.close()
                except OSError as error:
                    deadline = deadline or time.monotonic() + _FULL_DISK_SECONDS
                    if error.errno not in _FULL_DISK_ERRORS or time.monotonic() > deadline:
                        raise
                    _log.warning("Parameter server %d cannot write: %s", self.index, error)
                    time.sleep(1.0)

    def abandon(self, num_starts: int) -> None:
        """Let a call that waits for a process that was replaced fail, and be repeated.

        A suspended process does not answer, but keeps its connections.

        Args:
          num_starts: Number of starts of the process that is, or will be, the server.
        """
        if self._num_starts < num_starts:
            self.disconnect()

    def disconnect(self) -> None:
        """Close the connection, so that a call that waits for an answer is repeated."""
        caller = self._caller
        if caller is not None:
            caller.connection.close()

    @property
    def connection(self) -> Connection | None:
        """Return the connection, or None before the first call and after the loss of the server."""
        caller = self._caller
        return None if caller is None else caller.connection

    def close(self) -> None:
        """Close the connection."""
        caller, self._caller = self._caller, None
        if caller is not None:
            self.sent += caller.connection.sent
            self.received += caller.connection.received
            caller.connection.close()

    @property
    def traffic(self) -> tuple[int, int]:
        """Return the numbers of bytes sent and received."""
        connection = self.connection
        return (
            (self.sent, self.received)
            if connection is None
            else (self.sent + connection.sent, self.received + connection.received)
        )
