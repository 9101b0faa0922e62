"""Parameter server, which holds variables and optimizer slots.

It applies the writes of each closure exactly once, by one compiled program.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.functions.concrete_function import ConcreteFunction
from meshflow.core.functions.function import Function
from meshflow.core.runtime import transfers
from meshflow.core.runtime.context import variable_lock
from meshflow.core.runtime.errors import NotFoundError
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable, get_full_name, get_value_shape
from meshflow.distribute.parameter_server.server.attempts import AttemptLog, AttemptState
from meshflow.distribute.parameter_server.transport.gradient_compression import decompress_gradient
from meshflow.distribute.parameter_server.transport.messages import (
    Ballot,
    CompletedAttempt,
    Decision,
    ExchangeReply,
    OptimizerStep,
    PullRequest,
    Push,
    VariableRows,
    round_up_to_power_of_two,
)
from meshflow.distribute.parameter_server.variables.hosted_variable import Optimizer
from meshflow.environment.types import Array, ArrayLike
from meshflow.kernels import library

# Larger variables are changed in place if only rows change, or if no other object holds the value,
# as for slots.
MIN_LARGE_BYTES = 1 << 20

# Function that allocates an array of a shape and dtype for rows of values.
Allocator: TypeAlias = Callable[..., np.ndarray]
# State of a server for snapshots: values and names by key, the clock, the attempts, and the order
# of the last write.
ServerState: TypeAlias = tuple[dict[int, tuple[np.ndarray, str]], int, AttemptState, int]
# For each optimizer step the optimizer, the variables, and whether each changes by rows; then the
# keys of sets and adds.
PushKind: TypeAlias = tuple[
    tuple[tuple[int, tuple[int, ...], tuple[bool, ...]], ...], tuple[int, ...], tuple[int, ...]
]


class _ProgramNeededError(Exception):
    """There is no compiled program for a kind of push.

    Args:
      make: Function that compiles the program.
    """

    def __init__(self, make: Callable[[], None]) -> None:
        super().__init__("a push has no program yet")
        self.make = make


class ServerVariable(Variable):
    """Variable as its server stores it.

    Because it is a subclass, a strategy's scope does not replace it by another class.

    Attributes:
      key: Id of the variable in all processes.
      is_copied_on_write: Whether the program that is being compiled writes the new value to other
        memory.
    """

    key: int
    is_copied_on_write = False

    @property
    def stored_array(self) -> Array:
        """Return the array that the server stores, without a copy."""
        return self._value

    @property
    def _is_lent(self) -> bool:  # type: ignore[override]
        # Workers in this process, and messages, refer to small values without a copy, so these are
        # not changed in place.
        return self.is_copied_on_write or self._value.nbytes < MIN_LARGE_BYTES


class _RowHistory:
    """The rows of a variable that changed at each clock, for the most recent changes.

    At most half as many row indices as the variable has rows are stored. Sending more would not be
    worthwhile.

    Args:
      rows: Number of rows of the variable.

    Attributes:
      unknown_until: Clock up to which the changed rows are unknown.
      latest: Clock of the last change.
    """

    def __init__(self, rows: int) -> None:
        self._max_count = rows // 2
        self._changes: deque[tuple[int, np.ndarray]] = deque()
        self._count = 0
        self.unknown_until = 0
        self.latest = 0

    def record(self, clock: int, rows: np.ndarray | None) -> None:
        """Record a change of some rows, or of all rows if `rows` is None."""
        self.latest = clock
        if rows is None:
            self._changes.clear()
            self._count, self.unknown_until = 0, clock
            return
        self._changes.append((clock, rows))
        self._count += len(rows)
        while self._count > self._max_count:
            self.unknown_until, oldest_rows = self._changes.popleft()
            self._count -= len(oldest_rows)

    def find_changed_rows(self, clock: int) -> np.ndarray | None:
        """Return the rows that changed after a clock, or None for all rows."""
        if self.unknown_until > clock:
            return None
        changed = [rows for change_clock, rows in self._changes if change_clock > clock]
        if not changed:
            return np.zeros(0, np.int64)
        return _sort_unique(np.concatenate(changed))


class ParameterServer:
    """The state and the operations of one parameter server. All methods are thread-safe.

    Args:
      server_id: Index of the server.
      copies_on_write: Whether dense updates of a variable write to new memory, because other
        processes hold the old value. Within one process, a copy and an update in place cost less.

    Attributes:
      clock: Number of changes so far.
      size: Size of all variables in bytes.
      lock: Protects the variables.
      connection: None, because the server is in this process.
      traffic: No bytes, for the same reason.
    """

    connection = None
    traffic = (0, 0)

    def __init__(self, server_id: int = 0, copies_on_write: bool = False) -> None:
        # The kernels provide huge pages, and must be loaded before the first table is allocated.
        # With small pages, each access to a row needs a page table lookup.
        library.load()
        self.server_id, self._copies_on_write = server_id, copies_on_write
        self.clock = 0
        self._variables: dict[int, ServerVariable] = {}
        self._histories: dict[int, _RowHistory] = {}
        self._optimizers: dict[int, Optimizer] = {}
        self._programs: dict[tuple[PushKind, tuple[Any, ...]], ConcreteFunction] = {}
        # This process has no other use of these variables, so other threads can start programs
        # while a push is applied. A thread that needs the lock `writing` too acquires it first.
        self.lock = threading.RLock()
        self._attempts = AttemptLog()
        self._last_order = 0
        self.size = 0
        # The clocks after recent pushes, from which the staleness of a push is counted.
        self._push_clocks: deque[int] = deque(maxlen=1024)

    # ---- variables -------------------------------------------------------------------------

    def create(
        self, key: int, value: Array, name: str, constraint: Callable[..., Any] | None = None
    ) -> None:
        """Create a variable, or replace it.

        Args:
          key: Key of the variable.
          value: Its value.
          name: Its name.
          constraint: Its constraint, or None.
        """
        with variable_lock, self.lock:
            array = transfers.duplicate(value) if not isinstance(value, np.ndarray) else value
            variable = ServerVariable(
                Tensor(array), trainable=False, name=name, constraint=constraint
            )
            variable.key = key
            replaced = self._variables.get(key)
            self.size += variable.stored_array.nbytes - (
                0 if replaced is None else replaced.stored_array.nbytes
            )
            self._variables[key] = variable
            self._histories[key] = _RowHistory(np.shape(value)[0] if np.ndim(value) else 0)
            self._record_changes([(key, None)])

    def read(self, keys: Sequence[int]) -> tuple[int, dict[int, Array]]:
        """Return the clock, and the values by key.

        Args:
          keys: Keys of the variables.
        """
        with self.lock:
            return self.clock, {key: self._get_variable(key).stored_array for key in keys}

    def write(self, key: int, value: ArrayLike, adds: bool = False, order: int = 0) -> int:
        """Assign or add a value to a variable, and return the clock.

        Args:
          key: Key of the variable.
          value: The value.
          adds: Whether to add the value.
          order: See `record_order`.
        """
        with variable_lock, self.lock:
            if not self.record_order(order):
                return self.clock
            variable = self._get_variable(key)
            (variable.assign_add if adds else variable.assign)(Tensor(value))
            self._record_changes([(key, None)])
            return self.clock

    def record_order(self, order: int) -> bool:
        """Record a call of the coordinator, and return whether it was not executed before.

        A call that was repeated after the loss of a connection can be executed after later calls.

        Args:
          order: Sequence number of the call; 0 for none.
        """
        with self.lock:
            is_new = not 0 < order <= self._last_order
            self._last_order = max(self._last_order, order)
            return is_new

    def get_state(self) -> ServerState:
        """Return the state, except optimizers and constraints."""
        with self.lock:
            values = {
                key: (np.asarray(v.stored_array), get_full_name(v))
                for key, v in self._variables.items()
            }
            return values, self.clock, self._attempts.get_state(), self._last_order

    def restore(self, state: ServerState, constraints: Mapping[int, Callable[..., Any]]) -> None:
        """Restore a state that `get_state` has returned.

        Args:
          state: The state.
          constraints: Constraints by variable key.
        """
        values, clock, attempts, order = state
        for key, (value, name) in values.items():
            self.create(key, value, name, constraints.get(key))
        self.clock, self._last_order = clock, order
        self._attempts.restore(attempts)
        for history in self._histories.values():
            history.record(clock, None)

    def has_applied(self, closure: int) -> bool:
        """Check whether the push of a closure was applied before."""
        with self.lock:
            return self._attempts.find_completed(closure) is not None

    def _get_variable(self, key: int) -> ServerVariable:
        variable = self._variables.get(key)
        if variable is None:
            raise NotFoundError(
                f"Parameter server {self.server_id} has no variable with the key {key}."
            )
        return variable

    def _record_changes(self, changes: Sequence[tuple[int, np.ndarray | None]]) -> None:
        self.clock += 1
        for key, rows in changes:
            self._histories[key].record(self.clock, rows)

    def find_copied_sizes(self, push: Push | Decision, wish: PullRequest) -> list[int]:
        """Return the sizes in bytes of large requested values that a push writes to new memory.

        Args:
          push: The push, or the decision to apply it.
          wish: The requested values.
        """
        if self.size < MIN_LARGE_BYTES:
            return []
        with self.lock:
            chosen = self._attempts.select_push(push)
            if chosen is None:
                return []
            requested = _find_dense_updates(_get_kind(chosen)).intersection(
                (*wish.known, *wish.unknown)
            )
            sizes = [self._get_variable(key).stored_array.nbytes for key in requested]
            return [size for size in sizes if size >= MIN_LARGE_BYTES]

    # ---- optimizers ------------------------------------------------------------------------

    def resolve(self, key: int) -> ServerVariable | RemoteVariableRef:
        """Return the `ServerVariable` of a key, or a `RemoteVariableRef` for another server's."""
        return self._variables[key] if key in self._variables else RemoteVariableRef(key)

    def add_optimizer(self, key: int, optimizer: Optimizer) -> None:
        """Add an optimizer, which trains the variables of this server, or replace it.

        Args:
          key: Key of the optimizer.
          optimizer: A copy of the optimizer, with hosted variables replaced by the results of
            `resolve`.
        """
        with self.lock:
            self._optimizers[key] = optimizer
            self._programs.clear()

    # ---- closures --------------------------------------------------------------------------

    def stage(self, push: Push, ballot: Ballot, floor: int = 0) -> CompletedAttempt | None:
        """Store the push of a closure until a `Decision` arrives; see the module `attempts`.

        Args:
          push: The writes of the closure.
          ballot: Ballot of the attempt.
          floor: Closures with smaller ids are finished.

        Returns:
          The attempt that was applied before, or None.
        """
        with self.lock:
            self._attempts.raise_floor(floor)
            return self._attempts.stage(push, ballot)

    def exchange(
        self,
        push: Push | Decision | None,
        wish: PullRequest,
        floor: int = 0,
        allocate: Allocator = transfers.allocate,
    ) -> ExchangeReply:
        """Apply the push of a closure and return the values that have changed.

        A push that was applied before is not applied again.

        Args:
          push: The writes of the closure, or the decision to apply staged ones; None only to pull
            values.
          wish: The requested values.
          floor: Closures with smaller ids are finished, and will not be pushed again.
          allocate: Function that allocates memory for rows of values, from a shape and a dtype.
        """
        while True:
            try:
                with self.lock:
                    return self._exchange_locked(push, wish, floor, allocate)
            except _ProgramNeededError as error:
                error.make()

    def _exchange_locked(
        self,
        push: Push | Decision | None,
        wish: PullRequest,
        floor: int,
        allocate: Allocator,
    ) -> ExchangeReply:
        repeated, staleness, refused = False, 0, None
        self._attempts.raise_floor(floor)
        self._attempts.forget_others(wish.settled)
        if push is not None:
            repeated = self.has_applied(push.closure)
            refused = None if repeated else self._attempts.find_refusal(push)
            if not repeated and refused is None:
                chosen = self._attempts.select_push(push)
                staleness = self._apply_counted(chosen)
                others = {} if chosen is None else chosen.others
                self._attempts.finish(push.closure, CompletedAttempt(push.attempt, others))
        return ExchangeReply(
            self.clock, self._collect_changes(wish, allocate), staleness, repeated, refused
        )

    def _apply_counted(self, push: Push | None) -> int:
        """Apply a push and return its staleness."""
        if push is None or not (push.sets or push.adds or push.steps):
            return 0
        later_clocks = itertools.takewhile(lambda at: at > push.clock, reversed(self._push_clocks))
        staleness = sum(1 for _ in later_clocks)
        self._apply(push)
        self._push_clocks.append(self.clock)
        return staleness

    def _collect_changes(
        self, wish: PullRequest, allocate: Allocator
    ) -> dict[int, Array | VariableRows]:
        values: dict[int, Array | VariableRows] = {
            key: self._get_variable(key).stored_array for key in wish.unknown
        }
        for key in wish.known:
            history = self._histories[key]
            if history.latest <= wish.clock:
                continue
            rows, value = (
                history.find_changed_rows(wish.clock),
                self._get_variable(key).stored_array,
            )
            values[key] = value if rows is None else _take_rows(np.asarray(value), rows, allocate)
        return values

    def _apply(self, push: Push) -> None:
        """Apply a push by one compiled program, so that an error leaves all variables unchanged."""
        push.steps = [self._decompress_step(step) for step in push.steps]
        gradients = [
            [
                _pad_rows(g, self._get_variable(k)) if type(g) is VariableRows else g
                for g, k in zip(s.gradients, s.keys, strict=True)
            ]
            for s in push.steps
        ]
        operands: list[list[Any]] = [gradients, list(push.sets.values()), list(push.adds.values())]
        flat_operands: list[Any] = []
        for gradient in itertools.chain(*gradients):
            flat_operands.extend(gradient if type(gradient) is list else [gradient])
        flat_operands.extend(itertools.chain(*operands[1:]))
        arrays = [transfers.to_device(a) if type(a) is np.ndarray else a for a in flat_operands]
        # Looking up the program by the kind of push avoids the checks of an ordinary function call.
        key = _get_kind(push), tuple((a.shape, a.dtype) for a in arrays)
        program = self._programs.get(key)
        if program is None or not program.is_ready:
            raise _ProgramNeededError(lambda: self._make_program(key, operands))
        program.run_arrays(arrays, self.lock)
        changes: list[tuple[int, np.ndarray | None]] = [(k, None) for k in (*push.sets, *push.adds)]
        for step in push.steps:
            changes.extend(self._find_changes(step))
        self._record_changes([(key, rows) for key, rows in changes if key in self._histories])

    def _make_program(self, key: tuple[PushKind, tuple[Any, ...]], operands: list[Any]) -> None:
        """Compile the program for a kind of push. The lock must not be held."""
        with variable_lock:
            program = self._programs.get(key)
            if program is None:
                name = "parameter_server_step"
                function = Function(self._define_program(key[0]), autograph=False, name=name)
                with self._copy_on_write(key[0]):
                    program = function.get_concrete_function(*operands)
                self._programs[key] = program
            program.prepare()

    @contextlib.contextmanager
    def _copy_on_write(self, kind: PushKind) -> Iterator[None]:
        """Compile programs in this context so that dense updates write to new memory.

        Other processes keep the old value.
        """
        variables = (
            [self._get_variable(key) for key in _find_dense_updates(kind)]
            if self._copies_on_write
            else []
        )
        try:
            for variable in variables:
                variable.is_copied_on_write = True
            yield
        finally:
            for variable in variables:
                variable.is_copied_on_write = False

    def _decompress_step(self, step: OptimizerStep) -> OptimizerStep:
        variables = [self._get_variable(key) for key in step.keys]
        gradients = tuple(
            decompress_gradient(g, get_value_shape(v), v.dtype.dtype)
            for g, v in zip(step.gradients, variables, strict=True)
        )
        return step._replace(gradients=gradients)

    def _define_program(self, kind: PushKind) -> Callable[..., None]:
        steps, sets, adds = kind

        def run(
            gradients: Sequence[Sequence[Any]], values: Sequence[Tensor], added: Sequence[Tensor]
        ) -> None:
            for key, value in zip(sets, values, strict=True):
                self._get_variable(key).assign(value)
            for key, value in zip(adds, added, strict=True):
                self._get_variable(key).assign_add(value)
            for (optimizer, keys, by_rows), step_gradients in zip(steps, gradients, strict=True):
                pairs = [
                    (IndexedSlices(*p) if rows else p, self._get_variable(key))
                    for key, rows, p in zip(keys, by_rows, step_gradients, strict=True)
                ]
                self._optimizers[optimizer]._apply_server_gradients(pairs)

        return run

    def _find_changes(self, step: OptimizerStep) -> list[tuple[int, np.ndarray | None]]:
        """Return the keys of variables, slots and counters that a step changes, with the rows.

        The rows are None if all of them change.
        """
        optimizer = self._optimizers[step.optimizer]
        changes: list[tuple[int, np.ndarray | None]] = []
        for key, gradient in zip(step.keys, step.gradients, strict=True):
            variable = self._get_variable(key)
            rows = None
            if isinstance(gradient, VariableRows) and optimizer._get_row_updated_variables(
                variable
            ):
                rows = np.asarray(gradient.indices).reshape(-1)
            slots = optimizer._slots.get(optimizer._var_key(variable), {}).values()
            changes.extend(
                (v.key, rows) for v in (variable, *slots) if isinstance(v, ServerVariable)
            )
        counts = (optimizer.iterations, optimizer._accumulated_steps)
        changes.extend((v.key, None) for v in counts if isinstance(v, ServerVariable))
        return changes


