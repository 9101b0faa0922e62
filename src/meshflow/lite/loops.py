"""Lowering rules of loops and branches to LiteRT's WHILE and IF, with subgraphs for their bodies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshflow.deployment.equations import Equation, Program, Value
from meshflow.lite.graph import LiteTensor, Subgraph
from meshflow.lite.lowering import LiteLowering, register_rule


def _add_subgraph(
    l: LiteLowering, name: str, like: Sequence[LiteTensor]
) -> tuple[LiteLowering, list[LiteTensor]]:
    """Add a subgraph with inputs of the same shapes and dtypes as some tensors."""
    graph = Subgraph(f"{name}_{len(l.graph.subgraphs)}")
    l.graph.subgraphs.append(graph)
    graph.inputs = [LiteTensor(t.shape, t.dtype, f"{name}_{i}") for i, t in enumerate(like)]
    return LiteLowering(l.graph, graph), graph.inputs


def _find_subgraph_index(l: LiteLowering) -> int:
    return next(i for i, g in enumerate(l.graph.subgraphs) if g is l.subgraph)


def _finish_subgraph(l: LiteLowering, results: Sequence[LiteTensor]) -> int:
    """Set the outputs of a subgraph, copying constants and duplicates, and return its index."""
    outputs: list[LiteTensor] = []
    for tensor in results:
        if tensor.data is not None or tensor in outputs:
            tensor = l.copy(tensor)
        outputs.append(tensor)
    l.subgraph.outputs = outputs
    l.subgraph.remove_unused_operators()
    return _find_subgraph_index(l)


def _add_while(
    l: LiteLowering, condition: int, body: int, state: Sequence[LiteTensor]
) -> list[LiteTensor]:
    results = [l.new_tensor(t.shape, t.dtype, "while") for t in state]
    l.add("WHILE", list(state), results, "WhileOptions", condSubgraphIndex=condition, bodySubgraphIndex=body)  # fmt: skip
    return results


def _find_variable_operands(values: Sequence[Value]) -> list[int]:
    """Return the indices of the values that are not constants, which are folded into the body."""
    return [i for i, v in enumerate(values) if v.constant is None]


@register_rule("scan")
def _lower_scan(l: LiteLowering, e: Equation) -> list[LiteTensor]:
    """Lower a scan to a loop; its state also holds a counter, the stacked results and all operands."""
    p, body = e.params, e.params["body"]
    num_consts, num_carry, length = p["num_consts"], p["num_carry"], p["length"]
    const_indices = _find_variable_operands(e.inputs[:num_consts])
    carry_operands = [l.get_tensor(v) for v in e.inputs[num_consts : num_consts + num_carry]]
    scanned = [l.get_tensor(v) for v in e.inputs[num_consts + num_carry :]]
    stacks = [_make_zeros(l, v) for v in e.outputs[num_carry:]]
    count = l.get_constant(np.int32(0))
    const_operands = [l.get_tensor(e.inputs[i]) for i in const_indices]
    state = [count, *carry_operands, *stacks, *const_operands, *scanned]

    inner, inputs = _add_subgraph(l, "body", state)
    i, rest = inputs[0], inputs[1:]
    carry, rest = rest[:num_carry], rest[num_carry:]
    stacked, rest = rest[: len(stacks)], rest[len(stacks) :]
    const_tensors, scanned_tensors = rest[: len(const_operands)], rest[len(const_operands) :]
    index = i
    if p["reverse"]:
        last = inner.emit_binary("SUB", inner.get_size(length), inner.get_constant(np.int32(1)))
        index = inner.emit_binary("SUB", last, i)
    # Constants are folded into the body, so their placeholders are not read.
    body_inputs = [LiteTensor(v.shape, v.dtype) for v in body.inputs[:num_consts]]
    for position, tensor in zip(const_indices, const_tensors, strict=True):
        body_inputs[position] = tensor
    slices = [_gather_row(inner, t, index) for t in scanned_tensors]
    results = inner.lower_program(body, [*body_inputs, *carry, *slices])
    filled = [
        _update_row(inner, t, r, index) for t, r in zip(stacked, results[num_carry:], strict=True)
    ]
    step = inner.emit_binary("ADD", i, inner.get_constant(np.int32(1)))
    body_index = _finish_subgraph(inner, [step, *results[:num_carry], *filled, *const_tensors, *scanned_tensors])  # fmt: skip

    condition, inputs = _add_subgraph(l, "test", state)
    more = condition.emit_binary("LESS", inputs[0], condition.get_size(length))
    outputs = _add_while(l, _finish_subgraph(condition, [more]), body_index, state)
    return outputs[1 : 1 + num_carry + len(stacks)]


def _make_zeros(l: LiteLowering, value: Value) -> LiteTensor:
    zero = np.zeros((1,) * len(value.shape), value.dtype)
    return l.broadcast(l.get_constant(zero), value.shape)


def _gather_row(l: LiteLowering, tensor: LiteTensor, index: LiteTensor) -> LiteTensor:
    return l.emit("GATHER", [tensor, index], tensor.shape[1:], tensor.dtype, "GatherOptions", axis=0)  # fmt: skip


def _update_row(
    l: LiteLowering, tensor: LiteTensor, row: LiteTensor, index: LiteTensor
) -> LiteTensor:
    zero = l.get_constant(np.int32(0))
    indices = [index, *[zero] * len(row.shape)]
    start = l.emit("PACK", indices, [len(indices)], np.int32, "PackOptions", valuesCount=len(indices), axis=0)  # fmt: skip
    expanded_row = l.reshape(row, (1, *row.shape))
    return l.emit("DYNAMIC_UPDATE_SLICE", [tensor, expanded_row, start], tensor.shape, tensor.dtype)


@register_rule("while")
def _lower_while(l: LiteLowering, e: Equation) -> list[LiteTensor]:
    p = e.params
    num_test, num_consts = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
    test_indices = _find_variable_operands(e.inputs[:num_test])
    body_indices = _find_variable_operands(e.inputs[num_test:num_consts])
    consts = [l.get_tensor(e.inputs[i]) for i in test_indices]
    consts += [l.get_tensor(e.inputs[num_test + i]) for i in body_indices]
    state = [*(l.get_tensor(v) for v in e.inputs[num_consts:]), *consts]
    num_carry = len(state) - len(consts)

    def run(name: str, program: Program, indices: list[int], start: int, count: int) -> tuple[LiteLowering, list[LiteTensor], list[LiteTensor]]:  # fmt: skip
        inner, inputs = _add_subgraph(l, name, state)
        const_inputs = [LiteTensor(v.shape, v.dtype) for v in program.inputs[:count]]
        for index, tensor in zip(indices, inputs[num_carry + start :], strict=False):
            const_inputs[index] = tensor
        return inner, inputs, inner.lower_program(program, [*const_inputs, *inputs[:num_carry]])

    inner, _, results = run("test", p["test"], test_indices, 0, num_test)
    test = _finish_subgraph(inner, results)
    inner, inputs, results = run("body", p["body"], body_indices, len(test_indices), p["body_nconsts"])  # fmt: skip
    body = _finish_subgraph(inner, [*results, *inputs[num_carry:]])
    return _add_while(l, test, body, state)[:num_carry]


@register_rule("cond")
def _lower_cond(l: LiteLowering, e: Equation) -> list[LiteTensor]:
    programs = e.params["programs"]
    index = l.cast(l.get_tensor(e.inputs[0]), np.int32)
    operands = _find_variable_operands(e.inputs[1:])
    state = [l.get_tensor(e.inputs[1 + i]) for i in operands]
    subgraphs = []
    for program in programs:
        inner, inputs = _add_subgraph(l, "branch", state)
        branch_inputs = [LiteTensor(v.shape, v.dtype) for v in program.inputs]
        for position, tensor in zip(operands, inputs, strict=True):
            branch_inputs[position] = tensor
        subgraphs.append(_finish_subgraph(inner, inner.lower_program(program, branch_inputs)))
    return _add_if(l, index, subgraphs, state, e.outputs, 0)


def _add_if(
    l: LiteLowering, index: LiteTensor, subgraphs: list[int], state: list[LiteTensor], values: list[Value], first: int
) -> list[LiteTensor]:  # fmt: skip
    """Add an IF that runs branch `first`, or a nested IF over the branches after it."""
    results = [l.new_tensor(v.shape, v.dtype, "if") for v in values]
    test = l.emit_binary("LESS_EQUAL", index, l.get_constant(np.int32(first)))
    if first + 2 >= len(subgraphs):
        rest = subgraphs[min(first + 1, len(subgraphs) - 1)]
    else:
        inner, inputs = _add_subgraph(l, "branch", [index, *state])
        rest = _finish_subgraph(
            inner, _add_if(inner, inputs[0], subgraphs, inputs[1:], values, first + 1)
        )
        state = [index, *state]
        # Both subgraphs of an IF have the same inputs.
        l.graph.subgraphs[subgraphs[first]].inputs.insert(0, LiteTensor((), np.dtype(np.int32), "which"))  # fmt: skip
    l.add("IF", [test, *state], results, "IfOptions", thenSubgraphIndex=subgraphs[first], elseSubgraphIndex=rest)  # fmt: skip
    return results
