"""Fusion of products and squares into the sums over leading axes that read them, and of the statistics of rows.

The handler of such sums is a boundary of XLA's fusion: without the pass, the terms of the statistics and
gradients of batch normalization would be written to memory and read again. Means and variances of the rows of a
program's argument, as in the layer normalization of a prediction, take XLA several times as long as the handler. XLA
fuses other sums of rows with the operations before them, which is faster.
"""

from __future__ import annotations

import numpy as np

from meshflow.environment.types import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from meshflow.kernels.column_sums import choose_handler, column_sums_p
from meshflow.passes.convert_folding import find_narrow_source
from meshflow.passes.jaxprs import get_aval, map_consumers, map_producers, rewrite_equations


def fuse_column_sums(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Fuse terms of sums; return the same object if there are none."""
    return rewrite_equations(closed, _fuse_in_jaxpr, ("reduce_sum",))


def _fuse_in_jaxpr(jaxpr: Jaxpr, eqns: list[JaxprEqn]) -> list[JaxprEqn]:
    producers, consumers = map_producers(eqns), map_consumers(jaxpr, eqns)
    subtractions = (e.invars[0] for e in eqns if e.primitive.name == "sub")
    minuends = set(jaxpr.invars) & {v for v in subtractions if not isinstance(v, Literal)}
    return [_fuse_terms(eqn, producers, consumers, minuends) or eqn for eqn in eqns]


def _fuse_terms(
    total: JaxprEqn,
    producers: dict[Atom, JaxprEqn],
    consumers: dict[Atom, list[int]],
    minuends: set[Var],
) -> JaxprEqn | None:
    """Return a sum fused with its terms; None if it has other operands or no handler.

    `minuends` are the arguments of the program from which others are subtracted.
    """
    if total.primitive.name != "reduce_sum" or isinstance(total.invars[0], Literal):
        return None
    operand, axes = total.invars[0], tuple(total.params["axes"])
    result, rank = get_aval(total.outvars[0]), len(get_aval(operand).shape)
    is_by_row = len(axes) < rank and axes == tuple(range(rank - len(axes), rank))
    if not axes or not (is_by_row or axes == tuple(range(len(axes)))):
        return None
    if is_by_row and operand in minuends:
        match: tuple[str, list[Atom]] | None = ("elements", [operand])
    else:
        match = _match_terms(operand, axes, producers, consumers)
    if match is None:
        return None
    kind, operands = match
    if is_by_row and (kind == "products" or operands[0] not in minuends):
        return None
    # Vectors must be float32.
    count = 1 if kind == "squares" else len(operands)
    operands = [*(find_narrow_source(v, producers) for v in operands[:count]), *operands[count:]]
    parameters = {"terms": kind, "axes": axes}
    avals = [get_aval(v) for v in operands]
    if result.dtype != np.float32 or choose_handler(avals, [result], parameters) is None:
        return None
    return total.replace(primitive=column_sums_p, invars=operands, params=parameters)


def _match_terms(
    operand: Atom,
    axes: tuple[int, ...],
    producers: dict[Atom, JaxprEqn],
    consumers: dict[Atom, list[int]],
) -> tuple[str, list[Atom]] | None:
    """Return the kind of a sum's terms and their operands; None if they are of another kind."""
    terms, shape = producers.get(operand), get_aval(operand).shape
    if terms is None:
        return None
    kind, operands, shapes = "products", terms.invars, [shape, shape]
    if find_narrow_source(operand, producers) is not operand:
        kind, shapes = "elements", [shape]
    elif len(consumers[operand]) > 1:
        return None
    elif terms.primitive.name == "square":
        difference = None if isinstance(operands[0], Literal) else producers.get(operands[0])
        if difference is None or difference.primitive.name != "sub":
            return None
        kind, operands = "squares", difference.invars
        shapes[1] = tuple(1 if i in axes else size for i, size in enumerate(shape))
    elif terms.primitive.name != "mul":
        return None
    if any(isinstance(v, Literal) for v in operands):
        return None
    return (kind, list(operands)) if [get_aval(v).shape for v in operands] == shapes else None
