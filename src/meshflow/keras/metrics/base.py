"""`Metric` and the means that most metrics are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.core import dtypes
from meshflow.core.convert import convert_to_tensor
from meshflow.core.trace import init_scope
from meshflow.core.variable import Variable, VariableAggregation, VariableSynchronization
from meshflow.keras import backend, identify
from meshflow.keras.losses.base import match_rank
from meshflow.ops import array, math


class Metric:
    """Base class of metrics: state in variables, `update_state` and `result`.

    Args:
      name: the metric's name.
      dtype: dtype of the state; default `floatx()`.
      **kwargs: nothing else is accepted.

    Example:
      >>> import meshflow as tf
      >>> m = tf.keras.metrics.Mean()
      >>> m.update_state([1.0, 3.0])
      >>> float(m.result())
      2.0
    """

    _is_metric = True

    def __init__(self, name: str | None = None, dtype: Any = None, **kwargs: Any) -> None:
        kwargs.pop("mesh", None)
        if kwargs:
            raise TypeError(f"{type(self).__name__} got unexpected arguments {sorted(kwargs)}.")
        self._name = name or backend.unique_name(identify.snake_case(type(self).__name__))
        self._dtype = dtypes.as_dtype(
            getattr(dtype, "variable_dtype", dtype) or backend.floatx()
        ).name
        self._weights: list[Variable] = []

    @property
    def name(self) -> str:
        """The metric's name."""
        return self._name

    @property
    def dtype(self) -> str:
        """Dtype name of the state."""
        return self._dtype

    def add_weight(
        self,
        name: str | None = None,
        shape: Any = (),
        aggregation: VariableAggregation = VariableAggregation.SUM,
        synchronization: VariableSynchronization = VariableSynchronization.ON_READ,
        initializer: Any = None,
        dtype: Any = None,
    ) -> Variable:
        """Adds a state variable.

        Args:
          name: its name.
          shape: its shape.
          aggregation: how replicas' values are combined.
          synchronization: when they are.
          initializer: default zeros.
          dtype: default the metric's.
        """
        from meshflow.keras import initializers

        if isinstance(name, (tuple, list)):
            name, shape = None, name
        initialize = initializers.get(initializer or "zeros")
        kind = dtypes.as_dtype(dtype or self._dtype)
        with init_scope():
            variable = Variable(
                lambda: initialize(tuple(shape), dtype=kind),
                trainable=False,
                name=name,
                dtype=kind,
                aggregation=aggregation,
                synchronization=synchronization,
            )
        self._weights.append(variable)
        return variable

    @property
    def variables(self) -> list[Variable]:
        """The state."""
        nested = [
            v for m in vars(self).values() if getattr(m, "_is_metric", False) for v in m.variables
        ]
        return [*self._weights, *nested]

    weights = variables
    non_trainable_weights = non_trainable_variables = variables

    @property
    def trainable_weights(self) -> list[Variable]:
        """Always empty."""
        return []

    def update_state(self, *args: Any, **kwargs: Any) -> Any:
        """Takes in one batch."""
        raise NotImplementedError("Must be implemented in subclasses.")

    def result(self) -> Any:
        """The metric's present value, a tensor or dictionary of tensors."""
        raise NotImplementedError("Must be implemented in subclasses.")

    def reset_state(self) -> None:
        """Starts again."""
        for variable in self.variables:
            variable.assign(np.zeros(tuple(variable.shape), variable.dtype.dtype))

    def reset_states(self) -> None:
        """The old name of `reset_state`."""
        self.reset_state()

    def merge_state(self, metrics: Any) -> None:
        """Adds the state of other metrics of the same kind."""
        for metric in metrics:
            if len(metric.weights) != len(self.weights):
                raise ValueError(f"Metric {metric} is not compatible with {self}")
            for own, other in zip(self.weights, metric.weights, strict=True):
                own.assign_add(other)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Takes in one batch and returns the present value."""
        self.update_state(*args, **kwargs)
        return self.result()

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {"name": self.name, "dtype": self.dtype}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The metric with a configuration."""
        return cls(**config)

    def __repr__(self) -> str:
        values = ",".join(f"{k}={v}" for k, v in self.get_config().items())
        return f"{type(self).__name__}({values})"

    def __deepcopy__(self, memo: Any) -> Metric:
        copied = type(self).from_config(self.get_config())
        memo[id(self)] = copied
        return copied

    def _float(self, value: Any) -> Any:
        return math.cast(convert_to_tensor(value), self._dtype)


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
        if sample_weight is not None:
            weights = self._float(sample_weight)
            if len(weights.shape) > len(values.shape):
                # Weights of parts count for the mean of the parts.
                extra = list(range(len(values.shape), len(weights.shape)))
                if any(weights.shape[i] != 1 for i in extra):
                    values = math.reduce_mean(values, axis=extra) if not extra else values
                weights = (
                    array.squeeze(weights, extra)
                    if all(weights.shape[i] == 1 for i in extra)
                    else weights
                )
            weights = match_rank(weights, values)
            if len(weights.shape) == len(values.shape) and any(
                w != v and w != 1 for w, v in zip(weights.shape, values.shape, strict=True)
            ):
                axes = [
                    i
                    for i, (w, v) in enumerate(zip(weights.shape, values.shape, strict=True))
                    if w != v
                ]
                values = math.reduce_mean(values, axis=axes, keepdims=True)
            values = values * weights
        self.total.assign_add(math.reduce_sum(values))
        if self._mean:
            if sample_weight is None:
                number = convert_to_tensor(float(values.shape.num_elements()), dtype=self._dtype)
            else:
                number = math.reduce_sum(array.broadcast_to(weights, values.shape))
            self.count.assign_add(number)

    def result(self) -> Any:
        """The sum, or the mean (0 before any value)."""
        if not self._mean:
            return array.identity(self.total)
        return math.divide_no_nan(self.total, self.count)


