"""Checks of the shapes of labels and of class indices."""

from __future__ import annotations

import jax
import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops import array, math
from meshflow.ops.ragged import convert_values


def check_same_shape(function: str, y_true: TensorLike, y_pred: TensorLike, hint: str = "") -> None:
    """Refuse labels with a shape that would be broadcast against the predictions.

    Args:
      function: Name of the loss, for the error message.
      y_true: Labels.
      y_pred: Predictions.
      hint: Sentence that suggests an alternative.

    Raises:
      ValueError: If the shapes differ.
    """
    if not y_true.shape.is_compatible_with(y_pred.shape):
        raise InvalidValueError(
            f"Shapes {y_true.shape} and {y_pred.shape} are incompatible: {function} requires labels of the shape of "
            f"the predictions.{' ' + hint if hint else ''}"
        )


def to_class_indices(labels: TensorLike, reject_nan: bool = False) -> Tensor:
    """Convert labels to int64; NaN becomes the smallest integer, which is not a class.

    Args:
      labels: Class indices of any numeric dtype.
      reject_nan: Whether a NaN with a known value, outside compiled functions, is an error.

    Raises:
      InvalidArgumentError: If a label is NaN and `reject_nan` is set.
    """
    labels = convert_values(labels)
    if not labels.dtype.is_floating:
        return math.cast(labels, "int64")
    is_nan = math.is_nan(labels)
    # Keras tensors have no values.
    is_symbolic = not isinstance(is_nan, Tensor) or isinstance(is_nan.array, jax.core.Tracer)
    if reject_nan and not is_symbolic:
        known = np.asarray(is_nan.array)
        if known.any():
            raise InvalidArgumentError(
                f"Received a label value of nan at position {np.argwhere(known)[0].tolist()}; class indices are integers."
            )
    indices = math.cast(array.where(is_nan, array.zeros_like(labels), labels), "int64")
    return array.where(is_nan, array.fill(labels.shape, np.iinfo(np.int64).min), indices)


def check_labels(labels: np.ndarray, num_classes: int, name: str) -> None:
    """Refuse labels that are not class indices.

    Args:
      labels: Labels.
      num_classes: Number of classes.
      name: Name of the model output.

    Raises:
      InvalidArgumentError: If a label is out of range; the message has its position.
    """
    is_invalid = ~((labels >= 0) & (labels < num_classes))  # NaN is invalid, too.
    if is_invalid.any():
        position = np.argwhere(is_invalid)[0].tolist()
        raise InvalidValueError(
            f"Output {name!r}: received a label value of {labels[tuple(position)]} at position {position} of the batch, "
            f"which is outside the valid range of [0, {num_classes}). The output has {num_classes} classes; check the "
            "labels or the number of units of the last layer."
        )
