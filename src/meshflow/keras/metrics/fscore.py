"""F-scores: the weighted harmonic mean of precision and recall."""

from __future__ import annotations

from typing import Literal

from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Config
from meshflow.keras.metrics.base import Metric
from meshflow.ops import array, math


class FBetaScore(Metric):
    """Weighted harmonic mean of precision and recall.

    Formula:
      `(1 + beta^2) * q * r / (beta^2 * q + r)` for each class, then averaged by `average`, with the
      precision q, `tp / (tp + fp)`, the recall r, `tp / (tp + fn)`, and the weights tp, fp and fn
      of true positives, false positives and false negatives.

    Args:
      average: None for a score per class, 'micro' for common counts of all classes, 'macro' for the
        mean over classes, or 'weighted' for the mean weighted by the number of labels.
      beta: Weight of the recall relative to the precision.
      threshold: Scores above it are positive; None selects the largest score of each example.
      name: Name of the metric.
      dtype: Dtype of the state.

    Raises:
      ValueError: If the average is unknown, or if beta or the threshold is not a positive float.

    Example:
      >>> m = tf.keras.metrics.FBetaScore(beta=2.0, threshold=0.5, average="micro")
      >>> round(float(m([[1, 1], [0, 1]], [[0.9, 0.2], [0.1, 0.8]])), 4)
      0.7143
    """

    def __init__(
        self,
        average: Literal["micro", "macro", "weighted"] | None = None,
        beta: float = 1.0,
        threshold: float | None = None,
        name: str | None = "fbeta_score",
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(name, dtype)
        if average not in (None, "micro", "macro", "weighted"):
            raise ValueError(
                f"Invalid `average` argument value. Expected one of: {{None, 'micro', 'macro', 'weighted'}}. Received: average={average}"
            )
        if not isinstance(beta, float) or beta <= 0:
            raise ValueError(
                f"Invalid `beta` argument value. It should be a Python float > 0. Received: beta={beta}"
            )
        if threshold is not None and not (isinstance(threshold, float) and 0 < threshold <= 1):
            raise ValueError(
                f"Invalid `threshold` argument value. It should be a Python float with 0 < threshold <= 1. Received: threshold={threshold}"
            )
        self.average, self.beta, self.threshold = average, beta, threshold
        self._counts: dict[str, Variable] = {}

    def _create_counters(self, classes: int) -> None:
        shape = () if self.average == "micro" else (classes,)
        names = ("true_positives", "false_positives", "false_negatives", "intermediate_weights")
        self._counts = {name: self.add_weight(name, shape) for name in names}

    def update_state(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike = None
    ) -> None:
        """Update the counts with one batch.

        Args:
          y_true: Labels 0 and 1 of shape [batch, classes].
          y_pred: Scores of the same shape.
          sample_weight: Weights of the examples.

        Raises:
          ValueError: If the rank is not 2 or the shapes differ.
        """
        y_true, y_pred = self._convert_to_dtype(y_true), self._convert_to_dtype(y_pred)
        if len(y_pred.shape) != 2 or tuple(y_true.shape) != tuple(y_pred.shape):
            raise ValueError(
                f"FBetaScore expects 2D inputs with shape (batch_size, output_dim). Received input shapes: "
                f"y_pred.shape={tuple(y_pred.shape)} and y_true.shape={tuple(y_true.shape)}."
            )
        if not self._counts:
            self._create_counters(int(y_pred.shape[1]))
        if self.threshold is None:
            is_largest = math.equal(y_pred, math.reduce_max(y_pred, axis=-1, keepdims=True))
            positive = math.logical_and(is_largest, math.abs(y_pred) > 1e-12)
        else:
            positive = y_pred > self.threshold
        positive = math.cast(positive, self._dtype)
        weights: Tensor | float = 1.0
        if sample_weight is not None:
            weights = array.reshape(self._convert_to_dtype(sample_weight), [-1, 1])
        axis = None if self.average == "micro" else 0
        for name, outcome in (
            ("true_positives", positive * y_true),
            ("false_positives", positive * (1.0 - y_true)),
            ("false_negatives", (1.0 - positive) * y_true),
            ("intermediate_weights", y_true),
        ):
            self._counts[name].assign_add(math.reduce_sum(outcome * weights, axis=axis))

    def result(self) -> Tensor:
        """Return the score, or a score per class if `average` is None."""
        if not self._counts:
            return math.cast(0.0, self._dtype)
        true_positives = self._counts["true_positives"].value()
        e = 1e-7
        precision = true_positives / (true_positives + self._counts["false_positives"] + e)
        recall = true_positives / (true_positives + self._counts["false_negatives"] + e)
        square = float(self.beta) ** 2
        score = (1.0 + square) * precision * recall / (square * precision + recall + e)
        if self.average == "macro":
            return math.reduce_mean(score)
        if self.average == "weighted":
            weights = self._counts["intermediate_weights"].value()
            return math.reduce_sum(score * weights / (math.reduce_sum(weights) + e))
        return score

    def get_config(self) -> Config:
        """Return the configuration."""
        config = {"average": self.average, "beta": self.beta, "threshold": self.threshold}
        return {**super().get_config(), **config}


class F1Score(FBetaScore):
    """Harmonic mean of precision and recall, `FBetaScore` with a beta of 1.

    Formula:
      `2 * q * r / (q + r)` for each class, then averaged by `average`, with the precision q, `tp /
      (tp + fp)`, the recall r, `tp / (tp + fn)`, and the weights tp, fp and fn of true positives,
      false positives and false negatives.

    Args:
      average: None, 'micro', 'macro' or 'weighted'; see `FBetaScore`.
      threshold: Scores above it are positive; None selects the largest score of each example.
      name: Name of the metric.
      dtype: Dtype of the state.

    Example:
      >>> metric = tf.keras.metrics.F1Score(threshold=0.5)
      >>> metric.update_state([[1, 0], [1, 1]], [[0.9, 0.6], [0.2, 0.7]])
      >>> metric.result().numpy().round(3)
      array([0.667, 0.667], dtype=float32)
    """

    def __init__(
        self,
        average: Literal["micro", "macro", "weighted"] | None = None,
        threshold: float | None = None,
        name: str | None = "f1_score",
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(average, 1.0, threshold, name, dtype)

    def get_config(self) -> Config:
        """Return the configuration."""
        config = super().get_config()
        del config["beta"]
        return config
