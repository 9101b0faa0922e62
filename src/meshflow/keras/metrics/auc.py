"""Area under the ROC and precision-recall curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config
from meshflow.keras import settings
from meshflow.keras.metrics.confusion import ConfusionCounts
from meshflow.keras.metrics.means import match_weights
from meshflow.ops import array, math

_SUMMATIONS = ("interpolation", "minoring", "majoring")


class AUC(ConfusionCounts):
    """Area under the ROC or precision-recall curve, approximated by Riemann sums over thresholds.

    Formula:
      `sum((x[i] - x[j]) * (y[i] + y[j]) / 2)` over neighbouring thresholds i and j. For 'ROC' y is
      the true positive rate `tp / (tp + fn)` and x the false positive rate `fp / (fp + tn)`, for
      'PR' y is the precision `tp / (tp + fp)` and x the recall `tp / (tp + fn)`, with the weights
      tp, fp, tn and fn of true and false positives and negatives. 'minoring' and 'majoring' use the
      smaller and the larger y instead of their mean. 'interpolation' for 'PR' uses the integral of
      Davis and Goadrich (2006) between thresholds.

    Args:
      num_thresholds: Number of thresholds.
      curve: 'ROC' or 'PR'.
      summation_method: 'interpolation' (trapezoids; for PR those of Davis and Goadrich 2006),
        'minoring' or 'majoring'.
      name: Name of the metric.
      dtype: Dtype of the state.
      thresholds: Thresholds in [0, 1] instead of evenly spaced ones.
      multi_label: Whether to average the areas of the columns of [batch, labels].
      num_labels: Number of columns for `multi_label`; that of the first batch by default.
      label_weights: Weights of the columns in the average, or of the labels without `multi_label`.
      from_logits: Whether predictions are logits.

    Raises:
      ValueError: If the curve or method is unknown, or if there are too few thresholds.

    Example:
      >>> m = tf.keras.metrics.AUC(num_thresholds=3)
      >>> float(m([0, 0, 1, 1], [0.0, 0.5, 0.3, 0.9]))
      0.75
    """

    def __init__(
        self,
        num_thresholds: int = 200,
        curve: Literal["ROC", "PR"] = "ROC",
        summation_method: Literal["interpolation", "minoring", "majoring"] = "interpolation",
        name: str | None = None,
        dtype: DTypeLike | None = None,
        thresholds: Sequence[float] | None = None,
        multi_label: bool = False,
        num_labels: int | None = None,
        label_weights: TensorLike = None,
        from_logits: bool = False,
    ) -> None:
        self.curve, method = str(curve).upper(), str(summation_method).lower()
        if self.curve not in ("ROC", "PR"):
            raise ValueError(f'Invalid AUC curve value "{self.curve}". Expected "ROC" or "PR".')
        if method not in _SUMMATIONS:
            raise ValueError(
                f'Invalid AUC summation method value "{summation_method}". Expected one of {_SUMMATIONS}.'
            )
        if thresholds is None:
            if num_thresholds <= 1:
                raise ValueError(
                    f"Argument `num_thresholds` must be an integer > 1. Received: num_thresholds={num_thresholds}"
                )
            inner = [(i + 1) / (num_thresholds - 1) for i in range(num_thresholds - 2)]
        else:
            inner = sorted(float(t) for t in thresholds)
            if any(not 0 <= t <= 1 for t in inner):
                raise ValueError(f"Threshold values must be in [0, 1]. Received: {thresholds}")
        if num_labels is not None and not multi_label:
            raise ValueError("`num_labels` is needed only when `multi_label` is True.")
        self.num_thresholds, self.summation_method = len(inner) + 2, method
        self.multi_label, self.num_labels = multi_label, num_labels
        self.label_weights = None if label_weights is None else np.asarray(label_weights)
        self._inner_thresholds, self._has_explicit_thresholds, self._from_logits = (
            inner,
            thresholds is not None,
            from_logits,
        )
        # The outer thresholds are slightly outside [0, 1], so that 0 and 1 are between two
        # thresholds.
        limits = [-settings.epsilon(), *inner, 1.0 + settings.epsilon()]
        super().__init__(limits, name, dtype, labels=num_labels if multi_label else None)
        self._is_per_label = multi_label
        self._built = not multi_label or num_labels is not None
        if multi_label and num_labels is not None:
            self._build_input_shape = (None, num_labels)

    def _create_counters(self, shape: tuple[int, ...]) -> None:
        if self.multi_label and len(shape) == 1:
            return  # The first batch creates the variables.
        super()._create_counters(shape)

    @property
    def thresholds(self) -> list[float]:
        """Return all thresholds, including the outer ones."""
        return self._thresholds

    def update_state(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike = None
    ) -> None:
        """Update the counts with one batch.

        Args:
          y_true: Labels 0 and 1.
          y_pred: Predictions in [0, 1], or logits with `from_logits`. Other values are clipped to [0, 1], unless the
            thresholds are not evenly spaced.
          sample_weight: Weights of the examples.

        Raises:
          ValueError: If the shapes differ, or if they are not matrices with `multi_label`.
        """
        y_pred = self._convert_to_dtype(y_pred)
        if self._from_logits:
            y_pred = math.sigmoid(y_pred)
        if self.multi_label:
            if len(y_pred.shape) != 2:
                raise ValueError(
                    f"{self.name}: `y_true` and `y_pred` must have rank 2 when `multi_label` is True, got shape "
                    f"{tuple(y_pred.shape)}."
                )
            if not self._built:
                self._built, self.num_labels = True, int(y_pred.shape[1])
                self._create_counters((len(self._thresholds), self.num_labels))
        elif self.label_weights is not None:
            columns = array.broadcast_to(self._convert_to_dtype(self.label_weights), y_pred.shape)
            if sample_weight is not None:
                columns = columns * match_weights(y_pred, self._convert_to_dtype(sample_weight))[1]
            sample_weight = columns
        super().update_state(y_true, y_pred, sample_weight)

    def result(self) -> Tensor:
        """Return the area."""
        if not self._built:
            return math.cast(0.0, self._dtype)
        tp, fp = self.true_positives.value(), self.false_positives.value()
        tn, fn = self.true_negatives.value(), self.false_negatives.value()
        recall = math.divide_no_nan(tp, tp + fn)
        if self.curve == "PR" and self.summation_method == "interpolation":
            return self._sum_areas(self._interpolate_precision(tp, fp, fn), tp + fn)
        if self.curve == "PR":
            x, y = recall, math.divide_no_nan(tp, tp + fp)
        else:
            x, y = math.divide_no_nan(fp, fp + tn), recall
        if self.summation_method == "interpolation":
            heights = (y[:-1] + y[1:]) / 2.0
        elif self.summation_method == "minoring":
            heights = math.minimum(y[:-1], y[1:])
        else:
            heights = math.maximum(y[:-1], y[1:])
        return self._sum_areas((x[:-1] - x[1:]) * heights, tp + fn)

    def _sum_areas(self, parts: TensorLike, positives: TensorLike) -> Tensor:
        """Sum over thresholds and compute the weighted mean over labels."""
        if not self.multi_label:
            return math.reduce_sum(parts)
        areas = math.reduce_sum(parts, axis=0)
        if self.label_weights is None:
            return math.reduce_mean(areas)
        weights = self._convert_to_dtype(self.label_weights)
        return math.divide_no_nan(math.reduce_sum(areas * weights), math.reduce_sum(weights))

    def _interpolate_precision(self, tp: TensorLike, fp: TensorLike, fn: TensorLike) -> Tensor:
        """Compute areas between thresholds with interpolation (Davis and Goadrich 2006)."""
        dtp, p = tp[:-1] - tp[1:], tp + fp
        dp = p[:-1] - p[1:]
        slope = math.divide_no_nan(dtp, math.maximum(dp, 0.0))
        intercept = tp[1:] - slope * p[1:]
        both = math.logical_and(p[:-1] > 0.0, p[1:] > 0.0)
        ratio = math.divide_no_nan(p[:-1], math.maximum(p[1:], 0.0))
        ratio = array.where(both, ratio, array.ones_like(p[1:]))
        area = slope * (dtp + intercept * math.log(ratio))
        return math.divide_no_nan(area, math.maximum(tp[1:] + fn[1:], 0.0))

    def get_config(self) -> Config:
        """Return the configuration."""
        weights = self.label_weights
        return {
            **super().get_config(),
            "num_thresholds": self.num_thresholds,
            "curve": self.curve,
            "summation_method": self.summation_method,
            "multi_label": self.multi_label,
            "num_labels": self.num_labels if self.multi_label else None,
            "label_weights": None if weights is None else weights.tolist(),
            "from_logits": self._from_logits,
            **(
                {"thresholds": list(self._inner_thresholds)}
                if self._has_explicit_thresholds
                else {}
            ),
        }
