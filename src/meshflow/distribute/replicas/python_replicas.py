"""`Strategy.run` without a trace: the function runs as Python, in one thread for each replica.

Functions run this way if their traces need values, or if a replica passes a composite tensor to the other ones. As in
TensorFlow, one thread runs at a time. It pauses at each collective, until all replicas have reached one.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.gradients.custom_gradients import custom_gradient
from meshflow.core.runtime import philox
from meshflow.core.runtime.context import context, copy_thread_state, variable_lock
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError, ValueNeededError
from meshflow.core.values import nest
from meshflow.core.values.composite import CompositeTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.distribute.replicas.collectives import gather
from meshflow.distribute.replicas.context import (
    ReplicaContext,
    ReplicaStrategy,
    context_scope,
)
from meshflow.distribute.replicas.values import PerReplica, map_replicas, stack_values
from meshflow.environment.types import PyTree
from meshflow.ops import array
from meshflow.ops.math import add_n, maximum

# Python values and arrays, which replicas compare and workers exchange by their contents.
CONSTANT_TYPES = (int, float, complex, str, bytes, np.generic, np.ndarray)

DIFFERENT_COLLECTIVES_MESSAGE = (
    "Strategy.run: replicas whose arguments have different shapes call different collectives."
)


class _Request(NamedTuple):
    """Request of a replica to combine its value with those of the others."""

    name: str
    combine: Callable[[list[Any]], Sequence[Any]]
    value: Any


class _ReplicaStopped(BaseException):
    """End of the thread of a replica, because another replica failed."""


class PythonReplica(ReplicaContext):
    """Context of a replica that runs as Python.

    Args:
      strategy: Strategy of the replicas.
      index: Index of the replica.

    Attributes:
      is_first: Whether this replica writes the mirrored variables of this process.
      written: For each written variable with one value per replica, by its id, the variable and the value.
    """

    def __init__(self, strategy: ReplicaStrategy, index: int) -> None:
        super().__init__(strategy, None)
        self.index = index
        self.program_key = (id(strategy), ((index,),))
        self.is_first = index == strategy.local_replicas[0]
        self.written: dict[int, tuple[Variable, Tensor]] = {}
        self.request: _Request | None = None
        self.reply: Any = None
        self.result: PyTree = None
        self._error: BaseException | None = None
        # A replica that waits does not hold the variable lock, which others may need to reach their exchange.
        self._state = threading.Condition(variable_lock)
        self._is_running = self._is_stopped = False
        self._thread: threading.Thread | None = None

    @property
    def replica_id_in_sync_group(self) -> Tensor:
        """Return the index of this replica as an int32 scalar."""
        return convert_to_tensor(self.index)

    def start(self, call: Callable[[int], PyTree]) -> None:
        """Create the thread, with a copy of the state of the current one."""
        enter_state = copy_thread_state()

        def run() -> None:
            self._wait_for_turn(True)
            enter_state()
            try:
                if not self._is_stopped:
                    with context_scope(self):
                        self.result = call(self.index)
            except BaseException as error:  # The thread of the strategy raises it.
                self._error = error
            self.request = None
            self._pass_turn(False)

        # Context variables, such as the safe mode of deserialization, are those of the current thread, too.
        target = functools.partial(contextvars.copy_context().run, run)
        thread = threading.Thread(target=target, name=f"replica {self.index}", daemon=True)
        thread.start()
        self._thread = thread

    def _pass_turn(self, is_running: bool) -> None:
        with self._state:
            self._is_running = is_running
            self._state.notify_all()

    def _wait_for_turn(self, is_running: bool) -> None:
        with self._state:
            self._state.wait_for(lambda: self._is_running is is_running or self._is_stopped)

    def advance(self) -> None:
        """Run the thread until it requests an exchange, or ends; raise its error."""
        self._pass_turn(True)
        self._wait_for_turn(False)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End the thread at its next exchange if it still runs."""
        self._is_stopped = True
        self._pass_turn(True)
        if self._thread is not None:
            self._thread.join()

    def exchange(self, name: str, combine: Callable[[list[Any]], Sequence[Any]], value: Any) -> Any:
        """Pause until all replicas call this method, and return the result for this replica.

        Args:
          name: Name of the exchange, which must be the same in all replicas.
          combine: Function of all replicas' values that returns a result for each. It is called once, in the
            thread of the strategy.
          value: Value of this replica.

        Raises:
          ValueNeededError: In the trace of a function, which then runs as Python, too.
        """
        if context.trace is not None:
            raise ValueNeededError(f"{name} of a replica that runs as Python needs values.")
        self.request = _Request(name, combine, value)
        self._pass_turn(False)
        self._wait_for_turn(True)
        if self._is_stopped:
            raise _ReplicaStopped
        return self.reply

    def collect(self, op: Op, value: Tensor, static: tuple[Any, ...] = ()) -> Tensor:
        """Compute a collective of `collectives.py` without a trace."""
        share = functools.partial(self._combine_tensors, op.name, static)
        if not context.tapes or not (value.dtype.is_floating or value.dtype.is_complex):
            return share(value)

        @custom_gradient
        def compute(value: Tensor) -> Any:
            def differentiate(dy: Tensor) -> Tensor:
                if op.name not in ("all_gather", "all_stack"):
                    return share(dy)
                total = self._combine_tensors("all_reduce_sum", (), dy)
                if op.name == "all_stack":
                    return total[self.index]
                sizes = self.exchange("sizes", _repeat, int(value.shape[static[0]]))
                return array.split(total, sizes, static[0])[self.index]

            return share(value), differentiate

        return compute(value)

    def _combine_tensors(self, name: str, static: tuple[Any, ...], value: Tensor) -> Tensor:
        def combine(values: list[Tensor]) -> list[Tensor]:
            shapes = [tuple(v.shape.as_list()) for v in values]
            if name != "all_gather" and len(set(shapes)) > 1:
                raise InvalidArgumentError(
                    f"Strategy.run: {name} of tensors of different shapes {shapes}. Reduce them to one shape first, "
                    "or batch with drop_remainder=True."
                )
            return [_COLLECTIVES[name](values, *static)] * len(values)

        return self.exchange(name, combine, value)

    def merge_call(
        self, merge_fn: Callable[..., PyTree], args: PyTree = (), kwargs: PyTree = None
    ) -> PyTree:
        """Call a function once for all replicas; see `ReplicaContext.merge_call`."""

        def merge(values: list[PyTree]) -> list[PyTree]:
            merged_args, merged_kwargs = nest.map_structure(join_leaves, *values)
            with context_scope(self._strategy):
                result = merge_fn(self._strategy, *merged_args, **merged_kwargs)
            return [_select_replica(result, i) for i in range(len(values))]

        return self.exchange("merge_call", merge, (tuple(args), dict(kwargs or {})))

    def fold_key(self, key: Tensor) -> Tensor:
        """Return a random key for this replica."""
        return apply(_fold_key, (key,), (self.index,))

    def run_once(self, function: Callable[[], None]) -> None:
        """Call the function of the first replica, in the thread of the strategy."""

        def call(values: list[Any]) -> list[Any]:
            function()
            return values

        self.exchange("update", call, None)

    def agree_on(self, variable: Variable, value: Tensor) -> Tensor:
        """Return the value that all replicas write to a variable.

        Raises:
          ValueError: If the values differ.
        """

        def compare(values: list[Tensor]) -> list[Tensor]:
            contents = [_get_content(np.asarray(v.numpy())) for v in values]
            if any(content != contents[0] for content in contents):
                raise InvalidValueError(
                    f"Replicas write different values to {variable.name}, which has no aggregation. Create it with "
                    "aggregation=tf.VariableAggregation.SUM, MEAN or ONLY_FIRST_REPLICA, or reduce the value with "
                    "ReplicaContext.all_reduce first."
                )
            return values

        return self.exchange("assign", compare, value)

    def create_variable(
        self, create: Callable[..., Variable], arguments: dict[str, Any]
    ) -> Variable:
        """Create one variable for all replicas, from the arguments of the first."""
        scopes = context.name_scopes[:]

        def make(values: list[Any]) -> list[Any]:
            saved, context.name_scopes = context.name_scopes, scopes
            try:
                return _repeat(values, create(**arguments))
            finally:
                context.name_scopes = saved

        return self.exchange("tf.Variable", make, None)


