"""The tracing engine: runs a Python function once and keeps what it did as a jaxpr.

`trace(fn, args)` calls `fn` with symbolic copies of the tensors in `args` and returns a `Traced`:

* every outer tensor or variable that `fn` used is a *capture*, an explicit input of the jaxpr;
* every variable that `fn` wrote is an extra output;
* the nested structure of the result is kept, with non-tensor leaves as they are.

`tf.function`, control flow, `vectorized_map`, Keras' training steps and symbolic layer calls are
all this one engine. `Traced.call` runs the jaxpr as one op through the dispatcher, so gradient
tapes and enclosing traces treat it like any other op.

Captures are found while `fn` runs. The first use of an outer value binds the primitive
`capture`, which has no inputs; after tracing, the results of these equations are promoted to
inputs of the jaxpr. That way one run of `fn` is enough, and Python side effects happen once.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op, is_inexact
from meshflow.core.runtime import errors
from meshflow.core.runtime.annotations import TRACING, region
from meshflow.core.runtime.collection import resting
from meshflow.core.runtime.context import Recorder, Tracing, alone, as_stored, context, fresh_names
from meshflow.core.tracing import host_callbacks
from meshflow.core.tracing.pass_pipeline import PassPipeline, rewritten
from meshflow.core.values import nest
from meshflow.core.values.dtypes import DType
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.environment.jax_internals import dce_jaxpr, eager_constant_folding, jex_core

_capture = jex_core.Primitive("capture")
_capture.def_abstract_eval(lambda *, index, aval: aval)


def bind_capture(index: int, shape: Any, dtype: Any) -> Any:
    """A symbolic array that becomes the input of number `index` among a trace's captures."""
    return _capture.bind(index=index, aval=jax.core.ShapedArray(tuple(shape), np.dtype(dtype)))


class Cell(Protocol):
    """What functions read and write: a variable, or a part of one on a device."""

    name: str
    _shape: Any
    _write_only: bool

    @property
    def dtype(self) -> DType:
        """The element type."""


class NeedsGraphTape(BaseException):
    """Raised to have the trace begun again with a tape of everything; see `symbolic_gradients`.

    Args:
      make: makes the tape.
    """

    def __init__(self, make: Callable[[], Recorder]) -> None:
        super().__init__("the function is traced again")
        self.make = make


class TraceContext:
    """What one run of a traced function has used and changed so far.

    Attributes:
      parent: the enclosing trace, or None.
      sources: captured tensors and variables, in order of first use.
      writes: variables written, by identity.
      created: variables made during the run.
      once: whether the function runs once for each call, not as a loop's body or a branch.
      repeats: whether it is a loop's body.
      branch: whether it is a branch.
      random_ops: how many random ops without a seed it has so far.
      runs: whether the program is run once, right after this trace, before the function is traced again.
      initializes: whether it gives variables that it made their initial values.
      iterator_captures, infeeds, taken, offered, last_fed: elements of iterators; see `core/iterators`.
    """

    def __init__(
        self,
        parent: Tracing | None,
        once: bool = False,
        runs: bool = False,
        repeats: bool = False,
        branch: bool = False,
    ) -> None:
        self.parent = parent
        self.once, self.repeats, self.branch = once, repeats, branch
        self.random_ops = 0
        self.runs: bool = runs and (parent is None or parent.runs)
        self.initializes = False
        self.iterator_captures: list[Any] = []
        self.infeeds: list[tuple[Any, Any]] = []
        self.taken: list[tuple[Any, Any]] = []
        self.offered: dict[int, list[Any]] = {}
        self.last_fed: dict[int, Tensor] = {}
        self.sources: list[Any] = []
        self.writes: dict[int, Any] = {}
        self.created: list[Any] = []
        self._captured: dict[int, Any] = {}
        self._state: dict[int, Tensor] = {}

    def value_of(self, tensor: Tensor) -> Any:
        """The array that stands for `tensor` inside this trace; captures an outer tensor."""
        value = tensor._value
        if tensor._owner is self or (type(value) is np.ndarray and not is_inexact(value)):
            # Known integers stay known; known floats may be what somebody differentiates.
            return value
        known = self._captured.get(id(tensor))
        if known is None:
            if isinstance(value, jax.core.Tracer) and tensor._owner is not None:
                self._check_reachable(tensor)
            known = bind_capture(len(self.sources), value.shape, value.dtype)
            self._captured[id(tensor)] = known
            self.sources.append(tensor)
        return known

    def _check_reachable(self, tensor: Tensor) -> None:
        scope = self.parent
        while scope is not None:
            if tensor._owner is scope:
                return
            scope = scope.parent
        raise errors.InaccessibleTensorError(
            f"{tensor} was made while another function was traced and is out of scope here. Return "
            "it from that function, or keep state in a tf.Variable."
        )

    def read(self, variable: Cell) -> Tensor:
        """The current value of a variable in this trace."""
        tensor = self._state.get(id(variable))
        if tensor is None:
            value = bind_capture(len(self.sources), variable._shape, variable.dtype.dtype)
            tensor = self._state[id(variable)] = Tensor(value)
            self.sources.append(variable)
        return tensor

    def write(self, variable: Cell, value: Tensor) -> None:
        """Makes `value` the variable's value for the rest of this trace."""
        if id(variable) not in self._state and not (variable._write_only and self.once):
            # The old value becomes an input even when never read, so its buffer can be reused.
            self.read(variable)
        # A tensor of its own: tapes take what is read later for the variable, not for what was computed.
        self._state[id(variable)] = Tensor(self.value_of(value))
        self.writes[id(variable)] = variable

    def initialize(self) -> None:
        """Notes that the program gives an initial value, as do those that it is a part of."""
        scope: Tracing | None = self
        while scope is not None:
            scope.initializes = True
            scope = scope.parent

    def written(self) -> list[Any]:
        """The written variables, in the order in which they became inputs.

        JAX pairs donated inputs with outputs of the same shape in order: so each variable gets its own
        buffer, and XLA has nothing to copy.
        """
        return [self.writes[key] for key in self._state if key in self.writes]

    def final_values(self) -> list[Any]:
        """Arrays of the written variables, in the order of `written`."""
        return [self.value_of(self._state[id(variable)]) for variable in self.written()]


