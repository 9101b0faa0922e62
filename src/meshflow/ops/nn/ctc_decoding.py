"""Decoders for connectionist temporal classification.

They run on the host, because the sizes of their results depend on values.
"""

from __future__ import annotations

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike

__all__ = ["ctc_beam_search_decoder", "ctc_greedy_decoder"]


def _known(
    inputs: TensorLike, sequence_length: TensorLike, op: str
) -> tuple[np.ndarray, np.ndarray]:
    logits = convert_to_tensor(inputs)._concrete(f"the inputs of {op}")
    lengths = convert_to_tensor(sequence_length)._concrete(f"sequence_length of {op}")
    if logits.ndim != 3 or lengths.shape != logits.shape[1:2]:
        raise InvalidValueError(
            f"{op}: inputs must be [time, batch, classes] and sequence_length [batch], got shapes "
            f"{list(logits.shape)} and {list(lengths.shape)}."
        )
    if lengths.size and lengths.max() > logits.shape[0]:
        raise InvalidValueError(
            f"{op}: sequence_length must be at most {logits.shape[0]}, the number of frames, got {lengths.max()}."
        )
    return np.asarray(logits), np.asarray(lengths)


def _sparse(sequences: list[list[int]]) -> SparseTensor:
    indices = [(row, column) for row, s in enumerate(sequences) for column in range(len(s))]
    width = max((len(s) for s in sequences), default=0)
    return SparseTensor(
        np.asarray(indices, np.int64).reshape(-1, 2),
        np.asarray([label for s in sequences for label in s], np.int64),
        [len(sequences), width],
    )


def ctc_greedy_decoder(
    inputs: TensorLike,
    sequence_length: TensorLike,
    merge_repeated: bool = True,
    blank_index: int | None = None,
) -> tuple[list[SparseTensor], Tensor]:
    """Decode the most probable class of each frame, without blanks.

    Args:
      inputs: Logits [time, batch, classes].
      sequence_length: Numbers of frames [batch].
      merge_repeated: Whether to merge equal consecutive classes.
      blank_index: Index of the blank class; by default the last.

    Returns:
      A pair: a list with one sparse tensor of labels, and [batch, 1] negative sums of the largest
      logits.

    Example:
      >>> import meshflow as tf
      >>> logits = tf.one_hot([[0], [0], [2], [1]], 3)  # 0, 0, blank, 1
      >>> (labels,), _ = tf.nn.ctc_greedy_decoder(logits, sequence_length=[4])
      >>> print(tf.sparse.to_dense(labels).numpy())
      [[0 1]]
    """
    logits, lengths = _known(inputs, sequence_length, "ctc_greedy_decoder")
    classes = logits.shape[2]
    blank = classes - 1 if blank_index is None else blank_index % classes
    best = logits.argmax(-1)
    sequences, scores = [], np.zeros((len(lengths), 1), logits.dtype)
    for row, length in enumerate(lengths):
        frames = best[:length, row]
        scores[row] = -logits[np.arange(length), row, frames].sum()
        selected = frames != blank
        if merge_repeated:
            selected[1:] &= frames[1:] != frames[:-1]
        sequences.append(frames[selected].tolist())
    return [_sparse(sequences)], convert_to_tensor(scores)


def _beams(log_probs: np.ndarray, width: int, blank: int) -> list[tuple[tuple[int, ...], float]]:
    """Find the most probable label sequences, each with its log-probability.

    A beam stores two log-probabilities per sequence: that of the paths ending with a blank, and
    that of the paths ending with its last label.
    """
    log_zero = -np.inf
    beams: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, log_zero)}
    for frame in log_probs:
        new: dict[tuple[int, ...], list[float]] = {}
        for labels, (ends_blank, ends_label) in beams.items():
            total = np.logaddexp(ends_blank, ends_label)
            same = new.setdefault(labels, [log_zero, log_zero])
            same[0] = np.logaddexp(same[0], total + frame[blank])
            if labels:
                same[1] = np.logaddexp(same[1], ends_label + frame[labels[-1]])
            for label, gain in enumerate(frame):
                if label == blank:
                    continue
                longer = new.setdefault((*labels, label), [log_zero, log_zero])
                before = ends_blank if labels and labels[-1] == label else total
                longer[1] = np.logaddexp(longer[1], before + gain)
        ranked = sorted(new.items(), key=lambda item: -np.logaddexp(item[1][0], item[1][1]))
        beams = {labels: (p[0], p[1]) for labels, p in ranked[:width]}
    return [(labels, float(np.logaddexp(*p))) for labels, p in beams.items()]


def ctc_beam_search_decoder(
    inputs: TensorLike, sequence_length: TensorLike, beam_width: int = 100, top_paths: int = 1
) -> tuple[list[SparseTensor], Tensor]:
    """Decode the most probable label sequences by beam search; the last class is the blank.

    Args:
      inputs: Logits [time, batch, classes].
      sequence_length: Numbers of frames [batch].
      beam_width: Number of sequences in the beam.
      top_paths: Number of sequences to return, at most `beam_width`.

    Returns:
      A pair: `top_paths` sparse tensors of labels, the most probable first, and log-probabilities
      [batch, top_paths].

    Raises:
      InvalidArgumentError: If fewer than `top_paths` sequences are possible.

    Example:
      >>> import meshflow as tf
      >>> frame = tf.math.log([[[0.4, 0.6]]])  # label 0, blank
      >>> paths, logs = tf.nn.ctc_beam_search_decoder(tf.repeat(frame, 2, axis=0), [2], top_paths=2)
      >>> [p.values.numpy().tolist() for p in paths], str(tf.exp(logs).numpy().round(2))
      ([[0], []], '[[0.64 0.36]]')
    """
    logits, lengths = _known(inputs, sequence_length, "ctc_beam_search_decoder")
    if top_paths > beam_width:
        raise InvalidValueError(
            f"ctc_beam_search_decoder: top_paths ({top_paths}) is larger than beam_width ({beam_width})."
        )
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    beams = [
        _beams(log_probs[:length, row], beam_width, logits.shape[2] - 1)[:top_paths]
        for row, length in enumerate(lengths)
    ]
    if any(len(paths) < top_paths for paths in beams):
        raise InvalidValueError(
            f"ctc_beam_search_decoder: fewer than top_paths={top_paths} sequences are possible."
        )
    scores = np.asarray([[score for _, score in paths] for paths in beams], logits.dtype)
    decoded = [_sparse([list(paths[n][0]) for paths in beams]) for n in range(top_paths)]
    return decoded, convert_to_tensor(scores.reshape(len(lengths), top_paths))
