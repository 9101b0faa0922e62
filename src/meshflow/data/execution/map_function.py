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
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from meshflow.core.autograph.conversion import convert_callable
from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.dispatch.shape_probing import SizeProbe, probe_sizes
from meshflow.core.dispatch.tiers import is_interpreter_enabled
from meshflow.core.functions.function import Function
from meshflow.core.functions.size_variants import allow_unknown_sizes
from meshflow.core.iterators.callback_infeed import EndOfElements
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import (
    InvalidArgumentError,
    InvalidValueError,
    OutOfRangeError,
    ValueNeededError,
)
from meshflow.core.tracing import host_callbacks
from meshflow.core.tracing.trace import (
    TensorSlot,
    TracedFunction,
    trace,
    trace_shapes,
)
from meshflow.core.values import dtypes, nest
from meshflow.core.values.composite import is_composite_spec
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.random_streams import call_key_scope, is_stream_state
from meshflow.core.variables.variable import Variable
from meshflow.data import structure
from meshflow.data.execution import affine, chunks
from meshflow.data.execution.checked_maps import CheckedMap, separate_checks
from meshflow.data.execution.cpu_programs import cpu_scope
from meshflow.data.execution.element_programs import (
    ElementProgram,
    SizedPrograms,
    trace_with_fallback,
)
from meshflow.data.execution.function_effects import (
    are_states_equal,
    get_random_states,
    holds_variables,
)
from meshflow.data.execution.host_plan import HostPlan, PendingHostResult
from meshflow.data.execution.map_errors import is_user_error
from meshflow.data.execution.random_maps import RandomMap, RandomStates, is_stackable
from meshflow.data.execution.result_specs import (
    SMALLEST_SIZE,
    STAND_IN_SIZES,
    ObservedElement,
    infer_traced_spec,
    relax_zero_sizes,
    replace_sizes,
    returns_composites,
    returns_only_tensors,
)
from meshflow.data.execution.segments import SegmentedMap, divide_program
from meshflow.data.execution.stacked_programs import StackedPrograms
from meshflow.data.execution.vectorized_map import VectorizedMap
from meshflow.data.sparse_leaves import is_sparse
from meshflow.environment.types import PyTree
from meshflow.ops.deferred_host_values import (
    DeferredValue,
    FullSparseVector,
    HostCallRecording,
    UnrecordableError,
    is_valid_input,
)
from meshflow.ops.host import host_scope

# So many elements of equal sizes are computed together, with one program.
_NUM_STACKED = 16

# `tf.data.experimental.enable_debug_mode` sets this flag.
DEBUG = {"eager": False}


