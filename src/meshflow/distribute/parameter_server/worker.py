"""A worker: runs closures on its own copies of the variables, and pushes what they wrote."""

from __future__ import annotations

import contextlib
import enum
import functools
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    GradientBoxes,
    HostedVariable,
    Outbox,
    Outboxes,
    gradient_boxes,
    not_shared,
)
from meshflow.distribute.parameter_server.messages import (
    Push,
    Rows,
    Step,
)
from meshflow.kernels import sizes
from meshflow.profiler.annotations import Trace

# Stands for a variable that servers will train.
_TRAINED = -1
# Gradients of so many steps are not kept for one message.
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
    """A closure uses an optimizer whose slots are not there yet: the coordinator makes them, and it is run again.

    No `Exception`, so that the closure's own handlers let it pass.

    Args:
      optimizer: the optimizer, or in another process its key.
      variables: the variables, or in another process their keys.
    """

    def __init__(self, optimizer: Any, variables: Sequence[Any]) -> None:
        super().__init__("an optimizer has no slots yet")
        self.optimizer, self.variables = optimizer, list(variables)


class VariablesNeededError(BaseException):
    """A closure makes a variable: the coordinator makes those that workers share, and the closure is run again.

    No `Exception`, so that the closure's own handlers let it pass.

    Args:
      known: how many variables there were when the closure's function was sent.
    """

    def __init__(self, known: int = 0) -> None:
        super().__init__("a closure makes a variable")
        self.known = known


class Steps(enum.IntEnum):
    """Who takes a closure's steps: servers, or the worker too, whose copies the closure then sees, or the worker alone."""

    OF_SERVERS = 0
    FOLLOWED = 1
    OWN = 2


class OwnStepsError(BaseException):
    """A closure goes on with what it has trained: it is run again, and the worker takes its steps.

    No `Exception`, so that the closure's own handlers let it pass.

    Args:
      steps: whether servers take them too.
      loses_slots: whether slots of an optimizer that others train with too are then those of the last worker.
    """

    def __init__(self, steps: Steps, loses_slots: bool = False) -> None:
        super().__init__("a closure goes on with what it has trained")
        self.steps, self.loses_slots = steps, loses_slots


