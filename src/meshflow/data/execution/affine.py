"""Detection of affine maps in traced functions: casts to float32 and arithmetic with constants.

A result that is an affine map of one argument is computed while the elements are gathered, in one
pass over memory, and rounded after every operation, as TensorFlow does. XLA would multiply by the
reciprocal of a constant divisor, and contract products and sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from meshflow.core.tracing.trace import TracedFunction
from meshflow.core.values.tensor import Tensor
from meshflow.data import structure
from meshflow.data.execution.batched_gather import LeafGather
from meshflow.data.execution.cpu_programs import compile_for_cpu
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Atom, Jaxpr, JaxprEqn, PyTree
from meshflow.kernels import row_gather
from meshflow.passes.jaxprs import select_needed_equations
from meshflow.passes.sub_jaxprs import INLINED_CALLS

_FLOAT32 = np.dtype(np.float32)


class ComputedStep(NamedTuple):
    """An operation with a scalar that the program computes for each element.

    Attributes:
      operation: One of `row_gather.OPERATIONS`.
      variable: Variable of the scalar in the jaxpr.
    """

    operation: str
    variable: Any


class AffineMap(NamedTuple):
    """An affine map from one argument of a function to one of its results.

    Attributes:
      leaf: Index of the argument among the leaves of an element.
      shape: Shape of the result, without the batch axis; None for the shape of the argument.
      steps: Operations after a cast to float32, each a `row_gather.Step` or `ComputedStep`; None
        for an unchanged argument.
      mirrors: Axes along which the result is finally reversed, each with the bool variable that
        decides about it; the variable is None until a `select_n` is found.
      window: The part of the argument that is taken first: its sizes, and the variables of its
        start indices.
    """

    leaf: int
    shape: tuple[int, ...] | None
    steps: tuple[Any, ...] | None
    mirrors: tuple[tuple[int, Any], ...] = ()
    window: tuple[tuple[int, ...], tuple[Any, ...]] | None = None

    @property
    def is_constant(self) -> bool:
        """Return whether the map is the same for all elements."""
        has_constant_steps = all(isinstance(step, row_gather.RowStep) for step in self.steps or ())
        return has_constant_steps and not self.mirrors and self.window is None

    def is_equal(self, other: AffineMap | None) -> bool:
        """Check whether another map, without mirrors and windows, computes the same."""
        if other is None or self[:2] != other[:2] or (self.steps is None) != (other.steps is None):
            return False
        own_steps, other_steps = self.steps or (), other.steps or ()
        return len(own_steps) == len(other_steps) and all(
            a.operation == b.operation and np.array_equal(a.value, b.value)
            for a, b in zip(own_steps, other_steps, strict=True)
        )


def find_affine_maps(
    traced: TracedFunction, batched: bool = False, mirrors: bool = False
) -> list[AffineMap | None]:
    """Find the results of a function that are affine maps of an argument.

    Args:
      traced: A function of an element.
      batched: Whether the function was traced for a batch, which is the first axis of all values.
      mirrors: Whether to look for random flips and crops, too.

    Returns:
      The affine map of each result, None for other results.
    """
    jaxpr = traced.closed_jaxpr.jaxpr
    num_leaves = len(jaxpr.invars) - len(traced.captures)
    leaves, captured = jaxpr.invars[:num_leaves], jaxpr.invars[num_leaves:]
    known: dict[Any, Any] = {v: AffineMap(i, v.aval.shape, None) for i, v in enumerate(leaves)}
    for variable, capture in zip(captured, traced.captures, strict=True):
        # Variables are excluded because their values may change.
        if type(capture) is Tensor and not isinstance(capture.array, jax.core.Tracer):
            known[variable] = np.asarray(capture.array)
    for variable, constant in zip(jaxpr.constvars, traced.closed_jaxpr.consts, strict=True):
        known[variable] = np.asarray(constant)
    _AffineSearch(known, batched, mirrors).visit_equations(jaxpr)
    results: list[AffineMap | None] = []
    for variable in jaxpr.outvars[: traced.num_results]:
        found = None if isinstance(variable, jex_core.Literal) else known.get(variable)
        if not isinstance(found, AffineMap) or any(flag is None for _, flag in found.mirrors):
            results.append(None)
            continue
        full_shape: tuple[int, ...] = found.shape or ()
        if full_shape == leaves[found.leaf].aval.shape:
            shape = None
        else:
            shape = full_shape[1:] if batched else full_shape
        results.append(found._replace(shape=shape))
    return results


class AffineMaps:
    """The computation of a function of many elements of which some results are affine maps.

    Args:
      traced: The function.
      found: Affine map of each result, None for results that the compiled function computes.

    Attributes:
      gathered_maps: Affine maps to gather: those of the results, followed by the arguments of the
        compiled function.
    """

    def __init__(self, traced: TracedFunction, found: list[AffineMap | None]) -> None:
        self._traced = traced
        self._computed_results = [i for i, affine_map in enumerate(found) if affine_map is None]
        self._used_arguments = find_used_arguments(traced, self._computed_results)
        self._affine_maps = [affine_map for affine_map in found if affine_map is not None]
        self.gathered_maps = [
            *self._affine_maps,
            *(AffineMap(i, None, None) for i in self._used_arguments),
        ]
        self._program: Any = None

    def compute(self, leaves: list[Any]) -> list[Any]:
        """Compute the results for stacked arguments."""
        return self.finish(
            [
                LeafGather(leaves[affine_map.leaf], affine_map.steps, affine_map.shape).gather_all()
                for affine_map in self.gathered_maps
            ]
        )

    def finish(self, arrays: list[Any]) -> list[Any]:
        """Compute the remaining results from the gathered arrays of `gathered_maps`."""
        num_affine_maps = len(self._affine_maps)
        results = iter(arrays[:num_affine_maps])
        if not self._computed_results:
            return list(results)
        computed = iter(self._run_program(arrays[num_affine_maps:], len(arrays[0])))
        computed_indices = set(self._computed_results)
        return [
            next(computed if i in computed_indices else results)
            for i in range(self._traced.num_results)
        ]

    @property
    def are_all_affine(self) -> bool:
        """Return whether all results are affine maps."""
        return not self._computed_results

    def rebuild_element(self, arrays: list[Any]) -> PyTree:
        """Pack the results for one element into their structure."""
        return structure.to_arrays(self._traced.rebuild_result(arrays))

    def _run_program(self, arrays: list[Any], count: int) -> list[Any]:
        """Run the compiled function for the results that are not affine maps.

        Args:
          arrays: The arguments that these results depend on, stacked.
          count: Number of elements.
        """
        if self._program is None:

            def compute(leaves: list[Any], captures: list[Any]) -> list[Any]:
                results = self._traced.run_row(leaves, captures)
                return [results[i] for i in self._computed_results]

            self._program = compile_for_cpu(jax.vmap(compute, in_axes=(0, None)))
        leaves = []
        used_arrays = dict(zip(self._used_arguments, arrays, strict=True))
        in_avals = self._traced.closed_jaxpr.in_avals
        for index, aval in enumerate(in_avals[: len(in_avals) - len(self._traced.captures)]):
            # The program does not read arguments that only affine maps use.
            unused = np.broadcast_to(np.zeros((), aval.dtype), (count, *aval.shape))
            leaves.append(used_arrays.get(index, unused))
        results = self._program(leaves, self._traced.get_captured_arrays())
        return [np.asarray(r) for r in results]


def find_used_arguments(traced: TracedFunction, results: Sequence[int]) -> list[int]:
    """Return the indices of the arguments that some results depend on.

    Args:
      traced: The function.
      results: Indices of the results.
    """
    jaxpr = traced.closed_jaxpr.jaxpr
    _, read = select_needed_equations(jaxpr, [jaxpr.outvars[i] for i in results])
    leaves = jaxpr.invars[: len(jaxpr.invars) - len(traced.captures)]
    return [i for i, variable in enumerate(leaves) if variable in read]


class _ScalarVariable(NamedTuple):
    """A scalar that the program computes.

    Attributes:
      variable: Its variable in the jaxpr.
    """

    variable: Any


# The values that are propagated through a jaxpr; arrays are constants.
_Value: TypeAlias = AffineMap | _ScalarVariable | np.ndarray


class _AffineSearch:
    """A forward pass over a jaxpr that propagates affine maps and constants.

    Args:
      known: For each variable its `AffineMap` with the full shape, or its constant value; extended
        by `follow`.
      batched: Whether the first axis is that of a batch.
      mirrors: Whether to look for random flips and crops, too.
    """

    def __init__(self, known: dict[Any, Any], batched: bool, mirrors: bool = False) -> None:
        self.known, self._batched, self._mirrors = known, batched, mirrors
        self.tracks_scalars = mirrors

    def visit_equations(self, jaxpr: Jaxpr) -> None:
        """Propagate affine maps and constants through the equations of a jaxpr."""
        for equation in jaxpr.eqns:
            operands = [self._read_operand(v) for v in equation.invars]
            if equation.primitive.name in INLINED_CALLS and self._mirrors:
                self._visit_call(equation, operands)
                continue
            rule = _RULES.get(equation.primitive.name)
            if rule is not None and not any(operand is None for operand in operands):
                found = rule(self, equation, *operands)
                if found is not None:
                    self.known[equation.outvars[0]] = found

    def _read_operand(self, variable: Atom) -> _Value | None:
        if isinstance(variable, jex_core.Literal):
            return np.asarray(variable.val)
        value = self.known.get(variable)
        aval: Any = variable.aval
        if value is None and self.tracks_scalars and aval.size == 1:
            return _ScalarVariable(variable)
        return value

    def _visit_call(self, equation: JaxprEqn, operands: list[Any]) -> None:
        """Propagate affine maps through a call of an inner jaxpr."""
        inner = equation.params["jaxpr"]
        known = zip(inner.jaxpr.invars, operands, strict=True)
        search = _AffineSearch({v: o for v, o in known if o is not None}, self._batched, True)
        search.tracks_scalars = False  # Variables of the inner jaxpr have no meaning outside.
        search.visit_equations(inner.jaxpr)
        for variable, result in zip(equation.outvars, inner.jaxpr.outvars, strict=True):
            value = None if isinstance(result, jex_core.Literal) else search.known.get(result)
            if value is not None:
                self.known[variable] = value

    def visit_reverse(self, equation: Any, x: _Value) -> _Value | None:
        axes = equation.params["dimensions"]
        if not self._mirrors or not isinstance(x, AffineMap) or len(axes) != 1:
            return None
        # The reversal is not conditional yet; `visit_select` adds the condition.
        return x._replace(mirrors=(*x.mirrors, (axes[0], None)))

    def visit_dynamic_slice(self, equation: Any, x: Any, *starts: Any) -> _Value | None:
        """Handle a crop of an image that includes all its channels."""
        sizes = equation.params["slice_sizes"]
        can_crop = isinstance(x, AffineMap) and not x.mirrors and x.window is None and self._mirrors
        if not can_crop or len(sizes) != 3 or sizes[2] != x.shape[2]:
            return None
        if any(isinstance(step, row_gather.RowStep) and step.value.ndim for step in x.steps or ()):
            return None
        if not all(isinstance(start, _ScalarVariable) for start in starts[:2]):
            return None
        return x._replace(shape=sizes, window=(sizes, tuple(s.variable for s in starts[:2])))

    def visit_select(
        self, equation: Any, choice: _Value, plain: _Value, mirrored: _Value
    ) -> _Value | None:
        """Handle the choice between an image and its mirror image."""
        if not isinstance(choice, _ScalarVariable) or not isinstance(plain, AffineMap):
            return None
        if equation.invars[0].aval.dtype != np.bool_:
            return None
        if (
            not isinstance(mirrored, AffineMap)
            or not mirrored.mirrors
            or mirrored.mirrors[-1][1] is not None
        ):
            return None
        same = mirrored.steps is plain.steps and mirrored.window is plain.window
        if mirrored[:2] != plain[:2] or not same:
            return None
        axis = mirrored.mirrors[-1][0]
        if mirrored.mirrors[:-1] != plain.mirrors or any(flag is None for _, flag in plain.mirrors):
            return None
        return plain._replace(mirrors=(*plain.mirrors, (axis, choice.variable)))

    def visit_cast(self, equation: Any, x: _Value) -> _Value | None:
        old_dtype, new_dtype = equation.invars[0].aval.dtype, equation.params["new_dtype"]
        if old_dtype == new_dtype:
            return x
        if isinstance(x, _ScalarVariable):
            return None
        if not isinstance(x, AffineMap):
            return x.astype(new_dtype)
        is_float_cast = (
            x.steps is None and new_dtype == _FLOAT32 and old_dtype.name in row_gather.TYPES
        )
        return x._replace(steps=()) if is_float_cast else None

    def visit_reshape(self, equation: Any, x: Any) -> _Value | None:
        if isinstance(x, _ScalarVariable):
            return x if equation.outvars[0].aval.size == 1 else None
        shape, old_shape = equation.outvars[0].aval.shape, x.shape
        if isinstance(x, AffineMap) and not x.is_constant and shape != old_shape:
            return None
        if math.prod(shape) != math.prod(old_shape):
            return None
        if not isinstance(x, AffineMap):
            return x.reshape(shape)
        keeps_batch_axis = not self._batched or shape[:1] == old_shape[:1]
        return x._replace(shape=shape) if keeps_batch_axis else None

    def visit_broadcast(self, equation: Any, x: _Value) -> _Value | None:
        if isinstance(x, _ScalarVariable):
            return x
        if isinstance(x, AffineMap):
            return self.visit_reshape(equation, x)
        # Axes of size 1 need not be expanded, because the operations broadcast.
        sizes = [1] * len(equation.outvars[0].aval.shape)
        for axis, size in zip(equation.params["broadcast_dimensions"], x.shape, strict=True):
            sizes[axis] = size
        return x.reshape(sizes)

    def visit_arithmetic(self, equation: Any, first: _Value, second: _Value) -> _Value | None:
        name = equation.primitive.name
        affine_map, value = first, second
        if isinstance(second, AffineMap):
            affine_map, value = second, first
            name = {"sub": "sub from", "div": "div into"}.get(name, name)
        if not isinstance(affine_map, AffineMap) or not isinstance(
            value, (np.ndarray, _ScalarVariable)
        ):
            return None
        if any(flag is None for _, flag in affine_map.mirrors):
            return None
        result = equation.outvars[0].aval
        if result.dtype != _FLOAT32 or result.shape != affine_map.shape:
            return None
        if isinstance(value, _ScalarVariable):
            return affine_map._replace(
                steps=(*(affine_map.steps or ()), ComputedStep(name, value.variable))
            )
        if not affine_map.is_constant and value.size != 1:
            return None
        if value.size == 1:
            value = value.reshape(())
        else:
            row = result.shape
            if self._batched:
                if value.ndim == len(row) and value.shape[0] != 1:
                    return None
                row, value = (
                    row[1:],
                    value.reshape(value.shape[1:] if value.ndim == len(row) else value.shape),
                )
            value = np.broadcast_to(value, row).reshape(-1)
        # The kernel needs contiguous memory of its own; a scalar must remain a scalar.
        step = row_gather.RowStep(name, np.array(value, _FLOAT32, order="C"))
        steps = (*(affine_map.steps or ()), step)
        return affine_map._replace(steps=steps)

    def visit_negation(self, equation: Any, x: _Value) -> _Value | None:
        if not isinstance(x, AffineMap) or equation.outvars[0].aval.dtype != _FLOAT32:
            return None
        if any(flag is None for _, flag in x.mirrors):
            return None
        step = row_gather.RowStep("sub from", np.asarray(-0.0, _FLOAT32))
        return x._replace(steps=(*(x.steps or ()), step))


_RULES: dict[str, Callable[..., Any]] = {
    "convert_element_type": _AffineSearch.visit_cast,
    "reshape": _AffineSearch.visit_reshape,
    "squeeze": _AffineSearch.visit_reshape,
    "broadcast_in_dim": _AffineSearch.visit_broadcast,
    "neg": _AffineSearch.visit_negation,
    "dynamic_slice": _AffineSearch.visit_dynamic_slice,
    "rev": _AffineSearch.visit_reverse,
    "select_n": _AffineSearch.visit_select,
    **dict.fromkeys(("add", "sub", "mul", "div"), _AffineSearch.visit_arithmetic),
}
