"""Connectionist temporal classification (CTC): the loss and its label operations.

References:
  Graves et al., Connectionist temporal classification, ICML 2006.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops import array

__all__ = ["collapse_repeated", "ctc_loss", "ctc_unique_labels"]

# Both replace the logarithm of probability 0 and are finite, so that gradients are finite. As in
# TensorFlow, labels that do not fit into their frames have a large but finite loss, because paths
# may skip a required blank with probability exp(-707).
_LOG_ZERO, _FORBIDDEN = -1e30, -707.3573


@op(same=("logits",), kinds="f", name="ctc_loss")
def _ctc_loss(
    labels: TensorLike,
    logits: TensorLike,
    label_length: TensorLike,
    logit_length: TensorLike,
    blank: int,
) -> Tensor:
    """Compute the loss of labels [batch, length] for logits [time, batch, classes].

    The states of a sequence are its labels with blanks around them. `forward` is the logarithm of
    the probability of all paths to each state.
    """
    labels, label_length = labels.astype(jnp.int32), label_length.astype(jnp.int32)
    batch, width = labels.shape
    log_probs = jax.nn.log_softmax(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)))
    states = jnp.full((batch, 2 * width + 1), blank, jnp.int32).at[:, 1::2].set(labels)
    positions = jnp.arange(2 * width + 1)
    exists = positions[None] <= 2 * label_length[:, None]
    # A label may directly follow the previous label, unless both are equal.
    can_skip = (
        (positions % 2 == 1)[None] & (states != jnp.roll(states, 2, 1)) & (positions >= 2)[None]
    )

    def get_emissions(frame: Array) -> Array:
        return jnp.take_along_axis(frame, states, axis=1)

    def shift(forward: Array, by: int) -> Array:
        return jnp.pad(forward, [(0, 0), (by, 0)], constant_values=_LOG_ZERO)[:, : 2 * width + 1]

    def step(forward: Array, inputs: tuple[Array, Array]) -> tuple[Array, None]:
        frame, time = inputs
        skipping = shift(forward, 2) + jnp.where(can_skip, 0.0, _FORBIDDEN)
        paths = jnp.stack([forward, shift(forward, 1), skipping])
        after = jnp.where(exists, jax.nn.logsumexp(paths, 0) + get_emissions(frame), _LOG_ZERO)
        return jnp.where((time < logit_length)[:, None], after, forward), None

    start = jnp.where(exists & (positions < 2)[None], get_emissions(log_probs[0]), _LOG_ZERO)
    last, _ = jax.lax.scan(step, start, (log_probs[1:], jnp.arange(1, logits.shape[0])))
    ends = 2 * label_length[:, None] - jnp.arange(2)[None]
    final = jnp.take_along_axis(last, jnp.maximum(ends, 0), axis=1)
    total = jax.nn.logsumexp(jnp.where(ends >= 0, final, _LOG_ZERO), 1)
    return -total.astype(logits.dtype)


def ctc_loss(
    labels: TensorLike | SparseTensor,
    logits: TensorLike,
    label_length: TensorLike,
    logit_length: TensorLike,
    logits_time_major: bool = True,
    unique: tuple[Tensor, Tensor] | None = None,
    blank_index: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Compute the negative log-probabilities of label sequences under CTC.

    Args:
      labels: Class indices [batch, max_label_length], or a sparse tensor of them.
      logits: [time, batch, classes], or [batch, time, classes] if not `logits_time_major`.
      label_length: Lengths of the label sequences [batch]; ignored for sparse labels.
      logit_length: Numbers of frames [batch].
      logits_time_major: Whether time is the first axis of `logits`.
      unique: Ignored.
      blank_index: Index of the blank class, counted from the end if negative; 0 by default, and
        required for sparse labels.
      name: Ignored.

    Returns:
      Losses [batch]; very large if labels do not fit into the frames.

    Raises:
      ValueError: If `blank_index` is out of range, or missing for sparse labels.

    Example:
      >>> logits = tf.zeros([2, 1, 2])
      >>> loss = tf.nn.ctc_loss([[1]], logits, [1], [2])  # -log(3 / 4)
      >>> round(float(loss[0]), 4)
      0.2877
    """
    logits = convert_to_tensor(logits)
    if len(logits.shape) != 3:
        raise InvalidValueError(f"ctc_loss: logits must have 3 dimensions, got {logits.shape}.")
    classes = logits.shape[2]
    if isinstance(labels, SparseTensor):
        if blank_index is None:
            raise ValueError("ctc_loss: blank_index is required for sparse labels.")
        rows = labels.indices.numpy()[:, 0]
        label_length = np.bincount(rows, minlength=labels.shape[0])
        labels = _to_dense(labels)
    blank_index = 0 if blank_index is None else int(blank_index)
    if not -classes <= blank_index < classes:
        raise ValueError(
            f"ctc_loss: blank_index must be in [-{classes}, {classes}), got {blank_index}."
        )
    if not logits_time_major:
        logits = array.transpose(logits, [1, 0, 2])
    return _ctc_loss(labels, logits, label_length, logit_length, blank_index % classes)


