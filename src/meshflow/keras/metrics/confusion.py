"""Metrics made of counts of true and false positives and negatives."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.convert import convert_to_tensor
from meshflow.keras import backend
from meshflow.keras.metrics.base import Metric
from meshflow.ops import array, math


def _decide(thresholds: Any, default: float = 0.5) -> list[float]:
    values = (
        [default]
        if thresholds is None
        else thresholds
        if isinstance(thresholds, (list, tuple))
        else [thresholds]
    )
    if any(v is None or not 0 <= v <= 1 for v in values):
        raise ValueError(f"Threshold values must be in [0, 1]. Received: {thresholds}")
    return [float(v) for v in values]


class ConfusionCounts(Metric):
    """Counts, for each threshold, of the four outcomes."""

    def __init__(
        self,
        thresholds: list[float],
        name: str | None,
        dtype: Any,
        top_k: int | None = None,
        class_id: int | None = None,
    ) -> None:
        super().__init__(name, dtype)
        self._thresholds = thresholds
        self.top_k, self.class_id = top_k, class_id
        shape = (len(thresholds),)
        self.true_positives = self.add_weight("true_positives", shape)
        self.true_negatives = self.add_weight("true_negatives", shape)
        self.false_positives = self.add_weight("false_positives", shape)
        self.false_negatives = self.add_weight("false_negatives", shape)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds one batch.

        Args:
          y_true: labels 0 and 1.
          y_pred: predictions in [0, 1].
          sample_weight: weights of examples.
        """
        y_pred = self._float(y_pred)
        y_true = self._float(y_true)
        if self.top_k is not None:
            threshold = math.top_k(y_pred, self.top_k).values[..., -1:]
            y_pred = math.cast(y_pred >= threshold, self._dtype)
        if self.class_id is not None:
            y_true, y_pred = y_true[..., self.class_id], y_pred[..., self.class_id]
        weights = None
        if sample_weight is not None:
            from meshflow.keras.losses.base import match_rank

            weights = array.broadcast_to(
                match_rank(self._float(sample_weight), y_pred), y_pred.shape
            )
            weights = array.reshape(weights, [1, -1])
        labels = array.reshape(math.cast(y_true, "bool"), [1, -1])
        limits = array.reshape(convert_to_tensor(np.array(self._thresholds, np.float32)), [-1, 1])
        positive = array.reshape(math.cast(y_pred, "float32"), [1, -1]) > limits
        for variable, outcome in (
            (self.true_positives, math.logical_and(positive, labels)),
            (self.false_positives, math.logical_and(positive, math.logical_not(labels))),
            (self.false_negatives, math.logical_and(math.logical_not(positive), labels)),
            (
                self.true_negatives,
                math.logical_and(math.logical_not(positive), math.logical_not(labels)),
            ),
        ):
            values = math.cast(outcome, self._dtype)
            variable.assign_add(
                math.reduce_sum(values if weights is None else values * weights, axis=1)
            )

    def _scalar(self, value: Any) -> Any:
        return value[0] if len(self._thresholds) == 1 else value


def _count(name: str, attribute: str, doc: str) -> Any:
    def __init__(
        self: Any, thresholds: Any = None, name: str | None = attribute, dtype: Any = None
    ) -> None:
        self.thresholds = thresholds
        ConfusionCounts.__init__(self, _decide(thresholds), name, dtype)

    def result(self: Any) -> Any:
        """The count, for each threshold."""
        return self._scalar(getattr(self, attribute).value())

    def get_config(self: Any) -> dict[str, Any]:
        """The configuration."""
        return {**Metric.get_config(self), "thresholds": self.thresholds}

    body = {
        "__init__": __init__,
        "result": result,
        "get_config": get_config,
        "__doc__": doc,
        "__module__": "meshflow.keras.metrics",
    }
    return type(name, (ConfusionCounts,), body)


TruePositives = _count("TruePositives", "true_positives", "Number of true positives.")
TrueNegatives = _count("TrueNegatives", "true_negatives", "Number of true negatives.")
FalsePositives = _count("FalsePositives", "false_positives", "Number of false positives.")
FalseNegatives = _count("FalseNegatives", "false_negatives", "Number of false negatives.")


class Precision(ConfusionCounts):
    """True positives among all positives.

    Args:
      thresholds: a threshold or several; default 0.5.
      top_k: only the k largest predictions count as positive.
      class_id: only this class counts.
      name: the metric's name.
      dtype: dtype of the state.
    """

    def __init__(
        self,
        thresholds: Any = None,
        top_k: int | None = None,
        class_id: int | None = None,
        name: str | None = "precision",
        dtype: Any = None,
    ) -> None:
        self.thresholds = thresholds
        super().__init__(
            _decide(thresholds, 0.5 if top_k is None else 0.0), name, dtype, top_k, class_id
        )

    def result(self) -> Any:
        """The precision, for each threshold."""
        found = self.true_positives.value()
        return self._scalar(math.divide_no_nan(found, found + self.false_positives))

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {
            **super().get_config(),
            "thresholds": self.thresholds,
            "top_k": self.top_k,
            "class_id": self.class_id,
        }


class Recall(Precision):
    """True positives among all positive labels; arguments as `Precision`."""

    def __init__(
        self,
        thresholds: Any = None,
        top_k: int | None = None,
        class_id: int | None = None,
        name: str | None = "recall",
        dtype: Any = None,
    ) -> None:
        super().__init__(thresholds, top_k, class_id, name, dtype)

    def result(self) -> Any:
        """The recall, for each threshold."""
        found = self.true_positives.value()
        return self._scalar(math.divide_no_nan(found, found + self.false_negatives))


