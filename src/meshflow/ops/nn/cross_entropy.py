"""Losses on logits, and scaling losses by the global batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import DtypeMismatchError, InvalidArgumentError, InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.kernels import cross_entropy
from meshflow.ops.array import where, zeros_like
from meshflow.ops.math import cast, exp, log, reduce_sum
from meshflow.ops.math.elementwise import magnitude

__all__ = [
    "compute_average_loss",
    "l2_loss",
    "log_poisson_loss",
    "scale_regularization_loss",
    "sigmoid_cross_entropy_with_logits",
    "softmax_cross_entropy_with_logits",
    "sparse_softmax_cross_entropy_with_logits",
    "weighted_cross_entropy_with_logits",
]


@op(name="softmax_cross_entropy_with_logits", kinds="f")
def _softmax_cross_entropy(labels: TensorLike, logits: TensorLike, axis: int) -> Tensor:
    try:
        jnp.broadcast_shapes(labels.shape, logits.shape)
    except ValueError:
        raise InvalidValueError(
            f"logits and labels must be broadcastable: logits_size={list(logits.shape)} labels_size={list(labels.shape)}"
        ) from None
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

    Example:
      >>> import meshflow as tf
      >>> labels, logits = [[1.0, 0.0], [0.5, 0.5]], [[0.0, 0.0], [-4.0, 4.0]]
      >>> loss = tf.nn.softmax_cross_entropy_with_logits(labels, logits)
      >>> print(loss.numpy().round(3))
      [0.693 4.   ]
    """
    labels, logits = _like_logits(labels, logits)
    return _softmax_cross_entropy(labels, logits, axis)


def _like_logits(labels: Any, logits: Any) -> tuple[Any, Any]:
    """Labels and logits as tensors; labels given as Python or NumPy numbers get the logits' dtype."""
    logits = convert_to_tensor(logits)
    if isinstance(labels, (list, tuple, int, float, np.ndarray)) and isinstance(logits, Tensor):
        labels = np.asarray(labels)
        if labels.dtype.kind in "biuf":
            labels = convert_to_tensor(labels.astype(logits.dtype.as_numpy_dtype))
    return labels, logits


@op(name="sparse_softmax_cross_entropy_with_logits", same=("logits",), kinds="f", heavy=True)
def _sparse_softmax_cross_entropy(labels: TensorLike, logits: TensorLike) -> Tensor:
    classes = logits.shape[-1]
    if labels.shape != logits.shape[:-1]:
        raise InvalidValueError(
            f"`labels.shape` must equal `logits.shape` except for the last dimension. Received: labels.shape="
            f"{labels.shape} and logits.shape={logits.shape}"
        )
    valid = (labels >= 0) & (labels < classes)
    index = jnp.where(valid, labels, 0).astype(jnp.int32)
    # A label that names no class gives NaN: it must not train as if it were another class.
    return jnp.where(valid, _negative_log(logits, index), jnp.asarray(jnp.nan, logits.dtype))


@jax.custom_jvp
def _negative_log(logits: jax.Array, index: jax.Array) -> jax.Array:
    """`-log(softmax(logits)[index])` along the last dimension."""
    return cross_entropy.losses(logits, index)[0]


@_negative_log.defjvp
def _negative_log_jvp(primals: Any, tangents: Any) -> Any:
    logits, index = primals
    value, high, total = cross_entropy.losses(logits, index)
    return value, cross_entropy.tangents(logits, index, high, total, tangents[0])


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
        if not labels.dtype.is_integer:
            raise DtypeMismatchError(
                f"sparse_softmax_cross_entropy_with_logits: labels have dtype {labels.dtype.name}, expected int32 "
                "or int64. Use tf.cast to convert them."
            )
        if len(logits.shape) == 0:
            raise ValueError("`logits` cannot be a scalar. Received logits of shape ().")
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
    # softplus(x) = log(1 + e^x), whose gradient is the sigmoid everywhere, 0 included.
    return jax.nn.softplus(logits) - logits * labels


