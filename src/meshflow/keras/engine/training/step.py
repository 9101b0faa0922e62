"""Compiled training, test and predict steps.

A `CompiledStep` traces a step function once for each structure and shape of batch, and runs it with
in-place updates of the model's variables. `CompiledStep.run_many` runs several batches in one call,
as a loop inside the compiled program (`steps_per_execution`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np

from meshflow.core.autograph.status import override_status
from meshflow.core.dispatch.tiers import RunForecast, is_interpreter_enabled
from meshflow.core.functions.concrete_function import ConcreteFunction
from meshflow.core.functions.retracing import (
    MAX_COMPARED,
    CallHistory,
    explain_change,
    warn_eager_fallback,
)
from meshflow.core.functions.size_variants import SizeVariants, allow_unknown_sizes
from meshflow.core.runtime import transfers
from meshflow.core.runtime.context import context, emulate_graph
from meshflow.core.runtime.errors import ValueNeededError
from meshflow.core.tracing.trace import TracedFunction, trace
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.size_guards import GuardedSizes
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.trace_families import TraceFamily
from meshflow.core.variables.random_streams import OpStreams
from meshflow.core.variables.variable_creation import VariableNeedsEagerError
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Array, ClosedJaxpr, PyTree
from meshflow.interpreter import SizeGuardError
from meshflow.keras.engine.training.sparse_batches import join_batch, list_varied_shapes
from meshflow.passes.constant_hoisting import hoist_constants

# Arrays of at least this many bytes are shared with the device, because copying them takes longer
# than creating a device array.
_MIN_SHARED_BYTES = 1 << 15
_RETRACE_MESSAGE = (
    "%d of the last %d batches required to trace and compile %s again, which takes longer than a step. Cause of the "
    "latest: %s"
)


# Structure of a batch, the shape and dtype of each array, and the location of the step.
StepKey = tuple[Any, tuple[tuple[tuple[int, ...], np.dtype], ...], Hashable]


class CompiledStep:
    """A step function of one batch, compiled.

    Args:
      function: Function of one nested structure of tensors.
      name: Name of the step in profiles.
      model_name: Name of the model, for messages.

    Attributes:
      place_batch: Function that places a batch on the devices, or None.
      intercept: Function that receives the batches instead of the step, or None.
      place_batches: Function that places stacked batches on the devices, or None.
      make_trace_scope: Function that creates the context in which the step is traced.
      forecast: Numbers of runs, which determine whether the step is compiled, or None.
      allows_simplification: Whether XLA may simplify arithmetic as if numbers were real.
    """

    place_batch: Callable[[PyTree], PyTree] | None = None
    intercept: Callable[[PyTree], PyTree] | None = None
    place_batches: Callable[[PyTree], PyTree] | None = None
    allows_simplification = False
    make_trace_scope: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    forecast: RunForecast | None = None

    def __init__(self, function: Callable[[PyTree], Any], name: str, model_name: str = "") -> None:
        self._function = lambda batch: function(join_batch(batch))
        self._name = name
        self._model_name = model_name
        self._history = CallHistory(message=_RETRACE_MESSAGE)
        # The specs of the batches of all traces, by label.
        self._batch_specs: dict[Hashable, dict[str, TensorSpec]] = {}
        self._concrete: dict[Hashable, ConcreteFunction] = {}
        self._families: dict[Hashable, TraceFamily[ConcreteFunction]] = {}
        self._loops: dict[Hashable, StepLoop] = {}
        self._op_streams = OpStreams()
        self._is_eager = False

    def __call__(self, batch: PyTree) -> PyTree:
        """Run one step on a structure of arrays."""
        if self.intercept is not None:
            return self.intercept(batch)
        leaves = host_leaves = jax.tree.leaves(batch)
        if self.place_batch is not None:
            batch = self.place_batch(batch)
            leaves = jax.tree.leaves(batch)
        key = _make_key(batch)
        concrete = self._concrete.get(key)
        self._history.calls += 1
        if concrete is None:
            general = self._find_general(key, batch)
            if general is not None and general.should_interpret(leaves, self._expect_runs(key)):
                with contextlib.suppress(SizeGuardError):
                    return general.interpret(leaves)
            if self._is_eager or any(is_text(leaf) for leaf in leaves):
                # XLA has neither strings nor sizes that depend on values.
                return self._run_op_by_op(batch)
            try:
                concrete = self._concrete[key] = self._trace(batch)
                if general is not None:
                    concrete.disable_interpreter()
            except VariableNeedsEagerError:
                return self._run_op_by_op(batch)
            except ValueNeededError as error:
                warn_eager_fallback(self._name, error)
                self._is_eager = True
                return self._run_op_by_op(batch)
            self._record_trace(key, batch)
        if concrete.early_checks:
            concrete.early_checks.run(host_leaves)
        if concrete.variants is not None:
            return self._run_variants(concrete.variants, leaves, batch)
        arrays = [_share_with_device(leaf) for leaf in leaves]
        expected_runs = None if concrete.is_ready else self._expect_runs(key)
        return concrete.run_arrays(arrays, is_checked=True, expected_runs=expected_runs)

    def find_trace(self) -> ConcreteFunction | None:
        """Return the trace for the batches of some size, or None."""
        return next(iter([*self._concrete.values(), *self._loops.values()]), None)

    def _run_variants(
        self, variants: SizeVariants[ConcreteFunction], leaves: Sequence[Any], batch: PyTree
    ) -> PyTree:
        """Run a step with sizes that depend on values."""
        try:
            return variants.run(lambda concrete: concrete.run_arrays(list(leaves), is_checked=True))
        except SizeGuardError as error:
            result = self._run_op_by_op(batch)
            if error.__cause__ is not None:
                warn_eager_fallback(self._name, error.__cause__)
                self._is_eager = True
                self._concrete.clear()
            return result

    def _record_trace(self, key: Hashable, batch: PyTree) -> None:
        """Warn if many of the latest batches had new shapes."""
        specs = _label_batch(batch)

        def explain() -> str:
            # The latest trace is the first one to compare with.
            earlier = [other for other in self._batch_specs.values() if other is not specs]
            return explain_change(earlier[: -MAX_COMPARED - 1 : -1], specs)

        self._batch_specs[key] = specs
        self._history.add_trace(f"{self._name} of model {self._model_name!r}", explain)

    def _expect_runs(self, key: StepKey) -> float | None:
        """Return the number of runs with batches of these shapes, or None if it is unknown."""
        if self.forecast is None:
            return None
        return self.forecast.expect_runs([shape for shape, _ in key[1]])

    def _find_general(self, key: StepKey, batch: PyTree) -> ConcreteFunction | None:
        """Return a trace with symbolic sizes that is valid for a batch, or None."""
        is_placed = self.place_batch is not None or self.place_batches is not None
        if self._is_eager or is_placed or not is_interpreter_enabled():
            return None
        tree, avals, _ = key

        def trace_sizes(sizes: GuardedSizes) -> ConcreteFunction:
            specs = map(jax.ShapeDtypeStruct, sizes.shapes, [dtype for _, dtype in avals])
            return self._trace(jax.tree.unflatten(tree, specs))

        shapes = [shape for shape, _ in avals]
        family_key = tree, tuple([(len(shape), dtype) for shape, dtype in avals])
        family = self._families.get(family_key)
        if family is None:
            family = self._families[family_key] = TraceFamily()
            other = None if self.forecast is None else self.forecast.expect_other_batch(shapes)
            if other is not None:
                family.add_call(other)
            varied = list_varied_shapes(batch)
            if varied != shapes:
                family.add_call(varied)
        return family.find(shapes, trace_sizes)

    def _run_op_by_op(self, batch: PyTree) -> PyTree:
        with self.make_trace_scope(), emulate_graph():
            return self._function(as_tensors(batch))

    def is_traced_for(self, batch: PyTree) -> bool:
        """Check whether the step is traced for batches of this structure and shape."""
        return _make_key(batch) in self._concrete

    def prepare(self, batch: PyTree) -> None:
        """Trace the step for a batch without running it, which creates its variables."""
        if self.place_batch is not None:
            batch = self.place_batch(batch)
        key = _make_key(batch)
        if key not in self._concrete:
            self._concrete[key] = self._trace(batch)

    def list_programs(self) -> list[TracedFunction]:
        """List the traced programs of all batches so far."""
        return [concrete.traced for concrete in self._concrete.values()]

    def trace_again(self, batch: PyTree) -> tuple[TracedFunction, list[Any]]:
        """Trace the step for a batch again; return the program and its operands."""
        if self.place_batch is not None:
            batch = self.place_batch(batch)
        traced = self._trace(batch).traced
        return traced, [*jax.tree.leaves(batch), *(c._value for c in traced.captures)]

    def _trace(self, batch: PyTree, hints: Mapping[str, int] | None = None) -> ConcreteFunction:
        is_placed = self.place_batch is not None or self.place_batches is not None
        must_compile = is_placed or self.allows_simplification
        with (
            override_status(True),
            self.make_trace_scope(),
            self._op_streams.share(),
            contextlib.nullcontext() if must_compile else allow_unknown_sizes(hints or {}),
        ):
            traced = trace(self._function, (batch,), name=self._name, isolated=True)
        traced.allows_simplification = self.allows_simplification
        concrete = ConcreteFunction(traced, ((batch,), {}))
        concrete.is_checked_early = True
        if traced.has_unknown_sizes:
            concrete.check_unknown_sizes()
            specs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), batch)
            retrace = lambda hints: self._trace(specs, hints)
            concrete.variants = SizeVariants(concrete, retrace)
        return concrete

    def run_many(self, batches: Sequence[PyTree]) -> PyTree:
        """Run a step on each batch, and return the result of the last step.

        Consecutive batches of the same shape run in one compiled loop. A batch of another shape
        (the last one of an epoch) runs separately.
        """
        for batch in batches:
            concrete = self._concrete.get(_make_key(batch))
            if concrete is not None and concrete.early_checks:
                concrete.early_checks.run(jax.tree.leaves(batch))
        if self.place_batch is not None:
            batches = [self.place_batch(batch) for batch in batches]
        result = None
        first = 0
        while first < len(batches):
            key = _make_key(batches[first])
            last = first + 1
            while last < len(batches) and _make_key(batches[last]) == key:
                last += 1
            concrete = self._concrete.get(key)
            is_looped = concrete is not None and concrete.variants is None
            if _is_placed(batches[first]) or last - first == 1 or not is_looped:
                # The first step of a shape runs separately, because it may create variables.
                result, last = self(batches[first]), first + 1
            else:
                result = self._get_loop(key, last - first)(batches[first:last])
            first = last
        return result

    def _get_loop(self, key: Hashable, count: int) -> StepLoop:
        if (key, count) not in self._loops:
            self._loops[key, count] = StepLoop(self._concrete[key], count, self.place_batches)
        return self._loops[key, count]


def _share_with_device(leaf: Any) -> Any:
    """Convert a large array of an input pipeline to an array of the device without a copy, if possible."""
    is_large = type(leaf) is np.ndarray and leaf.nbytes >= _MIN_SHARED_BYTES
    return transfers.to_device(leaf) if is_large and transfers.is_immutable(leaf) else leaf


def _label_batch(batch: PyTree) -> dict[str, TensorSpec]:
    """Return the specs of a batch by label, such as `x['tokens']`."""
    labels = ("x", "y", "sample_weight")
    # The paths of a named tuple would have names instead of positions.
    parts = tuple(batch) if isinstance(batch, tuple) and len(batch) <= len(labels) else (batch,)
    return {
        labels[path[0].idx] + jax.tree_util.keystr(path[1:]): TensorSpec(leaf.shape, leaf.dtype)
        for path, leaf in jax.tree_util.tree_leaves_with_path(parts)
    }


def _make_key(batch: PyTree) -> StepKey:
    leaves, tree = jax.tree.flatten(batch)
    steps = None if context.worker_closure is None else context.worker_closure.step_location
    return tree, tuple([(leaf.shape, leaf.dtype) for leaf in leaves]), steps


def _is_placed(batch: PyTree) -> bool:
    """Check whether a batch is already on the devices of several processes."""
    return any(
        isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
        for leaf in jax.tree.leaves(batch)
    )


class StepLoop(ConcreteFunction):
    """A traced step that is applied to several batches in sequence, in a compiled loop.

    Its arguments are the stacked arrays of the batches. The loop carries the variables that the
    step writes.

    Args:
      step: Concrete function of the step.
      count: Number of batches.
      place_batches: Function that places the stacked arrays on the devices, or None.
    """

    def __init__(
        self,
        step: ConcreteFunction,
        count: int,
        place_batches: Callable[[PyTree], PyTree] | None = None,
    ) -> None:
        super().__init__(step.traced, step.structured_input_signature)
        self.name = f"{step.name}_loop"
        self.is_checked_early = step.is_checked_early
        self._count = count
        self._place = place_batches

    def __call__(self, batches: Sequence[PyTree]) -> PyTree:
        """Run the step on all batches, and return the result of the last one."""
        rows = [jax.tree.leaves(batch) for batch in batches]
        stacked = [_stack_arrays(column) for column in zip(*rows, strict=True)]
        arrays = stacked if self._place is None else self._place(stacked)
        return self.run_arrays(arrays, is_checked=True)

    def _rewrite(self, compiles: bool = True) -> ClosedJaxpr:
        closed, captures = super()._rewrite(compiles), self.traced.captures
        offset = len(closed.in_avals) - len(captures)
        written = [id(v) for v in self.traced.writes]
        indices = {id(c): offset + i for i, c in enumerate(captures)}
        carried_indices = [indices[i] for i in written]
        fixed_indices = [indices[id(c)] for c in captures if id(c) not in written]
        # Values that depend only on variables that the loop does not write are computed once,
        # before the loop.
        parts = hoist_constants(closed, fixed_indices)
        program = jex_core.jaxpr_as_fun(closed if parts is None else parts.remainder)
        results = self.traced.num_results

        def run(*operands: Any) -> list[Any]:
            hoisted: list[Any] = []
            if parts is not None:
                hoisted = jex_core.jaxpr_as_fun(parts.hoisted)(
                    *[operands[i] for i in parts.operand_indices]
                )
            inputs = list(operands)

            def step(state: list[Any], arrays: list[Any]) -> tuple[list[Any], list[Any]]:
                inputs[:offset] = arrays
                for i, value in zip(carried_indices, state, strict=True):
                    inputs[i] = value
                outputs = program(*inputs, *hoisted)
                return outputs[results:], outputs[:results]

            first = [operands[i] for i in carried_indices]
            state, rows = jax.lax.scan(step, first, list(operands[:offset]))
            return [*[row[-1] for row in rows], *state]

        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in closed.in_avals]
        stacks = [jax.ShapeDtypeStruct((self._count, *a.shape), a.dtype) for a in shapes[:offset]]
        return jax.make_jaxpr(run)(*stacks, *shapes[offset:])


def _stack_arrays(column: Sequence[Array]) -> Array:
    """Stack arrays along a new first axis; arrays of accelerators or of several devices remain there."""
    if all(map(is_remote, column)):
        return jax.numpy.stack(column)
    return np.stack([np.asarray(a) for a in column])


def is_remote(array: Array) -> bool:
    """Check whether the host would have to wait for a device to read an array."""
    if not isinstance(array, jax.Array):
        return False
    devices: set[Any] = array.sharding.device_set
    return len(devices) > 1 or any(device.platform != "cpu" for device in devices)


def is_text(leaf: object) -> bool:
    """Check whether a leaf of a batch holds strings."""
    return getattr(getattr(leaf, "dtype", None), "kind", "") == "O"


def as_tensors(batch: PyTree) -> PyTree:
    """Convert a structure of arrays to tensors, and sparse batches to `tf.SparseTensor`s.

    None does not change.
    """
    tensors = nest.map_structure(lambda a: None if a is None else convert_to_tensor(a), batch)
    return join_batch(tensors)
