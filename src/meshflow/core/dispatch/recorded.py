"""What tapes are told of an op that ran: data only; `core.gradients.nodes` makes gradients of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshflow.core.dispatch.operation import Op
from meshflow.core.values.tensor import Tensor


class RecordedOp:
    """One op that ran with operands that somebody watches.

    Attributes:
      op: the op.
      operands: its operands.
      static: its static arguments.
      inputs: those tensors among the operands that gradients are wanted of.
      wanted: for each tensor among the operands, whether it is one of `inputs`.
      outputs: the results that have gradients.
      pullback: JAX's pullback, kept where that saves computing the op again, or None.
      scope: the layer and what is around it, of an op in a traced function.
    """

    __slots__ = ("inputs", "op", "operands", "outputs", "pullback", "scope", "static", "wanted")

    def __init__(
        self,
        op: Op,
        operands: Sequence[Any],
        static: tuple[Any, ...],
        inputs: list[Tensor],
        wanted: tuple[bool, ...],
        outputs: list[Tensor],
        pullback: Callable[..., Any] | None,
        scope: str = "",
    ) -> None:
        self.op = op
        self.operands = operands
        self.static = static
        self.inputs = [t for t, w in zip(inputs, wanted, strict=True) if w]
        self.wanted = wanted
        self.outputs = [o for o in outputs if is_differentiable(o)]
        self.pullback = pullback
        self.scope = scope


def is_differentiable(value: Any) -> bool:
    """Whether a tensor or variable has a floating or complex dtype."""
    return value.dtype.is_floating or value.dtype.is_complex
