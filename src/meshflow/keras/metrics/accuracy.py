"""Accuracies: shares of predictions that match."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.keras import settings
from meshflow.keras.losses import functions
from meshflow.keras.losses.label_check import check_same_shape, class_numbers
from meshflow.keras.metrics.means import define
from meshflow.ops import array, math


def accuracy(y_true: Any, y_pred: Any) -> Tensor:
    """1.0 where labels and predictions are equal.

    Formula:
      `1 if y = p else 0`, y being the labels and p the predictions.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.metrics.accuracy([[1], [2]], [[1], [3]]).numpy().tolist()
      [[1.0], [0.0]]
    """
    y_true, y_pred = convert_to_tensor(y_true), convert_to_tensor(y_pred)
    check_same_shape("accuracy", y_true, y_pred)
    return _equal(y_true, y_pred)


def _equal(y_true: Any, y_pred: Any) -> Any:
    y_true = math.cast(convert_to_tensor(y_true), y_pred.dtype)
    return math.cast(math.equal(y_true, y_pred), settings.floatx())


def binary_accuracy(y_true: Any, y_pred: Any, threshold: float = 0.5) -> Tensor:
    """Share of predictions on the label's side of a threshold, over the last dimension.

    Formula:
      `mean(1 if y = (p > threshold) else 0)` over the last dimension, y being the labels and p the predictions.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.metrics.binary_accuracy([[1, 1, 0, 0]], [[0.9, 0.2, 0.4, 0.1]]).numpy().tolist()
      [0.75]
      >>> tf.keras.metrics.binary_accuracy([[1, 1, 0, 0]], [[0.9, 0.2, 0.4, 0.1]], 0.95).numpy().tolist()
      [0.5]
    """
    return math.reduce_mean(_binary_matches(y_true, y_pred, threshold), axis=-1)


def _binary_matches(y_true: Any, y_pred: Any, threshold: float = 0.5) -> Any:
    """1.0 for each element that is on the label's side of a threshold.

    Formula:
      `1 if y = (p > threshold) else 0`, y being the labels and p the predictions.
    """
    y_pred = convert_to_tensor(y_pred)
    return _equal(y_true, math.cast(y_pred > threshold, y_pred.dtype))


def categorical_accuracy(y_true: Any, y_pred: Any) -> Tensor:
    """1.0 where the largest prediction is the label's class; one-hot labels.

    Formula:
      `1 if argmax(y) = argmax(p) else 0`, y being the one-hot labels and p the predictions.

    Example:
      >>> import meshflow as tf
      >>> labels, scores = [[0, 1], [1, 0]], [[0.1, 0.9], [0.2, 0.8]]
      >>> tf.keras.metrics.categorical_accuracy(labels, scores).numpy().tolist()
      [1.0, 0.0]
    """
    return sparse_categorical_accuracy(math.argmax(y_true, axis=-1), y_pred)


def sparse_categorical_accuracy(y_true: Any, y_pred: Any) -> Tensor:
    """1.0 where the largest prediction is the label's class; class numbers as labels.

    Formula:
      `1 if y = argmax(p) else 0`, y being the class number and p the predictions.

    Example:
      >>> import meshflow as tf
      >>> scores = [[0.1, 0.9], [0.2, 0.8]]
      >>> tf.keras.metrics.sparse_categorical_accuracy([1, 0], scores).numpy().tolist()
      [1.0, 0.0]
    """
    y_true, y_pred = convert_to_tensor(y_true), convert_to_tensor(y_pred)
    if len(y_true.shape) == len(y_pred.shape):
        if y_true.shape[-1:] != [1]:
            raise InvalidValueError(
                f"sparse_categorical_accuracy: labels of shape {y_true.shape} are no class numbers for predictions "
                f"of shape {y_pred.shape}; they have the shape of the predictions without the last dimension."
            )
        y_true = array.squeeze(y_true, -1)
    if not y_true.dtype.is_floating:
        y_true = math.cast(y_true, "int64")
    return _equal(math.argmax(y_pred, axis=-1), y_true)


def top_k_categorical_accuracy(y_true: Any, y_pred: Any, k: int = 5) -> Tensor:
    """1.0 where the label's class is among the k largest predictions; one-hot labels.

    Formula:
      `1 if count(p > p[c]) < k else 0`, c being the label's class `argmax(y)`, y the one-hot labels and p the
      predictions.

    Example:
      >>> import meshflow as tf
      >>> labels, scores = [[0, 1, 0], [0, 0, 1]], [[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]
      >>> tf.keras.metrics.top_k_categorical_accuracy(labels, scores, k=2).numpy().tolist()
      [1.0, 0.0]
    """
    return sparse_top_k_categorical_accuracy(math.argmax(y_true, axis=-1), y_pred, k)


def sparse_top_k_categorical_accuracy(y_true: Any, y_pred: Any, k: int = 5) -> Tensor:
    """1.0 where the label's class is among the k largest predictions; class numbers as labels.

    Formula:
      `1 if count(p > p[y]) < k else 0`, y being the class number and p the predictions.

    Example:
      >>> import meshflow as tf
      >>> scores = [[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]
      >>> tf.keras.metrics.sparse_top_k_categorical_accuracy([1, 2], scores, k=2).numpy().tolist()
      [1.0, 0.0]
    """
    y_pred = convert_to_tensor(y_pred)
    labels = class_numbers(y_true)
    if len(y_pred.shape) < 2:
        raise InvalidArgumentError(
            f"Accuracy of the top k: predictions must be 2-dimensional or more, got shape {y_pred.shape}."
        )
    classes = y_pred.shape[-1]
    shape = labels.shape
    hits = math.in_top_k(
        array.reshape(labels, [-1]), array.reshape(y_pred, [-1, classes]), min(k, classes)
    )
    return math.cast(array.reshape(hits, shape), settings.floatx())


def resolve_accuracy(
    y_true_shape: Any, y_pred_shape: Any, kind: str = "accuracy"
) -> Callable[..., Any]:
    """What 'accuracy' (or 'crossentropy') means for the shapes of labels and predictions.

    Args:
      y_true_shape: shape of the labels.
      y_pred_shape: shape of the predictions.
      kind: 'accuracy' or 'crossentropy'.

    Returns:
      The binary function for one output unit, the sparse one for class numbers, else the
      categorical one.
    """
    true, pred = tuple(y_true_shape), tuple(y_pred_shape)
    if pred[-1:] == (1,):
        prefix = "binary"
    elif len(true) < len(pred) or (true[-1:] == (1,) and pred[-1:] != (1,)):
        prefix = "sparse_categorical"
    else:
        prefix = "categorical"
    if kind == "crossentropy":
        return getattr(functions, f"{prefix}_crossentropy")
    return globals()[f"{prefix}_accuracy"]


Accuracy = define(
    "Accuracy",
    accuracy,
    "Share of predictions equal to the labels.",
    example=("Accuracy()([1, 2, 3, 4], [1, 2, 3, 0])", "0.75"),
)
BinaryAccuracy = define(
    "BinaryAccuracy",
    # Element by element, so that each may have a weight of its own.
    _binary_matches,
    "Share of predictions on the label's side of a threshold.",
    default_name="binary_accuracy",
    example=("BinaryAccuracy(threshold=0.3)([1, 1, 0, 0], [0.9, 0.4, 0.4, 0.1])", "0.75"),
)
CategoricalAccuracy = define(
    "CategoricalAccuracy",
    categorical_accuracy,
    "Share of right classes; one-hot labels.",
    example=("CategoricalAccuracy()([[0, 1], [1, 0]], [[0.1, 0.9], [0.2, 0.8]])", "0.5"),
)
SparseCategoricalAccuracy = define(
    "SparseCategoricalAccuracy",
    sparse_categorical_accuracy,
    "Share of right classes; class numbers as labels.",
    example=("SparseCategoricalAccuracy()([1, 0], [[0.1, 0.9], [0.2, 0.8]])", "0.5"),
)
TopKCategoricalAccuracy = define(
    "TopKCategoricalAccuracy",
    top_k_categorical_accuracy,
    "Share of labels among the k largest predictions; one-hot labels.",
    first=("k",),
    example=(
        "TopKCategoricalAccuracy(k=2)([[0, 1, 0], [0, 0, 1]], [[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]])",
        "0.5",
    ),
)
SparseTopKCategoricalAccuracy = define(
    "SparseTopKCategoricalAccuracy",
    sparse_top_k_categorical_accuracy,
    "Share of labels among the k largest predictions.",
    first=("k",),
    example=(
        "SparseTopKCategoricalAccuracy(k=2)([1, 2], [[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]])",
        "0.5",
    ),
)
