"""Largest value of one rate under a constraint on another one, such as precision at recall."""

from __future__ import annotations

from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import Config
from meshflow.keras.metrics.confusion import ConfusionCounts
from meshflow.ops import array, math


class OperatingPoint(ConfusionCounts):
    """Largest value of a rate over the thresholds at which another rate reaches a value."""

    _constrained_rate, _maximized_rate = "", ""

    def __init__(
        self,
        value: float,
        num_thresholds: int,
        class_id: int | None,
        name: str | None,
        dtype: DTypeLike | None,
    ) -> None:
        if not 0 <= value <= 1:
            raise ValueError(
                f"Argument `{self._constrained_rate}` must be in the range [0, 1]. Received: {self._constrained_rate}={value}"
            )
        if num_thresholds <= 0:
            raise ValueError(
                f"Argument `num_thresholds` must be an integer > 0. Received: num_thresholds={num_thresholds}"
            )
        inner = [(i + 1) / (num_thresholds - 1) for i in range(num_thresholds - 2)]
        self.value, self.num_thresholds = value, num_thresholds
        setattr(self, self._constrained_rate, value)
        limits = [0.5] if num_thresholds == 1 else [0.0, *inner, 1.0]
        super().__init__(limits, name, dtype, class_id=class_id)
        self.thresholds = limits

    def result(self) -> Tensor:
        """Return the rate; 0 if no threshold satisfies the constraint."""
        rates = self._compute_rates()
        rate = rates[self._maximized_rate]
        is_satisfied = rates[self._constrained_rate] >= math.cast(self.value, self._dtype)
        best = math.reduce_max(array.where(is_satisfied, rate, -array.ones_like(rate)))
        return math.maximum(best, 0.0)

    def _compute_rates(self) -> dict[str, Tensor]:
        tp, fp = self.true_positives.value(), self.false_positives.value()
        tn, fn = self.true_negatives.value(), self.false_negatives.value()
        return {
            "sensitivity": math.divide_no_nan(tp, tp + fn),
            "specificity": math.divide_no_nan(tn, tn + fp),
            "precision": math.divide_no_nan(tp, tp + fp),
            "recall": math.divide_no_nan(tp, tp + fn),
        }

    def get_config(self) -> Config:
        """Return the configuration."""
        config = {"num_thresholds": self.num_thresholds, self._constrained_rate: self.value}
        return {**super().get_config(), "class_id": self.class_id, **config}


class SensitivityAtSpecificity(OperatingPoint):
    """Largest sensitivity over the thresholds at which the specificity is at least a value.

    Formula:
      `max(tp / (tp + fn))` over thresholds with `tn / (tn + fp) >= specificity`, with the weights
      tp, fp, tn and fn of true positives, false positives, true negatives and false negatives.

    Args:
      specificity: The value, in [0, 1].
      num_thresholds: Number of thresholds.
      class_id: Only this class is counted.
      name: Name of the metric.
      dtype: Dtype of the state.

    Raises:
      ValueError: If the value is outside [0, 1].

    Example:
      >>> metric = tf.keras.metrics.SensitivityAtSpecificity(specificity=1.0)
      >>> metric.update_state([0, 0, 1, 1], [0.1, 0.6, 0.3, 0.8])
      >>> float(metric.result())
      0.5
    """

    _constrained_rate, _maximized_rate = "specificity", "sensitivity"

    def __init__(
        self,
        specificity: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(specificity, num_thresholds, class_id, name, dtype)


class SpecificityAtSensitivity(OperatingPoint):
    """Largest specificity over the thresholds at which the sensitivity is at least a value.

    Formula:
      `max(tn / (tn + fp))` over thresholds with `tp / (tp + fn) >= sensitivity`, with the weights
      tp, fp, tn and fn of true positives, false positives, true negatives and false negatives.

    Args:
      sensitivity: The value, in [0, 1].
      num_thresholds: Number of thresholds.
      class_id: Only this class is counted.
      name: Name of the metric.
      dtype: Dtype of the state.

    Raises:
      ValueError: If the value is outside [0, 1].

    Example:
      >>> metric = tf.keras.metrics.SpecificityAtSensitivity(sensitivity=1.0)
      >>> metric.update_state([0, 0, 1, 1], [0.1, 0.6, 0.3, 0.8])
      >>> float(metric.result())
      0.5
    """

    _constrained_rate, _maximized_rate = "sensitivity", "specificity"

    def __init__(
        self,
        sensitivity: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(sensitivity, num_thresholds, class_id, name, dtype)


class PrecisionAtRecall(OperatingPoint):
    """Largest precision over the thresholds at which the recall is at least a value.

    Formula:
      `max(tp / (tp + fp))` over thresholds with `tp / (tp + fn) >= recall`, with the weights tp,
      fp, tn and fn of true positives, false positives, true negatives and false negatives.

    Args:
      recall: The value, in [0, 1].
      num_thresholds: Number of thresholds.
      class_id: Only this class is counted.
      name: Name of the metric.
      dtype: Dtype of the state.

    Raises:
      ValueError: If the value is outside [0, 1].

    Example:
      >>> metric = tf.keras.metrics.PrecisionAtRecall(recall=0.5)
      >>> metric.update_state([0, 0, 1, 1], [0.1, 0.6, 0.3, 0.8])
      >>> float(metric.result())
      1.0
    """

    _constrained_rate, _maximized_rate = "recall", "precision"

    def __init__(
        self,
        recall: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(recall, num_thresholds, class_id, name, dtype)


class RecallAtPrecision(OperatingPoint):
    """Largest recall over the thresholds at which the precision is at least a value.

    Formula:
      `max(tp / (tp + fn))` over thresholds with `tp / (tp + fp) >= precision`, with the weights tp,
      fp, tn and fn of true positives, false positives, true negatives and false negatives.

    Args:
      precision: The value, in [0, 1].
      num_thresholds: Number of thresholds.
      class_id: Only this class is counted.
      name: Name of the metric.
      dtype: Dtype of the state.

    Raises:
      ValueError: If the value is outside [0, 1].

    Example:
      >>> metric = tf.keras.metrics.RecallAtPrecision(precision=0.8)
      >>> metric.update_state([0, 0, 1, 1], [0.1, 0.6, 0.3, 0.8])
      >>> float(metric.result())
      0.5
    """

    _constrained_rate, _maximized_rate = "precision", "recall"

    def __init__(
        self,
        precision: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(precision, num_thresholds, class_id, name, dtype)
