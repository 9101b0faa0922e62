"""Lowering rules of loops and branches to ONNX's Loop and If, with graphs that read outer tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.deployment.equations import Equation
from meshflow.onnx.lowering import OnnxLowering, OnnxTensor, is_static, load_onnx, register_rule


def make_value_info(tensor: OnnxTensor) -> Any:
    """Return the `ValueInfoProto` of a tensor."""
    helper = load_onnx(".helper")
    sizes = [int(d) if is_static(d) else str(d) for d in tensor.shape]
    return helper.make_tensor_value_info(
        tensor.name, helper.np_dtype_to_tensor_dtype(tensor.dtype), sizes
    )


def _make_graph(
    l: OnnxLowering,
    inner: OnnxLowering,
    inputs: Sequence[OnnxTensor],
    outputs: Sequence[OnnxTensor],
) -> Any:
    # Outputs of a graph must be computed in it.
    results = [inner.emit("Identity", [t], t.shape, t.dtype) for t in outputs]
    name = l.names.make_name("graph")
    infos = [[make_value_info(t) for t in tensors] for tensors in (inputs, results)]
    return load_onnx(".helper").make_graph(inner.nodes, name, *infos)


def _make_state_tensors(l: OnnxLowering, like: Sequence[OnnxTensor]) -> list[OnnxTensor]:
    return [l.new_tensor(t.shape, t.dtype, "state") for t in like]


@register_rule("scan")
def _lower_scan(l: OnnxLowering, e: Equation) -> list[OnnxTensor]:
    p, body = e.params, e.params["body"]
    num_consts, num_carry, length = p["num_consts"], p["num_carry"], p["length"]
    operands = [l.get_tensor(v) for v in e.inputs]
    carry, scanned = (
        operands[num_consts : num_consts + num_carry],
        operands[num_consts + num_carry :],
    )

    inner = OnnxLowering(l.names, l)
    iteration, more = (l.new_tensor([], d, "state") for d in (np.int64, np.bool_))
    state = _make_state_tensors(l, carry)
    count = inner.get_size(length)
    last = inner.emit_binary("Sub", count, inner.get_size(1))
    index = inner.emit_binary("Sub", last, iteration) if p["reverse"] else iteration
    slices = [inner.emit("Gather", [t, index], t.shape[1:], t.dtype, axis=0) for t in scanned]
    results = inner.lower_program(body, [*operands[:num_consts], *state, *slices])
    graph = _make_graph(l, inner, [iteration, more, *state], [more, *results])

    outputs = [l.new_tensor(v.shape, v.dtype, "Loop") for v in e.outputs]
    always = l.get_constant(np.asarray(True))
    l.add("Loop", [l.get_size(length), always, *carry], outputs, body=graph)
    return [
        *outputs[:num_carry],
        *(_reverse(l, t) if p["reverse"] else t for t in outputs[num_carry:]),
    ]


def _reverse(l: OnnxLowering, tensor: OnnxTensor) -> OnnxTensor:
    minus_one, limit = l.make_vector([-1]), l.make_vector([np.iinfo(np.int64).min])
    inputs = [tensor, minus_one, limit, l.make_vector([0]), minus_one]
    return l.emit("Slice", inputs, tensor.shape, tensor.dtype)


@register_rule("while")
def _lower_while(l: OnnxLowering, e: Equation) -> list[OnnxTensor]:
    p = e.params
    num_test, num_body = p["cond_nconsts"], p["body_nconsts"]
    operands = [l.get_tensor(v) for v in e.inputs]
    carry = operands[num_test + num_body :]
    (condition,) = l.lower_program(p["test"], [*operands[:num_test], *carry])

    inner = OnnxLowering(l.names, l)
    iteration, more = (l.new_tensor([], d, "state") for d in (np.int64, np.bool_))
    state = _make_state_tensors(l, carry)
    results = inner.lower_program(p["body"], [*operands[num_test : num_test + num_body], *state])
    (next_condition,) = inner.lower_program(p["test"], [*operands[:num_test], *results])
    graph = _make_graph(l, inner, [iteration, more, *state], [next_condition, *results])

    outputs = [l.new_tensor(v.shape, v.dtype, "Loop") for v in e.outputs]
    l.add("Loop", [None, condition, *carry], outputs, body=graph)
    return outputs


@register_rule("cond")
def _lower_cond(l: OnnxLowering, e: Equation) -> list[OnnxTensor]:
    index = l.cast(l.get_tensor(e.inputs[0]), np.int64)
    operands = [l.get_tensor(v) for v in e.inputs[1:]]
    return _add_if(l, index, e, operands, 0)


def _add_if(l: OnnxLowering, index: OnnxTensor, e: Equation, operands: list[OnnxTensor], first: int) -> list[OnnxTensor]:  # fmt: skip
    """Add an If that runs branch `first`, or a nested If over the branches after it."""
    programs = e.params["programs"]
    chosen, other = OnnxLowering(l.names, l), OnnxLowering(l.names, l)
    then = _make_graph(l, chosen, [], chosen.lower_program(programs[first], operands))
    if first + 2 >= len(programs):
        results = other.lower_program(programs[min(first + 1, len(programs) - 1)], operands)
    else:
        results = _add_if(other, index, e, operands, first + 1)
    otherwise = _make_graph(l, other, [], results)
    outputs = [l.new_tensor(v.shape, v.dtype, "If") for v in e.outputs]
    test = l.compute("le", index, l.get_constant(np.asarray(first, np.int64)))
    l.add("If", [test], outputs, then_branch=then, else_branch=otherwise)
    return outputs
