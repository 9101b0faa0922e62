"""Absorption of transpositions into the products around them.

The gradient of a product's operand is a product followed by a transposition. Exchanging the
operands makes the transposition unnecessary, or leaves one that moves complete rows. A consumer
that reads an array across its rows, as an optimizer's update would, takes ten times as long on a
CPU.
"""

from typing import Any

from meshflow.environment.types import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from meshflow.passes.jaxprs import get_aval, map_consumers, map_producers, rewrite_equations


def eliminate_transposes(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Absorb transpositions into products; return the same object if there are none."""
    return rewrite_equations(closed, _eliminate_in_jaxpr, ("dot_general",))


def _eliminate_in_jaxpr(jaxpr: Jaxpr, eqns: list[JaxprEqn]) -> list[JaxprEqn]:
    producers, consumers = map_producers(eqns), map_consumers(jaxpr, eqns)
    result: list[Any] = list(eqns)
    for i, eqn in enumerate(eqns):
        if eqn.primitive.name != "dot_general" or _has_split_result(eqn):
            continue
        product = result[i] = _absorb_operand_transposes(eqn, producers)
        indices = consumers.get(product.outvars[0], [])
        consumer = result[indices[0]] if len(indices) == 1 and indices[0] < len(eqns) else None
        if consumer is not None and consumer.primitive.name == "transpose":
            result[i], result[indices[0]] = _swap_operands(product, consumer)
            producers[consumer.outvars[0]] = result[indices[0]] or result[i]
    result = [eqn for eqn in result if eqn is not None]
    read = map_consumers(jaxpr, result)
    return [e for e in result if e.primitive.name != "transpose" or e.outvars[0] in read]


def _has_split_result(product: JaxprEqn) -> bool:
    """Check whether a product has a sharding that depends on the order of its result's axes."""
    sharding = product.params.get("out_sharding")
    return sharding is not None and any(sharding.spec)


def _absorb_operand_transposes(product: JaxprEqn, producers: dict[Atom, JaxprEqn]) -> JaxprEqn:
    """Make a product read its operands before they are transposed, where possible."""
    operands = list(product.invars)
    sums, batches = (list(parts) for parts in product.params["dimension_numbers"])
    for side, operand in enumerate(operands):
        producer = None if isinstance(operand, Literal) else producers.get(operand)
        if producer is None or producer.primitive.name != "transpose":
            continue
        order = producer.params["permutation"]
        used = {*sums[side], *batches[side]}
        free = [order[axis] for axis in range(len(order)) if axis not in used]
        # The result contains the free dimensions in their order, so the transposition must not
        # reorder them.
        if free == sorted(free) and not isinstance(producer.invars[0], Literal):
            operands[side] = producer.invars[0]
            sums[side] = tuple(order[axis] for axis in sums[side])
            batches[side] = tuple(order[axis] for axis in batches[side])
    if operands == list(product.invars):
        return product
    numbers = (tuple(sums), tuple(batches))
    return product.replace(invars=operands, params={**product.params, "dimension_numbers": numbers})


def _swap_operands(product: JaxprEqn, transpose: JaxprEqn) -> tuple[JaxprEqn, JaxprEqn | None]:
    """Exchange the operands of a product, and shorten the transposition of its result.

    Returns:
      Two equations, the second None if it is unnecessary. Both are unchanged if rows of the product
      are rows of the transposed result.
    """
    (left_sums, right_sums), (left_batch, right_batch) = product.params["dimension_numbers"]
    batch = len(left_batch)
    lefts = get_aval(product.invars[0]).ndim - batch - len(left_sums)
    rights = get_aval(product.invars[1]).ndim - batch - len(right_sums)
    order = transpose.params["permutation"]
    if not lefts or not rights or order[-1] != batch + lefts - 1:
        return product, transpose
    permutation = [
        *range(batch),
        *range(batch + rights, batch + rights + lefts),
        *range(batch, batch + rights),
    ]
    rest = tuple(permutation[axis] for axis in order)
    old, result = product.outvars[0], transpose.outvars[0]
    remaining = None
    if rest != tuple(range(len(rest))):
        shape = [0] * len(permutation)
        for axis, position in enumerate(permutation):
            shape[position] = get_aval(old).shape[axis]
        result = Var(get_aval(old).update(shape=tuple(shape)))
        remaining = transpose.replace(
            invars=[result], params={**transpose.params, "permutation": rest}
        )
    precision = product.params["precision"]
    if isinstance(precision, tuple):
        precision = precision[::-1]
    numbers = ((right_sums, left_sums), (right_batch, left_batch))
    swapped = product.replace(
        invars=product.invars[::-1],
        outvars=[result],
        params={**product.params, "dimension_numbers": numbers, "precision": precision},
    )
    return swapped, remaining
