"""Weighted sums and means of values: what most metrics are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from meshflow.core.values.convert import convert_to_tensor
from meshflow.keras.losses import functions as _losses
from meshflow.keras.losses.base import example_text, formula_text, match_last_dimension
from meshflow.keras.metrics.base import Metric
from meshflow.ops import array, math


def weighted(values: Any, weights: Any, reduce: Any = math.reduce_mean) -> tuple[Any, Any]:
    """Values and weights of one shape.

    Weights of fewer dimensions than the values count for the mean (or sum) of the rest.

    Args:
      values: a tensor.
      weights: a scalar, or a tensor that fits the leading dimensions of `values`.
      reduce: how values that share a weight are combined when weights do not broadcast.

    Returns:
      (values, weights), of equal shapes.
    """
    rank, own = len(values.shape), len(weights.shape)
    if own == rank + 1 and weights.shape[-1] == 1:
        weights = array.squeeze(weights, -1)
    elif 0 < own == rank - 1:
        weights = array.expand_dims(weights, -1)
    pairs = zip(weights.shape, values.shape, strict=False)
    fits = len(weights.shape) == rank and all(w in (1, v) for w, v in pairs)
    if len(weights.shape) and not fits:
        values = reduce(values, axis=list(range(own, rank))) if own < rank else values
    shape = values.shape
    if len(weights.shape) > len(shape):
        return array.broadcast_to(values, weights.shape), weights
    alike = len(shape) == len(weights.shape) == 0
    return values, weights if alike else array.broadcast_to(weights, shape)


class Reduce(Metric):
    """A weighted sum or mean of values."""

    _mean = True

    def __init__(self, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(name, dtype)
        self.total = self.add_weight("total")
        if self._mean:
            self.count = self.add_weight("count")

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Adds values.

        Args:
          values: a tensor.
          sample_weight: weights that broadcast to the values.
        """
        values = self._float(values)
        number = self._float(values.shape.num_elements() or 0)
        if sample_weight is not None:
            reduce = math.reduce_mean if self._mean else math.reduce_sum
            values, weights = weighted(values, self._float(sample_weight), reduce)
            values = values * weights
            number = math.reduce_sum(weights) if len(weights.shape) else weights
        self.total.assign_add(math.reduce_sum(values))
        if self._mean:
            self.count.assign_add(number)

    def result(self) -> Any:
        """The sum, or the mean (0 before any value)."""
        if not self._mean:
            return array.identity(self.total)
        return math.divide_no_nan(self.total, self.count)


class Mean(Reduce):
    """Weighted mean of values.

    Formula:
      `sum(s * x) / sum(s)`, x being the values and s their weights, 1 by default.

    Args:
      name: the metric's name.
      dtype: dtype of the state.

    Example:
      >>> import meshflow as tf
      >>> m = tf.keras.metrics.Mean()
      >>> m.update_state([1.0, 3.0], sample_weight=[3.0, 1.0])
      >>> float(m.result())
      1.5
    """

    def __init__(self, name: str | None = "mean", dtype: Any = None) -> None:
        super().__init__(name, dtype)


class Sum(Reduce):
    """Weighted sum of values; arguments as `Mean`.

    Formula:
      `sum(s * x)`, x being the values and s their weights, 1 by default.

    Example:
      >>> import meshflow as tf
      >>> metric = tf.keras.metrics.Sum()
      >>> metric.update_state([1.0, 2.0], sample_weight=[10.0, 1.0])
      >>> float(metric.result())
      12.0
    """

    _mean = False

    def __init__(self, name: str | None = "sum", dtype: Any = None) -> None:
        super().__init__(name, dtype)


