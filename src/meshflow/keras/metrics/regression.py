"""Metrics of regressions that are more than the mean of a loss."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.values.convert import convert_to_tensor
from meshflow.keras.losses.base import match_last_dimension
from meshflow.keras.metrics.base import Metric
from meshflow.keras.metrics.means import Mean, weighted
from meshflow.ops import array, math


class RootMeanSquaredError(Mean):
    """Square root of the mean of squared errors.

    Formula:
      `sqrt(sum(s * (y - p)^2) / sum(s))`, y being the labels and p the predictions, s their weights, 1 by default.

    Args:
      name: the metric's name.
      dtype: dtype of the state.

    Example:
      >>> import meshflow as tf
      >>> float(tf.keras.metrics.RootMeanSquaredError()([0.0, 0.0], [3.0, 3.0]))
      3.0
    """

    def __init__(self, name: str | None = "root_mean_squared_error", dtype: Any = None) -> None:
        super().__init__(name, dtype)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:  # type: ignore[override]
        """Adds one batch.

        Args:
          y_true: targets.
          y_pred: predictions.
          sample_weight: weights of the errors.
        """
        y_true, y_pred = match_last_dimension(self._float(y_true), self._float(y_pred))
        super().update_state(math.squared_difference(y_pred, y_true), sample_weight)

    def result(self) -> Any:
        """The root."""
        return math.sqrt(super().result())


class MeanRelativeError(Mean):
    """Mean of `|y_true - y_pred| / normalizer`; 0 where the normalizer is 0.

    Formula:
      `sum(s * |y - p| / normalizer) / sum(s)`, y being the labels and p the predictions, s their weights, 1 by
      default.

    Args:
      normalizer: numbers of the shape of the predictions.
      name: the metric's name.
      dtype: dtype of the state.

    Example:
      >>> import meshflow as tf
      >>> metric = tf.keras.metrics.MeanRelativeError(normalizer=[2.0, 4.0])
      >>> metric.update_state([2.0, 4.0], [3.0, 3.0])
      >>> float(metric.result())
      0.375
    """

    def __init__(self, normalizer: Any, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(name, dtype)
        self.normalizer = math.cast(convert_to_tensor(normalizer), self._dtype)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:  # type: ignore[override]
        """Adds one batch.

        Args:
          y_true: targets.
          y_pred: predictions.
          sample_weight: weights of the errors.
        """
        y_true, y_pred = match_last_dimension(self._float(y_true), self._float(y_pred))
        errors = math.divide_no_nan(math.abs(y_true - y_pred), self.normalizer)
        super().update_state(errors, sample_weight)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "normalizer": self.normalizer.numpy().tolist()}


class R2Score(Metric):
    """Coefficient of determination: `1 - sum((y_true - y_pred)^2) / sum((y_true - mean)^2)`.

    Formula:
      `r = 1 - sum(s * (y - p)^2) / sum(s * (y - a)^2)` for each output, y being the labels and p the predictions, s
      their weights and a the weighted mean of y; r is the score. With `num_regressors` k and n elements,
      `1 - (1 - r) * (n - 1) / (n - k - 1)`.

    Args:
      class_aggregation: 'uniform_average' over the outputs, 'variance_weighted_average', or None
        for one score per output.
      num_regressors: number of independent variables; above 0 the adjusted score is computed.
      name: the metric's name.
      dtype: dtype of the state.

    Raises:
      ValueError: for another aggregation or a negative number of regressors.

    Example:
      >>> import meshflow as tf
      >>> round(float(tf.keras.metrics.R2Score()([[1.0], [4.0], [3.0]], [[2.0], [4.0], [4.0]])), 4)
      0.5714
    """

    def __init__(
        self,
        class_aggregation: str | None = "uniform_average",
        num_regressors: int = 0,
        name: str | None = "r2_score",
        dtype: Any = None,
    ) -> None:
        super().__init__(name, dtype)
        valid = (None, "uniform_average", "variance_weighted_average")
        if class_aggregation not in valid:
            raise ValueError(
                f"Invalid value for argument `class_aggregation`. Expected one of {valid}. Received: class_aggregation={class_aggregation}"
            )
        if num_regressors < 0:
            raise ValueError(
                f"Invalid value for argument `num_regressors`. Expected a value >= 0. Received: num_regressors={num_regressors}"
            )
        self.class_aggregation, self.num_regressors = class_aggregation, num_regressors
        self.num_samples = self.add_weight("num_samples", dtype="int32")
        self._sums: dict[str, Any] = {}

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds one batch.

        Args:
          y_true: targets of shape [batch, outputs].
          y_pred: predictions of the same shape.
          sample_weight: weights of examples.

        Raises:
          ValueError: for another rank.
        """
        y_true, y_pred = self._float(y_true), self._float(y_pred)
        if len(y_true.shape) != 2 or tuple(y_true.shape) != tuple(y_pred.shape):
            raise ValueError(
                f"R2Score expects 2D inputs with shape (batch_size, output_dim). Received input shapes: "
                f"y_pred.shape={tuple(y_pred.shape)} and y_true.shape={tuple(y_true.shape)}."
            )
        if not self._sums:
            names = ("squared_sum", "sum", "residual", "count")
            shape = (int(y_true.shape[1]),)
            self._sums = {name: self.add_weight(name, shape) for name in names}
        weights = array.ones_like(y_true)
        if sample_weight is not None:
            _, weights = weighted(y_true, self._float(sample_weight))
        self._sums["sum"].assign_add(math.reduce_sum(y_true * weights, axis=0))
        self._sums["squared_sum"].assign_add(math.reduce_sum(y_true * y_true * weights, axis=0))
        error = math.squared_difference(y_true, y_pred)
        self._sums["residual"].assign_add(math.reduce_sum(error * weights, axis=0))
        self._sums["count"].assign_add(math.reduce_sum(weights, axis=0))
        # Keras counts elements, not examples, in the adjusted score.
        self.num_samples.assign_add(np.int32(y_true.shape.num_elements() or 0))

    def result(self) -> Any:
        """The score, or one per output without aggregation."""
        if not self._sums:
            return math.cast(0.0, self._dtype)
        total = self._sums["sum"].value()
        spread = self._sums["squared_sum"].value() - total * total / self._sums["count"].value()
        score = 1.0 - self._sums["residual"].value() / spread
        score = array.where(math.is_inf(score), array.zeros_like(score), score)
        if self.class_aggregation == "uniform_average":
            score = math.reduce_mean(score)
        elif self.class_aggregation == "variance_weighted_average":
            score = math.reduce_sum(score * spread) / math.reduce_sum(spread)
        return self._adjusted(score) if self.num_regressors else score

    def _adjusted(self, score: Any) -> Any:
        n = math.cast(self.num_samples.value(), self._dtype)
        free = n - float(self.num_regressors + 1)
        enough = free > 0.0
        if context.trace is None and not bool(enough):
            warnings.warn(
                "R2Score: there are not more samples than regressors, so the score is not adjusted.",
                stacklevel=3,
            )
        safe = array.where(enough, free, array.ones_like(free))
        return array.where(enough, 1.0 - (1.0 - score) * (n - 1.0) / safe, score)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        own = {
            "class_aggregation": self.class_aggregation,
            "num_regressors": self.num_regressors,
        }
        return {**super().get_config(), **own}
