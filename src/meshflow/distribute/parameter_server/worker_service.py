"""A worker in a process of its own: what the coordinator may call there."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.values import nest
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.shapes import TensorShape
from meshflow.distribute.parameter_server.absent import Absent
from meshflow.distribute.parameter_server.closures import dumps, loads
from meshflow.distribute.parameter_server.hosting import HostedVariable
from meshflow.distribute.parameter_server.messages import Options
from meshflow.distribute.parameter_server.remote_values import PerWorkerIterator
from meshflow.distribute.parameter_server.remote_worker import FUNCTIONS, Request
from meshflow.distribute.parameter_server.roles import working
from meshflow.distribute.parameter_server.strategy import ParameterServerStrategy
from meshflow.distribute.parameter_server.wire import dump_error
from meshflow.distribute.parameter_server.worker import (
    Call,
    StateNeededError,
    VariablesNeededError,
    Worker,
)

__all__ = ["WorkerService"]


class _Worker(Worker):
    """A worker whose results go to another process."""

    def _result(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A result that can be sent: of another one servers are not to hear."""
        value = super()._result(function, args, kwargs)
        if not all(isinstance(leaf, _SENDABLE) for leaf in nest.flatten(value)):
            dumps(value, description="the result of the closure", recipient="the coordinator")
        return value


# What needs no look before it is sent.
_SENDABLE = (np.ndarray, np.generic, int, float, str, bytes, type(None))


class WorkerService:
    """A worker, for the coordinator in another process.

    Args:
      number: the worker's number.
      servers: the servers.
      crowded: see `Worker`.
    """

    def __init__(self, number: int, servers: Sequence[Any], crowded: bool) -> None:
        self._number, self._servers, self._crowded = number, servers, crowded
        self._worker: Worker | None = None
        self._functions: dict[int, Any] = {}
        self._iterators: dict[int, Any] = {}
        self._variables: dict[int, HostedVariable] = {}
        self._states: Mapping[int, set[int]] = {}
        self._loading = threading.RLock()

    def methods(self) -> dict[str, Callable[..., Any]]:
        """What may be called."""
        return {"configure": self._configure, "run": self._run}

    def _configure(self, path: Sequence[str], workers: int, options: tuple[Any, ...]) -> None:
        """Makes the coordinator's modules importable; before the first closure."""
        sys.path.extend(p for p in path if p not in sys.path)
        self._strategy = ParameterServerStrategy.of_worker(
            workers, len(self._servers), Options(*options)
        )
        self._worker = _Worker(
            self._number, self._servers, self._strategy, self._crowded, has_remote_servers=True
        )

    def _run(self, request: Request) -> tuple[str, Any]:
        """What came of a closure: its outcome, its error, or what the coordinator has to make first."""
        assert self._worker is not None
        working.worker = self._number
        try:
            return "done", self._worker.run(self._call(request))
        except StateNeededError as need:
            return "state", (need.optimizer._hosted_key, [v.key for v in need.variables])
        except VariablesNeededError:
            return "variables", None
        except BaseException as error:
            return "error", dump_error(error, dumps)

    def _call(self, request: Request) -> Call:
        resolve: dict[str, Callable[..., Any]] = {
            "variable": self._variable,
            "iterator": self._iterator,
            "strategy": lambda: self._strategy,
        }
        with self._loading:
            if request.states is not None:
                self._states = request.states
            for key, data in request.functions.items():
                # One that comes again is the last one that came, as the coordinator has it.
                known = self._functions.pop(key, None)
                self._functions[key] = loads(data, resolve) if known is None else known
            while len(self._functions) > FUNCTIONS:
                self._functions.pop(next(iter(self._functions)))
            for key, data in request.iterators.items():
                if key not in self._iterators:
                    self._iterators[key] = PerWorkerIterator(loads(data, resolve))
            given = loads(request.arguments, resolve, request.arrays)
            function = self._functions[request.function]
        for key in request.ended:
            self._iterators.pop(key, None)
        return Call(
            request.number, function, given["args"], given["kwargs"], request.after, request.floor, self._states,
            request.ended, request.attempt, request.makes_own,
        )  # fmt: skip

    def _iterator(self, key: int) -> Any:
        """An iterator that some closure was given; what only objects refer to stands there for it."""
        return self._iterators.get(key) or Absent(
            "An iterator of a per-worker dataset is an argument of closures: pass it by `schedule(fn, args=(iterator,))`."
        )

    def _variable(self, key: int, about: dict[str, Any]) -> HostedVariable:
        """This process's one object for a hosted variable."""
        found = self._variables.get(key)
        if found is None:
            found = self._variables[key] = object.__new__(HostedVariable)
            found._static_shape = TensorShape(about["shape"])
            found._dtype, found._name = as_dtype(about["dtype"]), about["name"]
            found._constraint = None
            for name in ("trainable", "autocast", "synchronization", "aggregation"):
                setattr(found, f"_{name}", about[name])
            found.key = key
            found._distribute_strategy = self._strategy  # type: ignore[attr-defined]
        found.servers = about["servers"]
        return found
