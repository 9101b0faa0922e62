"""Decoders for connectionist temporal classification; they run on the host, as results vary in size."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike

__all__ = ["ctc_beam_search_decoder", "ctc_greedy_decoder"]


def _known(inputs: TensorLike, sequence_length: TensorLike, what: str) -> tuple[Any, Any]:
    logits = convert_to_tensor(inputs)._concrete(f"the inputs of {what}")
    lengths = convert_to_tensor(sequence_length)._concrete(f"sequence_length of {what}")
    if logits.ndim != 3 or lengths.shape != logits.shape[1:2]:
        raise InvalidValueError(
            f"{what}: inputs must be [time, batch, classes] and sequence_length [batch], got shapes "
            f"{list(logits.shape)} and {list(lengths.shape)}."
        )
    if lengths.size and lengths.max() > logits.shape[0]:
        raise InvalidValueError(f"{what}: sequence_length is at most {logits.shape[0]} here.")
    return np.asarray(logits), np.asarray(lengths)


def _sparse(sequences: list[list[int]]) -> SparseTensor:
    places = [(row, place) for row, s in enumerate(sequences) for place in range(len(s))]
    width = max((len(s) for s in sequences), default=0)
    return SparseTensor(
        np.asarray(places, np.int64).reshape(-1, 2),
        np.asarray([label for s in sequences for label in s], np.int64),
        [len(sequences), width],
    )


def ctc_greedy_decoder(
    inputs: TensorLike,
    sequence_length: TensorLike,
    merge_repeated: bool = True,
    blank_index: int | None = None,
) -> tuple[list[SparseTensor], Tensor]:
    """The labels of the most probable class of each frame, without blanks.

    Args:
      inputs: logits [time, batch, classes].
      sequence_length: numbers of frames, [batch].
      merge_repeated: whether equal neighbouring frames give one label.
      blank_index: the class that stands for no label; default the last.

    Returns:
      A pair: a list of one sparse tensor with the labels, and [batch, 1] sums of the negative largest
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
        kept = frames != blank
        if merge_repeated:
            kept[1:] &= frames[1:] != frames[:-1]
        sequences.append(frames[kept].tolist())
    return [_sparse(sequences)], convert_to_tensor(scores)


def _beams(log_probs: np.ndarray, width: int, blank: int) -> list[tuple[tuple[int, ...], float]]:
    """The most probable label sequences, each with the logarithm of its probability.

    A beam holds two numbers for a sequence: of the paths that end with a blank, and of those that
    end with its last label.
    """
    never = -np.inf
    beams: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, never)}
    for frame in log_probs:
        new: dict[tuple[int, ...], list[float]] = {}
        for labels, (ends_blank, ends_label) in beams.items():
            total = np.logaddexp(ends_blank, ends_label)
            stay = new.setdefault(labels, [never, never])
            stay[0] = np.logaddexp(stay[0], total + frame[blank])
            if labels:
                stay[1] = np.logaddexp(stay[1], ends_label + frame[labels[-1]])
            for label, gain in enumerate(frame):
                if label == blank:
                    continue
                longer = new.setdefault((*labels, label), [never, never])
                before = ends_blank if labels and labels[-1] == label else total
                longer[1] = np.logaddexp(longer[1], before + gain)
        ranked = sorted(new.items(), key=lambda item: -np.logaddexp(item[1][0], item[1][1]))
        beams = {labels: (p[0], p[1]) for labels, p in ranked[:width]}
    return [(labels, float(np.logaddexp(*p))) for labels, p in beams.items()]


def ctc_beam_search_decoder(
    inputs: TensorLike, sequence_length: TensorLike, beam_width: int = 100, top_paths: int = 1
) -> tuple[list[SparseTensor], Tensor]:
    """The most probable label sequences, found by beam search; the last class is the blank.

    Args:
      inputs: logits [time, batch, classes].
      sequence_length: numbers of frames, [batch].
      beam_width: number of sequences that are followed.
      top_paths: number of sequences that are returned, at most `beam_width`.

    Returns:
      A pair: `top_paths` sparse tensors with the labels, the most probable first, and logarithms of
      the probabilities [batch, top_paths].

    Raises:
      InvalidArgumentError: when there are fewer sequences than `top_paths`.

    Example:
      >>> import meshflow as tf
      >>> frame = tf.math.log([[[0.4, 0.6]]])  # of label 0 and of the blank
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
    found = [
        _beams(log_probs[:length, row], beam_width, logits.shape[2] - 1)[:top_paths]
        for row, length in enumerate(lengths)
    ]
    if any(len(paths) < top_paths for paths in found):
        raise InvalidValueError("ctc_beam_search_decoder: fewer sequences than top_paths.")
    scores = np.asarray([[score for _, score in paths] for paths in found], logits.dtype)
    decoded = [_sparse([list(paths[n][0]) for paths in found]) for n in range(top_paths)]
    return decoded, convert_to_tensor(scores.reshape(len(lengths), top_paths))
