"""Loss functions: one value per example, averaged over the last axis."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import PyTree
from meshflow.keras import settings
from meshflow.keras.logits import recover_logits
from meshflow.keras.losses.label_check import check_same_shape, to_class_indices
from meshflow.ops import array, math, nn
from meshflow.ops.ragged import RaggedTensor, convert_values

LossFunction = TypeVar("LossFunction", bound=Callable[..., Tensor])


def _convert_pair(y_true: TensorLike, y_pred: TensorLike) -> tuple[Tensor, Tensor]:
    y_pred = convert_values(y_pred)
    if not y_pred.dtype.is_floating:
        y_pred = math.cast(y_pred, settings.floatx())
    return math.cast(convert_values(y_true), y_pred.dtype), y_pred


def _apply_to_values(function: LossFunction) -> LossFunction:
    """Make a loss over an axis of classes apply to the innermost values of ragged predictions."""

    @functools.wraps(function)
    def apply(y_true: TensorLike, y_pred: TensorLike, *args: Any, **kwargs: Any) -> PyTree:
        if not isinstance(y_pred, RaggedTensor):
            return function(y_true, y_pred, *args, **kwargs)
        labels = y_true.flat_values if isinstance(y_true, RaggedTensor) else y_true
        return y_pred.with_flat_values(function(labels, y_pred.flat_values, *args, **kwargs))

    return cast(LossFunction, apply)


def mean_squared_error(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Compute `mean((y_true - y_pred)^2)` over the last axis.

    Formula:
      `mean((y - p)^2)` over the last axis, with labels y and predictions p.

    Example:
      >>> tf.keras.losses.mean_squared_error([[0.0, 1.0]], [[1.0, 1.0]]).numpy()
      array([0.5], dtype=float32)
    """
    y_true, y_pred = _convert_pair(y_true, y_pred)
    return math.reduce_mean(math.squared_difference(y_pred, y_true), axis=-1)


