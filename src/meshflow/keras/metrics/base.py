"""`Metric`: state in variables, updated batch by batch."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.autograph.conversion import convert_if_enabled
from meshflow.core.functions.stateless import call_stateless
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.sharded_variable import kept_whole
from meshflow.core.variables.variable import Variable, VariableAggregation, VariableSynchronization
from meshflow.distribute.replicas.context import reading_together
from meshflow.keras import initializers, registry, settings
from meshflow.keras.weight_values import WeightValues
from meshflow.ops import math
from meshflow.placement.layout import Layout
from meshflow.placement.mesh import Mesh

# What the latest call of each metric returned, by which `Layer.add_metric` knows the metric.
_results: weakref.WeakKeyDictionary[Metric, weakref.ref[Tensor]] = weakref.WeakKeyDictionary()


def _accepting_mesh(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def wrapped(self: Any, *args: Any, mesh: Any = None, **kwargs: Any) -> None:
        if mesh is not None:
            self._mesh = mesh
        init(self, *args, **kwargs)

    return wrapped


def _of_all_replicas(result: Callable[..., Any]) -> Callable[..., Any]:
    """A `result` that is the same in every replica of `Strategy.run`."""

    @functools.wraps(result)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        with reading_together():
            return convert_if_enabled(result)(self, *args, **kwargs)

    return wrapped


class Metric(WeightValues):
    """Base class of metrics: state in variables, `update_state` and `result`.

    Args:
      name: the metric's name.
      dtype: dtype of the state; default `floatx()`.
      **kwargs: `mesh`, accepted by all metrics: the mesh over which the state is replicated; without
        it, the first one that it meets.

    Example:
      >>> import meshflow as tf
      >>> m = tf.keras.metrics.Mean()
      >>> m.update_state([1.0, 3.0])
      >>> float(m.result())
      2.0
    """

    _is_metric = True
    stateful = True
    # As those of a layer, which a metric is in TensorFlow.
    trainable = True
    built = True
    _build_input_shape: Any = None
    _mesh: Mesh | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__ and cls.__module__.startswith("meshflow."):
            cls.__init__ = _accepting_mesh(cls.__init__)  # type: ignore[method-assign]
        if "result" in cls.__dict__:
            cls.result = _of_all_replicas(cls.result)  # type: ignore[method-assign]

    def __init__(self, name: str | None = None, dtype: Any = None, **kwargs: Any) -> None:
        self._mesh = kwargs.pop("mesh", self._mesh)
        if kwargs:
            raise TypeError(f"{type(self).__name__} got unexpected arguments {sorted(kwargs)}.")
        self._name = name or settings.unique_name(registry.snake_case(type(self).__name__))
        self._dtype = dtypes.as_dtype(
            getattr(dtype, "variable_dtype", dtype) or settings.floatx()
        ).name
        self._weights: list[Variable] = []
        self._resetting = False

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
        if isinstance(name, (tuple, list)):
            name, shape = None, name
        shape = () if shape is None else (shape,) if isinstance(shape, int) else tuple(shape)
        initialize = initializers.get(initializer or "zeros")
        kind = dtypes.as_dtype(dtype or self._dtype)
        with init_scope(), kept_whole():
            variable = Variable(
                lambda: initialize(shape, dtype=kind),
                trainable=False,
                name=name,
                dtype=kind,
                aggregation=aggregation,
                synchronization=synchronization,
            )
        if self._mesh is not None:
            variable._layout = Layout.replicated(self._mesh, len(shape))
        self._weights.append(variable)
        return variable

    def add_variable(
        self, shape: Any = (), initializer: Any = None, dtype: Any = None, name: str | None = None
    ) -> Variable:
        """Keras 3's name for `add_weight`."""
        return self.add_weight(name, shape, initializer=initializer, dtype=dtype)

    @property
    def variables(self) -> list[Variable]:
        """The state: what `add_weight` made, then variables and metrics that are attributes."""
        found = {id(v): v for v in self._weights}
        for value in vars(self).values():
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(item, Variable):
                    found.setdefault(id(item), item)
                elif getattr(item, "_is_metric", False):
                    found.update((id(v), v) for v in item.variables)
        return list(found.values())

    weights = variables
    non_trainable_weights = non_trainable_variables = variables

    @property
    def trainable_weights(self) -> list[Variable]:
        """Always empty."""
        return []

    trainable_variables = trainable_weights

    def update_state(self, *args: Any, **kwargs: Any) -> Any:
        """Takes in one batch."""
        raise NotImplementedError("Must be implemented in subclasses.")

    def result(self) -> Any:
        """The metric's present value, a tensor or dictionary of tensors."""
        raise NotImplementedError("Must be implemented in subclasses.")

    def reset_state(self) -> None:
        """Starts again: sets the state to zeros.

        Example:
          >>> import meshflow as tf
          >>> metric = tf.keras.metrics.Sum()
          >>> metric.update_state([1.0, 2.0])
          >>> metric.reset_state()
          >>> float(metric.result())
          0.0
        """
        if type(self).reset_states is not Metric.reset_states and not self._resetting:
            # A metric written for TensorFlow before 2.5 overrides the method's old name.
            self._resetting = True
            try:
                self.reset_states()
            finally:
                self._resetting = False
            return
        for variable in self.variables:
            variable.assign(np.zeros(tuple(variable.shape), variable.dtype.dtype))

    def reset_states(self) -> None:
        """The old name of `reset_state`."""
        self.reset_state()

    def stateless_update_state(
        self, metric_variables: Sequence[Any], *args: Any, **kwargs: Any
    ) -> list[Any]:
        """The variables' values after `update_state`, when they held the given ones.

        Args:
          metric_variables: a value for each of `variables`.
          *args: arguments of `update_state`.
          **kwargs: named arguments of it.

        Example:
          >>> import jax.numpy as jnp, meshflow as tf
          >>> metric = tf.keras.metrics.Mean()
          >>> state = metric.stateless_update_state([jnp.zeros(()), jnp.zeros(())], jnp.asarray([2.0, 4.0]))
          >>> float(metric.stateless_result(state))
          3.0
        """
        return call_stateless(self.update_state, self.variables, metric_variables, args, kwargs)[1]

    def stateless_result(self, metric_variables: Sequence[Any]) -> Any:
        """The result when the variables hold the given values.

        Args:
          metric_variables: a value for each of `variables`.
        """
        return call_stateless(self.result, self.variables, metric_variables)[0]

    def stateless_reset_state(self) -> list[Any]:
        """The variables' values after `reset_state`."""
        values = [v.value() for v in self.variables]
        return call_stateless(self.reset_state, self.variables, values)[1]

    def merge_state(self, metrics: Any) -> None:
        """Adds the state of other metrics of the same kind.

        Example:
          >>> import meshflow as tf
          >>> a, b = tf.keras.metrics.Sum(), tf.keras.metrics.Sum()
          >>> a.update_state(1.0)
          >>> b.update_state(2.0)
          >>> a.merge_state([b])
          >>> float(a.result())
          3.0
        """
        for metric in metrics:
            if len(metric.weights) != len(self.weights):
                raise ValueError(f"Metric {metric} is not compatible with {self}")
            for own, other in zip(self.weights, metric.weights, strict=True):
                own.assign_add(other)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Takes in one batch and returns the present value."""
        self.update_state(*args, **kwargs)
        result = self.result()
        if isinstance(result, Tensor):
            _results[self] = weakref.ref(result)
        return result

    def _gave(self, value: Any) -> bool:
        """Whether a tensor is what the latest call returned."""
        latest = _results.get(self)
        return latest is not None and latest() is value

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {"name": self.name, "dtype": self.dtype}

    def get_build_config(self) -> dict[str, Any] | None:
        """The shape that the state was made for, where it is not the same for all; otherwise None."""
        shape = self._build_input_shape
        return None if shape is None else {"input_shape": tuple(TensorShape(shape).as_list())}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The metric with a configuration."""
        return cls(**config)

    def __str__(self) -> str:
        values = ",".join(f"{k}={v}" for k, v in self.get_config().items())
        return f"{type(self).__name__}({values})"

    def __deepcopy__(self, memo: Any) -> Metric:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def _float(self, value: Any) -> Any:
        if type(value) in (int, float):
            # A constant: no program is compiled to cast one number.
            return convert_to_tensor(float(value), self._dtype)
        return math.cast(convert_to_tensor(value), self._dtype)
