"""A program in two: what it makes of values that stay from call to call, and the rest, which takes that.

Casts of weights and their rearrangement for a processor cost as much as the computation where batches are
small. Made apart, they are made once for as long as the weights stay. Only what moves and rounds numbers is
made apart, so that the results have the same bits.

Like fusing, it comes when no derivative is taken any more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from meshflow.environment.jax_internals import jex_core
from meshflow.kernels.epilogues import convolution_p
from meshflow.kernels.packing import packed_p, packing
from meshflow.passes.jaxprs import part, variables

__all__ = ["Hoisted", "hoist_constants"]

# Bytes of an array that is worth keeping, and of all that are kept for one program.
_LEAST, _MOST = 1 << 16, 1 << 30
# XLA does these without making an array.
_FREE = {"reshape", "squeeze", "expand_dims", "broadcast_in_dim", "slice"}
_EXACT = _FREE | {"convert_element_type", "transpose", "rev", "concatenate", packed_p.name}
_CONVOLUTIONS = ("conv_general_dilated", convolution_p.name)
_NO_EPILOGUE = {"epilogue": (), "flipped": False, "packed": False}


class Hoisted(NamedTuple):
    """The two parts of a program.

    Attributes:
      early: from some of the values that stay to others that stay as long.
      reads: the numbers of the operands that it takes.
      rest: the program with its results as the last operands.
    """

    early: jex_core.ClosedJaxpr
    reads: list[int]
    rest: jex_core.ClosedJaxpr


def hoist_constants(closed: jex_core.ClosedJaxpr, stays: Iterable[int]) -> Hoisted | None:
    """A program in two parts; None where there is nothing that should be made apart.

    Args:
      closed: a `ClosedJaxpr`.
      stays: the numbers of the operands that stay what they are.
    """
    jaxpr = closed.jaxpr
    numbers = {jaxpr.invars[i]: i for i in stays}
    eqns, early = _packed(jaxpr.eqns, numbers)
    needed = set(variables(jaxpr.outvars))
    rest: list[Any] = []
    found: list[Any] = []
    for eqn in reversed(eqns):
        moved = eqn.outvars[0] in early if eqn.outvars else False
        if moved and not needed.intersection(eqn.outvars):
            continue
        if moved and eqn.primitive.name not in _FREE:
            size = _bytes(eqn.outvars)
            if size >= _LEAST and size + _bytes(found) <= _MOST:
                found += eqn.outvars
                continue
        rest.append(eqn)
        needed.update(variables(eqn.invars))
    if not found:
        return None
    before = _makers(eqns, found)
    read = {v: None for eqn in before for v in variables(eqn.invars) if v in numbers}
    return Hoisted(
        part(closed, [*read], found, before),
        [numbers[v] for v in read],
        part(closed, [*jaxpr.invars, *found], jaxpr.outvars, rest[::-1]),
    )


def _packed(eqns: list[Any], staying: Iterable[Any]) -> tuple[list[Any], set[Any]]:
    """The equations, with convolutions that take packed kernels where these stay; what can be made early."""
    found: list[Any] = []
    early: set[Any] = set(staying)
    made: dict[Any, Any] = {}
    for eqn in eqns:
        if eqn.primitive.name in _CONVOLUTIONS and eqn.invars[1] in early:
            eqn = _with_packed_kernel(eqn, made, found, early)
        elif eqn.primitive.name in _EXACT and not eqn.effects:
            read = variables(eqn.invars)
            grows = sum(v.aval.size for v in eqn.outvars) > sum(v.aval.size for v in read)
            if read and not grows and early.issuperset(read):
                early.update(eqn.outvars)
        made.update(dict.fromkeys(eqn.outvars, eqn))
        found.append(eqn)
    return found, early


def _with_packed_kernel(conv: Any, made: Any, eqns: list[Any], early: set[Any]) -> Any:
    """A convolution that takes its kernel packed; the equation that packs it is added to the others."""
    image, kernel, *others = conv.invars
    # Kernels are rounded while they are packed.
    maker = made.get(kernel)
    if maker is not None and maker.primitive.name == "convert_element_type":
        (source,) = maker.invars
        kernel = source if source.aval.dtype == "float32" else kernel
    parameters = {**_NO_EPILOGUE, **conv.params}
    if parameters["packed"] or any(isinstance(v, jex_core.Literal) for v in conv.invars):
        return conv
    operands = [v.aval for v in (image, kernel, *others)]
    how = packing(operands, conv.outvars[0].aval, parameters)
    if how is None:
        return conv
    aval, _ = packed_p.abstract_eval(kernel.aval, **how)
    blob = type(kernel)(aval)
    early.add(blob)
    eqns.append(conv.replace(primitive=packed_p, invars=[kernel], outvars=[blob], params=how))
    return conv.replace(
        primitive=convolution_p,
        invars=[image, kernel, *others, blob],
        params={**parameters, "packed": True},
    )


def _makers(eqns: list[Any], wanted: Iterable[Any]) -> list[Any]:
    """The equations that some variables are made by."""
    needed, found = set(wanted), []
    for eqn in reversed(eqns):
        if needed.intersection(eqn.outvars):
            found.append(eqn)
            needed.update(variables(eqn.invars))
    return found[::-1]


def _bytes(variables: Iterable[Any]) -> int:
    return sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in variables)
