"""The tracing engine, which runs a Python function once and records it as a jaxpr.

`trace(fn, args)` calls `fn` with symbolic copies of the tensors in `args` and returns a
`TracedFunction`:

* every outer tensor or variable that `fn` used is a *capture*, an explicit input of the jaxpr;
* every variable that `fn` wrote is an additional output;
* the nested structure of the result is kept, with non-tensor leaves unchanged.

`tf.function`, control flow, `vectorized_map`, Keras training steps and symbolic layer calls all use
this engine. `TracedFunction.call` runs the jaxpr as one op through the dispatcher, so gradient
tapes and enclosing traces treat it like any other op.

Captures are found while `fn` runs. The first use of an outer value binds the primitive `capture`,
which has no inputs. After tracing, the results of these equations become inputs of the jaxpr. So
one run of `fn` is sufficient, and Python side effects happen once.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import jax
import numpy as np
from jax.typing import DTypeLike

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op, is_inexact, is_small_constant
from meshflow.core.dispatch.repeated_calls import RepeatedCalls
from meshflow.core.runtime import errors
from meshflow.core.runtime.annotations import TRACING, region
from meshflow.core.runtime.context import (
    ActiveTrace,
    CallCopier,
    Recorder,
    context,
    fresh_name_scope,
    lock_variables,
    suspend_autocast,
)
from meshflow.core.runtime.tracebacks import hide_frames
from meshflow.core.tracing import host_callbacks
from meshflow.core.tracing.branch_checks import has_conditional_checks, make_row_function
from meshflow.core.tracing.pass_pipeline import PassPipeline, apply_installed_passes
from meshflow.core.values import nest
from meshflow.core.values.dtypes import DType
from meshflow.core.values.specs import TensorSpec, TypeSpec
from meshflow.core.values.tensor import Tensor, read_tensor, read_tensors
from meshflow.core.values.unknown_sizes import SIZE_PRIMITIVES
from meshflow.environment.garbage_collection import suspend_collector
from meshflow.environment.jax_internals import (
    dce_jaxpr,
    eager_constant_folding,
    get_jaxpr_value,
    jex_core,
)
from meshflow.environment.types import ClosedJaxpr, PyTree, Var
from meshflow.passes.jaxprs import summarize_jaxpr
from meshflow.passes.simplification_barriers import insert_simplification_barriers
from meshflow.passes.size_specialization import SizeSpecializer

if TYPE_CHECKING:
    from meshflow.core.values.shapes import TensorShape
    from meshflow.core.values.size_guards import GuardedSizes

_T = TypeVar("_T")

_capture = jex_core.Primitive("capture")
_capture.def_abstract_eval(lambda *, index, aval: aval)


# Names of opaque ops that are no functions.
_STAGED_STATEMENTS = ("cond", "for_loop", "while_loop")
# Attribute of errors that were raised in a branch, a loop or another inner function of a trace.
STAGED_CODE_MARK = "_is_in_staged_code"


def bind_capture(index: int, shape: Iterable[Any], dtype: DTypeLike) -> jax.Array:
    """Create a symbolic array that becomes an input of the trace.

    Args:
      index: Index of the input among the captures of the trace.
      shape: Shape of the array.
      dtype: NumPy dtype of the array.
    """
    return _capture.bind(index=index, aval=jax.core.ShapedArray(tuple(shape), np.dtype(dtype)))


@jax.custom_jvp
def read_as_variables(values: list[jax.Array], initial: list[jax.Array]) -> list[jax.Array]:
    """Return the values that variables were assigned, with the derivatives of their initial values."""
    return values


@read_as_variables.defjvp
def _differentiate_reads(primals: PyTree, tangents: PyTree) -> PyTree:
    return primals[0], tangents[1]


class MutableCell(Protocol):
    """Interface of objects that functions read and write: a variable, or its part on one device."""

    name: str
    _shape: TensorShape
    _write_only: bool

    @property
    def dtype(self) -> DType:
        """Return the dtype of the value."""


class GraphTapeRequired(BaseException):
    """Restarts a trace with a tape that records all ops; see `symbolic_gradients`.

    Args:
      make: Creates the tape.
      is_for_function: Whether to restart the trace of the function instead of that of the innermost
        loop or branch.
    """

    def __init__(self, make: Callable[[], Recorder], is_for_function: bool = False) -> None:
        super().__init__("the function is traced again")
        self.make, self.is_for_function = make, is_for_function


class TraceContext:
    """State of one run of a traced function: its captures and side effects so far.

    Attributes:
      parent: The enclosing trace, or None.
      sources: Captured tensors and variables, in the order of their first use.
      writes: Written variables, by `id`.
      created: Variables created during the run.
      runs_once_per_call: Whether the function runs once for each call, unlike the body of a loop or
        a branch.
      is_loop_body: Whether the function is the body of a loop.
      is_branch: Whether the function is a branch.
      function: The `tf.function` that keeps the program, or None.
      repeated_calls: The equations of calls of ops, which are copied for equal calls.
      num_random_ops: Number of random ops without a seed so far.
      runs_immediately: Whether the program runs once, directly after this trace, before the
        function is traced again.
      sets_initial_values: Whether the program sets the initial values of variables that it created.
      iterator_captures: Elements that are fetched from iterators before each call; see
        `core/iterators`.
      infeeds: Pairs of a feed and an iterator, for elements that the running program requests.
      borrowed_elements: Pairs of an iterator and an element that the trace took to determine its
        shape.
      returned_elements: Elements that were returned to an iterator during the trace, by the
        iterator's `id`.
      infeed_tokens: The last value of each iterator's feed, by the iterator's `id`, which orders
        the requests.
    """

    def __init__(
        self,
        parent: ActiveTrace | None,
        runs_once_per_call: bool = False,
        runs_immediately: bool = False,
        is_loop_body: bool = False,
        is_branch: bool = False,
    ) -> None:
        self.parent = parent
        self.runs_once_per_call, self.is_loop_body, self.is_branch = (
            runs_once_per_call,
            is_loop_body,
            is_branch,
        )
        self.function: Any = None
        self.repeated_calls: CallCopier = RepeatedCalls(_capture)
        self.num_random_ops = 0
        self.runs_immediately: bool = runs_immediately and (
            parent is None or parent.runs_immediately
        )
        self.sets_initial_values = False
        self.iterator_captures: list[Any] = []
        self.infeeds: list[tuple[Any, Any]] = []
        self.borrowed_elements: list[tuple[Any, Any]] = []
        self.returned_elements: dict[int, list[Any]] = {}
        self.infeed_tokens: dict[int, Tensor] = {}
        self.sources: list[Any] = []
        self.writes: dict[int, Any] = {}
        self.created: list[Any] = []
        self._calls: list[tuple[str, Sequence[Any], Any, str, str | None]] = []
        self._capture_arrays: dict[int, Any] = {}
        self._variable_values: dict[int, Tensor] = {}
        # Values of written variables before the first write; and for each variable that was
        # read after a write the assigned tensor and the tensor for reads.
        self._initial_values: dict[int, Tensor] = {}
        self._assigned_reads: dict[int, tuple[Tensor, Tensor]] = {}

    def lookup(self, tensor: Tensor) -> Any:
        """Return the array that represents a tensor in this trace; an outer tensor is captured."""
        # Every traced op runs this method, so it reads the slot and not the property `array`.
        value = tensor.array
        if tensor._owner is self or is_small_constant(value):
            return value
        capture = self._capture_arrays.get(id(tensor))
        if capture is None:
            if isinstance(value, jax.core.Tracer) and tensor._owner is not None:
                self._check_scope(tensor)
            capture = bind_capture(len(self.sources), value.shape, value.dtype)
            self._capture_arrays[id(tensor)] = capture
            self.sources.append(tensor)
        return capture

    def _check_scope(self, tensor: Tensor) -> None:
        scope = self.parent
        while scope is not None:
            if tensor._owner is scope:
                return
            scope = scope.parent
        raise errors.InaccessibleTensorError(
            f"{tensor} was created while another function was traced, and is out of scope here. Return "
            "it from that function, or keep state in a tf.Variable."
        )

    def read(self, variable: MutableCell) -> Tensor:
        """Return the current value of a variable in this trace."""
        tensor = self._variable_values.get(id(variable))
        if tensor is None:
            value = bind_capture(len(self.sources), variable._shape, variable.dtype.dtype)
            tensor = self._variable_values[id(variable)] = Tensor(value)
            self.sources.append(variable)
        elif id(variable) in self._initial_values:
            return self._read_assigned(variable, tensor)
        return tensor

    def _read_assigned(self, variable: MutableCell, assigned: Tensor) -> Tensor:
        """Return an assigned value, the derivative of which is that of the variable, as on a tape."""
        known = self._assigned_reads.get(id(variable))
        if known is None or known[0] is not assigned:
            value, initial = assigned.array, self._initial_values[id(variable)].array
            if not is_inexact(initial) or value.shape != initial.shape:
                return assigned
            known = assigned, Tensor(read_as_variables([value], [initial])[0])
            self._assigned_reads[id(variable)] = known
        return known[1]

    def has_read(self, variable: MutableCell) -> bool:
        """Return whether this trace has read or written a variable."""
        return id(variable) in self._variable_values

    def write(self, variable: MutableCell, value: Tensor) -> None:
        """Set the value of a variable for the rest of this trace."""
        if id(variable) not in self._variable_values and not (
            variable._write_only and self.runs_once_per_call
        ):
            # The old value becomes an input even if it is never read, so that its buffer can be
            # donated.
            self.read(variable)
        if id(variable) not in self.writes and id(variable) in self._variable_values:
            self._initial_values[id(variable)] = self._variable_values[id(variable)]
        # The value gets a new tensor, so tapes attribute later reads to the variable and not to the
        # computation.
        self._variable_values[id(variable)] = Tensor(self.lookup(value))
        self.writes[id(variable)] = variable

    def record_call(self, op: Op, values: Sequence[Any], outputs: PyTree) -> None:
        """Record the call of an op, given its arrays, for the graph of the function."""
        is_function = op.is_opaque and op.name not in _STAGED_STATEMENTS
        name = "PartitionedCall" if is_function else op.name
        self._calls.append((name, values, outputs, "/".join(context.name_scopes), None))

    def label_call(self, outputs: PyTree, label: Any) -> None:
        """Set the name of the node of the call that returned `outputs`, if it is the last one."""
        if isinstance(label, str) and self._calls:
            *call, _ = self._calls[-1]
            first, recorded = (next(iter(jax.tree.leaves(v)), None) for v in (outputs, call[2]))
            if first is recorded:
                self._calls[-1] = (*call, label)

    def list_calls(self) -> list[OpCall]:
        """Return the recorded calls of ops."""
        return [
            OpCall(
                name,
                [get_jaxpr_value(v) for v in jax.tree.leaves(values)],
                [
                    get_jaxpr_value(t._value)
                    for t in jax.tree.leaves(outputs, is_leaf=lambda leaf: type(leaf) is Tensor)
                ],
                scope,
                label,
            )
            for name, values, outputs, scope, label in self._calls
        ]

    def mark_initialization(self) -> None:
        """Record that this program and its enclosing programs set initial values."""
        scope: ActiveTrace | None = self
        while scope is not None:
            scope.sets_initial_values = True
            scope = scope.parent

    def list_written_variables(self) -> list[Any]:
        """Return the written variables, in the order in which they became inputs.

        JAX pairs donated inputs and outputs of the same shape in order. With this order, each
        variable keeps its own buffer and XLA copies nothing.
        """
        return [self.writes[key] for key in self._variable_values if key in self.writes]

    def list_final_values(self) -> list[Any]:
        """Return the arrays of the written variables, in the order of `list_written_variables`."""
        return [
            self.lookup(self._variable_values[id(variable)])
            for variable in self.list_written_variables()
        ]


class OpCall(NamedTuple):
    """Call of an op in a traced function.

    Attributes:
      name: Name of the op.
      operands: Values of the jaxpr, or arrays of constants.
      results: Values of the jaxpr.
      scope: The open name scopes, joined by slashes.
      label: The argument `name` of the op, or None.
    """

    name: str
    operands: list[Any]
    results: list[Any]
    scope: str
    label: str | None


@contextlib.contextmanager
def enter_trace(scope: ActiveTrace | None, outer_tapes: bool) -> Iterator[None]:
    """Make `scope` the innermost trace, without active tapes.

    Args:
      scope: The trace, or None to leave all traces.
      outer_tapes: Whether tapes of enclosing levels need the gradients of ops inside.
    """
    saved = context.trace, context.tapes, context.outer_tapes
    context.trace, context.tapes, context.outer_tapes = scope, [], outer_tapes
    try:
        yield
    finally:
        context.trace, context.tapes, context.outer_tapes = saved


@contextlib.contextmanager
def init_scope() -> Iterator[None]:
    """Leave all traces and tapes: ops inside run eagerly, at trace time.

    Example:
      >>> @tf.function
      ... def f():
      ...     with tf.init_scope():
      ...         print(tf.executing_eagerly())
      >>> f()
      True
    """
    if context.trace is None:
        saved, context.tapes = context.tapes, []
        try:
            yield
        finally:
            context.tapes = saved
        return
    with enter_trace(None, False), jax.core.eval_context():
        yield


class TracedFunction:
    """A traced function: a jaxpr with its captures, variable writes and output structure.

    Attributes:
      name: Name in profiles and errors.
      closed_jaxpr: The jaxpr. Its inputs are the arguments and the captures, its outputs the
        results and the new values of written variables.
      captures: Outer tensors and variables that are inputs after the arguments.
      writes: Variables that get new values from the outputs after the results.
      structure: The nested result, with `TensorSlot`s for tensors.
      num_results: Number of tensors in the result.
      out_specs: The `TensorSpec` of each result tensor.
      iterator_captures: Elements that are fetched from iterators before each call.
      infeeds: Pairs of a feed and an iterator, for elements that loops request.
      sets_initial_values: Whether the function sets initial values of variables that it created, so
        it may run only once.
      fed_iterators: The `id`s of the iterators from which the running program takes elements.
      allows_simplification: Whether XLA may simplify arithmetic as if numbers were real, as under
        `jit_compile=True`.
      calls: The ops that the function called, which its graph shows.
      has_unknown_sizes: Whether sizes depend on values, so that only the interpreter can run the program.
    """

    def __init__(
        self,
        name: str,
        closed: jex_core.ClosedJaxpr,
        captures: list[Any],
        writes: list[Any],
        structure: Any,
        count: int,
    ) -> None:
        self.name = name
        self.closed_jaxpr = closed
        self.captures = captures
        self.writes = writes
        self.structure = structure
        self.num_results = count
        self.out_specs = [TensorSpec(a.shape, a.dtype) for a in closed.out_avals[:count]]
        self.iterator_captures: list[Any] = []
        self.infeeds: list[tuple[Any, Any]] = []
        self.fed_iterators: set[int] = set()
        self.sets_initial_values = False
        self.allows_simplification = False
        self.calls: list[OpCall] = []
        self.has_unknown_sizes = False
        self._base_op = self._make_op(closed)
        self._rewritten_op: tuple[int, Op] | None = None

    def _make_op(self, closed: jex_core.ClosedJaxpr) -> Op:
        run = jex_core.jaxpr_as_fun(closed)

        def call(operands: Sequence[Any], _: tuple[Any, ...]) -> list[Any]:
            arguments, captures = operands
            return run(*arguments, *captures)

        return Op(self.name, call, heavy=True, is_opaque=True)

    @property
    def op(self) -> Op:
        """Return the computation as an op with the operands ([arguments], [captures])."""
        # Inside another function, this function is rewritten as a part of that one.
        if context.trace is not None:
            return self._base_op
        if self._rewritten_op is None or self._rewritten_op[0] != PassPipeline.version:
            closed = self._rewrite()
            is_same = closed is self.closed_jaxpr
            op = self._base_op if is_same else self._make_op(closed)
            self._rewritten_op = PassPipeline.version, op
        return self._rewritten_op[1]

    def _rewrite(self) -> ClosedJaxpr:
        closed = apply_installed_passes(self.closed_jaxpr)
        return closed if self.allows_simplification else insert_simplification_barriers(closed)

    def specialize(self, sizes: GuardedSizes, shapes: Sequence[tuple[int, ...]]) -> TracedFunction:
        """Return the function for known sizes.

        Args:
          sizes: The symbols of the trace.
          shapes: Shapes of the arguments.
        """
        specializer = SizeSpecializer(sizes.shapes, shapes, lambda: sizes.trace_rules(shapes))
        traced = TracedFunction(
            self.name,
            specializer.specialize(self.closed_jaxpr),
            self.captures,
            self.writes,
            self.structure,
            self.num_results,
        )
        traced.iterator_captures, traced.infeeds = self.iterator_captures, self.infeeds
        traced.fed_iterators = self.fed_iterators
        traced.allows_simplification = self.allows_simplification
        find = lambda value: specializer.atoms.get(value, value) if _is_variable(value) else value
        traced.calls = [
            call._replace(
                operands=list(map(find, call.operands)), results=list(map(find, call.results))
            )
            for call in self.calls
        ]
        return traced

    def run_on_arrays(self, arguments: Sequence[Any], captures: Sequence[Any]) -> list[Any]:
        """Run the program on arrays.

        Returns the result arrays, then the new values of the written variables.
        """
        return self.op.call((arguments, captures), ())

    def run_row(
        self, arguments: Sequence[Any], captures: Sequence[Any], keeps_derivatives: bool = False
    ) -> list[Any]:
        """Run the program for one of the rows of `jax.vmap`, so that it fails only in checks that the row needs.

        Args:
          arguments: Arguments of the program.
          captures: Captures of the program.
          keeps_derivatives: See `make_row_function`.

        Returns:
          The result arrays, then the new values of the written variables.
        """
        if not has_conditional_checks(self.closed_jaxpr.jaxpr):
            return self.run_on_arrays(arguments, captures)
        closed = self._rewrite() if context.trace is None else self.closed_jaxpr
        return make_row_function(closed, keeps_derivatives)(*arguments, *captures)

    def run_for_results(
        self, indices: Sequence[int], arguments: Sequence[Any], captures: Sequence[Any]
    ) -> list[Any]:
        """Compute some of the results on arrays, without the equations that only the others need.

        Args:
          indices: Indices of the results.
          arguments: Arguments of the program.
          captures: Captures of the program.
        """
        jaxpr, order = self.closed_jaxpr.jaxpr, sorted({*indices})
        is_used = [i in order for i in range(len(jaxpr.outvars))]
        reduced, _ = dce_jaxpr(jaxpr, is_used, instantiate=True)
        run = jex_core.jaxpr_as_fun(jex_core.ClosedJaxpr(reduced, self.closed_jaxpr.consts))
        results = dict(zip(order, run(*arguments, *captures), strict=True))
        return [results[i] for i in indices]

    def get_captured_arrays(self) -> list[Any]:
        """Return the arrays of the captures; an iterator takes its next element."""
        return [c._value for c in self.captures]

    def get_captured_tensors(self) -> list[Tensor]:
        """Return the captures as tensors of the current context; variables are read."""
        # The jaxpr expects the variables' own dtypes, also when it is called inside a
        # mixed-precision layer.
        with suspend_autocast():
            return read_tensors(self.captures)

    def call(self, arguments: Sequence[Tensor]) -> PyTree:
        """Run the function as one op on tensors, and write its variables."""
        if self.closed_jaxpr.effects and context.trace is None:
            # A Python callback may wait for another thread, and that thread for a variable. So the
            # lock is not held while the program runs.
            outputs = host_callbacks.run_to_completion(
                apply, self.op, (list(arguments), self.get_captured_tensors())
            )
            with lock_variables():
                self.assign_variables(outputs[self.num_results :])
        else:
            with lock_variables() if self.writes else contextlib.nullcontext():
                outputs = apply(self.op, (list(arguments), self.get_captured_tensors()))
                self.assign_variables(outputs[self.num_results :])
        return self.rebuild_result(outputs[: self.num_results])

    def record_iterator_positions(self, leaves: Sequence[Any]) -> None:
        """Record which arguments are the iterators from which the function takes elements.

        Args:
          leaves: Leaves of the arguments of the traced call.
        """
        positions = {id(leaf): i for i, leaf in enumerate(leaves) if hasattr(leaf, "give_back")}
        for consumer, source in [(c, c.source) for c in self.iterator_captures] + self.infeeds:
            if consumer.position is None:
                consumer.position = positions.get(id(source))

    def bind_iterators(self, leaves: Sequence[Any]) -> None:
        """Make the function take elements from the iterators among the arguments of a call.

        While another function is traced, the feeds become feeds of that function.

        Args:
          leaves: Leaves of the arguments of the call.
        """
        scope = context.trace
        while scope is not None and not scope.runs_once_per_call and scope.parent is not None:
            scope = scope.parent
        for capture in self.iterator_captures:
            if capture.position is not None:
                capture.source = leaves[capture.position]
        for feed, source in self.infeeds:
            bound_source = source if feed.position is None else leaves[feed.position]
            if scope is None:
                feed.source = bound_source
            elif all(other_feed is not feed for other_feed, _ in scope.infeeds):
                scope.infeeds.append((feed, bound_source))
            elif any(f is feed and s is not bound_source for f, s in scope.infeeds):
                raise NotImplementedError(
                    f"{self.name} takes elements in a loop, and is called with two iterators inside one "
                    "function. Create a separate tf.function for each iterator."
                )

    def assign_variables(self, values: Sequence[Tensor]) -> None:
        """Write the new values, which are the outputs after the results, to the variables."""
        for variable, value in zip(self.writes, values, strict=True):
            variable._write(value)

    def rebuild_result(self, tensors: Sequence[Any]) -> PyTree:
        """Return the result structure with `tensors` in place of the slots."""
        return fill_slots(self.structure, tensors)


def _is_variable(value: object) -> bool:
    return isinstance(value, jex_core.Var)


class TensorSlot:
    """Placeholder of a tensor in a nested structure."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class CompositeResultSlot:
    """Placeholder of a composite tensor.

    Attributes:
      make: Returns the composite tensor for its parts.
      parts: Slots and constants.
      spec: Spec of the composite tensor in a saved function, or None.
    """

    __slots__ = ("make", "parts", "spec")

    def __init__(
        self, make: Callable[[list[Any]], Any], parts: list[Any], spec: TypeSpec | None = None
    ) -> None:
        self.make, self.parts, self.spec = make, parts, spec


