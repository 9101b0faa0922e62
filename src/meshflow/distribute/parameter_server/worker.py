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
from meshflow.core.values.tensor import Tensor
from meshflow.distribute.parameter_server.buffers import Spares
from meshflow.distribute.parameter_server.compression import Compressor
from meshflow.distribute.parameter_server.exchanges import Exchanges, entered
from meshflow.distribute.parameter_server.hosting import (
    Gradient,
    GradientBoxes,
    HostedVariable,
    Optimizer,
    Outbox,
    Outboxes,
    gradient_boxes,
    not_shared,
)
from meshflow.distribute.parameter_server.messages import (
    Options,
    Push,
    Rows,
    ServerInterface,
    Step,
)
from meshflow.distribute.parameter_server.remote_values import PerWorkerValues
from meshflow.environment.types import Array, PyTree
from meshflow.kernels import sizes
from meshflow.profiler.annotations import Trace

# Marks a variable, in place of a number of steps, that steps on the servers train.
_TRAINED = -1
# A closure may take this many steps on the servers. Their gradients are kept for one message.
_MOST_STEPS = 64

_log = logging.getLogger("meshflow")

__all__ = [
    "Call",
    "Outcome",
    "Running",
    "StateNeededError",
    "Steps",
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
        self.known = num_variables


class Steps(enum.IntEnum):
    """Location where the optimizer steps of a closure are taken.

    By default, servers take them. If the closure reads variables that it has trained, the worker
    takes them too, on its copies. In other cases the worker takes them, and the servers get the
    resulting changes.
    """

    OF_SERVERS = 0
    FOLLOWED = 1
    OWN = 2


class OwnStepsError(BaseException):
    """A closure uses variables that it has trained.

    It must run again with another location of its optimizer steps.

    This is no `Exception`, so that handlers in the closure do not catch it.

    Args:
      location: The new location.
      loses_slots: Whether concurrent updates of optimizer slots are lost then.
    """

    def __init__(self, location: Steps, loses_slots: bool = False) -> None:
        super().__init__("a closure goes on with what it has trained")
        self.steps, self.loses_slots = location, loses_slots


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

    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    after: Sequence[int] = ()
    floor: int = 0
    states: Mapping[int, set[int]] = field(default_factory=dict)
    ended: Sequence[int] = ()
    attempt: int = 0
    makes_own: bool = False


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
    def options(self) -> Options:
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

    rehearses = False

    def __init__(
        self,
        worker_id: int,
        servers: Sequence[ServerInterface],
        strategy: WorkerStrategy,
        crowded: bool = False,
        has_remote_servers: bool = False,
    ) -> None:
        self.number = worker_id
        self.servers = servers
        self._strategy = strategy
        # Threads of a parallel kernel would wait for cores that other workers use.
        self._cores = sizes.one_core if crowded else contextlib.nullcontext
        self._exchanges = Exchanges(servers, has_remote_servers)
        # Clock of each server up to which the copies in `_copies` are updated.
        self._own_clocks = [-1] * len(servers)
        self._values: dict[int, jax.Array] = {}
        self.resources: dict[int, Any] = {}
        # Arrays that were sent. Programs reuse their memory for the next gradients.
        self.spares = Spares()
        self._compress = Compressor(strategy.options.compression)
        # Functions that used no variables in their last run, and whether no pull followed such a
        # run.
        self._without_variables: weakref.WeakSet[Any] = weakref.WeakSet()
        self._behind = False
        # The number of programs of each function that were checked for variables without a server.
        self._looked_at: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._apart = has_remote_servers
        # Locations of the optimizer steps of functions that do not take them on servers only.
        self._stepping: weakref.WeakKeyDictionary[Any, Steps] = weakref.WeakKeyDictionary()
        # Two closures may overlap: one computes while the other one pushes and pulls.
        self._computing = threading.Lock()

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
        with self._computing, Trace("closure", step_num=call.number, _r=1):
            for key in call.ended:
                self.resources.pop(key, None)
            if self._must_pull(call):
                self._exchanges.pull(call.floor)
            clocks = self._settled()
            with self._cores():
                value, running, pushes = self._computed(call, clocks)
            if self._is_over(call, running):
                return Outcome(value, clocks, [], False, self._exchanges.traffic())
            self._compress(pushes)
            # Without these references, programs may update the values in place.
            running.values.clear()
        replies, repeated = self._exchanges.push(call.number, call.attempt, call.floor, pushes)
        has_push = [push is not None for push in pushes]
        del pushes
        running.spare()
        stale = [c.staleness for c, s in zip(replies, has_push, strict=True) if s]
        clocks = [c.clock for c in replies]
        return Outcome(value, clocks, stale, repeated, self._exchanges.traffic())

    def _computed(
        self, call: Call, clocks: Sequence[int]
    ) -> tuple[Any, Running, list[Push | None]]:
        """Run the function of a closure.

        Returns:
          The result, the closure with its writes, and the push for each server.
        """
        location = Steps.OF_SERVERS
        with contextlib.suppress(TypeError):
            location = self._stepping.get(call.function, location)
        while True:
            running = Running(self, call, location)
            try:
                with self._strategy.scope(), entered(running):
                    with running.making_own():
                        args, kwargs = self._own_arguments(call)
                    value = self._result(call.function, args, kwargs)
                self._check_variables(call)
                return value, running, running.pushes(call, clocks)
            except OwnStepsError as error:
                location = error.steps
                if error.loses_slots and self._strategy.cluster.worker_count > 1:
                    _log.warning(
                        "%s takes many steps, or takes steps in a traced loop. Concurrent updates of "
                        "optimizer slots, such as momenta, are lost then: the last writer wins. "
                        "A short Python loop loses nothing.",
                        getattr(call.function, "__name__", "A closure"),
                    )
                with contextlib.suppress(TypeError):
                    self._stepping[call.function] = location

    def _check_variables(self, call: Call) -> None:
        """Raise an error if the closure reads a variable that no server hosts.

        Workers in the coordinator's process would share it, unlike workers in other processes.
        """
        function = call.function
        if self._apart or call.makes_own or not isinstance(function, Function):
            return
        if self._looked_at.get(function, 0) == len(function._cache):
            return
        programs = list(function._cache.values())
        self._looked_at[function] = len(programs)
        for program in programs:
            for message in filter(None, map(not_shared, program.traced.captures)):
                raise FailedPreconditionError(message)

    def _result(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PyTree:
        """Call a function, and return its result with NumPy arrays in place of tensors."""
        return _mapped(_on_host, function(*args, **kwargs))

    def _must_pull(self, call: Call) -> bool:
        """Check whether variables must be pulled before a closure."""
        if any(own < after for own, after in zip(self._exchanges.clocks, call.after, strict=False)):
            return True
        if not self._behind:
            return False
        try:
            return call.function not in self._without_variables
        except TypeError:
            return True

    def _is_over(self, call: Call, running: Running) -> bool:
        """Check whether a closure has used no variables, so no exchange with servers is needed.

        The next closure pulls then.
        """
        # After a failed attempt, an exchange is necessary, because its writes are unknown to this
        # worker.
        self._behind = not (running.values or running.outboxes or call.attempt)
        # Functions without weak references are not recorded, so variables are pulled before each of
        # their runs.
        with contextlib.suppress(TypeError):
            note = self._without_variables.add if self._behind else self._without_variables.discard
            note(call.function)
        return self._behind

    def _own_arguments(self, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a closure, with this worker's values for `PerWorkerValues`."""
        if not call.kwargs and all(type(a) is Tensor for a in call.args):
            return call.args, call.kwargs
        args, kwargs = nest.map_structure(self._own, (call.args, call.kwargs))
        return args, kwargs

    def _own(self, leaf: object) -> object:
        return leaf._of_worker(self) if isinstance(leaf, PerWorkerValues) else leaf

    # ---- values ----------------------------------------------------------------------------

    def value(self, variable: HostedVariable) -> Array:
        """Return the worker's copy of a variable, which is pulled on first use."""
        value = self._values.get(variable.key)
        if value is None:
            pulled = self._exchanges.first(variable.servers[0], variable.key)
            value = self._values[variable.key] = _on_device(pulled)
        return value

    def _settled(self) -> list[int]:
        """Update the copies from replies that have arrived, and return the clock of each server.

        No closure may compute meanwhile.
        """
        replies = self._exchanges.arrived
        while replies:
            for index, change in enumerate(replies.popleft()):
                self._own_clocks[index] = change.clock
                for key, value in change.values.items():
                    if isinstance(value, Rows):
                        _replace_rows(self._values, key, value)
                    else:
                        self._values[key] = _on_device(value)
        return list(self._own_clocks)


def _on_device(value: Array) -> jax.Array:
    return transfers.to_device(value) if isinstance(value, np.ndarray) else value


def _replace_rows(values: dict[int, jax.Array], key: int, rows: Rows) -> None:
    """Replace rows of an array, in place unless there are other references to it."""
    old = values.pop(key)
    if sys.getrefcount(old) > 2:
        old = transfers.duplicate(old)
    values[key] = _with_rows(old, _on_device(rows.indices), _on_device(rows.values))


_with_rows = jax.jit(lambda old, indices, new: old.at[indices].set(new), donate_argnums=0)


class Running:
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

    def __init__(self, worker: Worker, call: Call, location: Steps = Steps.OF_SERVERS) -> None:
        self._worker, self._call = worker, call
        self.worker, self.steps = worker.number, location
        self.silent = False
        self.makes_own, self.rehearses = call.makes_own, worker.rehearses
        # By traced function, or by this closure outside functions: the variables that steps on
        # servers train, with the number of steps that each counter lacks.
        self._trained: weakref.WeakKeyDictionary[Any, dict[int, int]] = weakref.WeakKeyDictionary()
        # The number of earlier steps, by the same keys.
        self._turns: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.values: dict[int, Array] = {}
        self.outboxes: dict[int, tuple[Outbox, Array]] = {}

    @property
    def kind(self) -> tuple[int, Steps]:
        """Return the properties on which traces of functions depend."""
        return self.worker, self.steps

    def value(self, variable: HostedVariable) -> Array:
        """Return the value of a variable that the closure sees."""
        value = self.values.get(variable.key)
        # The worker's reference to the value keeps programs from updating it in place.
        return (
            self.values.setdefault(variable.key, self._worker.value(variable))
            if value is None
            else value
        )

    def outgoing(self, box: Outbox) -> Array:
        """Return the value that the closure has written to an outbox, zeros at first."""
        entry = self.outboxes.get(id(box))
        if entry is None and box.spared:
            worker = self._worker
            memory = worker.spares.get(worker.servers[box.server], box._shape, box.dtype.dtype)
            entry = self.outboxes[id(box)] = box, memory
            del memory
        return _zeros(box) if entry is None else entry[1]

    def spare(self) -> None:
        """Return the memory of gradients to the worker's pool, after they were sent."""
        for box, value in self.outboxes.values():
            if box.spared:
                self._worker.spares.put(self._worker.servers[box.server], value)
        self.outboxes.clear()

    # ---- optimizers ------------------------------------------------------------------------

    def need_state(self, optimizer: Optimizer, variables: Sequence[HostedVariable]) -> None:
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
        slot_keys = self._call.states.get(getattr(optimizer, "_hosted_key", None) or 0, ())
        is_missing = any(v.key not in slot_keys for v in variables)
        if self.worker_steps and not is_missing:
            # In another process, the optimizer may have been copied before the slots were created.
            is_missing = any(optimizer._var_key(v) not in optimizer._index_dict for v in variables)
        if is_missing:
            raise StateNeededError(optimizer, variables)

    def push(self, optimizer: Optimizer, pairs: Sequence[tuple[Gradient, HostedVariable]]) -> None:
        """Write gradients that servers will apply; `Optimizer.apply_gradients` calls this method.

        Raises:
          StepLocationError: In a traced loop, or if an earlier step has trained one of the
            variables, because the gradients depend on its result.
        """
        trace, is_in_loop = self._whole()
        trained = self._trained.setdefault(trace, {})
        has_slots = any(optimizer._slots.values())
        if is_in_loop or self._turns.get(trace, 0) + 1 >= _MOST_STEPS:
            raise OwnStepsError(Steps.OWN, has_slots)
        if not self.worker_steps and any(v.key in trained for _, v in pairs):
            raise OwnStepsError(Steps.FOLLOWED)
        call_index = self._turns[trace] = self._turns.get(trace, -1) + 1
        trained.update((v.key, _TRAINED) for _, v in pairs)
        counter = optimizer.iterations
        if isinstance(counter, HostedVariable) and not optimizer.gradient_accumulation_steps:
            trained[counter.key] = trained.get(counter.key, 0) + 1
        boxes = gradient_boxes(optimizer._hosted_key, pairs, call_index)
        boxes.has_slots = has_slots
        boxes.put([g for g, _ in pairs])

    @contextlib.contextmanager
    def making_own(self) -> Iterator[None]:
        """Let variables that are created in this context belong to the worker."""
        saved, self.makes_own = self.makes_own, True
        try:
            yield
        finally:
            self.makes_own = saved

    @property
    def servers_step(self) -> bool:
        """Check whether servers take the steps of the closure."""
        return self.steps is not Steps.OWN

    @property
    def worker_steps(self) -> bool:
        """Check whether the worker takes the steps of the closure."""
        return self.steps is not Steps.OF_SERVERS

    @contextlib.contextmanager
    def taking_steps(self) -> Iterator[None]:
        """Run a step of the worker in this context.

        Its writes are not sent if servers take the step too.
        """
        saved, self.silent = self.silent, self.steps is Steps.FOLLOWED
        try:
            yield
        finally:
            self.silent = saved

    def steps_before(self, variable: HostedVariable) -> int:
        """Return the number of steps on servers that the worker's copy of a step counter lacks.

        The number is 0 for variables that are no step counters.

        Raises:
          StepLocationError: If a step on servers trains the variable, because its value is then
            unknown here.
        """
        if self.worker_steps or not self._trained:
            return 0
        num_steps = self._trained.get(self._whole()[0], {}).get(variable.key, 0)
        if num_steps == _TRAINED:
            raise OwnStepsError(Steps.FOLLOWED)
        return num_steps

    def note_set(self, variable: HostedVariable) -> None:
        """Check that a variable can be assigned.

        Raises:
          StepLocationError: If an earlier step on servers changes the variable, because servers
            apply assignments before steps.
        """
        if self._trained and variable.key in self._trained.get(self._whole()[0], {}):
            raise OwnStepsError(Steps.OWN)

    def _whole(self) -> tuple[Any, bool]:
        """Return the outermost trace, or this closure, and whether a loop body is being traced."""
        outermost: Any = self
        is_in_loop, trace = False, context.trace
        while trace is not None:
            outermost, is_in_loop, trace = trace, is_in_loop or trace.repeats, trace.parent
        return outermost, is_in_loop

    # ---- what is sent ----------------------------------------------------------------------

    def pushes(self, call: Call, clocks: Sequence[int]) -> list[Push | None]:
        """Return the push for each server, or None for a server with nothing to do.

        Args:
          call: The closure.
          clocks: The clock of each server at the last pull.
        """
        pushes = [Push(call.number, clock, attempt=call.attempt) for clock in clocks]
        owners = {id(box.owner): box.owner for box, _ in self.outboxes.values()}
        for owner in owners.values():
            if isinstance(owner, Outboxes):
                self._put_writes(owner, pushes)
            else:
                self._put_step(owner, pushes)
        return [p if p.sets or p.adds or p.steps else None for p in pushes]

    def _sent(self, box: Outbox) -> Array | None:
        entry = self.outboxes.get(id(box))
        return None if entry is None else entry[1]

    def _put_writes(self, boxes: Outboxes, pushes: list[Push]) -> None:
        key, added, is_set = boxes.variable.key, self._sent(boxes.added), self._sent(boxes.is_set)
        for index in boxes.variable.servers:
            if is_set is not None and int(is_set):
                value = self._sent(boxes.value)
                assert value is not None
                pushes[index].sets[key] = value
            if added is not None:
                pushes[index].adds[key] = added

    def _put_step(self, boxes: GradientBoxes, pushes: list[Push]) -> None:
        count = int(self.outboxes[id(boxes.count)][1])
        if count > 1:
            # The program called a function that was traced earlier, so the step was taken several
            # times with the same outboxes.
            raise OwnStepsError(Steps.OWN, boxes.has_slots)
        if not count:
            return
        for index, push in enumerate(pushes):
            trained = [
                (v.key, _gradient([self.outboxes[id(b)][1] for b in parts], v._shape))
                for v, parts in zip(boxes.variables, boxes.boxes, strict=True)
                if index in v.servers
            ]
            keys, gradients = tuple(k for k, _ in trained), tuple(g for _, g in trained)
            push.steps.append(Step(boxes.optimizer, keys, gradients))


def _zeros(box: Outbox) -> Array:
    make = _shared_zeros if box._is_lent else _fresh_zeros
    return make(box._shape, box.dtype.dtype)


def _fresh_zeros(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    return transfers.transfer(np.zeros(shape, dtype), copy=False)


_shared_zeros = functools.lru_cache(64)(_fresh_zeros)


def _gradient(parts: list[Array], shape: tuple[int, ...]) -> Array | Rows:
    if len(parts) == 1:
        return parts[0]
    values, indices = parts[0], np.asarray(parts[1])
    # For a sharded table, the program computes all rows for each shard. Rows of other shards have
    # indices past the end of this one.
    is_local = indices < shape[0]
    return (
        Rows(values, indices)
        if is_local.all()
        else Rows(np.asarray(values)[is_local], indices[is_local])
    )


def _mapped(function: Callable[[Any], Any], value: PyTree) -> PyTree:
    return function(value) if type(value) is Tensor else nest.map_structure(function, value)


def _on_host(leaf: object) -> object:
    if isinstance(leaf, (IndexedSlices, SparseTensor)):
        return leaf
    if hasattr(leaf, "_as_tensor"):
        leaf = leaf._as_tensor()
    if isinstance(leaf, Tensor):
        return leaf.numpy()
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf
