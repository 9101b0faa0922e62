"""Users' functions of elements, and their execution on host arrays.

A function is traced once for each signature and runs compiled. A function that cannot be compiled
(it calls Python code, reads files, or returns results of data-dependent sizes) runs eagerly. A
function of numeric tensors of known sizes that writes no variable is also vectorized by `vmap`, and
then runs on many elements at once.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from meshflow.core.autograph.conversion import resolve
from meshflow.core.autograph.status import switched
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.tracing import host_callbacks
from meshflow.core.tracing.trace import Slot, Traced, trace, trace_shapes
from meshflow.core.values import dtypes, nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.random import call_keys, is_stream_state
from meshflow.core.variables.variable import Variable
from meshflow.data import structure
from meshflow.data.execution import affine, chunks
from meshflow.data.execution.cpu_programs import compile_for_cpu, cpu_scope
from meshflow.data.execution.host_plan import Kept, Plan
from meshflow.data.execution.map_errors import is_user_error
from meshflow.data.execution.random_maps import RandomMap, RandomStates, can_be_stacked
from meshflow.data.sparse_leaves import is_sparse
from meshflow.environment.types import PyTree
from meshflow.ops.deferred_host_values import Pending, Recording, is_known
from meshflow.ops.host import on_host

# These sizes replace unknown ones while the spec of the results is inferred. One is small and one
# is large, because a value that is cut to a length keeps this length only if it was longer.
_STAND_INS = (7, 1021)
# `tf.data.experimental.enable_debug_mode` sets this flag.
DEBUG = {"eager": False}


class Unsupported(TypeError):
    """Raised if a function returns a value that cannot be a component of an element."""


class ElementFunction:
    """A user's function of elements.

    Args:
      fn: The function; it receives the components of a tuple as separate arguments.
      spec: Spec of the elements.
      caller: Name of the transformation, for errors.
      unpack: Whether to unpack tuples.

    Attributes:
      reason: Why the function is not vectorized, empty if it is.
      affine_maps: The results of elements of known sizes, if some of them are affine maps.
      rows: The results as affine maps of the rows of a batch of any size, if all of them are such
        maps.
      plan: The execution on the host, if the function processes strings or arrays of unknown sizes.
    """

    def __init__(
        self, fn: Callable[..., Any], spec: PyTree, caller: str, unpack: bool = True
    ) -> None:
        if not callable(fn):
            raise InvalidValueError(f"{caller}: the function must be a callable, got {fn!r}.")
        self._python, self._fn = fn, resolve(fn)
        self._spec, self._what = spec, caller
        self._unpack = unpack and type(spec) is tuple
        self._check_arguments(len(spec) if self._unpack else 1)
        self._eager = False
        self._traced: dict[Any, tuple[Traced, Any]] = {}
        self._vectorized: Any = None
        # These numbers of elements have compiled programs.
        self._sizes: set[int] = set()
        self._random_map: RandomMap | None = None
        self.affine_maps: affine.AffineMaps | None = None
        self.rows: affine.AffineMaps | None = None
        self.plan: Plan | None = None
        self.reason = ""
        # This is the first successful trace of the function.
        self._first: Traced | None = None
        self._output_spec: Any = None
        self._infer()
        if context.trace is not None:
            self._check_captures()

    def _check_captures(self) -> None:
        """Raise a ValueNeededError if the function uses tensors of the function that is being traced.

        A pipeline runs on the host, outside of the traced program, so it cannot read values of the
        program. The error makes the traced function run op by op.
        """
        if self._eager and self.plan is None:
            try:
                captured: list[Any] = nest.flatten(
                    dict(inspect.getclosurevars(self._python).nonlocals)
                )
            except (TypeError, ValueError):
                captured = []
        else:
            first_trace = self.plan.traced if self.plan is not None else self._first
            captured = [] if first_trace is None else list(first_trace.captures)
        for value in captured:
            if isinstance(value, Tensor):
                value._concrete(f"an outer value in the function of Dataset.{self._what}()")

    def _check_arguments(self, count: int) -> None:
        """Check that the function can be called with so many arguments."""
        try:
            signature = inspect.signature(self._python)
        except (TypeError, ValueError):
            return
        try:
            signature.bind(*[None] * count)
        except TypeError as error:
            raise TypeError(
                f"{self._what}: the function is called with {count} argument(s), the parts of elements of "
                f"{self._spec}, but takes {signature}: {error}."
            ) from None

    def _call(self, element: PyTree, fn: Callable[..., Any] | None = None) -> PyTree:
        """Call a Python function on an element, and convert its results to tensors."""
        fn = self._fn if fn is None else fn
        result = fn(*element) if self._unpack else fn(element)
        if isinstance(result, list):
            # A list contains the results of one op, such as `numpy_function`, so it is treated as a
            # tuple.
            result = tuple(result)
        return structure.normalize(result, self._tensor)

    def _tensor(self, value: Any) -> Any:
        """Convert a leaf of a result to a tensor, or to a `HostResult` if it is deferred."""
        if isinstance(value, structure.ElementSource):
            return value
        if isinstance(value, Pending):
            return Kept(value)
        if is_sparse(value):
            if context.trace is None:
                return value
            raise TypeError("A traced function cannot return sparse tensors.")
        try:
            return convert_to_tensor(value)
        except (TypeError, ValueError) as error:
            # A symbolic value becomes a tensor when the function runs eagerly, so this is no final
            # error.
            symbolic = type(value).__module__.startswith("meshflow.")
            raise (TypeError if symbolic else Unsupported)(
                f"Unsupported return value from function passed to Dataset.{self._what}(): {value!r}. {error}"
            ) from error

    def _infer(self) -> None:
        """Choose how to execute the function, and infer the spec of its results."""
        leaves = nest.flatten(self._spec)
        if DEBUG["eager"]:
            self._run_eagerly("tf.data is in debug mode")
        elif not all(isinstance(s, TensorSpec) and s.shape.rank is not None for s in leaves):
            self._run_eagerly("its elements are sparse or have no known rank")
        elif any(s.dtype is dtypes.string for s in leaves):
            self._run_eagerly(
                self.plan.words if self._find_plan() else "its elements hold strings"  # type: ignore[union-attr]
            )
        elif structure.static(self._spec):
            traced = self._trace(self._spec)
            if traced is None:
                return
            self._output_spec = structure.spec_of_results(traced.rebuild(traced.out_specs))
            if traced.iterator_captures or traced.infeeds:
                self._run_eagerly("it takes elements of an iterator")
            elif not all(isinstance(leaf, Slot) for leaf in nest.flatten(traced.structure)):
                self.reason = "it returns constants that are not numbers"
            elif traced.writes and not can_be_stacked(traced):
                self.reason = f"it changes variable {traced.writes[0].name}"
            elif traced.closed.effects:
                self.reason = "it calls Python"
            elif traced.writes:
                self._random_map, self.reason = (
                    RandomMap(traced),
                    "it draws random numbers in order",
                )
            else:
                self._vectorized = traced
                affine_maps = affine.find(traced)
                if any(affine_maps):
                    self.affine_maps = affine.AffineMaps(traced, affine_maps)
                self._find_rows(traced)
        else:
            self.reason = "its elements have unknown sizes"
            first, second = (self._trace_stand_in(size) for size in _STAND_INS)
            if first is not None and second is not None:
                specs = [t.rebuild(t.out_specs) for t in (first, second)]
                self._output_spec = structure.map_specs(_without_zeros, structure.merged(*specs))
                self._find_rows(first, second)
            if self.rows is None and self._find_plan(on_host=True):
                self._run_eagerly(self.plan.words)  # type: ignore[union-attr]

    def _find_rows(self, *traced: Traced) -> None:
        """Check whether all results are affine maps of the rows of the arguments, for all sizes."""
        first_trace = traced[0]
        if first_trace.writes or first_trace.closed.effects or not _only_tensors(first_trace):
            return
        if not all(spec.shape.rank for spec in nest.flatten(self._spec)):
            return
        maps_by_trace = [affine.find(t, batched=True) for t in traced]
        if all(
            m is not None and m.is_like(maps_by_trace[-1][i])
            for i, m in enumerate(maps_by_trace[0])
        ):
            self.rows = affine.AffineMaps(first_trace, maps_by_trace[0])

    def _find_plan(self, on_host: bool = False) -> bool:
        """Record the operations on strings and arrays of unknown sizes, and create a host plan.

        Args:
          on_host: Whether a plan is only useful if the function contains ops that should run on the
            host.

        Returns:
          Whether all these operations could be recorded.
        """
        leaves = nest.flatten(self._spec)
        numeric_leaves = [i for i, leaf in enumerate(leaves) if is_known(leaf)]
        recording = Recording()

        def call(known: list[Tensor]) -> PyTree:
            tensors = dict(zip(numeric_leaves, known, strict=True))
            values = [
                tensors[i] if i in tensors else recording.argument(leaf, i)
                for i, leaf in enumerate(leaves)
            ]
            return self._call(nest.pack_sequence_as(self._spec, values))

        state_before = randomness()
        context.recording = recording
        try:
            with _tracing():
                specs = [leaves[i] for i in numeric_leaves]
                traced = trace(call, (specs,), name=self._what, isolated=True)
        except Exception as error:
            if is_user_error(error, sizes_known=False):
                raise
            return False
        finally:
            context.recording = None
        results = nest.flatten(traced.structure)
        if not recording.calls or (on_host and not recording.on_host):
            return False
        if not all(isinstance(result, (Slot, Kept)) for result in results):
            return False
        has_side_effects = (
            traced.writes or traced.closed.effects or traced.iterator_captures or traced.infeeds
        )
        if has_side_effects or not same_randomness(state_before, randomness()):
            return False
        specs = [
            r.pending.spec if isinstance(r, Kept) else traced.out_specs[r.index] for r in results
        ]
        self._output_spec = nest.pack_sequence_as(traced.structure, specs)
        self.plan = Plan(traced, recording, numeric_leaves, self._output_spec)
        return True

    def _trace_stand_in(self, size: int) -> Traced | None:
        """Trace the function with a size in place of each unknown one.

        Returns:
          None if the function has to run eagerly.
        """
        spec = structure.map_specs(
            lambda s: TensorSpec([size if n is None else n for n in s.shape.as_list()], s.dtype),
            self._spec,
        )
        try:
            with _tracing():
                traced = trace(self._call, (spec,), {}, isolated=True)
        except Exception as error:
            if is_user_error(error, sizes_known=False):
                raise
            self._run_eagerly(f"it cannot be traced ({type(error).__name__})")
            return None
        self._first = self._first or traced
        return traced

    def _trace(self, spec: PyTree) -> Traced | None:
        """Trace the function; return None if it has to run eagerly."""
        try:
            with _tracing():
                traced = trace(self._call, (spec,), name=self._what, isolated=True)
        except Unsupported:
            raise
        except Exception as error:
            if is_user_error(error, sizes_known=True):
                raise
            # Other errors of the function are raised when it runs on real elements.
            self._run_eagerly(f"it cannot be traced ({type(error).__name__})")
            return None
        if all(leaf is None for leaf in nest.flatten(traced.structure)):
            raise InvalidValueError(
                f"{self._what}: the function returns None, an element without components. Is a `return` missing?"
            )
        if not _only_tensors(traced):
            self._run_eagerly("it returns something other than tensors")
            return None
        self._first = self._first or traced
        return traced

    def _run_eagerly(self, reason: str) -> None:
        self._eager, self.reason = True, reason

    @property
    def output_spec(self) -> PyTree:
        """Return the spec of the results, None if only running the function determines it."""
        return self._output_spec

    def check_condition(self) -> None:
        """Check that the function returns a bool scalar, as far as its spec is known.

        Raises:
          ValueError: If it is known to return something else.
        """
        spec = self._output_spec
        if spec is None or self._fits(spec, TensorSpec([], dtypes.bool_)):
            return
        raise ValueError(
            f"Invalid `predicate`. `predicate` must return a `tf.bool` scalar tensor, but the function that was passed "
            f"to {self._what} returns {spec}."
        )

    @staticmethod
    def _fits(spec: PyTree, expected: TensorSpec) -> bool:
        return isinstance(spec, TensorSpec) and spec.is_compatible_with(expected)

    @property
    def runs_eagerly(self) -> bool:
        """Return whether the function runs as Python code and is not compiled."""
        return self._eager

    @property
    def holds_variables(self) -> bool:
        """Return whether the function refers to variables, layers or generators.

        These are not safe to use in several threads.
        """
        try:
            closure = inspect.getclosurevars(self._python)
        except TypeError:
            return False
        values = (*closure.nonlocals.values(), *closure.globals.values())
        attributes = ("assign_add", "trainable_weights", "uniform_full_int")
        return any(hasattr(value, name) for value in values for name in attributes)

    @property
    def takes_chunks(self) -> bool:
        """Return whether the function can run on many consecutive elements at once."""
        return self.vectorizes or self._random_map is not None

    @property
    def reads_variables(self) -> bool:
        """Return whether the results depend on variables, which may change during a pass."""
        program = self._random_map.traced if self._random_map is not None else self._vectorized
        traced = program[0] if isinstance(program, tuple) else program
        if self.plan is not None:
            traced = self.plan.traced
        return traced is not None and any(
            isinstance(c, Variable) and not is_stream_state(c) for c in traced.captures
        )

    @property
    def vectorizes(self) -> bool:
        """Return whether the function can run on many elements at once, in any order."""
        return self._vectorized is not None or (self.plan is not None and self.plan.vectorizes)

    def results_of(self, spec: PyTree) -> PyTree:
        """Return the spec of the results for elements of known sizes.

        Args:
          spec: Spec of the elements.

        Returns:
          None if only running the function determines the spec.
        """
        if self._eager or not structure.static(spec):
            return None
        try:
            with _tracing():
                return trace_shapes(self._call, (spec,), {})
        except Exception:
            return None

    def with_states(self, random_states: RandomStates) -> Callable[[Any], Any]:
        """Return the function with the random states of a pass."""
        return functools.partial(self, random_states=random_states)

    def __call__(self, element: PyTree, random_states: RandomStates | None = None) -> PyTree:
        """Compute the result for one element, a structure of host arrays (and datasets).

        Args:
          element: Host arrays.
          random_states: Random states of a pass, by default those of the program.
        """
        if not self._eager:
            leaves = nest.flatten(element)
            if self.affine_maps is not None:
                results = self.affine_maps.of([leaf[None] for leaf in leaves])
                return self.affine_maps.rebuilt([structure.scalar(a[0]) for a in results])
            if self.rows is not None:
                return self.rows.rebuilt(self.rows.of(leaves))
            key = tuple((a.shape, a.dtype.str) for a in leaves)
            if key not in self._traced:
                traced = self._trace(structure.spec_of(element))
                if traced is not None:
                    self._traced[key] = traced, compile_for_cpu(traced.arrays)
            if key in self._traced:
                traced, run = self._traced[key]
                if random_states is None:
                    captures = [c._value for c in traced.captures]
                else:
                    captures = random_states.captures(self, traced)
                if traced.closed.effects:
                    results = host_callbacks.finish(run, leaves, captures)
                else:
                    results = run(leaves, captures)
                new = results[traced.count :]
                if random_states is not None:
                    random_states.assign(self, traced, new)
                else:
                    for variable, value in zip(traced.writes, new, strict=True):
                        variable._value = value
                arrays = [Tensor(np.asarray(r)) for r in results[: traced.count]]
                return structure.to_arrays(traced.rebuild(arrays))
        with on_host(), cpu_scope():
            if random_states is None:
                return structure.to_arrays(self._call(structure.to_tensors(element), self._python))
            with call_keys(next(random_states.numbers(self))):
                return structure.to_arrays(self._call(structure.to_tensors(element), self._python))

    def many(self, leaves: list[Any]) -> list[Any]:
        """Compute the stacked results for stacked elements.

        Args:
          leaves: The leaves of the elements.
        """
        if self.plan is not None:
            return self.plan.many(leaves)
        if self.affine_maps is not None:
            return self.affine_maps.of(leaves)
        traced = self._vectorized
        if not isinstance(self._vectorized, tuple):
            vectorized = compile_for_cpu(jax.vmap(traced.arrays, in_axes=(0, None)))
            self._vectorized = traced, vectorized
        traced, vectorized = self._vectorized
        count = len(leaves[0])
        size = self._size_to_run(count)
        results = vectorized(chunks.filled_up(leaves, size), [c._value for c in traced.captures])
        return [np.asarray(r)[:count] for r in results]

    def _size_to_run(self, count: int) -> int:
        """Choose the number of elements to compile the program for, and remember it."""
        size = chunks.size_to_run(count, self._sizes)
        self._sizes.add(size)
        return size

    def chunk(self, leaves: list[Any], random_states: RandomStates) -> list[Any]:
        """Compute the stacked results for consecutive elements.

        Args:
          leaves: Stacked leaves of the elements.
          random_states: Random states of a pass.
        """
        if self.plan is None and not chunks.fits(leaves, self._spec):
            pack = structure.packer(self._spec)
            results = [
                nest.flatten(self(structure.to_arrays(pack(list(row))), random_states))
                for row in zip(*leaves, strict=True)
            ]
            return nest.flatten(structure.stack([tuple(r) for r in results]))
        if self._random_map is None:
            return self.many(leaves)
        size = self._size_to_run(len(leaves[0]))
        return self._random_map(leaves, size, self, random_states)


@contextlib.contextmanager
def _tracing() -> Iterator[None]:
    """Make errors catchable while a function is traced that can also run eagerly."""
    saved, context.falls_back = context.falls_back, True
    try:
        with switched(True):
            yield
    finally:
        context.falls_back = saved


def _without_zeros(spec: PyTree) -> PyTree:
    """Replace sizes of 0 by None in a spec that was inferred with assumed sizes.

    The actual sizes may be larger.
    """
    if not isinstance(spec, TensorSpec) or spec.shape.rank is None:
        return spec
    return TensorSpec([n or None for n in spec.shape.as_list()], spec.dtype)


def _only_tensors(traced: Traced) -> bool:
    """Check whether all results of a traced function are tensors."""
    results = traced.rebuild([Tensor(np.zeros(())) for _ in traced.out_specs])
    return all(isinstance(leaf, Tensor) for leaf in nest.flatten(results))


def randomness() -> tuple[Any, ...]:
    """Return the states of the global random number generators of Python and NumPy."""
    return random.getstate(), np.random.get_state()


def same_randomness(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    """Check whether no random number was drawn between two states."""
    _, first, position, *_ = before[1]
    _, second, position_after, *_ = after[1]
    has_drawn = position != position_after or not np.array_equal(first, second)
    return not has_drawn and before[0] == after[0]
