"""Gradients in a graph: operations that differentiate the operations that a run has recorded on a tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.recorded_op import is_differentiable
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
_NUMBERS = (int, float, complex, np.generic, np.ndarray)


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
    sources = [
        _to_graph_tensor(graph, x) if isinstance(x, _NUMBERS) else x for x in nest.flatten(xs)
    ]
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
    # A gradient of a gradient may depend on its seeds or on results of the operations that the inner one differentiates.
    inner = [s for o in needed if o.type == "Gradients" for s in o.sources]
    sources = {id(x) for x in (*xs, *inner)}
    computed: set[int] = set()
    for operation in needed:
        operands = (*operation.inputs, *operation.variables)
        if any(id(t) in computed or id(t) in sources for t in operands):
            computed.update(id(t) for t in operation.outputs)
    path = [o for o in needed if any(id(t) in computed for t in o.outputs)]
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
        run = Run(known, [*xs, *inner])
        run.execute([o for o in path if any(id(t) not in known for t in o.outputs)])
        gradients[:] = run.differentiate(ys, xs, seeds, stopped)
        return list_tensors(gradients)

    try:
        with suspend_recording():
            specs = _infer_specs(call_all, list(given.values()))
    except Exception:
        # Sizes that depend on values, such as those of `boolean_mask`, may not fit until the graph runs.
        gradients[:] = _assume_gradients(path, ys, xs, stopped)
        specs = [KerasTensor(TensorSpec(g.shape, g.dtype)) for g in gradients if g is not None]
    supply = iter(specs)
    described: list[KerasTensor] = []
    for gradient, x in zip(gradients, xs, strict=True):
        parts = [next(supply) for _ in list_tensors(gradient)]
        if isinstance(gradient, Tensor):
            parts = [KerasTensor(TensorSpec(x.shape, parts[0].dtype))]
        described += parts
    return gradients, described


def _assume_gradients(
    path: list[Operation], ys: list[SymbolicTensor], xs: list[Any], stopped: list[Any]
) -> list[Any]:
    """Return a tensor of the spec of each of `xs` that `ys` depends on, and None for the others."""
    reached = {id(y) for y in ys}
    cut = {id(t) for t in stopped}
    for operation in reversed(path):
        outputs = {id(t) for t in operation.outputs if is_differentiable(t)}
        if operation.type != "StopGradient" and outputs & (reached - cut):
            reached.update(id(t) for t in (*operation.inputs, *operation.variables))
    return [x if id(x) in reached and is_differentiable(x) else None for x in xs]


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


def differentiate_watched(
    graph: OwningGraph,
    target: PyTree,
    sources: PyTree,
    output_gradients: PyTree,
    unconnected_gradients: UnconnectedGradients | str,
    watches: Callable[[object], bool],
) -> PyTree:
    """Record the gradients for the sources that a tape watches, and for results of operations on these."""
    kind = parse_unconnected(unconnected_gradients)
    flat = nest.flatten(sources)
    known = [s for s in flat if _depends_on_watched(s, watches)]
    found = iter(gradients(graph, target, known, output_gradients, unconnected_gradients=kind))
    is_zero = kind is UnconnectedGradients.ZERO
    unknown = lambda source: tf.zeros_like(source) if is_zero else None
    ids = {id(s) for s in known}
    return nest.pack_sequence_as(
        sources, [next(found) if id(s) in ids else unknown(s) for s in flat]
    )


def _depends_on_watched(source: PyTree, watches: Callable[[object], bool]) -> bool:
    """Check whether a tensor or variable is watched, or a result of operations on one that is."""
    if watches(source) or not isinstance(source, SymbolicTensor):
        return watches(source)
    operations = sort_operations([source.op])
    return any(watches(t) for o in operations for t in (*o.inputs, *o.variables))


def hessians(
    graph: OwningGraph, ys: PyTree, xs: PyTree, name: str = "hessians", **kwargs: Any
) -> list[Any]:
    """Record the second derivatives of the sum of `ys` with respect to each of `xs`; see `tf.hessians`."""
    return [
        compute_jacobian(graph, gradients(graph, ys, x, unconnected_gradients="zero")[0], x, "zero")
        for x in nest.flatten(xs)
    ]


def compute_jacobian(
    graph: OwningGraph,
    target: PyTree,
    sources: PyTree,
    unconnected_gradients: UnconnectedGradients | str,
    is_batch: bool = False,
) -> PyTree:
    """Record the gradients of each element of `target`, of the shape `target.shape + source.shape`.

    Args:
      graph: The graph.
      target: A tensor whose number of elements is known, except for that of examples.
      sources: Tensors and variables, in any nested structure.
      unconnected_gradients: See `tf.gradients`.
      is_batch: Whether element i of the first dimension of `target` depends only on element i of the sources. The
        result then has this dimension once.
    """
    target = _to_graph_tensor(graph, target)
    first = int(is_batch)
    count = target.shape[first:].num_elements()
    if count is None:
        raise ValueError(
            f"The number of elements of the target must be known in a graph, got shape {target.shape}."
        )
    elements = tf.reshape(target, [-1, count] if is_batch else [count])
    flat = nest.flatten(sources)
    rows = [
        gradients(graph, elements[..., i], flat, unconnected_gradients=unconnected_gradients)
        for i in range(count)
    ]

    def join(parts: Sequence[Any]) -> Any:
        if parts[0] is None:
            return None
        dense = [tf.convert_to_tensor(p) for p in parts]
        sizes = [*target.shape, *dense[0].shape[first:]]
        if sizes.count(None) > 1:
            shape = tf.concat([tf.shape(target), tf.shape(dense[0])[first:]], 0)
        else:
            shape = [-1 if n is None else n for n in sizes]
        return tf.reshape(tf.stack(dense, first), shape)

    return nest.pack_sequence_as(sources, [join(parts) for parts in zip(*rows, strict=True)])


replace_in_graphs(symbolic_gradients.gradients, gradients)
replace_in_graphs(symbolic_gradients.hessians, hessians)
