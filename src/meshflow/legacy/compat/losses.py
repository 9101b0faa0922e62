"""Losses of `tf.compat.v1.losses`: weighted means of elementwise losses."""

from __future__ import annotations

from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.legacy.compat.public_package import tf
from meshflow.legacy.graph.graph import get_default_graph, has_explicit_graph

__all__ = [
    "Reduction",
    "absolute_difference",
    "add_loss",
    "compute_weighted_loss",
    "cosine_distance",
    "get_losses",
    "get_regularization_loss",
    "get_regularization_losses",
    "get_total_loss",
    "hinge_loss",
    "huber_loss",
    "log_loss",
    "mean_pairwise_squared_error",
    "mean_squared_error",
    "sigmoid_cross_entropy",
    "softmax_cross_entropy",
    "sparse_softmax_cross_entropy",
]

_COLLECTION = "losses"


class Reduction:
    """Ways to reduce weighted losses to one value."""

    NONE = "none"
    SUM = "weighted_sum"
    SUM_OVER_BATCH_SIZE = "weighted_sum_over_batch_size"
    MEAN = "weighted_mean"
    SUM_BY_NONZERO_WEIGHTS = SUM_OVER_NONZERO_WEIGHTS = "weighted_sum_by_nonzero_weights"

    @classmethod
    def all(cls) -> tuple[str, ...]:
        """Return all reductions."""
        sums = (cls.SUM, cls.MEAN, cls.SUM_OVER_BATCH_SIZE, cls.SUM_OVER_NONZERO_WEIGHTS)
        return cls.NONE, *sums, cls.SUM_BY_NONZERO_WEIGHTS

    @classmethod
    def validate(cls, key: str) -> None:
        """Raise a ValueError if a reduction is unknown."""
        if key not in cls.all():
            raise ValueError(f"Invalid Reduction Key {key}.")


_BY_WEIGHTS = Reduction.SUM_BY_NONZERO_WEIGHTS


def compute_weighted_loss(
    losses: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = _BY_WEIGHTS,
) -> Tensor:
    """Multiply losses by weights and reduce them.

    Args:
      losses: Tensor.
      weights: A scalar, or a tensor of the rank of the losses; its sizes are 1 or theirs.
      scope: Ignored.
      loss_collection: Collection of a `tf.Graph` to which the loss is added in its block; otherwise ignored.
      reduction: A value of `Reduction`. Default: the sum divided by the number of losses with nonzero weights.

    Raises:
      ValueError: If the reduction is unknown, or the shape of the weights does not fit.

    Example:
      >>> float(tf.compat.v1.losses.compute_weighted_loss([1.0, 2.0, 6.0], [1.0, 0.0, 1.0]))
      3.5
    """
    Reduction.validate(reduction)
    values = tf.convert_to_tensor(losses)
    dtype = values.dtype
    values = tf.cast(values, tf.float32)
    factors = tf.cast(tf.convert_to_tensor(weights), tf.float32)
    sizes, expected = factors.shape, values.shape
    if sizes.rank and (
        sizes.rank != expected.rank
        or any(
            n not in (1, m)
            for n, m in zip(sizes, expected, strict=True)
            if n is not None and m is not None
        )
    ):
        raise ValueError(
            f"weights can not be broadcast to values. values.shape={tuple(expected)}. weights.shape={tuple(sizes)}."
        )
    weighted = values * factors
    if reduction != Reduction.NONE:
        factors = tf.broadcast_to(factors, tf.shape(values))
        weighted = tf.reduce_sum(weighted)
        if reduction == Reduction.MEAN:
            weighted = tf.math.divide_no_nan(weighted, tf.reduce_sum(factors))
        elif reduction == Reduction.SUM_BY_NONZERO_WEIGHTS:
            count = tf.math.count_nonzero(factors, dtype=tf.float32)
            weighted = tf.math.divide_no_nan(weighted, count)
        elif reduction == Reduction.SUM_OVER_BATCH_SIZE:
            weighted = tf.math.divide_no_nan(weighted, tf.cast(tf.size(values), tf.float32))
    loss = tf.cast(weighted, dtype)
    add_loss(loss, loss_collection)
    return loss


