"""Weighted sums and means of values, on which most metrics are based."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from meshflow.core.autograph.conversion import convert_if_enabled
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Config
from meshflow.keras.losses import functions as _losses
from meshflow.keras.losses.base import (
    complete_constructor,
    format_example,
    format_formula,
    match_last_dimension,
)
from meshflow.keras.metrics.base import Metric, MetricArguments
from meshflow.ops import array, math

MetricType = TypeVar("MetricType", bound="MeanMetricWrapper")


def match_weights(
    values: TensorLike, weights: TensorLike, reduce: Callable[..., Tensor] = math.reduce_mean
) -> tuple[Tensor, Tensor]:
    """Return values and weights of one shape.

    If the weights have fewer dimensions than the values and do not broadcast, the values are first
    reduced over the other axes.

    Args:
      values: Tensor.
      weights: Scalar, or a tensor with the leading dimensions of `values`.
      reduce: Reduction of the values with a common weight.
    """
    rank, weight_rank = len(values.shape), len(weights.shape)
    if weight_rank == rank + 1 and weights.shape[-1] == 1:
        weights = array.squeeze(weights, -1)
    elif 0 < weight_rank == rank - 1:
        weights = array.expand_dims(weights, -1)
    pairs = zip(weights.shape, values.shape, strict=False)
    is_broadcastable = len(weights.shape) == rank and all(w in (1, v) for w, v in pairs)
    if len(weights.shape) and not is_broadcastable:
        axes = list(range(weight_rank, rank))
        values = reduce(values, axis=axes) if axes else values
    shape = values.shape
    if len(weights.shape) > len(shape):
        return array.broadcast_to(values, weights.shape), weights
    are_scalars = len(shape) == len(weights.shape) == 0
    return values, weights if are_scalars else array.broadcast_to(weights, shape)


class WeightedReduction(Metric):
    """Base class of weighted sums and means of values."""

    _is_mean = True

    def __init__(self, name: str | None = None, dtype: DTypeLike | None = None) -> None:
        super().__init__(name, dtype)
        self.total = self.add_weight("total")
        if self._is_mean:
            self.count = self.add_weight("count")

    def update_state(self, values: TensorLike, sample_weight: TensorLike = None) -> None:
        """Add values.

        Args:
          values: Tensor.
          sample_weight: Weights that broadcast to the values.
        """
        values = self._convert_to_dtype(values)
        elements = values.shape.num_elements()
        # A program that is exported computes the number from the size of the batch.
        is_static = elements is None or isinstance(elements, int)
        count = self._convert_to_dtype((elements or 0) if is_static else array.size(values))
        if sample_weight is not None:
            reduce = math.reduce_mean if self._is_mean else math.reduce_sum
            values, weights = match_weights(values, self._convert_to_dtype(sample_weight), reduce)
            values = values * weights
            count = math.reduce_sum(weights) if len(weights.shape) else weights
        self.total.assign_add(math.reduce_sum(values))
        if self._is_mean:
            self.count.assign_add(count)

    def result(self) -> Tensor:
        """Return the sum, or the mean (0 before the first value)."""
        if not self._is_mean:
            return array.identity(self.total)
        return math.divide_no_nan(self.total, self.count)


class Mean(WeightedReduction):
    """Weighted mean of values.

    Formula:
      `sum(s * x) / sum(s)`, with values x and weights s, which are 1 by default.

    Args:
      name: Name of the metric.
      dtype: Dtype of the state.

    Example:
      >>> m = tf.keras.metrics.Mean()
      >>> m.update_state([1.0, 3.0], sample_weight=[3.0, 1.0])
      >>> float(m.result())
      1.5
    """

    def __init__(self, name: str | None = "mean", dtype: DTypeLike | None = None) -> None:
        super().__init__(name, dtype)


class Sum(WeightedReduction):
    """Weighted sum of values; see `Mean` for the arguments.

    Formula:
      `sum(s * x)`, with values x and weights s, which are 1 by default.

    Example:
      >>> metric = tf.keras.metrics.Sum()
      >>> metric.update_state([1.0, 2.0], sample_weight=[10.0, 1.0])
      >>> float(metric.result())
      12.0
    """

    _is_mean = False

    def __init__(self, name: str | None = "sum", dtype: DTypeLike | None = None) -> None:
        super().__init__(name, dtype)


class MeanTensor(Metric):
    """Element-wise weighted mean of tensors.

    Formula:
      `sum(s * x) / sum(s)` over updates, with the values x of an element and weights s, which are 1
      by default.

    Args:
      name: Name of the metric.
      dtype: Dtype of the state.
      shape: Shape of the tensors; that of the first one by default.

    Example:
      >>> metric = tf.keras.metrics.MeanTensor()
      >>> metric.update_state([1.0, 10.0])
      >>> metric.update_state([3.0, 30.0])
      >>> metric.result().numpy().tolist()
      [2.0, 20.0]
    """

    def __init__(
        self,
        name: str | None = "mean_tensor",
        dtype: DTypeLike | None = None,
        shape: int | Iterable[int] | None = None,
    ) -> None:
        super().__init__(name, dtype)
        self._shape: tuple[int, ...] | None = None
        if shape is not None:
            self._build(shape)

    def _build(self, shape: int | Iterable[int]) -> None:
        self._shape = self._build_input_shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self._total = self.add_weight("total", self._shape)
        self._count = self.add_weight("count", self._shape)

    @property
    def total(self) -> Variable | None:
        """Return the sum of the values; None before the first one."""
        return self._total if self._shape is not None else None

    @property
    def count(self) -> Variable | None:
        """Return the sum of the weights; None before the first value."""
        return self._count if self._shape is not None else None

    def update_state(self, values: TensorLike, sample_weight: TensorLike = None) -> None:
        """Add a tensor.

        Args:
          values: Tensor of the same shape in each call.
          sample_weight: Weights that broadcast to the tensor.

        Raises:
          ValueError: If the shape differs from the first one.
        """
        values = self._convert_to_dtype(values)
        if self._shape is None:
            self._build(values.shape)
        elif tuple(values.shape) != self._shape:
            raise ValueError(
                f"MeanTensor input values must always have the same shape. Expected shape (set during the first call): {self._shape}. Got: {tuple(values.shape)}."
            )
        weights = array.ones_like(values)
        if sample_weight is not None:
            values, weights = match_weights(values, self._convert_to_dtype(sample_weight))
            values = values * weights
        self._total.assign_add(values)
        self._count.assign_add(weights)

    def result(self) -> Tensor:
        """Return the mean of each element.

        Raises:
          ValueError: Before the first value.
        """
        if self._shape is None:
            raise ValueError(
                "MeanTensor does not have any value yet. Please call the MeanTensor instance or use `.update_state(value)` before retrieving the result."
            )
        return math.divide_no_nan(self._total, self._count)


class MeanMetricWrapper(Mean):
    """Mean of a function of (y_true, y_pred).

    Args:
      fn: The function.
      name: Name of the metric.
      dtype: Dtype of the state.
      **kwargs: Other arguments of the function.

    Example:
      >>> largest = lambda y_true, y_pred: tf.reduce_max(tf.abs(y_true - y_pred), axis=-1)
      >>> metric = tf.keras.metrics.MeanMetricWrapper(largest, name="largest_error")
      >>> metric.update_state(tf.zeros([2, 2]), tf.constant([[1.0, 2.0], [3.0, 4.0]]))
      >>> float(metric.result())
      3.0
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str | None = None,
        dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, dtype)
        self._fn = fn
        self._fn_kwargs = kwargs

    def update_state(  # type: ignore[override]
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike = None
    ) -> None:
        """Update the mean with one batch.

        Args:
          y_true: Labels.
          y_pred: Predictions.
          sample_weight: Weights of the examples.
        """
        y_true, y_pred = match_last_dimension(
            self._convert_argument(y_true), self._convert_argument(y_pred)
        )
        values = convert_if_enabled(self._fn)(y_true, y_pred, **self._fn_kwargs)
        mask = getattr(values, "_keras_mask", None)
        if mask is not None:
            mask = math.cast(mask, self._dtype)
            if sample_weight is not None:
                mask = mask * match_weights(values, self._convert_to_dtype(sample_weight))[1]
            sample_weight = mask
        super().update_state(values, sample_weight)

    def _convert_argument(self, value: TensorLike) -> Tensor:
        value = convert_to_tensor(value)
        # As in Keras, integer labels are cast to floats.
        return math.cast(value, self._dtype) if value.dtype.name != "string" else value

    def get_config(self) -> Config:
        """Return the configuration."""
        config = {"fn": self._fn} if type(self) is MeanMetricWrapper else {}
        return {**super().get_config(), **self._fn_kwargs, **config}