_fold_key = Op(
    "replica_key_as_python",
    lambda operands, static: philox.fold_in(operands[0], static[0]),
    differentiable=False,
)

_COLLECTIVES: dict[str, Callable[..., Tensor]] = {
    "all_reduce_sum": add_n,
    "all_reduce_mean": lambda values: add_n(values) / len(values),
    "all_reduce_max": lambda values: functools.reduce(maximum, values),
    "all_stack": array.stack,
    gather.name: array.concat,
}


def _repeat(values: list[Any], value: Any = None) -> list[Any]:
    """Return the list of values, or one value, for each replica."""
    return [values if value is None else value] * len(values)


def join_leaves(*leaves: Any) -> Any:
    """Return a `PerReplica` of the replicas' values, or the value itself if it is a number or object that all share."""
    first = leaves[0]
    if isinstance(first, (Tensor, CompositeTensor)):
        return stack_values(leaves)
    is_shared = all(leaf is first or _is_equal_constant(leaf, first) for leaf in leaves)
    return first if is_shared else PerReplica(leaves)


def _get_content(array: np.ndarray) -> object:
    """Return a value that equals those of arrays with the same elements, also of NaNs and strings."""
    return array.tolist() if array.dtype == object else array.tobytes()


def _is_equal_constant(leaf: Any, other: Any) -> bool:
    is_constant = type(leaf) is type(other) and isinstance(leaf, CONSTANT_TYPES)
    return is_constant and np.array_equal(leaf, other)


