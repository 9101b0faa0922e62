"""Loops and branches of TensorFlow's graphs as XLA's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.saved_model.graph.attributes import (
    HostNeeded,
    Node,
    Sizes,
    is_known,
    is_words,
    on_host,
    traced,
)
from meshflow.saved_model.graph.ops.lists import TensorList

__all__ = ["CONTROL"]

# How often a list's element shape is looked for in what a loop puts into it.
_ROUNDS = 3


def _while(run: Any, node: Node, inputs: Sequence[Any]) -> list[Any]:
    if not run.host:
        return _compiled_loop(run, node, inputs)
    try:
        return _compiled_loop(run, node, inputs)
    except HostNeeded:
        condition, body = run.library[node["cond"]], run.library[node["body"]]
        values = list(inputs)
        while bool(np.all(on_host(run.call(condition, values)[0]))):
            values = run.call(body, values)
        return values


def _compiled_loop(run: Any, node: Node, inputs: Sequence[Any]) -> list[Any]:
    condition, body = run.library[node["cond"]], run.library[node["body"]]
    kept = {i for i, argument in body.unchanged().items() if i == argument}
    carried = [i for i in range(len(inputs)) if i not in kept]

    def full(values: Sequence[Any]) -> list[Any]:
        every = list(inputs)
        for i, value in zip(carried, values, strict=True):
            every[i] = value
        return every

    def step(values: Any) -> list[Any]:
        results = _without_writes(run, node, lambda: run.call(body, full(values)))
        return [_array(results[i]) for i in carried]

    def goes_on(values: Any) -> Any:
        return jnp.reshape(run.call(condition, full(values))[0], ())

    first = [_array(inputs[i]) for i in carried]
    for _ in range(_ROUNDS):
        after = jax.eval_shape(step, first)
        first = [_like(value, shaped) for value, shaped in zip(first, after, strict=True)]
    count = _count(run, condition, body, inputs, carried)
    if count is None:
        return full(lax.while_loop(goes_on, step, first))
    # A loop whose number of rounds is known has a gradient.
    rounds = jnp.zeros(count, bool)  # whose size, unlike `length`, may be a symbol
    last, _ = lax.scan(lambda values, _: (step(values), None), first, rounds)
    return full(last)


def _count(run: Any, condition: Any, body: Any, inputs: Any, carried: list[int]) -> Any:
    """How often a loop runs, where that depends on known numbers and sizes only; as a symbol, where it is one."""
    symbols = sorted({s for v in inputs if isinstance(v, Sizes) for n in v.flat for s in _names(n)})
    if not symbols:
        return _rounds(run, condition, body, inputs, carried)
    # Two choices of sizes tell which of the symbols it is.
    found = []
    for primes in (_PRIMES, _PRIMES[::-1]):
        chosen = dict(zip(symbols, primes, strict=False))
        if len(chosen) < len(symbols):
            return None
        known = [_with_sizes(v, chosen) if isinstance(v, Sizes) else v for v in inputs]
        count = _rounds(run, condition, body, known, carried)
        found.append({name for name, size in chosen.items() if size == count})
    (name, *_) = [*found[0].intersection(found[1]), None]
    for value in (n for v in inputs if isinstance(v, Sizes) for n in v.flat):
        if is_symbolic_dim(value) and str(value) == name:
            return value
    return None


_PRIMES = (3, 5, 7, 11, 13, 17)


def _names(size: Any) -> set[str]:
    return size._get_vars() if is_symbolic_dim(size) else set()


def _with_sizes(value: Any, chosen: dict[str, int]) -> np.ndarray:
    """Sizes with numbers in place of symbols."""
    numbers: Any = chosen
    plain = [n._evaluate(numbers) if is_symbolic_dim(n) else n for n in np.asarray(value).flat]
    return np.array(plain, np.int32).reshape(value.shape)


def _rounds(run: Any, condition: Any, body: Any, inputs: Any, carried: list[int]) -> int | None:
    """How often a loop runs, where that depends on known numbers only."""
    values: list[Any] = [
        v if (is_known(v) and np.size(v) == 1) or i not in carried else _Unknown()
        for i, v in enumerate(inputs)
    ]
    rounds = 0
    while rounds < 100_000:
        try:
            more = run.call(condition, values)[0]
        except (Exception, HostNeeded):  # of any kind: an op met what is not known
            return None
        if not is_known(more):
            return None
        if not bool(more):
            return rounds
        values = [
            _next(run, body, i, values) if i in carried and is_known(v) else v
            for i, v in enumerate(values)
        ]
        rounds += 1
    return None


class _Unknown:
    """What a loop computes: whoever needs it cannot know how often the loop runs."""


def _next(run: Any, body: Any, place: int, values: list[Any]) -> Any:
    """One of a loop's values after a round, if it is known."""
    found = {n: [v] for n, v in zip(body.arguments, values, strict=True)}
    name, _, index = body.results[place]
    try:
        run.evaluate(body.nodes, found, [name], body.name)
        value = found[name][index]
    except (Exception, HostNeeded):
        return _Unknown()
    return value if is_known(value) else _Unknown()


def _array(value: Any) -> Any:
    if is_words(value):
        raise HostNeeded
    return value if isinstance(value, TensorList) else jnp.asarray(traced(value))


def _like(value: Any, shaped: Any) -> Any:
    """A loop's first value in the form that the loop gives it."""
    if isinstance(value, TensorList) and isinstance(shaped, TensorList):
        return value if shaped.items is None else value.filled(shaped.items.shape[1:])
    return value.astype(shaped.dtype)


def _without_writes(run: Any, node: Node, function: Callable[[], Any]) -> Any:
    before = dict(run.values), dict(run.written)
    result = function()
    if run.written.keys() != before[1].keys():
        raise UnimplementedError(
            f"node {node.name} of op {node.op} writes variables in a loop or branch, which cannot be read."
        )
    return result


def _if(run: Any, node: Node, inputs: Sequence[Any]) -> list[Any]:
    names = [node["else_branch"], node["then_branch"]]
    condition = inputs[0]
    known = is_known(condition) or not isinstance(condition, jax.core.Tracer)
    chosen = int(bool(np.any(condition))) if known else jnp.any(condition).astype(np.int32)
    return _branch(run, node, names, chosen, inputs[1:])


def _case(run: Any, node: Node, inputs: Sequence[Any]) -> list[Any]:
    names = node["branches"]
    place = inputs[0]
    if is_known(place) or not isinstance(place, jax.core.Tracer):
        chosen: Any = int(place) if 0 <= int(place) < len(names) else len(names) - 1
    else:
        chosen = jnp.where((place < 0) | (place >= len(names)), len(names) - 1, place)
    return _branch(run, node, names, chosen, inputs[1:])


def _branch(
    run: Any, node: Node, names: Sequence[str], chosen: Any, inputs: Sequence[Any]
) -> list[Any]:
    functions = [run.library[name] for name in names]
    if isinstance(chosen, int):
        return run.call(functions[chosen], inputs)

    def made(function: Any) -> Callable[[], Any]:
        def call() -> list[Any]:
            results = _without_writes(run, node, lambda: run.call(function, inputs))
            return [_array(r) for r in results]

        return call

    return lax.switch(chosen, [made(f) for f in functions])


CONTROL: dict[str, Callable[..., Any]] = {
    "While": _while,
    "StatelessWhile": _while,
    "If": _if,
    "StatelessIf": _if,
    "Case": _case,
    "StatelessCase": _case,
}
