"""Bounds checks that a compiled function makes on its arguments before it runs.

A program that updates variables takes over their buffers, so it must not fail while it runs. The indices of an embedding
are arguments of a training step, or simple functions of them, which NumPy can check before the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.core.runtime.bounds_checks import (
    ERROR_OR_RECORD,
    NONE,
    RECORD,
    BoundsCheck,
    BoundsChecking,
    bounds_check_p,
)
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Atom, ClosedJaxpr, Jaxpr, JaxprEqn
from meshflow.passes.jaxprs import get_aval, rewrite_equations, summarize_jaxpr
from meshflow.passes.sub_jaxprs import INLINED_CALLS, find_regions

_Step = Callable[[np.ndarray], np.ndarray]
# The index of an argument, and functions that compute a value from it.
_Source = tuple[int, tuple[_Step, ...]]


class _EarlyCheck(NamedTuple):
    """A check of an argument.

    Attributes:
      argument: Index of the argument.
      steps: Functions that compute the checked values from the argument.
      integer_steps: The same for integers, without conversions: these do not make an invalid integer valid.
      check: The range.
      selects_integers: Whether the checked values of an argument of integers are some of its elements.
    """

    argument: int
    steps: tuple[_Step, ...]
    integer_steps: tuple[_Step, ...]
    check: BoundsCheck
    selects_integers: bool


def has_bounds_checks(closed: ClosedJaxpr) -> bool:
    """Check whether a program contains bounds checks."""
    return bounds_check_p.name in summarize_jaxpr(closed.jaxpr).primitives


class EarlyChecks:
    """The checks of a program that only depend on its arguments.

    Args:
      closed: The program.
      num_arguments: Number of arguments; the other inputs are captures.

    Attributes:
      leaves_checks: Whether the program from `replace_checks` contains checks.
    """

    leaves_checks = False

    def __init__(self, closed: ClosedJaxpr, num_arguments: int) -> None:
        self._checks: list[_EarlyCheck] = []
        # Results of the checks in the program.
        self._checked_results: set[Atom] = set()
        if has_bounds_checks(closed):
            sources: dict[Atom, _Source] = {
                v: (i, ()) for i, v in enumerate(closed.jaxpr.invars[:num_arguments])
            }
            self._search(closed.jaxpr, sources, False)
        # The range of the elements of an argument that passes several checks, such as those of all columns of a table.
        self._shared_ranges: dict[int, tuple[int, int]] = {}
        for argument in {check.argument for check in self._checks}:
            checks = [
                c.check for c in self._checks if c.argument == argument and c.selects_integers
            ]
            # Two symbolic sizes have no smaller one.
            is_known = all(isinstance(bound, int) for c in checks for bound in (*c.lower, *c.upper))
            if len(checks) > 1 and is_known:
                bounds = max(c.lower[0] for c in checks), min(c.upper[0] for c in checks)
                self._shared_ranges[argument] = bounds

    def __bool__(self) -> bool:
        return bool(self._checks)

    def _search(self, jaxpr: Jaxpr, sources: dict[Atom, _Source], is_shard: bool) -> None:
        for eqn in jaxpr.eqns:
            operands = [a for a in eqn.invars if not isinstance(a, jex_core.Literal)]
            if sources.keys().isdisjoint(operands):
                continue
            name = eqn.primitive.name
            if name in INLINED_CALLS or name == "shard_map":
                for region in find_regions(eqn):
                    inner: dict[Atom, _Source] = {
                        v: sources[eqn.invars[i]]
                        for v, (i, _) in zip(region.jaxpr.invars, region.feeds, strict=True)
                        if isinstance(eqn.invars[i], jex_core.Var) and eqn.invars[i] in sources
                    }
                    self._search(region.jaxpr, inner, is_shard or name == "shard_map")
            if len(operands) != 1 or len(eqn.outvars) != 1 or operands[0] not in sources:
                continue
            argument, steps = sources[operands[0]]
            if eqn.primitive is bounds_check_p:
                integer_steps = tuple(s for s in steps if not isinstance(s, _Conversion))
                check = eqn.params["check"]
                selects_integers = len(check.lower) == 1 and all(
                    isinstance(s, _Selection) for s in integer_steps
                )
                self._checks.append(
                    _EarlyCheck(argument, steps, integer_steps, check, selects_integers)
                )
                self._checked_results.add(eqn.outvars[0])
                sources[eqn.outvars[0]] = argument, steps
                continue
            step = None if is_shard and name != _CONVERT else _make_step(eqn)
            if step is not None:
                sources[eqn.outvars[0]] = argument, (*steps, step)

    def run(self, arrays: Sequence[Any]) -> None:
        """Check the arguments of a call.

        Args:
          arrays: Host arrays, or arrays of devices; only those that the host can read without a copy are checked.

        Raises:
          OpError: If an element is out of range.
        """
        if BoundsChecking.mode is False:
            return
        passed = {
            argument
            for argument, (lower, upper) in self._shared_ranges.items()
            if _is_in_range(arrays[argument], lower, upper)
        }
        for argument, steps, integer_steps, check, selects_integers in self._checks:
            array = arrays[argument]
            if not _is_on_host(array) or (selects_integers and argument in passed):
                continue
            values = np.asarray(array)
            if values.dtype.kind == "i":
                steps = integer_steps
            if steps:
                with np.errstate(all="ignore"):
                    for step in steps:
                        values = step(values)
            failure = check.find_failure(values)
            if failure is not None:
                raise failure

    def replace_checks(
        self, closed: ClosedJaxpr, is_checked: bool = True, must_not_fail: bool = True
    ) -> ClosedJaxpr:
        """Replace the checks in a program.

        Args:
          closed: The program.
          is_checked: Whether to remove the checks of arguments, which `run` makes.
          must_not_fail: Whether the others record failures.
        """
        self.leaves_checks = False

        def replace(eqn: JaxprEqn) -> JaxprEqn:
            mode = RECORD if must_not_fail else ERROR_OR_RECORD
            if is_checked and eqn.outvars[0] in self._checked_results:
                mode = NONE
            self.leaves_checks |= mode != NONE
            return eqn.replace(params={**eqn.params, "mode": mode})

        def rewrite(_: Jaxpr, eqns: list[JaxprEqn]) -> list[JaxprEqn]:
            checks = (e.primitive is bounds_check_p for e in eqns)
            return [replace(e) if is_check else e for e, is_check in zip(eqns, checks, strict=True)]

        return rewrite_equations(closed, rewrite, (bounds_check_p.name,))


def _is_in_range(array: Any, lower: int, upper: int) -> bool:
    """Check whether an array of integers on the host only has elements in a range."""
    if not _is_on_host(array) or array.dtype.kind != "i" or not array.size:
        return False
    values = np.asarray(array)
    return bool(values.min() >= lower and values.max() < upper)


def _is_on_host(array: Any) -> bool:
    if isinstance(array, np.ndarray):
        return True
    if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer):
        return False
    on_cpu = next(iter(array.devices())).platform == "cpu"
    return on_cpu and array.is_fully_addressable


class _Conversion:
    """A conversion to another dtype."""

    def __init__(self, dtype: np.dtype) -> None:
        self._dtype = dtype

    def __call__(self, array: np.ndarray) -> np.ndarray:
        return array.astype(self._dtype)


class _Selection:
    """A choice or another order of elements."""

    def __init__(self, function: _Step) -> None:
        self._function = function

    def __call__(self, array: np.ndarray) -> np.ndarray:
        return self._function(array)


_CONVERT = "convert_element_type"
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def _make_step(eqn: JaxprEqn) -> _Step | None:
    """Return the NumPy function for an equation with one operand that is not constant, or None."""
    name, params = eqn.primitive.name, eqn.params
    shape = get_aval(eqn.outvars[0]).shape
    if name == _CONVERT:
        return _Conversion(params["new_dtype"])
    if name in ("reshape", "squeeze", "expand_dims") and not params.get("dimensions_are_reversed"):
        return _Selection(lambda x: x.reshape(shape))
    if name == "broadcast_in_dim" and get_aval(eqn.outvars[0]).size == get_aval(eqn.invars[0]).size:
        return _Selection(lambda x: x.reshape(shape))
    if name in ("copy", "copy_p", "stop_gradient"):
        return _Selection(lambda x: x)
    if name == "transpose":
        order = params["permutation"]
        return _Selection(lambda x: x.transpose(order))
    if name == "rev":
        axes = params["dimensions"]
        return _Selection(lambda x: np.flip(x, axes))
    if name == "slice":
        steps = params["strides"] or (1,) * len(shape)
        bounds = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
        key = tuple(slice(*b) for b in bounds)
        return _Selection(lambda x: x[key])
    if name in _ARITHMETIC and len(eqn.invars) == 2:
        literals = [a.val if isinstance(a, jex_core.Literal) else None for a in eqn.invars]
        function, (first, second) = _ARITHMETIC[name], literals
        if first is None:
            return lambda x: function(x, np.asarray(second, x.dtype))
        return lambda x: function(np.asarray(first, x.dtype), x)
    return None
