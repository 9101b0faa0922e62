"""`tf.keras.metrics.experimental`: metrics that Python computes."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.metrics.base import Metric
from meshflow.ops.python_function import py_function


class PyMetric(Metric):
    """Base class of metrics that keep their state in Python objects.

    A subclass defines `update_state(y_true, y_pred, sample_weight=None)`, which gets NumPy arrays, `result` and
    `reset_state`.

    Args:
      name: Name of the metric.
      dtype: Dtype of the result.
      **kwargs: Other arguments of `Metric`.

    Example:
      >>> class Count(tf.keras.metrics.experimental.PyMetric):
      ...     def update_state(self, y_true, y_pred, sample_weight=None):
      ...         self.total += len(y_true)
      ...     def reset_state(self):
      ...         self.total = 0
      ...     def result(self):
      ...         return self.total
      >>> count = Count()
      >>> _ = count.update_state([1, 2, 3], [1, 2, 4])
      >>> float(count.result())
      3.0
    """

    def __init__(
        self, name: str | None = None, dtype: DTypeLike | None = None, **kwargs: Any
    ) -> None:
        super().__init__(name, dtype, **kwargs)
        self.reset_state()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, wrap in (("update_state", _call_with_arrays), ("result", _return_tensor)):
            if name in vars(cls):
                setattr(cls, name, wrap(vars(cls)[name]))


def _call_with_arrays(method: Any) -> Any:
    def update_state(
        self: PyMetric, y_true: TensorLike, y_pred: TensorLike, sample_weight: Any = None
    ) -> None:
        values = [y_true, y_pred] if sample_weight is None else [y_true, y_pred, sample_weight]
        py_function(
            lambda *tensors: method(self, *(np.asarray(t.numpy()) for t in tensors)), values, []
        )

    return update_state


def _return_tensor(method: Any) -> Any:
    def result(self: PyMetric) -> Tensor:
        return py_function(lambda: method(self), [], self.dtype)

    return result
