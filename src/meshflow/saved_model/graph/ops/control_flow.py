"""Loops and branches of TensorFlow's graphs, as loops and branches of XLA.

A loop that needs strings, tables or run-time sizes is run by Python instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.environment.jax_internals import evaluate_size, list_dimensions
from meshflow.environment.types import Array
from meshflow.saved_model.graph.format.node_attributes import (
    GraphNode,
    HostRequired,
    SymbolicSizes,
    as_host_array,
    is_static,
    is_string_array,
    materialize_sizes,
)
from meshflow.saved_model.graph.ops.tensor_lists import TensorList

LoopValue: TypeAlias = jax.Array | TensorList

# Element shapes of tensor lists are inferred from the values that the body writes into them. An
# inferred shape may determine that of another list, so the inference is repeated.
_NUM_INFERENCE_PASSES = 3


class GraphInterpreter(Protocol):
    """Interface of `GraphRun`, for ops that call functions or access variables."""

    host: bool
    library: Any
    written: dict[int, None]

    def call(self, function: Any, arguments: Sequence[Any]) -> list[Any]:
        """Run a function."""

    def evaluate(
        self,
        nodes: Mapping[str, GraphNode],
        found: dict[str, Any],
        targets: Iterable[str],
        where: str,
    ) -> None:
        """Run nodes, and the nodes that they depend on."""

    def read(self, variable: object) -> Any:
        """Return the value of a variable."""

    def write(self, variable: object, value: Array) -> None:
        """Assign a value to a variable."""


def _run_while(run: GraphInterpreter, node: GraphNode, inputs: Sequence[Any]) -> list[Any]:
    if not run.host:
        return _compile_loop(run, node, inputs)
    try:
        return _compile_loop(run, node, inputs)
    except HostRequired:
        condition, body = run.library[node["cond"]], run.library[node["body"]]
        values = list(inputs)
        while bool(np.all(as_host_array(run.call(condition, values)[0]))):
            values = run.call(body, values)
        return values


def _compile_loop(run: GraphInterpreter, node: GraphNode, inputs: Sequence[Any]) -> list[Any]:
    condition, body = run.library[node["cond"]], run.library[node["body"]]
    invariant = {i for i, argument in body.find_unchanged().items() if i == argument}
    carried = [i for i in range(len(inputs)) if i not in invariant]

    def merge_inputs(values: Sequence[LoopValue]) -> list[Any]:
        merged = list(inputs)
        for i, value in zip(carried, values, strict=True):
            merged[i] = value
        return merged

    def run_body(values: Sequence[LoopValue]) -> list[LoopValue]:
        results = _call_without_writes(run, node, lambda: run.call(body, merge_inputs(values)))
        return [_to_loop_value(results[i]) for i in carried]

    def run_condition(values: Sequence[LoopValue]) -> jax.Array:
        return jnp.reshape(run.call(condition, merge_inputs(values))[0], ())

    first = [_to_loop_value(inputs[i]) for i in carried]
    for _ in range(_NUM_INFERENCE_PASSES):
        after = jax.eval_shape(run_body, first)
        first = [_match_result(value, result) for value, result in zip(first, after, strict=True)]
    count = _infer_trip_count(run, condition, body, inputs, carried)
    if count is None:
        return merge_inputs(lax.while_loop(run_condition, run_body, first))
    # A loop with a known number of iterations has a gradient. The size of `xs`, unlike the
    # argument `length`, may be symbolic.
    xs = jnp.zeros(count, bool)
    last, _ = lax.scan(lambda values, _: (run_body(values), None), first, xs)
    return merge_inputs(last)


def _infer_trip_count(
    run: GraphInterpreter, condition: Any, body: Any, inputs: Sequence[Any], carried: list[int]
) -> Any:
    """Return the number of iterations if it depends on known values and sizes only, else None.

    The result is a symbolic dimension if the number of iterations equals one.
    """
    symbols = sorted(
        {
            s
            for v in inputs
            if isinstance(v, SymbolicSizes)
            for n in v.flat
            for s in list_dimensions(n)
        }
    )
    if not symbols:
        return _count_iterations(run, condition, body, inputs, carried)
    # Two substitutions of the symbols by numbers identify the symbol that equals the count.
    candidates = []
    for primes in (_SUBSTITUTES, _SUBSTITUTES[::-1]):
        substitution = dict(zip(symbols, primes, strict=False))
        if len(substitution) < len(symbols):
            return None
        static_inputs = [
            _substitute_symbols(v, substitution) if isinstance(v, SymbolicSizes) else v
            for v in inputs
        ]
        count = _count_iterations(run, condition, body, static_inputs, carried)
        candidates.append({name for name, size in substitution.items() if size == count})
    (name, *_) = [*candidates[0].intersection(candidates[1]), None]
    for value in (n for v in inputs if isinstance(v, SymbolicSizes) for n in v.flat):
        if is_symbolic_dim(value) and str(value) == name:
            return value
    return None


_SUBSTITUTES = (3, 5, 7, 11, 13, 17)


def _substitute_symbols(value: np.ndarray, substitution: dict[str, Any]) -> np.ndarray:
    """Replace the symbolic dimensions of sizes by numbers."""
    flat = [
        evaluate_size(n, substitution) if is_symbolic_dim(n) else n for n in np.asarray(value).flat
    ]
    return np.array(flat, np.int32).reshape(value.shape)


def _count_iterations(
    run: GraphInterpreter, condition: Any, body: Any, inputs: Sequence[Any], carried: list[int]
) -> int | None:
    """Return the number of iterations if it depends on known values only, else None."""
    values: list[Any] = [
        v if (is_static(v) and np.size(v) == 1) or i not in carried else _UnknownValue()
        for i, v in enumerate(inputs)
    ]
    count = 0
    while count < 100_000:
        try:
            continues = run.call(condition, values)[0]
        except (
            Exception,
            HostRequired,
        ):  # Any op may fail on an unknown value, with any exception.
            return None
        if not is_static(continues):
            return None
        if not bool(continues):
            return count
        values = [
            _compute_next(run, body, i, values) if i in carried and is_static(v) else v
            for i, v in enumerate(values)
        ]
        count += 1
    return None


class _UnknownValue:
    """Placeholder for a value that the loop computes. An op that uses it fails."""


def _compute_next(
    run: GraphInterpreter, body: Any, index: int, values: list[Any]
) -> np.ndarray | _UnknownValue:
    """Compute one loop variable of the next iteration, as `_UnknownValue` unless it is static."""
    outputs = {n: [v] for n, v in zip(body.arguments, values, strict=True)}
    name, _, output_index = body.results[index]
    try:
        run.evaluate(body.nodes, outputs, [name], body.name)
        value = outputs[name][output_index]
    except (Exception, HostRequired):
        return _UnknownValue()
    return value if is_static(value) else _UnknownValue()


def _to_loop_value(value: LoopValue) -> LoopValue:
    if is_string_array(value):
        raise HostRequired
    return value if isinstance(value, TensorList) else jnp.asarray(materialize_sizes(value))


def _match_result(value: LoopValue, result: Any) -> LoopValue:
    """Convert the initial value of a loop variable to the shape and dtype that the body returns."""
    if isinstance(value, TensorList):
        return value if result.items is None else value.with_element_shape(result.items.shape[1:])
    return value.astype(result.dtype)


def _call_without_writes(
    run: GraphInterpreter, node: GraphNode, function: Callable[[], list[Any]]
) -> list[Any]:
    written = set(run.written)
    result = function()
    if run.written.keys() != written:
        raise UnimplementedError(
            f"node {node.name} of op {node.op} assigns to variables in a loop or branch, which is not supported."
        )
    return result


def _run_if(run: GraphInterpreter, node: GraphNode, inputs: Sequence[Any]) -> list[Any]:
    names = [node["else_branch"], node["then_branch"]]
    condition = inputs[0]
    static = is_static(condition) or not isinstance(condition, jax.core.Tracer)
    branch = int(bool(np.any(condition))) if static else jnp.any(condition).astype(np.int32)
    return _run_branch(run, node, names, branch, inputs[1:])


def _run_case(run: GraphInterpreter, node: GraphNode, inputs: Sequence[Any]) -> list[Any]:
    names = node["branches"]
    index = inputs[0]
    if is_static(index) or not isinstance(index, jax.core.Tracer):
        branch: Any = int(index) if 0 <= int(index) < len(names) else len(names) - 1
    else:
        branch = jnp.where((index < 0) | (index >= len(names)), len(names) - 1, index)
    return _run_branch(run, node, names, branch, inputs[1:])


def _run_branch(
    run: GraphInterpreter,
    node: GraphNode,
    names: Sequence[str],
    index: int | jax.Array,
    inputs: Sequence[Any],
) -> list[Any]:
    functions = [run.library[name] for name in names]
    if isinstance(index, int):
        return run.call(functions[index], inputs)

    def make_branch(function: Any) -> Callable[[], list[LoopValue]]:
        def call() -> list[LoopValue]:
            results = _call_without_writes(run, node, lambda: run.call(function, inputs))
            return [_to_loop_value(r) for r in results]

        return call

    return lax.switch(index, [make_branch(f) for f in functions])


CONTROL_FLOW_OPS: dict[str, Callable[..., Any]] = {
    "While": _run_while,
    "StatelessWhile": _run_while,
    "If": _run_if,
    "StatelessIf": _run_if,
    "Case": _run_case,
    "StatelessCase": _run_case,
}
