"""`Layer`: the base class of all Keras objects that have weights or compute tensors.

A layer creates its weights in `build`, which runs before the first call, and computes in `call`.
`__call__` adds the common steps: symbolic inputs, building, input checks, casts to the compute
dtype, the `training` argument, masks, and losses.

Weights and sublayers are found by a walk over the attributes of the layer whenever they are needed,
so lists and dictionaries of layers may change at any time.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, overload

import numpy as np

from meshflow.core.autograph.conversion import convert_if_enabled
from meshflow.core.runtime.annotations import scope
from meshflow.core.runtime.context import context, suspend_autocast
from meshflow.core.runtime.tracebacks import hide_frames_of_errors
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values import dtypes, nest
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.module import Module
from meshflow.core.variables.variable import Variable
from meshflow.environment.signatures import ConstructorSignature
from meshflow.environment.types import Config, PyTree, overridable
from meshflow.keras import regularizers, settings
from meshflow.keras.engine.layer import default_config, keywords
from meshflow.keras.engine.layer.call_errors import LayerCall, describe_error
from meshflow.keras.engine.layer.dimensions import parse_renames
from meshflow.keras.engine.layer.helpers import (
    as_tensor_like,
    as_tuples,
    cast_floating,
    get_declared_shape,
    get_masks,
    has_keras_tensor,
    has_override,
    make_build_arguments,
    make_unique_layer_name,
)
from meshflow.keras.engine.layer.layout_map import get_current_map
from meshflow.keras.engine.layer.losses_and_metrics import LayerLosses, compute_penalty
from meshflow.keras.engine.layer.rematerialization import run_call
from meshflow.keras.engine.layer.shape_inference import map_shapes
from meshflow.keras.engine.layer.stateless_calls import StatelessCalls
from meshflow.keras.engine.layer.subclass_members import SubclassMembers
from meshflow.keras.engine.layer.symbolic_calls import SymbolicCallMethods
from meshflow.keras.engine.layer.weights import LayerWeights
from meshflow.keras.engine.symbolic.call_signature import (
    CallSignature,
    call_state,
    get_call_signature,
)
from meshflow.keras.engine.symbolic.input_spec import InputSpec, assert_input_compatibility
from meshflow.keras.engine.symbolic.keras_tensor import Node, get_shapes
from meshflow.keras.mixed_precision import policy as policies
from meshflow.ops import array, math

if TYPE_CHECKING:
    Result = TypeVar("Result", covariant=True)

    class HasCall(Protocol[Result]):
        """Layer with the result type of its `call`."""

        def call(self, *args: Any, **kwargs: Any) -> Result:
            """Compute the outputs."""

    class UnknownResult:
        """Result type that only a `call` without types matches; most layers return one tensor."""


# As in TensorFlow, the variables of a layer are lists; those of a `Module` are tuples.
class Layer(  # type: ignore[misc]
    LayerWeights, LayerLosses, SubclassMembers, SymbolicCallMethods, StatelessCalls, Module
):
    """Computation with weights; subclasses define `build` and `call`.

    Args:
      trainable: Whether the weights are trained.
      name: Name of the layer; default the class name in snake case with an index.
      dtype: Dtype, dtype name or `Policy`; default the global policy.
      dynamic: Whether the layer must run as plain Python, which makes its model run eagerly.
      **kwargs: `input_shape`, `batch_input_shape`, `input_dim`, `batch_size`, `weights`,
        `activity_regularizer`, `autocast`; `dims` renames the axes of the weights for the rules of
        a `MeshStrategy`; `<weight>_layout` sets the layout of a weight.

    Input shape:
      Any structure of tensors that `call` accepts.

    Output shape:
      The structure of tensors that `call` returns.

    Raises:
      TypeError: If another keyword is passed.

    Example:
      >>> class Scale(tf.keras.layers.Layer):
      ...     def build(self, input_shape):
      ...         self.factor = self.add_weight("factor", shape=(), initializer="ones")
      ...     def call(self, inputs):
      ...         return inputs * self.factor
      >>> Scale()(tf.constant([2.0])).numpy()
      array([2.], dtype=float32)
    """

    # Names of weights for which `<weight>_layout` arguments are accepted; None accepts any name,
    # for classes of users.
    _weights_with_layouts: tuple[str, ...] | None = None
    # Whether the name of the layer becomes part of the names of weights that are created during its
    # calls.
    _opens_scope = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__ and cls.__module__.startswith("meshflow."):
            cls.__init__ = hide_frames_of_errors(cls.__init__)  # type: ignore[method-assign]
        build = cls.__dict__.get("build")
        if inspect.isfunction(build):
            cls.build = default_config.record_build_shape(build)  # type: ignore[method-assign]

    __signature__ = ConstructorSignature()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Create the layer, and store its constructor arguments for the default `get_config`."""
        layer = super().__new__(cls)
        default_config.store_init_arguments(layer, args, kwargs)
        return layer

    def __init__(
        self,
        trainable: bool = True,
        name: str | None = None,
        dtype: DTypeLike | policies.Policy | None = None,
        dynamic: bool = False,
        **kwargs: Any,
    ) -> None:
        layouts = keywords.pop_layouts(type(self), kwargs)
        if layouts:
            self.__dict__.update(layouts, _layouts=layouts, _layouts_used=set())
        self._layout_map = get_current_map()
        if kwargs.get("dims") is not None:
            self._dims = parse_renames(kwargs["dims"])
        keywords.check_keywords(type(self), kwargs)
        _check_arguments(trainable, dynamic, name)
        self._name = name if name is not None else make_unique_layer_name(type(self))
        self._user_named = name is not None
        if name is not None:
            settings.reserve_name(name)
        self._trainable = bool(trainable)
        self._dynamic = dynamic
        self._dtype_policy = policies.get(dtype)
        policies.check_strategy(self._dtype_policy)
        self._autocast = kwargs.get("autocast", True)
        self._supports_masking = False
        self._own_weights: list[Variable] = []
        self._regularized: list[tuple[Variable, Any]] = []
        self._losses: list[Any] = []
        self._inferred_losses: list[Any] = []
        self._own_metrics: list[Any] = []
        self._inbound_nodes: list[Node] = []
        self._initial_weights = kwargs.get("weights")
        self.activity_regularizer = kwargs.get("activity_regularizer")
        self._input_spec: Any = None
        self._build_input_shape: Any = None
        self.built = False
        shape = get_declared_shape(kwargs)
        if shape is not None:
            self._batch_input_shape = shape

    # ---- names and dtypes ------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Return the name of the layer."""
        return self._name

    @property
    def dtype(self) -> str | None:
        """Return the dtype name of the weights."""
        return self._dtype_policy.variable_dtype

    @property
    def variable_dtype(self) -> str | None:
        """Return the dtype name of the weights."""
        return self._dtype_policy.variable_dtype

    @property
    def compute_dtype(self) -> str | None:
        """Return the dtype name of the computation, to which floating-point inputs are cast."""
        return self._dtype_policy.compute_dtype

    # Layers written for TensorFlow before 2.4 use these names.
    _compute_dtype = compute_dtype

    @property
    def _compute_dtype_object(self) -> dtypes.DType | None:
        return dtypes.as_dtype(self.compute_dtype) if self.compute_dtype else None

    @property
    def _dtype(self) -> str | None:
        return self.dtype

    @_dtype.setter
    def _dtype(self, value: DTypeLike) -> None:
        self._set_dtype_policy(dtypes.as_dtype(value).name)

    @property
    def dtype_policy(self) -> policies.Policy:
        """Return the dtype policy."""
        return self._dtype_policy

    @property
    def dynamic(self) -> bool:
        """Check whether the layer or one of its sublayers was created with `dynamic=True`."""
        return any(layer._dynamic for layer in self._flatten_layers())

    @property
    def stateful(self) -> bool:
        """Check whether the layer keeps state between batches."""
        return getattr(self, "_stateful", False)

    @stateful.setter
    def stateful(self, value: bool) -> None:
        self._stateful = value

    @property
    def supports_masking(self) -> bool:
        """Check whether the layer propagates masks."""
        return self._supports_masking

    @supports_masking.setter
    def supports_masking(self, value: bool) -> None:
        self._supports_masking = bool(value)

    @property
    def input_spec(self) -> PyTree:
        """Return the `InputSpec` or structure of `InputSpec`s that inputs must match."""
        return self._get_input_spec()

    @input_spec.setter
    def input_spec(self, value: PyTree) -> None:
        for spec in nest.flatten(value):
            if spec is not None and not isinstance(spec, InputSpec):
                raise TypeError(f"Layer input_spec must be an instance of InputSpec. Got: {spec!r}")
        self._input_spec = value

    def _get_input_spec(self) -> PyTree:
        return self._input_spec

    @property
    def activity_regularizer(self) -> Any:
        """Return the regularizer of the output, or None."""
        return self._activity_regularizer

    @activity_regularizer.setter
    def activity_regularizer(self, regularizer: Any) -> None:
        self._activity_regularizer = None if regularizer is None else regularizers.get(regularizer)

    @overridable
    def build(self, input_shape: PyTree) -> None:
        """Create the weights; called before the first call with the shape of the inputs.

        Args:
          input_shape: `TensorShape`, or a structure of them for several inputs.
        """
        self._build_input_shape = input_shape
        self.built = True

    # ---- calling ---------------------------------------------------------------------------

    @overridable
    def call(self, inputs: PyTree, *args: Any, **kwargs: Any) -> PyTree:
        """Compute the outputs; subclasses override this method.

        Args:
          inputs: Tensor or nested structure of tensors.
          *args: Further positional arguments.
          **kwargs: Further keyword arguments; `__call__` fills in `training` and `mask`.

        Returns:
          A tensor or nested structure of tensors.
        """
        return inputs

    @overload
    def __call__(self: HasCall[UnknownResult], *args: Any, **kwargs: Any) -> Tensor: ...
    @overload
    def __call__(self: HasCall[Result], *args: Any, **kwargs: Any) -> Result: ...
    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        """Build the layer if needed and run `call`; on symbolic tensors, add a node to the graph."""
        self._check_initialized()
        signature = get_call_signature(type(self))
        inputs, args, kwargs = signature.split_inputs(self, args, kwargs)
        try:
            if has_keras_tensor(inputs, args, kwargs):
                return self._call_symbolically(inputs, args, kwargs)
            if context.graph is not None and context.trace is None:
                return context.graph.call_layer(self, (inputs, *args), kwargs)
            inputs = nest.map_structure(as_tensor_like, inputs)
            outermost = not call_state.layers
            if outermost:
                self._clear_losses()
            if (
                signature.expects_mask_arg
                and kwargs.get("mask") is None
                and not signature.is_passed("mask", args, kwargs)
            ):
                mask = get_masks(inputs)
                if mask is not None:
                    kwargs["mask"] = mask
            training = self._resolve_training(signature, args, kwargs)
            assert_input_compatibility(self._input_spec, inputs, self._name)
            with self._call_scope(training), self._label_scope():
                self._maybe_build(inputs, args, kwargs)
                if self._autocast:
                    inputs = self._cast_inputs(inputs)
                with self._autocast_scope():
                    # In a tf.function, Python control flow in layers of users may depend on tensors.
                    outputs = run_call(self, convert_if_enabled(self.call), inputs, args, kwargs)
                if self._activity_regularizer is not None:
                    self._regularize_activity(outputs)
            self._set_masks(inputs, outputs, kwargs.get("mask"))
            return outputs
        except Exception as error:
            describe_error(error, LayerCall(self, self.call, (inputs, *args), kwargs))
            raise

    def _check_initialized(self) -> None:
        if "_own_weights" not in self.__dict__:
            raise RuntimeError(
                f"You must call `super().__init__()` in the layer constructor of {type(self).__name__}."
            )

    def _resolve_training(
        self, signature: CallSignature, args: tuple, kwargs: dict
    ) -> Tensor | bool | int | None:
        """Choose the value of `training`: argument, enclosing call, learning phase, or default."""
        if not signature.expects_training_arg:
            # Sublayers may use `training` even if this layer does not accept it.
            explicit = None if signature.accepts_any_keyword else kwargs.pop("training", None)
            if explicit is not None:
                return explicit
            return call_state.training[-1] if call_state.training else None
        if signature.is_passed("training", args, kwargs):
            value = signature.get_value("training", args, kwargs)
            if value is not None:
                return value
        value = call_state.training[-1] if call_state.training else None
        if value is None:
            value = settings.get_explicit_learning_phase()
        if value is None:
            value = signature.default_training
        is_required = value is not None or signature.requires_training
        if is_required and not signature.is_positional("training", args):
            kwargs["training"] = value
        return value

    @contextlib.contextmanager
    def _call_scope(self, training: Any, named: bool = True) -> Iterator[None]:
        """Enter the call of this layer; with `named`, new weights get names that contain its name."""
        call_state.layers.append(self)
        call_state.training.append(training)
        names = list(context.name_scopes)
        if named and self._opens_scope:
            context.name_scopes.append(self._name)
        try:
            with scope(self._name):
                yield
        finally:
            context.name_scopes[:] = names
            call_state.training.pop()
            call_state.layers.pop()

    def _label_scope(self) -> contextlib.AbstractContextManager[None]:
        return (
            contextlib.nullcontext() if context.label_layer is None else context.label_layer(self)
        )

    @contextlib.contextmanager
    def _autocast_scope(self) -> Iterator[None]:
        """Read weights in the compute dtype within the scope."""
        saved = context.autocast_dtype
        compute = self._dtype_policy.compute_dtype
        context.autocast_dtype = None if compute is None else dtypes.as_dtype(compute)
        try:
            yield
        finally:
            context.autocast_dtype = saved

    def _maybe_build(self, inputs: PyTree, args: tuple = (), kwargs: dict | None = None) -> None:
        if self.built:
            return
        if self._dtype_policy.compute_dtype is None:
            self._dtype_policy = policies.get(nest.flatten(inputs)[0].dtype)
        shape = get_shapes(inputs)
        self._build_input_shape = shape
        # Weights get their initial values immediately, even while a training step is traced.
        with suspend_autocast(), init_scope():
            named = make_build_arguments(self, shape, args, kwargs or {})
            self.build(shape) if named is None else self.build(**named)
        self.built = True
        if "_layouts" in self.__dict__:
            keywords.check_layouts(self)
        if self._initial_weights is not None:
            with init_scope():
                self.set_weights(self._initial_weights)
            self._initial_weights = None

    def _cast_inputs(self, inputs: PyTree) -> PyTree:
        compute = self._dtype_policy.compute_dtype
        if compute is None:
            return inputs
        dtype = dtypes.as_dtype(compute)
        if not dtype.is_floating:
            return inputs
        return nest.map_structure(lambda t: cast_floating(t, dtype), inputs)

    def _regularize_activity(self, outputs: PyTree) -> None:
        regularize: Any = self._activity_regularizer
        for output in nest.flatten(outputs):
            loss = compute_penalty(regularize, output)
            # The penalty is averaged over the batch, so that it does not grow with the batch size.
            self.add_loss(loss / math.maximum(math.cast(array.shape(output)[0], loss.dtype), 1))

    # ---- masks -----------------------------------------------------------------------------

    @overridable
    def compute_mask(self, inputs: PyTree, mask: PyTree = None) -> PyTree:
        """Compute the mask of the output; by default the input's, if the layer supports masking.

        Args:
          inputs: Tensor or structure of tensors.
          mask: Mask or structure of masks of the inputs.

        Returns:
          A mask, a structure of masks, or None.

        Raises:
          TypeError: If a mask is passed to a layer that does not support masking.
        """
        if not self._supports_masking:
            if any(m is not None for m in nest.flatten(mask)):
                raise TypeError(
                    f"Layer {self.name} does not support masking, but was passed an input_mask: {mask}"
                )
            return None
        return mask

    def _set_masks(self, inputs: PyTree, outputs: PyTree, explicit: PyTree) -> None:
        has_own_rule = has_override(self, "compute_mask", Layer)
        if not (self._supports_masking or has_own_rule):
            return
        flat = [o for o in nest.flatten(outputs) if isinstance(o, Tensor)]
        if not flat or any(getattr(o, "_keras_mask", None) is not None for o in flat):
            return
        input_masks = explicit if explicit is not None else get_masks(inputs)
        if input_masks is None and not has_own_rule:
            return
        masks = nest.flatten(self.compute_mask(inputs, input_masks))
        for output, mask in zip(
            flat, masks if len(masks) == len(flat) else [None] * len(flat), strict=True
        ):
            output._keras_mask = mask

    # ---- configuration ---------------------------------------------------------------------

    @default_config.mark_default
    def get_config(self) -> Config:
        """Return the configuration, from which `from_config` creates an equal layer without weights.

        For a subclass that does not define this method, the configuration contains its constructor
        arguments.

        Raises:
          NotImplementedError: If such a subclass got arguments other than numbers, strings and
            structures of these.
        """
        config: Config = {"name": self.name, "trainable": self._trainable}
        config["dtype"] = policies.serialize(self._dtype_policy)
        if hasattr(self, "_batch_input_shape"):
            config["batch_input_shape"] = self._batch_input_shape
        if self.dynamic:
            config["dynamic"] = True
        if "_dims" in self.__dict__:
            config["dims"] = dict(self._dims)
        if not default_config.is_default(type(self).get_config):
            return config
        init_arguments = default_config.get_init_arguments(self)
        if init_arguments is None:
            raise NotImplementedError(
                f"Layer {type(self).__name__} was created by passing arguments that a configuration cannot hold, "
                "and therefore must override `get_config`. Return all arguments of `__init__` from it."
            )
        return default_config.merge_config(self, config, init_arguments)

    def get_build_config(self) -> Config | None:
        """Return the build configuration (the input shape), or None before the layer is built."""
        shape = self._build_input_shape
        return None if shape is None else {"input_shape": as_tuples(shape)}

    def build_from_config(self, config: Config) -> None:
        """Build the layer from the build configuration of another layer.

        Args:
          config: Result of `get_build_config`.

        Example:
          >>> layer = tf.keras.layers.Dense(2)
          >>> layer.build_from_config({"input_shape": [None, 3]})
          >>> layer.kernel.shape
          TensorShape([3, 2])
        """
        if "input_shape" not in config:
            raise ValueError(
                f"Layer {self.name}: expected a build configuration with an input_shape, got {config!r:.200}."
            )
        shape = config["input_shape"]
        if shape is not None and not self.built:
            self._build_input_shape = map_shapes(TensorShape, shape)
            self.build(self._build_input_shape)
            self.built = True

    @classmethod
    def from_config(cls, config: Config) -> Any:
        """Create a layer from the result of `get_config`."""
        try:
            return cls(**config)
        except TypeError as error:
            raise TypeError(
                f"Error when deserializing class {cls.__name__!r} using config={config}: {error}"
            ) from error


def _check_arguments(trainable: object, dynamic: object, name: object) -> None:
    """Raise a `TypeError` for arguments that TensorFlow's layers reject."""
    is_bool = isinstance(trainable, (bool, np.bool_)) or getattr(trainable, "dtype", None) == "bool"
    if not is_bool:
        raise TypeError(
            f"Expected `trainable` argument to be a boolean, but got: {trainable!r}. Layer names go into `name`."
        )
    if not isinstance(dynamic, (bool, np.bool_)):
        raise TypeError(f"Expected `dynamic` argument to be a boolean, but got: {dynamic!r}")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"Expected `name` argument to be a string, but got: {name!r}")


def build_sublayer(layer: Layer, inputs: PyTree, named: bool = True) -> None:
    """Build a sublayer for inputs, by default within its own name scope, without calling it."""
    assert_input_compatibility(layer._input_spec, inputs, layer.name)
    with layer._call_scope(None, named):
        layer._maybe_build(inputs)


if TYPE_CHECKING:

    class UnknownLayer(Layer):
        """Layer of an unknown class, which may have any attribute."""

        def __getattr__(self, name: str) -> Any: ...