def _prepare_pair(labels: TensorLike, predictions: TensorLike) -> tuple[Tensor, Tensor]:
    """Convert labels and predictions to floats of equal shapes."""
    if labels is None or predictions is None:
        raise ValueError("labels and predictions must not be None.")
    predictions = tf.cast(predictions, tf.float32)
    labels = tf.cast(labels, tf.float32)
    predictions.shape.assert_is_compatible_with(labels.shape)
    return labels, predictions


def absolute_difference(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = _BY_WEIGHTS,
) -> Tensor:
    """Compute the weighted mean of `|predictions - labels|`; see `compute_weighted_loss`."""
    labels, predictions = _prepare_pair(labels, predictions)
    losses = tf.abs(predictions - labels)
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def mean_squared_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = _BY_WEIGHTS,
) -> Tensor:
    """Compute the weighted mean of `(predictions - labels)^2`; see `compute_weighted_loss`."""
    labels, predictions = _prepare_pair(labels, predictions)
    losses = tf.square(predictions - labels)
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def cosine_distance(
    labels: TensorLike,
    predictions: TensorLike,
    axis: int | None = None,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = _BY_WEIGHTS,
    dim: int | None = None,
) -> Tensor:
    """Compute the weighted mean of one minus the product of unit vectors; see `compute_weighted_loss`.

    Raises:
      ValueError: If no axis is passed.
    """
    axis = dim if axis is None else axis
    if axis is None:
        raise ValueError("You must specify argument `axis`.")
    labels, predictions = _prepare_pair(labels, predictions)
    losses = 1 - tf.reduce_sum(predictions * labels, axis=axis, keepdims=True)
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def hinge_loss(
    labels: TensorLike,
    logits: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = _BY_WEIGHTS,
) -> Tensor:
    """Compute the weighted mean of `max(0, 1 - (2 * labels - 1) * logits)`; see `compute_weighted_loss`."""
    labels, logits = _prepare_pair(labels, logits)
    losses = tf.nn.relu(1 - (2 * labels - 1) * logits)
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def huber_loss(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    delta: float = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = _BY_WEIGHTS,
) -> Tensor:
    """Compute the weighted mean of squares that become linear at `delta`; see `compute_weighted_loss`."""
    labels, predictions = _prepare_pair(labels, predictions)
    error = tf.abs(predictions - labels)
    quadratic = tf.minimum(error, delta)
    losses = 0.5 * quadratic * quadratic + delta * (error - quadratic)
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def log_loss(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    epsilon: float = 1e-7,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = _BY_WEIGHTS,
) -> Tensor:
    """Compute the weighted mean of binary cross-entropies of probabilities; see `compute_weighted_loss`."""
    labels, predictions = _prepare_pair(labels, predictions)
    losses = -labels * tf.math.log(predictions + epsilon) - (1 - labels) * tf.math.log(
        1 - predictions + epsilon
    )
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def mean_pairwise_squared_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
) -> Tensor:
    """Compute the sum over examples of the mean squared error of the differences of two elements.

    Args:
      labels: Tensor of shape [batch, ...].
      predictions: Tensor of the same shape.
      weights: A scalar, or a weight for each example.
      scope: Ignored.
      loss_collection: See `compute_weighted_loss`.
    """
    labels, predictions = _prepare_pair(labels, predictions)
    factors = tf.cast(tf.convert_to_tensor(weights), tf.float32)
    error = tf.reshape(predictions - labels, [tf.shape(labels)[0], -1])
    rows = tf.fill([tf.shape(error)[0], 1], 1.0) * tf.reshape(factors, [-1, 1])
    count = tf.cast(tf.shape(error)[1], tf.float32) * tf.cast(rows != 0, tf.float32)
    pairs = tf.math.divide_no_nan(tf.reduce_sum(error * error, 1, keepdims=True), count - 1)
    squares = tf.math.divide_no_nan(
        tf.square(tf.reduce_sum(error, 1, keepdims=True)), count * (count - 1)
    )
    loss = tf.reduce_sum(2 * (pairs - squares) * rows)
    add_loss(loss, loss_collection)
    return loss


