"""Losses on logits, and scaling losses by the global batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.convert import convert_to_tensor
from meshflow.core.dispatch import op
from meshflow.core.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.tensor import Tensor, TensorLike

__all__ = [
    "compute_average_loss",
    "l2_loss",
    "scale_regularization_loss",
    "sigmoid_cross_entropy_with_logits",
    "softmax_cross_entropy_with_logits",
    "sparse_softmax_cross_entropy_with_logits",
    "weighted_cross_entropy_with_logits",
]


@op(name="softmax_cross_entropy_with_logits", kinds="f")
def _softmax_cross_entropy(labels: TensorLike, logits: TensorLike, axis: int) -> Tensor:
    if labels.shape[axis] != logits.shape[axis]:
        raise InvalidValueError(
            f"logits and labels must be broadcastable: logits_size={list(logits.shape)} labels_size={list(labels.shape)}"
        )
    return -jnp.sum(labels * jax.nn.log_softmax(logits, axis=axis), axis=axis)


def softmax_cross_entropy_with_logits(
    labels: TensorLike, logits: TensorLike, axis: int = -1, name: str | None = None
) -> Tensor:
    """Cross entropy between label distributions and the softmax of logits.

    Args:
      labels: probabilities, of the shape of `logits`.
      logits: unnormalized log-probabilities.
      axis: the dimension of the classes.
      name: ignored.

    Returns:
      The loss, without the class dimension.
    """
    return _softmax_cross_entropy(labels, logits, axis)


@op(name="sparse_softmax_cross_entropy_with_logits", same=("logits",), kinds="f")
def _sparse_softmax_cross_entropy(labels: TensorLike, logits: TensorLike) -> Tensor:
    classes = logits.shape[-1]
    if labels.shape != logits.shape[:-1]:
        raise InvalidValueError(
            f"`labels.shape` must equal `logits.shape` except for the last dimension. Received: labels.shape="
            f"{labels.shape} and logits.shape={logits.shape}"
        )
    valid = (labels >= 0) & (labels < classes)
    index = jnp.where(valid, labels, 0).astype(jnp.int32)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits, axis=-1), index[..., None], axis=-1)[
        ..., 0
    ]
    # A label that names no class gives NaN: it must not train as if it were another class.
    return jnp.where(valid, -chosen, jnp.asarray(jnp.nan, logits.dtype))


def sparse_softmax_cross_entropy_with_logits(
    labels: TensorLike, logits: TensorLike, name: str | None = None
) -> Tensor:
    """Cross entropy between class numbers and the softmax of logits.

    Args:
      labels: integers in [0, classes), of shape [...].
      logits: unnormalized log-probabilities of shape [..., classes].
      name: ignored.

    Returns:
      The loss, of the shape of `labels`; NaN for a label out of range in a compiled function.

    Raises:
      InvalidArgumentError: eagerly, for a label out of range.

    Example:
      >>> import meshflow as tf
      >>> tf.nn.sparse_softmax_cross_entropy_with_logits([0], [[0.0, 0.0]]).numpy()
      array([0.6931472], dtype=float32)
    """
    labels, logits = convert_to_tensor(labels), convert_to_tensor(logits)
    if isinstance(labels, Tensor):
        _check_labels(labels, logits.shape[-1])
    return _sparse_softmax_cross_entropy(labels, logits)


def _check_labels(labels: Tensor, classes: int) -> None:
    if isinstance(labels._value, jax.core.Tracer):
        return
    known = np.asarray(labels._value)
    wrong = known[(known < 0) | (known >= classes)]
    if wrong.size:
        raise InvalidArgumentError(
            f"Received a label value of {wrong[0]} which is outside the valid range of [0, {classes}). "
            f"Label values: {known.reshape(-1)[:20].tolist()}"
        )


@op(name="sigmoid_cross_entropy_with_logits", kinds="f")
def _sigmoid_cross_entropy(labels: TensorLike, logits: TensorLike) -> Tensor:
    if labels.shape != logits.shape:
        raise InvalidValueError(
            f"`logits` and `labels` must have the same shape, received ({logits.shape} vs {labels.shape})."
        )
    return jnp.maximum(logits, 0) - logits * labels + jnp.log1p(jnp.exp(-jnp.abs(logits)))


def sigmoid_cross_entropy_with_logits(
    labels: Any = None, logits: Any = None, name: str | None = None
) -> Tensor:
    """Cross entropy between labels in [0, 1] and the sigmoid of logits, element by element."""
    return _sigmoid_cross_entropy(labels, logits)


@op(name="weighted_cross_entropy_with_logits", kinds="f")
def weighted_cross_entropy_with_logits(
    labels: TensorLike, logits: TensorLike, pos_weight: TensorLike, name: str | None = None
) -> Tensor:
    """Sigmoid cross entropy in which positive labels count `pos_weight` times."""
    weight = 1 + (pos_weight - 1) * labels
    tail = jnp.log1p(jnp.exp(-jnp.abs(logits))) + jnp.maximum(-logits, 0)
    return (1 - labels) * logits + weight * tail


@op(kinds="f")
def l2_loss(t: TensorLike, name: str | None = None) -> Tensor:
    """`sum(t^2) / 2`."""
    return jnp.sum(jnp.square(t)) / 2


class Replicas:
    """How many replicas take part in a step; the distribution strategies set it."""

    count = 1


def compute_average_loss(
    per_example_loss: TensorLike, sample_weight: Any = None, global_batch_size: Any = None
) -> Tensor:
    """Sum of per-example losses divided by the global batch size.

    Args:
      per_example_loss: losses of shape [batch, ...].
      sample_weight: weights that broadcast to the losses.
      global_batch_size: default the local batch size times the number of replicas.

    Returns:
      A scalar.

    Example:
      >>> import meshflow as tf
      >>> float(tf.nn.compute_average_loss([1.0, 2.0, 3.0], global_batch_size=8))
      0.75
    """
    from meshflow.ops.math import cast, reduce_sum

    losses = convert_to_tensor(per_example_loss)
    if sample_weight is not None:
        losses = losses * cast(convert_to_tensor(sample_weight), losses.dtype)  # type: ignore[operator]
    if global_batch_size is None:
        global_batch_size = losses.shape[0] * Replicas.count
    return reduce_sum(losses) / cast(global_batch_size, losses.dtype)


def scale_regularization_loss(regularization_loss: TensorLike) -> Tensor:
    """The sum of a regularization loss divided by the number of replicas."""
    from meshflow.ops.math import reduce_sum

    loss = reduce_sum(convert_to_tensor(regularization_loss))
    return loss / float(Replicas.count)