class MeanTensor(Metric):
    """Mean of tensors, element by element.

    Formula:
      `sum(s * x) / sum(s)` over updates, x being the values of an element and s their weights, 1 by default.

    Args:
      name: the metric's name.
      dtype: dtype of the state.
      shape: shape of the tensors; default that of the first.

    Example:
      >>> import meshflow as tf
      >>> metric = tf.keras.metrics.MeanTensor()
      >>> metric.update_state([1.0, 10.0])
      >>> metric.update_state([3.0, 30.0])
      >>> metric.result().numpy().tolist()
      [2.0, 20.0]
    """

    def __init__(
        self, name: str | None = "mean_tensor", dtype: Any = None, shape: Any = None
    ) -> None:
        super().__init__(name, dtype)
        self._shape: tuple[int, ...] | None = None
        if shape is not None:
            self._build(shape)

    def _build(self, shape: Any) -> None:
        self._shape = self._build_input_shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self._total = self.add_weight("total", self._shape)
        self._count = self.add_weight("count", self._shape)

    @property
    def total(self) -> Any:
        """Sum of the values; None before the first."""
        return self._total if self._shape is not None else None

    @property
    def count(self) -> Any:
        """Sum of the weights; None before the first value."""
        return self._count if self._shape is not None else None

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Adds a tensor.

        Args:
          values: a tensor, of the same shape every time.
          sample_weight: weights that broadcast to the tensor.

        Raises:
          ValueError: for another shape than the first one.
        """
        values = self._float(values)
        if self._shape is None:
            self._build(values.shape)
        elif tuple(values.shape) != self._shape:
            raise ValueError(
                f"MeanTensor input values must always have the same shape. Expected shape (set during the first call): {self._shape}. Got: {tuple(values.shape)}."
            )
        number = array.ones_like(values)
        if sample_weight is not None:
            values, number = weighted(values, self._float(sample_weight))
            values = values * number
        self._total.assign_add(values)
        self._count.assign_add(number)

    def result(self) -> Any:
        """The mean of each element.

        Raises:
          ValueError: before the first value.
        """
        if self._shape is None:
            raise ValueError(
                "MeanTensor does not have any value yet. Please call the MeanTensor instance or use `.update_state(value)` before retrieving the result."
            )
        return math.divide_no_nan(self._total, self._count)


class MeanMetricWrapper(Mean):
    """Mean of a function of (y_true, y_pred).

    Args:
      fn: the function.
      name: the metric's name.
      dtype: dtype of the state.
      **kwargs: further arguments of the function.

    Example:
      >>> import meshflow as tf
      >>> largest = lambda y_true, y_pred: tf.reduce_max(tf.abs(y_true - y_pred), axis=-1)
      >>> metric = tf.keras.metrics.MeanMetricWrapper(largest, name="largest_error")
      >>> metric.update_state(tf.zeros([2, 2]), tf.constant([[1.0, 2.0], [3.0, 4.0]]))
      >>> float(metric.result())
      3.0
    """

    def __init__(
        self, fn: Callable[..., Any], name: str | None = None, dtype: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(name, dtype)
        self._fn = fn
        self._fn_kwargs = kwargs

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:  # type: ignore[override]
        """Adds one batch.

        Args:
          y_true: targets.
          y_pred: predictions.
          sample_weight: weights of examples.
        """
        y_true, y_pred = match_last_dimension(self._number(y_true), self._number(y_pred))
        values = self._fn(y_true, y_pred, **self._fn_kwargs)
        mask = getattr(values, "_keras_mask", None)
        if mask is not None:
            mask = math.cast(mask, self._dtype)
            if sample_weight is not None:
                mask = mask * weighted(values, self._float(sample_weight))[1]
            sample_weight = mask
        super().update_state(values, sample_weight)

    def _number(self, value: Any) -> Any:
        value = convert_to_tensor(value)
        # As in Keras, integer labels reach the function as floats.
        return math.cast(value, self._dtype) if value.dtype.name != "string" else value

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        own = {"fn": self._fn} if type(self) is MeanMetricWrapper else {}
        return {**super().get_config(), **self._fn_kwargs, **own}


def define(
    name: str,
    fn: Callable[..., Any],
    doc: str,
    default_name: str | None = None,
    first: tuple[str, ...] = (),
    left_out: tuple[str, ...] = (),
    *,
    last: tuple[str, ...] = (),
    example: tuple[str, str],
) -> type[MeanMetricWrapper]:
    """A metric class for a function of (y_true, y_pred, ...).

    Args:
      name: the class's name.
      fn: the function; its further arguments become the class's.
      doc: one line on what the metric is.
      default_name: default of `name`; default the function's name.
      first: arguments that come before `name` and `dtype`; the others follow them.
      left_out: arguments of the function that the class does not take.
      last: arguments that come after all others.
      example: a call of a new metric, and the number that it gives.

    Returns:
      The class.
    """
    own = {
        "name": inspect.Parameter("name", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        "dtype": inspect.Parameter("dtype", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None),
    }
    own["name"] = own["name"].replace(default=default_name or fn.__name__)
    extra = {
        p.name: p
        for p in list(inspect.signature(fn).parameters.values())[2:]
        if p.name not in left_out
    }
    order = [*first, *own, *(n for n in extra if n not in (*first, *last)), *last]
    signature = inspect.Signature([{**extra, **own}[n] for n in order])

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("mesh", None)
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}: {error}. It takes {signature}.") from None
        given.apply_defaults()
        MeanMetricWrapper.__init__(self, fn, **given.arguments)

    parameter = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    __init__.__signature__ = inspect.Signature([parameter, *signature.parameters.values()])  # type: ignore[attr-defined]
    home = "losses" if fn.__module__ == _losses.__name__ else "metrics"
    known_as = default_name or fn.__name__
    arguments = "".join(f"  {n}: see `tf.keras.{home}.{known_as}`.\n" for n in extra)
    text = (
        f"{doc}{formula_text(fn, 'The mean, weighted by `sample_weight`, of ')}\n\nArgs:\n  name: the metric's name.\n  dtype: dtype of the state.\n{arguments}"
        + example_text(f"tf.keras.metrics.{example[0]}", example[1])
    )
    body = {"__init__": __init__, "__doc__": text, "__module__": "meshflow.keras.metrics"}
    return type(name, (MeanMetricWrapper,), body)