def list_slots(structure: PyTree) -> list[Any]:
    """Return the leaves of a structure, with the parts of `CompositeResultSlot`s instead of these."""
    leaves = nest.flatten(structure)
    return [
        part
        for leaf in leaves
        for part in (leaf.parts if type(leaf) is CompositeResultSlot else [leaf])
    ]


def fill_slots(structure: PyTree, values: Sequence[Any]) -> PyTree:
    """Return `structure` with each slot replaced by the value at its index."""
    kind = type(structure)
    # Loaded functions and training steps return such containers; `nest` takes longer than small programs.
    if kind is list or kind is tuple:
        return kind([fill_slots(item, values) for item in structure])
    if kind is dict:
        return {key: fill_slots(item, values) for key, item in structure.items()}
    if kind is TensorSlot or kind is CompositeResultSlot:
        return _replace_slot(values, structure)
    return nest.map_structure(functools.partial(_replace_slot, values), structure)


def _replace_slot(values: Sequence[Any], leaf: Any) -> Any:
    # This is no inner function, because one that calls itself would keep the values until the next garbage collection.
    if type(leaf) is TensorSlot:
        return values[leaf.index]
    if type(leaf) is CompositeResultSlot:
        return leaf.make([_replace_slot(values, part) for part in leaf.parts])
    return leaf


