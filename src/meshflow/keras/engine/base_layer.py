"""`Layer`: the base class of everything in Keras that has weights or computes.

A layer makes its weights in `build`, which runs before the first call, and computes in `call`.
`__call__` does what surrounds that: symbolic inputs, building, input checks, casting to the compute
dtype, the `training` argument, masks, and losses.

Weights and sublayers are found by looking at the layer's attributes when asked for, so lists and
dictionaries of layers may change at any time.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meshflow.core import dtypes, nest
from meshflow.core.autograph.status import convert_if_enabled, switched
from meshflow.core.context import context
from meshflow.core.convert import convert_to_tensor
from meshflow.core.module import Module
from meshflow.core.shapes import TensorShape
from meshflow.core.tensor import Tensor
from meshflow.core.trace import init_scope
from meshflow.core.variable import Variable, VariableAggregation, VariableSynchronization
from meshflow.keras import backend
from meshflow.keras.dtensor.experimental import current_map, layout_for
from meshflow.keras.engine import shape_inference
from meshflow.keras.engine.input_spec import InputSpec, assert_input_compatibility
from meshflow.keras.engine.keras_tensor import KerasTensor, Node, shape_of
from meshflow.keras.engine.tracking import Tracker
from meshflow.keras.mixed_precision import policy as policies


class CallState(threading.local):
    """The layer calls in progress in this thread, outermost first, and their `training` values."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.training: list[Any] = []


call_state = CallState()

_KNOWN_KWARGS = {
    *("input_dim", "input_shape", "batch_input_shape", "batch_size", "weights"),
    *("activity_regularizer", "autocast", "implementation"),
}


