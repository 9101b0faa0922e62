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
from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from meshflow.core.autograph.conversion import convert_if_enabled
from meshflow.core.runtime.annotations import scope
from meshflow.core.runtime.context import as_stored, context
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values import dtypes, nest
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.module import Module
from meshflow.core.variables.variable import Variable
from meshflow.keras import regularizers, settings
from meshflow.keras.engine.layer import keywords, made_with
from meshflow.keras.engine.layer.calls import LayerGraph
from meshflow.keras.engine.layer.dimensions import renames
from meshflow.keras.engine.layer.helpers import (
    as_tensor_like,
    as_tuples,
    cast_floating,
    declared_shape,
    has_keras_tensor,
    masks_of,
    overrides,
    shapes_by_name,
    unique_layer_name,
)
from meshflow.keras.engine.layer.layout_map import current_map
from meshflow.keras.engine.layer.losses_and_metrics import LayerLosses, penalty
from meshflow.keras.engine.layer.recomputing import run_call
from meshflow.keras.engine.layer.shape_inference import map_shapes
from meshflow.keras.engine.layer.stateless_calls import StatelessCalls
from meshflow.keras.engine.layer.weights import LayerWeights
from meshflow.keras.engine.symbolic.call_signature import CallSignature, call_signature, call_state
from meshflow.keras.engine.symbolic.input_spec import InputSpec, assert_input_compatibility
from meshflow.keras.engine.symbolic.keras_tensor import Node, shape_of
from meshflow.keras.mixed_precision import policy as policies
from meshflow.ops import array, math


