"""Execution of operations: the values of tensors in one run, and bodies of branches and loops."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.recorded_op import is_differentiable
from meshflow.core.gradients.gradient_targets import UnconnectedGradients
from meshflow.core.gradients.tape import GradientTape
from meshflow.core.runtime.context import ThreadState
from meshflow.core.runtime.eager import leave_graph
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, read_tensor
from meshflow.core.variables.random_streams import (
    SeedStream,
    get_global_seed,
    global_seed,
    operation_streams,
)
from meshflow.environment.types import PyTree
from meshflow.keras.engine.layer.shape_inference import INVENTED_SIZES
from meshflow.legacy.graph.operations import Operation, OwningGraph, SymbolicTensor

Find = Callable[[SymbolicTensor], Any]


class _RunState(ThreadState):
    """The innermost function that finds the values of graph tensors, while operations run."""

    find: Find | None = None
    # Variables that the traced call reads.
    read_variables: list[Any] | None = None


state = _RunState()


@contextlib.contextmanager
def suspend_recording(find: Find | None = None) -> Iterator[None]:
    """Run calls in a block at once, on the values that a function finds for graph tensors."""
    saved, state.find = state.find, find
    try:
        with leave_graph():
            yield
    finally:
        state.find = saved


class GraphRead(BaseException):
    """Repeats a call, because a `tf.function` that was traced reads a tensor of a graph, and must run as Python."""


class Run:
    """Values of tensors in one run of a part of a graph.

    Args:
      values: Values of fed tensors by their `id`.
      sources: Tensors and variables with respect to which gradients are computed.
      find_outer: Finds values of the tensors of enclosing parts.
    """

    def __init__(
        self,
        values: dict[int, Any],
        sources: Sequence[Any] = (),
        find_outer: Find | None = None,
    ) -> None:
        self.values, self._find_outer = values, find_outer
        self._sources = {id(x) for x in sources if isinstance(x, SymbolicTensor)}
        self._variables = [x for x in sources if not isinstance(x, SymbolicTensor)]
        self._tape = GradientTape(persistent=True) if sources else None

    def find(self, tensor: SymbolicTensor) -> Any:
        """Return the value of a tensor; an operation that has not run yet runs now."""
        found = self.values.get(id(tensor))
        if found is not None:
            return found
        if self._find_outer is not None:
            # Outer runs watch constants, too, with respect to which they compute gradients.
            return self._watch(tensor, self._find_outer(tensor))
        if tensor.is_constant and not tensor.op.inputs:
            return self._watch(tensor, Tensor(tensor.array))
        self._execute(sort_operations([tensor.op], self.values))
        return self.values[id(tensor)]

    def read(self, value: PyTree) -> Any:
        """Return the value of a graph tensor, and other values unchanged."""
        return self.find(value) if isinstance(value, SymbolicTensor) else value

    def execute(self, operations: Iterable[Operation]) -> None:
        """Run operations in order, and store their results."""
        if self._tape is None:
            self._execute(operations)
            return
        self._tape.watch(self._variables)
        with self._tape:
            for tensor_id, value in self.values.items():
                if tensor_id in self._sources and is_differentiable(value):
                    self._tape.watch(value)
            self._execute(operations)

    def _execute(self, operations: Iterable[Operation]) -> None:
        saved = operation_streams.find
        with suspend_recording(self.find):
            try:
                for operation in operations:
                    session = operation.graph.session
                    operation_streams.find = (
                        None if session is None else _Draws(operation, session.random_streams)
                    )
                    results = operation.compute(self)
                    for tensor, value in zip(operation.outputs, results, strict=False):
                        if id(tensor) not in self.values:
                            self.values[id(tensor)] = self._watch(tensor, value)
            finally:
                operation_streams.find = saved

    def _watch(self, tensor: SymbolicTensor, value: PyTree) -> Any:
        """Watch a tensor with respect to which gradients are computed."""
        if self._tape is None or id(tensor) not in self._sources:
            return value
        if not self._tape.watches(value):
            # The value may be that of another tensor, with other uses.
            value = Tensor(value.array)
            self.values[id(tensor)] = value
        if is_differentiable(value):
            self._tape.watch(value)
        return value

    def differentiate(
        self, ys: list[Any], xs: list[Any], seeds: list[Any], stopped: list[Any]
    ) -> list[Any]:
        """Return the gradients of the sum of `ys`, or None for each of `xs` that is not connected.

        Args:
          ys: Graph tensors and values.
          xs: Graph tensors, variables and values.
          seeds: Initial gradients for each of `ys`, or None for ones.
          stopped: Those that are treated as constants.
        """
        if self._tape is None:
            raise RuntimeError("The run does not record gradients.")
        targets, sources, starts, ends = (list(map(self.read, v)) for v in (ys, xs, seeds, stopped))
        kind = UnconnectedGradients.NONE
        return list(
            self._tape._compute_gradient(targets, sources, starts, kind, {id(s) for s in ends})
        )


class _Draws:
    """Finds the streams of an operation's draws: each continues its own numbers in a session, as in TensorFlow.

    Args:
      operation: The operation, with its number as the default seed.
      streams: The streams of the session by operation, draw, and seeds.
    """

    def __init__(
        self, operation: Operation, streams: dict[tuple[int | None, ...], SeedStream]
    ) -> None:
        self._operation, self._streams, self._count = operation, streams, 0

    def __call__(self, op_seed: int | None) -> SeedStream:
        self._count += 1
        seed = self._operation.number if op_seed is None else op_seed
        key = (self._operation.number, self._count, seed, get_global_seed())
        if key not in self._streams:
            self._streams[key] = SeedStream(0)
            self._streams[key].reset(global_seed.make_op_state(seed))
        return self._streams[key]


def sort_operations(
    roots: Iterable[Operation], fed: Iterable[int] = (), members: set[int] | None = None
) -> list[Operation]:
    """Return the operations that must run before some operations, and these, in the order of creation.

    Args:
      roots: The operations.
      fed: The `id` of each tensor that has a value already.
      members: The `id` of each operation that may be returned; by default all.
    """
    known = set(fed)
    found: dict[int, Operation] = {}
    stack = list(roots)
    while stack:
        operation = stack.pop()
        if id(operation) in found or (members is not None and id(operation) not in members):
            continue
        if operation.outputs and all(id(t) in known for t in operation.outputs):
            continue
        found[id(operation)] = operation
        stack += [t.op for t in operation.inputs if id(t) not in known]
        stack += operation.control_inputs
    return sorted(found.values(), key=lambda o: o.number)


class Body:
    """Function argument of a call, such as a branch or the body of a loop.

    Python calls the function once, and the graph records its operations. They run at each call of the body.

    Args:
      graph: The graph.
      function: The function.
    """

    def __init__(self, graph: OwningGraph, function: Callable[..., Any]) -> None:
        self._graph, self._function = graph, function
        self._placeholders: list[SymbolicTensor] | None = None
        self._result: PyTree = None
        self._operations: list[Operation] = []
        self.captures: list[SymbolicTensor] = []

    @property
    def is_built(self) -> bool:
        """Return whether the function was called."""
        return self._placeholders is not None

    def build(self, args: tuple[Any, ...], kwargs: dict[str, Any], invents_sizes: bool) -> None:
        """Call the function on symbolic arguments.

        Args:
          args: Positional arguments; each tensor is replaced by a symbolic one.
          kwargs: Keyword arguments.
          invents_sizes: Whether some sizes of the arguments are placeholders for unknown ones.
        """
        placeholders: list[SymbolicTensor] = []
        graph = self._graph

        def make_placeholder(value: PyTree) -> Any:
            if not isinstance(value, Tensor) or isinstance(value, SymbolicTensor):
                return value
            shape = [
                None if invents_sizes and n in INVENTED_SIZES else n for n in value.array.shape
            ]
            operation = Operation(
                graph, graph.unique_name("arg"), "Placeholder", _return_nothing, ()
            )
            placeholders.append(operation.add_output(TensorSpec(shape, value.dtype)))
            return placeholders[-1]

        with init_scope(), graph.record_body() as operations:
            args, kwargs = nest.map_parts(make_placeholder, (args, kwargs))
            # A variable that is a result is read at the end.
            self._result = nest.map_structure(_read_variable, self._function(*args, **kwargs))
        self._placeholders = placeholders
        members = {id(o) for o in operations}
        results = nest.flatten_parts(self._result)
        tensors = [r for r in results if isinstance(r, SymbolicTensor)]
        roots = [t.op for t in tensors] + [r for r in results if isinstance(r, Operation)]
        given = {id(t) for t in placeholders}
        self._operations = sort_operations(roots, given, members)
        used = [t for o in self._operations for t in o.inputs] + tensors
        captured = {id(t): t for t in used if id(t.op) not in members}
        self.captures = list(captured.values())

    def bind(self, find: Find, invents_sizes: bool = False) -> Callable[..., Any]:
        """Return the function of values, which uses the values of captured tensors that `find` returns."""

        def call(*args: PyTree, **kwargs: PyTree) -> PyTree:
            if self._placeholders is None:
                self.build(args, kwargs, invents_sizes)
            values = [v for v in nest.flatten_parts((args, kwargs)) if isinstance(v, Tensor)]
            pairs = zip(self._placeholders or (), values, strict=True)
            sources = [x for o in self._operations for x in o.sources]
            run = Run({id(t): v for t, v in pairs}, sources, find)
            run.execute(self._operations)

            def get_value(leaf: PyTree) -> Any:
                if isinstance(leaf, Operation):
                    return Tensor(np.array(True))
                return run.read(leaf)

            return nest.map_parts(get_value, self._result)

        return call


def _return_nothing(run: Run) -> Sequence[Any]:
    return ()


def _read_variable(leaf: PyTree) -> Any:
    return leaf if isinstance(leaf, Tensor) else read_tensor(leaf)
