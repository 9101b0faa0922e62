"""Functions that users give to transformations, and how they are run on host arrays.

A function is traced once for each signature and runs compiled; one that cannot be (it calls
Python, reads files, or returns results whose size depends on values) runs eagerly. A function of
numbers of known sizes that changes no variable also runs on many elements at once, by `vmap`.
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
from meshflow.data.execution.host_plan import Kept, Plan
from meshflow.data.execution.map_errors import is_user_error
from meshflow.data.execution.on_cpu import compiled_for_cpu, on_cpu
from meshflow.data.execution.random_maps import RandomMap, RandomStates, can_be_stacked
from meshflow.data.sparse_leaves import is_sparse
from meshflow.ops.deferred_host_values import Pending, Recording, is_known
from meshflow.ops.host import on_host

# Sizes that stand for unknown ones while a function's results are inferred: a small one and a large one, as
# what is cut to a length keeps that length only if it was longer.
_STAND_INS = (7, 1021)
# Set by tf.data.experimental.enable_debug_mode.
DEBUG = {"eager": False}


class Unsupported(TypeError):
    """A function of elements returns what cannot be an element."""


class ElementFunction:
    """A user's function of elements.

    Args:
      fn: the function; an element that is a tuple comes as several arguments.
      spec: the spec of the elements.
      what: the transformation, for errors.
      unpack: whether tuples are unpacked.

    Attributes:
      reason: why it is not vectorized; empty when it is.
    """

    def __init__(self, fn: Callable[..., Any], spec: Any, what: str, unpack: bool = True) -> None:
        if not callable(fn):
            raise InvalidValueError(f"{what}: the function must be a callable, got {fn!r}.")
        self._python, self._fn = fn, resolve(fn)
        self._spec, self._what = spec, what
        self._unpack = unpack and type(spec) is tuple
        self._check_arguments(len(spec) if self._unpack else 1)
        self._eager = False
        self._traced: dict[Any, tuple[Traced, Any]] = {}
        self._vectorized: Any = None
        # How many elements the vectorized form was compiled for.
        self._sizes: set[int] = set()
        self._random_map: RandomMap | None = None
        # Results that only scale numbers: of elements of known sizes, and of the rows of any.
        self.affine_maps: affine.AffineMaps | None = None
        self.rows: affine.AffineMaps | None = None
        # How it is computed in groups, when it takes strings.
        self.plan: Plan | None = None
        self.reason = ""
        # The first trace of it that succeeded.
        self._first: Traced | None = None
        self._output_spec: Any = None
        self._infer()
        if context.trace is not None:
            self._check_captures()

    def _check_captures(self) -> None:
        """Raises the error that makes the function being traced run op by op, when its tensors are used.

        A pipeline runs on the host, beside the program, and takes no values from it.
        """
        if self._eager and self.plan is None:
            try:
                held: list[Any] = nest.flatten(dict(inspect.getclosurevars(self._python).nonlocals))
            except (TypeError, ValueError):
                held = []
        else:
            first = self.plan.traced if self.plan is not None else self._first
            held = [] if first is None else list(first.captures)
        for value in held:
            if isinstance(value, Tensor):
                value._concrete(f"an outer value in the function of Dataset.{self._what}()")

    def _check_arguments(self, count: int) -> None:
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

    def _call(self, element: Any, fn: Callable[..., Any] | None = None) -> Any:
        fn = self._fn if fn is None else fn
        result = fn(*element) if self._unpack else fn(element)
        if isinstance(result, list):
            # The several results of one op, as of `numpy_function`; `tf.stack` makes one tensor.
            result = tuple(result)
        return structure.normalize(result, self._tensor)

    def _tensor(self, value: Any) -> Any:
        if hasattr(value, "_elements"):
            return value
        if isinstance(value, Pending):
            return Kept(value)
        if is_sparse(value):
            if context.trace is None:
                return value
            raise TypeError("Programs have no sparse tensors.")  # so it runs eagerly
        try:
            return convert_to_tensor(value)
        except (TypeError, ValueError) as error:
            # Symbolic values of ours become tensors where the function runs as it is.
            symbolic = type(value).__module__.startswith("meshflow.")
            raise (TypeError if symbolic else Unsupported)(
                f"Unsupported return value from function passed to Dataset.{self._what}(): {value!r}. {error}"
            ) from error

    def _infer(self) -> None:
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
                found = affine.find(traced)
                if any(found):
                    self.affine_maps = affine.AffineMaps(traced, found)
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
        """Looks whether its results are scaled rows of its arguments, whatever their sizes."""
        first = traced[0]
        if first.writes or first.closed.effects or not _only_tensors(first):
            return
        if not all(spec.shape.rank for spec in nest.flatten(self._spec)):
            return
        found = [affine.find(t, batched=True) for t in traced]
        if all(a is not None and a.is_like(found[-1][i]) for i, a in enumerate(found[0])):
            self.rows = affine.AffineMaps(first, found[0])

    def _find_plan(self, on_host: bool = False) -> bool:
        """Looks whether all that it does with strings and arrays of unknown sizes can be recorded.

        Args:
          on_host: whether that only helps with functions that should run on the host.
        """
        leaves = nest.flatten(self._spec)
        numbers = [i for i, leaf in enumerate(leaves) if is_known(leaf)]
        recording = Recording()

        def called(known: list[Tensor]) -> Any:
            given = dict(zip(numbers, known, strict=True))
            values = [
                given[i] if i in given else recording.argument(leaf, i)
                for i, leaf in enumerate(leaves)
            ]
            return self._call(nest.pack_sequence_as(self._spec, values))

        before = randomness()
        context.recording = recording
        try:
            with _tracing():
                specs = [leaves[i] for i in numbers]
                traced = trace(called, (specs,), name=self._what, isolated=True)
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
        changes = (
            traced.writes or traced.closed.effects or traced.iterator_captures or traced.infeeds
        )
        if changes or not same_randomness(before, randomness()):
            return False
        specs = [
            r.pending.spec if isinstance(r, Kept) else traced.out_specs[r.index] for r in results
        ]
        self._output_spec = nest.pack_sequence_as(traced.structure, specs)
        self.plan = Plan(traced, recording, numbers, self._output_spec)
        return True

    def _trace_stand_in(self, size: int) -> Traced | None:
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

    def _trace(self, spec: Any) -> Traced | None:
        try:
            with _tracing():
                traced = trace(self._call, (spec,), name=self._what, isolated=True)
        except Unsupported:
            raise
        except Exception as error:
            if is_user_error(error, sizes_known=True):
                raise
            # What else is wrong with it shows when it runs on real elements.
            self._run_eagerly(f"it cannot be traced ({type(error).__name__})")
            return None
        if all(leaf is None for leaf in nest.flatten(traced.structure)):
            raise InvalidValueError(
                f"{self._what}: the function returns None, an element without parts; is a `return` missing?"
            )
        if not _only_tensors(traced):
            self._run_eagerly("it returns something other than tensors")
            return None
        self._first = self._first or traced
        return traced

    def _run_eagerly(self, reason: str) -> None:
        self._eager, self.reason = True, reason

    @property
    def output_spec(self) -> Any:
        """The spec of its results; None when only running it tells."""
        return self._output_spec

    def check_condition(self) -> None:
        """Raises a ValueError when it is known to give something other than a bool scalar."""
        found = self._output_spec
        if found is None or self._fits(found, TensorSpec([], dtypes.bool_)):
            return
        raise ValueError(
            f"Invalid `predicate`. `predicate` must return a `tf.bool` scalar tensor, but what was given to "
            f"{self._what} returns {found}."
        )

    @staticmethod
    def _fits(found: Any, wanted: TensorSpec) -> bool:
        return isinstance(found, TensorSpec) and found.is_compatible_with(wanted)

    @property
    def runs_eagerly(self) -> bool:
        """Whether it is Python that is not compiled."""
        return self._eager

    @property
    def holds_variables(self) -> bool:
        """Whether its body refers to variables, layers or generators, which threads would change at once."""
        try:
            found = inspect.getclosurevars(self._python)
        except TypeError:
            return False
        held = (*found.nonlocals.values(), *found.globals.values())
        marks = ("assign_add", "trainable_weights", "uniform_full_int")
        return any(hasattr(value, mark) for value in held for mark in marks)

    @property
    def takes_chunks(self) -> bool:
        """Whether it runs on many consecutive elements at once."""
        return self.vectorizes or self._random_map is not None

    @property
    def reads_variables(self) -> bool:
        """Whether its results depend on variables, which may change while elements are taken."""
        found = self._random_map.traced if self._random_map is not None else self._vectorized
        traced = found[0] if isinstance(found, tuple) else found
        if self.plan is not None:
            traced = self.plan.traced
        return traced is not None and any(
            isinstance(c, Variable) and not is_stream_state(c) for c in traced.captures
        )

    @property
    def vectorizes(self) -> bool:
        """Whether it runs on many elements at once."""
        return self._vectorized is not None or (self.plan is not None and self.plan.vectorizes)

    def results_of(self, spec: Any) -> Any:
        """The spec of the results for elements of known sizes; None when only running it tells."""
        if self._eager or not structure.static(spec):
            return None
        try:
            with _tracing():
                return trace_shapes(self._call, (spec,), {})
        except Exception:
            return None

    def with_states(self, random_states: RandomStates) -> Callable[[Any], Any]:
        """The function of elements, its random ops drawing as one pass does."""
        return functools.partial(self, random_states=random_states)

    def __call__(self, element: Any, random_states: RandomStates | None = None) -> Any:
        """The result for one element, host arrays (and datasets).

        Args:
          element: host arrays.
          random_states: the random states of a pass; default those of the program.
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
                    self._traced[key] = traced, compiled_for_cpu(traced.arrays)
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
        with on_host(), on_cpu():
            if random_states is None:
                return structure.to_arrays(self._call(structure.to_tensors(element), self._python))
            with call_keys(next(random_states.numbers(self))):
                return structure.to_arrays(self._call(structure.to_tensors(element), self._python))

    def many(self, leaves: list[Any]) -> list[Any]:
        """The results for many elements, given and returned as stacked leaves."""
        if self.plan is not None:
            return self.plan.many(leaves)
        if self.affine_maps is not None:
            return self.affine_maps.of(leaves)
        traced = self._vectorized
        if not isinstance(self._vectorized, tuple):
            every = compiled_for_cpu(jax.vmap(traced.arrays, in_axes=(0, None)))
            self._vectorized = traced, every
        traced, every = self._vectorized
        count = len(leaves[0])
        size = self._size_to_run(count)
        results = every(chunks.filled_up(leaves, size), [c._value for c in traced.captures])
        return [np.asarray(r)[:count] for r in results]

    def _size_to_run(self, count: int) -> int:
        """For how many elements a program runs for some; programs are not made for every number."""
        size = chunks.size_to_run(count, self._sizes)
        self._sizes.add(size)
        return size

    def chunk(self, leaves: list[Any], random_states: RandomStates) -> list[Any]:
        """The results for consecutive elements, given and returned as stacked leaves.

        Args:
          leaves: the leaves.
          random_states: the random states of a pass.
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
    """While a function is traced that can also run as it is."""
    saved, context.falls_back = context.falls_back, True
    try:
        with switched(True):
            yield
    finally:
        context.falls_back = saved


def _without_zeros(spec: Any) -> Any:
    """A spec found by stand-ins, of which nothing may be left where something is left of real sizes."""
    if not isinstance(spec, TensorSpec) or spec.shape.rank is None:
        return spec
    return TensorSpec([n or None for n in spec.shape.as_list()], spec.dtype)


def _only_tensors(traced: Traced) -> bool:
    """Whether a traced function returns nothing but tensors."""
    found = traced.rebuild([Tensor(np.zeros(())) for _ in traced.out_specs])
    return all(isinstance(leaf, Tensor) for leaf in nest.flatten(found))


def randomness() -> tuple[Any, ...]:
    """The states of Python's and NumPy's random numbers."""
    return random.getstate(), np.random.get_state()


def same_randomness(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    """Whether nothing was drawn between two states."""
    _, first, position, *_ = before[1]
    _, second, reached, *_ = after[1]
    drawn = position != reached or not np.array_equal(first, second)
    return not drawn and before[0] == after[0]