@contextlib.contextmanager
def enter(scope: Tracing | None, outer_tapes: bool) -> Iterator[None]:
    """Makes `scope` the innermost trace, with no tapes of its own yet."""
    saved = context.trace, context.tapes, context.outer_tapes
    context.trace, context.tapes, context.outer_tapes = scope, [], outer_tapes
    try:
        yield
    finally:
        context.trace, context.tapes, context.outer_tapes = saved


@contextlib.contextmanager
def init_scope() -> Iterator[None]:
    """Leaves all traces and tapes: ops inside run eagerly, at trace time.

    Example:
      >>> import meshflow as tf
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
    with enter(None, False), jax.core.eval_context():
        yield


class Traced:
    """A traced function: a jaxpr with its captures, variable writes and output structure.

    Attributes:
      captures: outer tensors and variables that are inputs after the arguments.
      writes: variables whose new values are outputs after the results.
      structure: the nested result, with `Slot`s where tensors go.
      out_specs: one `TensorSpec` per result tensor.
      iterator_captures: elements of iterators that it takes at each call.
      infeeds: (feed, iterator) pairs of elements that its loops ask for.
      initializes: whether it gives variables that it made their initial values, so that it may run only once.
      fed: identities of the iterators that it takes elements from while it runs.
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
        self.closed = closed
        self.captures = captures
        self.writes = writes
        self.structure = structure
        self.count = count
        self.out_specs = [TensorSpec(a.shape, a.dtype) for a in closed.out_avals[:count]]
        self.iterator_captures: list[Any] = []
        self.infeeds: list[tuple[Any, Any]] = []
        self.fed: set[int] = set()
        self.initializes = False
        self._plain = self._make_op(closed)
        self._rewritten: tuple[int, Op] | None = None

    def _make_op(self, closed: jex_core.ClosedJaxpr) -> Op:
        run = jex_core.jaxpr_as_fun(closed)

        def call(operands: Any, _: Any) -> list[Any]:
            arguments, captures = operands
            return run(*arguments, *captures)

        return Op(self.name, call, heavy=True, whole=True)

    @property
    def op(self) -> Op:
        """The computation as an op; its operands are ([arguments], [captures])."""
        # Inside another function it is rewritten together with that.
        if context.trace is not None or not PassPipeline.active:
            return self._plain
        if self._rewritten is None or self._rewritten[0] != PassPipeline.version:
            self._rewritten = PassPipeline.version, self._make_op(rewritten(self.closed))
        return self._rewritten[1]

    def arrays(self, arguments: Sequence[Any], captures: Sequence[Any]) -> list[Any]:
        """Runs the program on arrays: result arrays, then the new values of written variables."""
        return self.op.call((arguments, captures), ())

    def some(
        self, numbers: Sequence[int], arguments: Sequence[Any], captures: Sequence[Any]
    ) -> list[Any]:
        """Runs on arrays what some results need, and nothing else.

        Args:
          numbers: which results.
          arguments: of the program.
          captures: of the program.
        """
        jaxpr, order = self.closed.jaxpr, sorted({*numbers})
        wanted = [i in order for i in range(len(jaxpr.outvars))]
        small, _ = dce_jaxpr(jaxpr, wanted, instantiate=True)
        run = jex_core.jaxpr_as_fun(jex_core.ClosedJaxpr(small, self.closed.consts))
        found = dict(zip(order, run(*arguments, *captures), strict=True))
        return [found[i] for i in numbers]

    def captured_tensors(self) -> list[Tensor]:
        """The captures as tensors of the present context; variables are read."""
        # The jaxpr has the variables' own dtypes, also when called inside a mixed-precision layer.
        with as_stored():
            return [c if isinstance(c, Tensor) else c._as_tensor() for c in self.captures]

    def call(self, arguments: Sequence[Tensor]) -> Any:
        """Runs the function as one op on tensors and performs its variable writes."""
        if self.closed.effects and context.trace is None:
            # Python that is called may wait for other threads, which may wait for variables.
            outputs = host_callbacks.finish(
                apply, self.op, (list(arguments), self.captured_tensors())
            )
            with alone():
                self.assign(outputs[self.count :])
        else:
            with alone() if self.writes else contextlib.nullcontext():
                outputs = apply(self.op, (list(arguments), self.captured_tensors()))
                self.assign(outputs[self.count :])
        return self.rebuild(outputs[: self.count])

    def place_sources(self, leaves: Sequence[Any]) -> None:
        """Notes which of the function's arguments are the iterators that it takes elements from."""
        places = {id(leaf): i for i, leaf in enumerate(leaves) if hasattr(leaf, "give_back")}
        for taker, source in [(c, c.source) for c in self.iterator_captures] + self.infeeds:
            if taker.position is None:
                taker.position = places.get(id(source))

    def bind(self, leaves: Sequence[Any]) -> None:
        """Makes the iterators of a call's arguments those that elements are taken from.

        While another function is traced, the feeds become that function's.
        """
        scope = context.trace
        while scope is not None and not scope.once and scope.parent is not None:
            scope = scope.parent
        for capture in self.iterator_captures:
            if capture.position is not None:
                capture.source = leaves[capture.position]
        for feed, source in self.infeeds:
            used = source if feed.position is None else leaves[feed.position]
            if scope is None:
                feed.source = used
            elif all(known is not feed for known, _ in scope.infeeds):
                scope.infeeds.append((feed, used))
            elif any(known is feed and other is not used for known, other in scope.infeeds):
                raise NotImplementedError(
                    f"{self.name} takes elements in a loop, and is called with two iterators inside one "
                    "function. Make two tf.functions of it."
                )

    def assign(self, values: Sequence[Tensor]) -> None:
        """Writes new values, as given by the extra outputs, to the written variables."""
        for variable, value in zip(self.writes, values, strict=True):
            variable._write(value)

    def rebuild(self, tensors: Sequence[Any]) -> Any:
        """The result structure with `tensors` in place."""
        structure = self.structure
        if type(structure) is Slot:
            return tensors[structure.index]
        if type(structure) is dict and all(type(leaf) is Slot for leaf in structure.values()):
            # The result of every training step: worth a short way.
            return {key: tensors[slot.index] for key, slot in structure.items()}
        return fill(structure, tensors)


