"""Regression metrics that are not the mean of a loss function."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Config
from meshflow.keras.losses.base import match_last_dimension
from meshflow.keras.metrics.base import Metric
from meshflow.keras.metrics.means import Mean, match_weights
from meshflow.ops import array, math


class RootMeanSquaredError(Mean):
    """Square root of the weighted mean of squared errors.

    Formula:
      `sqrt(sum(s * (y - p)^2) / sum(s))`, with labels y, predictions p, and weights s, which are 1
      by default.

    Args:
      name: Name of the metric.
      dtype: Dtype of the state.

    Example:
      >>> float(tf.keras.metrics.RootMeanSquaredError()([0.0, 0.0], [3.0, 3.0]))
      3.0
    """

    def __init__(
        self, name: str | None = "root_mean_squared_error", dtype: DTypeLike | None = None
    ) -> None:
        super().__init__(name, dtype)

    def update_state(  # type: ignore[override]
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike = None
    ) -> None:
        """Update the mean with one batch.

        Args:
          y_true: Labels.
          y_pred: Predictions.
          sample_weight: Weights of the errors.
        """
        y_true, y_pred = match_last_dimension(
            self._convert_to_dtype(y_true), self._convert_to_dtype(y_pred)
        )
        super().update_state(math.squared_difference(y_pred, y_true), sample_weight)

    def result(self) -> Tensor:
        """Return the square root of the mean."""
        return math.sqrt(super().result())


class MeanRelativeError(Mean):
    """Weighted mean of errors divided by a normalizer; 0 where the normalizer is 0.

    Formula:
      `sum(s * |y - p| / normalizer) / sum(s)`, with labels y, predictions p, and weights s, which
      are 1 by default.

    Args:
      normalizer: Numbers of the shape of the predictions.
      name: Name of the metric.
      dtype: Dtype of the state.

    Example:
      >>> metric = tf.keras.metrics.MeanRelativeError(normalizer=[2.0, 4.0])
      >>> metric.update_state([2.0, 4.0], [3.0, 3.0])
      >>> float(metric.result())
      0.375
    """

    def __init__(
        self, normalizer: TensorLike, name: str | None = None, dtype: DTypeLike | None = None
    ) -> None:
        super().__init__(name, dtype)
        self.normalizer = math.cast(convert_to_tensor(normalizer), self._dtype)

    def update_state(  # type: ignore[override]
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike = None
    ) -> None:
        """Update the mean with one batch.

        Args:
          y_true: Labels.
          y_pred: Predictions.
          sample_weight: Weights of the errors.
        """
        y_true, y_pred = match_last_dimension(
            self._convert_to_dtype(y_true), self._convert_to_dtype(y_pred)
        )
        errors = math.divide_no_nan(math.abs(y_true - y_pred), self.normalizer)
        super().update_state(errors, sample_weight)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "normalizer": self.normalizer.numpy().tolist()}


class R2Score(Metric):
    """Coefficient of determination.

    Formula:
      `r = 1 - sum(s * (y - p)^2) / sum(s * (y - a)^2)` for each output, with labels y, predictions
      p, their weights s, and the weighted mean a of y; r is the score. With `num_regressors` k and
      n elements, `1 - (1 - r) * (n - 1) / (n - k - 1)`.

    Args:
      class_aggregation: 'uniform_average' over the outputs, 'variance_weighted_average', or None
        for a score per output.
      num_regressors: Number of independent variables; above 0 the adjusted score is computed.
      name: Name of the metric.
      dtype: Dtype of the state.

    Raises:
      ValueError: If the aggregation is unknown, or the number of regressors is negative.

    Example:
      >>> round(float(tf.keras.metrics.R2Score()([[1.0], [4.0], [3.0]], [[2.0], [4.0], [4.0]])), 4)
      0.5714
    """

    def __init__(
        self,
        class_aggregation: Literal["uniform_average", "variance_weighted_average"]
        | None = "uniform_average",
        num_regressors: int = 0,
        name: str | None = "r2_score",
        dtype: DTypeLike | None = None,
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
        self._sums: dict[str, Variable] = {}

    def update_state(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike = None
    ) -> None:
        """Update the sums with one batch.

        Args:
          y_true: Labels of shape [batch, outputs].
          y_pred: Predictions of the same shape.
          sample_weight: Weights of the examples.

        Raises:
          ValueError: If the rank is not 2 or the shapes differ.
        """
        y_true, y_pred = self._convert_to_dtype(y_true), self._convert_to_dtype(y_pred)
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
            _, weights = match_weights(y_true, self._convert_to_dtype(sample_weight))
        self._sums["sum"].assign_add(math.reduce_sum(y_true * weights, axis=0))
        self._sums["squared_sum"].assign_add(math.reduce_sum(y_true * y_true * weights, axis=0))
        error = math.squared_difference(y_true, y_pred)
        self._sums["residual"].assign_add(math.reduce_sum(error * weights, axis=0))
        self._sums["count"].assign_add(math.reduce_sum(weights, axis=0))
        # Keras counts elements instead of examples in the adjusted score.
        self.num_samples.assign_add(np.int32(y_true.shape.num_elements() or 0))

    def result(self) -> Tensor:
        """Return the score, or a score per output without an aggregation."""
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
        return self._adjust(score) if self.num_regressors else score

    def _adjust(self, score: TensorLike) -> Tensor:
        n = math.cast(self.num_samples.value(), self._dtype)
        degrees_of_freedom = n - float(self.num_regressors + 1)
        is_positive = degrees_of_freedom > 0.0
        if context.trace is None and not bool(is_positive):
            warnings.warn(
                "R2Score: the number of samples does not exceed that of regressors, so the score is not adjusted.",
                stacklevel=3,
            )
        divisor = array.where(is_positive, degrees_of_freedom, array.ones_like(degrees_of_freedom))
        return array.where(is_positive, 1.0 - (1.0 - score) * (n - 1.0) / divisor, score)

    def get_config(self) -> Config:
        """Return the configuration."""
        config = {
            "class_aggregation": self.class_aggregation,
            "num_regressors": self.num_regressors,
        }
        return {**super().get_config(), **config}
