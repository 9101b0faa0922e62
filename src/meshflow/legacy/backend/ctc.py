"""Connectionist temporal classification with Keras' conventions: probabilities by batch, the last class as blank."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.keras.ops.ctc import dense_paths
from meshflow.keras.settings import epsilon
from meshflow.ops import array, math, nn

__all__ = ["ctc_batch_cost", "ctc_decode", "ctc_label_dense_to_sparse"]


def _log_probabilities(y_pred: Any) -> Tensor:
    """Logarithms [time, batch, classes] of probabilities [batch, time, classes]."""
    return math.log(array.transpose(y_pred, [1, 0, 2]) + epsilon())


def ctc_batch_cost(y_true: Any, y_pred: Any, input_length: Any, label_length: Any) -> Tensor:
    """The CTC loss of each example.

    Args:
      y_true: class numbers [batch, max_label_length], of any dtype.
      y_pred: probabilities [batch, time, classes], as a softmax gives; the last class is the blank.
      input_length: numbers of frames, [batch, 1].
      label_length: lengths of the label sequences, [batch, 1].

    Returns:
      Losses [batch, 1]. Labels that do not fit into their frames have a very large loss, where
      TensorFlow raises an error.

    Example:
      >>> import meshflow as tf
      >>> half = tf.fill([1, 2, 2], 0.5)
      >>> loss = tf.keras.backend.ctc_batch_cost([[0]], half, [[2]], [[1]])  # -log(3 / 4)
      >>> round(float(loss[0, 0]), 4)
      0.2877
    """
    y_pred = convert_to_tensor(y_pred)
    losses = nn.ctc_loss(
        math.cast(y_true, "int32"),
        _log_probabilities(y_pred),
        math.cast(array.squeeze(label_length, axis=-1), "int32"),
        math.cast(array.squeeze(input_length, axis=-1), "int32"),
        blank_index=-1,
    )
    return array.expand_dims(losses, 1)


def ctc_decode(
    y_pred: Any,
    input_length: Any,
    greedy: bool = True,
    beam_width: int = 100,
    top_paths: int = 1,
) -> tuple[list[Tensor], Tensor]:
    """The most probable label sequences; computed on the host, thus not in a compiled function.

    Args:
      y_pred: probabilities [batch, time, classes]; the last class is the blank.
      input_length: numbers of frames, [batch].
      greedy: whether the best class of each frame is taken; otherwise a beam search is made, and equal
        neighbours in its sequences are merged.
      beam_width: number of sequences that the beam search follows.
      top_paths: number of sequences that the beam search returns.

    Returns:
      A pair: a list with `top_paths` int64 tensors [batch, time] of class numbers, filled with -1, and
      scores: [batch, 1] sums of the negative largest logarithms if greedy, otherwise logarithms of the
      probabilities, [batch, top_paths].

    Example:
      >>> import meshflow as tf
      >>> p = tf.constant([[[0.9, 0.05, 0.05], [0.1, 0.1, 0.8], [0.2, 0.7, 0.1]]])
      >>> decoded, _ = tf.keras.backend.ctc_decode(p, [3])
      >>> decoded[0].numpy()
      array([[ 0,  1, -1]])
    """
    y_pred = convert_to_tensor(y_pred)
    logits, lengths = _log_probabilities(y_pred), math.cast(input_length, "int32")
    if greedy:
        sequences, scores = nn.ctc_greedy_decoder(logits, lengths)
    else:
        sequences, scores = nn.ctc_beam_search_decoder(logits, lengths, beam_width, top_paths)
    decoded = [
        dense_paths(labels, y_pred.shape[1]).numpy().astype(np.int64) for labels in sequences
    ]
    if not greedy:
        for labels in decoded:
            _merge_repeated(labels)
    return [convert_to_tensor(labels) for labels in decoded], scores


def _merge_repeated(labels: np.ndarray) -> None:
    """Merges equal neighbours of rows that end with -1, in place, as Keras does with what the beam search finds."""
    for row in labels:
        kept = row[np.diff(row, prepend=-1) != 0]
        row[:] = -1
        row[: len(kept)] = kept


def ctc_label_dense_to_sparse(labels: Any, label_lengths: Any) -> SparseTensor:
    """The first labels of each row as a sparse tensor.

    Args:
      labels: class numbers [batch, max_label_length], whose values are known (not in a compiled function).
      label_lengths: how many labels of each row count, [batch].

    Example:
      >>> import meshflow as tf
      >>> sparse = tf.keras.backend.ctc_label_dense_to_sparse([[5, 6], [7, 0]], [2, 1])
      >>> sparse.values.numpy()
      array([5, 6, 7], dtype=int32)
    """
    what = "ctc_label_dense_to_sparse"
    labels = convert_to_tensor(labels)
    known = np.asarray(labels._concrete(f"the labels of {what}"))
    lengths = np.asarray(convert_to_tensor(label_lengths)._concrete(f"label_lengths of {what}"))
    kept = np.arange(known.shape[1])[None] < lengths[:, None]
    return SparseTensor(
        np.argwhere(kept), convert_to_tensor(known[kept], labels.dtype), known.shape
    )
