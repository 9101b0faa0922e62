"""Loops and branches as LiteRT's WHILE and IF, whose programs are subgraphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.deployment.equations import Equation, Program, Value
from meshflow.lite.graph import Subgraph, Tensor
from meshflow.lite.lowering import Lowering, lowers

__all__: list[str] = []


def _inside(l: Lowering, name: str, like: Sequence[Tensor]) -> tuple[Lowering, list[Tensor]]:
    """A new subgraph whose inputs are as some tensors."""
    graph = Subgraph(f"{name}_{len(l.graph.subgraphs)}")
    l.graph.subgraphs.append(graph)
    graph.inputs = [Tensor(t.shape, t.dtype, f"{name}_{i}") for i, t in enumerate(like)]
    return Lowering(l.graph, graph), graph.inputs


def _number(l: Lowering) -> int:
    return next(i for i, g in enumerate(l.graph.subgraphs) if g is l.subgraph)


def _finished(l: Lowering, results: Sequence[Tensor]) -> int:
    """Ends a subgraph; its number. Constants, and results that come twice, are copied."""
    outputs: list[Tensor] = []
    for tensor in results:
        if tensor.data is not None or tensor in outputs:
            tensor = l.copy(tensor)
        outputs.append(tensor)
    l.subgraph.outputs = outputs
    l.subgraph.drop_unused()
    return _number(l)


def _while(l: Lowering, test: int, body: int, state: Sequence[Tensor]) -> list[Tensor]:
    results = [l.new(t.shape, t.dtype, "while") for t in state]
    l.add("WHILE", list(state), results, "WhileOptions", condSubgraphIndex=test, bodySubgraphIndex=body)  # fmt: skip
    return results


def _free(values: Sequence[Value]) -> list[int]:
    """Which operands of a loop's program are no constants."""
    return [i for i, v in enumerate(values) if v.constant is None]


@lowers("scan")
def _scan(l: Lowering, e: Equation) -> list[Tensor]:
    """A loop over the first dimension of some operands; its state has a counter and what it reads, too."""
    p, body = e.params, e.params["body"]
    consts, carried, length = p["num_consts"], p["num_carry"], p["length"]
    fixed = _free(e.inputs[:consts])
    first = [l.full(v) for v in e.inputs[consts : consts + carried]]
    rows = [l.full(v) for v in e.inputs[consts + carried :]]
    stacks = [_zeros(l, v) for v in e.outputs[carried:]]
    count = l.constant(np.int32(0))
    held = [l.full(e.inputs[i]) for i in fixed]
    state = [count, *first, *stacks, *held, *rows]

    inner, inputs = _inside(l, "body", state)
    i, rest = inputs[0], inputs[1:]
    carry, rest = rest[:carried], rest[carried:]
    piles, rest = rest[: len(stacks)], rest[len(stacks) :]
    keep, lines = rest[: len(held)], rest[len(held) :]
    place = i
    if p["reverse"]:
        last = inner.binary("SUB", inner.size(length), inner.constant(np.int32(1)))
        place = inner.binary("SUB", last, i)
    # The others were folded into the program.
    unused = [Tensor(v.shape, v.dtype) for v in body.inputs[:consts]]
    for number, tensor in zip(fixed, keep, strict=True):
        unused[number] = tensor
    row = [_row(inner, t, place) for t in lines]
    results = inner.run(body, [*unused, *carry, *row])
    filled = [_with_row(inner, t, r, place) for t, r in zip(piles, results[carried:], strict=True)]
    step = inner.binary("ADD", i, inner.constant(np.int32(1)))
    number = _finished(inner, [step, *results[:carried], *filled, *keep, *lines])

    tester, inputs = _inside(l, "test", state)
    more = tester.binary("LESS", inputs[0], tester.size(length))
    found = _while(l, _finished(tester, [more]), number, state)
    return found[1 : 1 + carried + len(stacks)]


