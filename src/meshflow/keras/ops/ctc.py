"""Connectionist temporal classification (CTC): the loss, and decoding.

Example:
  >>> ops.ctc_decode([[[0.0, 9.0], [0.0, 9.0]]], [2])[0].numpy().tolist()
  [[[1, -1]]]
"""

from __future__ import annotations

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.promotion import as_float, as_tensor
from meshflow.ops import array as array_ops
from meshflow.ops import casting
from meshflow.ops import nn as nn_ops

__all__ = ["ctc_decode", "ctc_loss"]


def ctc_loss(
    target: TensorLike,
    output: TensorLike,
    target_length: TensorLike,
    output_length: TensorLike,
    mask_index: int = 0,
) -> Tensor:
    """Compute the connectionist temporal classification loss of each sequence.

    Args:
      target: Class indices, [batch, length].
      output: Logits, [batch, time, classes].
      target_length: Lengths of the targets, [batch].
      output_length: Lengths of the outputs, [batch].
      mask_index: Index of the blank class.

    Example:
      >>> print(ops.ctc_loss([[1]], ops.zeros([1, 2, 2]), [1], [2]).numpy().round(4))
      [0.2877]
    """
    return nn_ops.ctc_loss(
        casting.cast(as_tensor(target), "int32"),
        as_float(output),
        casting.cast(as_tensor(target_length), "int32"),
        casting.cast(as_tensor(output_length), "int32"),
        logits_time_major=False,
        blank_index=mask_index,
    )


def ctc_decode(
    inputs: TensorLike,
    sequence_lengths: TensorLike,
    strategy: str = "greedy",
    beam_width: int = 100,
    top_paths: int = 1,
    merge_repeated: bool = True,
    mask_index: int = 0,
) -> tuple[Tensor, Tensor]:
    """Find the most probable sequences of classes.

    Args:
      inputs: Logits, [batch, time, classes].
      sequence_lengths: Lengths of the inputs, [batch].
      strategy: 'greedy' or 'beam_search'.
      beam_width: Number of prefixes that a beam search keeps.
      top_paths: Number of sequences that a beam search returns.
      merge_repeated: Whether to merge repeated classes.
      mask_index: Index of the blank class.

    Returns:
      Sequences [paths, batch, length], padded with -1, and their scores.

    Example:
      >>> ops.ctc_decode([[[0.0, 9.0], [0.0, 9.0]]], [2])[0].numpy().tolist()
      [[[1, -1]]]
    """
    if strategy not in ("greedy", "beam_search"):
        raise ValueError(
            f"Invalid strategy {strategy}. Supported values are 'greedy' and 'beam_search'."
        )
    inputs = array_ops.transpose(as_float(inputs), [1, 0, 2])
    lengths = casting.cast(as_tensor(sequence_lengths), "int32")
    if strategy == "greedy":
        decoded, scores = nn_ops.ctc_greedy_decoder(
            inputs, lengths, merge_repeated, blank_index=mask_index
        )
    else:
        if mask_index != inputs.shape[-1] - 1:
            # `ctc_beam_search_decoder` requires the blank as the last class.
            order = [i for i in range(inputs.shape[-1]) if i != mask_index]
            inputs = array_ops.gather(inputs, [*order, mask_index], axis=-1)
        decoded, scores = nn_ops.ctc_beam_search_decoder(inputs, lengths, beam_width, top_paths)
    width = int(inputs.shape[0])
    rows = [densify_paths(d, width) for d in decoded]
    if strategy == "beam_search":
        rows = [
            array_ops.where(r >= mask_index, r + 1, r) if mask_index < inputs.shape[-1] - 1 else r
            for r in rows
        ]
    return array_ops.stack(rows), scores


def densify_paths(decoded: SparseTensor, width: int) -> Tensor:
    """Convert decoded sequences to dense rows, padded with -1.

    Args:
      decoded: A sparse tensor of labels, [batch, length].
      width: Length of the rows.
    """
    rows = array_ops.fill([int(decoded.dense_shape[0]), width], -1)
    values = casting.cast(decoded.values, "int32")
    return array_ops.tensor_scatter_nd_update(rows, decoded.indices, values)
