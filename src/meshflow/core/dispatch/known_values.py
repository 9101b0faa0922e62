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
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import PyTree

__all__ = ["Result", "all_determined", "remember"]


class Result:
    """The result of an op on constant operands, computed on request.

    Args:
      op: An op without side effects.
      operands: Operands of the op.
      static: Static arguments of the op.
      index: Index of the result among the results of the op.
    """

    __slots__ = ("_array", "_how")

    def __init__(
        self, op: Op, operands: Sequence[Any], static: tuple[Any, ...], index: int
    ) -> None:
        self._how: tuple[Any, ...] | None = op, operands, static, index
        self._array: Any = None

    def array(self) -> jax.Array:
        """Return the value as a JAX array."""
        if self._how is not None:
            op, operands, static, position = self._how
            with jax.core.eval_context():
                results = op.compiled(static)(*[_array(o) for o in operands])
            self._array, self._how = jax.tree.leaves(results)[position], None
        return self._array

    def value(self) -> np.ndarray:
        """Return the value on the host."""
        return np.asarray(self.array())


def _array(operand: PyTree) -> PyTree:
    if operand is None:
        return None
    if not isinstance(operand, Tensor):
        return [_array(o) for o in operand]
    known = getattr(operand, "_known_value", None)
    if known is None:
        return operand.array
    return known.array() if type(known) is Result else known.value()


def _is_determined(operand: PyTree) -> bool:
    if type(operand) is Tensor:
        return not isinstance(operand.array, jax.core.Tracer) or hasattr(operand, "_known_value")
    return operand is None or (isinstance(operand, (list, tuple)) and all_determined(operand))


def all_determined(operands: Iterable[Any]) -> bool:
    """Check whether the values of all operands depend only on tensors from outside of the trace."""
    return all(map(_is_determined, operands))


def remember(outputs: PyTree, op: Op, operands: Sequence[Any], static: tuple[Any, ...]) -> None:
    """Store on the results of an op with constant operands how they can be computed.

    Args:
      outputs: A structure of traced tensors.
      op: An op without side effects.
      operands: Operands of the op.
      static: Static arguments of the op.
    """
    leaves = jax.tree.leaves(outputs, is_leaf=lambda leaf: type(leaf) is Tensor)
    for index, leaf in enumerate(leaves):
        if type(leaf) is Tensor and isinstance(leaf.array, jax.core.Tracer):
            leaf._known_value = Result(op, operands, static, index)
