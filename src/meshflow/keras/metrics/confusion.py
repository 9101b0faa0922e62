"""Metrics made of counts of true and false positives and negatives, at one or several thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.variables.variable import Variable
from meshflow.keras.losses.base import match_last_dimension
from meshflow.keras.metrics.base import Metric
from meshflow.keras.metrics.means import weighted
from meshflow.ops import array, math


def decision_thresholds(thresholds: Any, default: float = 0.5) -> list[float]:
    """Thresholds as a list.

    Args:
      thresholds: a number, several, or None.
      default: what None means.

    Raises:
      ValueError: for a threshold outside [0, 1].
    """
    if thresholds is None:
        return [default]
    values = list(thresholds) if isinstance(thresholds, (list, tuple, np.ndarray)) else [thresholds]
    if any(v is None or not 0 <= v <= 1 for v in values):
        raise ValueError(f"Threshold values must be in [0, 1]. Received: {thresholds}")
    return [float(v) for v in values]


def check_probabilities(y_pred: Any) -> None:
    """Refuses eager predictions outside [0, 1], which are most likely logits.

    Raises:
      InvalidArgumentError: naming the first such prediction.
    """
    if context.trace is not None:
        return
    values = np.asarray(y_pred.numpy())
    wrong = values[(values < 0) | (values > 1)]
    if wrong.size:
        raise InvalidArgumentError(
            f"predictions must be >= 0 and <= 1, got {wrong[0]}. Apply a sigmoid or softmax to logits first."
        )


_OUTCOMES = ("true_positives", "true_negatives", "false_positives", "false_negatives")


class ConfusionCounts(Metric):
    """Counts, for each threshold, of some or all of the four outcomes.

    Args:
      thresholds: predictions above a threshold are positive.
      name: the metric's name.
      dtype: dtype of the state.
      top_k: only the k largest predictions of an example can be positive.
      class_id: only this class counts.
      labels: number of labels that are counted apart; None counts all together.
    """

    # Names of the variables, by what they count.
    _counted = {name: name for name in _OUTCOMES}
    true_positives: Variable
    true_negatives: Variable
    false_positives: Variable
    false_negatives: Variable

    def __init__(
        self,
        thresholds: list[float],
        name: str | None,
        dtype: Any,
        top_k: int | None = None,
        class_id: int | None = None,
        labels: int | None = None,
    ) -> None:
        super().__init__(name, dtype)
        self._thresholds = thresholds
        self.top_k, self.class_id = top_k, class_id
        self._apart = labels is not None
        self._add_counts((len(thresholds),) if labels is None else (len(thresholds), labels))

    def _add_counts(self, shape: tuple[int, ...]) -> None:
        for name in self._counted.values():
            setattr(self, name, self.add_weight(name, shape))

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds one batch.

        Args:
          y_true: labels 0 and 1.
          y_pred: predictions in [0, 1].
          sample_weight: weights of examples.

        Raises:
          InvalidArgumentError: eagerly, for a prediction outside [0, 1].
          ValueError: when the shapes differ.
        """
        y_true, y_pred = match_last_dimension(self._float(y_true), self._float(y_pred))
        if tuple(y_true.shape) != tuple(y_pred.shape):
            raise InvalidValueError(
                f"{self.name}: shapes of labels and predictions differ: {tuple(y_true.shape)} and "
                f"{tuple(y_pred.shape)}."
            )
        check_probabilities(y_pred)
        possible = None
        if self.top_k is not None:
            best = math.top_k(y_pred, self.top_k).indices
            hits = array.one_hot(best, y_pred.shape[-1], dtype=self._dtype)
            possible = math.reduce_sum(hits, axis=-2) > 0.0
        weights = None
        if sample_weight is not None:
            _, weights = weighted(y_pred, self._float(sample_weight))
        if self.class_id is not None:
            part = (..., self.class_id)
            y_true, y_pred = y_true[part], y_pred[part]
            possible = None if possible is None else possible[part]
            if weights is not None and len(weights.shape) > len(y_pred.shape):
                weights = weights[part]
        self._count(y_true, y_pred, possible, weights)

    def _count(self, y_true: Any, y_pred: Any, possible: Any, weights: Any) -> None:
        shape = [1, -1, y_pred.shape[-1]] if self._apart else [1, -1]
        limits = convert_to_tensor(np.array(self._thresholds, np.float32))
        limits = array.reshape(limits, [-1] + [1] * (len(shape) - 1))
        labels = array.reshape(math.cast(y_true, "bool"), shape)
        positive = array.reshape(math.cast(y_pred, "float32"), shape) > limits
        if possible is not None:
            positive = math.logical_and(positive, array.reshape(possible, shape))
        if weights is not None:
            weights = array.reshape(weights, shape)
        for outcome, name in self._counted.items():
            right, found = outcome.split("_")
            predicted = positive if found == "positives" else math.logical_not(positive)
            agree = math.equal(positive, labels)
            hit = math.logical_and(predicted, agree if right == "true" else math.logical_not(agree))
            values = math.cast(hit, self._dtype)
            values = values if weights is None else values * weights
            getattr(self, name).assign_add(math.reduce_sum(values, axis=1))

    def _scalar(self, value: Any) -> Any:
        return value[0] if len(self._thresholds) == 1 else value