def _to_dense(labels: SparseTensor) -> Tensor:
    shape = labels.shape.as_list()
    return array.tensor_scatter_nd_update(
        array.zeros(shape, labels.dtype), labels.indices, labels.values
    )


@op(same=(), differentiable=False, name="collapse_repeated")
def _collapse(labels: TensorLike, seq_length: TensorLike) -> tuple[Tensor, Tensor]:
    width = labels.shape[1]
    inside = jnp.arange(width)[None] < seq_length[:, None]
    first = jnp.concatenate([jnp.ones_like(inside[:, :1]), labels[:, 1:] != labels[:, :-1]], axis=1)
    selected = inside & first
    order = jnp.argsort(~selected, axis=1, stable=True)
    lengths = jnp.sum(selected, 1)
    collapsed = jnp.take_along_axis(labels, order, 1)
    collapsed = jnp.where(jnp.arange(width)[None] < lengths[:, None], collapsed, 0)
    return collapsed, lengths.astype(seq_length.dtype)


def collapse_repeated(
    labels: TensorLike, seq_length: TensorLike, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Merge equal consecutive labels of each sequence.

    Args:
      labels: [batch, length].
      seq_length: Lengths of the sequences [batch].
      name: Ignored.

    Returns:
      A pair: sequences [batch, longest result], padded with 0, and their lengths.

    Example:
      >>> labels, lengths = tf.nn.collapse_repeated([[1, 1, 2, 2, 1]], seq_length=[5])
      >>> print(labels.numpy(), lengths.numpy())
      [[1 2 1]] [3]
    """
    labels = convert_to_tensor(labels)
    collapsed, lengths = _collapse(labels, seq_length)
    if not isinstance(lengths.array, jax.core.Tracer):
        collapsed = collapsed[:, : int(np.max(lengths.array, initial=0))]
    return collapsed, lengths


@op(same=(), differentiable=False, name="ctc_unique_labels")
def _find_unique_labels(labels: TensorLike) -> tuple[Tensor, Tensor]:
    def find_in_row(row: Array) -> tuple[Array, Array]:
        width = row.shape[0]
        same = row[:, None] == row[None]
        first = jnp.argmax(same, 1)
        is_first = first == jnp.arange(width)
        rank = jnp.cumsum(is_first) - 1
        values = jnp.zeros_like(row).at[jnp.where(is_first, rank, width)].set(row, mode="drop")
        return values.astype(jnp.int64), rank[first].astype(jnp.int32)

    return jax.vmap(find_in_row)(labels)


def ctc_unique_labels(labels: TensorLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Return the distinct labels of each sequence, for `ctc_loss`.

    Args:
      labels: [batch, length], padded with 0.
      name: Ignored.

    Returns:
      A pair of tensors [batch, length]: the distinct labels of each row in order, padded with 0,
      and the index of each label among them.

    Example:
      >>> labels, indices = tf.nn.ctc_unique_labels([[7, 3, 7, 0]])
      >>> print(labels.numpy(), indices.numpy())
      [[7 3 0 0]] [[0 1 0 2]]
    """
    return _find_unique_labels(labels)
