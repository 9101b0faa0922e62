"""The record of an op on gradient tapes.

It only holds data; `core.gradients.tape_nodes` computes gradients from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshflow.core.dispatch.operation import Op
from meshflow.core.dispatch.repeated_calls import ScopedPullback
from meshflow.core.values.tensor import Tensor


class RecordedOp:
    """One executed op with watched operands.

    Attributes:
      op: The op.
      operands: Operands of the op.
      static: Static arguments of the op.
      inputs: The tensors among the operands for which gradients are requested.
      requested: For each tensor among the operands, whether it is in `inputs`.
      outputs: The differentiable results.
      pullback: JAX's pullback, if it was stored to avoid computing the op again, or None.
      scope: Name scopes around the op in a traced function, such as its layer.
    """

    __slots__ = ("inputs", "op", "operands", "outputs", "pullback", "requested", "scope", "static")

    def __init__(
        self,
        op: Op,
        operands: Sequence[Any],
        static: tuple[Any, ...],
        inputs: list[Tensor],
        requested: tuple[bool, ...],
        outputs: list[Tensor],
        pullback: Callable[..., Any] | ScopedPullback | None,
        scope: str = "",
    ) -> None:
        self.op = op
        self.operands = operands
        self.static = static
        self.inputs = [t for t, w in zip(inputs, requested, strict=True) if w]
        self.requested = requested
        self.outputs = [o for o in outputs if is_differentiable(o)]
        self.pullback = pullback
        self.scope = scope


def is_differentiable(value: Any) -> bool:
    """Check whether a tensor or variable has a floating or complex dtype."""
    return value.dtype.is_floating or value.dtype.is_complex
