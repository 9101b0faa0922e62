"""Checks of integers in branches and loops that run for many rows at once.

A vectorized branch is computed for all rows, and the results are selected afterwards. So a check in the branch, for example
that an index is in range, would fail because of rows that take another branch. Here a check gets an allowed
value in place of those of such rows. In the same way, the body of a vectorized loop runs until the last row has finished.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from meshflow.core.runtime.bounds_checks import bounds_check_p
from meshflow.environment.jax_internals import count_scan_operands, jex_core
from meshflow.environment.types import Array, ClosedJaxpr, Jaxpr, JaxprEqn
from meshflow.passes.jaxprs import bind_equation
from meshflow.passes.sub_jaxprs import CALLS, INLINED_CALLS, find_regions


def make_row_function(
    closed: ClosedJaxpr, keeps_derivatives: bool = False
) -> Callable[..., list[Any]]:
    """Return a function that runs a program, and that `jax.vmap` may vectorize.

    Args:
      closed: The program.
      keeps_derivatives: Whether calls with derivatives of their own, such as `tf.while_loop`, keep them. The checks
        inside them then concern all rows.

    Example:
      >>> import jax, meshflow as tf, numpy as np
      >>> from meshflow.core.tracing.trace import trace
      >>> from meshflow.core.tracing.branch_checks import make_row_function
      >>> divide = lambda x: tf.cond(x > 0, lambda: 6 // x, lambda: -1)
      >>> program = trace(divide, (tf.TensorSpec([], tf.int32),)).closed_jaxpr
      >>> print(jax.vmap(make_row_function(program))(np.array([0, 3], np.int32))[0])
      [-1  2]
    """
    if not has_conditional_checks(closed.jaxpr):
        return jex_core.jaxpr_as_fun(closed)
    inlined = INLINED_CALLS if keeps_derivatives else CALLS
    return lambda *args: _RowProgram(inlined).run(closed, args, None)


def has_conditional_checks(jaxpr: Jaxpr) -> bool:
    """Return whether a branch or loop of a program contains a check."""
    return any(
        _has_checks(region.jaxpr)
        if eqn.primitive.name in ("cond", "while")
        else has_conditional_checks(region.jaxpr)
        for eqn in jaxpr.eqns
        for region in find_regions(eqn)
    )


def _has_checks(jaxpr: Jaxpr) -> bool:
    return any(
        eqn.primitive is bounds_check_p
        or any(_has_checks(region.jaxpr) for region in find_regions(eqn))
        for eqn in jaxpr.eqns
    )


class _RowProgram:
    """Interpreter of a program for one row.

    Args:
      inlined: Names of the calls that are replaced by their programs.
    """

    def __init__(self, inlined: frozenset[str]) -> None:
        self._inlined = inlined

    def run(self, program: ClosedJaxpr, args: Sequence[Any], is_taken: Array | None) -> list[Any]:
        """Run a program.

        Args:
          program: The program.
          args: Its arguments.
          is_taken: Bool scalar: whether the row uses the results; None if each row does.
        """
        env: dict[Any, Any] = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
        env.update(zip(program.jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, jex_core.Literal) else env[atom]

        for eqn in program.jaxpr.eqns:
            results = self._run_equation(eqn, [read(a) for a in eqn.invars], is_taken)
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(a) for a in program.jaxpr.outvars]

    def _run_equation(
        self, eqn: JaxprEqn, operands: list[Any], is_taken: Array | None
    ) -> list[Any]:
        name, params = eqn.primitive.name, eqn.params
        if eqn.primitive is bounds_check_p and is_taken is not None:
            lower = params["check"].lower or (1,)
            allowed = np.array(lower if len(lower) > 1 else lower[0], operands[0].dtype)
            operands = [jnp.where(is_taken, operands[0], allowed)]
        elif any(_has_checks(region.jaxpr) for region in find_regions(eqn)):
            if name == "cond":
                return self._run_branches(params["branches"], operands, is_taken)
            if name == "while":
                return self._run_loop(eqn, operands, is_taken)
            if name == "scan":
                return self._run_scan(eqn, operands, is_taken)
            if name in self._inlined:
                body = find_regions(eqn)[0]
                inner = jex_core.ClosedJaxpr(body.jaxpr, body.consts)
                return self.run(inner, operands, is_taken)
        return bind_equation(eqn, operands)

    @staticmethod
    def _combine(condition: Array, is_taken: Array | None) -> Array:
        return condition if is_taken is None else jnp.logical_and(condition, is_taken)

    def _run_branches(
        self, branches: Sequence[ClosedJaxpr], operands: list[Any], is_taken: Array | None
    ) -> list[Any]:
        index, *values = operands

        def make_branch(number: int) -> Callable[..., list[Any]]:
            is_selected = self._combine(index == number, is_taken)
            return lambda *args: self.run(branches[number], args, is_selected)

        results: list[Any] = lax.switch(
            index, [make_branch(i) for i in range(len(branches))], *values
        )
        return results

    def _run_loop(self, eqn: JaxprEqn, operands: list[Any], is_taken: Array | None) -> list[Any]:
        first, second = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        test_consts, body_consts = operands[:first], operands[first : first + second]

        def test(carry: list[Any]) -> Any:
            return self.run(eqn.params["cond_jaxpr"], [*test_consts, *carry], is_taken)[0]

        def run_body(carry: list[Any]) -> list[Any]:
            is_active = self._combine(test(carry), is_taken)
            return self.run(eqn.params["body_jaxpr"], [*body_consts, *carry], is_active)

        results: list[Any] = lax.while_loop(test, run_body, operands[first + second :])
        return results

    def _run_scan(self, eqn: JaxprEqn, operands: list[Any], is_taken: Array | None) -> list[Any]:
        params = eqn.params
        num_consts, num_carry = count_scan_operands(params)
        consts, carry = operands[:num_consts], operands[num_consts : num_consts + num_carry]

        def run_body(carry: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
            results = self.run(params["jaxpr"], [*consts, *carry, *row], is_taken)
            return results[:num_carry], results[num_carry:]

        last, rows = lax.scan(
            run_body,
            carry,
            operands[num_consts + num_carry :],
            length=params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
        return [*last, *rows]