def mean_absolute_error(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Compute `mean(|y_true - y_pred|)` over the last axis.

    Formula:
      `mean(|y - p|)` over the last axis, with labels y and predictions p.

    Example:
      >>> tf.keras.losses.mean_absolute_error([[1.0, 2.0]], [[3.0, 6.0]]).numpy().tolist()
      [3.0]
    """
    y_true, y_pred = _convert_pair(y_true, y_pred)
    return math.reduce_mean(math.abs(y_pred - y_true), axis=-1)


def mean_absolute_percentage_error(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Compute `100 * mean(|(y_true - y_pred) / y_true|)` over the last axis.

    Formula:
      `100 * mean(|y - p| / max(|y|, epsilon))` over the last axis, with labels y, predictions p,
      and `epsilon` of `tf.keras.backend`.

    Example:
      >>> tf.keras.losses.mean_absolute_percentage_error([[2.0, 4.0]], [[1.0, 3.0]]).numpy().tolist()
      [37.5]
    """
    y_true, y_pred = _convert_pair(y_true, y_pred)
    difference = math.abs((y_true - y_pred) / math.maximum(math.abs(y_true), settings.epsilon()))
    return 100.0 * math.reduce_mean(difference, axis=-1)


def mean_squared_logarithmic_error(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Compute `mean((log(1 + y_true) - log(1 + y_pred))^2)` over the last axis.

    Formula:
      `mean((log(1 + max(y, epsilon)) - log(1 + max(p, epsilon)))^2)` over the last axis, with
      labels y, predictions p, and `epsilon` of `tf.keras.backend`.

    Example:
      >>> tf.keras.losses.mean_squared_logarithmic_error([[0.0]], [[1.0]]).numpy().round(3)
      array([0.48], dtype=float32)
    """
    y_true, y_pred = _convert_pair(y_true, y_pred)
    first = math.log(math.maximum(y_pred, settings.epsilon()) + 1.0)
    second = math.log(math.maximum(y_true, settings.epsilon()) + 1.0)
    return math.reduce_mean(math.squared_difference(first, second), axis=-1)


def _to_signed_labels(y_true: TensorLike) -> Tensor:
    """Convert labels 0 and 1 to -1 and 1, if there are no others."""
    is_binary = math.reduce_all(math.logical_or(math.equal(y_true, 0.0), math.equal(y_true, 1.0)))
    return array.where(is_binary, 2.0 * y_true - 1.0, y_true)


def squared_hinge(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Compute `mean(max(1 - y_true * y_pred, 0)^2)` for labels -1 and 1 (or 0 and 1).

    Formula:
      `mean(max(1 - y * p, 0)^2)` over the last axis, with labels y, which are -1 or 1, and
      predictions p.

    Example:
      >>> tf.keras.losses.squared_hinge([[-1.0, 1.0]], [[1.0, 0.0]]).numpy().tolist()
      [2.5]
    """
    y_true, y_pred = _convert_pair(y_true, y_pred)
    return math.reduce_mean(
        math.square(math.maximum(1.0 - _to_signed_labels(y_true) * y_pred, 0.0)), axis=-1
    )


def hinge(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Compute `mean(max(1 - y_true * y_pred, 0))` for labels -1 and 1 (or 0 and 1).

    Formula:
      `mean(max(1 - y * p, 0))` over the last axis, with labels y, which are -1 or 1, and
      predictions p.

    Example:
      >>> tf.keras.losses.hinge([[-1.0, 1.0]], [[0.5, 0.5]]).numpy().tolist()
      [1.0]
    """
    y_true, y_pred = _convert_pair(y_true, y_pred)
    return math.reduce_mean(math.maximum(1.0 - _to_signed_labels(y_true) * y_pred, 0.0), axis=-1)


def categorical_hinge(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Compute `max(max((1 - y_true) * y_pred) - sum(y_true * y_pred) + 1, 0)`.

    Formula:
      `max(max((1 - y) * p) - sum(y * p) + 1, 0)`, with the sum and the inner maximum over the last
      axis, one-hot labels y, and predictions p.

    Example:
      >>> tf.keras.losses.categorical_hinge([[0.0, 1.0]], [[0.5, 0.25]]).numpy().tolist()
      [1.25]
    """
    y_true, y_pred = _convert_pair(y_true, y_pred)
    positive = math.reduce_sum(y_true * y_pred, axis=-1)
    negative = math.reduce_max((1.0 - y_true) * y_pred, axis=-1)
    return math.maximum(negative - positive + 1.0, 0.0)


def huber(y_true: TensorLike, y_pred: TensorLike, delta: float = 1.0) -> Tensor:
    """Compute a loss that is quadratic up to the error `delta` and linear above.

    Formula:
      `mean(e^2 / 2)` over the last axis for errors `e = |y - p|` up to `delta`, and `delta * e -
      delta^2 / 2` in place of `e^2 / 2` for a larger error e; with labels y and predictions p
      (Huber 1964).

    Args:
      y_true: Labels.
      y_pred: Predictions.
      delta: Error above which the loss is linear.

    Example:
      >>> tf.keras.losses.huber([[0.0], [0.0]], [[0.5], [4.0]]).numpy().tolist()
      [0.125, 3.5]
    """
    y_true, y_pred = (math.cast(y, settings.floatx()) for y in _convert_pair(y_true, y_pred))
    error = math.abs(y_pred - y_true)
    return math.reduce_mean(
        array.where(error <= delta, 0.5 * math.square(error), delta * error - 0.5 * delta * delta),
        axis=-1,
    )


def log_cosh(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Compute `mean(log(cosh(y_pred - y_true)))` over the last axis.

    Formula:
      `mean(log(cosh(p - y)))` over the last axis, with labels y and predictions p.

    Example:
      >>> tf.keras.losses.log_cosh([[0.0], [0.0]], [[0.0], [1.0]]).numpy().round(3)
      array([0.   , 0.434], dtype=float32)
    """
    y_true, y_pred = _convert_pair(y_true, y_pred)
    x = y_pred - y_true
    return math.reduce_mean(x + nn.softplus(-2.0 * x) - 0.6931471805599453, axis=-1)


def kl_divergence(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Compute `sum(y_true * log(y_true / y_pred))` over the last axis.

    Formula:
      `sum(y * log(y / p))` over the last axis, with labels y and predictions p, both clipped to
      `epsilon` (of `tf.keras.backend`) and 1 (Kullback and Leibler 1951).

    Example:
      >>> tf.keras.losses.kl_divergence([[0.5, 0.5]], [[0.25, 0.75]]).numpy().round(3)
      array([0.144], dtype=float32)
    """
    y_true, y_pred = _convert_pair(y_true, y_pred)
    y_true = math.clip_by_value(y_true, settings.epsilon(), 1.0)
    y_pred = math.clip_by_value(y_pred, settings.epsilon(), 1.0)
    return math.reduce_sum(y_true * math.log(y_true / y_pred), axis=-1)


def poisson(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Compute `mean(y_pred - y_true * log(y_pred))` over the last axis.

    Formula:
      `mean(p - y * log(p + epsilon))` over the last axis, with labels y, predictions p, and
      `epsilon` of `tf.keras.backend`.

    Example:
      >>> tf.keras.losses.poisson([[2.0, 0.0]], [[1.0, 3.0]]).numpy().round(3).tolist()
      [2.0]
    """
    y_true, y_pred = _convert_pair(y_true, y_pred)
    return math.reduce_mean(y_pred - y_true * math.log(y_pred + settings.epsilon()), axis=-1)


def cosine_similarity(y_true: TensorLike, y_pred: TensorLike, axis: int = -1) -> Tensor:
    """Compute the negative cosine of the angle between labels and predictions.

    Formula:
      `-sum(y * p) / (|y| * |p|)` over `axis`, with labels y, predictions p, and the Euclidean norm
      |.|.

    Example:
      >>> tf.keras.losses.cosine_similarity([[3.0, 4.0]], [[6.0, 8.0]]).numpy().round(3).tolist()
      [-1.0]
    """
    y_true, y_pred = _convert_pair(y_true, y_pred)
    return -math.reduce_sum(
        math.l2_normalize(y_true, axis) * math.l2_normalize(y_pred, axis), axis=axis
    )


_CLASS_INDEX_HINT = (
    "Use sparse_categorical_crossentropy for class indices, or encode them with tf.one_hot."
)


def _smooth_labels(y_true: TensorLike, smoothing: float, classes: float) -> Tensor:
    return y_true * (1.0 - smoothing) + smoothing / classes if smoothing else y_true


@_apply_to_values
def categorical_crossentropy(
    y_true: TensorLike,
    y_pred: TensorLike,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Tensor:
    """Compute the cross entropy for one-hot labels.

    Formula:
      `-sum(y * log(p))` over `axis`. The predictions p are divided by their sum and clipped inside
      (0, 1), or with `from_logits` replaced by their softmax. The labels y become with smoothing
      `(1 - label_smoothing) * y + label_smoothing / n` for n classes.

    Args:
      y_true: Label distributions.
      y_pred: Probabilities or logits.
      from_logits: Whether `y_pred` are logits.
      label_smoothing: Fraction of each label that is distributed over all classes.
      axis: Axis of the classes.

    Returns:
      The loss of each example.

    Raises:
      ValueError: If labels and predictions have different shapes.

    Example:
      >>> tf.keras.losses.categorical_crossentropy([[0, 1, 0]], [[0.25, 0.5, 0.25]]).numpy().round(3)
      array([0.693], dtype=float32)
    """
    y_true, y_pred = _convert_pair(y_true, y_pred)
    check_same_shape("categorical_crossentropy", y_true, y_pred, _CLASS_INDEX_HINT)
    y_true = _smooth_labels(y_true, label_smoothing, float(y_pred.shape[axis] or 1))
    y_pred, from_logits = recover_logits(y_pred, from_logits, "categorical_crossentropy", "Softmax")
    if from_logits:
        return nn.softmax_cross_entropy_with_logits(y_true, y_pred, axis)
    y_pred = y_pred / math.reduce_sum(y_pred, axis=axis, keepdims=True)
    y_pred = math.clip_by_value(y_pred, settings.epsilon(), 1.0 - settings.epsilon())
    return -math.reduce_sum(y_true * math.log(y_pred), axis=axis)


@_apply_to_values
def sparse_categorical_crossentropy(
    y_true: TensorLike,
    y_pred: TensorLike,
    from_logits: bool = False,
    axis: int = -1,
    ignore_class: int | None = None,
) -> Tensor:
    """Compute the cross entropy for class indices.

    Formula:
      `-log(p[y])` for the class index y. The predictions p along `axis` are clipped inside (0, 1),
      or with `from_logits` replaced by their softmax.

    Args:
      y_true: Class indices.
      y_pred: Probabilities or logits.
      from_logits: Whether `y_pred` are logits.
      axis: Axis of the classes.
      ignore_class: Class index of examples with loss 0.

    Returns:
      The loss of each example; in a compiled function NaN for a class index that is NaN or out of
      range.

    Raises:
      InvalidArgumentError: If a class index is NaN or out of range, outside compiled functions.

    Example:
      >>> y_pred = [[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]]
      >>> tf.keras.losses.sparse_categorical_crossentropy([0, 2], y_pred, ignore_class=2).numpy().round(3)
      array([0.693, 0.   ], dtype=float32)
    """
    y_pred, from_logits = recover_logits(
        convert_values(y_pred), from_logits, "sparse_categorical_crossentropy", "Softmax"
    )
    labels = to_class_indices(y_true, reject_nan=True)
    rank = len(y_pred.shape)
    if axis % rank != rank - 1:
        order = [i for i in range(rank) if i != axis % rank] + [axis % rank]
        y_pred = array.transpose(y_pred, order)
    if len(labels.shape) == rank and labels.shape[-1] == 1:
        labels = array.squeeze(labels, -1)
    if not from_logits:
        # The softmax of the logarithms of clipped probabilities equals these probabilities.
        y_pred = math.log(math.clip_by_value(y_pred, settings.epsilon(), 1.0 - settings.epsilon()))
    if ignore_class is None:
        return nn.sparse_softmax_cross_entropy_with_logits(labels, y_pred)
    is_counted = math.not_equal(labels, ignore_class)
    safe_labels = array.where(is_counted, labels, 0)
    loss = nn.sparse_softmax_cross_entropy_with_logits(safe_labels, y_pred)
    loss = loss * math.cast(is_counted, loss.dtype)
    # `Loss` excludes the ignored examples from means.
    loss._keras_mask = is_counted
    return loss


def _compute_binary_terms(
    y_true: TensorLike, y_pred: TensorLike, from_logits: bool = False
) -> Tensor:
    """Compute the cross entropy of each element, with labels 0 and 1."""
    y_pred, from_logits = recover_logits(y_pred, from_logits, "binary_crossentropy", "Sigmoid")
    y_true, y_pred = _convert_pair(y_true, y_pred)
    if from_logits:
        return nn.sigmoid_cross_entropy_with_logits(labels=y_true, logits=y_pred)
    e = settings.epsilon()
    y_pred = math.clip_by_value(y_pred, e, 1.0 - e)
    return -(y_true * math.log(y_pred + e) + (1.0 - y_true) * math.log(1.0 - y_pred + e))


def binary_crossentropy(
    y_true: TensorLike,
    y_pred: TensorLike,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Tensor:
    """Compute the mean cross entropy over `axis` for labels 0 and 1.

    Formula:
      `-mean(y * log(p) + (1 - y) * log(1 - p))` over `axis`. The predictions p are clipped inside
      (0, 1), or with `from_logits` replaced by their sigmoid. The labels y become with smoothing
      `(1 - label_smoothing) * y + label_smoothing / 2`.

    Args:
      y_true: Labels 0 or 1.
      y_pred: Probabilities or logits of the same shape.
      from_logits: Whether `y_pred` are logits.
      label_smoothing: Fraction s by which labels move to 1/2: `y * (1 - s) + s / 2`.
      axis: Axis of the mean.

    Returns:
      The loss of each example, without `axis`.

    Example:
      >>> tf.keras.losses.binary_crossentropy([[0, 1]], [[0.5, 0.5]]).numpy().round(3)
      array([0.693], dtype=float32)
    """
    y_true, y_pred = _convert_pair(y_true, y_pred)
    return math.reduce_mean(
        _compute_binary_terms(_smooth_labels(y_true, label_smoothing, 2.0), y_pred, from_logits),
        axis=axis,
    )


def _compute_binary_focal_terms(
    y_true: TensorLike,
    y_pred: TensorLike,
    apply_class_balancing: bool,
    alpha: float,
    gamma: float | TensorLike,
    from_logits: bool,
) -> Tensor:
    """Compute the binary focal cross entropy of each element."""
    y_true, y_pred = _convert_pair(y_true, y_pred)
    probability = nn.sigmoid(y_pred) if from_logits else y_pred
    true_probability = y_true * probability + (1.0 - y_true) * (1.0 - probability)
    loss = math.pow(1.0 - true_probability, gamma) * _compute_binary_terms(
        y_true, y_pred, from_logits
    )
    if apply_class_balancing:
        loss = loss * (y_true * alpha + (1.0 - y_true) * (1.0 - alpha))
    return loss


def binary_focal_crossentropy(
    y_true: TensorLike,
    y_pred: TensorLike,
    apply_class_balancing: bool = False,
    alpha: float = 0.25,
    gamma: float | TensorLike = 2.0,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Tensor:
    """Compute a binary cross entropy with smaller weights of easy examples (arXiv:1708.02002).

    Formula:
      `mean((1 - q)^gamma * c)` over `axis`. Here c is the binary cross entropy of an element and q
      the probability of the true class, `y * p + (1 - y) * (1 - p)`, for labels y and predictions p
      (with `from_logits` their sigmoid). With `apply_class_balancing` c is multiplied by `y * alpha
      + (1 - y) * (1 - alpha)`.

    Args:
      y_true: Labels 0 or 1.
      y_pred: Probabilities or logits of the same shape.
      apply_class_balancing: Whether class 1 has the weight `alpha` and class 0 the weight `1 -
        alpha`.
      alpha: Weight of class 1.
      gamma: Power of `1 - q`; 0 results in the cross entropy.
      from_logits: Whether `y_pred` are logits.
      label_smoothing: Fraction by which labels move to 1/2.
      axis: Axis of the mean.

    Returns:
      The loss of each example, without `axis`.

    Example:
      >>> easy = tf.keras.losses.binary_focal_crossentropy([[1]], [[0.9]])
      >>> hard = tf.keras.losses.binary_focal_crossentropy([[1]], [[0.1]])
      >>> easy.numpy().round(4), hard.numpy().round(4)
      (array([0.0011], dtype=float32), array([1.8651], dtype=float32))
    """
    y_true, y_pred = _convert_pair(y_true, y_pred)
    y_true = _smooth_labels(y_true, label_smoothing, 2.0)
    loss = _compute_binary_focal_terms(
        y_true, y_pred, apply_class_balancing, alpha, gamma, from_logits
    )
    return math.reduce_mean(loss, axis=axis)


@_apply_to_values
def categorical_focal_crossentropy(
    y_true: TensorLike,
    y_pred: TensorLike,
    alpha: float | TensorLike = 0.25,
    gamma: float | TensorLike = 2.0,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Tensor:
    """Compute a categorical cross entropy with smaller weights of easy examples (arXiv:1708.02002).

    Formula:
      `-sum(alpha * (1 - p)^gamma * y * log(p))` over `axis`, with one-hot labels y and predictions
      p, which are divided by their sum, or with `from_logits` replaced by their softmax.

    Example:
      >>> tf.keras.losses.categorical_focal_crossentropy([[0, 1]], [[0.5, 0.5]], alpha=1.0).numpy().round(4)
      array([0.1733], dtype=float32)
    """
    y_true, y_pred = _convert_pair(y_true, y_pred)
    check_same_shape("categorical_focal_crossentropy", y_true, y_pred, _CLASS_INDEX_HINT)
    y_true = _smooth_labels(y_true, label_smoothing, float(y_pred.shape[axis] or 1))
    y_pred, from_logits = recover_logits(
        y_pred, from_logits, "categorical_focal_crossentropy", "Softmax"
    )
    probability = (
        nn.softmax(y_pred, axis)
        if from_logits
        else y_pred / math.reduce_sum(y_pred, axis=axis, keepdims=True)
    )
    probability = math.clip_by_value(probability, settings.epsilon(), 1.0 - settings.epsilon())
    factor = math.pow(1.0 - probability, gamma) * alpha
    return math.reduce_sum(-factor * y_true * math.log(probability), axis=axis)
