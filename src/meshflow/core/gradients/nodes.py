"""What a tape holds: one node for every recorded op or call, and how it maps gradients of outputs to gradients of inputs.

A recorded op keeps a JAX pullback when it has one (ops in traced code and calls of compiled functions),
which saves computing the op again; when another tape is looking on, the gradient is taken by the
recorded `Gradient` op instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import pull
from meshflow.core.dispatch.recorded import RecordedOp
from meshflow.core.gradients.dependence import links
from meshflow.core.runtime.annotations import gradient_scope
from meshflow.core.runtime.context import context
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor


def backward(node: Any, arriving: list[Any]) -> Sequence[Any]:
    """Gradients of a node's inputs, from one gradient (or None) for each of its outputs."""
    if type(node) is not RecordedOp:
        return node.backward(arriving)
    if node.op.by_rows is not None:
        rows = node.op.by_rows(node.operands, node.static, arriving[0])
        if rows is not None:
            return [rows]
    with gradient_scope(node.scope):
        found = _gradients(node, [whole(a) for a in arriving])
    depends = links(node.op, node.operands)
    if depends is None:
        return found
    reached = frozenset().union(
        *(places for places, a in zip(depends, arriving, strict=True) if a is not None)
    )
    places = [i for i, wanted in enumerate(node.wanted) if wanted]
    return [g if i in reached else None for i, g in zip(places, found, strict=True)]


def _gradients(node: RecordedOp, cotangents: list[Tensor | None]) -> list[Any]:
    if node.pullback is not None and not context.tapes and not context.outer_tapes:
        given = [None if c is None else value_in_context(c) for c in cotangents]
        outputs = [_Like(o._value.shape, o._value.dtype) for o in node.outputs]
        if context.trace is None:
            return [Tensor(g) for g in _pull_compiled(node.pullback, tuple(outputs), given)]
        return [Tensor(g) for g in pull(node.pullback, outputs, given)]
    gradient = node.op.gradient(node.static, node.wanted)
    return list(apply(gradient, (list(node.operands), cotangents)))


def whole(gradient: Any) -> Tensor | None:
    """A gradient as a tensor, also where it is given by rows."""
    if gradient is None or type(gradient) is Tensor:
        return gradient
    return convert_to_tensor(gradient)


def value_in_context(tensor: Tensor) -> Any:
    """The array of a tensor as the current trace sees it."""
    return tensor._value if context.trace is None else context.trace.value_of(tensor)


class _Like:
    """Shape and dtype of an output, hashable so that it can be a static argument."""

    def __init__(self, shape: Any, dtype: Any) -> None:
        self.shape, self.dtype = tuple(shape), dtype

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Like) and (self.shape, self.dtype) == (other.shape, other.dtype)


_pull_compiled = jax.jit(
    lambda pullback, outputs, cotangents: pull(pullback, outputs, cotangents), static_argnums=1
)


class FunctionNode:
    """A recorded call with a gradient given by a Python function of tensors.

    Used for `custom_gradient`. The function is given tensors, also where gradients arrive by rows.
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

    def backward(self, arriving: list[Any]) -> Sequence[Any]:
        """Gradients of `inputs`, from one gradient (or None) per output."""
        return self._backward([whole(a) for a in arriving])


class ReadNode:
    """A recorded reading of a variable: its gradient is that of the value, as it arrives."""

    __slots__ = ("inputs", "outputs")

    def __init__(self, variable: Any, value: Tensor) -> None:
        self.inputs = [variable]
        self.outputs = [value]

    def backward(self, arriving: list[Any]) -> list[Any]:
        """The gradient of the variable."""
        return arriving
