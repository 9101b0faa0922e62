"""Products of layers under the policy `mixed_float8`, with delayed scaling.

A layer keeps a history of the largest magnitudes (amax) of the input, the kernel and the output
gradient of its product over the last training steps. Each step computes its scales from the history
and adds its own magnitudes.

Products of two activations, as in attention, use the kernel's history for the second operand.
Depthwise convolutions are computed in bfloat16, because no device has float8 units for them.

The history is not a weight of the layer: parameter counts, `get_weights` and weight files are the
same under every policy. Checkpoints contain it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.gradients.custom_gradients import custom_gradient
from meshflow.core.gradients.tape import suspend_tapes
from meshflow.core.runtime.context import context
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.distribute.replicas.context import max_over_replicas
from meshflow.environment.types import Array
from meshflow.keras.engine.symbolic.call_signature import call_state
from meshflow.keras.mixed_precision import float8

# Rows of the history, and the float8 format of each.
INPUT, KERNEL, GRADIENT = 0, 1, 2
_FORMATS = (float8.VALUE_DTYPE, float8.VALUE_DTYPE, float8.GRADIENT_DTYPE)


class Float8State:
    """Amax history of a product of a layer.

    Args:
      length: Number of training steps in the history.

    Attributes:
      amax_history: float32 variable [3, length]: largest magnitudes of input, kernel and gradient,
        the latest first.
    """

    def __init__(self, length: int) -> None:
        with init_scope():
            zeros = np.zeros((3, length), np.float32)
            self.amax_history = Variable(zeros, trainable=False, name="amax_history")

    def update_scales(
        self, rows: tuple[int, ...], tensors: Sequence[Tensor], keep: Tensor | bool
    ) -> Tensor:
        """Compute scales for tensors from the history, then add their magnitudes to it.

        Args:
          rows: History row of each tensor.
          tensors: The tensors.
          keep: Whether the magnitudes are added to the history, a bool or a bool tensor.

        Returns:
          A float32 tensor with a scale for each tensor.
        """
        with suspend_tapes():
            magnitudes = max_over_replicas(apply(_amax_op, (list(tensors),)))
            history = self.amax_history.value()
            scales, new_history = apply(_update_history_op, (history, magnitudes), (rows,))
            if isinstance(keep, Tensor):
                new_history = apply(_select_op, (keep, new_history, history))
            if keep is not False:
                self.amax_history.assign(new_history)
        return scales


def compute_product(
    layer: Any,
    compute: Callable[[Any, Any], Any],
    inputs: Tensor,
    kernel: Variable | Tensor,
    part: str = "state",
) -> Any:
    """Compute a product of a layer, in float8 if its dtype policy requests it.

    Args:
      layer: The layer.
      compute: Function that computes the product of two tensors.
      inputs: First operand.
      kernel: Second operand: a kernel or a tensor.
      part: Name of the history, which distinguishes several products of one layer.

    Returns:
      The result of `compute`.
    """
    policy = layer.dtype_policy
    if not policy.uses_float8:
        return compute(inputs, kernel)
    state = layer.__dict__.get(f"_float8_{part}")
    if state is None:
        state = Float8State(policy.amax_history_length)
        setattr(layer, f"_float8_{part}", state)
    kernel = kernel.value() if isinstance(kernel, Variable) else kernel
    keep = _should_update_history()
    scales = state.update_scales((INPUT, KERNEL), (inputs, kernel), keep)
    outputs = compute(
        apply(_round_op, (inputs, scales), (INPUT,)), apply(_round_op, (kernel, scales), (KERNEL,))
    )
    return _round_gradient(state, outputs, keep)


def _should_update_history() -> Tensor | bool:
    """Check whether training runs; without an explicit mode, whether a tape records."""
    training = call_state.training[-1] if call_state.training else None
    if training is None:
        return bool(context.tapes) or context.outer_tapes
    return training if isinstance(training, Tensor) else bool(training)


def _round_gradient(state: Float8State, outputs: Tensor, keep: Tensor | bool) -> Tensor:
    if not context.tapes:
        # An enclosing program differentiates these operations; its gradient cannot update the
        # history.
        return apply(_round_gradient_op, (outputs,)) if context.trace is not None else outputs

    scope = context.trace

    @custom_gradient
    def identity(value: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        def gradient(arriving: Tensor) -> Tensor:
            if context.trace is not scope:
                # The gradient is one of many rows of a Jacobian, which must not change the history.
                return apply(_round_by_own_scale_op, (arriving,))
            scales = state.update_scales((GRADIENT,), (arriving,), keep)
            return apply(_round_op, (arriving, scales), (GRADIENT,))

        return value, gradient

    return identity(outputs)


def _round_operand(operands: tuple[Array, Array], static: tuple[int]) -> Array:
    array, scales = operands
    (row,) = static
    return float8.round_scaled(array, scales[0 if row == GRADIENT else row], _FORMATS[row])


def _update_history(
    operands: tuple[jax.Array, jax.Array], static: tuple[tuple[int, ...]]
) -> tuple[jax.Array, jax.Array]:
    history, magnitudes = operands
    (rows,) = static
    scales = []
    for i, row in enumerate(rows):
        amax = jnp.max(history[row])
        # The history is empty before the first step, so the scale follows from the tensor itself.
        amax = jnp.where(amax > 0, amax, magnitudes[i])
        scales.append(float8.compute_scale(amax, _FORMATS[row]))
        # The magnitude of a step that overflowed does not predict the next one.
        latest = jnp.where(jnp.isfinite(magnitudes[i]), magnitudes[i], 0)
        row_history = jnp.roll(history[row], 1).at[0].set(latest)
        history = history.at[row].set(row_history)
    return jnp.stack(scales), history


def _make_op(name: str, call: Callable[..., Any], differentiable: bool = False) -> Op:
    return Op(f"float8_{name}", call, differentiable=differentiable)


_round_op = _make_op("rounded", _round_operand, differentiable=True)
_round_by_own_scale_op = _make_op(
    "rounded_alone", lambda operands, _: float8.round_gradient(operands[0]), differentiable=True
)
_round_gradient_op = _make_op(
    "gradient", lambda operands, _: float8.with_rounded_gradient(operands[0]), differentiable=True
)
_update_history_op = _make_op("scales", _update_history)
_amax_op = _make_op(
    "largest", lambda operands, _: jnp.stack([float8.compute_amax(a) for a in operands[0]])
)
_select_op = _make_op("either", lambda operands, _: jax.lax.select(*operands))
