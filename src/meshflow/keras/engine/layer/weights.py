"""Weights of a layer: creation, lookup, counting and assignment."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.variables.variable import (
    Variable,
    VariableAggregation,
    VariableSynchronization,
    get_full_name,
    get_value_shape,
)
from meshflow.environment.types import PyTree
from meshflow.keras import constraints, initializers, regularizers, settings
from meshflow.keras.engine.layer.dimensions import get_weight_dimensions
from meshflow.keras.engine.layer.helpers import remove_duplicates
from meshflow.keras.engine.layer.layout_map import choose_layout, variable_layout_scope
from meshflow.keras.engine.layer.tracking import TrackedLayer, Tracker, are_leaf_values
from meshflow.keras.weight_values import WeightValues

# Size in elements up to which untrained weights get values while a model is only planned:
# preprocessing layers and metrics compute with them.
_MAX_CONCRETE_SIZE = 1 << 16


class TrainableChanges:
    """The number of times that the attribute `trainable` of any layer was set."""

    count = 0


class LayerWeights(WeightValues, TrackedLayer):
    """Methods of `Layer` for weights."""

    _TF_MODULE_IGNORED_PROPERTIES = frozenset(("_tracker",))

    built: bool
    _trainable: bool
    _regularized: list[tuple[Variable, Any]]

    if TYPE_CHECKING:
        # Attributes that other base classes of `Layer` define.
        @property
        def variable_dtype(self) -> str | None:
            """Return the dtype name of the weights, None if it follows the inputs."""

        def _flatten_layers(
            self, recursive: bool = True, include_self: bool = True
        ) -> Iterator[Any]: ...

    def add_weight(
        self,
        name: str | None = None,
        shape: ShapeLike = None,
        dtype: DTypeLike | None = None,
        initializer: Any = None,
        regularizer: Any = None,
        trainable: bool | None = None,
        constraint: Any = None,
        use_resource: bool | None = None,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation = VariableAggregation.NONE,
        **kwargs: Any,
    ) -> Variable:
        """Add a weight to the layer.

        Args:
          name: Name of the weight.
          shape: Shape; default a scalar.
          dtype: Dtype; default the variable dtype of the policy.
          initializer: Initializer or its name; default Glorot uniform for floating-point dtypes,
            zeros otherwise.
          regularizer: Function of the weight that returns a loss.
          trainable: Whether the weight is trained; default True unless `synchronization` is
            ON_READ.
          constraint: Function that is applied to the weight after each update.
          use_resource: Ignored.
          synchronization: See `tf.VariableSynchronization`.
          aggregation: See `tf.VariableAggregation`.
          **kwargs: `experimental_autocast=False` excludes the weight from mixed-precision casts;
            `getter` creates the variable instead of `tf.Variable`; `layout` is its layout; `dims`
            names the axes for the rules of a `MeshStrategy`, for example "embed, hidden".

        Returns:
          The variable.

        Raises:
          ValueError: If the dtype has no default initializer, or if an ON_READ weight is trainable.

        Example:
          >>> class Scale(tf.keras.layers.Layer):
          ...     def build(self, input_shape):
          ...         self.factor = self.add_weight("factor", input_shape[-1:], initializer="ones")
          ...     def call(self, inputs):
          ...         return inputs * self.factor
          >>> layer = Scale()
          >>> _ = layer(tf.ones([2, 3]))
          >>> [weight.shape for weight in layer.trainable_weights]
          [TensorShape([3])]
        """
        if isinstance(name, (tuple, list, TensorShape)):
            # The shape is the first argument in Keras 3.
            name, shape = None, name
        weight_dtype = dtypes.as_dtype(dtype or self.variable_dtype or settings.floatx())
        if synchronization is VariableSynchronization.ON_READ:
            if trainable:
                raise ValueError(
                    "Synchronization value can be set to VariableSynchronization.ON_READ only for "
                    "non-trainable variables. You have specified trainable=True and "
                    "synchronization=VariableSynchronization.ON_READ."
                )
            trainable = False
        trainable = True if trainable is None else trainable
        if initializer is None:
            if not (
                weight_dtype.is_floating
                or weight_dtype.is_integer
                or weight_dtype.is_bool
                or "getter" in kwargs
            ):
                raise ValueError(
                    f"An initializer for variable {name} of type {weight_dtype.name} is required for layer {self.name}. "
                    f"Received: {initializer}."
                )
            initializer = "glorot_uniform" if weight_dtype.is_floating else "zeros"
        initialize = initializers.get(initializer)
        sizes = _check_weight_shape(self.name, name, shape, initialize)
        # The initializer determines the first value if the shape may change later.
        shape_argument: dict[str, Any] = {"shape": sizes} if None in sizes else {}
        dims = kwargs.pop("dims", None)
        layout = kwargs.pop("layout", None) or choose_layout(self, name, sizes, dims)
        autocast = kwargs.pop("experimental_autocast", True)
        getter = kwargs.pop("getter", None) or Variable
        kwargs.pop("collections", None), kwargs.pop("partitioner", None)
        if kwargs:
            raise TypeError(
                f"Unknown keyword argument to add_weight of layer {self.name}: {sorted(kwargs)}"
            )

        def initial_value() -> Any:
            return _call_initializer(initialize, sizes, weight_dtype)

        initial: Any = initial_value
        if (
            context.shapes_only
            and not shape_argument
            and (trainable or math.prod(sizes) > _MAX_CONCRETE_SIZE)
        ):
            initial = jax.ShapeDtypeStruct(sizes, weight_dtype.dtype)
        with init_scope(), variable_layout_scope(layout):
            variable = self._add_variable_with_custom_getter(
                name or "Variable",
                initializer=initial,
                getter=getter,
                trainable=trainable,
                constraint=constraints.get(constraint),
                synchronization=synchronization,
                aggregation=aggregation,
                dtype=weight_dtype,
                **shape_argument,
            )
        has_layout = hasattr(variable, "_slot_layout") or not isinstance(variable, Variable)
        if layout is not None and not has_layout:
            variable.handle.layout = layout
        # The weights of the layer are the shards of a sharded table.
        if dims is not None:
            variable._dimension_names = dims  # type: ignore[attr-defined]
        for part in getattr(variable, "variables", [variable]):
            getattr(part, "handle", part)._autocast = autocast and weight_dtype.is_floating
            # Keras initializes the weights of version 1 graphs when it reads them.
            if context.graph is not None:
                part.initializes_on_read = True
            self._own_weights.append(part)
        regularize = regularizers.get(regularizer)
        if regularize is not None:
            self._regularized.append((variable, regularize))
        return variable

    add_variable = add_weight

    def _add_variable_with_custom_getter(
        self, name: str, initializer: Any, getter: Callable[..., Variable], **kwargs: Any
    ) -> Variable:
        """Create a weight; libraries override this method to wrap `getter`."""
        return getter(initializer, name=name, **kwargs)

    def _list_named_axes(self) -> list[tuple[Variable, list[tuple[str, ...]]]]:
        """Return the weights with named axes, and the names that rules may use for each axis."""
        named_axes = []
        for weight in self._own_weights:
            dimension_names = getattr(weight, "_dimension_names", None)
            name = get_full_name(weight).rsplit("/", 1)[-1]
            dims = get_weight_dimensions(self, name, get_value_shape(weight), dimension_names)
            if dims is not None:
                named_axes.append((weight, dims))
        return named_axes

    def __setattr__(self, name: str, value: Any) -> None:
        before = self.__dict__.get(name)
        super().__setattr__(name, value)
        if before is not value and isinstance(before, Variable) and isinstance(value, Variable):
            self._replace_weight(before, value)
        if not are_leaf_values(before, value):
            self.__dict__.pop("_tracker", None)
        if before is not value and isinstance(before, Variable):
            self._forget_weight(before)

    def __delattr__(self, name: str) -> None:
        before = self.__dict__.get(name)
        object.__delattr__(self, name)
        self.__dict__.pop("_tracker", None)
        if isinstance(before, Variable):
            self._forget_weight(before)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        return {name: value for name, value in state.items() if name != "_tracker"}

    def _replace_weight(self, before: Variable, after: Variable) -> None:
        """Put a weight that replaces another one as an attribute at its index among the weights."""
        if all(v is not after for v in self._own_weights):
            self._own_weights = [after if v is before else v for v in self._own_weights]

    def _forget_weight(self, variable: Variable) -> None:
        """Remove a weight that is no longer an attribute."""
        if all(v is not variable for v in self.__dict__.values()):
            self._own_weights = [v for v in self._own_weights if v is not variable]
            self._regularized = [(v, r) for v, r in self._regularized if v is not variable]

    @property
    def trainable(self) -> bool:
        """Return whether the weights are trained; setting it also sets it for all sublayers."""
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        for layer in self._flatten_layers():
            layer._trainable = bool(value)
        TrainableChanges.count += 1

    @property
    def _tracked(self) -> Tracker:
        tracker: Tracker | None = self.__dict__.get("_tracker")
        if tracker is None or not tracker.is_current(self):
            tracker = self.__dict__["_tracker"] = Tracker(self)
        return tracker

    def _list_own_variables(self, trainable: bool) -> list[Variable]:
        return [v for v in self._tracked.variables if v.trainable == trainable]

    @property
    def trainable_weights(self) -> list[Variable]:
        """Return the weights that training updates."""
        if not self._trainable:
            return []
        variables = self._list_own_variables(True)
        return remove_duplicates(
            [*variables, *(v for layer in self._tracked.layers for v in layer.trainable_weights)]
        )

    @property
    def non_trainable_weights(self) -> list[Variable]:
        """Return the weights that training does not update, such as moving averages."""
        non_trainable, children = self._list_own_variables(False), self._tracked.layers
        if self._trainable:
            return remove_duplicates(
                [*non_trainable, *(v for layer in children for v in layer.non_trainable_weights)]
            )
        frozen = [*self._list_own_variables(True), *non_trainable]
        return remove_duplicates([*frozen, *(v for layer in children for v in layer.weights)])

    @property
    def weights(self) -> list[Variable]:
        """Return all weights: trainable ones first."""
        return remove_duplicates([*self.trainable_weights, *self.non_trainable_weights])

    @property
    def variables(self) -> list[Variable]:
        """Return all weights."""
        return self.weights

    @property
    def trainable_variables(self) -> list[Variable]:
        """Return the weights that training updates."""
        return self.trainable_weights

    @property
    def non_trainable_variables(self) -> list[Variable]:
        """Return the weights that training does not update."""
        return self.non_trainable_weights

    def count_params(self) -> int:
        """Count the scalars in the weights.

        Raises:
          ValueError: If the layer has not been built.
        """
        if not self.built:
            raise ValueError(
                f"You tried to call `count_params` on layer {self.name}, but the layer isn't built. You can build "
                f"it manually via: `{self.name}.build(batch_input_shape)`."
            )
        return sum(int(np.prod(tuple(w.shape), dtype=np.int64)) for w in self.weights)


def _check_weight_shape(
    layer: str, name: str | None, shape: ShapeLike, initialize: object
) -> tuple[Any, ...]:
    sizes = TensorShape(() if shape is None else shape).as_list()
    if None in sizes and isinstance(initialize, initializers.Initializer):
        raise ValueError(
            f"Layer {layer}: weight {name} has the undefined shape {tuple(sizes)}. The last dimension of the inputs "
            "must be known when a layer is built; give the model an `input_shape`."
        )
    return tuple(sizes)


def _call_initializer(
    initialize: Callable[..., Any], shape: tuple[int | None, ...], dtype: dtypes.DType
) -> PyTree:
    if isinstance(initialize, type):
        initialize = initialize()
    if not callable(initialize):
        return convert_to_tensor(initialize, dtype=dtype)
    try:
        parameters = inspect.signature(initialize).parameters
    except (TypeError, ValueError):
        return initialize(shape, dtype=dtype)
    if "dtype" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return initialize(shape, dtype=dtype)
    if len(parameters) >= 2:
        return initialize(shape, dtype)
    return initialize(shape) if parameters else initialize()
