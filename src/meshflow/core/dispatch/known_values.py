"""Traced tensors whose values are settled already: they are computed from outer tensors only.

The edges of a graph that every training step uses are a captured tensor. What a step computes from them is
traced like all else, but may be asked for as a size (`num_segments=tf.reduce_max(edges) + 1`). So each
result remembers the op and the operands it came from (`Tensor._settled`), and is computed when it is asked for;
an array that was converted remembers itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.operation import Op
from meshflow.core.values.tensor import Tensor

__all__ = ["all_settled", "remember", "settled_value"]


def _is_settled(operand: Any) -> bool:
    if type(operand) is Tensor:
        return not isinstance(operand._value, jax.core.Tracer) or hasattr(operand, "_settled")
    return operand is None or (isinstance(operand, (list, tuple)) and all_settled(operand))


def all_settled(operands: Iterable[Any]) -> bool:
    """Whether nothing but outer tensors decides on the operands' values."""
    return all(map(_is_settled, operands))


def remember(outputs: Any, op: Op, operands: Sequence[Any], static: tuple[Any, ...]) -> None:
    """Notes how the results of an op with settled operands are computed.

    Args:
      outputs: a structure of traced tensors.
      op: the op, which does nothing but compute.
      operands: its operands.
      static: its static arguments.
    """
    leaves = jax.tree.leaves(outputs, is_leaf=lambda leaf: type(leaf) is Tensor)
    for position, leaf in enumerate(leaves):
        if type(leaf) is Tensor and isinstance(leaf._value, jax.core.Tracer):
            leaf._settled = (op, operands, static, position)


def settled_value(tensor: Tensor) -> np.ndarray | None:
    """The value of a traced tensor that outer tensors decide on; None for others.

    Args:
      tensor: a traced tensor.
    """
    if not hasattr(tensor, "_settled"):
        return None
    with jax.ensure_compile_time_eval():
        return np.asarray(_computed(tensor))


def _computed(operand: Any) -> Any:
    if operand is None:
        return None
    if not isinstance(operand, Tensor):
        return [_computed(o) for o in operand]
    how = getattr(operand, "_settled", None)
    if how is None:
        return operand._value
    if type(how) is tuple:
        op, operands, static, position = how
        results = op.compiled(static)(*[_computed(o) for o in operands])
        operand._settled = how = jax.tree.leaves(results)[position]
    return how
