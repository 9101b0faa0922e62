"""Losses of logits, and scaling of losses by the global batch size."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.symbolic_calls import dispatch_composites
from meshflow.core.runtime.bounds_checks import check_classes
from meshflow.core.runtime.broadcasting import select
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import DtypeMismatchError, InvalidArgumentError, InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.kernels import cross_entropy
from meshflow.ops.array import where, zeros_like
from meshflow.ops.math import cast, exp, log, reduce_sum
from meshflow.ops.math.elementwise import compute_magnitude

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
    # As in TensorFlow, sums of half precision have the precision of float32.
    dtype = jnp.promote_types(logits.dtype, jnp.float32)
    losses = compute_cross_entropy(labels.astype(dtype), logits.astype(dtype), axis)
    return losses.astype(logits.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def compute_cross_entropy(labels: Array, logits: Array, axis: int) -> Array:
    """Return the losses of examples, with TensorFlow's gradients for labels of any sum."""
    return -jnp.sum(labels * jax.nn.log_softmax(logits, axis=axis), axis=axis)


@compute_cross_entropy.defjvp
def _cross_entropy_jvp(
    axis: int, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Differentiate as TensorFlow: as if the labels of each example had the sum 1, also if they have another one."""
    labels, logits = primals
    log_probabilities = jax.nn.log_softmax(logits, axis=axis)
    change = (jnp.exp(log_probabilities) - labels) * tangents[1] - log_probabilities * tangents[0]
    return -jnp.sum(labels * log_probabilities, axis=axis), jnp.sum(change, axis=axis)


@dispatch_composites
def softmax_cross_entropy_with_logits(
    labels: TensorLike, logits: TensorLike, axis: int = -1, name: str | None = None
) -> Tensor:
    """Compute the cross-entropy of label distributions and the softmax of logits.

    Args:
      labels: Probabilities with the shape of `logits`.
      logits: Unnormalized log-probabilities.
      axis: The axis of the classes.
      name: Ignored.

    Returns:
      The losses, without the class axis. The gradient of the logits is `softmax(logits) - labels`, which is that of the
      losses only if the labels of each example have the sum 1.

    Example:
      >>> labels, logits = [[1.0, 0.0], [0.5, 0.5]], [[0.0, 0.0], [-4.0, 4.0]]
      >>> loss = tf.nn.softmax_cross_entropy_with_logits(labels, logits)
      >>> print(loss.numpy().round(3))
      [0.693 4.   ]
    """
    labels, logits = _convert_labels(labels, logits)
    return _softmax_cross_entropy(labels, logits, axis)


def _convert_labels(labels: TensorLike, logits: TensorLike) -> tuple[TensorLike, Tensor]:
    """Return the logits as a tensor, and Python or NumPy labels as a tensor of the same dtype."""
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
    if labels.dtype.itemsize < 4:
        # The number of classes may exceed the range of the dtype.
        labels = jax.lax.convert_element_type(labels, np.int32)
    zero = labels.dtype.type(0)
    valid = jax.lax.bitwise_and(jax.lax.ge(labels, zero), labels < classes)
    index = jax.lax.convert_element_type(select(valid, labels, zero), np.int32)
    # An invalid label results in NaN, because it must not be trained as another class.
    return select(valid, _compute_negative_log(logits, index), logits.dtype.type(np.nan))


@jax.custom_jvp
def _compute_negative_log(logits: Array, index: Array) -> Array:
    """Compute `-log(softmax(logits)[index])` along the last axis."""
    return cross_entropy.compute_losses(logits, index)[0]


@_compute_negative_log.defjvp
def _negative_log_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    logits, index = primals
    value, high, total = cross_entropy.compute_losses(logits, index)
    return value, cross_entropy.compute_tangents(logits, index, high, total, tangents[0])


@dispatch_composites
def sparse_softmax_cross_entropy_with_logits(
    labels: TensorLike, logits: TensorLike, name: str | None = None
) -> Tensor:
    """Compute the cross-entropy of class indices and the softmax of logits.

    Args:
      labels: Integers in [0, classes), of shape [...].
      logits: Unnormalized log-probabilities of shape [..., classes].
      name: Ignored.

    Returns:
      The losses, with the shape of `labels`; NaN for labels out of range in compiled
        functions on accelerators.

    Raises:
      InvalidArgumentError: If a label is out of range.

    Example:
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
        labels = _check_labels(labels, logits.shape[-1])
    return _sparse_softmax_cross_entropy(labels, logits)


def _check_labels(labels: Tensor, classes: int) -> Tensor:
    if isinstance(labels.array, jax.core.Tracer):
        message = f"Received a label value of {{value}} which is outside the valid range of [0, {classes})."
        checked: Tensor = check_classes(labels, classes, message)
        return checked
    values = np.asarray(labels.array)
    invalid = values[(values < 0) | (values >= classes)]
    if invalid.size:
        raise InvalidArgumentError(
            f"Received a label value of {invalid[0]} which is outside the valid range of [0, {classes}). "
            f"Label values: {values.reshape(-1)[:20].tolist()}"
        )
    return labels


@op(name="sigmoid_cross_entropy_with_logits", kinds="f")
def _sigmoid_cross_entropy(labels: TensorLike, logits: TensorLike) -> Tensor:
    if labels.shape != logits.shape:
        raise InvalidValueError(
            f"`logits` and `labels` must have the same shape, received ({logits.shape} vs {labels.shape})."
        )
    # The gradient of softplus(x) = log(1 + e^x) is the sigmoid everywhere, including at 0.
    return jax.nn.softplus(logits) - logits * labels


@dispatch_composites
def sigmoid_cross_entropy_with_logits(
    labels: TensorLike = None, logits: TensorLike = None, name: str | None = None
) -> Tensor:
    """Compute the elementwise cross-entropy of labels in [0, 1] and the sigmoid of logits.

    Args:
      labels: Probabilities with the shape of `logits`.
      logits: Unnormalized log-probabilities.
      name: Ignored.

    Returns:
      The losses `log(1 + exp(logits)) - logits * labels`, with the shape of `logits`.

    Raises:
      ValueError: If an argument is missing or the shapes differ.

    Example:
      >>> loss = tf.nn.sigmoid_cross_entropy_with_logits(labels=[1.0, 0.0], logits=[0.0, 10.0])
      >>> print(loss.numpy().round(3))
      [ 0.693 10.   ]
    """
    if labels is None or logits is None:
        raise ValueError(
            f"Both `labels` and `logits` must be provided. Received: labels={labels} and logits={logits}"
        )
    labels, logits = _convert_labels(labels, logits)
    return _sigmoid_cross_entropy(labels, logits)


@op(name="weighted_cross_entropy_with_logits", kinds="f")
def weighted_cross_entropy_with_logits(
    labels: TensorLike, logits: TensorLike, pos_weight: TensorLike, name: str | None = None
) -> Tensor:
    """Compute sigmoid cross-entropy with positive labels weighted by `pos_weight`.

    Args:
      labels: Probabilities with the shape of `logits`.
      logits: Unnormalized log-probabilities.
      pos_weight: Weight of positive labels, broadcast to `logits`.
      name: Ignored.

    Example:
      >>> loss = tf.nn.weighted_cross_entropy_with_logits([1.0, 0.0], [0.0, 0.0], pos_weight=3.0)
      >>> print(loss.numpy().round(3))
      [2.079 0.693]
    """
    if labels.shape != logits.shape:
        raise ValueError(
            f"`logits` and `labels` must have the same shape, got {logits.shape} and {labels.shape}."
        )
    weight = 1 + (pos_weight - 1) * labels
    softplus = jnp.log1p(jnp.exp(-compute_magnitude(logits))) + jax.nn.relu(-logits)
    return (1 - labels) * logits + weight * softplus


def log_poisson_loss(
    targets: TensorLike,
    log_input: TensorLike,
    compute_full_loss: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute the Poisson loss of log-predictions: `exp(log_input) - log_input * targets`.

    Args:
      targets: Counts with the shape of `log_input`.
      log_input: Logarithm of the predicted rate.
      compute_full_loss: Whether to add Stirling's approximation of the constant term.
      name: Ignored.

    Returns:
      The losses, with the shape of `log_input`.

    Example:
      >>> print(tf.nn.log_poisson_loss([2.0, 0.0], [0.0, 1.0]).numpy().round(3))
      [1.    2.718]
    """
    targets, log_input = _convert_labels(targets, log_input)
    targets = convert_to_tensor(targets)
    if not log_input.shape.is_compatible_with(targets.shape):
        raise ValueError(
            f"log_poisson_loss: `log_input` and `targets` must have the same shape, got {log_input.shape} and "
            f"{targets.shape}."
        )
    loss = exp(log_input) - log_input * targets
    if compute_full_loss:
        constant = targets * log(targets) - targets + 0.5 * log(6.283185307179586 * targets)
        loss = loss + where((targets >= 0.0) & (targets <= 1.0), zeros_like(loss), constant)
    return loss


@op(kinds="f")
def l2_loss(t: TensorLike, name: str | None = None) -> Tensor:
    """Compute `sum(t ** 2) / 2`, a scalar.

    Example:
      >>> tf.nn.l2_loss([3.0, 4.0]).numpy().item()
      12.5
    """
    return jnp.sum(jnp.square(t)) / 2


def compute_average_loss(
    per_example_loss: TensorLike,
    sample_weight: TensorLike = None,
    global_batch_size: TensorLike = None,
) -> Tensor:
    """Compute the sum of per-example losses divided by the global batch size, a scalar.

    Args:
      per_example_loss: Losses of shape [batch, ...].
      sample_weight: Weights that are broadcast to the losses.
      global_batch_size: By default the local batch size times the number of replicas.

    Raises:
      ValueError: If the loss is a scalar.

    Example:
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
    """Divide the sum of a regularization loss by the number of replicas; the result is a scalar.

    Example:
      >>> tf.nn.scale_regularization_loss([1.0, 2.0]).numpy().item()
      3.0
    """
    loss = reduce_sum(convert_to_tensor(regularization_loss))
    return loss / float(context.num_replicas)
