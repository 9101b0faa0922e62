"""Products of layers under the policy `mixed_float8`.

A layer keeps the largest magnitudes of its product's input, its kernel and the gradient of its
result, over the last steps of training. Each step takes its scales from them and adds its own.

Products of two computed tensors, as in attention, keep the second's magnitudes where a kernel's
would be. Depthwise convolutions stay in bfloat16: no device has float8 units for them.

The history is no weight of the layer: counts, `get_weights` and files of weights are the same
under every policy. Checkpoints save it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.gradients.custom_gradient import custom_gradient
from meshflow.core.gradients.tape import no_tapes
from meshflow.core.runtime.context import context
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.distribute.replicas.context import max_over_replicas
from meshflow.keras.engine.symbolic.call_signature import call_state
from meshflow.keras.mixed_precision import float8

# The rows of a history, and the format of each.
INPUT, KERNEL, GRADIENT = 0, 1, 2
_KINDS = (float8.VALUES, float8.VALUES, float8.GRADIENTS)


class Float8State:
    """What a layer's product remembers.

    Args:
      length: over how many steps.

    Attributes:
      amax_history: float32 variable [3, length]: the largest magnitudes of input, kernel and
        gradient, the latest first.
    """

    def __init__(self, length: int) -> None:
        with init_scope():
            zeros = np.zeros((3, length), np.float32)
            self.amax_history = Variable(zeros, trainable=False, name="amax_history")

    def scales(self, rows: tuple[int, ...], tensors: Sequence[Tensor], keep: Any) -> Tensor:
        """Scales for tensors, from what was seen before them.

        Args:
          rows: which they are.
          tensors: the tensors.
          keep: whether their magnitudes are remembered, a bool or a bool tensor.

        Returns:
          A float32 tensor with a scale for each.
        """
        with no_tapes():
            seen = max_over_replicas(apply(_largest, (list(tensors),)))
            history = self.amax_history.value()
            scales, moved = apply(_advanced, (history, seen), (rows,))
            if isinstance(keep, Tensor):
                moved = apply(_either, (keep, moved, history))
            if keep is not False:
                self.amax_history.assign(moved)
        return scales


def product(
    layer: Any, compute: Callable[[Any, Any], Any], inputs: Any, kernel: Any, part: str = "state"
) -> Any:
    """A layer's product, in float8 when its policy says so.

    Args:
      layer: the layer.
      compute: gives the product of two tensors.
      inputs: the first.
      kernel: the second: a kernel, or a tensor like the first.
      part: tells apart the products of one layer.

    Returns:
      What `compute` returns.
    """
    policy = layer.dtype_policy
    if not policy.float8:
        return compute(inputs, kernel)
    state = layer.__dict__.get(f"_float8_{part}")
    if state is None:
        state = Float8State(policy.amax_history_length)
        setattr(layer, f"_float8_{part}", state)
    kernel = kernel.value() if isinstance(kernel, Variable) else kernel
    keep = _training()
    scales = state.scales((INPUT, KERNEL), (inputs, kernel), keep)
    outputs = compute(
        apply(_rounded, (inputs, scales), (INPUT,)), apply(_rounded, (kernel, scales), (KERNEL,))
    )
    return _with_rounded_gradient(state, outputs, keep)


def _training() -> Any:
    """Whether magnitudes are remembered: in training, or when nobody said and a tape looks on."""
    told = call_state.training[-1] if call_state.training else None
    if told is None:
        return bool(context.tapes) or context.outer_tapes
    return told if isinstance(told, Tensor) else bool(told)


def _with_rounded_gradient(state: Float8State, outputs: Tensor, keep: Any) -> Tensor:
    if not context.tapes:
        # Derivatives are taken of the program this becomes a part of, which cannot keep state.
        return apply(_self_scaled, (outputs,)) if context.trace is not None else outputs

    scope = context.trace

    @custom_gradient
    def identity(value: Tensor) -> Any:
        def gradient(arriving: Tensor) -> Tensor:
            if context.trace is not scope:
                # One of many rows of a Jacobian.
                return apply(_rounded_alone, (arriving,))
            scales = state.scales((GRADIENT,), (arriving,), keep)
            return apply(_rounded, (arriving, scales), (GRADIENT,))

        return value, gradient

    return identity(outputs)


def _round(operands: Any, static: Any) -> Any:
    array, scales = operands
    (row,) = static
    return float8.rounded(array, scales[0 if row == GRADIENT else row], _KINDS[row])


def _advance(operands: Any, static: Any) -> Any:
    history, seen = operands
    (rows,) = static
    scales = []
    for i, row in enumerate(rows):
        known = jnp.max(history[row])
        # Before the first step there is only the tensor itself to go by.
        known = jnp.where(known > 0, known, seen[i])
        scales.append(float8.scale_for(known, _KINDS[row]))
        # A step that overflowed says nothing of the next one.
        latest = jnp.where(jnp.isfinite(seen[i]), seen[i], 0)
        moved = jnp.roll(history[row], 1).at[0].set(latest)
        history = history.at[row].set(moved)
    return jnp.stack(scales), history


def _op(name: str, call: Callable[..., Any], differentiable: bool = False) -> Op:
    return Op(f"float8_{name}", call, differentiable=differentiable)


_rounded = _op("rounded", _round, differentiable=True)
_rounded_alone = _op(
    "rounded_alone", lambda operands, _: float8.rounded_alone(operands[0]), differentiable=True
)
_self_scaled = _op(
    "gradient", lambda operands, _: float8.with_rounded_gradient(operands[0]), differentiable=True
)
_advanced = _op("scales", _advance)
_largest = _op("largest", lambda operands, _: jnp.stack([float8.largest(a) for a in operands[0]]))
_either = _op("either", lambda operands, _: jax.lax.select(*operands))
