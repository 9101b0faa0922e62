"""Base class of metrics, which keep their state in variables and update it batch by batch."""

from __future__ import annotations

import copy
import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypedDict

import numpy as np

from meshflow.core.autograph.conversion import convert_if_enabled
from meshflow.core.functions.stateless import call_stateless
from meshflow.core.runtime.tracebacks import hide_frames_of_methods
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.sharded_variable import unsharded_scope
from meshflow.core.variables.variable import Variable, VariableAggregation, VariableSynchronization
from meshflow.distribute.replicas.context import merged_reads_scope
from meshflow.environment.types import Array, ArrayLike, Config, PyTree, overridable
from meshflow.keras import initializers, registry, settings
from meshflow.keras.weight_values import WeightValues
from meshflow.ops import math
from meshflow.ops.ragged import RaggedTensor
from meshflow.placement.layout import Layout
from meshflow.placement.mesh import Mesh

# Result of the latest call of each metric, by which `Layer.add_metric` finds the metric of a
# tensor.
_latest_results: weakref.WeakKeyDictionary[Metric, weakref.ref[Tensor]] = (
    weakref.WeakKeyDictionary()
)


class MetricArguments(TypedDict, total=False):
    """Arguments that all metrics accept."""

    mesh: Mesh | None


def _flatten_ragged(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make `update_state` of a built-in metric take the innermost values of ragged arguments."""

    @functools.wraps(method)
    def update_state(self: Metric, *args: Any, **kwargs: Any) -> Any:
        values = [*args, *kwargs.values()]
        if any(isinstance(v, RaggedTensor) for v in values):
            rows = [v for v in values if isinstance(v, RaggedTensor)]
            if len({len(r.nested_row_splits) for r in rows}) > 1 or not all(
                v is None or isinstance(v, RaggedTensor) for v in values[:2]
            ):
                raise ValueError(
                    "Some of the ragged arguments of a metric have different numbers of ragged "
                    "dimensions. Expected labels, predictions and weights with the same rows."
                )
            flatten = lambda v: v.flat_values if isinstance(v, RaggedTensor) else v
            args = tuple(map(flatten, args))
            kwargs = {key: flatten(v) for key, v in kwargs.items()}
        return method(self, *args, **kwargs)

    return update_state


def _convert_control_flow(method: Callable[..., Any]) -> Callable[..., Any]:
    """Convert the control flow of a user's `update_state` while a function with AutoGraph is traced."""

    @functools.wraps(method)
    def update_state(self: Metric, *args: Any, **kwargs: Any) -> Any:
        return convert_if_enabled(method)(self, *args, **kwargs)

    return update_state


def _accept_mesh(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def init_with_mesh(self: Metric, *args: Any, mesh: Mesh | None = None, **kwargs: Any) -> None:
        if mesh is not None:
            self._mesh = mesh
        init(self, *args, **kwargs)

    return init_with_mesh


def _read_all_replicas(result: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `result` so that it is the same in every replica of `Strategy.run`."""

    @functools.wraps(result)
    def synchronized_result(self: Metric, *args: Any, **kwargs: Any) -> PyTree:
        with merged_reads_scope():
            return convert_if_enabled(result)(self, *args, **kwargs)

    return synchronized_result


@hide_frames_of_methods
class Metric(WeightValues):
    """Base class of metrics; subclasses define `update_state` and `result`.

    Args:
      name: Name of the metric.
      dtype: Dtype of the state; `floatx()` by default.
      **kwargs: `mesh`, which all metrics accept: the mesh over which the state is replicated. By
        default this is the mesh of the first distributed input.

    Example:
      >>> m = tf.keras.metrics.Mean()
      >>> m.update_state([1.0, 3.0])
      >>> float(m.result())
      2.0
    """

    _is_metric = True
    stateful = True
    # Metrics are layers in TensorFlow, so programs may read these attributes.
    trainable = True
    built = True
    _build_input_shape: ShapeLike = None
    _mesh: Mesh | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__ and cls.__module__.startswith("meshflow."):
            cls.__init__ = _accept_mesh(cls.__init__)  # type: ignore[method-assign]
        # A `tf.function` converts its control flow itself, and has traces for each metric if it is bound to it.
        if inspect.isfunction(cls.__dict__.get("update_state")):
            is_built_in = cls.__module__.startswith("meshflow.")
            wrap = _flatten_ragged if is_built_in else _convert_control_flow
            cls.update_state = wrap(cls.update_state)  # type: ignore[method-assign]
        if "result" in cls.__dict__:
            cls.result = _read_all_replicas(cls.result)  # type: ignore[method-assign]

    def __init__(
        self, name: str | None = None, dtype: DTypeLike | None = None, **kwargs: Any
    ) -> None:
        cls = type(self)
        missing = [n for n in ("result", "update_state") if getattr(cls, n) is getattr(Metric, n)]
        if missing:
            raise TypeError(
                f"Can't instantiate abstract class {cls.__name__} without {' and '.join(missing)}. "
                "Define these methods in the subclass."
            )
        self._mesh = kwargs.pop("mesh", self._mesh)
        if kwargs:
            raise TypeError(f"{type(self).__name__} got unexpected arguments {sorted(kwargs)}.")
        self._name = name or settings.make_unique_name(registry.to_snake_case(type(self).__name__))
        self._dtype = dtypes.as_dtype(
            getattr(dtype, "variable_dtype", dtype) or settings.floatx()
        ).name
        self._weights: list[Variable] = []
        self._is_resetting = False

    @property
    def name(self) -> str:
        """Return the name of the metric."""
        return self._name

    @property
    def dtype(self) -> str:
        """Return the dtype name of the state."""
        return self._dtype

    def add_weight(
        self,
        name: str | None = None,
        shape: ShapeLike = (),
        aggregation: VariableAggregation = VariableAggregation.SUM,
        synchronization: VariableSynchronization = VariableSynchronization.ON_READ,
        initializer: str | Callable[..., TensorLike] | None = None,
        dtype: DTypeLike | None = None,
    ) -> Variable:
        """Create a state variable.

        Args:
          name: Name of the variable.
          shape: Shape of the variable.
          aggregation: Combination of the values of replicas.
          synchronization: Time of the combination.
          initializer: Initializer; zeros by default.
          dtype: Dtype of the variable; that of the metric by default.
        """
        if isinstance(name, (tuple, list)):
            name, shape = None, name
        shape = () if shape is None else (shape,) if isinstance(shape, int) else tuple(shape)
        initialize = initializers.get(initializer or "zeros")
        variable_dtype = dtypes.as_dtype(dtype or self._dtype)
        with init_scope(), unsharded_scope():
            variable = Variable(
                lambda: initialize(shape, dtype=variable_dtype),
                trainable=False,
                name=name,
                dtype=variable_dtype,
                aggregation=aggregation,
                synchronization=synchronization,
            )
        if self._mesh is not None:
            variable.layout = Layout.replicated(self._mesh, len(shape))
        self._weights.append(variable)
        return variable

    def add_variable(
        self,
        shape: ShapeLike = (),
        initializer: str | Callable[..., TensorLike] | None = None,
        dtype: DTypeLike | None = None,
        name: str | None = None,
    ) -> Variable:
        """Create a state variable; Keras 3's name of `add_weight`."""
        return self.add_weight(name, shape, initializer=initializer, dtype=dtype)

    @property
    def variables(self) -> list[Variable]:
        """Return the variables of `add_weight`, and those of attributes."""
        variables = {id(v): v for v in self._weights}
        for value in vars(self).values():
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(item, Variable):
                    variables.setdefault(id(item), item)
                elif getattr(item, "_is_metric", False):
                    variables.update((id(v), v) for v in item.variables)
        return list(variables.values())

    weights = variables
    non_trainable_weights = non_trainable_variables = variables

    @property
    def trainable_weights(self) -> list[Variable]:
        """Return an empty list."""
        return []

    trainable_variables = trainable_weights

    @overridable
    def update_state(self, *args: Any, **kwargs: Any) -> PyTree:
        """Update the state with one batch."""
        raise NotImplementedError("Must be implemented in subclasses.")

    @overridable
    def result(self) -> PyTree:
        """Return the current value of the metric, a tensor or a dictionary of tensors."""
        raise NotImplementedError("Must be implemented in subclasses.")

    def reset_state(self) -> None:
        """Set the state to zeros.

        Example:
          >>> metric = tf.keras.metrics.Sum()
          >>> metric.update_state([1.0, 2.0])
          >>> metric.reset_state()
          >>> float(metric.result())
          0.0
        """
        if type(self).reset_states is not Metric.reset_states and not self._is_resetting:
            # Metrics for TensorFlow before 2.5 override the former name of the method.
            self._is_resetting = True
            try:
                self.reset_states()
            finally:
                self._is_resetting = False
            return
        for variable in self.variables:
            variable.assign(np.zeros(tuple(variable.shape), variable.dtype.dtype))

    def reset_states(self) -> None:
        """Call `reset_state`, under its former name."""
        self.reset_state()

    def stateless_update_state(
        self, metric_variables: Sequence[ArrayLike], *args: Any, **kwargs: Any
    ) -> list[Array]:
        """Return the values of the variables after `update_state`, starting from given values.

        Args:
          metric_variables: A value for each of `variables`.
          *args: Arguments of `update_state`.
          **kwargs: Keyword arguments of `update_state`.

        Example:
          >>> import jax.numpy as jnp, meshflow as tf
          >>> metric = tf.keras.metrics.Mean()
          >>> state = metric.stateless_update_state([jnp.zeros(()), jnp.zeros(())], jnp.asarray([2.0, 4.0]))
          >>> float(metric.stateless_result(state))
          3.0
        """
        return call_stateless(self.update_state, self.variables, metric_variables, args, kwargs)[1]

    def stateless_result(self, metric_variables: Sequence[ArrayLike]) -> PyTree:
        """Return the result for given values of the variables.

        Args:
          metric_variables: A value for each of `variables`.
        """
        return call_stateless(self.result, self.variables, metric_variables)[0]

    def stateless_reset_state(self) -> list[Array]:
        """Return the values of the variables after `reset_state`."""
        values = [v.value() for v in self.variables]
        return call_stateless(self.reset_state, self.variables, values)[1]

    def merge_state(self, metrics: Iterable[Metric]) -> None:
        """Add the state of other metrics of the same class.

        Example:
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
            for variable, value in zip(self.weights, metric.weights, strict=True):
                variable.assign_add(value)

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Update the state with one batch and return the current value."""
        self.update_state(*args, **kwargs)
        result = self.result()
        if isinstance(result, Tensor):
            _latest_results[self] = weakref.ref(result)
        return result

    def is_latest_result(self, value: object) -> bool:
        """Check whether a tensor is the result of the latest call."""
        latest = _latest_results.get(self)
        return latest is not None and latest() is value

    def get_config(self) -> Config:
        """Return the configuration."""
        return {"name": self.name, "dtype": self.dtype}

    def get_build_config(self) -> Config | None:
        """Return the shape for which the state was created; None if it does not depend on a shape."""
        shape = self._build_input_shape
        return None if shape is None else {"input_shape": tuple(TensorShape(shape).as_list())}

    @classmethod
    def from_config(cls, config: Config) -> Metric:
        """Create a metric from its configuration."""
        return cls(**config)

    def __str__(self) -> str:
        values = ",".join(f"{k}={v}" for k, v in self.get_config().items())
        return f"{type(self).__name__}({values})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Metric:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def _convert_to_dtype(self, value: TensorLike) -> Tensor:
        if type(value) in (int, float):
            # A Python number is a constant, so no program is compiled for the cast.
            return convert_to_tensor(float(value), self._dtype)
        return math.cast(convert_to_tensor(value), self._dtype)
