"""Recurrent layers over complete sequences as one op."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.kernels import recurrent


@op(
    name="recurrent_layer",
    same=("inputs", "kernel", "recurrent_kernel", "states", "bias", "keep"),
    kinds="f",
    heavy=True,
)
def run_recurrent_layer(
    inputs: TensorLike,
    kernel: TensorLike,
    recurrent_kernel: TensorLike,
    states: Sequence[TensorLike],
    bias: TensorLike | None,
    mask: TensorLike | None,
    keep: TensorLike | None,
    kind: str,
    reverse: bool,
    time_major: bool,
    returns_sequences: bool,
    zero_output_for_mask: bool,
) -> list[Tensor]:
    """Run a recurrent layer with tanh and sigmoid as activations.

    Args:
      inputs: [batch, time, features].
      kernel: [features, gates * units].
      recurrent_kernel: [units, gates * units].
      states: States before the first step, [batch, units].
      bias: [gates * units], or [2, 3 * units] for a `gru`; None for zero.
      mask: Booleans [batch or 1, time]; steps with False do not change states and output.
      keep: Factors of the first state in products, [batch, units], or None.
      kind: One of `recurrent.KINDS`.
      reverse: Whether the last step is computed first; outputs are in the order of execution.
      time_major: Whether arrays are [time, batch, ...].
      returns_sequences: Whether to return the outputs of all steps instead of the last.
      zero_output_for_mask: Whether the output of a masked step is zero instead of the previous one.

    Returns:
      The output, and the states after the last step.
    """
    form = recurrent.RecurrentForm(
        *(kind, reverse, time_major, returns_sequences, zero_output_for_mask),
        *(bias is not None, mask is not None, keep is not None),
    )
    mask = None if mask is None else jnp.broadcast_to(mask, inputs.shape[:2])
    optional = [a for a in (bias, mask, keep) if a is not None]
    return recurrent.run_layer(form, inputs, kernel, recurrent_kernel, *states, *optional)
