"""A parameter server: holds variables and optimizer slots, and does what closures push, each exactly once."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.functions.concrete_function import ConcreteFunction
from meshflow.core.functions.function import Function
from meshflow.core.runtime import transfers
from meshflow.core.runtime.context import writing
from meshflow.core.runtime.errors import NotFoundError
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parameter_server.attempts import Attempts
from meshflow.distribute.parameter_server.compression import whole
from meshflow.distribute.parameter_server.messages import (
    Ballot,
    Change,
    Decision,
    Done,
    Push,
    Rows,
    Step,
    Wish,
    rounded_up,
)
from meshflow.kernels import library

__all__ = ["LARGE", "Held", "ParameterServer"]

# From so many bytes on variables are changed in place where that are rows, or nobody asks for them, as for slots.
LARGE = 1 << 20


class _ProgramNeededError(Exception):
    """A push is of a kind that there is no program for.

    Args:
      make: makes the program.
    """

    def __init__(self, make: Callable[[], None]) -> None:
        super().__init__("a push has no program yet")
        self.make = make


class Held(Variable):
    """A variable as its server has it: a subclass, so that no strategy's scope makes it another.

    Attributes:
      key: its number, the same in all processes.
    """

    key: int
    # Whether the program that is made gives it a new value in other memory.
    renewed = False

    @property
    def _is_lent(self) -> bool:  # type: ignore[override]
        # Workers in this process, and messages, have it as it is.
        return self.renewed or self._value.nbytes < LARGE


class _History:
    """Which rows of a variable changed at which clock, as far back as is worth knowing.

    Args:
      rows: how many rows the variable has.
    """

    def __init__(self, rows: int) -> None:
        self._most = rows // 2
        self._changes: deque[tuple[int, np.ndarray]] = deque()
        self._count = 0
        # Of what changed up to then the rows are not known.
        self.whole = 0
        self.latest = 0

    def note(self, clock: int, rows: np.ndarray | None) -> None:
        """Notes a change of some rows; None for all."""
        self.latest = clock
        if rows is None:
            self._changes.clear()
            self._count, self.whole = 0, clock
            return
        self._changes.append((clock, rows))
        self._count += len(rows)
        while self._count > self._most:
            self.whole, forgotten = self._changes.popleft()
            self._count -= len(forgotten)

    def since(self, clock: int) -> np.ndarray | None:
        """The rows that changed after a clock; None for all."""
        if self.whole > clock:
            return None
        changed = [rows for at, rows in self._changes if at > clock]
        if not changed:
            return np.zeros(0, np.int64)
        return _different(np.concatenate(changed))


class ParameterServer:
    """What one server knows and does. All methods may be called by several threads.

    Args:
      number: the server's number.
      renews: whether variables that change as a whole get new values beside the old ones, which other processes have.
        Within one process a copy, and a change in place, cost less.
    """

    def __init__(self, number: int = 0, renews: bool = False) -> None:
        # Before the first table is made: behind one of small pages each row takes a look at the page table.
        library.load()
        self.number, self._renews = number, renews
        self.clock = 0
        self._variables: dict[int, Held] = {}
        self._histories: dict[int, _History] = {}
        self._optimizers: dict[int, Any] = {}
        self._programs: dict[Any, ConcreteFunction] = {}
        # Nobody else has these variables, so that other threads' programs may begin while a push is done. Who takes
        # `writing` too takes it first.
        self.lock = threading.RLock()
        self._attempts = Attempts()
        self._order = 0
        # How many bytes the variables have.
        self.size = 0
        # The clocks of the latest pushes, by which staleness is counted.
        self._pushed: deque[int] = deque(maxlen=1024)

    # ---- variables -------------------------------------------------------------------------

    def create(self, key: int, value: Any, name: str, constraint: Any = None) -> None:
        """Takes a variable over.

        Args:
          key: its key.
          value: its value.
          name: its name.
          constraint: its constraint, or None.
        """
        with writing, self.lock:
            array = transfers.duplicate(value) if not isinstance(value, np.ndarray) else value
            held = Held(Tensor(array), trainable=False, name=name, constraint=constraint)
            held.key = key
            before = self._variables.get(key)
            self.size += held._value.nbytes - (0 if before is None else before._value.nbytes)
            self._variables[key] = held
            self._histories[key] = _History(np.shape(value)[0] if np.ndim(value) else 0)
            self._note([(key, None)])

    def read(self, keys: Sequence[int]) -> tuple[int, dict[int, Any]]:
        """The clock, and values by key.

        Args:
          keys: the variables.
        """
        with self.lock:
            return self.clock, {key: self._held(key)._value for key in keys}

    def write(self, key: int, value: Any, adds: bool = False, order: int = 0) -> int:
        """Replaces a value, or adds to it; the clock afterwards.

        Args:
          key: the variable.
          value: an array.
          adds: whether it is added.
          order: numbers the calls of the coordinator, so that one that comes again is known; 0 for none.
        """
        with writing, self.lock:
            if 0 < order <= self._order:
                return self.clock
            self._order = max(self._order, order)
            held = self._held(key)
            (held.assign_add if adds else held.assign)(Tensor(value))
            self._note([(key, None)])
            return self.clock

    def state(self) -> Any:
        """All that this server knows, besides optimizers' rules and constraints."""
        with self.lock:
            values = {key: (np.asarray(v._value), v._name) for key, v in self._variables.items()}
            return values, self.clock, self._attempts.state(), self._order

    def restore(self, state: Any, constraints: Mapping[int, Any]) -> None:
        """Takes over what `state` gave.

        Args:
          state: the state.
          constraints: constraints by variable.
        """
        values, clock, attempts, order = state
        for key, (value, name) in values.items():
            self.create(key, value, name, constraints.get(key))
        self.clock, self._order = clock, order
        self._attempts.restore(attempts)
        for history in self._histories.values():
            history.note(clock, None)

    def knows(self, closure: int) -> bool:
        """Whether a closure's push was done before."""
        with self.lock:
            return self._attempts.done(closure) is not None

    def _held(self, key: int) -> Held:
        held = self._variables.get(key)
        if held is None:
            raise NotFoundError(
                f"Parameter server {self.number} has no variable with the key {key}."
            )
        return held

    def _note(self, changes: Sequence[tuple[int, Any]]) -> None:
        self.clock += 1
        for key, rows in changes:
            self._histories[key].note(self.clock, rows)

    def renewed(self, push: Push | Decision, wish: Wish) -> list[int]:
        """How many bytes the large values have that a push will make in other memory, and that somebody wants.

        Args:
          push: the push, or the decision to do it.
          wish: what is wanted.
        """
        if self.size < LARGE:
            return []
        with self.lock:
            decided = self._attempts.decided(push)
            if decided is None:
                return []
            wanted = _renewed(_kind(decided)).intersection((*wish.known, *wish.unknown))
            sizes = [self._held(key)._value.nbytes for key in wanted]
            return [size for size in sizes if size >= LARGE]

    # ---- optimizers ------------------------------------------------------------------------

    def resolve(self, key: int) -> Any:
        """What a hosted variable is on this server: a `Held`, or `Elsewhere`."""
        return self._variables[key] if key in self._variables else Elsewhere(key)

    def adopt(self, key: int, optimizer: Any) -> None:
        """Takes over an optimizer's rule, for the state that this server has.

        Args:
          key: its key.
          optimizer: a copy of it, with what `resolve` gives in the place of hosted variables.
        """
        with self.lock:
            self._optimizers[key] = optimizer
            self._programs.clear()

    # ---- closures --------------------------------------------------------------------------

    def stage(self, push: Push, ballot: Ballot, floor: int = 0) -> Done | None:
        """Keeps what a closure pushes until a `Decision` comes; see `attempts`.

        Args:
          push: what the closure wrote.
          ballot: the attempt's ballot.
          floor: closures with smaller numbers are over.

        Returns:
          What was done before, if anything was.
        """
        with self.lock:
            self._attempts.raise_floor(floor)
            return self._attempts.stage(push, ballot)

    def exchange(
        self,
        push: Push | Decision | None,
        wish: Wish,
        floor: int = 0,
        memory: Callable[..., np.ndarray] = transfers.fresh,
    ) -> Change:
        """Does what a closure pushes, unless it was done before, and gives the values that changed.

        Args:
          push: what the closure wrote, or which of what was staged is done; None only to pull.
          wish: the values wanted.
          floor: closures with smaller numbers are over, and will not be pushed by anybody.
          memory: gives memory for rows of values, for a shape and a dtype.
        """
        while True:
            try:
                with self.lock:
                    return self._exchanged(push, wish, floor, memory)
            except _ProgramNeededError as needed:
                needed.make()

    def _exchanged(
        self,
        push: Push | Decision | None,
        wish: Wish,
        floor: int,
        memory: Callable[..., np.ndarray],
    ) -> Change:
        repeated, staleness, refused = False, 0, None
        self._attempts.raise_floor(floor)
        self._attempts.settle(wish.settled)
        if push is not None:
            repeated = self.knows(push.closure)
            refused = None if repeated else self._attempts.refused(push)
            if not repeated and refused is None:
                decided = self._attempts.decided(push)
                staleness = self._do(decided)
                others = {} if decided is None else decided.others
                self._attempts.finish(push.closure, Done(push.attempt, others))
        return Change(self.clock, self._changed(wish, memory), staleness, repeated, refused)

    def _do(self, push: Push | None) -> int:
        """Does a push; its staleness."""
        if push is None or not (push.sets or push.adds or push.steps):
            return 0
        later = itertools.takewhile(lambda at: at > push.clock, reversed(self._pushed))
        staleness = sum(1 for _ in later)
        self._apply(push)
        self._pushed.append(self.clock)
        return staleness

    def _changed(self, wish: Wish, memory: Callable[..., np.ndarray]) -> dict[int, Any]:
        values: dict[int, Any] = {key: self._held(key)._value for key in wish.unknown}
        for key in wish.known:
            history = self._histories[key]
            if history.latest <= wish.clock:
                continue
            rows, value = history.since(wish.clock), self._held(key)._value
            values[key] = value if rows is None else _taken(np.asarray(value), rows, memory)
        return values

    def _apply(self, push: Push) -> None:
        """One program for all of it: it is done as a whole or, after an error, not at all."""
        push.steps = [self._whole(step) for step in push.steps]
        gradients = [
            [
                _padded(g, self._held(k)) if type(g) is Rows else g
                for g, k in zip(s.gradients, s.keys, strict=True)
            ]
            for s in push.steps
        ]
        operands = [gradients, list(push.sets.values()), list(push.adds.values())]
        given: list[Any] = []
        for gradient in itertools.chain(*gradients):
            given.extend(gradient if type(gradient) is list else [gradient])
        given.extend(itertools.chain(*operands[1:]))
        arrays = [transfers.to_device(a) if type(a) is np.ndarray else a for a in given]
        # Found without the checks of a call: there is one program for each kind of push.
        key = _kind(push), tuple((a.shape, a.dtype) for a in arrays)
        program = self._programs.get(key)
        if program is None or not program.is_ready:
            raise _ProgramNeededError(lambda: self._make_program(key, operands))
        program.run_arrays(arrays, self.lock)
        changes: list[tuple[int, Any]] = [(key, None) for key in (*push.sets, *push.adds)]
        for step in push.steps:
            changes.extend(self._changes_of(step))
        self._note([(key, rows) for key, rows in changes if key in self._histories])

    def _make_program(self, key: Any, operands: Any) -> None:
        """Makes the program of a kind of push, without the lock."""
        with writing:
            program = self._programs.get(key)
            if program is None:
                name = "parameter_server_step"
                function = Function(self._program(key[0]), autograph=False, name=name)
                with self._renewing(key[0]):
                    program = function.get_concrete_function(*operands)
                self._programs[key] = program
            program.prepare()

    @contextlib.contextmanager
    def _renewing(self, kind: Any) -> Iterator[None]:
        """Whoever has a value that changes as a whole keeps it: the program makes the new one beside it."""
        held = [self._held(key) for key in _renewed(kind)] if self._renews else []
        try:
            for variable in held:
                variable.renewed = True
            yield
        finally:
            for variable in held:
                variable.renewed = False

    def _whole(self, step: Step) -> Step:
        held = [self._held(key) for key in step.keys]
        gradients = tuple(
            whole(g, v._shape, v.dtype.dtype) for g, v in zip(step.gradients, held, strict=True)
        )
        return step._replace(gradients=gradients)

    def _program(self, kind: Any) -> Callable[..., None]:
        steps, sets, adds = kind

        def run(gradients: Any, new: Any, added: Any) -> None:
            for key, value in zip(sets, new, strict=True):
                self._held(key).assign(value)
            for key, value in zip(adds, added, strict=True):
                self._held(key).assign_add(value)
            for (optimizer, keys, by_rows), parts in zip(steps, gradients, strict=True):
                pairs = [
                    (IndexedSlices(*p) if rows else p, self._held(key))
                    for key, rows, p in zip(keys, by_rows, parts, strict=True)
                ]
                self._optimizers[optimizer]._take(pairs)

        return run

    def _changes_of(self, step: Step) -> list[tuple[int, Any]]:
        """What a step changed: variables, slots and the optimizer's own, with their rows or None for all."""
        optimizer = self._optimizers[step.optimizer]
        changes: list[tuple[int, Any]] = []
        for key, gradient in zip(step.keys, step.gradients, strict=True):
            held = self._held(key)
            by_rows = optimizer._changed_by_rows(held) if type(gradient) is Rows else []
            rows = np.asarray(gradient.indices).reshape(-1) if by_rows else None
            slots = optimizer._slots.get(optimizer._var_key(held), {}).values()
            changes.extend((v.key, rows) for v in (held, *slots) if isinstance(v, Held))
        counts = (optimizer.iterations, optimizer._accumulated_steps)
        changes.extend((v.key, None) for v in counts if isinstance(v, Held))
        return changes


