"""Decoders for connectionist temporal classification.

They run on the host, because the sizes of their results depend on values.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.dispatch.symbolic_calls import record_in_graph
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.unknown_sizes import Result, compute_on_host, host_function, read_sizes

__all__ = ["ctc_beam_search_decoder", "ctc_greedy_decoder"]


# The label sequences of each path and example.
_Paths = Sequence[Sequence[Sequence[int]]]


def _decode(
    inputs: TensorLike,
    sequence_length: TensorLike,
    decode: Callable[..., list[np.ndarray]],
    num_paths: int,
    op: str,
) -> tuple[list[SparseTensor], Tensor]:
    """Decode logits on the host.

    Args:
      inputs: Logits [time, batch, classes].
      sequence_length: Numbers of frames [batch].
      decode: Host function of both that returns the results of `_list_paths`.
      num_paths: Number of sparse tensors.
      op: Name of the op.
    """
    logits, lengths = convert_to_tensor(inputs), convert_to_tensor(sequence_length)
    if logits.ndim != 3 or lengths.array.shape != logits.array.shape[1:2]:
        raise InvalidValueError(
            f"{op}: inputs must be [time, batch, classes] and sequence_length [batch], got shapes "
            f"{list(logits.shape)} and {list(lengths.shape)}."
        )

    batch_size = logits.array.shape[1]
    types: list[Result] = [((batch_size, num_paths), logits.array.dtype)]
    for n in range(num_paths):
        types += [((f"count{n}", 2), np.int64), ((f"count{n}",), np.int64), ((), np.int64)]
    scores, *parts = compute_on_host(decode, [logits, lengths], types, f"the inputs of {op}")
    return [
        SparseTensor(indices, values, [batch_size, read_sizes(width, "a number of labels")])
        for indices, values, width in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    ], scores


def _check_lengths(op: str, logits: np.ndarray, lengths: np.ndarray) -> None:
    if lengths.size and lengths.max() > logits.shape[0]:
        raise InvalidValueError(
            f"{op}: sequence_length must be at most {logits.shape[0]}, the number of frames, got {lengths.max()}."
        )


def _list_paths(paths: _Paths, scores: np.ndarray) -> list[np.ndarray]:
    """Return the scores, and the indices, labels and maximum length of the sequences of each path."""
    results = [scores]
    for path in paths:
        indices = [(row, column) for row, s in enumerate(path) for column in range(len(s))]
        results += [
            np.asarray(indices, np.int64).reshape(-1, 2),
            np.asarray([label for s in path for label in s], np.int64),
            np.asarray(max(map(len, path), default=0)),
        ]
    return results


@record_in_graph
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
      >>> logits = tf.one_hot([[0], [0], [2], [1]], 3)  # 0, 0, blank, 1
      >>> (labels,), _ = tf.nn.ctc_greedy_decoder(logits, sequence_length=[4])
      >>> print(tf.sparse.to_dense(labels).numpy())
      [[0 1]]
    """
    decode = functools.partial(_decode_greedily, bool(merge_repeated), blank_index)
    return _decode(inputs, sequence_length, decode, 1, "ctc_greedy_decoder")


@host_function
def _decode_greedily(
    merge_repeated: bool, blank_index: int | None, logits: np.ndarray, lengths: np.ndarray
) -> list[np.ndarray]:
    _check_lengths("ctc_greedy_decoder", logits, lengths)
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
    return _list_paths([sequences], scores)


# The log-probabilities of label sequences: of the paths ending with a blank, and of those ending with the last label.
_Beams: TypeAlias = dict[tuple[int, ...], tuple[float, float]]


def _search_beams(
    log_probs: np.ndarray, width: int, blank: int
) -> list[tuple[tuple[int, ...], float]]:
    """Find probable label sequences, each with its log-probability, the most probable first.

    In each frame, all sequences of the beam compete with their extensions, those of the most probable sequences
    first. As in TensorFlow, a sequence that has left the beam in this frame is not extended if it is met again as
    an extension, so the result depends on this order.
    """
    beams: _Beams = {(): (0.0, -np.inf)}
    for frame in log_probs:
        beams = _add_extensions(beams, _repeat_ends(beams, frame, blank), frame, width, blank)
    return [(labels, float(np.logaddexp(*p))) for labels, p in beams.items()]


