"""Traced tensors whose values are known already: they are computed from outer tensors only.

The edges of a graph that every training step uses are a captured tensor. What a step computes from them is
traced like all else, but may be asked for as a size (`num_segments=tf.reduce_max(edges) + 1`). So each
result remembers the op and the operands it came from (`Tensor._known_value`), and is computed when it is asked for;
an array that was converted remembers itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.operation import Op
from meshflow.core.values.tensor import Tensor

__all__ = ["Result", "all_determined", "remember"]


class Result:
    """The result of an op on known operands, computed when it is asked for.

    Args:
      op: the op, which does nothing but compute.
      operands: its operands.
      static: its static arguments.
      position: which of the op's results it is.
    """

    __slots__ = ("_array", "_how")

    def __init__(
        self, op: Op, operands: Sequence[Any], static: tuple[Any, ...], position: int
    ) -> None:
        self._how: tuple[Any, ...] | None = op, operands, static, position
        self._array: Any = None

    def array(self) -> Any:
        """The value as a JAX array."""
        if self._how is not None:
            op, operands, static, position = self._how
            with jax.core.eval_context():
                results = op.compiled(static)(*[_array(o) for o in operands])
            self._array, self._how = jax.tree.leaves(results)[position], None
        return self._array

    def value(self) -> np.ndarray:
        """The value on the host."""
        return np.asarray(self.array())


def _array(operand: Any) -> Any:
    if operand is None:
        return None
    if not isinstance(operand, Tensor):
        return [_array(o) for o in operand]
    known = getattr(operand, "_known_value", None)
    if known is None:
        return operand._value
    return known.array() if type(known) is Result else known.value()


def _is_determined(operand: Any) -> bool:
    if type(operand) is Tensor:
        return not isinstance(operand._value, jax.core.Tracer) or hasattr(operand, "_known_value")
    return operand is None or (isinstance(operand, (list, tuple)) and all_determined(operand))


def all_determined(operands: Iterable[Any]) -> bool:
    """Whether nothing but outer tensors decides on the operands' values."""
    return all(map(_is_determined, operands))


def remember(outputs: Any, op: Op, operands: Sequence[Any], static: tuple[Any, ...]) -> None:
    """Notes how the results of an op with known operands are computed.

    Args:
      outputs: a structure of traced tensors.
      op: the op, which does nothing but compute.
      operands: its operands.
      static: its static arguments.
    """
    leaves = jax.tree.leaves(outputs, is_leaf=lambda leaf: type(leaf) is Tensor)
    for position, leaf in enumerate(leaves):
        if type(leaf) is Tensor and isinstance(leaf._value, jax.core.Tracer):
            leaf._known_value = Result(op, operands, static, position)