class UnsupportedResultError(TypeError):
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
      segments: The execution of a function with results of unknown sizes, for many elements.
      checked: The execution of a function with checks of values, for many elements.
      plan: The execution on the host, if the function processes strings or arrays of unknown sizes.
    """

    def __init__(
        self, fn: Callable[..., Any], spec: PyTree, caller: str, unpack: bool = True
    ) -> None:
        if not callable(fn):
            raise InvalidValueError(f"{caller}: the function must be a callable, got {fn!r}.")
        self.python_function, self._fn = fn, convert_callable(fn)
        self._spec, self._caller = spec, caller
        self._unpack = unpack and type(spec) is tuple
        self._check_arguments(len(spec) if self._unpack else 1)
        self._eager = False
        # Whether to try a trace for the sizes that the first elements suggest, such as two for a seed.
        self._can_assume_sizes = False
        self._programs = SizedPrograms(spec, self._trace, self._trace_for_any_size)
        self._stacked = StackedPrograms(
            lambda specs: self._trace_for_any_size(nest.pack_sequence_as(spec, specs))
        )
        self._results_of_shapes: dict[Any, PyTree] = {}
        self._vectorized: VectorizedMap | None = None
        self.random_map: RandomMap | None = None
        self.affine_maps: affine.AffineMaps | None = None
        self.rows: affine.AffineMaps | None = None
        self.plan: HostPlan | None = None
        self.segments: SegmentedMap | None = None
        self.checked: CheckedMap | None = None
        self.reason = ""
        # This is the first successful trace of the function.
        self._first_trace: TracedFunction | None = None
        self._output_spec: Any = None
        # The first element that ran eagerly.
        self._observed: ObservedElement | None = None
        self._choose_execution()
        if context.trace is not None:
            self._check_captured_tensors()

    def _check_captured_tensors(self) -> None:
        """Raise a ValueNeededError if the function uses tensors of the function that is being traced.

        A pipeline runs on the host, outside of the traced program, so it cannot read values of the
        program. The error makes the traced function run op by op.
        """
        if self._eager and self.plan is None:
            try:
                captured: list[Any] = nest.flatten(
                    dict(inspect.getclosurevars(self.python_function).nonlocals)
                )
            except (TypeError, ValueError):
                captured = []
        else:
            first_trace = self.plan.traced if self.plan is not None else self._first_trace
            captured = [] if first_trace is None else list(first_trace.captures)
        for value in captured:
            if isinstance(value, Tensor):
                value.require_value(f"an outer value in the function of Dataset.{self._caller}()")

    def _check_arguments(self, count: int) -> None:
        """Check that the function can be called with so many arguments."""
        try:
            signature = inspect.signature(self.python_function)
        except (TypeError, ValueError):
            return
        try:
            signature.bind(*[None] * count)
        except TypeError as error:
            raise TypeError(
                f"{self._caller}: the function is called with {count} argument(s), the parts of elements of "
                f"{self._spec}, but takes {signature}: {error}."
            ) from None

    def _call_function(self, element: PyTree, fn: Callable[..., Any] | None = None) -> PyTree:
        """Call a Python function on an element, and convert its results to tensors."""
        fn = self._fn if fn is None else fn
        outer, context.in_element_function = context.in_element_function, True
        try:
            result = fn(*element) if self._unpack else fn(element)
        finally:
            context.in_element_function = outer
        if isinstance(result, list):
            # A list contains the results of one op, such as `numpy_function`, so it is treated as a
            # tuple.
            result = tuple(result)
        return structure.map_leaves(result, self._convert_result)

    def _convert_result(self, value: Any) -> Any:
        """Convert a leaf of a result to a tensor, or to a `PendingHostResult` if it is deferred."""
        if isinstance(value, structure.ElementLeaf):
            return value
        if isinstance(value, DeferredValue):
            return PendingHostResult(value)
        if is_sparse(value):
            if isinstance(value, FullSparseVector):
                raise UnrecordableError("a sparse result")
            if context.trace is None or isinstance(value, SparseTensor):
                return value
            raise TypeError("A traced function cannot return ragged tensors.")
        try:
            return convert_to_tensor(value)
        except (TypeError, ValueError) as error:
            # A symbolic value becomes a tensor when the function runs eagerly, so this is no final
            # error.
            symbolic = type(value).__module__.startswith("meshflow.")
            raise (TypeError if symbolic else UnsupportedResultError)(
                f"Unsupported return value from function passed to Dataset.{self._caller}(): {value!r}. {error}"
            ) from error

    def _choose_execution(self) -> None:
        """Choose how to execute the function, and infer the spec of its results."""
        leaves = nest.flatten(self._spec)
        if DEBUG["eager"]:
            self._run_eagerly("tf.data is in debug mode")
        elif not all(isinstance(s, TensorSpec) and s.shape.rank is not None for s in leaves):
            self._run_eagerly("its elements are sparse or have no known rank")
        elif any(s.dtype is dtypes.string for s in leaves):
            self._run_eagerly(
                self.plan.description if self._find_plan() else "its elements hold strings"  # type: ignore[union-attr]
            )
        elif structure.is_static(self._spec):
            traced = self._trace(self._spec)
            if traced is None:
                return
            self._output_spec = infer_traced_spec(traced)
            if traced.iterator_captures or traced.infeeds:
                self._run_eagerly("it takes elements of an iterator")
            elif traced.has_unknown_sizes or returns_composites(traced):
                unknown = traced.has_unknown_sizes
                self.reason = (
                    "its results have unknown sizes" if unknown else "it returns sparse tensors"
                )
                self._divide(traced)
            elif not all(isinstance(leaf, TensorSlot) for leaf in nest.flatten(traced.structure)):
                self.reason = "it returns constants that are not numbers"
            elif traced.writes and not is_stackable(traced):
                self.reason = f"it changes variable {traced.writes[0].name}"
            elif traced.closed_jaxpr.effects:
                self.checked = separate_checks(traced)
                self.reason = "it calls Python" if self.checked is None else "it checks values"
                if self.checked is not None:
                    self._vectorized = VectorizedMap(self.checked.program)
            elif traced.writes:
                self.random_map, self.reason = (
                    RandomMap(traced),
                    "it draws random numbers in order",
                )
            else:
                self._vectorized = VectorizedMap(traced)
                affine_maps = affine.find_affine_maps(traced)
                if any(affine_maps):
                    self.affine_maps = affine.AffineMaps(traced, affine_maps)
                self._find_batch_maps(traced)
        else:
            self.reason = "its elements have unknown sizes"
            first, second = (self._trace_for_size(size) for size in STAND_IN_SIZES)
            if first is not None and second is not None:
                merged = structure.merge_specs(*map(infer_traced_spec, (first, second)))
                with contextlib.suppress(Exception):
                    smallest = self._trace_isolated(self._fill_sizes(SMALLEST_SIZE))
                    merged = structure.merge_specs(merged, infer_traced_spec(smallest))
                self._output_spec = structure.map_specs(relax_zero_sizes, merged)
                self._find_batch_maps(first, second)
            if self.rows is None and self._find_plan(on_host=True):
                self._run_eagerly(self.plan.description)  # type: ignore[union-attr]
            self._can_assume_sizes = self._eager and self.plan is None

    def _divide(self, traced: TracedFunction) -> None:
        """Let the part of a function with static sizes run on many elements at once, if possible."""
        segments = divide_program(traced) if is_interpreter_enabled() else None
        first = None if segments is None else segments.vectorized
        if first is not None and first.writes and not is_stackable(first):
            return
        self.segments = segments
        if first is not None and first.writes:
            self.random_map = RandomMap(first)
        elif first is not None:
            self._vectorized = VectorizedMap(first)

    def _find_batch_maps(self, *traced: TracedFunction) -> None:
        """Check whether all results are affine maps of the rows of the arguments, for all sizes."""
        first_trace = traced[0]
        if (
            first_trace.writes
            or first_trace.closed_jaxpr.effects
            or not returns_only_tensors(first_trace)
        ):
            return
        if not all(spec.shape.rank for spec in nest.flatten(self._spec)):
            return
        maps_by_trace = [affine.find_affine_maps(t, batched=True) for t in traced]
        if all(
            m is not None and m.is_equal(maps_by_trace[-1][i])
            for i, m in enumerate(maps_by_trace[0])
        ):
            self.rows = affine.AffineMaps(first_trace, maps_by_trace[0])

    def _find_plan(self, on_host: bool = False, defers_numbers: bool = False) -> bool:
        """Record the operations on strings and arrays of unknown sizes, and create a host plan.

        Args:
          on_host: Whether a plan is only useful if the function contains ops that should run on the
            host.
          defers_numbers: Whether to record all ops, because sizes depend on their results.

        Returns:
          Whether all these operations could be recorded.
        """
        leaves = nest.flatten(self._spec)
        are_inputs = [is_valid_input(leaf) and not defers_numbers for leaf in leaves]
        numeric_leaves = [i for i, is_input in enumerate(are_inputs) if is_input]
        recording = HostCallRecording(defers_numbers)

        def call(known: list[Tensor]) -> PyTree:
            tensors = dict(zip(numeric_leaves, known, strict=True))
            values = [
                tensors[i] if i in tensors else recording.make_argument(leaf, i)
                for i, leaf in enumerate(leaves)
            ]
            return self._call_function(nest.pack_sequence_as(self._spec, values))

        state_before = get_random_states()
        context.host_recorder = recording
        try:
            unknown = allow_unknown_sizes({}) if defers_numbers else contextlib.nullcontext()
            with trace_with_fallback(), unknown:
                specs = [leaves[i] for i in numeric_leaves]
                traced = trace(call, (specs,), name=self._caller, isolated=True)
        except Exception as error:
            if is_user_error(error, sizes_known=False):
                raise
            context.host_recorder = None
            may_defer = isinstance(error, (UnrecordableError, ValueNeededError)) and not on_host
            return may_defer and not defers_numbers and self._find_plan(defers_numbers=True)
        finally:
            context.host_recorder = None
        results = nest.flatten(traced.structure)
        if on_host and not recording.on_host:
            return False
        if not all(isinstance(result, (TensorSlot, PendingHostResult)) for result in results):
            return False
        has_side_effects = (
            traced.writes
            or traced.closed_jaxpr.effects
            or traced.iterator_captures
            or traced.infeeds
        )
        if has_side_effects or not are_states_equal(state_before, get_random_states()):
            return False
        specs = [
            r.pending.spec if isinstance(r, PendingHostResult) else traced.out_specs[r.index]
            for r in results
        ]
        self._output_spec = nest.pack_sequence_as(traced.structure, specs)
        self.plan = HostPlan(traced, recording, numeric_leaves, self._output_spec)
        return True

    def _fill_sizes(self, size: int) -> PyTree:
        """Return the spec of the elements with a size in place of each unknown one."""
        return structure.map_specs(lambda spec: replace_sizes(spec, size, 0), self._spec)

    def _trace_isolated(self, spec: PyTree) -> TracedFunction:
        with trace_with_fallback():
            return trace(self._call_function, (spec,), {}, isolated=True)

    def _trace_for_size(self, size: int) -> TracedFunction | None:
        """Trace the function with a size in place of each unknown one.

        Returns:
          None if the function has to run eagerly.
        """
        try:
            traced = self._trace_isolated(self._fill_sizes(size))
        except Exception as error:
            if is_user_error(error, sizes_known=False):
                raise
            self._run_eagerly(f"it cannot be traced ({type(error).__name__})")
            return None
        self._first_trace = self._first_trace or traced
        return traced

    def _trace(self, spec: PyTree) -> TracedFunction | None:
        """Trace the function; return None if it has to run eagerly."""
        try:
            with trace_with_fallback(), allow_unknown_sizes({}):
                traced = trace(self._call_function, (spec,), name=self._caller, isolated=True)
        except UnsupportedResultError:
            raise
        except Exception as error:
            if is_user_error(error, sizes_known=True):
                raise
            # Other errors of the function are raised when it runs on real elements.
            self._run_eagerly(f"it cannot be traced ({type(error).__name__})")
            return None
        if all(leaf is None for leaf in nest.flatten(traced.structure)):
            raise InvalidValueError(
                f"{self._caller}: the function returns None, an element without components. Is a `return` missing?"
            )
        if not returns_only_tensors(traced) and not returns_composites(traced):
            self._run_eagerly("it returns something other than tensors")
            return None
        self._first_trace = self._first_trace or traced
        return traced

    def _trace_for_any_size(self, spec: PyTree) -> TracedFunction:
        """Trace the function for a spec with symbolic sizes.

        Raises:
          TypeError: If the results are not tensors; code that needs a size raises any other error.
        """
        with trace_with_fallback():
            traced = trace(self._call_function, (spec,), name=self._caller, isolated=True)
        if not returns_only_tensors(traced):
            raise TypeError("The function returns something other than tensors.")
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
        spec, expected = self._output_spec, TensorSpec([], dtypes.bool_)
        if spec is None or (isinstance(spec, TensorSpec) and spec.is_compatible_with(expected)):
            return
        raise ValueError(
            f"Invalid `predicate`. `predicate` must return a `tf.bool` scalar tensor, but the function that was passed "
            f"to {self._caller} returns {spec}."
        )

    @property
    def runs_eagerly(self) -> bool:
        """Return whether the function runs as Python code and is not compiled."""
        return self._eager

    @property
    def is_pure(self) -> bool:
        """Return whether the function has no effects but its results, and draws no random numbers in order."""
        if self.plan is not None:
            return not self.plan.draws
        traced = self._first_trace
        if self._eager or traced is None or traced.writes or traced.iterator_captures:
            return False
        return self.checked is not None or not (traced.infeeds or traced.closed_jaxpr.effects)

    @property
    def writes_variables(self) -> bool:
        """Whether the function is known to assign values to variables other than states of random streams."""
        trace = self._first_trace
        return trace is not None and not all(map(is_stream_state, trace.writes))

    @property
    def holds_variables(self) -> bool:
        """Return whether the function refers to variables, layers or generators.

        These are not safe to use in several threads.
        """
        return holds_variables(self.python_function)

    @property
    def takes_chunks(self) -> bool:
        """Return whether the function can run on many consecutive elements at once."""
        return self.segments is None and (self.vectorizes or self.random_map is not None)

    @property
    def reads_variables(self) -> bool:
        """Return whether the results depend on variables, which may change during a pass."""
        program = self.plan or self.random_map or self._vectorized
        return program is not None and any(
            isinstance(c, Variable) and not is_stream_state(c) for c in program.traced.captures
        )

    @property
    def vectorizes(self) -> bool:
        """Return whether the function can run on many elements at once, in any order."""
        if self.segments is not None or self.checked is not None:
            return False
        return self._vectorized is not None or (self.plan is not None and self.plan.vectorizes)

    def infer_result_spec(self, spec: PyTree) -> PyTree:
        """Return the spec of the results for elements of known sizes.

        Args:
          spec: Spec of the elements.

        Returns:
          None if only running the function determines the spec.
        """
        if self._eager or not structure.is_static(spec):
            return None
        try:
            with trace_with_fallback():
                return trace_shapes(self._call_function, (spec,), {})
        except Exception:
            return None

    def bind_random_states(self, random_states: RandomStates) -> Callable[[Any], Any]:
        """Return the function with the random states of a pass."""
        return functools.partial(self, random_states=random_states)

    def bind_condition(self, random_states: RandomStates) -> Callable[[Any], Any]:
        """Return `compute_scalar` with the random states of a pass."""
        return functools.partial(self.compute_scalar, random_states=random_states)

    def __call__(self, element: PyTree, random_states: RandomStates | None = None) -> PyTree:
        """Compute the result for one element, a structure of host arrays (and datasets).

        Args:
          element: Host arrays.
          random_states: Random states of a pass, by default those of the program.
        """
        found = None
        if not self._eager:
            leaves = nest.flatten(element)
            if self.affine_maps is not None:
                results = self.affine_maps.compute([leaf[None] for leaf in leaves])
                return self.affine_maps.rebuild_element(
                    [structure.item_to_array(a[0]) for a in results]
                )
            if self.rows is not None:
                return self.rows.rebuild_element(self.rows.compute(leaves))
            if self.checked is not None and chunks.matches_spec(
                [a[None] for a in leaves], self._spec
            ):
                result = self.checked.compute_element(leaves)
                if result is not None:
                    return result
            found = self._programs.find(element, leaves)
        elif self._can_assume_sizes:
            leaves = nest.flatten(element)
            program = self._programs.find_symbolic(leaves)
            self._can_assume_sizes = program is not None
            if program is not None:
                self._first_trace = self._first_trace or program.traced
                found = program, program.interpret
        if found is not None:
            try:
                return self._run_program(*found, leaves, random_states)
            except Exception:
                if not found[0].traced.has_unknown_sizes:
                    raise
                # A guard of a size failed, or the function raises this error when it runs eagerly, too:
                # the program had no effects.
        with host_scope(), cpu_scope(), contextlib.ExitStack() as scopes:
            if random_states is not None:
                scopes.enter_context(call_key_scope(next(random_states.count_calls(self))))
            if self._observed is None:
                probe = scopes.enter_context(probe_sizes(SizeProbe()))
                self._observed = ObservedElement(element, self._spec, probe)
            try:
                results = self._call_function(structure.to_tensors(element), self.python_function)
            except EndOfElements:
                raise
            except (OutOfRangeError, StopIteration) as error:
                # A loop that catches the error would take it for the end of the dataset.
                raise InvalidArgumentError(
                    f"Function invocation produced OutOfRangeError: {error!r}"
                ) from error
            return structure.to_arrays(results)

    @property
    def may_stack(self) -> bool:
        """Return whether `compute_equal` may compute results, after the function ran for an element."""
        traced, runs = self._first_trace, self.is_pure or self._can_assume_sizes
        # Variables may change between two elements.
        return (
            traced is not None
            and runs
            and not any(isinstance(c, Variable) for c in traced.captures)
        )

    def compute_equal(self, elements: list[PyTree]) -> list[PyTree]:
        """Compute the results for elements of which several have equal shapes, None for the others.

        Args:
          elements: Structures of host arrays.
        """
        leaves: list[list[Any]] = list(map(nest.flatten, elements))
        results: list[PyTree] = [None] * len(elements)
        indices: dict[Any, list[int]] = {}
        for index, row in enumerate(leaves):
            indices.setdefault(_get_shapes(row), []).append(index)
        for equal in indices.values():
            # One number of elements needs one program.
            for start in range(0, len(equal) - _NUM_STACKED + 1, _NUM_STACKED):
                part = equal[start : start + _NUM_STACKED]
                columns = map(list, zip(*[leaves[i] for i in part], strict=True))
                found = self._stacked.run(list(columns))
                if found is not None:
                    traced, stacked = found
                    rows = zip(*map(chunks.iter_leaf, stacked), strict=True)
                    for index, result in zip(part, rows, strict=True):
                        results[index] = traced.rebuild_result(list(result))
        return results

    def _run_program(
        self,
        program: ElementProgram,
        run: Callable[..., list[Any]],
        leaves: list[Any],
        random_states: RandomStates | None,
    ) -> PyTree:
        """Run a traced function for one element, and assign the variables that it writes."""
        traced = program.traced
        if random_states is None:
            captures = traced.get_captured_arrays()
        else:
            captures = random_states.get_captures(self, traced)
        if traced.closed_jaxpr.effects:
            results = host_callbacks.run_to_completion(run, leaves, captures)
        else:
            results = run(leaves, captures)
        new = results[traced.num_results :]
        if random_states is not None:
            random_states.assign(self, traced, new)
        else:
            for variable, value in zip(traced.writes, new, strict=True):
                variable._value = value
        arrays = [Tensor(np.asarray(r)) for r in results[: traced.num_results]]
        result = structure.to_arrays(traced.rebuild_result(arrays))
        if program.is_scalar_of_shapes:
            self._results_of_shapes[_get_shapes(leaves)] = result
        return result

    def compute_scalar(self, element: PyTree, random_states: RandomStates | None = None) -> Any:
        """Compute a scalar result, such as a key or a condition, which the caller must not change.

        Functions of the shapes of an element, such as its length, run once for each shape.

        Args:
          element: Host arrays.
          random_states: As for a call.
        """
        if self._results_of_shapes:
            result = self._results_of_shapes.get(_get_shapes(nest.flatten(element)))
            if result is not None:
                return result
        return self(element, random_states)

    def refine_spec(self, observed_spec: PyTree) -> PyTree:
        """Return the spec of the results of a function that runs eagerly.

        The function is traced twice with different sizes in place of unknown ones. The sizes that
        are equal, for example after `ensure_shape`, are known.

        Args:
          observed_spec: Spec of the first result. It determines the ranks.
        """
        relaxed_spec = structure.relax_spec(observed_spec)
        if self._can_assume_sizes and self._first_trace is not None:
            spec = infer_traced_spec(self._first_trace)
            return spec if structure.are_compatible(spec, observed_spec) else relaxed_spec
        if relaxed_spec == observed_spec:
            return relaxed_spec
        leaves = [*nest.flatten(self._spec), *nest.flatten(observed_spec)]
        is_composite = any(is_composite_spec(leaf) for leaf in leaves)
        if self._observed is None and not is_composite:
            return relaxed_spec
        states = get_random_states()
        try:
            if is_composite:
                specs = [self._infer_composite_spec()]
            else:
                assert self._observed is not None
                specs = self._observed.infer_specs(self._call_function)
            merged = functools.reduce(structure.merge_specs, specs)
            spec = structure.map_specs(relax_zero_sizes, merged)
        except Exception:
            return relaxed_spec
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
        return spec if structure.are_compatible(spec, observed_spec) else relaxed_spec

    def _infer_composite_spec(self) -> PyTree:
        """Infer the spec of results of composite elements from a trace.

        Raises:
          Exception: If the trace needs values of the elements.
        """

        def call(element: PyTree) -> PyTree:
            result = self._fn(*element) if self._unpack else self._fn(element)
            return tuple(result) if isinstance(result, list) else result

        outputs = Function(call).get_concrete_function(self._spec).structured_outputs
        return structure.infer_result_spec(outputs)

    def compute_many(self, leaves: list[Any]) -> list[Any]:
        """Compute the stacked results for stacked elements.

        Args:
          leaves: The leaves of the elements.
        """
        if self.plan is not None:
            return self.plan.compute_stacked(leaves)
        if self.affine_maps is not None:
            return self.affine_maps.compute(leaves)
        assert self._vectorized is not None
        return self._vectorized.compute(leaves)

    def compute_rows(self, leaves: list[Any], random_states: RandomStates) -> Iterator[PyTree]:
        """Compute the results for consecutive elements, by `segments`.

        Args:
          leaves: Stacked leaves of the elements.
          random_states: Random states of a pass.
        """
        assert self.segments is not None
        compute = lambda chunk: self.compute_chunk(chunk, random_states)
        return self.segments.compute_rows(leaves, compute, self._make_row_function(random_states))

    def compute_items(self, leaves: list[Any], random_states: RandomStates) -> Iterable[Any]:
        """Compute the results for consecutive elements, by `checked`, as chunks and failures.

        Args:
          leaves: Stacked leaves of the elements.
          random_states: Random states of a pass.
        """
        assert self.checked is not None
        compute_row = self._make_row_function(random_states)
        return self.checked.compute_items(leaves, self.compute_many, compute_row)

    def _make_row_function(self, random_states: RandomStates) -> Callable[[list[Any]], PyTree]:
        """Return the function of the leaves of one element."""
        pack = structure.make_packer(self._spec)
        return lambda row: self(pack(row), random_states)

    def can_scan(self, state: PyTree) -> bool:
        """Check whether `scan_chunk` supports the function, which takes a state and an element.

        Args:
          state: The first state.
        """
        if not self.vectorizes or self.plan is not None or self.reads_variables:
            return False
        specs = list(map(structure.infer_spec, nest.flatten(state)))
        return specs == nest.flatten(self._output_spec)[: len(specs)]

    def scan_chunk(self, state: list[Any], leaves: list[Any]) -> tuple[list[Any], list[Any]]:
        """Compute the stacked results of a function of a state and an element, for consecutive elements.

        Args:
          state: Leaves of the state before the first element.
          leaves: Stacked leaves of the elements.

        Returns:
          The leaves of the state after the last element, and the stacked results.
        """
        assert self._vectorized is not None
        return self._vectorized.scan(state, leaves)

    def compute_chunk(self, leaves: list[Any], random_states: RandomStates) -> list[Any]:
        """Compute the stacked results for consecutive elements.

        Args:
          leaves: Stacked leaves of the elements.
          random_states: Random states of a pass.
        """
        if self.plan is None and not chunks.matches_spec(leaves, self._spec):
            if self.segments is not None:
                raise InvalidValueError(
                    f"{self._caller}: elements do not have the spec {self._spec}."
                )
            pack = structure.make_packer(self._spec)
            results = [
                nest.flatten(self(structure.to_arrays(pack(list(row))), random_states))
                for row in zip(*leaves, strict=True)
            ]
            return nest.flatten(structure.stack_elements([tuple(r) for r in results]))
        if self.random_map is None:
            return self.compute_many(leaves)
        return self.random_map(leaves, self, random_states)


def _get_shapes(leaves: list[Any]) -> tuple[Any, ...]:
    """Return the shapes and dtypes of host arrays."""
    return tuple([(a.shape, a.dtype) for a in leaves])