def is_array_like(value: object) -> bool:
    """Check whether a value becomes a tensor argument of a traced function."""
    kinds = (Tensor, TensorSpec, np.ndarray, np.generic, jax.Array, jax.ShapeDtypeStruct)
    return isinstance(value, kinds)


def trace(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    name: str | None = None,
    *,
    isolated: bool = False,
    runs_immediately: bool = False,
    is_loop_body: bool = False,
    is_branch: bool = False,
    axes: Sequence[tuple[str, int]] = (),
) -> TracedFunction:
    """Run `fn(*args, **kwargs)` once on symbolic tensors.

    Args:
      fn: A Python function of nested structures.
      args: Positional arguments; tensors, arrays and fully defined `TensorSpec`s become symbolic.
      kwargs: Keyword arguments, which are treated like `args`, or None.
      name: Name in profiles and errors; by default the function's name.
      isolated: True for functions that are compiled and called from anywhere: tapes around this
        trace record the call, not the ops inside.
      runs_immediately: Whether the program runs directly after this trace, and only once if it sets
        initial values.
      is_loop_body: Whether the function is the body of a loop.
      is_branch: Whether the function is a branch.
      axes: Names and sizes of the axes over which collectives inside reduce.

    Returns:
      The traced function.
    """
    kwargs = kwargs or {}
    split = nest.split_composites((args, kwargs))
    leaves = nest.flatten(split)
    symbolic = [
        i for i, leaf in enumerate(leaves) if is_array_like(leaf) and not _holds_strings(leaf)
    ]
    specs = [_to_abstract(leaves[i]) for i in symbolic]
    result: dict[str, Any] = {}
    scope: TraceContext

    def run(*tracers: jax.Array) -> list[Any]:
        full = list(leaves)
        for i, tracer in zip(symbolic, tracers, strict=True):
            full[i] = Tensor(tracer)
        parts = nest.pack_sequence_as(split, full)
        positional, named = nest.join_composites((args, kwargs), parts)
        outputs = fn(*positional, **named)
        tensors: list[Any] = []
        result["structure"] = nest.map_structure(
            functools.partial(_replace_by_slot, tensors), outputs
        )
        arrays = [scope.lookup(t) for t in tensors]
        result["count"] = len(arrays)
        return arrays + scope.list_final_values()

    run.__name__ = name or str(getattr(fn, "__name__", "function"))
    outer_tapes = not isolated and (bool(context.tapes) or context.outer_tapes)

    def attempt(tapes: list[Recorder]) -> ClosedJaxpr:
        nonlocal scope
        scope = TraceContext(
            context.trace, isolated or bool(axes), runs_immediately, is_loop_body, is_branch
        )
        try:
            # Inside an `init_scope`, JAX evaluates equations without tracers, and capture equations
            # have none.
            with (
                suspend_collector,
                region(TRACING, run.__name__),
                enter_trace(scope, outer_tapes),
                fresh_name_scope(),
                eager_constant_folding(False),
            ):
                context.tapes.extend(tapes)
                return jax.make_jaxpr(run, axis_env=list(axes) or None)(*specs)
        finally:
            scope.repeated_calls.clear()
            # The trace only took these elements to determine their shapes, so they are returned in
            # reverse order.
            for source, element in reversed(scope.borrowed_elements):
                source.give_back(element)

    makers = [] if isolated else [getattr(t, "make_body_tape", None) for t in context.tapes]
    try:
        try:
            closed = attempt([make() for make in makers if make is not None])
        except GraphTapeRequired as request:
            if request.is_for_function and not scope.runs_once_per_call and scope.parent:
                raise
            closed = attempt([request.make()])
    except Exception as error:
        if not isolated:
            # The traceback no longer shows that a branch or the body of a loop raised the error.
            setattr(error, STAGED_CODE_MARK, True)
        hide_frames(error)
        raise
    closed, captures = _promote_captures(closed, scope)
    traced = TracedFunction(
        run.__name__,
        closed,
        captures,
        scope.list_written_variables(),
        result["structure"],
        result["count"],
    )
    traced.sets_initial_values = scope.sets_initial_values
    if isolated:
        traced.calls = scope.list_calls()
    # A host computation that only checks values creates no symbol, and traces that only determined shapes may create some.
    traced.has_unknown_sizes = not SIZE_PRIMITIVES.isdisjoint(
        summarize_jaxpr(closed.jaxpr).primitives
    )
    traced.iterator_captures, traced.infeeds, traced.fed_iterators = (
        scope.iterator_captures,
        scope.infeeds,
        set(scope.infeed_tokens),
    )
    return traced


