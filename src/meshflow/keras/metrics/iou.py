"""Intersection over union of predicted and labelled classes."""

from __future__ import annotations

from collections.abc import Iterable

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config
from meshflow.keras.losses.label_check import to_class_indices
from meshflow.keras.metrics.base import Metric
from meshflow.ops import array, math


class IoU(Metric):
    """Mean intersection over union of some classes, from a confusion matrix.

    Formula:
      `mean(tp / (tp + fp + fn))` over the `target_class_ids` that occur, with the weights tp, fp
      and fn of true positives, false positives and false negatives of a class.

    Args:
      num_classes: Number of classes.
      target_class_ids: Classes over which the mean is computed.
      name: Name of the metric.
      dtype: Dtype of the state.
      ignore_class: Label of elements that are not counted, for example -1 or 255.
      sparse_y_true: Whether labels are class indices instead of one-hot labels.
      sparse_y_pred: Whether predictions are class indices instead of scores.
      axis: Axis of the classes in one-hot labels and scores.

    Raises:
      ValueError: If a target class does not exist.

    Example:
      >>> m = tf.keras.metrics.IoU(num_classes=2, target_class_ids=[0])
      >>> round(float(m([0, 0, 1, 1], [0, 1, 0, 1])), 4)
      0.3333
    """

    def __init__(
        self,
        num_classes: int,
        target_class_ids: Iterable[int],
        name: str | None = None,
        dtype: DTypeLike | None = None,
        ignore_class: int | None = None,
        sparse_y_true: bool = True,
        sparse_y_pred: bool = True,
        axis: int = -1,
    ) -> None:
        super().__init__(name, dtype)
        targets = list(target_class_ids)
        if targets and max(targets) >= num_classes:
            raise ValueError(
                f"Target class id {max(targets)} is out of range, which is [0, {num_classes})."
            )
        self.num_classes, self.target_class_ids = num_classes, targets
        self.ignore_class, self.axis = ignore_class, axis
        self.sparse_y_true, self.sparse_y_pred = sparse_y_true, sparse_y_pred
        self.total_cm = self.add_weight("total_confusion_matrix", (num_classes, num_classes))

    def update_state(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike = None
    ) -> None:
        """Update the confusion matrix with one batch.

        Args:
          y_true: Class indices or one-hot labels.
          y_pred: Class indices or scores.
          sample_weight: Weights of the elements.
        """
        y_true, y_pred = convert_to_tensor(y_true), convert_to_tensor(y_pred)
        if not self.sparse_y_true:
            y_true = math.argmax(y_true, axis=self.axis)
        if not self.sparse_y_pred:
            y_pred = math.argmax(y_pred, axis=self.axis)
        true, pred = (array.reshape(to_class_indices(v, True), [-1]) for v in (y_true, y_pred))
        weights = (
            None
            if sample_weight is None
            else array.reshape(self._convert_to_dtype(sample_weight), [-1])
        )
        if self.ignore_class is not None:
            is_counted = math.not_equal(true, self.ignore_class)
            true = array.where(is_counted, true, array.zeros_like(true))
            pred = array.where(is_counted, pred, array.zeros_like(pred))
            mask = math.cast(is_counted, self._dtype)
            weights = mask if weights is None else weights * mask
        self.total_cm.assign_add(
            math.confusion_matrix(true, pred, self.num_classes, weights=weights, dtype=self._dtype)
        )

    def result(self) -> Tensor:
        """Return the mean over the target classes that occur."""
        matrix = self.total_cm.value()
        hits = math.reduce_sum(matrix * array.eye(self.num_classes, dtype=self._dtype), axis=0)
        union = math.reduce_sum(matrix, axis=0) + math.reduce_sum(matrix, axis=1) - hits
        hits, union = (array.gather(v, self.target_class_ids) for v in (hits, union))
        present = math.reduce_sum(math.cast(math.not_equal(union, 0.0), self._dtype))
        return math.divide_no_nan(math.reduce_sum(math.divide_no_nan(hits, union)), present)

    def get_config(self) -> Config:
        """Return the configuration."""
        return self._select_config(
            *("name", "dtype", "num_classes", "target_class_ids"),
            *("ignore_class", "sparse_y_true", "sparse_y_pred", "axis"),
        )

    def _select_config(self, *names: str) -> Config:
        """Return the configuration with the given attributes."""
        return {name: getattr(self, name) for name in names}