class Counts(ConfusionCounts):
    """One of the four counts of a confusion matrix."""

    if TYPE_CHECKING:

        def __init__(
            self, thresholds: Any = None, name: str | None = None, dtype: Any = None
        ) -> None: ...


def _count(name: str, outcome: str, doc: str, shown: int) -> type[Counts]:
    def __init__(
        self: Any, thresholds: Any = None, name: str | None = None, dtype: Any = None
    ) -> None:
        self.init_thresholds = thresholds
        ConfusionCounts.__init__(self, decision_thresholds(thresholds), name, dtype)
        self.thresholds = self._thresholds

    def result(self: Any) -> Any:
        """The count, for each threshold."""
        return self._scalar(self.accumulator.value())

    def get_config(self: Any) -> dict[str, Any]:
        """The configuration."""
        return {**Metric.get_config(self), "thresholds": self.init_thresholds}

    right, found = outcome.split("_")
    side = ">" if found == "positives" else "<="
    label = 1 if (right == "true") == (found == "positives") else 0
    text = (
        f"{doc}\n\nFormula:\n  `sum(s if y = {label} and p {side} t else 0)`, y being the labels, p the predictions, t the\n"
        "  threshold and s the weights, 1 by default.\n\n"
        "Args:\n  thresholds: a threshold or several; default 0.5.\n"
        "  name: the metric's name.\n  dtype: dtype of the state.\n\n"
        "Example:\n  >>> import meshflow as tf\n"
        f"  >>> metric = tf.keras.metrics.{name}()\n"
        "  >>> metric.update_state([1, 1, 1, 0, 0, 0, 0], [0.9, 0.8, 0.2, 0.7, 0.1, 0.1, 0.1])\n"
        f"  >>> int(metric.result())\n  {shown}\n"
    )
    body = {
        "_counted": {outcome: "accumulator"},
        "__init__": __init__,
        "result": result,
        "get_config": get_config,
        "__doc__": text,
        "__module__": "meshflow.keras.metrics",
    }
    return type(name, (Counts,), body)


TruePositives = _count("TruePositives", "true_positives", "Number of true positives.", 2)
TrueNegatives = _count("TrueNegatives", "true_negatives", "Number of true negatives.", 3)
FalsePositives = _count("FalsePositives", "false_positives", "Number of false positives.", 1)
FalseNegatives = _count("FalseNegatives", "false_negatives", "Number of false negatives.", 1)


class Precision(ConfusionCounts):
    """True positives among all positives.

    Formula:
      `tp / (tp + fp)`, 0 where nothing is positive; tp and fp are the weights of true and false positives.

    Args:
      thresholds: a threshold or several; default 0.5.
      top_k: only the k largest predictions count as positive.
      class_id: only this class counts.
      name: the metric's name.
      dtype: dtype of the state.

    Example:
      >>> import meshflow as tf
      >>> float(tf.keras.metrics.Precision()([0, 1, 1], [0.9, 0.8, 0.1]))
      0.5
    """

    _counted = {name: name for name in ("true_positives", "false_positives")}

    def __init__(
        self,
        thresholds: Any = None,
        top_k: int | None = None,
        class_id: int | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        self.init_thresholds = thresholds
        # With top_k every one of the k largest is positive, however small it is.
        default = 0.5 if top_k is None else -np.inf
        limits = decision_thresholds(thresholds, default)
        super().__init__(limits, name, dtype, top_k, class_id)
        self.thresholds = limits

    def result(self) -> Any:
        """The precision, for each threshold."""
        found = self.true_positives.value()
        return self._scalar(math.divide_no_nan(found, found + self.false_positives))

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {
            **super().get_config(),
            "thresholds": self.init_thresholds,
            "top_k": self.top_k,
            "class_id": self.class_id,
        }


class Recall(Precision):
    """True positives among all positive labels; arguments as `Precision`.

    Formula:
      `tp / (tp + fn)`, 0 where no label is positive; tp and fn are the weights of true positives and false negatives.

    Example:
      >>> import meshflow as tf
      >>> recall = tf.keras.metrics.Recall()
      >>> recall.update_state([1, 1, 1, 0], [0.9, 0.8, 0.1, 0.7])
      >>> round(float(recall.result()), 3)
      0.667
    """

    _counted = {name: name for name in ("true_positives", "false_negatives")}

    def result(self) -> Any:
        """The recall, for each threshold."""
        found = self.true_positives.value()
        return self._scalar(math.divide_no_nan(found, found + self.false_negatives))
