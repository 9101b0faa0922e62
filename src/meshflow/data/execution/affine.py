"""Maps that scale numbers: casts to float32 and operations with constants, found in a traced function.

A result that is such an affine map of one of the function's arguments is computed while the elements are
gathered, in one pass over memory, and rounded after every operation as TensorFlow does. (XLA multiplies
by the reciprocal of a constant divisor, and fuses products with sums.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.core.tracing.trace import Traced
from meshflow.core.values.tensor import Tensor
from meshflow.data import structure
from meshflow.data.execution.batched_gather import LeafGather
from meshflow.data.execution.on_cpu import compiled_for_cpu
from meshflow.environment.jax_internals import jex_core
from meshflow.kernels import row_gather
from meshflow.passes.sub_jaxprs import INLINED

__all__ = ["AffineMap", "AffineMaps", "find"]

_FLOAT = np.dtype(np.float32)


class ComputedStep(NamedTuple):
    """An operation with a number that the program computes for each element.

    Attributes:
      operation: one of `rows.OPERATIONS`.
      variable: the number's variable.
    """

    operation: str
    variable: Any


class AffineMap(NamedTuple):
    """How a result follows from one argument.

    Attributes:
      leaf: the argument's number.
      shape: the result's shape (without the first dimension of batches); None for the argument's own.
      steps: what is done after a cast to float32, `rows.Step` or `ComputedStep`; None for an argument as it is.
      mirrors: the axes along which it is reversed in the end, each where a bool variable of the program
        is true.
      window: which part is taken at first: its sizes, and variables that say where it begins.
    """

    leaf: int
    shape: tuple[int, ...] | None
    steps: tuple[Any, ...] | None
    mirrors: tuple[tuple[int, Any], ...] = ()
    window: tuple[tuple[int, ...], tuple[Any, ...]] | None = None

    @property
    def plain(self) -> bool:
        """Whether it is the same for all elements."""
        alike = all(isinstance(step, row_gather.Step) for step in self.steps or ())
        return alike and not self.mirrors and self.window is None

    def is_like(self, other: AffineMap | None) -> bool:
        """Whether another one does the same."""
        if other is None or self[:2] != other[:2] or (self.steps is None) != (other.steps is None):
            return False
        mine, others = self.steps or (), other.steps or ()
        return len(mine) == len(others) and all(
            a.operation == b.operation and np.array_equal(a.value, b.value)
            for a, b in zip(mine, others, strict=True)
        )


def find(traced: Traced, batched: bool = False, mirrors: bool = False) -> list[AffineMap | None]:
    """The affine map of every result; None where it is none.

    Args:
      traced: a function of elements.
      batched: whether they are batches of any size, which is the first dimension of all.
      mirrors: whether they may be mirrored.
    """
    jaxpr = traced.closed.jaxpr
    count = len(jaxpr.invars) - len(traced.captures)
    leaves, captured = jaxpr.invars[:count], jaxpr.invars[count:]
    known: dict[Any, Any] = {v: AffineMap(i, v.aval.shape, None) for i, v in enumerate(leaves)}
    for variable, capture in zip(captured, traced.captures, strict=True):
        # Variables may change.
        if type(capture) is Tensor and not isinstance(capture._value, jax.core.Tracer):
            known[variable] = np.asarray(capture._value)
    for variable, constant in zip(jaxpr.constvars, traced.closed.consts, strict=True):
        known[variable] = np.asarray(constant)
    _Search(known, batched, mirrors).follow(jaxpr)
    results: list[AffineMap | None] = []
    for variable in jaxpr.outvars[: traced.count]:
        found = None if isinstance(variable, jex_core.Literal) else known.get(variable)
        if not isinstance(found, AffineMap) or any(given is None for _, given in found.mirrors):
            results.append(None)
            continue
        whole: tuple[int, ...] = found.shape or ()
        own = whole == leaves[found.leaf].aval.shape
        shape = None if own else whole[1:] if batched else whole
        results.append(found._replace(shape=shape))
    return results


class AffineMaps:
    """How the results of a function of many elements are computed when some of them are affine maps.

    Args:
      traced: the function.
      found: the affine map of every result, None for those left to the compiled function.

    Attributes:
      wanted: what must be taken from the arguments.
    """

    def __init__(self, traced: Traced, found: list[AffineMap | None]) -> None:
        self._traced = traced
        self._others = [i for i, affine_map in enumerate(found) if affine_map is None]
        self._needed = arguments_of(traced, self._others)
        self._found = [affine_map for affine_map in found if affine_map is not None]
        self.wanted = [*self._found, *(AffineMap(i, None, None) for i in self._needed)]
        self._program: Any = None

    def of(self, leaves: list[Any]) -> list[Any]:
        """The results for stacked arguments."""
        return self.finished(
            [
                LeafGather(leaves[affine_map.leaf], affine_map.steps, affine_map.shape).all()
                for affine_map in self.wanted
            ]
        )

    def finished(self, arrays: list[Any]) -> list[Any]:
        """The results, from what was wanted."""
        split = len(self._found)
        results = iter(arrays[:split])
        if not self._others:
            return list(results)
        computed = iter(self._computed(arrays[split:], len(arrays[0])))
        others = set(self._others)
        return [next(computed if i in others else results) for i in range(self._traced.count)]

    @property
    def are_all(self) -> bool:
        """Whether what is wanted are the results."""
        return not self._others

    def rebuilt(self, arrays: list[Any]) -> Any:
        """The results of one element in their structure."""
        return structure.to_arrays(self._traced.rebuild(arrays))

    def _computed(self, arrays: list[Any], count: int) -> list[Any]:
        """The results that are none."""
        if self._program is None:

            def others(leaves: list[Any], captures: list[Any]) -> list[Any]:
                results = self._traced.arrays(leaves, captures)
                return [results[i] for i in self._others]

            self._program = compiled_for_cpu(jax.vmap(others, in_axes=(0, None)))
        leaves = []
        given = dict(zip(self._needed, arrays, strict=True))
        for number, aval in enumerate(self._traced.closed.in_avals):
            if number >= len(self._traced.closed.in_avals) - len(self._traced.captures):
                break
            # Arguments that only affine maps need are not looked at.
            nothing = np.broadcast_to(np.zeros((), aval.dtype), (count, *aval.shape))
            leaves.append(given.get(number, nothing))
        results = self._program(leaves, [c._value for c in self._traced.captures])
        return [np.asarray(r) for r in results]


def arguments_of(traced: Traced, results: Sequence[int]) -> list[int]:
    """Which arguments some results depend on."""
    jaxpr = traced.closed.jaxpr
    needed = {
        jaxpr.outvars[i] for i in results if not isinstance(jaxpr.outvars[i], jex_core.Literal)
    }
    for equation in reversed(jaxpr.eqns):
        if needed & set(equation.outvars):
            needed |= {v for v in equation.invars if not isinstance(v, jex_core.Literal)}
    leaves = jaxpr.invars[: len(jaxpr.invars) - len(traced.captures)]
    return [i for i, variable in enumerate(leaves) if variable in needed]


class _Scalar(NamedTuple):
    """A number or bool that the program computes.

    Attributes:
      variable: its variable.
    """

    variable: Any


class _Search:
    """Follows affine maps and constants through a program.

    Args:
      known: what variables are: an `AffineMap` with its whole shape, or a constant; more are added.
      batched: whether the first dimension is that of a batch.
      mirrors: whether they may be mirrored.
    """

    def __init__(self, known: dict[Any, Any], batched: bool, mirrors: bool = False) -> None:
        self._known, self._batched, self._mirrors = known, batched, mirrors
        self._chooses = mirrors

    def follow(self, jaxpr: Any) -> None:
        """Finds what the results of a program's equations are."""
        for equation in jaxpr.eqns:
            operands = [self._operand(v) for v in equation.invars]
            if equation.primitive.name in INLINED and self._mirrors:
                self._call(equation, operands)
                continue
            rule = _RULES.get(equation.primitive.name)
            if rule is not None and not any(operand is None for operand in operands):
                found = rule(self, equation, *operands)
                if found is not None:
                    self._known[equation.outvars[0]] = found

    def _operand(self, variable: Any) -> Any:
        if isinstance(variable, jex_core.Literal):
            return np.asarray(variable.val)
        found = self._known.get(variable)
        aval = variable.aval
        if found is None and self._chooses and aval.size == 1:
            return _Scalar(variable)
        return found

    def _call(self, equation: Any, operands: list[Any]) -> None:
        """Follows a program inside the program, which may have been called before."""
        inner = equation.params["jaxpr"]
        known = zip(inner.jaxpr.invars, operands, strict=True)
        search = _Search({v: o for v, o in known if o is not None}, self._batched, True)
        search._chooses = False  # its variables mean nothing outside
        search.follow(inner.jaxpr)
        for variable, result in zip(equation.outvars, inner.jaxpr.outvars, strict=True):
            found = None if isinstance(result, jex_core.Literal) else search._known.get(result)
            if found is not None:
                self._known[variable] = found

    def reverse(self, equation: Any, x: Any) -> Any:
        axes = equation.params["dimensions"]
        if not self._mirrors or not isinstance(x, AffineMap) or len(axes) != 1:
            return None
        # Mirrored for sure; `select` says when.
        return x._replace(mirrors=(*x.mirrors, (axes[0], None)))

    def part(self, equation: Any, x: Any, *starts: Any) -> Any:
        """A part of an image, with all its channels."""
        sizes = equation.params["slice_sizes"]
        known = isinstance(x, AffineMap) and not x.mirrors and x.window is None and self._mirrors
        if not known or len(sizes) != 3 or sizes[2] != x.shape[2]:
            return None
        if any(isinstance(step, row_gather.Step) and step.value.ndim for step in x.steps or ()):
            return None
        if not all(isinstance(start, _Scalar) for start in starts[:2]):
            return None
        return x._replace(shape=sizes, window=(sizes, tuple(s.variable for s in starts[:2])))

    def select(self, equation: Any, choice: Any, no: Any, yes: Any) -> Any:
        if not isinstance(choice, _Scalar) or not isinstance(no, AffineMap):
            return None
        if equation.invars[0].aval.dtype != np.bool_:
            return None
        if not isinstance(yes, AffineMap) or not yes.mirrors or yes.mirrors[-1][1] is not None:
            return None
        same = yes.steps is no.steps and yes.window is no.window
        if yes[:2] != no[:2] or not same:
            return None
        axis = yes.mirrors[-1][0]
        alike = yes.mirrors[:-1] == no.mirrors and all(given is not None for _, given in no.mirrors)
        return no._replace(mirrors=(*no.mirrors, (axis, choice.variable))) if alike else None

    def cast(self, equation: Any, x: Any) -> Any:
        own, wanted = equation.invars[0].aval.dtype, equation.params["new_dtype"]
        if own == wanted:
            return x
        if isinstance(x, _Scalar):
            return None
        if not isinstance(x, AffineMap):
            return x.astype(wanted)
        fits = x.steps is None and wanted == _FLOAT and own.name in row_gather.TYPES
        return x._replace(steps=()) if fits else None

    def reshape(self, equation: Any, x: Any) -> Any:
        if isinstance(x, _Scalar):
            return x if equation.outvars[0].aval.size == 1 else None
        shape, own = equation.outvars[0].aval.shape, x.shape
        if isinstance(x, AffineMap) and not x.plain and shape != own:
            return None
        if math.prod(shape) != math.prod(own):
            return None
        if not isinstance(x, AffineMap):
            return x.reshape(shape)
        whole = not self._batched or shape[:1] == own[:1]
        return x._replace(shape=shape) if whole else None

    def broadcast(self, equation: Any, x: Any) -> Any:
        if isinstance(x, _Scalar):
            return x
        if isinstance(x, AffineMap):
            return self.reshape(equation, x)
        # Sizes of one are left as they are: operations broadcast.
        sizes = [1] * len(equation.outvars[0].aval.shape)
        for place, size in zip(equation.params["broadcast_dimensions"], x.shape, strict=True):
            sizes[place] = size
        return x.reshape(sizes)

    def operate(self, equation: Any, first: Any, second: Any) -> Any:
        name = equation.primitive.name
        affine_map, value = first, second
        if isinstance(second, AffineMap):
            affine_map, value = second, first
            name = {"sub": "sub from", "div": "div into"}.get(name, name)
        if not isinstance(affine_map, AffineMap) or not isinstance(value, (np.ndarray, _Scalar)):
            return None
        if any(given is None for _, given in affine_map.mirrors):
            return None
        result = equation.outvars[0].aval
        if result.dtype != _FLOAT or result.shape != affine_map.shape:
            return None
        if isinstance(value, _Scalar):
            return affine_map._replace(
                steps=(*(affine_map.steps or ()), ComputedStep(name, value.variable))
            )
        if not affine_map.plain and value.size != 1:
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
        # Own memory, side by side, and a scalar stays one.
        step = row_gather.Step(name, np.array(value, _FLOAT, order="C"))
        steps = (*(affine_map.steps or ()), step)
        return affine_map._replace(steps=steps)

    def negate(self, equation: Any, x: Any) -> Any:
        if not isinstance(x, AffineMap) or equation.outvars[0].aval.dtype != _FLOAT:
            return None
        if any(given is None for _, given in x.mirrors):
            return None
        step = row_gather.Step("sub from", np.asarray(-0.0, _FLOAT))
        return x._replace(steps=(*(x.steps or ()), step))


_RULES: dict[str, Callable[..., Any]] = {
    "convert_element_type": _Search.cast,
    "reshape": _Search.reshape,
    "squeeze": _Search.reshape,
    "broadcast_in_dim": _Search.broadcast,
    "neg": _Search.negate,
    "dynamic_slice": _Search.part,
    "rev": _Search.reverse,
    "select_n": _Search.select,
    **dict.fromkeys(("add", "sub", "mul", "div"), _Search.operate),
}