def _get_kind(push: Push) -> PushKind:
    """Return the properties of a push that determine its program; see `PushKind`."""
    steps = (
        (s.optimizer, s.keys, tuple(type(g) is VariableRows for g in s.gradients))
        for s in push.steps
    )
    return tuple(steps), tuple(push.sets), tuple(push.adds)


def _find_dense_updates(kind: PushKind) -> set[int]:
    """Return the keys of the variables of which all rows change."""
    steps, sets, adds = kind
    keys = {*sets, *adds}
    for _, trained, by_rows in steps:
        keys.update(k for k, rows in zip(trained, by_rows, strict=True) if not rows)
    return keys


def _sort_unique(values: np.ndarray) -> np.ndarray:
    """Return the sorted distinct values of an array. `np.unique` takes ten times as long."""
    ordered = np.sort(values)
    is_first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]


def _take_rows(value: np.ndarray, indices: np.ndarray, allocate: Allocator) -> VariableRows:
    """Return rows of a value, repeating the last row up to a power of two.

    The receiver compiles a program for each number of rows.
    """
    num_padding = round_up_to_power_of_two(len(indices)) - len(indices)
    indices = np.concatenate([indices, np.repeat(indices[-1:], num_padding)])
    rows = allocate((len(indices), *value.shape[1:]), value.dtype)
    # In this mode NumPy writes directly to `out`, because it need not check the indices first.
    return VariableRows(value.take(indices, 0, out=rows, mode="clip"), indices)


def _pad_rows(rows: VariableRows, variable: ServerVariable) -> list[Array]:
    """Return the values and indices of rows, padded to a power of two.

    A program is compiled for each number of rows. The indices of the added rows exceed the
    variable, where updates have no effect.
    """
    num_padding = round_up_to_power_of_two(len(rows.indices)) - len(rows.indices)
    if not num_padding:
        return [rows.values, rows.indices]
    values, indices = np.asarray(rows.values), np.asarray(rows.indices)
    padding = get_value_shape(variable)[0] + np.arange(num_padding, dtype=indices.dtype)
    return [
        np.pad(values, [(0, num_padding)] + [(0, 0)] * (values.ndim - 1)),
        np.concatenate([indices, padding]),
    ]


class RemoteVariableRef:
    """Reference of an optimizer to a variable that another server hosts.

    Args:
      key: Key of the variable.
    """

    def __init__(self, key: int) -> None:
        self.key = key
