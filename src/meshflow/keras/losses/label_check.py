"""Checking class numbers on the host."""

from __future__ import annotations

import numpy as np

from meshflow.core.errors import InvalidValueError


def check_labels(labels: np.ndarray, num_classes: int, name: str) -> None:
    """Refuses labels that name no class.

    Args:
      labels: class numbers.
      num_classes: number of classes.
      name: the model output that the labels are for.

    Raises:
      InvalidArgumentError: naming the output, the label, its position and the valid range.
    """
    wrong = (labels < 0) | (labels >= num_classes)
    if wrong.any():
        position = np.argwhere(wrong)[0].tolist()
        raise InvalidValueError(
            f"Output {name!r}: received a label value of {labels[tuple(position)]} at position {position} of the batch, "
            f"which is outside the valid range of [0, {num_classes}). The output has {num_classes} classes; check the "
            "labels or the number of units of the last layer."
        )
