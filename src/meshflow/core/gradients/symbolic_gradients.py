"""`tf.gradients` and `tf.hessians`: derivatives inside a function, of anything computed in it so far.

TensorFlow reads them off the graph. Here a tape has to be on from the start of the function, which
nobody knows before they are asked for: the trace is then given up and begun again with a
`GraphTape`, which records every op.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.dispatch.recorded import is_differentiable
from meshflow.core.gradients.gradient_targets import UnconnectedGradients, as_unconnected
from meshflow.core.gradients.nodes import ReadNode
from meshflow.core.gradients.tape import GradientTape
from meshflow.core.runtime.context import Tracing, context
from meshflow.core.tracing.trace import NeedsGraphTape
from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor


class GraphTape(GradientTape):
    """A tape that watches everything, for as long as a function is traced."""

    def __init__(self) -> None:
        super().__init__(persistent=True)

    def watches(self, tensor: Any) -> bool:
        """Whether the tensor has derivatives."""
        return is_differentiable(tensor)

    def is_watching(self, tensors: Sequence[Tensor]) -> bool:
        """Whether any of the tensors has derivatives."""
        return any(is_differentiable(t) for t in tensors)

    def variable_read(self, variable: Any, value: Tensor) -> None:
        """Records that `value` was read from `variable`."""
        if is_differentiable(value) and id(value) not in self._watched:
            self.record(ReadNode(variable, value))


def gradients(
    ys: Any,
    xs: Any,
    grad_ys: Any = None,
    name: str = "gradients",
    gate_gradients: bool = False,
    aggregation_method: Any = None,
    stop_gradients: Any = None,
    unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
) -> list[Any]:
    """Derivatives of the sum of `ys` with respect to each of `xs`, inside a `tf.function`.

    The function's Python code runs a second time when it first gets here, as derivatives need a record
    of all that it computes; `tf.GradientTape` does not.

    Args:
      ys: a tensor or list of tensors.
      xs: a tensor or variable, or a list of them.
      grad_ys: gradients to start from, a tensor or None for each of `ys`; default ones.
      name: ignored.
      gate_gradients: ignored.
      aggregation_method: ignored.
      stop_gradients: tensors that count as constants.
      unconnected_gradients: `NONE` or `ZERO`, for those of `xs` that `ys` do not depend on.

    Returns:
      A list with a tensor (or None) for each of `xs`.

    Raises:
      RuntimeError: outside of a `tf.function`.
      NotImplementedError: in the body of a staged loop or branch.

    Example:
      >>> import meshflow as tf
      >>> slope = tf.function(lambda x: tf.gradients(x * x, x)[0])
      >>> float(slope(tf.constant(3.0)))
      6.0
    """
    tape = _graph_tape("gradients")
    stopped = {id(t) for t in nest.flatten(stop_gradients)}
    targets, seeds = nest.flatten(ys), None if grad_ys is None else nest.flatten(grad_ys)
    kind = as_unconnected(unconnected_gradients)
    return list(tape._gradient(targets, nest.flatten(xs), seeds, kind, stopped))


def hessians(
    ys: Any,
    xs: Any,
    gate_gradients: bool = False,
    aggregation_method: Any = None,
    name: str = "hessians",
) -> list[Tensor]:
    """Second derivatives of the sum of `ys` with respect to each of `xs`, inside a `tf.function`.

    Args:
      ys: a tensor or list of tensors.
      xs: a tensor or variable, or a list of them.
      gate_gradients: ignored.
      aggregation_method: ignored.
      name: ignored.

    Returns:
      A list with a tensor of shape `x.shape + x.shape` for each of `xs`.

    Raises:
      RuntimeError, NotImplementedError: as for `tf.gradients`.

    Example:
      >>> import meshflow as tf
      >>> @tf.function
      ... def f(x):
      ...     return tf.hessians(tf.reduce_sum(x**3), x)[0]
      >>> print(f(tf.constant([1.0, 2.0])).numpy())
      [[ 6.  0.]
       [ 0. 12.]]
    """
    tape = _graph_tape("hessians")
    zero = UnconnectedGradients.ZERO
    return [
        tape.jacobian(gradients(ys, x, unconnected_gradients=zero)[0], x, zero)
        for x in nest.flatten(xs)
    ]


def _graph_tape(name: str) -> GraphTape:
    scope: Tracing | None = context.trace
    if scope is None:
        raise RuntimeError(
            f"tf.{name} is not supported when eager execution is enabled. Use tf.GradientTape instead."
        )
    if not scope.once:
        raise NotImplementedError(
            f"tf.{name} in the body of a loop or branch of a compiled function: use tf.GradientTape there."
        )
    for tape in context.tapes:
        if isinstance(tape, GraphTape):
            return tape
    raise NeedsGraphTape(GraphTape)