class AUC(ConfusionCounts):
    """Area under the ROC or precision-recall curve, by Riemann sums over thresholds.

    Args:
      num_thresholds: number of thresholds.
      curve: 'ROC' or 'PR'.
      summation_method: 'interpolation' (trapezoids), 'minoring' or 'majoring'.
      name: the metric's name.
      dtype: dtype of the state.
      thresholds: thresholds in (0, 1) instead of evenly spaced ones.
      from_logits: whether predictions are logits.
    """

    def __init__(
        self,
        num_thresholds: int = 200,
        curve: str = "ROC",
        summation_method: str = "interpolation",
        name: str | None = "auc",
        dtype: Any = None,
        thresholds: Any = None,
        from_logits: bool = False,
    ) -> None:
        if curve not in ("ROC", "PR") or summation_method not in (
            "interpolation",
            "minoring",
            "majoring",
        ):
            raise ValueError(
                f"AUC: curve must be 'ROC' or 'PR' and summation_method 'interpolation', 'minoring' or 'majoring'; got {curve!r}, {summation_method!r}."
            )
        if thresholds is None:
            if num_thresholds <= 1:
                raise ValueError(
                    f"Argument `num_thresholds` must be an integer > 1. Received: num_thresholds={num_thresholds}"
                )
            inner = [(i + 1) / (num_thresholds - 1) for i in range(num_thresholds - 2)]
        else:
            inner = sorted(thresholds)
        self.num_thresholds, self.curve, self.summation_method = (
            len(inner) + 2,
            curve,
            summation_method,
        )
        self._given, self._from_logits = thresholds, from_logits
        super().__init__([-backend.epsilon(), *inner, 1.0 + backend.epsilon()], name, dtype)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds one batch."""
        y_pred = self._float(y_pred)
        super().update_state(
            y_true, math.sigmoid(y_pred) if self._from_logits else y_pred, sample_weight
        )

    def result(self) -> Any:
        """The area."""
        tp, fp = self.true_positives.value(), self.false_positives.value()
        tn, fn = self.true_negatives.value(), self.false_negatives.value()
        recall = math.divide_no_nan(tp, tp + fn)
        if self.curve == "PR":
            if self.summation_method == "interpolation":
                return self._interpolated_precision(tp, fp, fn)
            x, y = recall, math.divide_no_nan(tp, tp + fp)
        else:
            x, y = math.divide_no_nan(fp, fp + tn), recall
        widths = x[:-1] - x[1:]
        if self.summation_method == "interpolation":
            heights = (y[:-1] + y[1:]) / 2.0
        elif self.summation_method == "minoring":
            heights = math.minimum(y[:-1], y[1:])
        else:
            heights = math.maximum(y[:-1], y[1:])
        return math.reduce_sum(widths * heights)

    def _interpolated_precision(self, tp: Any, fp: Any, fn: Any) -> Any:
        """Area with true positives interpolated (Davis and Goadrich 2006)."""
        dtp, p = tp[:-1] - tp[1:], tp + fp
        dp = p[:-1] - p[1:]
        slope = math.divide_no_nan(dtp, math.maximum(dp, 0.0))
        intercept = tp[1:] - slope * p[1:]
        both = math.logical_and(p[:-1] > 0.0, p[1:] > 0.0)
        ratio = array.where(
            both, math.divide_no_nan(p[:-1], math.maximum(p[1:], 0.0)), array.ones_like(p[1:])
        )
        area = slope * (dtp + intercept * math.log(ratio))
        return math.reduce_sum(math.divide_no_nan(area, math.maximum(tp[1:] + fn[1:], 0.0)))

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {
            **super().get_config(),
            "num_thresholds": self.num_thresholds,
            "curve": self.curve,
            "summation_method": self.summation_method,
            "thresholds": self._given,
            "from_logits": self._from_logits,
        }


class MeanIoU(Metric):
    """Mean over classes of intersection over union.

    Args:
      num_classes: number of classes.
      name: the metric's name.
      dtype: dtype of the state.
    """

    def __init__(self, num_classes: int, name: str | None = "mean_io_u", dtype: Any = None) -> None:
        super().__init__(name, dtype)
        self.num_classes = num_classes
        self.total_cm = self.add_weight("total_confusion_matrix", (num_classes, num_classes))

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds one batch of class numbers."""
        flat = [
            array.reshape(math.cast(convert_to_tensor(v), "int64"), [-1]) for v in (y_true, y_pred)
        ]
        weights = None if sample_weight is None else array.reshape(self._float(sample_weight), [-1])
        self.total_cm.assign_add(
            math.confusion_matrix(*flat, self.num_classes, weights=weights, dtype=self._dtype)
        )

    def result(self) -> Any:
        """The mean over classes that occur."""
        matrix = self.total_cm.value()
        hits = matrix * array.eye(self.num_classes, dtype=self._dtype)
        hits = math.reduce_sum(hits, axis=0)
        union = math.reduce_sum(matrix, axis=0) + math.reduce_sum(matrix, axis=1) - hits
        present = math.reduce_sum(math.cast(union > 0.0, self._dtype))
        return math.divide_no_nan(math.reduce_sum(math.divide_no_nan(hits, union)), present)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {"num_classes": self.num_classes, **super().get_config()}
