"""Hoisting of computations on constant operands, such as weights, out of a program.

For small batches, casting weights and packing them for a processor costs as much as the
computation. The hoisted program is run again only when the weights change. It contains only
equations that move or round values, so the results have the same bits.

The pass runs after all derivatives are taken, like the fusion passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from meshflow.environment.types import Atom, ClosedJaxpr, JaxprEqn, Literal, Var
from meshflow.kernels.epilogues import convolution_p
from meshflow.kernels.packing import packed_p, plan_packing
from meshflow.passes.jaxprs import extract_program, get_aval, select_variables

# Minimum bytes of a hoisted array, and maximum bytes of all hoisted arrays of a program.
_MIN_ARRAY_BYTES, _MAX_TOTAL_BYTES = 1 << 16, 1 << 30
# XLA does not materialize the results of these.
_FREE_PRIMITIVES = {"reshape", "squeeze", "expand_dims", "broadcast_in_dim", "slice"}
_EXACT_PRIMITIVES = _FREE_PRIMITIVES | {
    "convert_element_type",
    "transpose",
    "rev",
    "concatenate",
    packed_p.name,
}
_CONVOLUTIONS = ("conv_general_dilated", convolution_p.name)
_NO_EPILOGUE = {"epilogue": (), "flipped": False, "packed": False}


class HoistedProgram(NamedTuple):
    """The two parts of a program.

    Attributes:
      hoisted: Computes values that are the same in every call from constant operands of the
        program.
      operand_indices: Indices of the program's operands that `hoisted` takes.
      remainder: The program with the results of `hoisted` as additional last operands.
    """

    hoisted: ClosedJaxpr
    operand_indices: list[int]
    remainder: ClosedJaxpr


def hoist_constants(closed: ClosedJaxpr, constant_operands: Iterable[int]) -> HoistedProgram | None:
    """Split a program in two; return None if there is nothing to hoist.

    `constant_operands` are indices of the operands that are the same in every call.
    """
    jaxpr = closed.jaxpr
    indices = {jaxpr.invars[i]: i for i in constant_operands}
    eqns, constants = _pack_kernels(jaxpr.eqns, indices)
    needed = set(select_variables(jaxpr.outvars))
    rest: list[JaxprEqn] = []
    hoisted: list[Var] = []
    for eqn in reversed(eqns):
        is_constant = bool(eqn.outvars) and eqn.outvars[0] in constants
        if is_constant and not needed.intersection(eqn.outvars):
            continue
        if is_constant and eqn.primitive.name not in _FREE_PRIMITIVES:
            size = _count_bytes(eqn.outvars)
            if size >= _MIN_ARRAY_BYTES and size + _count_bytes(hoisted) <= _MAX_TOTAL_BYTES:
                hoisted += eqn.outvars
                continue
        rest.append(eqn)
        needed.update(select_variables(eqn.invars))
    if not hoisted:
        return None
    producers = _select_producers(eqns, hoisted)
    inputs = {v: None for eqn in producers for v in select_variables(eqn.invars) if v in indices}
    return HoistedProgram(
        extract_program(closed, [*inputs], hoisted, producers),
        [indices[v] for v in inputs],
        extract_program(closed, [*jaxpr.invars, *hoisted], jaxpr.outvars, rest[::-1]),
    )


def _pack_kernels(
    eqns: list[JaxprEqn], constants: Iterable[Var]
) -> tuple[list[JaxprEqn], set[Atom]]:
    """Pack constant kernels of convolutions; return all equations and the hoistable variables."""
    result: list[JaxprEqn] = []
    hoistable: set[Atom] = set(constants)
    producers: dict[Atom, JaxprEqn] = {}
    for eqn in eqns:
        if eqn.primitive.name in _CONVOLUTIONS and eqn.invars[1] in hoistable:
            eqn = _pack_kernel(eqn, producers, result, hoistable)
        elif eqn.primitive.name in _EXACT_PRIMITIVES and not eqn.effects:
            inputs = select_variables(eqn.invars)
            grows = sum(get_aval(v).size for v in eqn.outvars) > sum(
                get_aval(v).size for v in inputs
            )
            if inputs and not grows and hoistable.issuperset(inputs):
                hoistable.update(eqn.outvars)
        producers.update(dict.fromkeys(eqn.outvars, eqn))
        result.append(eqn)
    return result, hoistable


def _pack_kernel(
    conv: JaxprEqn, producers: dict[Atom, JaxprEqn], eqns: list[JaxprEqn], hoistable: set[Atom]
) -> JaxprEqn:
    """Make a convolution read a packed kernel; append the equation that packs it to `eqns`."""
    image, kernel, *rest = conv.invars
    # The packing rounds kernels itself, so skip a preceding conversion.
    producer = producers.get(kernel)
    if producer is not None and producer.primitive.name == "convert_element_type":
        (source,) = producer.invars
        kernel = source if get_aval(source).dtype == "float32" else kernel
    parameters = {**_NO_EPILOGUE, **conv.params}
    if parameters["packed"] or any(isinstance(v, Literal) for v in conv.invars):
        return conv
    operands = [get_aval(v) for v in (image, kernel, *rest)]
    plan = plan_packing(operands, get_aval(conv.outvars[0]), parameters)
    if plan is None:
        return conv
    aval, _ = packed_p.abstract_eval(kernel.aval, **plan)
    packed_kernel = Var(aval)
    hoistable.add(packed_kernel)
    eqns.append(
        conv.replace(primitive=packed_p, invars=[kernel], outvars=[packed_kernel], params=plan)
    )
    return conv.replace(
        primitive=convolution_p,
        invars=[image, kernel, *rest, packed_kernel],
        params={**parameters, "packed": True},
    )


def _select_producers(eqns: list[JaxprEqn], outputs: Iterable[Atom]) -> list[JaxprEqn]:
    """Return the equations on which the outputs depend."""
    needed, selected = set(outputs), []
    for eqn in reversed(eqns):
        if needed.intersection(eqn.outvars):
            selected.append(eqn)
            needed.update(select_variables(eqn.invars))
    return selected[::-1]


def _count_bytes(variables: Iterable[Atom]) -> int:
    avals = map(get_aval, variables)
    return sum(math.prod(aval.shape) * aval.dtype.itemsize for aval in avals)
