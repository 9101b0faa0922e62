"""Proxy of a worker in another process.

Every function is pickled once, and sent to each worker once.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from meshflow.core.values import nest
from meshflow.distribute.parameter_server.closures.pickling import (
    OptimizerKeys,
    dumps,
    dumps_function,
)
from meshflow.distribute.parameter_server.closures.remote_values import (
    PerWorkerIterator,
    deleted_iterators,
)
from meshflow.distribute.parameter_server.transport.connection import RemoteCaller, load_error
from meshflow.distribute.parameter_server.variables.hosted_variable import HostedVariable, Optimizer
from meshflow.distribute.parameter_server.worker.calls import (
    ClosureCall,
    Outcome,
    StateNeededError,
    VariablesNeededError,
)

# A worker keeps this many functions, the most recent ones.
MAX_FUNCTIONS = 256


class SchedulingStrategy(OptimizerKeys, Protocol):
    """Strategy as proxies of workers see it; see `ParameterServerStrategy`.

    Attributes:
      num_variables: Number of hosted variables so far.
    """

    num_variables: int

    @property
    def build_lock(self) -> AbstractContextManager[Any]:
        """Return the lock that is held while functions are pickled."""

    def look_up(
        self, optimizer: int, keys: Sequence[int]
    ) -> tuple[Optimizer, list[HostedVariable]]:
        """Return the optimizer and the variables of keys."""


@dataclass
class CallRequest:
    """A `ClosureCall` for another process.

    Attributes:
      number: Id of the closure.
      function: Id of the function.
      arguments: Pickle of the arguments.
      arrays: The bytes of arrays in the arguments.
      after: See `Call.min_clocks`.
      floor: See `ClosureCall`.
      functions: Pickles of functions that the worker has not received yet, by id.
      iterators: Pickles of the dataset functions of iterators that it has not received yet, by key.
      states: See `Call.slot_keys`; None if they have not changed.
      ended: See `Call.deleted_iterators`.
      heard: Number of iterators that are deleted, including these.
      attempt: See `ClosureCall`.
      makes_own: See `Call.has_private_variables`.
    """

    number: int
    function: int
    arguments: bytes
    arrays: Sequence[Any]
    after: Sequence[int]
    floor: int
    functions: dict[int, bytes] = field(default_factory=dict)
    iterators: dict[int, bytes] = field(default_factory=dict)
    states: Mapping[int, set[int]] | None = None
    ended: Sequence[int] = ()
    heard: int = 0
    attempt: int = 0
    makes_own: bool = False


class RemoteWorker:
    """Proxy of one process of a worker, for one thread of the coordinator.

    Args:
      caller: The connection.
      strategy: The strategy.
      book: Record of the objects that were sent to the process.
    """

    def __init__(
        self, caller: RemoteCaller, strategy: SchedulingStrategy, book: SentObjects
    ) -> None:
        self.caller, self._strategy, self._sent_objects = caller, strategy, book

    def run(self, call: ClosureCall) -> Outcome:
        """Run a closure in the process and return its outcome.

        Raises:
          StateNeededError: If an optimizer has no slots, with the optimizer and the variables of
            this process.
          VariablesNeededError: If the closure creates a variable.
          ConnectionLostError: If the connection to the worker is lost.
          Exception: The exception that the closure raised, with its traceback in the worker as the
            cause.
        """
        request = self._sent_objects.make_request(call, self._strategy)
        kind, value = self.caller.call("run", request)
        self._sent_objects.mark_received(request)
        if kind == "done":
            outcome: Outcome = value
            return outcome
        if kind == "state":
            optimizer, keys = value
            self._sent_objects.forget(call.function, request.function)
            raise StateNeededError(*self._strategy.look_up(optimizer, keys))
        if kind == "variables":
            known = self._sent_objects.get_num_variables(call.function, request.function)
            self._sent_objects.forget(call.function, request.function)
            raise VariablesNeededError(known)
        raise load_error(value)


class FunctionPickles:
    """Cache of pickles of the most recently scheduled functions.

    Args:
      strategy: The strategy.
    """

    def __init__(self, strategy: SchedulingStrategy) -> None:
        self._strategy = strategy
        # By `id`: the function, a reference that keeps its `id` unique; its own id; its pickle; and
        # the number of variables at that time.
        self._entries: dict[int, tuple[Callable[..., Any], int, bytes, int]] = {}
        self._count = 0
        self._lock = threading.RLock()

    def get_pickle(self, function: Callable[..., Any]) -> tuple[int, bytes]:
        """Return the id and the pickle of a function.

        Args:
          function: The function.
        """
        with self._strategy.build_lock, self._lock:
            entry = self._entries.get(id(function))
            if entry is None:
                num_variables = self._strategy.num_variables
                name = getattr(function, "__name__", "the closure")
                data = dumps_function(function, self._strategy, name)
                self._count += 1
                entry = self._entries[id(function)] = (function, self._count, data, num_variables)
                while len(self._entries) > MAX_FUNCTIONS:
                    self._entries.pop(next(iter(self._entries)))
            return entry[1:3]

    def get_num_variables(self, function: Callable[..., Any], function_id: int) -> int:
        """Return the number of variables when a function was pickled.

        The result is -1 if this is not the latest pickle of the function.

        Args:
          function: The function.
          function_id: Its id.
        """
        with self._lock:
            entry = self._entries.get(id(function))
            return entry[3] if entry is not None and entry[1] == function_id else -1

    def forget(self, function: Callable[..., Any], function_id: int) -> None:
        """Pickle a function again when it is scheduled next.

        Args:
          function: The function.
          function_id: Its id. A later pickle with another id is kept.
        """
        with self._lock:
            if id(function) in self._entries and self._entries[id(function)][1] == function_id:
                del self._entries[id(function)]


class SentObjects:
    """Record of the objects that were sent to a process of a worker.

    Args:
      functions: Cache of function pickles.
    """

    def __init__(self, functions: FunctionPickles) -> None:
        self._functions = functions
        self._sent_functions: list[int] = []
        self._iterators: set[int] = set()
        self._states: Mapping[int, set[int]] = {}
        self._num_deleted = len(deleted_iterators)
        self._lock = threading.Lock()

    def make_request(self, call: ClosureCall, strategy: SchedulingStrategy) -> CallRequest:
        """Return a call for the process, with the objects that it has not received yet.

        Args:
          call: The call.
          strategy: The strategy.
        """
        function_id, pickled = self._functions.get_pickle(call.function)
        arrays: list[pickle.PickleBuffer] = []
        arguments = {"args": call.args, "kwargs": call.kwargs}
        data = dumps(arguments, strategy, "the arguments", arrays)
        request = CallRequest(
            call.closure_id, function_id, data, arrays, call.min_clocks, call.floor, attempt=call.attempt,
            makes_own=call.has_private_variables,
        )  # fmt: skip
        with self._lock:
            if function_id not in self._sent_functions[-MAX_FUNCTIONS // 2 :]:
                request.functions[function_id] = pickled
            for leaf in nest.flatten((call.args, call.kwargs)):
                if isinstance(leaf, PerWorkerIterator) and leaf.key not in self._iterators:
                    dataset_pickle = dumps_function(
                        leaf.dataset_fn, strategy, "the dataset function"
                    )
                    request.iterators[leaf.key] = dataset_pickle
            states = {key: set(variables) for key, variables in call.slot_keys.items()}
            if states != self._states:
                request.states = states
            request.ended = deleted_iterators[self._num_deleted :]
            request.heard = self._num_deleted + len(request.ended)
        return request

    def forget(self, function: Callable[..., Any], function_id: int) -> None:
        """Send a function again, with new slots or variables; see `FunctionPickles.forget`."""
        self._functions.forget(function, function_id)

    def get_num_variables(self, function: Callable[..., Any], function_id: int) -> int:
        """Return the number of variables when a function was pickled; see `FunctionPickles`."""
        return self._functions.get_num_variables(function, function_id)

    def mark_received(self, request: CallRequest) -> None:
        """Record that the process has received the objects of a request.

        They are not recorded earlier, because a concurrent request could overtake this one.
        """
        with self._lock:
            self._sent_functions.extend(
                n for n in request.functions if n not in self._sent_functions[-MAX_FUNCTIONS // 2 :]
            )
            self._iterators.update(request.iterators)
            if request.states is not None:
                self._states = request.states
            # Concurrent requests may have reported the same iterators.
            self._num_deleted = max(self._num_deleted, request.heard)
