"""Losses read logits in the 16 bits that these were computed in, and give gradients in those.

Computed with is float32 as before: what a program converts to it, or from it, is converted on the
way from or to memory, where a conversion of its own would write and read the largest arrays of a
language model once more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.environment.jax_internals import jex_core
from meshflow.kernels.cross_entropy import gradient_p, loss_p
from meshflow.passes.jaxprs import everywhere, makers, users

__all__ = ["fold_converts"]

_CONVERT = "convert_element_type"


def fold_converts(closed: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """The program with fewer conversions around losses; the same object when there are none.

    Args:
      closed: a `ClosedJaxpr`.
    """
    return everywhere(closed, _folded, (loss_p.name, gradient_p.name))


def _folded(jaxpr: Any, eqns: list[Any]) -> list[Any]:
    """The equations of one jaxpr with fewer conversions."""
    made, uses = makers(eqns), users(jaxpr, eqns)
    found: list[Any] = list(eqns)
    for i, eqn in enumerate(eqns):
        if eqn.primitive not in (loss_p, gradient_p):
            continue
        logits, *rest = eqn.invars
        before = _before(logits, made)
        if before is not logits:
            found[i] = eqn.replace(invars=[before, *rest])
        readers = uses.get(eqn.outvars[0], [])
        after = eqns[readers[0]] if len(readers) == 1 and readers[0] < len(eqns) else None
        if eqn.primitive is gradient_p and after is not None and _folds(after):
            (result,) = after.outvars
            parameters = {**eqn.params, "result": result.aval.dtype}
            found[i] = found[i].replace(outvars=[result], params=parameters)
            found[readers[0]] = None
    return [eqn for eqn in found if eqn is not None]


def _folds(eqn: Any) -> bool:
    """Whether an equation rounds to bfloat16."""
    return eqn.primitive.name == _CONVERT and eqn.outvars[0].aval.dtype.name == "bfloat16"


def _before(atom: Any, made: dict[Any, Any]) -> Any:
    """A float32 value before it was widened from bfloat16, or itself."""
    maker = None if isinstance(atom, jex_core.Literal) else made.get(atom)
    if maker is None or maker.primitive.name != _CONVERT or atom.aval.dtype != np.float32:
        return atom
    before = maker.invars[0]
    narrow = not isinstance(before, jex_core.Literal) and before.aval.dtype.name == "bfloat16"
    return before if narrow else atom
