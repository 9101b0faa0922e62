"""Running closure: the values that it sees, and its writes."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from meshflow.core.runtime import transfers
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import FailedPreconditionError
from meshflow.core.variables.variable import get_value_shape
from meshflow.distribute.parameter_server.transport.memory_pools import ArrayPool
from meshflow.distribute.parameter_server.transport.messages import (
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
    get_gradient_outboxes,
)
from meshflow.distribute.parameter_server.worker.calls import (
    ClosureCall,
    StateNeededError,
    StepLocation,
    StepLocationError,
)
from meshflow.environment.types import Array

# Marks a variable, in place of a number of steps, that steps on the servers train.
_TRAINED_ON_SERVERS = -1
# A closure may take this many steps on the servers. Their gradients are kept for one message.
_MAX_STEPS = 64


class ClosureWorker(Protocol):
    """Worker as its closures see it; see `Worker`."""

    worker_id: int
    is_dry_run: bool
    array_pool: ArrayPool
    servers: Sequence[ServerInterface]

    def get_copy(self, variable: HostedVariable) -> Array:
        """Return the worker's copy of a variable."""


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
        self,
        worker: ClosureWorker,
        call: ClosureCall,
        location: StepLocation = StepLocation.SERVERS,
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

    def make_pushes(self, clocks: Sequence[int]) -> list[Push | None]:
        """Return the push for each server, or None for a server with nothing to do.

        Args:
          clocks: The clock of each server at the last pull.
        """
        call = self._call
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
