"""Logits of probabilities, from which cross entropies are computed without a loss of precision.

`sigmoid` and `softmax` attach their inputs to their results. Losses then use these logits instead
of the logarithms of the probabilities.
"""

from __future__ import annotations

import warnings

from meshflow.core.values.tensor import Tensor, TensorLike


def attach_logits(output: TensorLike, logits: TensorLike) -> TensorLike:
    """Attach the logits to the result of a sigmoid or softmax.

    Args:
      output: Probabilities.
      logits: Input of the activation.

    Returns:
      `output`.
    """
    if isinstance(output, Tensor):
        output._keras_logits = logits
    return output


def recover_logits(
    y_pred: TensorLike, from_logits: bool, function: str, activation: str
) -> tuple[TensorLike, bool]:
    """Replace probabilities by their logits, if these are known.

    Args:
      y_pred: Predictions.
      from_logits: Whether the caller passes logits.
      function: Name of the loss, for the warning about `from_logits=True` with probabilities.
      activation: Name of the activation that returns such probabilities, for the same warning.

    Returns:
      The predictions, and whether they are logits.
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