def _select_replica(structure: PyTree, index: int) -> PyTree:
    select = lambda leaf: leaf.values[index] if isinstance(leaf, PerReplica) else leaf
    return map_replicas(select, structure)


def run_python_replicas(
    strategy: ReplicaStrategy, fn: Callable[..., PyTree], arguments: PyTree
) -> PyTree:
    """Run a function for all replicas without a trace; see `Strategy.run`.

    Args:
      strategy: Strategy of the replicas.
      fn: Function to run.
      arguments: Pair (args, kwargs) with `PerReplica`s.

    Raises:
      InvalidArgumentError: If the replicas call different collectives.
    """

    def call(index: int) -> PyTree:
        args, kwargs = _select_replica(arguments, index)
        read = lambda leaf: leaf.value() if isinstance(leaf, Variable) else leaf
        return nest.map_structure(read, fn(*args, **kwargs))

    replicas = [PythonReplica(strategy, index) for index in strategy.local_replicas]
    try:
        for replica in replicas:
            replica.start(call)
        while _run_to_exchange(strategy, replicas):
            pass
    finally:
        for replica in replicas:
            replica.stop()
    results = strategy.share_values([replica.result for replica in replicas])
    return nest.map_structure(join_leaves, *results)


def _run_to_exchange(strategy: ReplicaStrategy, replicas: Sequence[PythonReplica]) -> bool:
    """Run all replicas to their next exchange, and compute it; return False if they ended."""
    for replica in replicas:
        replica.advance()
    _write_rows(strategy, replicas)
    requests = [replica.request for replica in replicas]
    first = requests[0]
    if len({None if request is None else request.name for request in requests}) > 1:
        raise InvalidArgumentError(DIFFERENT_COLLECTIVES_MESSAGE)
    if first is None:
        return False
    replies = first.combine(strategy.share_values([r.value for r in requests if r is not None]))
    for replica in replicas:
        replica.reply = replies[replica.index]
    return True


def _write_rows(strategy: ReplicaStrategy, replicas: Sequence[PythonReplica]) -> None:
    """Write the values of variables with one value per replica; replicas that wrote none keep theirs."""
    for variable in {k: v for r in replicas for k, (v, _) in r.written.items()}.values():
        rows = strategy.stack_rows([variable._read_replica(r) for r in replicas])  # type: ignore[attr-defined]
        variable.stacked_variable._write(rows)  # type: ignore[attr-defined]
    for replica in replicas:
        replica.written.clear()
