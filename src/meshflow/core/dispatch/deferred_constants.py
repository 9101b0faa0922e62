"""Values of traced tensors that depend only on tensors from outside of the trace.

The edges of a graph that every training step uses are a captured tensor. Computations on them are
traced like all others, but their values may be needed as sizes (`num_segments=tf.reduce_max(edges)
+ 1`). So each result of such a computation stores its op and operands (`Tensor._known_value`), and
its value is computed on request. A converted array stores itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.operation import Op
from meshflow.core.values.symbolic_sizes import has_symbolic_size
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import PyTree


class DeferredConstant:
    """The result of an op on constant operands, computed on request.

    Args:
      op: An op without side effects.
      operands: Operands of the op.
      static: Static arguments of the op.
      index: Index of the result among the results of the op.
    """

    __slots__ = ("_array", "_inputs")

    def __init__(
        self, op: Op, operands: Sequence[Any], static: tuple[Any, ...], index: int
    ) -> None:
        self._inputs: tuple[Any, ...] | None = op, operands, static, index
        self._array: Any = None

    def compute_array(self) -> jax.Array:
        """Return the value as a JAX array."""
        if self._inputs is not None:
            op, operands, static, position = self._inputs
            with jax.core.eval_context():
                results = op.get_eager(static)(*[_compute_operand(o) for o in operands])
            self._array, self._inputs = jax.tree.leaves(results)[position], None
        return self._array

    def compute_value(self) -> np.ndarray:
        """Return the value on the host."""
        return np.asarray(self.compute_array())


def _compute_operand(operand: PyTree) -> PyTree:
    if operand is None:
        return None
    if not isinstance(operand, Tensor):
        return [_compute_operand(o) for o in operand]
    known = getattr(operand, "_known_value", None)
    if known is None:
        return operand.array
    return known.compute_array() if type(known) is DeferredConstant else known.compute_value()


def _is_constant(operand: PyTree) -> bool:
    if type(operand) is Tensor:
        return not isinstance(operand.array, jax.core.Tracer) or hasattr(operand, "_known_value")
    return operand is None or (isinstance(operand, (list, tuple)) and are_all_constant(operand))


def are_all_constant(operands: Iterable[Any]) -> bool:
    """Check whether the values of all operands depend only on tensors from outside of the trace."""
    return all(map(_is_constant, operands))


def store_inputs(outputs: PyTree, op: Op, operands: Sequence[Any], static: tuple[Any, ...]) -> None:
    """Store on the results of an op with constant operands how they can be computed.

    Args:
      outputs: A structure of traced tensors.
      op: An op without side effects.
      operands: Operands of the op.
      static: Static arguments of the op.
    """
    if has_symbolic_size(jax.tree.leaves(static)):
        return  # The values depend on sizes that only the running program knows.
    leaves = jax.tree.leaves(outputs, is_leaf=lambda leaf: type(leaf) is Tensor)
    for index, leaf in enumerate(leaves):
        if type(leaf) is Tensor and isinstance(leaf.array, jax.core.Tracer):
            leaf._known_value = DeferredConstant(op, operands, static, index)