class MeanIoU(IoU):
    """Mean intersection over union of all classes; see `IoU` for the arguments.

    Formula:
      `mean(tp / (tp + fp + fn))` over all classes that occur, with the weights tp, fp and fn of
      true positives, false positives and false negatives of a class.

    Example:
      >>> metric = tf.keras.metrics.MeanIoU(num_classes=2)
      >>> metric.update_state([0, 0, 1, 1], [0, 0, 0, 1])
      >>> round(float(metric.result()), 3)
      0.583
    """

    def __init__(
        self,
        num_classes: int,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        ignore_class: int | None = None,
        sparse_y_true: bool = True,
        sparse_y_pred: bool = True,
        axis: int = -1,
    ) -> None:
        targets = range(num_classes)
        super().__init__(
            num_classes, targets, name, dtype, ignore_class, sparse_y_true, sparse_y_pred, axis
        )

    def get_config(self) -> Config:
        """Return the configuration."""
        return self._select_config(
            *("num_classes", "name", "dtype"),
            *("ignore_class", "sparse_y_true", "sparse_y_pred", "axis"),
        )


class BinaryIoU(IoU):
    """Intersection over union of thresholded scores and labels 0 and 1.

    Formula:
      `mean(tp / (tp + fp + fn))` over `target_class_ids`, 0 and 1 by default, of predictions that
      are 1 from `threshold` on, with the weights tp, fp and fn of true positives, false positives
      and false negatives of a class.

    Args:
      target_class_ids: (0, 1), (0,) or (1,), the classes over which the mean is computed.
      threshold: Smallest score of class 1.
      name: Name of the metric.
      dtype: Dtype of the state.

    Example:
      >>> metric = tf.keras.metrics.BinaryIoU(target_class_ids=(1,), threshold=0.3)
      >>> metric.update_state([0, 1, 1, 0], [0.1, 0.4, 0.2, 0.1])
      >>> float(metric.result())
      0.5
    """

    def __init__(
        self,
        target_class_ids: Iterable[int] = (0, 1),
        threshold: float = 0.5,
        name: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(2, target_class_ids, name, dtype)
        self.threshold = threshold

    def update_state(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike = None
    ) -> None:
        """Update the confusion matrix with one batch.

        Args:
          y_true: Labels 0 and 1.
          y_pred: Scores.
          sample_weight: Weights of the elements.
        """
        is_positive = self._convert_to_dtype(y_pred) >= self.threshold
        super().update_state(y_true, math.cast(is_positive, "int64"), sample_weight)

    def get_config(self) -> Config:
        """Return the configuration."""
        return self._select_config("target_class_ids", "threshold", "name", "dtype")


class OneHotIoU(IoU):
    """`IoU` of one-hot labels and scores (or class indices with `sparse_y_pred`).

    Formula:
      `mean(tp / (tp + fp + fn))` over the `target_class_ids` that occur, with the weights tp, fp
      and fn of true positives, false positives and false negatives of a class.

    Example:
      >>> metric = tf.keras.metrics.OneHotIoU(num_classes=2, target_class_ids=[1])
      >>> metric.update_state([[1, 0], [0, 1], [0, 1]], [[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]])
      >>> float(metric.result())
      0.5
    """

    def __init__(
        self,
        num_classes: int,
        target_class_ids: Iterable[int],
        name: str | None = None,
        dtype: DTypeLike | None = None,
        ignore_class: int | None = None,
        sparse_y_pred: bool = False,
        axis: int = -1,
    ) -> None:
        super().__init__(
            num_classes, target_class_ids, name, dtype, ignore_class, False, sparse_y_pred, axis
        )

    def get_config(self) -> Config:
        """Return the configuration."""
        return self._select_config(
            *("num_classes", "target_class_ids", "name", "dtype"),
            *("ignore_class", "sparse_y_pred", "axis"),
        )


class OneHotMeanIoU(MeanIoU):
    """`MeanIoU` of one-hot labels and scores (or class indices with `sparse_y_pred`).

    Formula:
      `mean(tp / (tp + fp + fn))` over all classes that occur, with the weights tp, fp and fn of
      true positives, false positives and false negatives of a class.

    Example:
      >>> metric = tf.keras.metrics.OneHotMeanIoU(num_classes=2)
      >>> metric.update_state([[1, 0], [0, 1], [0, 1]], [[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]])
      >>> float(metric.result())
      0.5
    """

    def __init__(
        self,
        num_classes: int,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        ignore_class: int | None = None,
        sparse_y_pred: bool = False,
        axis: int = -1,
    ) -> None:
        super().__init__(num_classes, name, dtype, ignore_class, False, sparse_y_pred, axis)

    def get_config(self) -> Config:
        """Return the configuration."""
        return self._select_config(
            *("num_classes", "name", "dtype"), *("ignore_class", "sparse_y_pred", "axis")
        )
