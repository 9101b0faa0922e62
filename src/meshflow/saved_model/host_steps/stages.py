"""Loaded functions with sizes that depend on values: programs and steps on the host that run in sequence."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.errors import InvalidValueError, OpError
from meshflow.core.tracing.trace import fill_slots
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, read_tensors
from meshflow.core.values.unknown_sizes import Result, compute_on_host, is_staged, write_row
from meshflow.environment.jax_internals import list_dimensions, replace_dimensions
from meshflow.environment.types import Json, PyTree
from meshflow.ops import array, control_flow
from meshflow.saved_model.host_steps.host_functions import unpack_function
from meshflow.saved_model.host_steps.plan_program import check_values
from meshflow.saved_model.programs.restored_functions import LazyProgram, StableHLOProgram

_Sizes = dict[str, Any]

_write_row = Op("write_row", lambda o, _: write_row(*map(jnp.asarray, o)))


class SizeGuards:
    """Comparisons of sizes on which a saved function depends.

    Args:
      name: Name of the function, for errors.
      guards: Comparisons with zero: a size, "==" or ">=", and the result.
    """

    def __init__(self, name: str, guards: Sequence[tuple[str, str, bool]]) -> None:
        self._name = name
        self._guards = [
            (jax.export.symbolic_shape(text)[0], relation == "==", result)
            for text, relation, result in guards
        ]
        self._names = [list_dimensions(size) for size, *_ in self._guards]

    def check(self, sizes: _Sizes, new_names: set[str]) -> None:
        """Check the comparisons that contain a new name and no unknown one.

        Args:
          sizes: The known sizes by name.
          new_names: Names of those that became known.

        Raises:
          InvalidArgumentError: If a comparison has another result.
        """
        for (size, is_equality, result), names in zip(self._guards, self._names, strict=True):
            if names.isdisjoint(new_names) or not names.issubset(sizes):
                continue
            difference = replace_dimensions(size, sizes)
            if bool(difference == 0 if is_equality else difference >= 0) is not result:
                relation = (
                    ("==" if is_equality else ">=") if result else "!=" if is_equality else "<"
                )
                values = ", ".join(f"{n} = {sizes[n]}" for n in sorted(names))
                raise InvalidValueError(
                    f"The saved function {self._name} was saved for sizes with {size} {relation} 0, but has {values}. "
                    "Shapes that an op combines must be compatible; otherwise call the function with such sizes before "
                    "you save it."
                )


class _RestoredStep:
    """Step of a plan."""

    def check(self, num_operands: int) -> None:
        """Check the plans of the step, given the number of values that it takes.

        Raises:
          ValueError: If the plan of a file is damaged.
        """

    def run(self, operands: list[Tensor], sizes: _Sizes, guards: SizeGuards) -> Sequence[Tensor]:
        """Run the step, and return its results."""
        raise NotImplementedError


class RestoredPlan:
    """Steps of a loaded function, a branch, or a part of a loop.

    Args:
      steps: Steps with the indices of their inputs and outputs.
      results: Indices of the values that it returns.
      sizes: For the index of a value, its axes with symbols, as in `StagePlan`.
    """

    def __init__(
        self,
        steps: Sequence[tuple[_RestoredStep, list[int], list[int]]],
        results: Sequence[int],
        sizes: Mapping[int, Sequence[tuple[int, str, int]]],
    ) -> None:
        self._steps, self._results = steps, results
        self._sizes = {
            index: [(int(axis), str(name), int(offset)) for axis, name, offset in axes]
            for index, axes in sizes.items()
        }

    def get_invariant(self, index: int, shape: Sequence[int]) -> TensorShape:
        """Return the shape of an input of the body of a loop, without the sizes that iterations change."""
        varying = {axis for axis, name, _ in self._sizes.get(index, ()) if name.startswith("v")}
        return TensorShape([None if axis in varying else n for axis, n in enumerate(shape)])

    def check(self, num_inputs: int) -> None:
        """Check that each step takes values that exist.

        Raises:
          ValueError: If the plan of a file is damaged.
        """
        check_values(num_inputs, [step[1:] for step in self._steps], self._results)
        for step, operands, _ in self._steps:
            step.check(len(operands))

    def run(self, inputs: Sequence[Tensor], sizes: _Sizes, guards: SizeGuards) -> list[Tensor]:
        """Run the steps.

        Args:
          inputs: The first values.
          sizes: Known sizes by name.
          guards: Comparisons of sizes.
        """
        values: dict[int, Tensor] = {}
        sizes = dict(sizes)

        def add(indices: Sequence[int], tensors: Sequence[Tensor]) -> None:
            new_names = set()
            for index, tensor in zip(indices, tensors, strict=True):
                values[index] = tensor
                shape = tensor.array.shape
                for axis, name, offset in self._sizes.get(index, ()):
                    if not 0 <= axis < len(shape):
                        raise InvalidValueError(
                            f"A saved function reads the size of axis {axis} of a tensor of shape {list(shape)}."
                        )
                    sizes[name] = shape[axis] - offset
                    new_names.add(name)
            guards.check(sizes, new_names)

        add(range(len(inputs)), inputs)
        for step, operands, outputs in self._steps:
            add(outputs, step.run([values[i] for i in operands], sizes, guards))
        return [values[i] for i in self._results]


class StageProgramStep(_RestoredStep):
    """Program between steps on the host.

    Args:
      name: Name of the function.
      program: Program that returns a list.
    """

    def __init__(self, name: str, program: StableHLOProgram) -> None:
        self._run = LazyProgram(name, program)

    def run(self, operands: list[Tensor], sizes: _Sizes, guards: SizeGuards) -> Sequence[Tensor]:
        """Run the program."""
        return self._run(*operands)


class _HostStage(_RestoredStep):
    """Call of a host function."""

    def __init__(self, parameters: Json, plans: Sequence[RestoredPlan]) -> None:
        self._use = parameters["use"]
        self._function = unpack_function(parameters["function"])
        self._results = [
            (tuple(map(_parse_size, shape)), np.dtype(dtype))
            for shape, dtype in parameters["results"]
        ]

    def run(self, operands: list[Tensor], sizes: _Sizes, guards: SizeGuards) -> Sequence[Tensor]:
        def read_size(size: Any) -> Any:
            is_known = list_dimensions(size).issubset(sizes)
            return replace_dimensions(size, sizes) if is_known else str(size)

        results: list[Result] = [
            (tuple([read_size(n) if is_symbolic_dim(n) else n for n in shape]), dtype)
            for shape, dtype in self._results
        ]
        try:
            return compute_on_host(self._function, operands, results, self._use)
        except (IndexError, ValueError) as error:
            if isinstance(error, OpError):
                raise
            # The operands depend on the arguments of the saved function.
            raise InvalidValueError(f"{self._use} are invalid: {error}") from error


def _parse_size(size: int | str) -> Any:
    return jax.export.symbolic_shape(size)[0] if isinstance(size, str) else size


class _RowWriter(_RestoredStep):
    """Assignment of a row to an array that grows up to its index."""

    def __init__(self, parameters: Json, plans: Sequence[RestoredPlan]) -> None:
        pass

    def run(self, operands: list[Tensor], sizes: _Sizes, guards: SizeGuards) -> Sequence[Tensor]:
        rows, row, index = operands
        if is_staged([index]):
            return [apply(_write_row, operands)]
        position, size = _read_integer(index), rows.array.shape[0]
        if position >= size:
            missing = array.zeros([position + 1 - size, *rows.array.shape[1:]], rows.dtype)
            rows = array.concat([rows, missing], 0)
        return [array.tensor_scatter_nd_update(rows, [[position]], [row])]


class _Branches(_RestoredStep):
    """Choice of a branch."""

    def __init__(self, parameters: Json, plans: Sequence[RestoredPlan]) -> None:
        self._plans = plans

    def check(self, num_operands: int) -> None:
        if not self._plans:
            raise ValueError("a plan chooses between no branches")
        for plan in self._plans:
            plan.check(num_operands - 1)

    def run(self, operands: list[Tensor], sizes: _Sizes, guards: SizeGuards) -> Sequence[Tensor]:
        index, *rest = operands
        if is_staged([index]):
            branches = [functools.partial(p.run, rest, sizes, guards) for p in self._plans]
            return control_flow.switch_case(index, branches)
        position = min(max(_read_integer(index), 0), len(self._plans) - 1)
        return self._plans[position].run(rest, sizes, guards)


class _WhileLoop(_RestoredStep):
    """Loop with a condition."""

    def __init__(self, parameters: Json, plans: Sequence[RestoredPlan]) -> None:
        self._condition, self._body = plans
        self._num_condition, self._num_body = parameters["counts"]
        self._num_sources = parameters["num_sources"]

    def check(self, num_operands: int) -> None:
        _check_counts(num_operands, self._num_condition, self._num_body, self._num_sources)
        self._condition.check(num_operands - self._num_body)
        self._body.check(num_operands - self._num_condition)

    def run(self, operands: list[Tensor], sizes: _Sizes, guards: SizeGuards) -> Sequence[Tensor]:
        end = len(operands) - self._num_sources
        start = self._num_condition + self._num_body
        constants, body_constants = (
            operands[: self._num_condition],
            operands[self._num_condition : start],
        )
        state, sources = operands[start:end], operands[end:]

        def test(*state: Tensor) -> Tensor:
            (result,) = self._condition.run([*constants, *state, *sources], sizes, guards)
            return result

        def run_body(*state: Tensor) -> list[Tensor]:
            return self._body.run([*body_constants, *state, *sources], sizes, guards)

        if is_staged(operands):
            shapes = [
                self._body.get_invariant(self._num_body + i, s.array.shape)
                for i, s in enumerate(state)
            ]
            return control_flow.while_loop(test, run_body, state, shape_invariants=shapes)
        while _read_integer(test(*state)):
            state = run_body(*state)
        return state


class _ScanStep(_RestoredStep):
    """Loop over rows."""

    def __init__(self, parameters: Json, plans: Sequence[RestoredPlan]) -> None:
        (self._body,) = plans
        self._num_constants, self._num_state = parameters["counts"]
        self._num_sources = parameters["num_sources"]
        self._length = _parse_size(parameters["length"])
        self._is_reversed = parameters["reverse"]

    def check(self, num_operands: int) -> None:
        _check_counts(num_operands, self._num_constants, self._num_state, self._num_sources)
        self._body.check(num_operands)

    def run(self, operands: list[Tensor], sizes: _Sizes, guards: SizeGuards) -> Sequence[Tensor]:
        end, start = len(operands) - self._num_sources, self._num_constants + self._num_state
        constants, state = operands[: self._num_constants], operands[self._num_constants : start]
        rows, sources = operands[start:end], operands[end:]
        length = self._length
        indices = range(replace_dimensions(length, sizes) if is_symbolic_dim(length) else length)
        results: list[list[Tensor]] = []
        for i in reversed(indices) if self._is_reversed else indices:
            found = self._body.run(
                [*constants, *state, *[r[i] for r in rows], *sources], sizes, guards
            )
            state = found[: self._num_state]
            results.append(found[self._num_state :])
        columns = zip(*(reversed(results) if self._is_reversed else results), strict=True)
        return [*state, *map(array.stack, columns)]


_STEPS: dict[str, Callable[[Json, Sequence[RestoredPlan]], _RestoredStep]] = {
    "host": _HostStage,
    "write_row": _RowWriter,
    "cond": _Branches,
    "while": _WhileLoop,
    "scan": _ScanStep,
}


def make_step(kind: str, parameters: Json, plans: Sequence[RestoredPlan]) -> _RestoredStep:
    """Create a step of a loaded function.

    Args:
      kind: Kind of the step, as in `StageStep`.
      parameters: Its parameters.
      plans: The branches, or the condition and the body of a loop.
    """
    return _STEPS[kind](parameters, plans)


def _check_counts(num_operands: int, *counts: int) -> None:
    if min(counts) < 0 or sum(counts) > num_operands:
        raise ValueError(f"a loop of a plan takes {num_operands} values, of the kinds {counts}")


def _read_integer(tensor: Tensor) -> int:
    return int(tensor.require_value("a branch, a loop or an index in a saved function"))


class StagedProgram:
    """Program of a saved function with sizes that depend on values.

    Args:
      plan: The steps, which take the arguments and the captures, and return the results and the new values of
        variables.
      guards: Comparisons of sizes.
      structure: Nested result with `TensorSlot`s.
      specs: Specs of the results.
      captures: Captured variables and constants.
      writes: Variables that the program assigns to.
    """

    runs_on_host = True
    has_unknown_sizes = True
    digest = None

    def __init__(
        self,
        plan: RestoredPlan,
        guards: SizeGuards,
        structure: PyTree,
        specs: Sequence[TensorSpec],
        captures: Sequence[Any],
        writes: Sequence[Any],
    ) -> None:
        self._plan, self._guards, self._structure = plan, guards, structure
        self.out_specs, self.captures, self._writes = list(specs), list(captures), writes

    def check(self, num_arguments: int) -> None:
        """Check that each step takes values that an earlier step computes.

        Args:
          num_arguments: Number of tensors that the program takes.

        Raises:
          ValueError: If the plan of a file is damaged.
        """
        self._plan.check(num_arguments + len(self.captures))

    def call(self, tensors: Sequence[Tensor]) -> PyTree:
        """Run the steps."""
        inputs = [*map(convert_to_tensor, tensors), *read_tensors(self.captures)]
        values = self._plan.run(inputs, {}, self._guards)
        count = len(self.out_specs)
        for variable, value in zip(self._writes, values[count:], strict=True):
            variable.assign(value)
        return fill_slots(self._structure, values[:count])
