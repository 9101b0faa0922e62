"""A worker in another process, as the coordinator calls it: every function goes there once."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshflow.core.values import nest
from meshflow.distribute.parameter_server.closures import dumps, dumps_function
from meshflow.distribute.parameter_server.remote_values import PerWorkerIterator, ended
from meshflow.distribute.parameter_server.wire import Caller, loaded_error
from meshflow.distribute.parameter_server.worker import (
    Call,
    Outcome,
    StateNeededError,
    VariablesNeededError,
)

__all__ = ["FUNCTIONS", "Book", "Functions", "RemoteWorker", "Request"]

# A worker keeps so many functions, those that came last.
FUNCTIONS = 256


@dataclass
class Request:
    """A `Call` for another process.

    Attributes:
      number: the closure's number.
      function: which function, by number.
      arguments: a pickle of its arguments.
      arrays: the bytes of arrays among them.
      after: see `Call`.
      floor: see `Call`.
      functions: pickles of functions that the worker has not had yet.
      iterators: the same of iterators.
      states: see `Call`; None when it has not changed.
      ended: see `Call`.
      heard: how many have ended with these.
      attempt: see `Call`.
      makes_own: see `Call`.
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
    """One life of a worker in another process, for one thread of the coordinator.

    Args:
      caller: a connection.
      strategy: the strategy.
      book: what the process has been sent.
    """

    def __init__(self, caller: Caller, strategy: Any, book: Book) -> None:
        self.caller, self._strategy, self._book = caller, strategy, book

    def run(self, call: Call) -> Outcome:
        """Runs a closure there.

        Raises:
          StateNeededError: with the optimizer and the variables of this process.
          VariablesNeededError: when it makes a variable.
          Lost: when the worker is gone.
          Exception: the closure's own, with its traceback there as the cause.
        """
        request = self._book.request(call, self._strategy)
        kind, value = self.caller.call("run", request)
        self._book.arrived(request)
        if kind == "done":
            outcome: Outcome = value
            return outcome
        if kind == "state":
            optimizer, keys = value
            self._book.forget(call.function, request.function)
            raise StateNeededError(*self._strategy.found(optimizer, keys))
        if kind == "variables":
            known = self._book.known(call.function, request.function)
            self._book.forget(call.function, request.function)
            raise VariablesNeededError(known)
        raise loaded_error(value)


class Functions:
    """Pickles of the functions that were scheduled last, made once.

    Args:
      strategy: the strategy.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        # The functions themselves, so that their ids stay theirs, and how many variables there were.
        self._known: dict[int, tuple[Any, int, bytes, int]] = {}
        self._count = 0
        self._lock = threading.RLock()

    def of(self, function: Any) -> tuple[int, bytes]:
        """A function's number and pickle.

        Args:
          function: the function.
        """
        with self._strategy.building, self._lock:
            found = self._known.get(id(function))
            if found is None:
                known = self._strategy.count
                name = getattr(function, "__name__", "the closure")
                data = dumps_function(function, self._strategy, name)
                self._count += 1
                found = self._known[id(function)] = (function, self._count, data, known)
                while len(self._known) > FUNCTIONS:
                    self._known.pop(next(iter(self._known)))
            return found[1:3]

    def known(self, function: Any, number: int) -> int:
        """How many variables there were when a function was pickled; -1 where there is a later pickle, or none.

        Args:
          function: the function.
          number: its number.
        """
        with self._lock:
            found = self._known.get(id(function))
            return found[3] if found is not None and found[1] == number else -1

    def forget(self, function: Any, number: int) -> None:
        """Has a function be pickled again, when it is next scheduled.

        Args:
          function: the function.
          number: its number, for which there may be a later one.
        """
        with self._lock:
            if id(function) in self._known and self._known[id(function)][1] == number:
                del self._known[id(function)]


class Book:
    """What a process of a worker has been sent already.

    Args:
      functions: the functions' pickles.
    """

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self._sent: list[int] = []
        self._iterators: set[int] = set()
        self._states: Mapping[int, set[int]] = {}
        self._ended = len(ended)
        self._lock = threading.Lock()

    def request(self, call: Call, strategy: Any) -> Request:
        """A call for another process, with what it has not had yet.

        Args:
          call: the call.
          strategy: the strategy.
        """
        number, function = self._functions.of(call.function)
        arrays: list[pickle.PickleBuffer] = []
        given = {"args": call.args, "kwargs": call.kwargs}
        data = dumps(given, strategy, "the arguments", arrays)
        request = Request(
            call.number, number, data, arrays, call.after, call.floor, attempt=call.attempt,
            makes_own=call.makes_own,
        )  # fmt: skip
        with self._lock:
            if number not in self._sent[-FUNCTIONS // 2 :]:
                request.functions[number] = function
            for leaf in nest.flatten((call.args, call.kwargs)):
                if isinstance(leaf, PerWorkerIterator) and leaf._key not in self._iterators:
                    made = dumps_function(leaf._make, strategy, "the dataset function")
                    request.iterators[leaf._key] = made
            states = {key: set(variables) for key, variables in call.states.items()}
            if states != self._states:
                request.states = states
            request.ended = ended[self._ended :]
            request.heard = self._ended + len(request.ended)
        return request

    def forget(self, function: Any, number: int) -> None:
        """Has a function that lacks slots or variables be sent again, with them; see `Functions.forget`."""
        self._functions.forget(function, number)

    def known(self, function: Any, number: int) -> int:
        """How many variables there were when a function was pickled; see `Functions.known`."""
        return self._functions.known(function, number)

    def arrived(self, request: Request) -> None:
        """Notes that the process has what a request brought: before, another request may overtake it."""
        with self._lock:
            self._sent.extend(
                n for n in request.functions if n not in self._sent[-FUNCTIONS // 2 :]
            )
            self._iterators.update(request.iterators)
            if request.states is not None:
                self._states = request.states
            # Two requests at a time may say the same.
            self._ended = max(self._ended, request.heard)