def _kind(push: Push) -> Any:
    """What pushes of one program have in common.

    Of each step the optimizer, its variables, and whether each changes by rows; and what is set and what is added.
    """
    steps = ((s.optimizer, s.keys, tuple(type(g) is Rows for g in s.gradients)) for s in push.steps)
    return tuple(steps), tuple(push.sets), tuple(push.adds)


def _renewed(kind: Any) -> set[int]:
    """The variables that change as a whole."""
    steps, sets, adds = kind
    keys = {*sets, *adds}
    for _, trained, by_rows in steps:
        keys.update(k for k, rows in zip(trained, by_rows, strict=True) if not rows)
    return keys


def _different(numbers: np.ndarray) -> np.ndarray:
    """Numbers in order, each once: `np.unique` takes ten times as long."""
    ordered = np.sort(numbers)
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def _taken(value: np.ndarray, numbers: np.ndarray, memory: Callable[..., np.ndarray]) -> Rows:
    """Rows of a value, as many as a power of two, as who gets them has a program for each number of rows.

    The last one comes again and again.
    """
    more = rounded_up(len(numbers)) - len(numbers)
    numbers = np.concatenate([numbers, np.repeat(numbers[-1:], more)])
    rows = memory((len(numbers), *value.shape[1:]), value.dtype)
    # Without the check of numbers that are known, what is taken goes where it is wanted at once.
    return Rows(value.take(numbers, 0, out=rows, mode="clip"), numbers)


def _padded(rows: Rows, held: Held) -> list[Any]:
    """Rows and their numbers, as many as a power of two: a program is compiled for each number of rows.

    Those added are past the variable's end, where updates do nothing.
    """
    more = rounded_up(len(rows.indices)) - len(rows.indices)
    if not more:
        return [rows.values, rows.indices]
    values, numbers = np.asarray(rows.values), np.asarray(rows.indices)
    past = held._shape[0] + np.arange(more, dtype=numbers.dtype)
    return [
        np.pad(values, [(0, more)] + [(0, 0)] * (values.ndim - 1)),
        np.concatenate([numbers, past]),
    ]


class Elsewhere:
    """A variable of an optimizer that another server has.

    Args:
      key: its key.
    """

    def __init__(self, key: int) -> None:
        self.key = key
