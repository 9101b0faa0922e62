"""Lowering rules of loops and branches to ONNX's Loop and If, with graphs that read outer tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.deployment.equations import Equation
from meshflow.onnx.lowering import Lowering, Tensor, is_number, lowers, onnx

__all__ = ["described"]


def described(tensor: Tensor) -> Any:
    """Return the `ValueInfoProto` of a tensor."""
    helper = onnx(".helper")
    sizes = [int(d) if is_number(d) else str(d) for d in tensor.shape]
    return helper.make_tensor_value_info(
        tensor.name, helper.np_dtype_to_tensor_dtype(tensor.dtype), sizes
    )


def _graph(
    l: Lowering, inner: Lowering, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> Any:
    # Outputs of a graph must be computed in it.
    results = [inner.emit("Identity", [t], t.shape, t.dtype) for t in outputs]
    name = l.names.new("graph")
    infos = [[described(t) for t in tensors] for tensors in (inputs, results)]
    return onnx(".helper").make_graph(inner.nodes, name, *infos)


def _fresh(l: Lowering, like: Sequence[Tensor]) -> list[Tensor]:
    return [l.new(t.shape, t.dtype, "state") for t in like]


@lowers("scan")
def _scan(l: Lowering, e: Equation) -> list[Tensor]:
    p, body = e.params, e.params["body"]
    num_consts, num_carry, length = p["num_consts"], p["num_carry"], p["length"]
    operands = [l.full(v) for v in e.inputs]
    carry, scanned = (
        operands[num_consts : num_consts + num_carry],
        operands[num_consts + num_carry :],
    )

    inner = Lowering(l.names, l)
    iteration, more = (l.new([], d, "state") for d in (np.int64, np.bool_))
    state = _fresh(l, carry)
    count = inner.size(length)
    last = inner.binary("Sub", count, inner.size(1))
    index = inner.binary("Sub", last, iteration) if p["reverse"] else iteration
    slices = [inner.emit("Gather", [t, index], t.shape[1:], t.dtype, axis=0) for t in scanned]
    results = inner.run(body, [*operands[:num_consts], *state, *slices])
    graph = _graph(l, inner, [iteration, more, *state], [more, *results])

    outputs = [l.new(v.shape, v.dtype, "Loop") for v in e.outputs]
    always = l.constant(np.asarray(True))
    l.add("Loop", [l.size(length), always, *carry], outputs, body=graph)
    return [
        *outputs[:num_carry],
        *(_turned(l, t) if p["reverse"] else t for t in outputs[num_carry:]),
    ]


def _turned(l: Lowering, tensor: Tensor) -> Tensor:
    minus_one, limit = l.integers([-1]), l.integers([np.iinfo(np.int64).min])
    inputs = [tensor, minus_one, limit, l.integers([0]), minus_one]
    return l.emit("Slice", inputs, tensor.shape, tensor.dtype)


@lowers("while")
def _loop(l: Lowering, e: Equation) -> list[Tensor]:
    p = e.params
    num_test, num_body = p["cond_nconsts"], p["body_nconsts"]
    operands = [l.full(v) for v in e.inputs]
    carry = operands[num_test + num_body :]
    (condition,) = l.run(p["test"], [*operands[:num_test], *carry])

    inner = Lowering(l.names, l)
    iteration, more = (l.new([], d, "state") for d in (np.int64, np.bool_))
    state = _fresh(l, carry)
    results = inner.run(p["body"], [*operands[num_test : num_test + num_body], *state])
    (next_condition,) = inner.run(p["test"], [*operands[:num_test], *results])
    graph = _graph(l, inner, [iteration, more, *state], [next_condition, *results])

    outputs = [l.new(v.shape, v.dtype, "Loop") for v in e.outputs]
    l.add("Loop", [None, condition, *carry], outputs, body=graph)
    return outputs


@lowers("cond")
def _branches(l: Lowering, e: Equation) -> list[Tensor]:
    index = l.cast(l.full(e.inputs[0]), np.int64)
    operands = [l.full(v) for v in e.inputs[1:]]
    return _choice(l, index, e, operands, 0)


def _choice(l: Lowering, index: Tensor, e: Equation, operands: list[Tensor], first: int) -> list[Tensor]:  # fmt: skip
    """Add an If that runs branch `first`, or a nested If over the branches after it."""
    programs = e.params["programs"]
    chosen, other = Lowering(l.names, l), Lowering(l.names, l)
    then = _graph(l, chosen, [], chosen.run(programs[first], operands))
    if first + 2 >= len(programs):
        results = other.run(programs[min(first + 1, len(programs) - 1)], operands)
    else:
        results = _choice(other, index, e, operands, first + 1)
    otherwise = _graph(l, other, [], results)
    outputs = [l.new(v.shape, v.dtype, "If") for v in e.outputs]
    test = l.binary("LessOrEqual", index, l.constant(np.asarray(first, np.int64)), np.bool_)
    l.add("If", [test], outputs, then_branch=then, else_branch=otherwise)
    return outputs
