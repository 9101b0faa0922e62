"""Compiled training, test and predict steps.

A `CompiledStep` traces a step function once for each structure and shape of batch, and runs it
with the model's variables updated in place. `CompiledStep.run_many` runs several batches in one
call, as a loop inside the compiled program (`steps_per_execution`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.autograph.status import switched
from meshflow.core.functions.concrete_function import ConcreteFunction
from meshflow.core.functions.function import warn_eager_fallback
from meshflow.core.runtime import transfers
from meshflow.core.runtime.context import context, standing_in
from meshflow.core.runtime.errors import ValueNeededError
from meshflow.core.tracing.trace import trace
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.variables.variable_creation import VariableNeedsEagerError
from meshflow.environment.jax_internals import jex_core
from meshflow.passes.constant_hoisting import hoist_constants

# Bytes that take longer to copy than an array of the device takes to make.
_LARGE = 1 << 15


class CompiledStep:
    """A step function of one batch, compiled.

    Args:
      function: called with one nested structure of tensors.
      name: the name in profiles.

    Attributes:
      place: puts a batch on the devices, or None.
      place_many: puts stacked batches on the devices, or None.
      around: gives the context in which the step is traced.
    """

    place: Callable[[Any], Any] | None = None
    place_many: Callable[[Any], Any] | None = None
    around: Callable[[], Any] = contextlib.nullcontext

    def __init__(self, function: Callable[[Any], Any], name: str) -> None:
        self._function = function
        self._name = name
        self._concrete: dict[Any, ConcreteFunction] = {}
        self._loops: dict[Any, Loop] = {}
        self._op_by_op = False

    def __call__(self, batch: Any) -> Any:
        """Runs one step on a structure of arrays."""
        if self.place is not None:
            batch = self.place(batch)
        leaves = jax.tree.leaves(batch)
        key = _key(batch)
        concrete = self._concrete.get(key)
        if concrete is None:
            if self._op_by_op or any(is_text(leaf) for leaf in leaves):
                # XLA has no strings, and no sizes that depend on values.
                return self._run_plainly(batch)
            try:
                concrete = self._concrete[key] = self._trace(batch)
            except VariableNeedsEagerError:
                return self._run_plainly(batch)
            except ValueNeededError as error:
                warn_eager_fallback(self._name, error)
                self._op_by_op = True
                return self._run_plainly(batch)
        return concrete.run_arrays([_shared(leaf) for leaf in leaves])

    def _run_plainly(self, batch: Any) -> Any:
        with self.around(), standing_in():
            return self._function(as_tensors(batch))

    def knows(self, batch: Any) -> bool:
        """Whether the step is traced for batches like this one."""
        return _key(batch) in self._concrete

    def prepare(self, batch: Any) -> None:
        """Traces the step for a batch, which makes its variables, without running it."""
        if self.place is not None:
            batch = self.place(batch)
        key = _key(batch)
        if key not in self._concrete:
            self._concrete[key] = self._trace(batch)

    def _trace(self, batch: Any) -> ConcreteFunction:
        with switched(True), self.around():
            traced = trace(self._function, (batch,), name=self._name, isolated=True)
        return ConcreteFunction(traced, ((batch,), {}))

    def run_many(self, batches: Sequence[Any]) -> Any:
        """Runs a step on each batch; returns what the last step returns.

        Batches of one shape run in one compiled loop; a batch of another shape (the last of an
        epoch) by itself.
        """
        if self.place is not None:
            batches = [self.place(batch) for batch in batches]
        result = None
        first = 0
        while first < len(batches):
            key = _key(batches[first])
            last = first + 1
            while last < len(batches) and _key(batches[last]) == key:
                last += 1
            if _is_placed(batches[first]) or last - first == 1 or key not in self._concrete:
                # The first step of a shape runs alone: it may create variables.
                result, last = self(batches[first]), first + 1
            else:
                result = self._loop(key, last - first)(batches[first:last])
            first = last
        return result

    def _loop(self, key: Any, count: int) -> Loop:
        if (key, count) not in self._loops:
            self._loops[key, count] = Loop(self._concrete[key], count, self.place_many)
        return self._loops[key, count]


def _shared(leaf: Any) -> Any:
    """A large array of an input pipeline as one of the device, which need not be copied."""
    large = type(leaf) is np.ndarray and leaf.nbytes >= _LARGE
    return transfers.to_device(leaf) if large and transfers.is_ours(leaf) else leaf


def _key(batch: Any) -> Any:
    leaves, tree = jax.tree.flatten(batch)
    steps = None if context.closure is None else context.closure.steps
    return tree, tuple([(leaf.shape, leaf.dtype) for leaf in leaves]), steps


def _is_placed(batch: Any) -> bool:
    """Whether a batch lies on the devices of several processes already."""
    return any(
        isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
        for leaf in jax.tree.leaves(batch)
    )


class Loop(ConcreteFunction):
    """A traced step applied to several batches, one after the other, in a compiled loop.

    Its arguments are the batches' arrays, stacked. Variables that the step writes are carried from step to step.

    Args:
      step: the step's concrete function.
      count: the number of batches.
      place: puts the stacked arrays on the devices, or None.
    """

    def __init__(
        self, step: ConcreteFunction, count: int, place: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__(step.traced, step.structured_input_signature)
        self.name = f"{step.name}_loop"
        self._count = count
        self._place = place

    def __call__(self, batches: Sequence[Any]) -> Any:
        """Runs the step on all batches; what the last one returns."""
        rows = [jax.tree.leaves(batch) for batch in batches]
        stacked = [_stacked(column) for column in zip(*rows, strict=True)]
        return self.run_arrays(stacked if self._place is None else self._place(stacked))

    def _rewritten(self) -> jex_core.ClosedJaxpr:
        closed, captures = super()._rewritten(), self.traced.captures
        offset = len(closed.in_avals) - len(captures)
        written = [id(v) for v in self.traced.writes]
        where = {id(c): offset + i for i, c in enumerate(captures)}
        carried_at = [where[i] for i in written]
        fixed_at = [where[id(c)] for c in captures if id(c) not in written]
        # What is made of variables that the loop only reads is made once, in front of it.
        parts = hoist_constants(closed, fixed_at)
        program = jex_core.jaxpr_as_fun(closed if parts is None else parts.rest)
        results = self.traced.count

        def run(*operands: Any) -> list[Any]:
            made: list[Any] = []
            if parts is not None:
                made = jex_core.jaxpr_as_fun(parts.early)(*[operands[i] for i in parts.reads])
            inputs = list(operands)

            def step(state: list[Any], arrays: list[Any]) -> Any:
                inputs[:offset] = arrays
                for i, value in zip(carried_at, state, strict=True):
                    inputs[i] = value
                outputs = program(*inputs, *made)
                return outputs[results:], outputs[:results]

            first = [operands[i] for i in carried_at]
            state, rows = jax.lax.scan(step, first, list(operands[:offset]))
            return [*[row[-1] for row in rows], *state]

        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in closed.in_avals]
        stacks = [jax.ShapeDtypeStruct((self._count, *a.shape), a.dtype) for a in shapes[:offset]]
        return jax.make_jaxpr(run)(*stacks, *shapes[offset:])


def _stacked(column: Sequence[Any]) -> Any:
    """Arrays with a new first axis; those of a device other than the CPU, or of several, stay there."""
    if all(isinstance(a, jax.Array) and _stays(a) for a in column):
        return jax.numpy.stack(column)
    return np.stack([np.asarray(a) for a in column])


def _stays(array: jax.Array) -> bool:
    """Return whether the host would have to wait for a device to read an array."""
    devices: Any = array.sharding.device_set
    return len(devices) > 1 or any(device.platform != "cpu" for device in devices)


def is_text(leaf: Any) -> bool:
    """Whether a leaf of a batch holds strings."""
    return getattr(getattr(leaf, "dtype", None), "kind", "") == "O"


def as_tensors(batch: Any) -> Any:
    """A structure of arrays as tensors; None stays."""
    return nest.map_structure(lambda a: None if a is None else convert_to_tensor(a), batch)