class Slot:
    """The place of one tensor in a nested structure."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class RowsSlot:
    """The place of `tf.IndexedSlices`: what makes them of their parts, which are slots or known."""

    __slots__ = ("make", "parts")

    def __init__(self, make: Callable[[list[Any]], Any], parts: list[Any]) -> None:
        self.make = make
        self.parts = parts


def fill(structure: Any, values: Sequence[Any]) -> Any:
    """`structure` with each `Slot` replaced by the value it numbers."""

    def put(leaf: Any) -> Any:
        if type(leaf) is Slot:
            return values[leaf.index]
        return leaf.make([put(part) for part in leaf.parts]) if type(leaf) is RowsSlot else leaf

    return put(structure) if type(structure) is Slot else nest.map_structure(put, structure)


def is_array_like(value: Any) -> bool:
    """Whether a value becomes a tensor argument of a traced function."""
    kinds = (Tensor, TensorSpec, np.ndarray, np.generic, jax.Array, jax.ShapeDtypeStruct)
    return isinstance(value, kinds)


def trace(
    fn: Callable[..., Any],
    args: Any,
    kwargs: Any = None,
    name: str | None = None,
    *,
    isolated: bool = False,
    runs: bool = False,
    repeats: bool = False,
    branch: bool = False,
    axes: Sequence[tuple[str, int]] = (),
) -> Traced:
    """Runs `fn(*args, **kwargs)` once on symbolic tensors.

    Args:
      fn: a Python function of nested structures.
      args: a tuple; tensors, arrays and fully defined `TensorSpec`s in it become symbolic.
      kwargs: a dictionary treated alike, or None.
      name: the name in profiles and errors; default the function's.
      isolated: True for functions that will be compiled and called from anywhere: tapes around
        this trace see the call, not what is inside.
      runs: whether the program is run right after this trace, once if it `initializes`.
      repeats: whether the function is a loop's body.
      branch: whether it is a branch.
      axes: names and sizes of the axes that collectives inside reduce over.

    Returns:
      A `Traced`.
    """
    kwargs = kwargs or {}
    leaves = nest.flatten((args, kwargs))
    symbolic = [i for i, leaf in enumerate(leaves) if is_array_like(leaf) and not _is_text(leaf)]
    specs = [_abstract(leaves[i]) for i in symbolic]
    result: dict[str, Any] = {}
    scope: TraceContext

    def run(*tracers: Any) -> list[Any]:
        full = list(leaves)
        for i, tracer in zip(symbolic, tracers, strict=True):
            full[i] = Tensor(tracer)
        positional, named = nest.pack_sequence_as((args, kwargs), full)
        outputs = fn(*positional, **named)
        tensors: list[Any] = []
        result["structure"] = nest.map_structure(functools.partial(_collect, tensors), outputs)
        arrays = [scope.value_of(t) for t in tensors]
        result["count"] = len(arrays)
        return arrays + scope.final_values()

    run.__name__ = name or str(getattr(fn, "__name__", "function"))
    outer_tapes = not isolated and (bool(context.tapes) or context.outer_tapes)

    def attempt(tapes: list[Recorder]) -> Any:
        nonlocal scope
        scope = TraceContext(context.trace, isolated or bool(axes), runs, repeats, branch)
        try:
            # In an `init_scope` JAX evaluates what has no tracers, which captures have not.
            with (
                resting,
                region(TRACING, run.__name__),
                enter(scope, outer_tapes),
                fresh_names(),
                eager_constant_folding(False),
            ):
                context.tapes.extend(tapes)
                return jax.make_jaxpr(run, axis_env=list(axes) or None)(*specs)
        finally:
            # What was taken to learn its shape is next again.
            for source, element in reversed(scope.taken):
                source.give_back(element)

    try:
        closed = attempt([])
    except NeedsGraphTape as wish:
        if not isolated:
            raise
        closed = attempt([wish.make()])
    closed, captures = _promote_captures(closed, scope)
    traced = Traced(
        run.__name__,
        closed,
        captures,
        scope.written(),
        result["structure"],
        result["count"],
    )
    traced.initializes = scope.initializes
    traced.iterator_captures, traced.infeeds, traced.fed = (
        scope.iterator_captures,
        scope.infeeds,
        set(scope.last_fed),
    )
    return traced


def _is_text(leaf: Any) -> bool:
    """Whether a leaf holds strings, which programs do not: they are known while tracing."""
    return isinstance(leaf, Tensor) and leaf._value.dtype == object


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, TensorSpec):
        return jax.ShapeDtypeStruct(tuple(leaf.shape.as_list()), leaf.dtype.dtype)
    value = leaf._value if isinstance(leaf, Tensor) else leaf
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def _collect(tensors: list[Any], leaf: Any) -> Any:
    """Replaces a tensor leaf of a result by a slot; other leaves stay."""
    if isinstance(leaf, IndexedSlices):
        parts = leaf._state_parts()
        known = [type(part._value) is np.ndarray for part in parts]
        kept = [p if k else _collect(tensors, p) for p, k in zip(parts, known, strict=True)]
        return RowsSlot(leaf._with_state_parts, kept)
    if hasattr(leaf, "_as_tensor"):
        leaf = leaf._as_tensor()
    elif isinstance(leaf, (np.ndarray, jax.Array)):
        leaf = Tensor(leaf)
    if not isinstance(leaf, Tensor) or leaf._value.dtype == object:
        return leaf
    tensors.append(leaf)
    return Slot(len(tensors) - 1)


def _promote_captures(closed: Any, scope: TraceContext) -> tuple[Any, list[Any]]:
    """Turns the results of capture equations, and outer tracers among the constants, into inputs."""
    jaxpr = closed.jaxpr
    captured: dict[int, Any] = {}
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
            with enter(scope.parent, False):
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


def trace_shapes(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Result structure of `fn` with `TensorSpec`s for tensors; variable writes are forgotten.

    Used to infer what a layer returns without running it.
    """
    traced = trace(fn, args, kwargs, isolated=True)
    return traced.rebuild(traced.out_specs)