def _repeat_ends(beams: _Beams, frame: np.ndarray, blank: int) -> _Beams:
    """Return the same sequences after a frame, which adds a blank, or a label that the sequence ends with."""
    new: _Beams = {}
    for labels, (ends_blank, ends_label) in beams.items():
        total = np.logaddexp(ends_blank, ends_label)
        if labels:
            if labels[:-1] in beams:
                before = _sum_extended_paths(labels[:-1], beams[labels[:-1]], labels[-1])
                ends_label = np.logaddexp(ends_label, before)
            ends_label += frame[labels[-1]]
        new[labels] = total + frame[blank], ends_label
    return new


def _add_extensions(
    beams: _Beams, new: _Beams, frame: np.ndarray, width: int, blank: int
) -> _Beams:
    """Add extensions of the sequences of a beam to `new`, and return the `width` most probable sequences."""
    # The sequences by their probability; the first one leaves the beam next.
    ranked = [(np.logaddexp(*p), labels) for labels, p in new.items()]
    heapq.heapify(ranked)
    dropped = set[tuple[int, ...]]()
    for labels, paths in beams.items():
        if labels in dropped:
            continue
        for label, gain in enumerate(frame):
            longer = (*labels, label)
            if label == blank or longer in new:
                continue
            score = _sum_extended_paths(labels, paths, label) + gain
            if len(ranked) < width and score > -np.inf:
                heapq.heappush(ranked, (score, longer))
            elif score > ranked[0][0]:
                del new[heapq.heapreplace(ranked, (score, longer))[1]]
            else:
                dropped.add(longer)
                continue
            new[longer] = -np.inf, score
    return {labels: new[labels] for _, labels in sorted(ranked, reverse=True)}


def _sum_extended_paths(labels: tuple[int, ...], paths: tuple[float, float], label: int) -> float:
    """Return the log-probability of the paths of a sequence that a label extends; an equal label needs a blank before it."""
    return paths[0] if labels and labels[-1] == label else np.logaddexp(*paths)


@record_in_graph
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
      >>> frame = tf.math.log([[[0.4, 0.6]]])  # label 0, blank
      >>> paths, logs = tf.nn.ctc_beam_search_decoder(tf.repeat(frame, 2, axis=0), [2], top_paths=2)
      >>> [p.values.numpy().tolist() for p in paths], str(tf.exp(logs).numpy().round(2))
      ([[0], []], '[[0.64 0.36]]')
    """
    if top_paths > beam_width:
        raise InvalidValueError(
            f"ctc_beam_search_decoder: top_paths ({top_paths}) is larger than beam_width ({beam_width})."
        )
    decode = functools.partial(_decode_by_beams, int(beam_width), int(top_paths))
    return _decode(inputs, sequence_length, decode, top_paths, "ctc_beam_search_decoder")


@host_function
def _decode_by_beams(
    beam_width: int, top_paths: int, logits: np.ndarray, lengths: np.ndarray
) -> list[np.ndarray]:
    _check_lengths("ctc_beam_search_decoder", logits, lengths)
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    beams = [
        _search_beams(log_probs[:length, row], beam_width, logits.shape[2] - 1)[:top_paths]
        for row, length in enumerate(lengths)
    ]
    if any(len(paths) < top_paths for paths in beams):
        raise InvalidValueError(
            f"ctc_beam_search_decoder: fewer than top_paths={top_paths} sequences are possible."
        )
    scores = np.asarray([[score for _, score in paths] for paths in beams], logits.dtype)
    labels = [[paths[n][0] for paths in beams] for n in range(top_paths)]
    return _list_paths(labels, scores.reshape(len(lengths), top_paths))