def sigmoid_cross_entropy(
    multi_class_labels: TensorLike,
    logits: TensorLike,
    weights: TensorLike = 1.0,
    label_smoothing: float = 0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = _BY_WEIGHTS,
) -> Tensor:
    """Compute the weighted mean of binary cross-entropies of logits; see `compute_weighted_loss`.

    Args:
      multi_class_labels: Labels between 0 and 1, of the shape of the logits.
      logits: Tensor.
      weights: As in `compute_weighted_loss`.
      label_smoothing: Labels are moved towards 0.5 by this fraction.
      scope: Ignored.
      loss_collection: See `compute_weighted_loss`.
      reduction: As in `compute_weighted_loss`.
    """
    logits = tf.convert_to_tensor(logits)
    labels = tf.cast(multi_class_labels, logits.dtype)
    logits.shape.assert_is_compatible_with(labels.shape)
    if label_smoothing > 0:
        labels = labels * (1 - label_smoothing) + 0.5 * label_smoothing
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def softmax_cross_entropy(
    onehot_labels: TensorLike,
    logits: TensorLike,
    weights: TensorLike = 1.0,
    label_smoothing: float = 0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = _BY_WEIGHTS,
) -> Tensor:
    """Compute the weighted mean of cross-entropies; no gradient flows to the labels.

    Args:
      onehot_labels: Probabilities of shape [..., classes].
      logits: Tensor of the same shape.
      weights: As in `compute_weighted_loss`.
      label_smoothing: Labels are moved towards the uniform distribution by this fraction.
      scope: Ignored.
      loss_collection: See `compute_weighted_loss`.
      reduction: As in `compute_weighted_loss`.
    """
    logits = tf.convert_to_tensor(logits)
    labels = tf.cast(onehot_labels, logits.dtype)
    logits.shape.assert_is_compatible_with(labels.shape)
    if label_smoothing > 0:
        num_classes = tf.cast(tf.shape(labels)[-1], logits.dtype)
        labels = labels * (1 - label_smoothing) + label_smoothing / num_classes
    losses = tf.nn.softmax_cross_entropy_with_logits(labels=tf.stop_gradient(labels), logits=logits)
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def sparse_softmax_cross_entropy(
    labels: TensorLike,
    logits: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = _BY_WEIGHTS,
) -> Tensor:
    """Compute the weighted mean of cross-entropies of class indices; see `compute_weighted_loss`.

    Args:
      labels: Integers of shape [...] or [..., 1].
      logits: Tensor of shape [..., classes].
      weights: As in `compute_weighted_loss`; a last size of 1 is removed if necessary.
      scope: Ignored.
      loss_collection: See `compute_weighted_loss`.
      reduction: As in `compute_weighted_loss`.
    """
    logits, indices = tf.convert_to_tensor(logits), tf.convert_to_tensor(labels)
    if indices.shape.rank == logits.shape.rank:
        indices = tf.squeeze(indices, [-1])
    factors = tf.convert_to_tensor(weights)
    if factors.shape.rank and factors.shape.rank == indices.shape.rank + 1:
        factors = tf.squeeze(factors, [-1])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=indices, logits=logits)
    return compute_weighted_loss(losses, factors, scope, loss_collection, reduction)


def add_loss(loss: TensorLike, loss_collection: str | None = _COLLECTION) -> None:
    """Add a loss to a collection of the graph in a block of a `tf.Graph`; otherwise, do nothing.

    The losses of a function that is traced in the block belong to the function, and are not added.
    """
    if loss_collection and has_explicit_graph():
        get_default_graph().add_to_collection(loss_collection, loss)


def get_losses(scope: str | None = None, loss_collection: str = _COLLECTION) -> list[Tensor]:
    """Return the losses of a collection of the default graph."""
    return get_default_graph().get_collection(loss_collection, scope)


def get_regularization_losses(scope: str | None = None) -> list[Tensor]:
    """Return the penalties of the variables of the default graph; those of a Keras layer are in `layer.losses`."""
    return get_losses(scope, "regularization_losses")


def get_regularization_loss(
    scope: str | None = None, name: str = "total_regularization_loss"
) -> Tensor:
    """Return the sum of `get_regularization_losses`, or 0."""
    return tf.add_n([tf.constant(0.0), *get_regularization_losses(scope)], name=name)


def get_total_loss(
    add_regularization_losses: bool = True, name: str = "total_loss", scope: str | None = None
) -> Tensor:
    """Return the sum of the losses of the default graph, or 0.

    Args:
      add_regularization_losses: Whether penalties of variables are added.
      name: Name of the result.
      scope: Regular expression; only losses with names that start with a match are added.
    """
    penalties = get_regularization_losses(scope) if add_regularization_losses else []
    return tf.add_n([tf.constant(0.0), *get_losses(scope), *penalties], name=name)