def sigmoid_cross_entropy_with_logits(
    labels: Any = None, logits: Any = None, name: str | None = None
) -> Tensor:
    """Cross entropy between labels in [0, 1] and the sigmoid of logits, element by element.

    Args:
      labels: probabilities, of the shape of `logits`.
      logits: unnormalized log-probabilities.
      name: ignored.

    Returns:
      The losses, of the shape of `logits`: `log(1 + e^logits) - logits * labels`.

    Raises:
      ValueError: when an argument is missing or the shapes differ.

    Example:
      >>> import meshflow as tf
      >>> loss = tf.nn.sigmoid_cross_entropy_with_logits(labels=[1.0, 0.0], logits=[0.0, 10.0])
      >>> print(loss.numpy().round(3))
      [ 0.693 10.   ]
    """
    if labels is None or logits is None:
        raise ValueError(
            f"Both `labels` and `logits` must be provided. Received: labels={labels} and logits={logits}"
        )
    labels, logits = _like_logits(labels, logits)
    return _sigmoid_cross_entropy(labels, logits)


@op(name="weighted_cross_entropy_with_logits", kinds="f")
def weighted_cross_entropy_with_logits(
    labels: TensorLike, logits: TensorLike, pos_weight: TensorLike, name: str | None = None
) -> Tensor:
    """Sigmoid cross entropy in which positive labels count `pos_weight` times.

    Args:
      labels: probabilities, of the shape of `logits`.
      logits: unnormalized log-probabilities.
      pos_weight: weight of positive labels, broadcasting with `logits`.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> loss = tf.nn.weighted_cross_entropy_with_logits([1.0, 0.0], [0.0, 0.0], pos_weight=3.0)
      >>> print(loss.numpy().round(3))
      [2.079 0.693]
    """
    if labels.shape != logits.shape:
        raise ValueError(
            f"`logits` and `labels` must have the same shape, got {logits.shape} and {labels.shape}."
        )
    weight = 1 + (pos_weight - 1) * labels
    softplus = jnp.log1p(jnp.exp(-magnitude(logits))) + jax.nn.relu(-logits)
    return (1 - labels) * logits + weight * softplus


def log_poisson_loss(
    targets: TensorLike,
    log_input: TensorLike,
    compute_full_loss: bool = False,
    name: str | None = None,
) -> Tensor:
    """Poisson loss of a logarithmic prediction: `exp(log_input) - log_input * targets`.

    Args:
      targets: counts, of the shape of `log_input`.
      log_input: logarithm of the predicted rate.
      compute_full_loss: whether Stirling's approximation of the constant term is added.
      name: ignored.

    Returns:
      The losses, of the shape of `log_input`.

    Example:
      >>> import meshflow as tf
      >>> print(tf.nn.log_poisson_loss([2.0, 0.0], [0.0, 1.0]).numpy().round(3))
      [1.    2.718]
    """
    targets, log_input = _like_logits(targets, log_input)
    targets = convert_to_tensor(targets)
    loss = exp(log_input) - log_input * targets
    if compute_full_loss:
        constant = targets * log(targets) - targets + 0.5 * log(6.283185307179586 * targets)
        loss = loss + where((targets >= 0.0) & (targets <= 1.0), zeros_like(loss), constant)
    return loss


@op(kinds="f")
def l2_loss(t: TensorLike, name: str | None = None) -> Tensor:
    """`sum(t^2) / 2`.

    The result is a scalar.

    Example:
      >>> import meshflow as tf
      >>> tf.nn.l2_loss([3.0, 4.0]).numpy().item()
      12.5
    """
    return jnp.sum(jnp.square(t)) / 2


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

    Raises:
      ValueError: when the losses are a scalar already.

    Example:
      >>> import meshflow as tf
      >>> float(tf.nn.compute_average_loss([1.0, 2.0, 3.0], global_batch_size=8))
      0.75
    """
    losses = convert_to_tensor(per_example_loss)
    if len(losses.shape) == 0:
        raise ValueError(
            "Invalid value passed for `per_example_loss`. Expected a tensor with at least rank 1, got a scalar."
        )
    if sample_weight is not None:
        losses = losses * cast(convert_to_tensor(sample_weight), losses.dtype)
    if global_batch_size is None:
        global_batch_size = losses.shape[0] * context.num_replicas
    return reduce_sum(losses) / cast(global_batch_size, losses.dtype)


def scale_regularization_loss(regularization_loss: TensorLike) -> Tensor:
    """The sum of a regularization loss divided by the number of replicas.

    The result is a scalar.

    Example:
      >>> import meshflow as tf
      >>> tf.nn.scale_regularization_loss([1.0, 2.0]).numpy().item()
      3.0
    """
    loss = reduce_sum(convert_to_tensor(regularization_loss))
    return loss / float(context.num_replicas)
