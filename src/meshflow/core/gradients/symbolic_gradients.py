"""`tf.gradients` and `tf.hessians`: derivatives of any earlier computation, inside a function.

TensorFlow derives them from the graph. Here a tape must record from the start of the function, but
a request for derivatives is only known when it is made. The trace is then abandoned and repeated
with a `GraphTape`, which records every op.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any

from meshflow.core.dispatch.recorded_op import is_differentiable
from meshflow.core.dispatch.symbolic_calls import record_in_graph
from meshflow.core.gradients.gradient_targets import UnconnectedGradients, parse_unconnected
from meshflow.core.gradients.tape import GradientTape, Node
from meshflow.core.gradients.tape_nodes import ReadNode
from meshflow.core.runtime.context import ActiveTrace, context
from meshflow.core.tracing.trace import GraphTapeRequired
from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree


class GraphTape(GradientTape):
    """A tape that records all ops while a function, or the body of a loop or branch, is traced.

    Gradients in a body are propagated through the ops of the body, then through those before it, which
    the tapes of the enclosing traces recorded.

    Args:
      records_bodies: Whether each loop and branch that is traced inside gets such a tape, too.

    Attributes:
      make_body_tape: Function that creates the tape of a loop or branch, or None.
    """

    def __init__(self, records_bodies: bool = False) -> None:
        super().__init__(persistent=True)
        self._outer = _find_graph_tape()
        make = functools.partial(GraphTape, records_bodies=True)
        self.make_body_tape = make if records_bodies else None

    def watches(self, tensor: Tensor) -> bool:
        """Check whether the tensor is differentiable."""
        return is_differentiable(tensor)

    def is_watching(self, tensors: Sequence[Tensor]) -> bool:
        """Check whether at least one of the tensors is differentiable."""
        return any(is_differentiable(t) for t in tensors)

    def _list_nodes(self) -> list[Node]:
        return [*(self._outer._list_nodes() if self._outer is not None else ()), *self._nodes]

    def _backpropagate(
        self, targets: list[Tensor], seeds: list[Any], sources: list[Any], stopped: Collection[int]
    ) -> dict[int, Any]:
        gradients = super()._backpropagate(targets, seeds, sources, stopped)
        scope: ActiveTrace | None = context.trace
        is_body = scope is not None and scope.parent is not None and not scope.runs_once_per_call
        if is_body and self._outer is None and any(tape is self for tape in context.tapes):
            rest = gradients.keys() - {id(s) for s in sources} - set(stopped)
            operands = [*targets, *(t for node in self._nodes for t in node.inputs)]
            if any(id(t) in rest and _is_outer(t, scope) for t in operands):
                # The operand may depend on a source by ops before the loop.
                make = functools.partial(GraphTape, records_bodies=True)
                raise GraphTapeRequired(make, is_for_function=True)
        return gradients

    def record_read(self, variable: Variable, value: Tensor) -> None:
        """Record that `value` was read from `variable`."""
        if is_differentiable(value) and id(value) not in self._watched:
            self.record(ReadNode(variable, value))


@record_in_graph
def gradients(
    ys: PyTree,
    xs: PyTree,
    grad_ys: PyTree = None,
    name: str = "gradients",
    gate_gradients: bool = False,
    aggregation_method: object = None,
    stop_gradients: PyTree = None,
    unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
) -> list[Tensor]:
    """Compute the derivatives of the sum of `ys` with respect to each of `xs`, in a `tf.function`.

    When the function first calls this, its Python code runs a second time, because derivatives
    require a record of all computations; `tf.GradientTape` does not repeat it.

    Args:
      ys: A tensor or list of tensors.
      xs: A tensor or variable, or a list of them.
      grad_ys: Initial gradients, a tensor or None for each of `ys`; by default ones.
      name: Ignored.
      gate_gradients: Ignored.
      aggregation_method: Ignored.
      stop_gradients: Tensors that are treated as constants.
      unconnected_gradients: `NONE` or `ZERO`, for those of `xs` on which `ys` do not depend.

    Returns:
      A list with a tensor or None for each of `xs`.

    Raises:
      RuntimeError: Outside of a `tf.function`.

    Example:
      >>> slope = tf.function(lambda x: tf.gradients(x * x, x)[0])
      >>> float(slope(tf.constant(3.0)))
      6.0
    """
    tape = _get_graph_tape("gradients")
    stopped = {id(t) for t in nest.flatten(stop_gradients)}
    targets, seeds = nest.flatten(ys), None if grad_ys is None else nest.flatten(grad_ys)
    kind = parse_unconnected(unconnected_gradients)
    return list(tape._compute_gradient(targets, nest.flatten(xs), seeds, kind, stopped))


@record_in_graph
def hessians(
    ys: PyTree,
    xs: PyTree,
    gate_gradients: bool = False,
    aggregation_method: object = None,
    name: str = "hessians",
) -> list[Tensor]:
    """Compute the second derivatives of the sum of `ys` with respect to `xs`, in a `tf.function`.

    Args:
      ys: A tensor or list of tensors.
      xs: A tensor or variable, or a list of them.
      gate_gradients: Ignored.
      aggregation_method: Ignored.
      name: Ignored.

    Returns:
      A list with a tensor of shape `x.shape + x.shape` for each of `xs`.

    Raises:
      RuntimeError: Outside of a `tf.function`.

    Example:
      >>> @tf.function
      ... def f(x):
      ...     return tf.hessians(tf.reduce_sum(x**3), x)[0]
      >>> print(f(tf.constant([1.0, 2.0])).numpy())
      [[ 6.  0.]
       [ 0. 12.]]
    """
    tape = _get_graph_tape("hessians")
    zero = UnconnectedGradients.ZERO
    return [
        tape.jacobian(gradients(ys, x, unconnected_gradients=zero)[0], x, zero)
        for x in nest.flatten(xs)
    ]


def _get_graph_tape(name: str) -> GraphTape:
    scope: ActiveTrace | None = context.trace
    if scope is None:
        raise RuntimeError(
            f"tf.{name} is not supported when eager execution is enabled. Use tf.GradientTape instead."
        )
    tape = _find_graph_tape()
    if tape is None:
        raise GraphTapeRequired(GraphTape)
    return tape


def _find_graph_tape() -> GraphTape | None:
    """Return the tape of the innermost trace, or None."""
    return next((tape for tape in context.tapes if isinstance(tape, GraphTape)), None)


def _is_outer(tensor: object, scope: ActiveTrace | None) -> bool:
    """Check whether a tensor belongs to a trace that encloses another."""
    return isinstance(tensor, Tensor) and tensor._owner is not None and tensor._owner is not scope