# The variables of a layer are lists, those of a `Module` tuples, as in TensorFlow.
class Layer(LayerWeights, LayerLosses, LayerGraph, StatelessCalls, Module):  # type: ignore[misc]
    """A computation with weights; subclass it and define `build` and `call`.

    Args:
      trainable: whether the weights are trained.
      name: the layer's name; default the class name in snake case with a number.
      dtype: a dtype, a name or a `Policy`; default the global policy.
      dynamic: whether the layer must run as plain Python, which makes its model run eagerly.
      **kwargs: `input_shape`, `batch_input_shape`, `input_dim`, `batch_size`, `weights`,
        `activity_regularizer`, `autocast`; `<weight>_layout` for each of the weights.

    Input shape:
      What `call` takes.

    Output shape:
      What `call` gives.

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

    # The weights that `<weight>_layout` arguments may name; None where a user's `build` decides.
    _weights_with_layouts: tuple[str, ...] | None = None
    # Whether the layer's name is part of the names of weights that are made while it is called.
    _opens_scope = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("build")
        if inspect.isfunction(own):
            cls.build = made_with.noting_shape(own)  # type: ignore[method-assign]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        made_with.remember(made, args, kwargs)
        return made

    def __init__(
        self,
        trainable: bool = True,
        name: str | None = None,
        dtype: Any = None,
        dynamic: bool = False,
        **kwargs: Any,
    ) -> None:
        layouts = keywords.take_layouts(type(self), kwargs)
        if layouts:
            self.__dict__.update(layouts, _layouts=layouts, _layouts_used=set())
        self._layout_map = current_map()
        if kwargs.get("dims") is not None:
            self._dims = renames(kwargs["dims"])
        keywords.check_known(type(self), kwargs)
        _check_arguments(trainable, dynamic, name)
        self._name = name if name is not None else unique_layer_name(type(self))
        self._user_named = name is not None
        if name is not None:
            settings.see_name(name)
        self._trainable = bool(trainable)
        self._dynamic = dynamic
        self._dtype_policy = policies.get(dtype)
        policies.check_strategy(self._dtype_policy)
        self._autocast = kwargs.get("autocast", True)
        self._supports_masking = False
        self._own_weights: list[Variable] = []
        self._regularized: list[tuple[Variable, Any]] = []
        self._losses: list[Any] = []
        self._symbolic_losses: list[Any] = []
        self._own_metrics: list[Any] = []
        self._inbound_nodes: list[Node] = []
        self._initial_weights = kwargs.get("weights")
        self.activity_regularizer = kwargs.get("activity_regularizer")
        self._input_spec: Any = None
        self._build_input_shape: Any = None
        self.built = False
        shape = declared_shape(kwargs)
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

    # The name before TensorFlow 2.4, which layers of that time read.
    _compute_dtype = compute_dtype

    @property
    def dtype_policy(self) -> policies.Policy:
        """The dtype policy."""
        return self._dtype_policy

    @property
    def dynamic(self) -> bool:
        """Whether the layer, or a layer inside it, was made with `dynamic=True`."""
        return any(layer._dynamic for layer in self._flatten_layers())

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
        return self._expected_inputs()

    @input_spec.setter
    def input_spec(self, value: Any) -> None:
        for spec in nest.flatten(value):
            if spec is not None and not isinstance(spec, InputSpec):
                raise TypeError(f"Layer input_spec must be an instance of InputSpec. Got: {spec!r}")
        self._input_spec = value

    def _expected_inputs(self) -> Any:
        return self._input_spec

    @property
    def activity_regularizer(self) -> Any:
        """Regularizer of the output, or None."""
        return self._activity_regularizer

    @activity_regularizer.setter
    def activity_regularizer(self, regularizer: Any) -> None:
        self._activity_regularizer = None if regularizer is None else regularizers.get(regularizer)

    def build(self, input_shape: Any) -> None:
        """Creates the weights; called before the first call with the shape of the inputs.

        Args:
          input_shape: a `TensorShape`, or a structure of them for several inputs.
        """
        self._build_input_shape = input_shape
        self.built = True

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
        signature = call_signature(type(self))
        inputs, args, kwargs = signature.split_inputs(self, args, kwargs)
        if has_keras_tensor(inputs, args, kwargs):
            return self._symbolic_call(inputs, args, kwargs)
        inputs = nest.map_structure(as_tensor_like, inputs)
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
        with self._calling(training), self._labelled():
            self._maybe_build(inputs, args, kwargs)
            if self._autocast:
                inputs = self._cast_inputs(inputs)
            with self._reading_weights():
                # In a tf.function, Python control flow of the user's layers may depend on tensors.
                outputs = run_call(self, convert_if_enabled(self.call), inputs, args, kwargs)
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
            value = settings.chosen_learning_phase()
        if value is None:
            value = signature.default_training
        wanted = value is not None or signature.requires_training
        if wanted and not signature.is_positional("training", args):
            kwargs["training"] = value
        return value

    @contextlib.contextmanager
    def _calling(self, training: Any, named: bool = True) -> Iterator[None]:
        """The layer as the one that runs; `named`: with its name in those of weights that are made meanwhile."""
        call_state.layers.append(self)
        call_state.training.append(training)
        names = list(context.names)
        if named and self._opens_scope:
            context.names.append(self._name)
        try:
            with scope(self._name):
                yield
        finally:
            context.names[:] = names
            call_state.training.pop()
            call_state.layers.pop()

    def _labelled(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if context.labels is None else context.labels(self)

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

    def _maybe_build(self, inputs: Any, args: Any = (), kwargs: Any = None) -> None:
        if self.built:
            return
        if self._dtype_policy.compute_dtype is None:
            self._dtype_policy = policies.get(nest.flatten(inputs)[0].dtype)
        shape = shape_of(inputs)
        self._build_input_shape = shape
        # Weights get their initial values now, even when a training step is being traced.
        with as_stored(), init_scope():
            named = shapes_by_name(self, shape, args, kwargs or {})
            self.build(shape) if named is None else self.build(**named)
        self.built = True
        if "_layouts" in self.__dict__:
            keywords.check_layouts(self)
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
        regularize: Any = self._activity_regularizer
        for output in nest.flatten(outputs):
            loss = penalty(regularize, output)
            # The mean over the batch, so that the penalty does not grow with the batch size.
            self.add_loss(loss / math.maximum(math.cast(array.shape(output)[0], loss.dtype), 1))

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
        own = overrides(self, "compute_mask", Layer)
        if not (self._supports_masking or own):
            return
        flat = [o for o in nest.flatten(outputs) if isinstance(o, Tensor)]
        if not flat or any(getattr(o, "_keras_mask", None) is not None for o in flat):
            return
        given = explicit if explicit is not None else masks_of(inputs)
        if given is None and not own:
            return
        masks = nest.flatten(self.compute_mask(inputs, given))
        for output, mask in zip(
            flat, masks if len(masks) == len(flat) else [None] * len(flat), strict=True
        ):
            output._keras_mask = mask

    # ---- configuration ---------------------------------------------------------------------

    @made_with.default
    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs to make a layer like this one, without weights.

        Of a subclass that does not define it, the arguments that its constructor was given.

        Raises:
          NotImplementedError: for such a subclass that was given other arguments than numbers, texts and structures
            of these.
        """
        config: dict[str, Any] = {"name": self.name, "trainable": self._trainable}
        config["dtype"] = policies.serialize(self._dtype_policy)
        if hasattr(self, "_batch_input_shape"):
            config["batch_input_shape"] = self._batch_input_shape
        if self.dynamic:
            config["dynamic"] = True
        if "_dims" in self.__dict__:
            config["dims"] = dict(self._dims)
        if not made_with.is_default(type(self).get_config):
            return config
        given = made_with.arguments(self)
        if given is None:
            raise NotImplementedError(
                f"Layer {type(self).__name__} was created by passing arguments that are no plain data to `__init__`, and "
                "therefore must override `get_config`: it returns what `__init__` takes."
            )
        return made_with.accepted(self, config, given)

    def get_build_config(self) -> dict[str, Any] | None:
        """The shape of the inputs that the layer was built for, as `build_from_config` takes it; None before."""
        shape = self._build_input_shape
        return None if shape is None else {"input_shape": as_tuples(shape)}

    def build_from_config(self, config: dict[str, Any]) -> None:
        """Builds the layer as another one was.

        Args:
          config: what `get_build_config` gave.

        Example:
          >>> import meshflow as tf
          >>> layer = tf.keras.layers.Dense(2)
          >>> layer.build_from_config({"input_shape": [None, 3]})
          >>> layer.kernel.shape
          TensorShape([3, 2])
        """
        shape = config["input_shape"]
        if shape is not None and not self.built:
            self._build_input_shape = map_shapes(TensorShape, shape)
            self.build(self._build_input_shape)
            self.built = True

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Makes a layer from `get_config()`."""
        return cls(**config)


def _check_arguments(trainable: Any, dynamic: Any, name: Any) -> None:
    """Raises a `TypeError` for arguments that TensorFlow's layers refuse."""
    is_bool = isinstance(trainable, (bool, np.bool_)) or getattr(trainable, "dtype", None) == "bool"
    if not is_bool:
        raise TypeError(
            f"Expected `trainable` argument to be a boolean, but got: {trainable!r}. Layer names go into `name`."
        )
    if not isinstance(dynamic, (bool, np.bool_)):
        raise TypeError(f"Expected `dynamic` argument to be a boolean, but got: {dynamic!r}")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"Expected `name` argument to be a string, but got: {name!r}")
