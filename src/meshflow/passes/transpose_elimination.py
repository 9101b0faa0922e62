"""Products take in the transpositions around them.

The gradient of a product's operand is a product and a transposition of its result. Where the
operands change places instead, nothing is left to transpose, or whole rows are: a program that
reads an array across its rows, as an optimizer's update then does, takes ten times as long on a CPU.
"""

from __future__ import annotations

from typing import Any

from meshflow.environment.jax_internals import jex_core
from meshflow.passes.jaxprs import everywhere, makers, users

__all__ = ["eliminate_transposes"]


def eliminate_transposes(closed: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """The program with fewer transpositions; the same object when there is nothing to do.

    Args:
      closed: a `ClosedJaxpr`.
    """
    return everywhere(closed, _eliminated, ("dot_general",))


def _eliminated(jaxpr: Any, eqns: list[Any]) -> list[Any]:
    """The equations of one jaxpr with fewer transpositions."""
    made, uses = makers(eqns), users(jaxpr, eqns)
    found: list[Any] = list(eqns)
    for i, eqn in enumerate(eqns):
        if eqn.primitive.name != "dot_general" or eqn.params.get("out_sharding") is not None:
            continue
        product = found[i] = _read_before(eqn, made)
        readers = uses.get(product.outvars[0], [])
        after = found[readers[0]] if len(readers) == 1 and readers[0] < len(eqns) else None
        if after is not None and after.primitive.name == "transpose":
            found[i], found[readers[0]] = _swapped(product, after)
            made[after.outvars[0]] = found[readers[0]] or found[i]
    found = [eqn for eqn in found if eqn is not None]
    read = users(jaxpr, found)
    return [e for e in found if e.primitive.name != "transpose" or e.outvars[0] in read]


def _read_before(product: Any, made: dict[Any, Any]) -> Any:
    """A product that reads its operands as they were before a transposition, where it can."""
    operands = list(product.invars)
    sums, batches = (list(parts) for parts in product.params["dimension_numbers"])
    for side, operand in enumerate(operands):
        maker = None if isinstance(operand, jex_core.Literal) else made.get(operand)
        if maker is None or maker.primitive.name != "transpose":
            continue
        order = maker.params["permutation"]
        taken = {*sums[side], *batches[side]}
        free = [order[axis] for axis in range(len(order)) if axis not in taken]
        # The result has the free dimensions in their order.
        if free == sorted(free) and not isinstance(maker.invars[0], jex_core.Literal):
            operands[side] = maker.invars[0]
            sums[side] = tuple(order[axis] for axis in sums[side])
            batches[side] = tuple(order[axis] for axis in batches[side])
    if operands == list(product.invars):
        return product
    numbers = (tuple(sums), tuple(batches))
    return product.replace(invars=operands, params={**product.params, "dimension_numbers": numbers})


def _swapped(product: Any, after: Any) -> tuple[Any, Any]:
    """A product with its operands in the other order, and what is left of a transposition.

    Args:
      product: the equation.
      after: the transposition, the only one to read the product.

    Returns:
      Two equations, the second None where nothing is left; the two as they were where a row of the
      product is a row of the transposed result.
    """
    (left_sums, right_sums), (left_batch, right_batch) = product.params["dimension_numbers"]
    batch = len(left_batch)
    lefts = product.invars[0].aval.ndim - batch - len(left_sums)
    rights = product.invars[1].aval.ndim - batch - len(right_sums)
    order = after.params["permutation"]
    if not lefts or not rights or order[-1] != batch + lefts - 1:
        return product, after
    places = [
        *range(batch),
        *range(batch + rights, batch + rights + lefts),
        *range(batch, batch + rights),
    ]
    rest = tuple(places[axis] for axis in order)
    old, result = product.outvars[0], after.outvars[0]
    left = None
    if rest != tuple(range(len(rest))):
        shape = [0] * len(places)
        for axis, place in enumerate(places):
            shape[place] = old.aval.shape[axis]
        result = jex_core.Var(old.aval.update(shape=tuple(shape)))
        left = after.replace(invars=[result], params={**after.params, "permutation": rest})
    precision = product.params["precision"]
    if isinstance(precision, tuple):
        precision = precision[::-1]
    numbers = ((right_sums, left_sums), (right_batch, left_batch))
    swapped = product.replace(
        invars=product.invars[::-1],
        outvars=[result],
        params={**product.params, "dimension_numbers": numbers, "precision": precision},
    )
    return swapped, left
