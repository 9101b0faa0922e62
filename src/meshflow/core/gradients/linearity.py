"""Check whether the results of a program are linear functions of some of its arguments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshflow.environment.inner_jaxprs import find_inner_jaxprs, to_open_jaxpr
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Atom, Jaxpr, Var
from meshflow.passes.jaxprs import get_aval

# Primitives that are linear in all of their operands together, in one of several operands, and in their
# first operand only.
_LINEAR = frozenset(
    [
        "add",
        "add_any",
        "broadcast_in_dim",
        "concatenate",
        "convert_element_type",
        "copy",
        "copy_p",
        "cumsum",
        "expand_dims",
        "neg",
        "pad",
        "reduce_sum",
        "reshape",
        "rev",
        "slice",
        "squeeze",
        "sub",
        "transpose",
    ]
)
_BILINEAR = frozenset(["conv_general_dilated", "dot_general", "mul"])
_LINEAR_IN_FIRST = frozenset(["div", "dynamic_slice", "gather"])
_CALLS = frozenset(["closed_call", "jit", "pjit"])


def is_linear(jaxpr: Jaxpr, indices: Sequence[int]) -> bool:
    """Check whether all results of a program are proportional to some of its arguments.

    Args:
      jaxpr: The program.
      indices: Indices of the arguments.

    Returns:
      True if they are. A program with other primitives than the usual linear ones is not recognized.
    """
    return all(_find_linear_results(jaxpr, [i in indices for i in range(len(jaxpr.invars))]))


def _find_linear_results(jaxpr: Jaxpr, is_argument: Sequence[bool]) -> list[bool]:
    """Return for each result whether it is linear; zero is."""
    linear = {v for v, known in zip(jaxpr.invars, is_argument, strict=True) if known}
    dependent, zeros = set(linear), set[Var]()

    def is_zero(atom: Atom) -> bool:
        if isinstance(atom, jex_core.Literal):
            return not np.any(atom.val)
        return atom in zeros

    def is_proportional(atom: Atom) -> bool:
        return is_zero(atom) or (not isinstance(atom, jex_core.Literal) and atom in linear)

    def depends(atom: Atom) -> bool:
        return not isinstance(atom, jex_core.Literal) and atom in dependent

    for eqn in jaxpr.eqns:
        name, operands = eqn.primitive.name, eqn.invars
        if name in _LINEAR and all(map(is_zero, operands)):
            zeros.update(eqn.outvars)
            continue
        if not any(map(depends, operands)):
            continue
        dependent.update(eqn.outvars)
        read = [v for v in operands if depends(v)]
        has_linear = all(map(is_proportional, read))
        if not has_linear or any(get_aval(v).dtype.kind in "iub" for v in eqn.outvars):
            continue
        if name in _CALLS:
            (inner,) = map(to_open_jaxpr, find_inner_jaxprs(eqn))
            found = _find_linear_results(inner, [is_proportional(v) for v in operands])
            linear.update(v for v, known in zip(eqn.outvars, found, strict=True) if known)
        elif (
            (name in _LINEAR and all(map(is_proportional, operands)))
            or (name in _BILINEAR and len(read) == 1)
            or (name in _LINEAR_IN_FIRST and read == operands[:1])
            or (
                name == "select_n"
                and all(map(is_proportional, operands[1:]))
                and not depends(operands[0])
            )
        ):
            linear.update(eqn.outvars)
    return [is_proportional(v) for v in jaxpr.outvars]