class FunctionMetric(MeanMetricWrapper):
    """Base class of the metrics that `define_metric` completes."""

    if TYPE_CHECKING:

        def __init__(
            self,
            name: str | None = None,
            dtype: DTypeLike | None = None,
            **kwargs: Unpack[MetricArguments],
        ) -> None: ...


def define_metric(
    fn: Callable[..., Any], *, default_name: str | None = None, example: tuple[str, str]
) -> Callable[[type[MetricType]], type[MetricType]]:
    """Decorate the declaration of a metric class that averages a function of (y_true, y_pred, ...).

    Args:
      fn: The function; its other arguments are those of the class.
      default_name: Default of the argument `name`; the name of the function by default.
      example: Call of a new metric, and its result.
    """

    def complete(cls: type[MetricType]) -> type[MetricType]:
        common = {"name": default_name or fn.__name__, "dtype": None}
        signature = complete_constructor(
            cls, fn, common, MeanMetricWrapper.__init__, ignored=("mesh",)
        )
        name = signature.parameters["name"].default
        module = "losses" if fn.__module__ == _losses.__name__ else "metrics"
        arguments = "".join(
            f"  {n}: See `tf.keras.{module}.{name}`.\n"
            for n in signature.parameters
            if n not in common
        )
        formula = format_formula(fn, "The mean, weighted by `sample_weight`, of ")
        cls.__doc__ = (
            f"{cls.__doc__}{formula}\n\nArgs:\n  name: Name of the metric.\n  dtype: Dtype of the state.\n{arguments}"
            + format_example(f"tf.keras.metrics.{example[0]}", example[1])
        )
        cls.__module__ = "meshflow.keras.metrics"
        cls.__name__ = cls.__qualname__ = cls.__name__.removesuffix("Metric")
        return cls

    return complete
