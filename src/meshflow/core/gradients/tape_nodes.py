"""Nodes of a tape: one for each recorded op or call, which maps output gradients to input gradients.

A recorded op holds a JAX pullback if there is one (ops in traced code and calls of compiled
functions), so that the op is not computed again. If another tape is active, the gradient is
computed by the `GradientOp`, which that tape records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import apply_pullback, apply_traced_pullback
from meshflow.core.dispatch.recorded_op import RecordedOp
from meshflow.core.dispatch.repeated_calls import ScopedPullback
from meshflow.core.gradients.gradient_dependencies import find_dependencies
from meshflow.core.runtime.annotations import gradient_scope
from meshflow.core.runtime.context import context
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor

Gradient = Tensor | IndexedSlices


def backpropagate(
    node: RecordedOp | FunctionNode | ReadNode, output_gradients: list[Gradient | None]
) -> Sequence[Any]:
    """Return the gradients of a node's inputs, from one gradient or None for each of its outputs."""
    if not isinstance(node, RecordedOp):
        return node.backpropagate(output_gradients)
    if node.op.row_gradient is not None:
        rows = node.op.row_gradient(node.operands, node.static, output_gradients[0])
        if rows is not None:
            return [rows]
    with gradient_scope(node.scope):
        gradients = _compute_gradients(node, [to_dense(g) for g in output_gradients])
    dependencies = find_dependencies(node.op, node.operands)
    if dependencies is None:
        return gradients
    reached = frozenset().union(
        *(d for d, g in zip(dependencies, output_gradients, strict=True) if g is not None)
    )
    indices = [i for i, is_requested in enumerate(node.requested) if is_requested]
    return [g if i in reached else None for i, g in zip(indices, gradients, strict=True)]


def _compute_gradients(node: RecordedOp, cotangents: list[Tensor | None]) -> list[Any]:
    if node.pullback is not None and not context.tapes and not context.outer_tapes:
        arrays = [None if c is None else get_array(c) for c in cotangents]
        outputs = [_OutputSpec(o.array.shape, o.array.dtype) for o in node.outputs]
        if isinstance(node.pullback, ScopedPullback):
            gradients = apply_traced_pullback(node.pullback, outputs, arrays)
            return [Tensor(g) for g in gradients]
        if context.trace is None:
            return [
                Tensor(g) for g in _apply_pullback_compiled(node.pullback, tuple(outputs), arrays)
            ]
        return [Tensor(g) for g in apply_pullback(node.pullback, outputs, arrays)]
    gradient = node.op.get_gradient_op(node.static, node.requested)
    return list(apply(gradient, (list(node.operands), cotangents)))


def to_dense(gradient: Gradient | None) -> Tensor | None:
    """Return a gradient as a tensor; convert `tf.IndexedSlices`."""
    if gradient is None or type(gradient) is Tensor:
        return gradient
    return convert_to_tensor(gradient)


def get_array(tensor: Tensor) -> Any:
    """Return the array of a tensor in the current trace."""
    return tensor.array if context.trace is None else context.trace.lookup(tensor)


class _OutputSpec:
    """Shape and dtype of an output, hashable so that it can be a static argument."""

    def __init__(self, shape: Sequence[int], dtype: np.dtype) -> None:
        self.shape, self.dtype = tuple(shape), dtype

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _OutputSpec) and (self.shape, self.dtype) == (
            other.shape,
            other.dtype,
        )


_apply_pullback_compiled = jax.jit(
    lambda pullback, outputs, cotangents: apply_pullback(pullback, outputs, cotangents),
    static_argnums=1,
)


class FunctionNode:
    """A recorded call with a gradient that a Python function of tensors computes.

    `custom_gradient` uses it. The function receives tensors, also for `tf.IndexedSlices`.
    """

    __slots__ = ("_backward", "inputs", "outputs")

    def __init__(
        self,
        inputs: list[Any],
        outputs: list[Tensor],
        backward: Callable[[list[Tensor | None]], Sequence[Any]],
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._backward = backward

    def backpropagate(self, output_gradients: list[Gradient | None]) -> Sequence[Any]:
        """Return the gradients of `inputs`, from one gradient or None for each output."""
        return self._backward([to_dense(g) for g in output_gradients])


class ReadNode:
    """A recorded read of a variable; the gradient of the variable is that of the value."""

    __slots__ = ("inputs", "outputs")

    def __init__(self, variable: object, value: Tensor) -> None:
        self.inputs = [variable]
        self.outputs = [value]

    def backpropagate(self, output_gradients: list[Gradient | None]) -> list[Gradient | None]:
        """Return the gradient of the variable."""
        return output_gradients
