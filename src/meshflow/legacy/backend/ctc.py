"""Connectionist temporal classification in Keras' conventions.

Inputs are probabilities with the batch as first axis, and the last class is the blank.
"""

from __future__ import annotations

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.ctc import densify_paths
from meshflow.keras.settings import epsilon
from meshflow.ops import array, math, nn

__all__ = ["ctc_batch_cost", "ctc_decode", "ctc_label_dense_to_sparse"]


def _compute_log_probabilities(y_pred: TensorLike) -> Tensor:
    """Return log probabilities [time, batch, classes] of probabilities [batch, time, classes]."""
    return math.log(array.transpose(y_pred, [1, 0, 2]) + epsilon())


def ctc_batch_cost(
    y_true: TensorLike, y_pred: TensorLike, input_length: TensorLike, label_length: TensorLike
) -> Tensor:
    """Compute the CTC loss of each example.

    Args:
      y_true: Labels [batch, max_label_length], of any dtype.
      y_pred: Probabilities [batch, time, classes], as softmax returns; the last class is the blank.
      input_length: Number of frames of each example, [batch, 1].
      label_length: Length of each label sequence, [batch, 1].

    Returns:
      Losses [batch, 1]. Labels that do not fit into their frames have a very large loss;
      TensorFlow raises an error for them.

    Example:
      >>> half = tf.fill([1, 2, 2], 0.5)
      >>> loss = tf.keras.backend.ctc_batch_cost([[0]], half, [[2]], [[1]])  # -log(3 / 4)
      >>> round(float(loss[0, 0]), 4)
      0.2877
    """
    y_pred = convert_to_tensor(y_pred)
    losses = nn.ctc_loss(
        math.cast(y_true, "int32"),
        _compute_log_probabilities(y_pred),
        math.cast(array.squeeze(label_length, axis=-1), "int32"),
        math.cast(array.squeeze(input_length, axis=-1), "int32"),
        blank_index=-1,
    )
    return array.expand_dims(losses, 1)


def ctc_decode(
    y_pred: TensorLike,
    input_length: TensorLike,
    greedy: bool = True,
    beam_width: int = 100,
    top_paths: int = 1,
) -> tuple[list[Tensor], Tensor]:
    """Decode the most probable label sequences on the host.

    This does not work in a compiled function.

    Args:
      y_pred: Probabilities [batch, time, classes]; the last class is the blank.
      input_length: Number of frames of each example, [batch].
      greedy: Whether to take the best class of each frame. Otherwise a beam search runs, and equal
        neighbors in its sequences are merged.
      beam_width: Number of sequences that the beam search keeps.
      top_paths: Number of sequences that the beam search returns.

    Returns:
      A pair: a list with `top_paths` int64 tensors [batch, time] of class ids, padded with -1, and
      scores: if greedy, the negative sums of the largest log probabilities, [batch, 1]; otherwise
      log probabilities, [batch, top_paths].

    Example:
      >>> p = tf.constant([[[0.9, 0.05, 0.05], [0.1, 0.1, 0.8], [0.2, 0.7, 0.1]]])
      >>> decoded, _ = tf.keras.backend.ctc_decode(p, [3])
      >>> decoded[0].numpy()
      array([[ 0,  1, -1]])
    """
    y_pred = convert_to_tensor(y_pred)
    logits, lengths = _compute_log_probabilities(y_pred), math.cast(input_length, "int32")
    if greedy:
        sequences, scores = nn.ctc_greedy_decoder(logits, lengths)
    else:
        sequences, scores = nn.ctc_beam_search_decoder(logits, lengths, beam_width, top_paths)
    decoded = [
        densify_paths(labels, y_pred.shape[1]).numpy().astype(np.int64) for labels in sequences
    ]
    if not greedy:
        for labels in decoded:
            _merge_repeated(labels)
    return [convert_to_tensor(labels) for labels in decoded], scores


def _merge_repeated(labels: np.ndarray) -> None:
    """Merge equal neighbors in rows that end with -1, in place."""
    for row in labels:
        merged = row[np.diff(row, prepend=-1) != 0]
        row[:] = -1
        row[: len(merged)] = merged


def ctc_label_dense_to_sparse(labels: TensorLike, label_lengths: TensorLike) -> SparseTensor:
    """Convert the leading labels of each row to a sparse tensor.

    Args:
      labels: Labels [batch, max_label_length], with values that are known (not in a compiled
        function).
      label_lengths: Number of valid labels in each row, [batch].

    Example:
      >>> sparse = tf.keras.backend.ctc_label_dense_to_sparse([[5, 6], [7, 0]], [2, 1])
      >>> sparse.values.numpy()
      array([5, 6, 7], dtype=int32)
    """
    labels = convert_to_tensor(labels)
    dense = np.asarray(labels.require_value("the labels of ctc_label_dense_to_sparse"))
    lengths = np.asarray(
        convert_to_tensor(label_lengths).require_value("label_lengths of ctc_label_dense_to_sparse")
    )
    is_valid = np.arange(dense.shape[1])[None] < lengths[:, None]
    return SparseTensor(
        np.argwhere(is_valid), convert_to_tensor(dense[is_valid], labels.dtype), dense.shape
    )