class Layer(Module):
    """A computation with weights; subclass it and define `build` and `call`.

    Args:
      trainable: whether the weights are trained.
      name: the layer's name; default the class name in snake case with a number.
      dtype: a dtype, a name or a `Policy`; default the global policy.
      dynamic: accepted for TensorFlow's sake.
      **kwargs: `input_shape`, `batch_input_shape`, `input_dim`, `batch_size`, `weights`,
        `activity_regularizer`, `autocast`.

    Raises:
      TypeError: for another keyword.

    Example:
      >>> import meshflow as tf
      >>> class Scale(tf.keras.layers.Layer):
      ...     def build(self, input_shape):
      ...         self.factor = self.add_weight("factor", shape=(), initializer="ones")
      ...     def call(self, inputs):
      ...         return inputs * self.factor
      >>> Scale()(tf.constant([2.0])).numpy()
      array([2.], dtype=float32)
    """

    def __init__(
        self,
        trainable: bool = True,
        name: str | None = None,
        dtype: Any = None,
        dynamic: bool = False,
        **kwargs: Any,
    ) -> None:
        layouts = {key: kwargs.pop(key) for key in list(kwargs) if key.endswith("_layout")}
        self._weight_layouts = {k: v for k, v in layouts.items() if v is not None}
        self._layout_map = current_map()
        unknown = set(kwargs) - _KNOWN_KWARGS
        if unknown:
            raise TypeError(
                f"Keyword argument not understood by {type(self).__name__}: {sorted(unknown)}. Allowed are "
                f"{sorted(_KNOWN_KWARGS)}."
            )
        self._name = name if name is not None else unique_layer_name(type(self))
        self._user_named = name is not None
        self._trainable = bool(trainable)
        self._dynamic = dynamic
        self._dtype_policy = policies.get(dtype)
        self._autocast = kwargs.get("autocast", True)
        self._supports_masking = False
        self._own_weights: list[Variable] = []
        self._regularized: list[tuple[Variable, Any]] = []
        self._losses: list[Any] = []
        self._own_metrics: list[Any] = []
        self._inbound_nodes: list[Node] = []
        self._initial_weights = kwargs.get("weights")
        self._activity_regularizer = kwargs.get("activity_regularizer")
        self._input_spec: Any = None
        self._build_input_shape: Any = None
        self.built = False
        shape = _declared_shape(kwargs)
        if shape is not None:
            self._batch_input_shape = shape

    # ---- names and dtypes ------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The layer's name."""
        return self._name

    @property
    def dtype(self) -> str | None:
        """Dtype name of the weights."""
        return self._dtype_policy.variable_dtype

    @property
    def variable_dtype(self) -> str | None:
        """Dtype name of the weights."""
        return self._dtype_policy.variable_dtype

    @property
    def compute_dtype(self) -> str | None:
        """Dtype name of the computation, to which floating inputs are cast."""
        return self._dtype_policy.compute_dtype

    @property
    def dtype_policy(self) -> policies.Policy:
        """The dtype policy."""
        return self._dtype_policy

    @property
    def dynamic(self) -> bool:
        """The `dynamic` argument."""
        return self._dynamic

    @property
    def stateful(self) -> bool:
        """Whether the layer keeps state between batches."""
        return getattr(self, "_stateful", False)

    @stateful.setter
    def stateful(self, value: bool) -> None:
        self._stateful = value

    @property
    def supports_masking(self) -> bool:
        """Whether masks pass through the layer."""
        return self._supports_masking

    @supports_masking.setter
    def supports_masking(self, value: bool) -> None:
        self._supports_masking = bool(value)

    @property
    def input_spec(self) -> Any:
        """`InputSpec`s that inputs must meet."""
        return self._input_spec

    @input_spec.setter
    def input_spec(self, value: Any) -> None:
        for spec in nest.flatten(value):
            if spec is not None and not isinstance(spec, InputSpec):
                raise TypeError(f"Layer input_spec must be an instance of InputSpec. Got: {spec!r}")
        self._input_spec = value

    @property
    def activity_regularizer(self) -> Any:
        """Regularizer of the output, or None."""
        return self._activity_regularizer

    @activity_regularizer.setter
    def activity_regularizer(self, regularizer: Any) -> None:
        self._activity_regularizer = regularizer

    # ---- weights ---------------------------------------------------------------------------

    def build(self, input_shape: Any) -> None:
        """Creates the weights; called before the first call with the shape of the inputs.

        Args:
          input_shape: a `TensorShape`, or a structure of them for several inputs.
        """
        self._build_input_shape = input_shape
        self.built = True

    def add_weight(
        self,
        name: str | None = None,
        shape: Any = None,
        dtype: Any = None,
        initializer: Any = None,
        regularizer: Any = None,
        trainable: bool | None = None,
        constraint: Any = None,
        use_resource: bool | None = None,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation = VariableAggregation.NONE,
        **kwargs: Any,
    ) -> Variable:
        """Adds a weight to the layer.

        Args:
          name: name of the weight.
          shape: its shape; default a scalar.
          dtype: its dtype; default the policy's variable dtype.
          initializer: an initializer or its name; default Glorot uniform for floats, zeros otherwise.
          regularizer: a function of the weight whose result is added to the losses.
          trainable: whether it is trained; default True unless synchronization is ON_READ.
          constraint: a function applied to the weight after each update.
          use_resource: ignored.
          synchronization: see `tf.VariableSynchronization`.
          aggregation: see `tf.VariableAggregation`.
          **kwargs: `experimental_autocast=False` keeps the weight out of mixed-precision casting.

        Returns:
          The variable.

        Raises:
          ValueError: when there is no default initializer for the dtype, or an ON_READ weight is to
            be trainable.
        """
        from meshflow.keras import constraints, initializers, regularizers

        if isinstance(name, (tuple, list, TensorShape)):
            # Keras 3 puts the shape first.
            name, shape = None, name
        kind = dtypes.as_dtype(dtype or self.variable_dtype or backend.floatx())
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
            if not (kind.is_floating or kind.is_integer or kind.is_bool):
                raise ValueError(
                    f"An initializer for variable {name} of type {kind.name} is required for layer {self.name}. "
                    f"Received: {initializer}."
                )
            initializer = "glorot_uniform" if kind.is_floating else "zeros"
        initialize = initializers.get(initializer)
        sizes = _weight_shape(self.name, name, shape)
        layout = kwargs.pop("layout", None) or layout_for(self, name, len(sizes))
        autocast = kwargs.pop("experimental_autocast", True)
        kwargs.pop("getter", None), kwargs.pop("collections", None), kwargs.pop("partitioner", None)
        if kwargs:
            raise TypeError(
                f"Unknown keyword argument to add_weight of layer {self.name}: {sorted(kwargs)}"
            )

        def initial_value() -> Any:
            return _call_initializer(initialize, sizes, kind)

        with init_scope():
            variable = Variable(
                initial_value,
                trainable=trainable,
                name=_weight_name(self, name),
                constraint=constraints.get(constraint),
                synchronization=synchronization,
                aggregation=aggregation,
                dtype=kind,
            )
        if layout is not None:
            variable._layout = layout
        variable._autocast = autocast and kind.is_floating
        self._own_weights.append(variable)
        regularize = regularizers.get(regularizer)
        if regularize is not None:
            self._regularized.append((variable, regularize))
        return variable

    add_variable = add_weight

    @property
    def trainable(self) -> bool:
        """Whether the layer's weights are trained; setting it also sets all sublayers."""
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        for layer in self._flatten_layers():
            layer._trainable = bool(value)

    @property
    def _tracked(self) -> Tracker:
        return Tracker(self)

    def _own_variables(self, trainable: bool) -> list[Variable]:
        return [v for v in self._tracked.variables if v.trainable == trainable]

    @property
    def trainable_weights(self) -> list[Variable]:
        """Weights that training updates."""
        if not self._trainable:
            return []
        own = self._own_variables(True)
        return unique(
            [*own, *(v for layer in self._tracked.layers for v in layer.trainable_weights)]
        )

    @property
    def non_trainable_weights(self) -> list[Variable]:
        """Weights that training leaves alone, such as moving averages and frozen weights."""
        own, children = self._own_variables(False), self._tracked.layers
        if self._trainable:
            return unique([*own, *(v for layer in children for v in layer.non_trainable_weights)])
        frozen = [*self._own_variables(True), *own]
        return unique([*frozen, *(v for layer in children for v in layer.weights)])

    @property
    def weights(self) -> list[Variable]:
        """All weights: trainable ones, then the others."""
        return unique([*self.trainable_weights, *self.non_trainable_weights])

    @property
    def variables(self) -> list[Variable]:
        """All weights."""
        return self.weights

    @property
    def trainable_variables(self) -> list[Variable]:
        """Weights that training updates."""
        return self.trainable_weights

    @property
    def non_trainable_variables(self) -> list[Variable]:
        """Weights that training leaves alone."""
        return self.non_trainable_weights

    def get_weights(self) -> list[np.ndarray]:
        """Values of all weights as NumPy arrays, in the order of `weights`."""
        return [np.asarray(w.numpy()) for w in self.weights]

    def set_weights(self, weights: list[Any]) -> None:
        """Sets all weights.

        Args:
          weights: arrays in the order and with the shapes of `get_weights()`.

        Raises:
          ValueError: when number or shapes differ, naming the layer and the weight.
        """
        own = self.weights
        if len(own) != len(weights):
            raise ValueError(
                f'You called `set_weights(weights)` on layer "{self.name}" with a weight list of length '
                f"{len(weights)}, but the layer was expecting {len(own)} weights."
            )
        for variable, value in zip(own, weights, strict=True):
            if tuple(np.shape(value)) != tuple(variable.shape):
                raise ValueError(
                    f'Layer "{self.name}" weight {variable.name} has shape {tuple(variable.shape)}, which is not '
                    f"compatible with the provided weight shape {tuple(np.shape(value))}."
                )
        for variable, value in zip(own, weights, strict=True):
            variable.assign(np.asarray(value).astype(variable.dtype.dtype))

    def count_params(self) -> int:
        """Number of scalars in the weights.

        Raises:
          ValueError: when the layer has not been built.
        """
        if not self.built:
            raise ValueError(
                f"You tried to call `count_params` on layer {self.name}, but the layer isn't built. You can build "
                f"it manually via: `{self.name}.build(batch_input_shape)`."
            )
        return sum(int(np.prod(tuple(w.shape), dtype=np.int64)) for w in self.weights)

    # ---- sublayers, losses, metrics --------------------------------------------------------

    def _flatten_layers(self, recursive: bool = True, include_self: bool = True) -> Iterator[Layer]:
        if include_self:
            yield self
        for layer in self._tracked.layers:
            yield from layer._flatten_layers() if recursive else (layer,)

    @property
    def losses(self) -> list[Any]:
        """Losses added by this layer and its sublayers: `add_loss` and regularizers."""
        collected: list[Any] = []
        for layer in self._unique_layers():
            collected += [loss for loss in layer._losses if not callable(loss)]
            collected += [loss() for loss in layer._losses if callable(loss)]
            collected += [regularize(variable) for variable, regularize in layer._regularized]
        return collected

    def _unique_layers(self) -> list[Layer]:
        return unique(list(self._flatten_layers()))

    def add_loss(self, losses: Any, **kwargs: Any) -> None:
        """Adds losses to what training minimizes.

        Args:
          losses: a scalar tensor or a list of them (inside `call`, depending on the inputs), or
            functions without arguments.
          **kwargs: `inputs` is accepted and ignored.

        Raises:
          TypeError: for another keyword.
        """
        kwargs.pop("inputs", None)
        if kwargs:
            raise TypeError(f"Unknown keyword arguments: {sorted(kwargs)}")
        for loss in nest.flatten(losses):
            if loss is None:
                continue
            if isinstance(loss, KerasTensor):
                self._add_symbolic_loss(loss)
            elif callable(loss):
                self._losses.append(loss)
            else:
                self._losses.append(convert_to_tensor(loss, dtype_hint=backend.floatx()))

    def _add_symbolic_loss(self, loss: KerasTensor) -> None:
        raise ValueError(
            "Expected a symbolic Tensor only in `Model.add_loss` of a Functional model; layer "
            f"{self.name} received {loss!r}. Call add_loss inside the layer's `call`."
        )

    def _clear_losses(self) -> None:
        """Drops losses that depend on inputs, before the outermost call makes new ones."""
        for layer in self._flatten_layers():
            if layer._losses:
                layer._losses = [loss for loss in layer._losses if callable(loss)]

    @property
    def metrics(self) -> list[Any]:
        """Metrics of this layer and its sublayers."""
        collected: list[Any] = []
        for layer in self._unique_layers():
            collected += layer._own_metrics + layer._tracked.metrics
        return unique(collected)

    def add_metric(self, value: Any, name: str | None = None, **kwargs: Any) -> None:
        """Adds a tensor computed in `call` to the metrics that training reports.

        Args:
          value: a tensor; its mean over batches is reported.
          name: the metric's name.
          **kwargs: `aggregation='mean'` is accepted.

        Raises:
          ValueError: when no name is given and the value has none.
        """
        from meshflow.keras.metrics import Mean

        kwargs.pop("aggregation", None)
        if kwargs:
            raise TypeError(f"Unknown keyword arguments: {sorted(kwargs)}")
        if name is None:
            raise ValueError(
                "Please provide a name for your metric like `self.add_metric(tf.reduce_sum(inputs), name='mean_activation')`"
            )
        if isinstance(value, KerasTensor):
            self._add_symbolic_metric(value, name)
            return
        metric = next((m for m in self._own_metrics if m.name == name), None)
        if metric is None:
            metric = Mean(name=name)
            self._own_metrics.append(metric)
        metric.update_state(value)

    def _add_symbolic_metric(self, value: KerasTensor, name: str) -> None:
        raise ValueError(
            f"Layer {self.name}: add_metric({name!r}) on a symbolic tensor is only for models."
        )

    # ---- calling ---------------------------------------------------------------------------

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The computation; override it.

        Args:
          inputs: a tensor or nested structure of tensors.
          *args: further positional arguments.
          **kwargs: further keyword arguments; `training` and `mask` are filled in by `__call__`.

        Returns:
          A tensor or nested structure of tensors.
        """
        return inputs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Builds the layer if needed and runs `call`; on symbolic tensors, adds to the graph."""
        self._check_initialized()
        signature = _call_signature(type(self))
        inputs, args, kwargs = signature.split_inputs(self, args, kwargs)
        if _has_keras_tensor(inputs, args, kwargs):
            return self._symbolic_call(inputs, args, kwargs)
        inputs = nest.map_structure(_to_tensor, inputs)
        outermost = not call_state.layers
        if outermost:
            self._clear_losses()
        if (
            signature.takes_mask
            and kwargs.get("mask") is None
            and not signature.passed("mask", args, kwargs)
        ):
            mask = masks_of(inputs)
            if mask is not None:
                kwargs["mask"] = mask
        training = self._resolve_training(signature, args, kwargs)
        assert_input_compatibility(self._input_spec, inputs, self._name)
        with self._calling(training):
            self._maybe_build(inputs)
            if self._autocast:
                inputs = self._cast_inputs(inputs)
            with self._reading_weights():
                # In a tf.function, Python control flow of the user's layers may depend on tensors.
                outputs = convert_if_enabled(self.call)(inputs, *args, **kwargs)
            if self._activity_regularizer is not None:
                self._regularize_activity(outputs)
        self._set_masks(inputs, outputs, kwargs.get("mask"))
        return outputs

    def _check_initialized(self) -> None:
        if "_own_weights" not in self.__dict__:
            raise RuntimeError(
                f"You must call `super().__init__()` in the layer constructor of {type(self).__name__}."
            )

    def _resolve_training(self, signature: CallSignature, args: Any, kwargs: dict[str, Any]) -> Any:
        """The value of `training`: given, or the caller's, or the learning phase, or the default."""
        if not signature.takes_training:
            # A layer need not take `training` for its sublayers to be told of it.
            given = None if signature.open_ended else kwargs.pop("training", None)
            if given is not None:
                return given
            return call_state.training[-1] if call_state.training else None
        if signature.passed("training", args, kwargs):
            value = signature.value_of("training", args, kwargs)
            if value is not None:
                return value
        value = call_state.training[-1] if call_state.training else None
        if value is None:
            value = backend.chosen_learning_phase()
        if value is None:
            value = signature.default_training
        if value is not None and not signature.is_positional("training", args):
            kwargs["training"] = value
        return value

    @contextlib.contextmanager
    def _calling(self, training: Any) -> Iterator[None]:
        call_state.layers.append(self)
        call_state.training.append(training)
        context.names.append(self._name)
        try:
            yield
        finally:
            context.names.pop()
            call_state.training.pop()
            call_state.layers.pop()

    @contextlib.contextmanager
    def _reading_weights(self) -> Iterator[None]:
        """Weights read inside come in the compute dtype."""
        saved = context.autocast
        compute = self._dtype_policy.compute_dtype
        context.autocast = None if compute is None else dtypes.as_dtype(compute)
        try:
            yield
        finally:
            context.autocast = saved

    def _maybe_build(self, inputs: Any) -> None:
        if self.built:
            return
        shape = shape_of(inputs)
        self._build_input_shape = shape
        saved, context.autocast = context.autocast, None
        try:
            # Weights get their initial values now, even when a training step is being traced.
            with init_scope():
                self.build(shape)
        finally:
            context.autocast = saved
        self.built = True
        if self._initial_weights is not None:
            with init_scope():
                self.set_weights(self._initial_weights)
            self._initial_weights = None

    def _cast_inputs(self, inputs: Any) -> Any:
        compute = self._dtype_policy.compute_dtype
        if compute is None:
            return inputs
        wanted = dtypes.as_dtype(compute)
        if not wanted.is_floating:
            return inputs
        return nest.map_structure(lambda t: cast_floating(t, wanted), inputs)

    def _regularize_activity(self, outputs: Any) -> None:
        from meshflow.keras import regularizers

        regularize = regularizers.get(self._activity_regularizer)
        for output in nest.flatten(outputs):
            loss = regularize(output)
            # The mean over the batch, so that the penalty does not grow with the batch size.
            self.add_loss(loss / float(max(output.shape[0] or 1, 1)))

    # ---- masks -----------------------------------------------------------------------------

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """The mask of the output; by default the input's, for layers that support masking.

        Args:
          inputs: the inputs.
          mask: mask or masks of the inputs.

        Returns:
          A mask, masks, or None.

        Raises:
          TypeError: when a mask is given to a layer that does not support masking.
        """
        if not self._supports_masking:
            if any(m is not None for m in nest.flatten(mask)):
                raise TypeError(
                    f"Layer {self.name} does not support masking, but was passed an input_mask: {mask}"
                )
            return None
        return mask

    def _set_masks(self, inputs: Any, outputs: Any, explicit: Any) -> None:
        overrides = _overrides(self, "compute_mask", Layer)
        if not (self._supports_masking or overrides):
            return
        flat = [o for o in nest.flatten(outputs) if isinstance(o, Tensor)]
        if not flat or any(getattr(o, "_keras_mask", None) is not None for o in flat):
            return
        given = explicit if explicit is not None else masks_of(inputs)
        if given is None and not overrides:
            return
        masks = nest.flatten(self.compute_mask(inputs, given))
        for output, mask in zip(
            flat, masks if len(masks) == len(flat) else [None] * len(flat), strict=True
        ):
            output._keras_mask = mask

    # ---- symbolic calls --------------------------------------------------------------------

    def _symbolic_call(self, inputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert_input_compatibility(self._input_spec, inputs, self._name)
        self._build_symbolic(inputs)
        outputs = self._infer_outputs(inputs, args, kwargs)
        if self._input_spec is not None:
            assert_input_compatibility(self._input_spec, inputs, self._name)
        Node(self, (inputs, *args), kwargs, outputs)
        return outputs

    def _build_symbolic(self, inputs: Any) -> None:
        with self._calling(None):
            self._maybe_build(inputs)

    def _infer_outputs(self, inputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        quick = self._quick_output_spec(inputs, args, kwargs)
        if quick is not None:
            return quick

        def run(inputs: Any, *args: Any, **kwargs: Any) -> Any:
            saved = [
                (layer, list(layer._losses), list(layer._own_metrics))
                for layer in self._flatten_layers()
            ]
            layers, trainings = list(call_state.layers), list(call_state.training)
            call_state.layers.clear()
            call_state.training.clear()
            try:
                with switched(True):
                    return self(inputs, *args, **kwargs)
            finally:
                call_state.layers[:], call_state.training[:] = layers, trainings
                for layer, losses, metrics in saved:
                    layer._losses, layer._own_metrics = losses, metrics

        return shape_inference.infer(run, (inputs, *args), kwargs)

    def _quick_output_spec(self, inputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The output from `compute_output_shape`, for built-in layers on one floating input.

        Saves tracing `call`, which is most of the time it takes to build a model.
        """
        if args or not isinstance(inputs, KerasTensor) or not inputs.dtype.is_floating:
            return None
        if not type(self).__module__.startswith("meshflow.keras.layers.") or set(kwargs) - {
            "training"
        }:
            return None
        if not _overrides(self, "compute_output_shape", Layer) or getattr(
            self, "_traced_shape", False
        ):
            return None
        from meshflow.core.specs import TensorSpec

        shape = self.compute_output_shape(inputs.shape)
        compute = self.compute_dtype or inputs.dtype.name
        if isinstance(shape, TensorShape) or (
            isinstance(shape, tuple) and all(d is None or isinstance(d, int) for d in shape)
        ):
            return KerasTensor(TensorSpec(shape, compute))
        return None

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Shape of the output for an input shape, without running the layer.

        Args:
          input_shape: a shape, or a structure of shapes.

        Returns:
          A `TensorShape`, or a structure of them.
        """
        shape = shape_inference.map_shapes(lambda s: s, input_shape)
        if not self.built:
            with self._calling(None):
                self._build_input_shape = shape
                self.build(shape)
                self.built = True
        return shape_inference.output_shape(
            self.__call__, shape, self.compute_dtype or backend.floatx()
        )

    def compute_output_signature(self, input_signature: Any) -> Any:
        """`TensorSpec`s of the output for `TensorSpec`s of the input."""
        inputs = nest.map_structure(KerasTensor, input_signature)
        self._build_symbolic(inputs)
        return nest.map_structure(lambda t: t.type_spec, self._infer_outputs(inputs, (), {}))

    # ---- the layer in a graph --------------------------------------------------------------

    @property
    def inbound_nodes(self) -> list[Node]:
        """Calls of this layer on symbolic tensors."""
        return self._inbound_nodes

    def _single_node(self, what: str) -> Node:
        if not self._inbound_nodes:
            raise AttributeError(
                f"Layer {self.name} has never been called and thus has no defined {what}."
            )
        if len(self._inbound_nodes) > 1:
            raise AttributeError(
                f"Layer {self.name} has multiple inbound nodes, hence the notion of {what} is ill-defined. Use "
                f"`get_{what.replace(' ', '_')}_at(node_index)` instead."
            )
        return self._inbound_nodes[0]

    @property
    def input(self) -> Any:
        """The symbolic input of the layer's only call."""
        node = self._single_node("input")
        return node.outputs if node.is_input else node.input_tensors

    @property
    def output(self) -> Any:
        """The symbolic output of the layer's only call."""
        return self._single_node("output").outputs

    @property
    def input_shape(self) -> Any:
        """Shape of the input as a tuple (or list of tuples)."""
        if self._inbound_nodes:
            return as_tuples(shape_of(self.input))
        if self._build_input_shape is not None:
            return as_tuples(self._build_input_shape)
        raise AttributeError(
            f"The layer {self.name} has never been called and thus has no defined input shape."
        )

    @property
    def output_shape(self) -> Any:
        """Shape of the output as a tuple (or list of tuples)."""
        if not self._inbound_nodes:
            raise AttributeError(
                f"The layer {self.name} has never been called and thus has no defined output shape."
            )
        shapes = {str(shape_of(node.outputs)) for node in self._inbound_nodes}
        if len(shapes) > 1:
            raise AttributeError(
                f"The layer {self.name} has multiple inbound nodes with different output shapes. Hence the notion "
                "of output shape is ill-defined for the layer. Use `get_output_shape_at(node_index)` instead."
            )
        return as_tuples(shape_of(self._inbound_nodes[0].outputs))

    def get_input_at(self, node_index: int) -> Any:
        """The symbolic input of one call."""
        return self._inbound_nodes[node_index].input_tensors

    def get_output_at(self, node_index: int) -> Any:
        """The symbolic output of one call."""
        return self._inbound_nodes[node_index].outputs

    def get_input_shape_at(self, node_index: int) -> Any:
        """Input shape of one call."""
        return as_tuples(shape_of(self.get_input_at(node_index)))

    def get_output_shape_at(self, node_index: int) -> Any:
        """Output shape of one call."""
        return as_tuples(shape_of(self.get_output_at(node_index)))

    # ---- configuration ---------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs to make a layer like this one, without weights.

        Raises:
          NotImplementedError: for a subclass whose constructor has arguments that this method does
            not return.
        """
        config: dict[str, Any] = {"name": self.name, "trainable": self._trainable}
        if hasattr(self, "_batch_input_shape"):
            config["batch_input_shape"] = self._batch_input_shape
        config["dtype"] = policies.serialize(self._dtype_policy)
        if type(self).get_config is Layer.get_config:
            extra = [
                p
                for p in inspect.signature(type(self).__init__).parameters
                if p not in ("self", "args", "kwargs")
            ]
            missing = [p for p in extra if p not in (*config, "dynamic")]
            if missing:
                raise NotImplementedError(
                    f"Layer {type(self).__name__} has arguments {missing} in `__init__` and therefore must "
                    "override `get_config`."
                )
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Makes a layer from `get_config()`."""
        return cls(**config)

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} object '{getattr(self, '_name', '?')}'>"


# ---- helpers -------------------------------------------------------------------------------


class CallSignature:
    """Which of the special arguments a layer's `call` takes, and where."""

    def __init__(self, cls: type) -> None:
        parameters = list(inspect.signature(cls.call).parameters.values())[1:]  # type: ignore[attr-defined]
        self.names = [
            p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        keywords = {p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD}
        self.first = self.names[0] if self.names else None
        self.takes_training = "training" in keywords
        self.open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.takes_mask = "mask" in keywords
        default = keywords.get("training")
        self.default_training = None if default is inspect.Parameter.empty else default

    def split_inputs(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The first argument, and the others."""
        kwargs = dict(kwargs)
        if args:
            return args[0], args[1:], kwargs
        if self.first in kwargs:
            return kwargs.pop(self.first), (), kwargs
        if self.first is None or "inputs" not in kwargs:
            raise ValueError(
                f"The first argument to `Layer.call` must always be passed (layer {layer.name!r}, argument "
                f"{self.first!r})."
            )
        return kwargs.pop("inputs"), (), kwargs

    def is_positional(self, name: str, args: tuple[Any, ...]) -> bool:
        """Whether the argument was given by position (the first argument is not in `args`)."""
        return name in self.names and self.names.index(name) - 1 < len(args)

    def passed(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the argument was given."""
        return name in kwargs or self.is_positional(name, args)

    def value_of(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The value given."""
        return kwargs[name] if name in kwargs else args[self.names.index(name) - 1]


_signatures: dict[type, CallSignature] = {}


def _call_signature(cls: type) -> CallSignature:
    found = _signatures.get(cls)
    if found is None:
        found = _signatures[cls] = CallSignature(cls)
    return found


def _overrides(layer: Layer, method: str, base: type) -> bool:
    return getattr(type(layer), method) is not getattr(base, method)


def unique_layer_name(cls: type) -> str:
    """The class name in snake case, numbered when used before."""
    return backend.unique_name(snake_case(cls.__name__))


def snake_case(name: str) -> str:
    """`BatchNormalization` -> `batch_normalization`, `Conv2D` -> `conv2d`."""
    spaced = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    result = re.sub(r"([a-z])([A-Z])", r"\1_\2", spaced).lower()
    return result if not result.startswith("_") else "private" + result


def unique(items: list[Any]) -> list[Any]:
    """Items without later repetitions of the same object."""
    return list({id(item): item for item in items}.values())


def as_tuples(shape: Any) -> Any:
    """Shapes as plain tuples."""
    if isinstance(shape, TensorShape):
        return tuple(shape.as_list()) if shape.rank is not None else None
    if isinstance(shape, dict):
        return {key: as_tuples(value) for key, value in shape.items()}
    if isinstance(shape, (list, tuple)):
        return [as_tuples(value) for value in shape]
    return shape


def cast_floating(value: Any, dtype: dtypes.DType) -> Any:
    """A floating tensor cast to `dtype`; anything else unchanged."""
    if not isinstance(value, Tensor) or not value.dtype.is_floating or value.dtype is dtype:
        return value
    from meshflow.ops.math import cast

    result = cast(value, dtype)
    mask = getattr(value, "_keras_mask", None)
    if mask is not None:
        result._keras_mask = mask
    return result


def masks_of(inputs: Any) -> Any:
    """Masks of a structure of tensors, or None when none has a mask."""
    if isinstance(inputs, Tensor):
        return getattr(inputs, "_keras_mask", None)
    masks = nest.map_structure(lambda t: getattr(t, "_keras_mask", None), inputs)
    return masks if any(m is not None for m in nest.flatten(masks)) else None


def _to_tensor(value: Any) -> Any:
    if isinstance(value, (np.ndarray, float, int)) and not isinstance(value, bool):
        if isinstance(value, np.ndarray) and value.dtype == np.float64:
            return convert_to_tensor(value, dtype=backend.floatx())
        return convert_to_tensor(value)
    if isinstance(value, Variable):
        return value._as_tensor()
    return value


def _has_keras_tensor(inputs: Any, args: Any, kwargs: Any) -> bool:
    if type(inputs) is Tensor and not args and not kwargs:
        return False
    return any(isinstance(v, KerasTensor) for v in nest.flatten((inputs, args, kwargs)))


def _declared_shape(kwargs: dict[str, Any]) -> tuple[int | None, ...] | None:
    """The batch input shape from `input_shape` and its relatives."""
    if kwargs.get("input_dim") is not None and kwargs.get("input_shape") is None:
        kwargs = {**kwargs, "input_shape": (kwargs["input_dim"],)}
    if kwargs.get("batch_input_shape") is not None:
        return tuple(kwargs["batch_input_shape"])
    if kwargs.get("input_shape") is not None:
        shape = kwargs["input_shape"]
        return (kwargs.get("batch_size"), *((shape,) if isinstance(shape, int) else tuple(shape)))
    return None


def _weight_shape(layer: str, name: str | None, shape: Any) -> tuple[int, ...]:
    sizes = TensorShape(() if shape is None else shape).as_list()
    if None in sizes:
        raise ValueError(
            f"Layer {layer}: weight {name} has the undefined shape {tuple(sizes)}. The last dimension of the inputs "
            "must be known when a layer is built; give the model an `input_shape`."
        )
    return tuple(sizes)  # type: ignore[arg-type]


def _weight_name(layer: Layer, name: str | None) -> str:
    # While a layer is being called or built, its name is an open scope already.
    if context.names and context.names[-1] == layer._name:
        return name or "Variable"
    return f"{layer._name}/{name or 'Variable'}" if call_state.layers else (name or "Variable")


def _call_initializer(
    initialize: Callable[..., Any], shape: tuple[int, ...], dtype: dtypes.DType
) -> Any:
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
