"""Service that executes the calls of the coordinator in a worker's own process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.values import nest
from meshflow.distribute.parameter_server.closures.pickling import dumps, loads
from meshflow.distribute.parameter_server.closures.remote_values import PerWorkerIterator
from meshflow.distribute.parameter_server.closures.stubs import ObjectStub
from meshflow.distribute.parameter_server.cluster.roles import current_worker
from meshflow.distribute.parameter_server.strategy import ParameterServerStrategy
from meshflow.distribute.parameter_server.transport.connection import Connection, dump_error
from meshflow.distribute.parameter_server.transport.messages import ClosureOptions, ServerInterface
from meshflow.distribute.parameter_server.variables.hosted_variable import HostedVariable
from meshflow.distribute.parameter_server.worker.calls import (
    ClosureCall,
    StateNeededError,
    VariablesNeededError,
)
from meshflow.distribute.parameter_server.worker.remote_worker import MAX_FUNCTIONS, CallRequest
from meshflow.distribute.parameter_server.worker.worker import Worker
from meshflow.environment.types import PyTree


class _ServiceWorker(Worker):
    """Worker that checks whether results can be sent to the coordinator."""

    def _call_function(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PyTree:
        """Call a function and check its result before servers apply the writes of the closure."""
        value = super()._call_function(function, args, kwargs)
        if not all(isinstance(leaf, _SENDABLE) for leaf in nest.flatten(value)):
            dumps(value, description="the result of the closure", recipient="the coordinator")
        return value


# Results of these types need no check.
_SENDABLE = (np.ndarray, np.generic, int, float, str, bytes, type(None))


class WorkerService:
    """A worker, for the coordinator in another process.

    Args:
      worker_id: Index of the worker.
      servers: The servers.
      crowded: See `Worker`.
    """

    def __init__(self, worker_id: int, servers: Sequence[ServerInterface], crowded: bool) -> None:
        self._number, self._servers, self._crowded = worker_id, servers, crowded
        self._worker: Worker | None = None
        self._functions: dict[int, Any] = {}
        self._iterators: dict[int, Any] = {}
        self._variables: dict[int, HostedVariable] = {}
        self._states: Mapping[int, set[int]] = {}
        self._load_lock = threading.RLock()

    def methods(self, connection: Connection) -> dict[str, Callable[..., Any]]:
        """Return the methods that may be called, by name.

        Args:
          connection: The connection of the caller.
        """
        return {"configure": self._configure, "run": self._run}

    def _configure(self, path: Sequence[str], workers: int, options: tuple[Any, ...]) -> None:
        """Create the worker, and make the modules of the program importable."""
        sys.path.extend(p for p in path if p not in sys.path)
        self._strategy = ParameterServerStrategy.create_for_worker(
            workers, len(self._servers), ClosureOptions(*options)
        )
        self._worker = _ServiceWorker(
            self._number, self._servers, self._strategy, self._crowded, has_remote_servers=True
        )

    def _run(self, request: CallRequest) -> tuple[str, Any]:
        """Run a closure.

        Returns:
          The kind of the result, and its data: "done" with the outcome, "error" with the pickled
          exception, or "state" or "variables" if the coordinator must create slots or variables
          first.
        """
        assert self._worker is not None
        current_worker.worker_id = self._number
        try:
            return "done", self._worker.run(self._call(request))
        except StateNeededError as missing:
            return "state", (missing.optimizer._hosted_key, [v.key for v in missing.variables])
        except VariablesNeededError:
            return "variables", None
        except BaseException as error:
            return "error", dump_error(error, dumps)

    def _call(self, request: CallRequest) -> ClosureCall:
        resolve: dict[str, Callable[..., Any]] = {
            "variable": self._get_variable,
            "iterator": self._get_iterator,
            "strategy": lambda: self._strategy,
        }
        with self._load_lock:
            if request.states is not None:
                self._states = request.states
            for key, data in request.functions.items():
                # A function that is sent again becomes the most recent one, as in the coordinator's
                # record.
                known_function = self._functions.pop(key, None)
                self._functions[key] = (
                    loads(data, resolve) if known_function is None else known_function
                )
            while len(self._functions) > MAX_FUNCTIONS:
                self._functions.pop(next(iter(self._functions)))
            for key, data in request.iterators.items():
                if key not in self._iterators:
                    self._iterators[key] = PerWorkerIterator(loads(data, resolve))
            arguments = loads(request.arguments, resolve, request.arrays)
            function = self._functions[request.function]
        for key in request.ended:
            self._iterators.pop(key, None)
        return ClosureCall(
            request.number, function, arguments["args"], arguments["kwargs"], request.after, request.floor, self._states,
            request.ended, request.attempt, request.makes_own,
        )  # fmt: skip

    def _get_iterator(self, key: int) -> PerWorkerIterator | ObjectStub:
        """Return the iterator of a key, or a stub if it was not sent as an argument of a closure."""
        return self._iterators.get(key) or ObjectStub(
            "An iterator of a per-worker dataset is an argument of closures: pass it by `schedule(fn, args=(iterator,))`."
        )

    def _get_variable(self, key: int, description: dict[str, Any]) -> HostedVariable:
        """Return this process's object for a hosted variable, which is created on first use."""
        variable = self._variables.get(key)
        if variable is None:
            variable = self._variables[key] = object.__new__(HostedVariable)
            variable.apply_description(description)
            variable.key = key
            variable._distribute_strategy = self._strategy  # type: ignore[attr-defined]
        variable.servers = description["servers"]
        return variable
