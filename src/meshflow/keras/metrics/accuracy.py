"""Accuracies: fractions of predictions that match the labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras import settings
from meshflow.keras.losses import functions
from meshflow.keras.losses.label_check import check_same_shape, to_class_indices
from meshflow.keras.metrics import means
from meshflow.keras.metrics.base import MetricArguments
from meshflow.ops import array, math


def accuracy(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Return 1.0 where labels and predictions are equal.

    Formula:
      `1 if y = p else 0`, with labels y and predictions p.

    Example:
      >>> tf.keras.metrics.accuracy([[1], [2]], [[1], [3]]).numpy().tolist()
      [[1.0], [0.0]]
    """
    y_true, y_pred = convert_to_tensor(y_true), convert_to_tensor(y_pred)
    check_same_shape("accuracy", y_true, y_pred)
    return _compare(y_true, y_pred)


def _compare(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    y_true = math.cast(convert_to_tensor(y_true), y_pred.dtype)
    return math.cast(math.equal(y_true, y_pred), settings.floatx())


def binary_accuracy(y_true: TensorLike, y_pred: TensorLike, threshold: float = 0.5) -> Tensor:
    """Compute the fraction of predictions on the correct side of a threshold over the last axis.

    Formula:
      `mean(1 if y = (p > threshold) else 0)` over the last axis, with labels y and predictions p.

    Example:
      >>> tf.keras.metrics.binary_accuracy([[1, 1, 0, 0]], [[0.9, 0.2, 0.4, 0.1]]).numpy().tolist()
      [0.75]
      >>> tf.keras.metrics.binary_accuracy([[1, 1, 0, 0]], [[0.9, 0.2, 0.4, 0.1]], 0.95).numpy().tolist()
      [0.5]
    """
    return math.reduce_mean(_match_binary_labels(y_true, y_pred, threshold), axis=-1)


def _match_binary_labels(y_true: TensorLike, y_pred: TensorLike, threshold: float = 0.5) -> Tensor:
    """Return 1.0 for each element on the correct side of a threshold.

    Formula:
      `1 if y = (p > threshold) else 0`, with labels y and predictions p.
    """
    y_pred = convert_to_tensor(y_pred)
    above = y_pred > math.cast(threshold, y_pred.dtype)
    return _compare(y_true, math.cast(above, y_pred.dtype))


def categorical_accuracy(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Return 1.0 where the largest prediction is the class of the one-hot label.

    Formula:
      `1 if argmax(y) = argmax(p) else 0`, with one-hot labels y and predictions p.

    Example:
      >>> labels, scores = [[0, 1], [1, 0]], [[0.1, 0.9], [0.2, 0.8]]
      >>> tf.keras.metrics.categorical_accuracy(labels, scores).numpy().tolist()
      [1.0, 0.0]
    """
    return sparse_categorical_accuracy(math.argmax(y_true, axis=-1), y_pred)


def sparse_categorical_accuracy(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Return 1.0 where the largest prediction is the class of the label, a class index.

    Formula:
      `1 if y = argmax(p) else 0`, with the class index y and predictions p.

    Example:
      >>> scores = [[0.1, 0.9], [0.2, 0.8]]
      >>> tf.keras.metrics.sparse_categorical_accuracy([1, 0], scores).numpy().tolist()
      [1.0, 0.0]
    """
    y_true, y_pred = convert_to_tensor(y_true), convert_to_tensor(y_pred)
    if len(y_true.shape) == len(y_pred.shape):
        if y_true.shape[-1:] != [1]:
            raise InvalidValueError(
                f"sparse_categorical_accuracy: expected class indices with the shape of the predictions "
                f"{y_pred.shape} without the last dimension, got labels of shape {y_true.shape}."
            )
        y_true = array.squeeze(y_true, -1)
    if not y_true.dtype.is_floating:
        y_true = math.cast(y_true, "int64")
    return _compare(math.argmax(y_pred, axis=-1), y_true)


def top_k_categorical_accuracy(y_true: TensorLike, y_pred: TensorLike, k: int = 5) -> Tensor:
    """Return 1.0 where the class of the one-hot label is among the k largest predictions.

    Formula:
      `1 if count(p > p[c]) < k else 0` for the class c of the label, `argmax(y)`, with one-hot
      labels y and predictions p.

    Example:
      >>> labels, scores = [[0, 1, 0], [0, 0, 1]], [[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]
      >>> tf.keras.metrics.top_k_categorical_accuracy(labels, scores, k=2).numpy().tolist()
      [1.0, 0.0]
    """
    return sparse_top_k_categorical_accuracy(math.argmax(y_true, axis=-1), y_pred, k)


def sparse_top_k_categorical_accuracy(y_true: TensorLike, y_pred: TensorLike, k: int = 5) -> Tensor:
    """Return 1.0 where the label, a class index, is among the k largest predictions.

    Formula:
      `1 if count(p > p[y]) < k else 0`, with the class index y and predictions p.

    Example:
      >>> scores = [[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]
      >>> tf.keras.metrics.sparse_top_k_categorical_accuracy([1, 2], scores, k=2).numpy().tolist()
      [1.0, 0.0]
    """
    y_pred = convert_to_tensor(y_pred)
    labels = to_class_indices(y_true)
    if len(y_pred.shape) < 2:
        raise InvalidArgumentError(
            f"Top-k accuracy: predictions must be 2-dimensional or more, got shape {y_pred.shape}."
        )
    classes = y_pred.shape[-1]
    shape = labels.shape
    hits = math.in_top_k(
        array.reshape(labels, [-1]), array.reshape(y_pred, [-1, classes]), min(k, classes)
    )
    return math.cast(array.reshape(hits, shape), settings.floatx())


def resolve_accuracy(
    y_true_shape: Sequence[int | None], y_pred_shape: Sequence[int | None], kind: str = "accuracy"
) -> Callable[..., Any]:
    """Return the accuracy or cross entropy function for the shapes of labels and predictions.

    Args:
      y_true_shape: Shape of the labels.
      y_pred_shape: Shape of the predictions.
      kind: 'accuracy' or 'crossentropy'.

    Returns:
      The binary function for one output unit, the sparse one for class indices, and the categorical
      one otherwise.
    """
    true_shape, pred_shape = tuple(y_true_shape), tuple(y_pred_shape)
    if pred_shape[-1:] == (1,):
        prefix = "binary"
    elif len(true_shape) < len(pred_shape) or (true_shape[-1:] == (1,) and pred_shape[-1:] != (1,)):
        prefix = "sparse_categorical"
    else:
        prefix = "categorical"
    if kind == "crossentropy":
        return getattr(functions, f"{prefix}_crossentropy")
    return globals()[f"{prefix}_accuracy"]


@means.define_metric(accuracy, example=("Accuracy()([1, 2, 3, 4], [1, 2, 3, 0])", "0.75"))
class Accuracy(means.FunctionMetric):
    """Fraction of predictions that are equal to the labels."""


# The function does not average over an axis, so each element may have its own weight.
@means.define_metric(
    _match_binary_labels,
    example=("BinaryAccuracy(threshold=0.3)([1, 1, 0, 0], [0.9, 0.4, 0.4, 0.1])", "0.75"),
)
class BinaryAccuracy(means.FunctionMetric):
    """Fraction of predictions on the correct side of a threshold."""

    def __init__(
        self,
        name: str | None = "binary_accuracy",
        dtype: DTypeLike | None = None,
        threshold: float = 0.5,
        **kwargs: Unpack[MetricArguments],
    ) -> None: ...


@means.define_metric(
    categorical_accuracy,
    example=("CategoricalAccuracy()([[0, 1], [1, 0]], [[0.1, 0.9], [0.2, 0.8]])", "0.5"),
)
class CategoricalAccuracy(means.FunctionMetric):
    """Fraction of correct classes for one-hot labels."""


@means.define_metric(
    sparse_categorical_accuracy,
    example=("SparseCategoricalAccuracy()([1, 0], [[0.1, 0.9], [0.2, 0.8]])", "0.5"),
)
class SparseCategoricalAccuracy(means.FunctionMetric):
    """Fraction of correct classes for class indices."""


@means.define_metric(
    top_k_categorical_accuracy,
    example=(
        "TopKCategoricalAccuracy(k=2)([[0, 1, 0], [0, 0, 1]], [[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]])",
        "0.5",
    ),
)
class TopKCategoricalAccuracy(means.FunctionMetric):
    """Fraction of one-hot labels among the k largest predictions."""

    def __init__(
        self,
        k: int = 5,
        name: str | None = "top_k_categorical_accuracy",
        dtype: DTypeLike | None = None,
        **kwargs: Unpack[MetricArguments],
    ) -> None: ...


@means.define_metric(
    sparse_top_k_categorical_accuracy,
    example=(
        "SparseTopKCategoricalAccuracy(k=2)([1, 2], [[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]])",
        "0.5",
    ),
)
class SparseTopKCategoricalAccuracy(means.FunctionMetric):
    """Fraction of class indices among the k largest predictions."""

    def __init__(
        self,
        k: int = 5,
        name: str | None = "sparse_top_k_categorical_accuracy",
        dtype: DTypeLike | None = None,
        **kwargs: Unpack[MetricArguments],
    ) -> None: ...