def _holds_strings(leaf: object) -> bool:
    """Check whether a leaf holds strings, which are constants of a trace: XLA has no strings."""
    return isinstance(leaf, Tensor) and leaf.array.dtype == object


def _to_abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, TensorSpec):
        return jax.ShapeDtypeStruct(tuple(leaf.shape.as_list()), leaf.dtype.dtype)
    value = leaf.array if isinstance(leaf, Tensor) else leaf
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def _replace_by_slot(tensors: list[Any], leaf: Any) -> Any:
    """Replace a tensor leaf of a result by a slot, and append the tensor to `tensors`."""
    # Optionals are no composite tensors, but have parts, too.
    if hasattr(leaf, "_get_state_builder"):
        parts = leaf._state_parts()
        slots = [p if type(p.array) is np.ndarray else _replace_by_slot(tensors, p) for p in parts]
        return CompositeResultSlot(leaf._get_state_builder(), slots)
    leaf = read_tensor(leaf)
    if isinstance(leaf, (np.ndarray, jax.Array)):
        leaf = Tensor(leaf)
    if not isinstance(leaf, Tensor) or leaf.array.dtype == object:
        return leaf
    tensors.append(leaf)
    return TensorSlot(len(tensors) - 1)


def _promote_captures(closed: ClosedJaxpr, scope: TraceContext) -> tuple[ClosedJaxpr, list[Any]]:
    """Turn the results of capture equations, and outer tracers among the constants, into inputs."""
    jaxpr = closed.jaxpr
    captured: dict[int, Var] = {}
    equations = []
    for equation in jaxpr.eqns:
        if equation.primitive is _capture:
            captured[equation.params["index"]] = equation.outvars[0]
        else:
            equations.append(equation)
    missing = [s for i, s in enumerate(scope.sources) if i not in captured]
    if missing:
        raise NotImplementedError(
            f"{missing[0]!r} is first used inside a function given to a JAX transformation (jax.jit, "
            "jax.vmap, lax.scan, ...) while a tf.function is traced. Read it before that call, or use "
            "tf.vectorized_map, tf.while_loop or tf.scan instead."
        )
    inputs = [captured[i] for i in range(len(scope.sources))]
    sources = list(scope.sources)
    constant_vars, constants = [], []
    for var, constant in zip(jaxpr.constvars, closed.consts, strict=True):
        if isinstance(constant, jax.core.Tracer):
            inputs.append(var)
            with enter_trace(scope.parent, False):
                sources.append(Tensor(constant))
        else:
            constant_vars.append(var)
            constants.append(constant)
    invars = [*jaxpr.invars, *inputs]
    promoted = jaxpr.replace(
        constvars=constant_vars,
        invars=invars,
        eqns=equations,
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return jex_core.ClosedJaxpr(promoted, constants), sources


def run_outside_of_traces(function: Callable[[], _T]) -> _T:
    """Call a function in another thread, so that its programs do not become a part of those that this thread traces.

    Args:
      function: A function without arguments.
    """
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        return executor.submit(function).result()


def trace_shapes(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
    """Return the result structure of `fn` with `TensorSpec`s for tensors.

    This infers the output of a layer without running it.
    """
    traced = trace(fn, args, kwargs, isolated=True)
    return traced.rebuild_result(traced.out_specs)
