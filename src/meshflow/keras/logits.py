"""Probabilities that know their logits, from which cross entropies are computed without losing digits."""

from __future__ import annotations

import warnings
from typing import Any

from meshflow.core.values.tensor import Tensor

__all__ = ["logits_of", "with_logits"]


def with_logits(output: Any, logits: Any) -> Any:
    """The result of a sigmoid or softmax, which remembers what it was made of.

    Args:
      output: the result.
      logits: what it is of.
    """
    if isinstance(output, Tensor):
        output._keras_logits = logits
    return output


def logits_of(y_pred: Any, from_logits: bool, function: str, activation: str) -> tuple[Any, bool]:
    """Predictions and whether they are logits: of what an activation gave, those that it was given.

    Args:
      y_pred: predictions.
      from_logits: whether the caller says that they are logits.
      function: the loss, for the warning when they are not.
      activation: what gives such predictions, likewise.
    """
    logits = getattr(y_pred, "_keras_logits", None)
    if logits is None:
        return y_pred, from_logits
    if from_logits:
        warnings.warn(
            f'"`{function}` received `from_logits=True`, but the `output` argument was produced by a {activation} '
            'activation and thus does not represent logits. Was this intended?"',
            stacklevel=3,
        )
    return logits, True