@dataclass
class Call:
    """A closure for a worker.

    Attributes:
      number: its number, one for each closure of a coordinator.
      function: what to call.
      args: its arguments.
      kwargs: its keyword arguments.
      after: each server's clock when it was scheduled: the closure sees at least these changes.
      floor: closures with smaller numbers are over.
      states: by optimizer, the variables that it has slots of.
      ended: iterators that are needed no more.
      attempt: how often the closure was given to a worker before.
      makes_own: whether variables that it makes are the worker's own.
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
    """What came of a closure.

    Attributes:
      value: the result, with NumPy arrays for tensors.
      clocks: each server's clock.
      staleness: of each push, how many changes came between.
      repeated: whether some server had done the closure's writes before.
      traffic: bytes that the worker has sent and received since the last outcome.
    """

    value: Any
    clocks: list[int]
    staleness: list[int]
    repeated: bool = False
    traffic: tuple[int, int] = (0, 0)


class Worker:
    """Runs closures one after the other.

    Args:
      number: the worker's number.
      servers: the servers, each with `exchange`.
      strategy: the strategy that closures find as the current one.
      crowded: whether other workers compute on the same cores, of which there is no more than one for each.
      apart: whether servers are in other processes, and are asked at the same time.

    Attributes:
      rehearses: whether closures are only run for the variables that they make.
    """

    rehearses = False

    def __init__(
        self,
        number: int,
        servers: Sequence[Any],
        strategy: Any,
        crowded: bool = False,
        apart: bool = False,
    ) -> None:
        self.number = number
        self.servers = servers
        self._strategy = strategy
        # A team of threads would wait for a core that another worker has.
        self._cores = sizes.one_core if crowded else contextlib.nullcontext
        self._exchanges = Exchanges(servers, apart)
        # Each server's clock of what closures see.
        self._own_clocks = [-1] * len(servers)
        self._values: dict[int, Any] = {}
        # What closures' arguments stand for here, such as iterators; see `remote_values`.
        self.resources: dict[int, Any] = {}
        # Memory of gradients that were sent.
        self.spares = Spares()
        self._compress = Compressor(strategy.options.compression)
        # Closures that touched no variables when they ran last, and whether nothing was pulled after one.
        self._without_variables: weakref.WeakSet[Any] = weakref.WeakSet()
        self._behind = False
        # How many programs of a function were looked at for variables of the coordinator's own.
        self._looked_at: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._apart = apart
        # Closures that go on with what they have trained.
        self._stepping: weakref.WeakKeyDictionary[Any, Steps] = weakref.WeakKeyDictionary()
        # Closures may overlap: one computes while another pushes what it wrote, and pulls.
        self._computing = threading.Lock()

    def run(self, call: Call) -> Outcome:
        """Runs a closure: pulls if it must, computes, pushes, and pulls for the next one.

        Args:
          call: the closure.

        Raises:
          StateNeededError: when an optimizer has no slots; nothing was pushed.
          VariablesNeededError: when it makes a variable that workers may share; nothing was pushed.
          Exception: the closure's own; nothing was pushed.
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
            # What the closure saw may be changed in place from here on.
            running.values.clear()
        changes, repeated = self._exchanges.push(call.number, call.attempt, call.floor, pushes)
        sent = [push is not None for push in pushes]
        del pushes
        running.spare()
        stale = [c.staleness for c, s in zip(changes, sent, strict=True) if s]
        clocks = [c.clock for c in changes]
        return Outcome(value, clocks, stale, repeated, self._exchanges.traffic())

    def _computed(
        self, call: Call, clocks: Sequence[int]
    ) -> tuple[Any, Running, list[Push | None]]:
        """What a closure returns, what it wrote, and what servers are to hear of that."""
        steps = Steps.OF_SERVERS
        with contextlib.suppress(TypeError):
            steps = self._stepping.get(call.function, steps)
        while True:
            running = Running(self, call, steps)
            try:
                with self._strategy.scope(), entered(running):
                    with running.making_own():
                        args, kwargs = self._own_arguments(call)
                    value = self._result(call.function, args, kwargs)
                self._check_variables(call)
                return value, running, running.pushes(call, clocks)
            except OwnStepsError as error:
                steps = error.steps
                if error.loses_slots and self._strategy.cluster.worker_count > 1:
                    _log.warning(
                        "%s takes many steps, or steps in a loop of the program: of an optimizer's slots, such as momenta, "
                        "those of the worker that came last stay. A short loop of Python's own loses nothing.",
                        getattr(call.function, "__name__", "A closure"),
                    )
                with contextlib.suppress(TypeError):
                    self._stepping[call.function] = steps

    def _check_variables(self, call: Call) -> None:
        """Refuses a variable of the coordinator's own, which it would share with the workers of its process alone."""
        function = call.function
        if self._apart or call.makes_own or not isinstance(function, Function):
            return
        if self._looked_at.get(function, 0) == len(function._cache):
            return
        programs = list(function._cache.values())
        self._looked_at[function] = len(programs)
        for program in programs:
            for wrong in filter(None, map(not_shared, program.traced.captures)):
                raise FailedPreconditionError(wrong)

    def _result(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What a function returns, on the host."""
        return _mapped(_on_host, function(*args, **kwargs))

    def _must_pull(self, call: Call) -> bool:
        """Whether a closure's values have to be pulled before it."""
        if any(own < after for own, after in zip(self._exchanges.clocks, call.after, strict=False)):
            return True
        if not self._behind:
            return False
        try:
            return call.function not in self._without_variables
        except TypeError:
            return True

    def _is_over(self, call: Call, running: Running) -> bool:
        """Whether a closure has touched no variables: servers need not hear of it, and the next one can do the pulling."""
        # What another attempt has written is not known.
        self._behind = not (running.values or running.outboxes or call.attempt)
        # One that no such set can have is pulled for each time.
        with contextlib.suppress(TypeError):
            note = self._without_variables.add if self._behind else self._without_variables.discard
            note(call.function)
        return self._behind

    def _own_arguments(self, call: Call) -> tuple[Any, Any]:
        """A closure's arguments with what they stand for on this worker."""
        if not call.kwargs and all(type(a) is Tensor for a in call.args):
            return call.args, call.kwargs
        args, kwargs = nest.map_structure(self._own, (call.args, call.kwargs))
        return args, kwargs

    def _own(self, leaf: Any) -> Any:
        """What an argument stands for on this worker."""
        of_worker = getattr(leaf, "_of_worker", None)
        return leaf if of_worker is None else of_worker(self)

    # ---- values ----------------------------------------------------------------------------

    def value(self, variable: HostedVariable) -> Any:
        """The own copy of a variable; pulled when it was never used before."""
        found = self._values.get(variable.key)
        if found is None:
            first = self._exchanges.first(variable.servers[0], variable.key)
            found = self._values[variable.key] = _on_device(first)
        return found

    def _settled(self) -> list[int]:
        """Takes what has arrived, while no closure computes; each server's clock of the values then."""
        arrived = self._exchanges.arrived
        while arrived:
            for number, change in enumerate(arrived.popleft()):
                self._own_clocks[number] = change.clock
                for key, value in change.values.items():
                    if isinstance(value, Rows):
                        _replace_rows(self._values, key, value)
                    else:
                        self._values[key] = _on_device(value)
        return list(self._own_clocks)


def _on_device(value: Any) -> Any:
    return transfers.to_device(value) if isinstance(value, np.ndarray) else value


def _replace_rows(values: dict[int, Any], key: int, rows: Rows) -> None:
    """Replaces rows of an array, in place unless somebody else has it too."""
    old = values.pop(key)
    if sys.getrefcount(old) > 2:
        old = transfers.duplicate(old)
    values[key] = _with_rows(old, _on_device(rows.indices), _on_device(rows.values))


_with_rows = jax.jit(lambda old, indices, new: old.at[indices].set(new), donate_argnums=0)


class Running:
    """A closure that runs: the values it sees, and what it writes.

    Args:
      worker: the worker.
      call: the closure.
      steps: who takes its steps. Of one that reads what it has trained, or takes several, the worker takes them too, for
        the closure to see; of one that takes them in a loop, or writes what it has trained, servers get what came of the
        worker's.

    Attributes:
      values: what it has read and written so far, as it sees it.
      makes_own: whether variables made now are the worker's own.
      rehearses: whether it is run for the variables that it makes.
      outboxes: what servers are to do, by outbox.
    """

    def __init__(self, worker: Worker, call: Call, steps: Steps = Steps.OF_SERVERS) -> None:
        self._worker, self._call = worker, call
        self.worker, self.steps = worker.number, steps
        # While it takes a step of which servers hear otherwise.
        self.silent = False
        self.makes_own, self.rehearses = call.makes_own, worker.rehearses
        # By function that is traced, or this: the variables that servers will train, and how many steps optimizers took.
        self._trained: weakref.WeakKeyDictionary[Any, dict[int, int]] = weakref.WeakKeyDictionary()
        # How many steps it took before the last one.
        self._turns: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.values: dict[int, Any] = {}
        self.outboxes: dict[int, tuple[Outbox, Any]] = {}

    @property
    def kind(self) -> Any:
        """What functions are traced apart for."""
        return self.worker, self.steps

    def value(self, variable: HostedVariable) -> Any:
        """The value that the closure sees."""
        found = self.values.get(variable.key)
        # Known twice, here and to the worker: a program that writes it is given a copy.
        return (
            self.values.setdefault(variable.key, self._worker.value(variable))
            if found is None
            else found
        )

    def outgoing(self, box: Outbox) -> Any:
        """What the closure has written to an outbox; zeros at first."""
        found = self.outboxes.get(id(box))
        if found is None and box.spared:
            worker = self._worker
            spare = worker.spares.get(worker.servers[box.server], box._shape, box.dtype.dtype)
            found = self.outboxes[id(box)] = box, spare
            del spare
        return _zeros(box) if found is None else found[1]

    def spare(self) -> None:
        """Gives back the memory of gradients, after they were sent."""
        for box, value in self.outboxes.values():
            if box.spared:
                self._worker.spares.put(self._worker.servers[box.server], value)
        self.outboxes.clear()

    # ---- optimizers ------------------------------------------------------------------------

    def need_state(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Checks that the servers have an optimizer's slots for variables.

        Raises:
          StateNeededError: when they have not.
          FailedPreconditionError: for a variable that is on no server.
        """
        for variable in variables:
            if not isinstance(variable, HostedVariable):
                raise FailedPreconditionError(
                    f"A closure trains the variable {variable.name}, which was not made in the scope of the "
                    "ParameterServerStrategy. Make models, and layers' weights by `build`, in `strategy.scope()`."
                )
        known = self._call.states.get(getattr(optimizer, "_hosted_key", None) or 0, ())
        needed = any(v.key not in known for v in variables)
        if self.worker_steps and not needed:
            # In another process the optimizer may be a copy of the time before.
            needed = any(optimizer._var_key(v) not in optimizer._index_dict for v in variables)
        if needed:
            raise StateNeededError(optimizer, variables)

    def push(self, optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Notes gradients for servers to apply; called by `Optimizer.apply_gradients`.

        Raises:
          OwnStepsError: in a loop, and for a second step: the gradients of that need what the first one made.
        """
        whole, repeats = self._whole()
        trained = self._trained.setdefault(whole, {})
        has_slots = any(optimizer._slots.values())
        if repeats or self._turns.get(whole, 0) + 1 >= _MOST_STEPS:
            raise OwnStepsError(Steps.OWN, has_slots)
        if not self.worker_steps and any(v.key in trained for _, v in pairs):
            raise OwnStepsError(Steps.FOLLOWED)
        turn = self._turns[whole] = self._turns.get(whole, -1) + 1
        trained.update((v.key, _TRAINED) for _, v in pairs)
        steps = optimizer.iterations
        if isinstance(steps, HostedVariable) and not optimizer.gradient_accumulation_steps:
            trained[steps.key] = trained.get(steps.key, 0) + 1
        boxes = gradient_boxes(optimizer._hosted_key, pairs, turn)
        boxes.has_slots = has_slots
        boxes.put([g for g, _ in pairs])

    @contextlib.contextmanager
    def making_own(self) -> Iterator[None]:
        """What is made inside, such as a dataset, is the worker's own with all its variables."""
        saved, self.makes_own = self.makes_own, True
        try:
            yield
        finally:
            self.makes_own = saved

    @property
    def servers_step(self) -> bool:
        """Whether servers take its steps."""
        return self.steps is not Steps.OWN

    @property
    def worker_steps(self) -> bool:
        """Whether the worker takes them."""
        return self.steps is not Steps.OF_SERVERS

    @contextlib.contextmanager
    def taking_steps(self) -> Iterator[None]:
        """What is written inside are steps of the worker."""
        saved, self.silent = self.silent, self.steps is Steps.FOLLOWED
        try:
            yield
        finally:
            self.silent = saved

    def steps_before(self, variable: HostedVariable) -> int:
        """How many steps, of which servers will hear, a variable counts: not 0 for an optimizer's step number.

        Raises:
          OwnStepsError: for a variable that such a step trains.
        """
        if self.worker_steps or not self._trained:
            return 0
        steps = self._trained.get(self._whole()[0], {}).get(variable.key, 0)
        if steps == _TRAINED:
            raise OwnStepsError(Steps.FOLLOWED)
        return steps

    def note_set(self, variable: HostedVariable) -> None:
        """Hears of a value that replaces a variable's.

        Raises:
          OwnStepsError: for a variable that a step has changed of which servers will hear: they set values first.
        """
        if self._trained and variable.key in self._trained.get(self._whole()[0], {}):
            raise OwnStepsError(Steps.OWN)

    def _whole(self) -> tuple[Any, bool]:
        """The outermost function that is traced, or this; and whether a loop's body is."""
        whole: Any = self
        repeats, trace = False, context.trace
        while trace is not None:
            whole, repeats, trace = trace, repeats or trace.repeats, trace.parent
        return whole, repeats

    # ---- what is sent ----------------------------------------------------------------------

    def pushes(self, call: Call, clocks: Sequence[int]) -> list[Push | None]:
        """The message for each server; None where there is nothing to do.

        Args:
          call: the closure.
          clocks: each server's clock of the values used.
        """
        pushes = [Push(call.number, clock, attempt=call.attempt) for clock in clocks]
        written = {id(box.owner): box.owner for box, _ in self.outboxes.values()}
        for owner in written.values():
            if isinstance(owner, Outboxes):
                self._put_writes(owner, pushes)
            else:
                self._put_step(owner, pushes)
        return [p if p.sets or p.adds or p.steps else None for p in pushes]

    def _sent(self, box: Outbox) -> Any:
        found = self.outboxes.get(id(box))
        return None if found is None else found[1]

    def _put_writes(self, boxes: Outboxes, pushes: list[Push]) -> None:
        key, added, is_set = boxes.variable.key, self._sent(boxes.added), self._sent(boxes.is_set)
        for number in boxes.variable.servers:
            if is_set is not None and int(is_set):
                pushes[number].sets[key] = self._sent(boxes.value)
            if added is not None:
                pushes[number].adds[key] = added

    def _put_step(self, boxes: GradientBoxes, pushes: list[Push]) -> None:
        count = int(self._sent(boxes.count))
        if count > 1:
            # A function was called that had been traced before.
            raise OwnStepsError(Steps.OWN, boxes.has_slots)
        if not count:
            return
        for number, push in enumerate(pushes):
            own = [
                (v.key, _gradient([self._sent(b) for b in parts], v._shape))
                for v, parts in zip(boxes.variables, boxes.boxes, strict=True)
                if number in v.servers
            ]
            keys, gradients = tuple(k for k, _ in own), tuple(g for _, g in own)
            push.steps.append(Step(boxes.optimizer, keys, gradients))


def _zeros(box: Outbox) -> Any:
    make = _shared_zeros if box._is_lent else _fresh_zeros
    return make(box._shape, box.dtype.dtype)


def _fresh_zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    return transfers.transfer(np.zeros(shape, dtype), copy=False)


_shared_zeros = functools.lru_cache(64)(_fresh_zeros)


def _gradient(parts: list[Any], shape: tuple[int, ...]) -> Any:
    if len(parts) == 1:
        return parts[0]
    values, numbers = parts[0], np.asarray(parts[1])
    # Programs have as many rows for each shard as for the table; those of other shards are past its end.
    here = numbers < shape[0]
    return Rows(values, numbers) if here.all() else Rows(np.asarray(values)[here], numbers[here])


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    return function(value) if type(value) is Tensor else nest.map_structure(function, value)


def _on_host(leaf: Any) -> Any:
    if isinstance(leaf, (IndexedSlices, SparseTensor)):
        return leaf
    if hasattr(leaf, "_as_tensor"):
        leaf = leaf._as_tensor()
    if isinstance(leaf, Tensor):
        return leaf.numpy()
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf
