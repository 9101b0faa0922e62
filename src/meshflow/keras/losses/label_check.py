"""Checks of labels: their shapes, and class numbers."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.ops import array, math


def check_same_shape(function: str, y_true: Any, y_pred: Any, hint: str = "") -> None:
    """Refuses labels that would only broadcast against the predictions.

    Args:
      function: what the labels were given to, for the error.
      y_true: labels.
      y_pred: predictions.
      hint: what to do instead.

    Raises:
      ValueError: when the shapes differ.
    """
    if not y_true.shape.is_compatible_with(y_pred.shape):
        raise InvalidValueError(
            f"Shapes {y_true.shape} and {y_pred.shape} are incompatible: {function} takes labels of the shape of "
            f"the predictions.{' ' + hint if hint else ''}"
        )


def class_numbers(labels: Any, refuse: bool = False) -> Any:
    """Labels as integers, with the smallest one, which is no class, for NaN.

    Args:
      labels: class numbers of any numeric dtype.
      refuse: whether NaN is an error where it is known, outside of compiled functions.

    Raises:
      InvalidArgumentError: for NaN with `refuse`.
    """
    labels = convert_to_tensor(labels)
    if not labels.dtype.is_floating:
        return math.cast(labels, "int64")
    missing = math.is_nan(labels)
    if refuse and not isinstance(missing._value, jax.core.Tracer):
        known = np.asarray(missing._value)
        if known.any():
            raise InvalidArgumentError(
                f"Received a label value of nan at position {np.argwhere(known)[0].tolist()}; class numbers are integers."
            )
    numbers = math.cast(array.where(missing, array.zeros_like(labels), labels), "int64")
    return array.where(missing, array.fill(labels.shape, np.iinfo(np.int64).min), numbers)


def check_labels(labels: np.ndarray, num_classes: int, name: str) -> None:
    """Refuses labels that name no class.

    Args:
      labels: class numbers.
      num_classes: number of classes.
      name: the model output that the labels are for.

    Raises:
      InvalidArgumentError: naming the output, the label, its position and the valid range.
    """
    wrong = ~((labels >= 0) & (labels < num_classes))  # NaN too
    if wrong.any():
        position = np.argwhere(wrong)[0].tolist()
        raise InvalidValueError(
            f"Output {name!r}: received a label value of {labels[tuple(position)]} at position {position} of the batch, "
            f"which is outside the valid range of [0, {num_classes}). The output has {num_classes} classes; check the "
            "labels or the number of units of the last layer."
        )