def _zeros(l: Lowering, value: Value) -> Tensor:
    zero = np.zeros((1,) * len(value.shape), value.dtype)
    return l.broadcast(l.constant(zero), value.shape)


def _row(l: Lowering, tensor: Tensor, place: Tensor) -> Tensor:
    return l.emit("GATHER", [tensor, place], tensor.shape[1:], tensor.dtype, "GatherOptions", axis=0)  # fmt: skip


def _with_row(l: Lowering, tensor: Tensor, row: Tensor, place: Tensor) -> Tensor:
    zero = l.constant(np.int32(0))
    places = [place, *[zero] * len(row.shape)]
    start = l.emit("PACK", places, [len(places)], np.int32, "PackOptions", valuesCount=len(places), axis=0)  # fmt: skip
    one = l.reshape(row, (1, *row.shape))
    return l.emit("DYNAMIC_UPDATE_SLICE", [tensor, one, start], tensor.shape, tensor.dtype)


@lowers("while")
def _loop(l: Lowering, e: Equation) -> list[Tensor]:
    p = e.params
    of_test, of_body = p["cond_nconsts"], p["body_nconsts"]
    first = _free(e.inputs[:of_test])
    second = _free(e.inputs[of_test : of_test + of_body])
    held = [l.full(e.inputs[i]) for i in first]
    held += [l.full(e.inputs[of_test + i]) for i in second]
    state = [*(l.full(v) for v in e.inputs[of_test + of_body :]), *held]
    carried = len(state) - len(held)

    def run(name: str, program: Program, places: list[int], at: int, count: int) -> Any:
        inner, inputs = _inside(l, name, state)
        given = [Tensor(v.shape, v.dtype) for v in program.inputs[:count]]
        for number, tensor in zip(places, inputs[carried + at :], strict=False):
            given[number] = tensor
        return inner, inputs, inner.run(program, [*given, *inputs[:carried]])

    tester, _, more = run("test", p["test"], first, 0, of_test)
    test = _finished(tester, more)
    inner, inputs, results = run("body", p["body"], second, len(first), of_body)
    body = _finished(inner, [*results, *inputs[carried:]])
    return _while(l, test, body, state)[:carried]


@lowers("cond")
def _branches(l: Lowering, e: Equation) -> list[Tensor]:
    programs = e.params["programs"]
    which = l.cast(l.full(e.inputs[0]), np.int32)
    places = _free(e.inputs[1:])
    state = [l.full(e.inputs[1 + i]) for i in places]
    numbers = []
    for program in programs:
        inner, inputs = _inside(l, "branch", state)
        given = [Tensor(v.shape, v.dtype) for v in program.inputs]
        for number, tensor in zip(places, inputs, strict=True):
            given[number] = tensor
        numbers.append(_finished(inner, inner.run(program, given)))
    return _choice(l, which, numbers, state, e.outputs, 0)


def _choice(
    l: Lowering, which: Tensor, numbers: list[int], state: list[Tensor], values: Any, at: int
) -> list[Tensor]:
    """Branch `at` if it is asked for, otherwise one of those behind it."""
    results = [l.new(v.shape, v.dtype, "if") for v in values]
    test = l.binary("LESS_EQUAL", which, l.constant(np.int32(at)))
    if at + 2 >= len(numbers):
        other = numbers[min(at + 1, len(numbers) - 1)]
    else:
        inner, inputs = _inside(l, "branch", [which, *state])
        other = _finished(inner, _choice(inner, inputs[0], numbers, inputs[1:], values, at + 1))
        state = [which, *state]
        numbers[at] = _forwarding(l, numbers[at], state)
    l.add("IF", [test, *state], results, "IfOptions", thenSubgraphIndex=numbers[at], elseSubgraphIndex=other)  # fmt: skip
    return results


def _forwarding(l: Lowering, number: int, state: list[Tensor]) -> int:
    """A branch that takes the choice itself as one more operand."""
    graph = l.graph.subgraphs[number]
    graph.inputs.insert(0, Tensor((), np.dtype(np.int32), "which"))
    return number
