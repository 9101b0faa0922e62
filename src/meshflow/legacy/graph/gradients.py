"""Gradients in a graph: operations that differentiate what the run has recorded on a tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.gradients import symbolic_gradients
from meshflow.core.gradients.gradient_targets import UnconnectedGradients, parse_unconnected
from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import PyTree
from meshflow.keras.engine.layer.shape_inference import infer_op_outputs
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.legacy.graph.calls import fill_ranks, fill_result, list_tensors, replace_in_graphs
from meshflow.legacy.graph.execution import Run, sort_operations, suspend_recording
from meshflow.legacy.graph.operations import Operation, OwningGraph, SymbolicTensor

tf: Any = get_public_package()


def gradients(
    graph: OwningGraph,
    ys: PyTree,
    xs: PyTree,
    grad_ys: PyTree = None,
    name: str = "gradients",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: bool = False,
    aggregation_method: object = None,
    stop_gradients: PyTree = None,
    unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
) -> list[Any]:
    """Record the gradients of the sum of `ys` with respect to each of `xs`; see `tf.gradients`."""
    targets = [_to_graph_tensor(graph, y) for y in nest.flatten(ys)]
    sources = nest.flatten(xs)
    seeds = [None] * len(targets) if grad_ys is None else nest.flatten(grad_ys)
    if len(seeds) != len(targets):
        raise ValueError(f"Passed {len(seeds)} grad_ys for {len(targets)} ys")
    seeds = [None if s is None else _to_graph_tensor(graph, s) for s in seeds]
    stopped = [] if stop_gradients is None else nest.flatten(stop_gradients)
    is_zero = parse_unconnected(unconnected_gradients) is UnconnectedGradients.ZERO
    inputs = [t for t in (*targets, *sources, *seeds, *stopped) if isinstance(t, SymbolicTensor)]

    def compute(run: Run) -> Sequence[Any]:
        found = run.differentiate(*parts)
        return list_tensors(list(map(_adapt_gradient, template, found, map(run.read, sources))))

    parts = (targets, sources, seeds, stopped)
    template, specs = _infer_gradients(*parts)
    operation = Operation(
        graph, graph.name_operation(name or "gradients"), "Gradients", compute, inputs
    )
    operation.sources = sources
    result: list[Any] = list(fill_result(template, list(map(operation.add_output, specs))))
    if is_zero:
        result = [
            tf.zeros_like(x) if g is None else g for g, x in zip(result, sources, strict=True)
        ]
    return result


def _adapt_gradient(expected: PyTree, gradient: PyTree, x: PyTree) -> Any:
    """Return a gradient in the form that the inference found; zeros if this run has no path to `x`."""
    if isinstance(expected, IndexedSlices) and not isinstance(gradient, IndexedSlices):
        rows = tf.range(tf.shape(x)[0] if gradient is not None else 0)
        return IndexedSlices(
            tf.gather(tf.zeros_like(x) if gradient is None else gradient, rows), rows
        )
    if isinstance(expected, Tensor):
        return tf.zeros_like(x) if gradient is None else tf.convert_to_tensor(gradient)
    return gradient if expected is not None else None


def _to_graph_tensor(graph: OwningGraph, value: PyTree) -> SymbolicTensor:
    tensor = tf.convert_to_tensor(value)
    if not isinstance(tensor, SymbolicTensor):
        tensor = graph.make_constant(tensor)
    return tensor


def _infer_gradients(
    ys: list[SymbolicTensor], xs: list[Any], seeds: list[Any], stopped: list[Any]
) -> tuple[list[Any], list[KerasTensor]]:
    """Return the structure of the gradients, with None for those that are not connected, and their specs.

    The operations between `xs` and `ys` are traced.
    """
    needed = sort_operations([y.op for y in ys])
    sources = {id(x) for x in xs}
    reached: set[int] = set()
    for operation in needed:
        operands = (*operation.inputs, *operation.variables)
        if any(id(t) in reached or id(t) in sources for t in operands) or any(
            id(t) in sources for t in operation.outputs
        ):
            reached.update(id(t) for t in operation.outputs)
    path = [o for o in needed if any(id(t) in reached for t in o.outputs)]
    computed = {id(t) for o in path for t in o.outputs} - sources
    used = (
        [t for o in path for t in o.inputs] + ys + [s for s in (*seeds, *stopped) if s is not None]
    )
    used += [x for x in xs if isinstance(x, SymbolicTensor)]
    given = {
        id(t): t
        for t in used
        if isinstance(t, SymbolicTensor)
        and id(t) not in computed
        and (not t.is_constant or id(t) in sources)
    }
    gradients: list[Any] = []

    def call_all(*values: PyTree) -> list[Any]:
        known = dict(zip(given, values, strict=True))
        run = Run(known, xs)
        run.execute([o for o in path if any(id(t) not in known for t in o.outputs)])
        gradients[:] = run.differentiate(ys, xs, seeds, stopped)
        return list_tensors(gradients)

    with suspend_recording():
        specs = _infer_specs(call_all, list(given.values()))
    supply = iter(specs)
    described: list[KerasTensor] = []
    for gradient, x in zip(gradients, xs, strict=True):
        parts = [next(supply) for _ in list_tensors(gradient)]
        if isinstance(gradient, Tensor):
            parts = [KerasTensor(TensorSpec(x.shape, parts[0].dtype))]
        described += parts
    return gradients, described


def _infer_specs(
    call: Callable[..., list[Any]], tensors: list[SymbolicTensor]
) -> list[KerasTensor]:
    """Infer the results of a call; an unknown rank is replaced by the first known one that is possible."""
    errors: list[Exception] = []
    for symbols in fill_ranks(tensors):
        try:
            return list(infer_op_outputs(call, tuple(symbols), {}))
        except Exception as error:
            errors.append(error)
    raise errors[0]


def hessians(
    graph: OwningGraph, ys: PyTree, xs: PyTree, name: str = "hessians", **kwargs: Any
) -> list[Any]:
    """Record the second derivatives of the sum of `ys` with respect to each of `xs`; see `tf.hessians`."""
    results = []
    for x in nest.flatten(xs):
        first = tf.reshape(gradients(graph, ys, x, unconnected_gradients="zero")[0], [-1])
        count = first.shape.num_elements()
        if count is None:
            raise ValueError("tf.hessians: the number of elements of x must be known in a graph.")
        rows = [
            gradients(graph, first[i], x, unconnected_gradients="zero")[0] for i in range(count)
        ]
        sizes = x.shape.as_list()
        results.append(tf.reshape(tf.stack(rows), [*sizes, *sizes]))
    return results


replace_in_graphs(symbolic_gradients.gradients, gradients)
replace_in_graphs(symbolic_gradients.hessians, hessians)
