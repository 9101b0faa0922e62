"""Loops and branches as ONNX's Loop and If, whose graphs read what is around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.deployment.equations import Equation
from meshflow.onnx.lowering import Lowering, Tensor, is_number, lowers, onnx

__all__ = ["described"]


def described(tensor: Tensor) -> Any:
    """A tensor's name, dtype and shape as ONNX says them."""
    helper = onnx(".helper")
    sizes = [int(d) if is_number(d) else str(d) for d in tensor.shape]
    return helper.make_tensor_value_info(
        tensor.name, helper.np_dtype_to_tensor_dtype(tensor.dtype), sizes
    )


def _graph(
    l: Lowering, inner: Lowering, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> Any:
    # Results of a graph are made in it.
    results = [inner.emit("Identity", [t], t.shape, t.dtype) for t in outputs]
    name = l.names.new("graph")
    ends = [[described(t) for t in some] for some in (inputs, results)]
    return onnx(".helper").make_graph(inner.nodes, name, *ends)


def _fresh(l: Lowering, like: Sequence[Any]) -> list[Tensor]:
    return [l.new(t.shape, t.dtype, "state") for t in like]


@lowers("scan")
def _scan(l: Lowering, e: Equation) -> list[Tensor]:
    p, body = e.params, e.params["body"]
    consts, carried, length = p["num_consts"], p["num_carry"], p["length"]
    operands = [l.full(v) for v in e.inputs]
    first, rows = operands[consts : consts + carried], operands[consts + carried :]

    inner = Lowering(l.names, l)
    place, more = (l.new([], d, "state") for d in (np.int64, np.bool_))
    state = _fresh(l, first)
    count = inner.size(length)
    last = inner.binary("Sub", count, inner.size(1))
    at = inner.binary("Sub", last, place) if p["reverse"] else place
    row = [inner.emit("Gather", [t, at], t.shape[1:], t.dtype, axis=0) for t in rows]
    results = inner.run(body, [*operands[:consts], *state, *row])
    graph = _graph(l, inner, [place, more, *state], [more, *results])

    outputs = [l.new(v.shape, v.dtype, "Loop") for v in e.outputs]
    always = l.constant(np.asarray(True))
    l.add("Loop", [l.size(length), always, *first], outputs, body=graph)
    return [*outputs[:carried], *(_turned(l, t) if p["reverse"] else t for t in outputs[carried:])]


def _turned(l: Lowering, tensor: Tensor) -> Tensor:
    back, end = l.integers([-1]), l.integers([np.iinfo(np.int64).min])
    inputs = [tensor, back, end, l.integers([0]), back]
    return l.emit("Slice", inputs, tensor.shape, tensor.dtype)


@lowers("while")
def _loop(l: Lowering, e: Equation) -> list[Tensor]:
    p = e.params
    of_test, of_body = p["cond_nconsts"], p["body_nconsts"]
    operands = [l.full(v) for v in e.inputs]
    first = operands[of_test + of_body :]
    (begin,) = l.run(p["test"], [*operands[:of_test], *first])

    inner = Lowering(l.names, l)
    place, more = (l.new([], d, "state") for d in (np.int64, np.bool_))
    state = _fresh(l, first)
    results = inner.run(p["body"], [*operands[of_test : of_test + of_body], *state])
    (again,) = inner.run(p["test"], [*operands[:of_test], *results])
    graph = _graph(l, inner, [place, more, *state], [again, *results])

    outputs = [l.new(v.shape, v.dtype, "Loop") for v in e.outputs]
    l.add("Loop", [None, begin, *first], outputs, body=graph)
    return outputs


@lowers("cond")
def _branches(l: Lowering, e: Equation) -> list[Tensor]:
    which = l.cast(l.full(e.inputs[0]), np.int64)
    operands = [l.full(v) for v in e.inputs[1:]]
    return _choice(l, which, e, operands, 0)


def _choice(l: Lowering, which: Tensor, e: Equation, operands: Any, at: int) -> list[Tensor]:
    """Branch `at` if it is asked for, otherwise one of those behind it."""
    programs = e.params["programs"]
    chosen = Lowering(l.names, l)
    then = _graph(l, chosen, [], chosen.run(programs[at], operands))
    other = Lowering(l.names, l)
    if at + 2 >= len(programs):
        results = other.run(programs[min(at + 1, len(programs) - 1)], operands)
    else:
        results = _choice(other, which, e, operands, at + 1)
    otherwise = _graph(l, other, [], results)
    outputs = [l.new(v.shape, v.dtype, "If") for v in e.outputs]
    test = l.binary("LessOrEqual", which, l.constant(np.asarray(at, np.int64)), np.bool_)
    l.add("If", [test], outputs, then_branch=then, else_branch=otherwise)
    return outputs
