"""Worker, which runs closures on its own copies of the variables.

It pushes the writes of closures to the servers, and pulls the changes of other workers.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import jax
import numpy as np

from meshflow.core.functions.function import Function
from meshflow.core.runtime import transfers
from meshflow.core.runtime.errors import FailedPreconditionError
from meshflow.core.values import nest
from meshflow.core.values.composite import CompositeTensor
from meshflow.core.values.tensor import Tensor, read_tensor
from meshflow.distribute.parameter_server.closures.remote_values import PerWorkerValues
from meshflow.distribute.parameter_server.transport.connection import ConnectionLostError
from meshflow.distribute.parameter_server.transport.gradient_compression import Compressor
from meshflow.distribute.parameter_server.transport.memory_pools import ArrayPool
from meshflow.distribute.parameter_server.transport.messages import (
    ClosureOptions,
    Push,
    ServerInterface,
    VariableRows,
)
from meshflow.distribute.parameter_server.variables.hosted_variable import (
    HostedVariable,
    explain_unshared,
)
from meshflow.distribute.parameter_server.worker.calls import (
    ClosureCall,
    Outcome,
    StepLocation,
    StepLocationError,
)
from meshflow.distribute.parameter_server.worker.running_closure import RunningClosure
from meshflow.distribute.parameter_server.worker.server_client import ServerClient, closure_scope
from meshflow.environment.garbage_collection import LOCAL_REFERENCES
from meshflow.environment.types import Array, PyTree
from meshflow.kernels import sizes
from meshflow.profiler.annotations import Trace

_log = logging.getLogger("meshflow")


class WorkerCluster(Protocol):
    """Cluster as workers see it; see `Cluster`."""

    @property
    def servers(self) -> Sequence[ServerInterface]:
        """Return the servers."""

    @property
    def worker_count(self) -> int:
        """Return the number of workers."""


class ClosureStrategy(Protocol):
    """Strategy as workers see it; see `ParameterServerStrategy`."""

    @property
    def options(self) -> ClosureOptions:
        """Return the options of closures."""

    @property
    def cluster(self) -> WorkerCluster:
        """Return the cluster."""

    def scope(self) -> AbstractContextManager[Any]:
        """Make this the current strategy."""


class Worker:
    """Worker that runs closures.

    The computation of one closure may overlap with the communication of another.

    Args:
      worker_id: Index of the worker.
      servers: The servers.
      strategy: The current strategy of closures.
      crowded: Whether there are at least as many workers on this machine as cores.
      has_remote_servers: Whether servers are in other processes, so that concurrent calls save
        time.

    Attributes:
      is_dry_run: Whether closures run only to create their variables.
      resources: Iterators by their keys; see `remote_values`.
    """

    is_dry_run = False

    def __init__(
        self,
        worker_id: int,
        servers: Sequence[ServerInterface],
        strategy: ClosureStrategy,
        crowded: bool = False,
        has_remote_servers: bool = False,
    ) -> None:
        self.worker_id = worker_id
        self.servers = servers
        self._strategy = strategy
        # Threads of a parallel kernel would wait for cores that other workers use.
        self._core_scope = sizes.single_core_scope if crowded else contextlib.nullcontext
        self._client = ServerClient(servers, has_remote_servers)
        # Clock of each server up to which the copies in `_copies` are updated.
        self._copy_clocks = [-1] * len(servers)
        self._copies: dict[int, jax.Array] = {}
        self.resources: dict[int, Any] = {}
        # Arrays that were sent. Programs reuse their memory for the next gradients.
        self.array_pool = ArrayPool()
        self._compress = Compressor(strategy.options.compression)
        # Functions that used no variables in their last run, and whether no pull followed such a
        # run.
        self._without_variables: weakref.WeakSet[Any] = weakref.WeakSet()
        self._needs_pull = False
        # The number of programs of each function that were checked for variables without a server.
        self._num_checked_programs: weakref.WeakKeyDictionary[Any, int] = (
            weakref.WeakKeyDictionary()
        )
        self._has_remote_servers = has_remote_servers
        # Locations of the optimizer steps of functions that do not take them on servers only.
        self._step_locations: weakref.WeakKeyDictionary[Any, StepLocation] = (
            weakref.WeakKeyDictionary()
        )
        # Two closures may overlap: one computes while the other one pushes and pulls.
        self._compute_lock = threading.Lock()

    def run(self, call: ClosureCall) -> Outcome:
        """Run a closure: pull if necessary, compute, push, and pull for the next closure.

        Args:
          call: The closure.

        Raises:
          StateNeededError: If an optimizer has no slots. Nothing was pushed.
          VariablesNeededError: If the closure creates a variable that workers may share. Nothing
            was pushed.
          Exception: The exception that the closure raised. Nothing was pushed.
        """
        with self._compute_lock, Trace("closure", step_num=call.closure_id, _r=1):
            for key in call.deleted_iterators:
                self.resources.pop(key, None)
            if self._should_pull(call):
                self._client.pull(call.floor)
            clocks = self._install_replies()
            try:
                with self._core_scope():
                    value, running, pushes = self._compute(call, clocks)
            except ConnectionLostError:
                raise  # This worker was replaced. The closure has not failed.
            except Exception:
                if call.attempt or self._strategy.options.backup_closures:
                    # Another attempt may have been applied by some servers only.
                    self._client.settle(call.closure_id, call.attempt, call.floor)
                raise
            if self._skip_exchange(call, running):
                return Outcome(value, clocks, [], False, self._client.count_traffic())
            self._compress(pushes)
            # Without these references, programs may update the values in place.
            running.values.clear()
        replies, repeated = self._client.push(call.closure_id, call.attempt, call.floor, pushes)
        has_push = [push is not None for push in pushes]
        del pushes
        running.recycle_outboxes()
        stale = [c.staleness for c, s in zip(replies, has_push, strict=True) if s]
        clocks = [c.clock for c in replies]
        return Outcome(value, clocks, stale, repeated, self._client.count_traffic())

    def _compute(
        self, call: ClosureCall, clocks: Sequence[int]
    ) -> tuple[Any, RunningClosure, list[Push | None]]:
        """Run the function of a closure.

        Returns:
          The result, the closure with its writes, and the push for each server.
        """
        location = StepLocation.SERVERS
        with contextlib.suppress(TypeError):
            location = self._step_locations.get(call.function, location)
        while True:
            running = RunningClosure(self, call, location)
            try:
                with self._strategy.scope(), closure_scope(running):
                    with running.private_variables_scope():
                        args, kwargs = self._resolve_arguments(call)
                    value = self._call_function(call.function, args, kwargs)
                self._check_variables(call)
                return value, running, running.make_pushes(clocks)
            except StepLocationError as error:
                location = error.location
                if error.loses_slots and self._strategy.cluster.worker_count > 1:
                    _log.warning(
                        "%s takes many steps, or takes steps in a traced loop. Concurrent updates of "
                        "optimizer slots, such as momenta, are lost then: the last writer wins. "
                        "A short Python loop loses nothing.",
                        getattr(call.function, "__name__", "A closure"),
                    )
                with contextlib.suppress(TypeError):
                    self._step_locations[call.function] = location

    def _check_variables(self, call: ClosureCall) -> None:
        """Raise an error if the closure reads a variable that no server hosts.

        Workers in the coordinator's process would share it, unlike workers in other processes.
        """
        function = call.function
        if (
            self._has_remote_servers
            or call.has_private_variables
            or not isinstance(function, Function)
        ):
            return
        if self._num_checked_programs.get(function, 0) == len(function._cache):
            return
        programs = list(function._cache.values())
        self._num_checked_programs[function] = len(programs)
        for program in programs:
            for message in filter(None, map(explain_unshared, program.traced.captures)):
                raise FailedPreconditionError(message)

    def _call_function(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PyTree:
        """Call a function, and return its result with NumPy arrays in place of tensors."""
        return _map_structure(_to_host, function(*args, **kwargs))

    def _should_pull(self, call: ClosureCall) -> bool:
        """Check whether variables must be pulled before a closure."""
        if any(
            own < after for own, after in zip(self._client.clocks, call.min_clocks, strict=False)
        ):
            return True
        if not self._needs_pull:
            return False
        try:
            return call.function not in self._without_variables
        except TypeError:
            return True

    def _skip_exchange(self, call: ClosureCall, running: RunningClosure) -> bool:
        """Check whether a closure has used no variables, so no exchange with servers is needed.

        The next closure pulls then.
        """
        # After a failed attempt, an exchange is necessary, because its writes are unknown to this
        # worker.
        self._needs_pull = not (running.values or running.outboxes or call.attempt)
        # Functions without weak references are not recorded, so variables are pulled before each of
        # their runs.
        with contextlib.suppress(TypeError):
            note = (
                self._without_variables.add if self._needs_pull else self._without_variables.discard
            )
            note(call.function)
        return self._needs_pull

    def _resolve_arguments(self, call: ClosureCall) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a closure, with this worker's values for `PerWorkerValues`."""
        if not call.kwargs and all(type(a) is Tensor for a in call.args):
            return call.args, call.kwargs
        args, kwargs = nest.map_structure(self._resolve_argument, (call.args, call.kwargs))
        return args, kwargs

    def _resolve_argument(self, leaf: object) -> object:
        return leaf._select_for_worker(self) if isinstance(leaf, PerWorkerValues) else leaf

    # ---- values ----------------------------------------------------------------------------

    def get_copy(self, variable: HostedVariable) -> Array:
        """Return the worker's copy of a variable, which is pulled on first use."""
        value = self._copies.get(variable.key)
        if value is None:
            pulled = self._client.pull_variable(variable.servers[0], variable.key)
            value = self._copies[variable.key] = _to_device(pulled)
        return value

    def _install_replies(self) -> list[int]:
        """Update the copies from replies that have arrived, and return the clock of each server.

        No closure may compute meanwhile.
        """
        replies = self._client.replies
        while replies:
            for index, change in enumerate(replies.popleft()):
                self._copy_clocks[index] = change.clock
                for key, value in change.values.items():
                    if isinstance(value, VariableRows):
                        _replace_rows(self._copies, key, value)
                    else:
                        self._copies[key] = _to_device(value)
        return list(self._copy_clocks)


def _to_device(value: Array) -> jax.Array:
    return transfers.to_device(value) if isinstance(value, np.ndarray) else value


def _replace_rows(values: dict[int, jax.Array], key: int, rows: VariableRows) -> None:
    """Replace rows of an array, in place unless there are other references to it."""
    old = values.pop(key)
    if sys.getrefcount(old) > LOCAL_REFERENCES:
        old = transfers.duplicate(old)
    values[key] = _set_rows(old, _to_device(rows.indices), _to_device(rows.values))


_set_rows = jax.jit(lambda old, indices, new: old.at[indices].set(new), donate_argnums=0)


def _map_structure(function: Callable[[Any], Any], value: PyTree) -> PyTree:
    return function(value) if type(value) is Tensor else nest.map_structure(function, value)


def _to_host(leaf: object) -> object:
    if isinstance(leaf, CompositeTensor):
        return leaf
    leaf = read_tensor(leaf)
    if isinstance(leaf, Tensor):
        return leaf.numpy()
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf
