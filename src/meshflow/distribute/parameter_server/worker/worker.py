"""Worker, which runs closures on its own copies of the variables.

It pushes the writes of closures to the servers, and pulls the changes of other workers.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices, SparseTensor
from meshflow.core.functions.function import Function
from meshflow.core.runtime import transfers
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import FailedPreconditionError
from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor, read_tensor
from meshflow.core.variables.variable import get_value_shape
from meshflow.distribute.parameter_server.closures.remote_values import PerWorkerValues
from meshflow.distribute.parameter_server.transport.connection import ConnectionLostError
from meshflow.distribute.parameter_server.transport.gradient_compression import Compressor
from meshflow.distribute.parameter_server.transport.memory_pools import ArrayPool
from meshflow.distribute.parameter_server.transport.messages import (
    ClosureOptions,
    OptimizerStep,
    Push,
    ServerInterface,
    VariableRows,
)
from meshflow.distribute.parameter_server.variables.hosted_variable import (
    Gradient,
    GradientOutboxes,
    HostedVariable,
    Optimizer,
    Outbox,
    VariableOutboxes,
    explain_unshared,
    get_gradient_outboxes,
)
from meshflow.distribute.parameter_server.worker.server_client import ServerClient, closure_scope
from meshflow.environment.garbage_collection import LOCAL_REFERENCES
from meshflow.environment.types import Array, PyTree
from meshflow.kernels import sizes
from meshflow.profiler.annotations import Trace

# Marks a variable, in place of a number of steps, that steps on the servers train.
_TRAINED_ON_SERVERS = -1
# A closure may take this many steps on the servers. Their gradients are kept for one message.
_MAX_STEPS = 64

_log = logging.getLogger("meshflow")

__all__ = [
    "Call",
    "Outcome",
    "RunningClosure",
    "StateNeededError",
    "StepLocation",
    "VariablesNeededError",
    "Worker",
]


class StateNeededError(BaseException):
    """A closure uses an optimizer without slots.

    The coordinator creates the slots, and the closure runs again.

    This is no `Exception`, so that handlers in the closure do not catch it.

    Args:
      optimizer: The optimizer, or its key if it is from another process.
      variables: The variables, or their keys.
    """

    def __init__(self, optimizer: Optimizer, variables: Sequence[Any]) -> None:
        super().__init__("an optimizer has no slots yet")
        self.optimizer, self.variables = optimizer, list(variables)


class VariablesNeededError(BaseException):
    """A closure creates a variable.

    The coordinator creates it for all workers, and the closure runs again.

    This is no `Exception`, so that handlers in the closure do not catch it.

    Args:
      num_variables: Number of variables when the function of the closure was sent.
    """

    def __init__(self, num_variables: int = 0) -> None:
        super().__init__("a closure makes a variable")
        self.num_variables = num_variables


class StepLocation(enum.IntEnum):
    """Location where the optimizer steps of a closure are taken.

    By default, servers take them. If the closure reads variables that it has trained, the worker
    takes them too, on its copies. In other cases the worker takes them, and the servers get the
    resulting changes.
    """

    SERVERS = 0
    BOTH = 1
    WORKER = 2


class StepLocationError(BaseException):
    """A closure uses variables that it has trained.

    It must run again with another location of its optimizer steps.

    This is no `Exception`, so that handlers in the closure do not catch it.

    Args:
      location: The new location.
      loses_slots: Whether concurrent updates of optimizer slots are lost then.
    """

    def __init__(self, location: StepLocation, loses_slots: bool = False) -> None:
        super().__init__("a closure goes on with what it has trained")
        self.location, self.loses_slots = location, loses_slots


@dataclass
class Call:
    """A closure for a worker.

    Attributes:
      closure_id: Id of the closure, unique within its coordinator.
      function: The function.
      args: Its arguments.
      kwargs: Its keyword arguments.
      min_clocks: The clock of each server when the closure was scheduled. The closure sees at least
        the changes up to then.
      floor: Closures with smaller ids are finished.
      slot_keys: By optimizer, the keys of the variables for which it has slots.
      deleted_iterators: Keys of iterators that the program has deleted.
      attempt: Number of earlier attempts at the closure.
      has_private_variables: Whether variables that the closure creates belong to the worker.
    """

    closure_id: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    min_clocks: Sequence[int] = ()
    floor: int = 0
    slot_keys: Mapping[int, set[int]] = field(default_factory=dict)
    deleted_iterators: Sequence[int] = ()
    attempt: int = 0
    has_private_variables: bool = False


@dataclass
class Outcome:
    """Result of a closure.

    Attributes:
      value: The returned value, with NumPy arrays in place of tensors.
      clocks: The clock of each server.
      staleness: For each push, the number of changes by other closures between pull and push.
      repeated: Whether some server had applied the writes before.
      traffic: Bytes that the worker has sent and received since the last outcome.
    """

    value: PyTree
    clocks: list[int]
    staleness: list[int]
    repeated: bool = False
    traffic: tuple[int, int] = (0, 0)


class WorkerCluster(Protocol):
    """Cluster as workers see it; see `Cluster`."""

    @property
    def servers(self) -> Sequence[ServerInterface]:
        """Return the servers."""

    @property
    def worker_count(self) -> int:
        """Return the number of workers."""


class WorkerStrategy(Protocol):
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
        strategy: WorkerStrategy,
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

    def run(self, call: Call) -> Outcome:
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
        self, call: Call, clocks: Sequence[int]
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
                return value, running, running.make_pushes(call, clocks)
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

    def _check_variables(self, call: Call) -> None:
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

    def _should_pull(self, call: Call) -> bool:
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

    def _skip_exchange(self, call: Call, running: RunningClosure) -> bool:
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

    def _resolve_arguments(self, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
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


class RunningClosure:
    """A closure that runs: the values that it sees, and its writes.

    Args:
      worker: The worker.
      call: The closure.
      location: Location of its optimizer steps.

    Attributes:
      worker_id: Index of the worker.
      is_silent: Whether writes are the worker's copy of a step that servers take, so they are not
        sent.
      has_private_variables: Whether variables that are created now belong to the worker.
      is_dry_run: Whether the closure runs only to create its variables.
      values: The values that it has read or written, by variable key.
      outboxes: The outboxes that it has written, with their values, by `id`.
    """

    def __init__(
        self, worker: Worker, call: Call, location: StepLocation = StepLocation.SERVERS
    ) -> None:
        self._worker, self._call = worker, call
        self.worker_id, self.step_location = worker.worker_id, location
        self.is_silent = False
        self.has_private_variables, self.is_dry_run = call.has_private_variables, worker.is_dry_run
        # By traced function, or by this closure outside functions: the variables that steps on
        # servers train, with the number of steps that each counter lacks.
        self._trained: weakref.WeakKeyDictionary[Any, dict[int, int]] = weakref.WeakKeyDictionary()
        # The number of earlier steps, by the same keys.
        self._last_step_ids: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.values: dict[int, Array] = {}
        self.outboxes: dict[int, tuple[Outbox, Array]] = {}

    @property
    def trace_key(self) -> tuple[int, StepLocation]:
        """Return the properties on which traces of functions depend."""
        return self.worker_id, self.step_location

    def get_value(self, variable: HostedVariable) -> Array:
        """Return the value of a variable that the closure sees."""
        value = self.values.get(variable.key)
        # The worker's reference to the value keeps programs from updating it in place.
        return (
            self.values.setdefault(variable.key, self._worker.get_copy(variable))
            if value is None
            else value
        )

    def get_outbox_value(self, box: Outbox) -> Array:
        """Return the value that the closure has written to an outbox, zeros at first."""
        entry = self.outboxes.get(id(box))
        if entry is None and box.is_pooled:
            worker = self._worker
            memory = worker.array_pool.get(
                worker.servers[box.server_id], get_value_shape(box), box.dtype.dtype
            )
            entry = self.outboxes[id(box)] = box, memory
            del memory
        return _make_zeros(box) if entry is None else entry[1]

    def recycle_outboxes(self) -> None:
        """Return the memory of gradients to the worker's pool, after they were sent."""
        for box, value in self.outboxes.values():
            if box.is_pooled:
                self._worker.array_pool.put(self._worker.servers[box.server_id], value)
        self.outboxes.clear()

    # ---- optimizers ------------------------------------------------------------------------

    def check_slots(self, optimizer: Optimizer, variables: Sequence[HostedVariable]) -> None:
        """Check that the servers have the slots of an optimizer for variables.

        Raises:
          StateNeededError: If they do not have them.
          FailedPreconditionError: If no server hosts a variable.
        """
        for variable in variables:
            if not isinstance(variable, HostedVariable):
                raise FailedPreconditionError(
                    f"A closure trains the variable {variable.name}, which was not made in the scope of the "
                    "ParameterServerStrategy. Create models, and the weights of layers by `build`, in `strategy.scope()`."
                )
        slot_keys = self._call.slot_keys.get(getattr(optimizer, "_hosted_key", None) or 0, ())
        is_missing = any(v.key not in slot_keys for v in variables)
        if self.has_worker_steps and not is_missing:
            # In another process, the optimizer may have been copied before the slots were created.
            is_missing = any(optimizer._var_key(v) not in optimizer._index_dict for v in variables)
        if is_missing:
            raise StateNeededError(optimizer, variables)

    def push_gradients(
        self, optimizer: Optimizer, pairs: Sequence[tuple[Gradient, HostedVariable]]
    ) -> None:
        """Write gradients that servers will apply; `Optimizer.apply_gradients` calls this method.

        Raises:
          StepLocationError: In a traced loop, or if an earlier step has trained one of the
            variables, because the gradients depend on its result.
        """
        trace, is_in_loop = self._find_outermost_trace()
        trained = self._trained.setdefault(trace, {})
        has_slots = any(optimizer._slots.values())
        if is_in_loop or self._last_step_ids.get(trace, 0) + 1 >= _MAX_STEPS:
            raise StepLocationError(StepLocation.WORKER, has_slots)
        if not self.has_worker_steps and any(v.key in trained for _, v in pairs):
            raise StepLocationError(StepLocation.BOTH)
        call_index = self._last_step_ids[trace] = self._last_step_ids.get(trace, -1) + 1
        trained.update((v.key, _TRAINED_ON_SERVERS) for _, v in pairs)
        counter = optimizer.iterations
        if isinstance(counter, HostedVariable) and not optimizer.gradient_accumulation_steps:
            trained[counter.key] = trained.get(counter.key, 0) + 1
        boxes = get_gradient_outboxes(optimizer._hosted_key, pairs, call_index)
        boxes.has_slots = has_slots
        boxes.write_gradients([g for g, _ in pairs])

    @contextlib.contextmanager
    def private_variables_scope(self) -> Iterator[None]:
        """Let variables that are created in this context belong to the worker."""
        saved, self.has_private_variables = self.has_private_variables, True
        try:
            yield
        finally:
            self.has_private_variables = saved

    @property
    def has_server_steps(self) -> bool:
        """Check whether servers take the steps of the closure."""
        return self.step_location is not StepLocation.WORKER

    @property
    def has_worker_steps(self) -> bool:
        """Check whether the worker takes the steps of the closure."""
        return self.step_location is not StepLocation.SERVERS

    @contextlib.contextmanager
    def worker_step_scope(self) -> Iterator[None]:
        """Run a step of the worker in this context.

        Its writes are not sent if servers take the step too.
        """
        saved, self.is_silent = self.is_silent, self.step_location is StepLocation.BOTH
        try:
            yield
        finally:
            self.is_silent = saved

    def count_pending_steps(self, variable: HostedVariable) -> int:
        """Return the number of steps on servers that the worker's copy of a step counter lacks.

        The number is 0 for variables that are no step counters.

        Raises:
          StepLocationError: If a step on servers trains the variable, because its value is then
            unknown here.
        """
        if self.has_worker_steps or not self._trained:
            return 0
        num_steps = self._trained.get(self._find_outermost_trace()[0], {}).get(variable.key, 0)
        if num_steps == _TRAINED_ON_SERVERS:
            raise StepLocationError(StepLocation.BOTH)
        return num_steps

    def check_assignment(self, variable: HostedVariable) -> None:
        """Check that a variable can be assigned.

        Raises:
          StepLocationError: If an earlier step on servers changes the variable, because servers
            apply assignments before steps.
        """
        if self._trained and variable.key in self._trained.get(self._find_outermost_trace()[0], {}):
            raise StepLocationError(StepLocation.WORKER)

    def _find_outermost_trace(self) -> tuple[Any, bool]:
        """Return the outermost trace, or this closure, and whether a loop body is being traced."""
        outermost: Any = self
        is_in_loop, trace = False, context.trace
        while trace is not None:
            outermost, is_in_loop, trace = trace, is_in_loop or trace.is_loop_body, trace.parent
        return outermost, is_in_loop

    # ---- what is sent ----------------------------------------------------------------------

    def make_pushes(self, call: Call, clocks: Sequence[int]) -> list[Push | None]:
        """Return the push for each server, or None for a server with nothing to do.

        Args:
          call: The closure.
          clocks: The clock of each server at the last pull.
        """
        pushes = [Push(call.closure_id, clock, attempt=call.attempt) for clock in clocks]
        owners = {id(box.owner): box.owner for box, _ in self.outboxes.values()}
        for owner in owners.values():
            if isinstance(owner, VariableOutboxes):
                self._add_writes(owner, pushes)
            else:
                self._add_step(owner, pushes)
        return [p if p.sets or p.adds or p.steps else None for p in pushes]

    def _get_written(self, box: Outbox) -> Array | None:
        entry = self.outboxes.get(id(box))
        return None if entry is None else entry[1]

    def _add_writes(self, boxes: VariableOutboxes, pushes: list[Push]) -> None:
        key, added, is_set = (
            boxes.variable.key,
            self._get_written(boxes.added),
            self._get_written(boxes.is_set),
        )
        for index in boxes.variable.servers:
            if is_set is not None and int(is_set):
                value = self._get_written(boxes.value)
                assert value is not None
                pushes[index].sets[key] = value
            if added is not None:
                pushes[index].adds[key] = added

    def _add_step(self, boxes: GradientOutboxes, pushes: list[Push]) -> None:
        count = int(self.outboxes[id(boxes.count)][1])
        if count > 1:
            # The program called a function that was traced earlier, so the step was taken several
            # times with the same outboxes.
            raise StepLocationError(StepLocation.WORKER, boxes.has_slots)
        if not count:
            return
        for index, push in enumerate(pushes):
            trained = [
                (
                    v.key,
                    _assemble_gradient(
                        [self.outboxes[id(b)][1] for b in parts], get_value_shape(v)
                    ),
                )
                for v, parts in zip(boxes.variables, boxes.boxes, strict=True)
                if index in v.servers
            ]
            keys, gradients = tuple(k for k, _ in trained), tuple(g for _, g in trained)
            push.steps.append(OptimizerStep(boxes.optimizer, keys, gradients))


def _make_zeros(box: Outbox) -> Array:
    make = _get_shared_zeros if box._is_lent else _allocate_zeros
    return make(get_value_shape(box), box.dtype.dtype)


def _allocate_zeros(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    return transfers.transfer(np.zeros(shape, dtype), copy=False)


_get_shared_zeros = functools.lru_cache(64)(_allocate_zeros)


def _assemble_gradient(parts: list[Array], shape: tuple[int, ...]) -> Array | VariableRows:
    if len(parts) == 1:
        return parts[0]
    values, indices = parts[0], np.asarray(parts[1])
    # For a sharded table, the program computes all rows for each shard. Rows of other shards have
    # indices past the end of this one.
    is_local = indices < shape[0]
    return (
        VariableRows(values, indices)
        if is_local.all()
        else VariableRows(np.asarray(values)[is_local], indices[is_local])
    )


def _map_structure(function: Callable[[Any], Any], value: PyTree) -> PyTree:
    return function(value) if type(value) is Tensor else nest.map_structure(function, value)


def _to_host(leaf: object) -> object:
    if isinstance(leaf, (IndexedSlices, SparseTensor)):
        return leaf
    leaf = read_tensor(leaf)
    if isinstance(leaf, Tensor):
        return leaf.numpy()
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf
