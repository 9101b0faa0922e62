"""Metrics from weights of true and false positives and negatives at one or several thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Config
from meshflow.keras import settings
from meshflow.keras.losses.base import match_last_dimension
from meshflow.keras.metrics.base import Metric
from meshflow.keras.metrics.means import match_weights
from meshflow.ops import array, math


def normalize_thresholds(
    thresholds: float | Sequence[float] | None, default: float = 0.5
) -> list[float]:
    """Convert the `thresholds` argument to a list.

    Args:
      thresholds: A number, several numbers, or None.
      default: Threshold for None.

    Raises:
      ValueError: If a threshold is outside [0, 1].
    """
    if thresholds is None:
        return [default]
    items: Any = thresholds
    values = list(items) if isinstance(items, (list, tuple, np.ndarray)) else [items]
    if any(v is None or not 0 <= v <= 1 for v in values):
        raise ValueError(f"Threshold values must be in [0, 1]. Received: {thresholds}")
    return [float(v) for v in values]


def _is_evenly_spaced(thresholds: list[float]) -> bool:
    """Check whether at least three thresholds divide [0, 1] evenly; TensorFlow then clips predictions to this range."""
    count = len(thresholds)
    return count > 2 and np.allclose(thresholds, np.linspace(0, 1, count), atol=settings.epsilon())


_OUTCOMES = ("true_positives", "true_negatives", "false_positives", "false_negatives")


class ConfusionCounts(Metric):
    """Base class of metrics that count some of the four outcomes for each threshold.

    Args:
      thresholds: Predictions above a threshold are positive.
      name: Name of the metric.
      dtype: Dtype of the state.
      top_k: Only the k largest predictions of an example can be positive.
      class_id: Only this class is counted.
      labels: Number of labels with separate counts; None for common counts.
    """

    # Names of the variables by outcome.
    _variable_names = {name: name for name in _OUTCOMES}
    true_positives: Variable
    true_negatives: Variable
    false_positives: Variable
    false_negatives: Variable

    def __init__(
        self,
        thresholds: list[float],
        name: str | None,
        dtype: DTypeLike | None,
        top_k: int | None = None,
        class_id: int | None = None,
        labels: int | None = None,
    ) -> None:
        super().__init__(name, dtype)
        self._thresholds = thresholds
        self._clips_predictions = _is_evenly_spaced(thresholds)
        self.top_k, self.class_id = top_k, class_id
        self._is_per_label = labels is not None
        self._create_counters((len(thresholds),) if labels is None else (len(thresholds), labels))

    def _create_counters(self, shape: tuple[int, ...]) -> None:
        for name in self._variable_names.values():
            setattr(self, name, self.add_weight(name, shape))

    def update_state(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike = None
    ) -> None:
        """Update the counts with one batch.

        Args:
          y_true: Labels 0 and 1.
          y_pred: Predictions in [0, 1].
          sample_weight: Weights of the examples.

        Raises:
          ValueError: If the shapes differ.
        """
        y_true, y_pred = match_last_dimension(
            self._convert_to_dtype(y_true), self._convert_to_dtype(y_pred)
        )
        if tuple(y_true.shape) != tuple(y_pred.shape):
            raise InvalidValueError(
                f"{self.name}: shapes of labels and predictions differ: {tuple(y_true.shape)} and "
                f"{tuple(y_pred.shape)}."
            )
        can_be_positive = None
        if self.top_k is not None:
            best = math.top_k(y_pred, self.top_k).indices
            hits = array.one_hot(best, y_pred.shape[-1], dtype=self._dtype)
            can_be_positive = math.reduce_sum(hits, axis=-2) > 0.0
        weights = None
        if sample_weight is not None:
            _, weights = match_weights(y_pred, self._convert_to_dtype(sample_weight))
        if self.class_id is not None:
            column = (..., self.class_id)
            y_true, y_pred = y_true[column], y_pred[column]
            can_be_positive = None if can_be_positive is None else can_be_positive[column]
            if weights is not None and len(weights.shape) > len(y_pred.shape):
                weights = weights[column]
        self._add_outcomes(y_true, y_pred, can_be_positive, weights)

    def _add_outcomes(
        self,
        y_true: TensorLike,
        y_pred: TensorLike,
        can_be_positive: TensorLike,
        weights: TensorLike,
    ) -> None:
        shape = [1, -1, y_pred.shape[-1]] if self._is_per_label else [1, -1]
        limits = convert_to_tensor(np.array(self._thresholds, np.float32))
        limits = array.reshape(limits, [-1] + [1] * (len(shape) - 1))
        labels = array.reshape(math.cast(y_true, "bool"), shape)
        y_pred = math.cast(y_pred, "float32")
        if self._clips_predictions:
            y_pred = math.clip_by_value(y_pred, 0.0, 1.0)
        positive = array.reshape(y_pred, shape) > limits
        if can_be_positive is not None:
            positive = math.logical_and(positive, array.reshape(can_be_positive, shape))
        if weights is not None:
            weights = array.reshape(weights, shape)
        for outcome, name in self._variable_names.items():
            correctness, side = outcome.split("_")
            predicted = positive if side == "positives" else math.logical_not(positive)
            is_correct = math.equal(positive, labels)
            is_correct = is_correct if correctness == "true" else math.logical_not(is_correct)
            values = math.cast(math.logical_and(predicted, is_correct), self._dtype)
            values = values if weights is None else values * weights
            getattr(self, name).assign_add(math.reduce_sum(values, axis=1))

    def _squeeze(self, value: TensorLike) -> Tensor:
        return value[0] if len(self._thresholds) == 1 else value


class OutcomeCount(ConfusionCounts):
    """Base class of metrics that count one of the four outcomes."""

    if TYPE_CHECKING:
        init_thresholds: float | Sequence[float] | None
        thresholds: list[float]
        accumulator: Variable

        def __init__(
            self,
            thresholds: float | Sequence[float] | None = None,
            name: str | None = None,
            dtype: DTypeLike | None = None,
        ) -> None: ...


def _define_outcome_count(
    name: str, outcome: str, doc: str, example_result: int
) -> type[OutcomeCount]:
    def __init__(
        self: OutcomeCount,
        thresholds: float | Sequence[float] | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        self.init_thresholds = thresholds
        ConfusionCounts.__init__(self, normalize_thresholds(thresholds), name, dtype)
        self.thresholds = self._thresholds

    def result(self: OutcomeCount) -> Tensor:
        """Return the count for each threshold."""
        return self._squeeze(self.accumulator.value())

    def get_config(self: OutcomeCount) -> Config:
        """Return the configuration."""
        return {**Metric.get_config(self), "thresholds": self.init_thresholds}

    correctness, side = outcome.split("_")
    comparison = ">" if side == "positives" else "<="
    label = 1 if (correctness == "true") == (side == "positives") else 0
    text = (
        f"{doc}\n\nFormula:\n  `sum(s if y = {label} and p {comparison} t else 0)`, with labels y, predictions p, the threshold\n"
        "  t, and weights s, which are 1 by default.\n\n"
        "Args:\n  thresholds: A threshold or several; 0.5 by default.\n"
        "  name: Name of the metric.\n  dtype: Dtype of the state.\n\n"
        "Example:\n  >>> import meshflow as tf\n"
        f"  >>> metric = tf.keras.metrics.{name}()\n"
        "  >>> metric.update_state([1, 1, 1, 0, 0, 0, 0], [0.9, 0.8, 0.2, 0.7, 0.1, 0.1, 0.1])\n"
        f"  >>> int(metric.result())\n  {example_result}\n"
    )
    body = {
        "_variable_names": {outcome: "accumulator"},
        "__init__": __init__,
        "result": result,
        "get_config": get_config,
        "__doc__": text,
        "__module__": "meshflow.keras.metrics",
    }
    return type(name, (OutcomeCount,), body)


TruePositives = _define_outcome_count(
    "TruePositives", "true_positives", "Number of true positives.", 2
)
TrueNegatives = _define_outcome_count(
    "TrueNegatives", "true_negatives", "Number of true negatives.", 3
)
FalsePositives = _define_outcome_count(
    "FalsePositives", "false_positives", "Number of false positives.", 1
)
FalseNegatives = _define_outcome_count(
    "FalseNegatives", "false_negatives", "Number of false negatives.", 1
)


class Precision(ConfusionCounts):
    """Fraction of true positives among all positive predictions.

    Formula:
      `tp / (tp + fp)`, 0 without positive predictions, with the weights tp and fp of true and false
      positives.

    Args:
      thresholds: A threshold or several; 0.5 by default.
      top_k: Only the k largest predictions are positive.
      class_id: Only this class is counted.
      name: Name of the metric.
      dtype: Dtype of the state.

    Example:
      >>> float(tf.keras.metrics.Precision()([0, 1, 1], [0.9, 0.8, 0.1]))
      0.5
    """

    _variable_names = {name: name for name in ("true_positives", "false_positives")}

    def __init__(
        self,
        thresholds: float | Sequence[float] | None = None,
        top_k: int | None = None,
        class_id: int | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        self.init_thresholds = thresholds
        # With `top_k`, each of the k largest predictions is positive, regardless of its value.
        default = 0.5 if top_k is None else -np.inf
        limits = normalize_thresholds(thresholds, default)
        super().__init__(limits, name, dtype, top_k, class_id)
        self.thresholds = limits

    def result(self) -> Tensor:
        """Return the precision for each threshold."""
        true_positives = self.true_positives.value()
        return self._squeeze(
            math.divide_no_nan(true_positives, true_positives + self.false_positives)
        )

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            **super().get_config(),
            "thresholds": self.init_thresholds,
            "top_k": self.top_k,
            "class_id": self.class_id,
        }


class Recall(Precision):
    """Fraction of true positives among all positive labels; see `Precision` for the arguments.

    Formula:
      `tp / (tp + fn)`, 0 without positive labels, with the weights tp and fn of true positives and
      false negatives.

    Example:
      >>> recall = tf.keras.metrics.Recall()
      >>> recall.update_state([1, 1, 1, 0], [0.9, 0.8, 0.1, 0.7])
      >>> round(float(recall.result()), 3)
      0.667
    """

    _variable_names = {name: name for name in ("true_positives", "false_negatives")}

    def result(self) -> Tensor:
        """Return the recall for each threshold."""
        true_positives = self.true_positives.value()
        return self._squeeze(
            math.divide_no_nan(true_positives, true_positives + self.false_negatives)
        )