class Mean(Reduce):
    """Weighted mean of values.

    Args:
      name: the metric's name.
      dtype: dtype of the state.
    """

    def __init__(self, name: str | None = "mean", dtype: Any = None) -> None:
        super().__init__(name, dtype)


class Sum(Reduce):
    """Weighted sum of values; arguments as `Mean`."""

    _mean = False

    def __init__(self, name: str | None = "sum", dtype: Any = None) -> None:
        super().__init__(name, dtype)


class MeanTensor(Metric):
    """Mean of tensors, element by element.

    Args:
      name: the metric's name.
      dtype: dtype of the state.
      shape: shape of the tensors; default that of the first.
    """

    def __init__(
        self, name: str | None = "mean_tensor", dtype: Any = None, shape: Any = None
    ) -> None:
        super().__init__(name, dtype)
        self._shape = None
        if shape is not None:
            self._build(shape)

    def _build(self, shape: Any) -> None:
        self._shape = tuple(shape)
        self._total = self.add_weight("total", self._shape)
        self._count = self.add_weight("count", self._shape)

    @property
    def total(self) -> Any:
        """Sum of the values."""
        return self._total if self._shape is not None else None

    @property
    def count(self) -> Any:
        """Sum of the weights."""
        return self._count if self._shape is not None else None

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Adds a tensor."""
        values = self._float(values)
        if self._shape is None:
            self._build(values.shape)
        elif tuple(values.shape) != self._shape:
            raise ValueError(
                f"MeanTensor input values must always have the same shape. Expected shape (set during the first call): {self._shape}. Got: {tuple(values.shape)}."
            )
        number = array.ones_like(values)
        if sample_weight is not None:
            weights = match_rank(self._float(sample_weight), values)
            number, values = number * weights, values * weights
        self._total.assign_add(values)
        self._count.assign_add(number)

    def result(self) -> Any:
        """The mean of each element."""
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
    """

    def __init__(
        self, fn: Callable[..., Any], name: str | None = None, dtype: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(name or fn.__name__, dtype)
        self._fn = fn
        self._arguments = kwargs

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:  # type: ignore[override]
        """Adds one batch.

        Args:
          y_true: targets.
          y_pred: predictions.
          sample_weight: weights of examples.
        """
        y_true, y_pred = convert_to_tensor(y_true), convert_to_tensor(y_pred)
        if y_pred.dtype.is_floating:
            y_pred = math.cast(y_pred, self._dtype)
        if y_true.dtype.is_floating:
            y_true = math.cast(y_true, self._dtype)
        if len(y_pred.shape) == len(y_true.shape) + 1 and y_pred.shape[-1] == 1:
            y_pred = array.squeeze(y_pred, -1)
        elif len(y_true.shape) == len(y_pred.shape) + 1 and y_true.shape[-1] == 1:
            y_true = array.squeeze(y_true, -1)
        matches = self._fn(y_true, y_pred, **self._arguments)
        super().update_state(matches, sample_weight=sample_weight)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        own = {"fn": self._fn} if type(self) is MeanMetricWrapper else {}
        return {**own, **self._arguments, **super().get_config()}


def define(
    name: str, fn: Callable[..., Any], doc: str, default_name: str | None = None
) -> type[MeanMetricWrapper]:
    """A metric class for a function; the function's further arguments become the class's."""
    import inspect

    extra = list(inspect.signature(fn).parameters.values())[2:]
    own_name = default_name or fn.__name__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        # Keras puts its own arguments first for losses as metrics, last for top-k.
        names = (
            [*(p.name for p in extra), "name", "dtype"]
            if extra and extra[0].name in ("k", "threshold")
            else ["name", "dtype", *(p.name for p in extra)]
        )
        if extra and extra[0].name == "threshold":
            names = ["name", "dtype", "threshold"]
        values = {**{p.name: p.default for p in extra}, "name": own_name, "dtype": None}
        given = dict(zip(names, args, strict=False)) | kwargs
        given.pop("mesh", None)
        unknown = set(given) - set(names)
        if unknown:
            raise TypeError(f"{name} got unexpected arguments {sorted(unknown)}; it takes {names}.")
        MeanMetricWrapper.__init__(self, fn, **{**values, **given})

    return type(
        name,
        (MeanMetricWrapper,),
        {"__init__": __init__, "__doc__": doc, "__module__": "meshflow.keras.metrics"},
    )
