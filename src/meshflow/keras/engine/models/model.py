"""`Model`: a layer that can be trained, saved and inspected."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from meshflow.core.runtime.eager import executing_eagerly
from meshflow.core.runtime.name_scopes import name_scope
from meshflow.core.runtime.tracebacks import hide_frames_of_methods, is_filtering
from meshflow.core.values import nest
from meshflow.core.values.composite import CompositeTensor
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec, TypeSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.distribute.strategy import get_strategy, has_strategy
from meshflow.environment.types import Config, PyTree, overridable
from meshflow.keras import registry, settings
from meshflow.keras.engine.graph.added_terms import AddLoss, AddMetric, is_loss
from meshflow.keras.engine.graph.graph import LayerGraph
from meshflow.keras.engine.graph.input_layer import Input
from meshflow.keras.engine.layer import default_config, shape_inference
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.helpers import remove_duplicates
from meshflow.keras.engine.layer.layer_arguments import ModelArguments
from meshflow.keras.engine.models.summary import count_scalars, format_html, print_summary
from meshflow.keras.engine.saving.saving_methods import ModelSaving
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor, get_shapes
from meshflow.keras.engine.training.training import Trainer

if TYPE_CHECKING:
    from meshflow.keras.engine.layer.base_layer import UnknownLayer

_log = logging.getLogger("meshflow")


@hide_frames_of_methods
class Model(Trainer, ModelSaving, Layer):  # type: ignore[misc]  # See `Layer`.
    """Layers that are grouped into an object that trains and predicts.

    A model is created in one of three ways: from symbolic inputs and outputs (Functional API), as a
    subclass that defines `call`, or as a `Sequential`.

    Args:
      *args: `inputs` and `outputs`, structures of symbolic tensors.
      **kwargs: `inputs`, `outputs`, `name`, `trainable`, and other arguments of `Layer`.

    Example:
      >>> inputs = tf.keras.Input(shape=(3,))
      >>> model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(inputs))
      >>> model.count_params()
      4
    """

    _strategy_at_start: Any = None
    _instrumented_keras_layer_class = False
    _instrumented_keras_model_class = True

    @property
    def distribute_strategy(self) -> Any:
        """Return the `tf.distribute.Strategy` in which the model was created, or the default."""
        return self._strategy_at_start or get_strategy()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Create the model; with inputs and outputs, `Model` itself creates a `Functional` one."""
        if cls is Model and not args and ("inputs" in kwargs) != ("outputs" in kwargs):
            given, missing = ("inputs", "outputs")[:: 1 if "inputs" in kwargs else -1]
            raise TypeError(f"Model got `{given}` without `{missing}`: pass both, or none of them.")
        if cls is Model and (len(args) >= 2 or "outputs" in kwargs):
            return super().__new__(registry.LAYERS.table["Functional"])
        return super().__new__(cls, *args, **kwargs)

    @overload
    def __init__(
        self,
        inputs: PyTree,
        outputs: PyTree,
        name: str | None = None,
        **kwargs: Unpack[ModelArguments],
    ) -> None: ...
    @overload
    def __init__(self, name: str | None = None, **kwargs: Unpack[ModelArguments]) -> None: ...
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names = ("inputs", "outputs", "name")
        positional = dict(zip(names, args, strict=False))
        inputs = kwargs.pop("inputs", positional.get("inputs"))
        outputs = kwargs.pop("outputs", positional.get("outputs"))
        if isinstance(inputs, str) and outputs is None:
            kwargs.setdefault("name", inputs)
            inputs = None
        if "name" in positional:
            kwargs.setdefault("name", positional["name"])
        super().__init__(**kwargs)
        self._strategy_at_start = get_strategy() if has_strategy() else None
        self._init_training()
        self._graph: LayerGraph | None = None
        if inputs is not None and outputs is not None:
            inputs, outputs = _unwrap_single_list(inputs), _unwrap_single_list(outputs)
            self._graph = LayerGraph(
                self._name, *replace_intermediate_inputs(self._name, inputs, outputs)
            )
            self.built = True

    def _get_graph(self) -> LayerGraph | None:
        return self._graph

    @property
    def _is_graph_network(self) -> bool:
        """Check whether the model is a graph of layers; libraries read this attribute."""
        return self._get_graph() is not None

    # ---- structure -------------------------------------------------------------------------

    @property
    def layers(self) -> list[UnknownLayer]:
        """Return the direct sublayers."""
        if self._graph is not None:
            graph_layers = self._graph.layers
            return remove_duplicates(
                [*graph_layers, *(layer for layer in self._tracked.layers if layer is not self)]
            )
        return list(self._tracked.layers)

    def _group_weighted_parts(self) -> list[list[Any]]:
        """Return the direct layers and metrics, grouped by the attribute that holds them."""
        if self._graph is None:
            return self._tracked.groups
        return [[part] for part in (*self.layers, *self._tracked.metrics)]

    def _flatten_layers(self, recursive: bool = True, include_self: bool = True) -> Iterator[Any]:
        if include_self:
            yield self
        for layer in self.layers:
            yield from layer._flatten_layers() if recursive else (layer,)

    def get_layer(self, name: str | None = None, index: int | None = None) -> UnknownLayer:
        """Return a layer by name or index.

        Args:
          name: Name of the layer.
          index: Index in `layers`.

        Raises:
          ValueError: If there is no such layer.
        """
        if name is None and index is None:
            raise ValueError("Provide either a layer name or layer index.")
        if name is not None and index is not None:
            raise ValueError(
                f"Provide only a layer name or a layer index. Received: index={index}, name={name}."
            )
        layers = self.layers
        if index is not None:
            if index >= len(layers):
                raise ValueError(
                    f"Was asked to retrieve layer at index {index} but model only has {len(layers)} layers."
                )
            return layers[index]
        for layer in layers:
            if layer.name == name:
                return layer
        raise ValueError(
            f"No such layer: {name}. Existing layers are: {[layer.name for layer in layers]}."
        )

    @property
    def submodules(self) -> tuple[Any, ...]:
        """Return all layers below this model."""
        return tuple(remove_duplicates(list(self._flatten_layers(include_self=False))))

    @property
    def weights(self) -> list[Variable]:
        """Return all weights, layer by layer, with the variables of metrics among the attributes.

        For layers in one list or dictionary, the trainable weights precede the others.
        """
        if not self.built and type(self).build is not Model.build and not self.dynamic:
            raise ValueError(
                f"Weights for model {self.name!r} have not yet been created. Call the model on inputs, or call "
                "`build()` with an `input_shape`."
            )
        variables = self._tracked.variables
        nested: list[Any] = []
        for group in self._group_weighted_parts():
            if len(group) == 1:
                nested += group[0].weights
            else:
                nested += [w for layer in group for w in layer.trainable_weights]
                nested += [w for layer in group for w in layer.non_trainable_weights]
        return remove_duplicates([*nested, *variables])

    @property
    def trainable_weights(self) -> list[Variable]:
        """Return the weights that training updates."""
        if not self._trainable:
            return []
        nested = [w for layer in self.layers for w in layer.trainable_weights]
        return remove_duplicates([*nested, *self._list_own_variables(True)])

    @property
    def non_trainable_weights(self) -> list[Variable]:
        """Return the weights that training does not update."""
        trainable_ids = {id(w) for w in self.trainable_weights}
        if self._trainable:
            parts = [part for group in self._group_weighted_parts() for part in group]
            weights = [w for part in parts for w in part.non_trainable_weights]
            weights += self._list_own_variables(False)
            return remove_duplicates([w for w in weights if id(w) not in trainable_ids])
        return remove_duplicates(
            [*(w for layer in self.layers for w in layer.trainable_weights), *self.weights]
        )

    @property
    def _saved_weights(self) -> list[Any]:
        """Return the weights without those of metrics, which files do not contain."""
        metric_weight_ids = {id(w) for metric in self.metrics for w in metric.weights}
        return [w for w in self.weights if id(w) not in metric_weight_ids]

    def _require_graph(self, attribute: str) -> LayerGraph:
        graph = self._get_graph()
        if graph is None:
            raise AttributeError(
                f"Model {self.name} has no symbolic {attribute}: it was not created with the Functional API and has "
                "not been built."
            )
        return graph

    @property
    def inputs(self) -> list[Tensor]:
        """Return the symbolic inputs as a list, or None for a subclassed model that has not set them."""
        if "inputs" in self.__dict__:
            return self.__dict__["inputs"]
        graph = self._get_graph()
        return None if graph is None else list(graph.flat_inputs)  # type: ignore[return-value]

    @inputs.setter
    def inputs(self, value: PyTree) -> None:
        self.__dict__["inputs"] = value

    @property
    def outputs(self) -> list[Tensor]:
        """Return the symbolic outputs as a list, or None for a subclassed model that has not set them."""
        if "outputs" in self.__dict__:
            return self.__dict__["outputs"]
        graph = self._get_graph()
        return None if graph is None else list(graph.flat_outputs)  # type: ignore[return-value]

    @outputs.setter
    def outputs(self, value: PyTree) -> None:
        self.__dict__["outputs"] = value

    @property
    def input(self) -> Tensor:
        """Return the symbolic input or structure of inputs."""
        return self._require_graph("inputs").inputs

    @property
    def output(self) -> Tensor:
        """Return the symbolic output or structure of outputs."""
        return self._require_graph("outputs").outputs

    @property
    def input_shape(self) -> PyTree:
        """Return the shape of the input as a tuple or structure of tuples."""
        graph = self._get_graph()
        if graph is None:
            return super().input_shape
        return _to_tuples(graph.inputs)

    @property
    def output_shape(self) -> PyTree:
        """Return the shape of the output as a tuple or structure of tuples."""
        graph = self._get_graph()
        if graph is None:
            return super().output_shape
        return _to_tuples(graph.outputs)

    @property
    def input_names(self) -> list[str]:
        """Return the names of the inputs."""
        return [t.node.layer.name for t in self._require_graph("inputs").flat_inputs]

    # Libraries that call `K.function` read the names of Keras.
    _feed_inputs = inputs
    _feed_input_names = input_names

    def _get_input_spec(self) -> PyTree:
        """Return the explicit specs, or those of the inputs of a graph unless they are nested."""
        graph = self._get_graph()
        if self._input_spec is not None or graph is None:
            return self._input_spec
        inputs = graph.inputs if isinstance(graph.inputs, (dict, list, tuple)) else [graph.inputs]
        if len(inputs) != len(graph.flat_inputs):
            return None
        pairs = sorted(inputs.items()) if isinstance(inputs, dict) else [(None, t) for t in inputs]
        return [
            InputSpec(
                shape=(None, *tensor.shape[1:]),
                allow_last_axis_squeeze=True,
                name=key or tensor.node.layer.name,
            )
            for key, tensor in pairs
        ]

    @property
    def output_names(self) -> list[str] | None:
        """Return the names of the layers that create the outputs, or None for a subclassed model."""
        graph = self._get_graph()
        if graph is None:
            return self.__dict__.get("_output_names")
        names: list[str] = []
        for tensor in graph.flat_outputs:
            base = tensor.node.layer.name
            repeats = sum(1 for n in names if n == base or n.startswith(base + "_"))
            names.append(base if base not in names else f"{base}_{repeats}")
        return names

    # ---- running ---------------------------------------------------------------------------

    @overridable
    def build(self, input_shape: PyTree) -> None:
        """Create the weights for an input shape, batch dimension first.

        Args:
          input_shape: Shape or structure of shapes; None for sizes that vary.

        Raises:
          ValueError: If `call` fails for this shape or requires further arguments.
        """
        if self._graph is not None:
            self.built = True
            return
        if input_shape is None:
            raise ValueError(
                f"Input shape must be defined when calling `build()` on model {self.name!r}, got None."
            )
        inputs = shape_inference.map_shapes(lambda s: KerasTensor(_make_spec(s)), input_shape)
        self._build_input_shape = input_shape
        self.built = True
        if type(self).call is Model.call:
            return
        # In TensorFlow, `build` does not add the name of the model to the names of weights, unlike
        # a call.
        self._opens_scope = False
        try:
            with name_scope(""):
                self._infer_outputs(inputs, (), {})
        except Exception as error:
            self.built = False
            raise ValueError(
                f"You cannot build your model {self.name} by calling `build` if your layers do not support float "
                f"type inputs, or if `call` takes more than one input. Call the model on real data instead. The "
                f"error was: {error}"
            ) from (None if is_filtering() else error)
        finally:
            self._opens_scope = True

    @property
    def _builds_by_shape(self) -> bool:
        """Return whether `build` creates all weights; a user's `build` may defer some to calls."""
        return type(self).build is Model.build

    def _maybe_build(self, inputs: PyTree, args: tuple = (), kwargs: dict | None = None) -> None:
        if not self.built:
            # The arguments of the saved function are those of `call`.
            self._set_save_spec(
                self._cast_inputs(inputs) if self._autocast else inputs, args, kwargs
            )
        # Sublayers are built by their own calls, so only an overridden `build` runs here.
        if not self.built:
            if type(self).build is not Model.build:
                super()._maybe_build(inputs, args, kwargs)
            else:
                self._build_input_shape = get_shapes(inputs)
                if not executing_eagerly():
                    # Batch sizes vary in training.
                    self._build_input_shape = shape_inference.map_shapes(
                        lambda s: TensorShape([None, *s[1:]]) if s.rank else s,
                        self._build_input_shape,
                    )
                self.built = True

    def _set_save_spec(
        self, inputs: PyTree, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> None:
        """Record the specs of the arguments of saved functions; subclasses call it before `call`.

        The specs of an earlier call remain.
        """
        if self.__dict__.get("_save_spec") is None:
            self._save_spec = _get_input_specs(inputs)
            self._more_specs = _get_argument_specs(args or (), kwargs or {})

    @overridable
    def call(self, inputs: PyTree, training: Any = None, mask: PyTree = None) -> PyTree:
        """Compute the outputs; subclasses override this method.

        Args:
          inputs: Tensor or structure of tensors.
          training: Whether layers use training mode.
          mask: Mask or structure of masks of the inputs.

        Returns:
          A tensor or structure of tensors.

        Raises:
          NotImplementedError: If a subclass does not define it.
        """
        graph = self._get_graph()
        if graph is None:
            raise NotImplementedError(
                f"Unimplemented `tf.keras.Model.call()`: {type(self).__name__} was not made from inputs and outputs, "
                "so it must define `call`."
            )
        if mask is not None:
            for tensor, m in zip(nest.flatten(inputs), nest.flatten(mask), strict=False):
                tensor._keras_mask = m
        return graph.run(inputs, training, mask)

    def _cast_inputs(self, inputs: PyTree) -> PyTree:
        # The layers of a graph cast their inputs; the inputs of the graph have fixed dtypes.
        return inputs if self._graph is not None else super()._cast_inputs(inputs)

    @overridable
    def compute_mask(self, inputs: PyTree, mask: PyTree = None) -> PyTree:
        """Compute the masks of the outputs; a subclassed model uses the rule of `Layer`.

        Args:
          inputs: Tensors or symbolic tensors.
          mask: Mask or structure of masks of the inputs.
        """
        graph = self._get_graph()
        if graph is None:
            return super().compute_mask(inputs, mask)
        masks = nest.flatten(mask) if mask is not None else []
        if any(isinstance(x, KerasTensor) for x in nest.flatten(inputs)):
            inputs = nest.map_structure(lambda t: KerasTensor(t.type_spec), inputs)
            for tensor, input_mask in zip(nest.flatten(inputs), masks, strict=False):
                tensor._keras_mask = input_mask
            outputs = self._infer_outputs(inputs, (), {})
        else:
            outputs = self.call(inputs, mask=mask)
        output_masks = [getattr(o, "_keras_mask", None) for o in nest.flatten(outputs)]
        return output_masks if isinstance(graph.outputs, (list, tuple, dict)) else output_masks[0]

    def _set_masks(self, inputs: PyTree, outputs: PyTree, explicit: PyTree) -> None:
        # The layers of a graph attach the masks of its outputs.
        has_own_rule = type(self).compute_mask is not Model.compute_mask
        if self._graph is None and (self._supports_masking or has_own_rule):
            super()._set_masks(inputs, outputs, explicit)

    def _check_initialized(self) -> None:
        if "_graph" not in self.__dict__:
            raise RuntimeError(
                f"It looks like you are subclassing `Model` ({type(self).__name__}) and you forgot to call "
                "`super().__init__()`. Always start with this line."
            )

    def __setattr__(self, name: str, value: Any) -> None:
        if "_graph" not in self.__dict__ and not name.startswith("__") and _contains_layer(value):
            self._check_initialized()
        super().__setattr__(name, value)

    def _add_symbolic_loss(self, loss: KerasTensor) -> None:
        self._attach(AddLoss, loss)

    @property
    def losses(self) -> list[Tensor]:
        """Return the losses of the last call; before it, also those added as symbolic tensors."""
        computed = super().losses
        graph = self._get_graph()
        added = [] if graph is None else [t for t in graph.attached if is_loss(t)]
        has_values = any(t.node.layer._losses or t.node.layer._inferred_losses for t in added)
        return computed if has_values else [*computed, *added]

    def _add_symbolic_metric(self, value: KerasTensor, name: str) -> None:
        self._attach(AddMetric, value, aggregation="mean", metric_name=name)

    def _attach(self, layer_class: type[Layer], value: KerasTensor, **options: Any) -> None:
        """Add a layer to the graph that has an effect on a tensor of the graph and no output."""
        graph = self._require_graph("inputs")
        # A tensor of another model is rejected before it gets a further call.
        LayerGraph(self.name, graph.inputs, [value])
        call: Any = layer_class(dtype=value.dtype.name, **options)
        graph.attach([call(value)])
        self._reset_steps()

    def reset_states(self) -> None:
        """Reset the states that stateful layers keep between batches to zeros."""
        for layer in self.layers:
            if getattr(layer, "stateful", False) and hasattr(layer, "reset_states"):
                layer.reset_states()

    # ---- summary and configuration -----------------------------------------------------------

    def summary(
        self,
        line_length: int | None = None,
        positions: list[float] | None = None,
        print_fn: Callable[[str], Any] | None = None,
        expand_nested: bool = False,
        show_trainable: bool = False,
        layer_range: Sequence[str] | None = None,
    ) -> None:
        """Print a table of the layers, their output shapes and parameter counts.

        Args:
          line_length: Width of the table in characters.
          positions: Relative positions of the ends of the columns.
          print_fn: Function that is called with each line; default `print`.
          expand_nested: Whether to list the layers of nested models.
          show_trainable: Whether to show a column with the trainable flag.
          layer_range: Names or patterns of the first and last layer to list.

        Raises:
          ValueError: If the model is not built.
        """
        self._get_graph()
        if not self.built:
            raise ValueError(
                "This model has not yet been built. Build the model first by calling `build()` or by calling the "
                "model on a batch of data."
            )
        print_summary(
            self, line_length, positions, print_fn, expand_nested, show_trainable, layer_range
        )

    def _repr_html_(self) -> str:
        return format_html(self)

    def count_params(self) -> int:
        """Count the scalars in the weights."""
        if not self.built:
            super().count_params()
        return count_scalars(self.weights)

    @default_config.mark_default
    def get_config(self) -> Config:
        """Return the configuration; for a subclass, the constructor arguments.

        If these contain other values than numbers, strings and structures of these, the
        configuration is empty and a warning is logged.
        """
        if not default_config.is_default(type(self).get_config):
            return {}
        if takes_graph(type(self)) and self._get_graph() is not None:
            return dict(registry.LAYERS.table["Functional"].get_config(self))
        if not self._has_config:
            _log.warning(
                "%s was created with arguments that a configuration cannot hold. Its configuration is empty; define "
                "get_config to change this.",
                type(self).__name__,
            )
            return {}
        return Layer.get_config(self)

    def get_build_config(self) -> Config | None:
        """Return the build configuration, which contains the input shapes, or None before building."""
        graph = self._get_graph()
        if graph is None:
            return super().get_build_config()
        return {"input_shape": _to_tuples(graph.inputs)}

    @property
    def _has_config(self) -> bool:
        """Return whether `get_config` describes how to create the model again."""
        method = type(self).get_config
        if takes_graph(type(self)) and self._get_graph() is not None:
            return True
        return (
            not default_config.is_default(method)
            or default_config.get_init_arguments(self) is not None
        )

    @classmethod
    def from_config(cls, config: Config, custom_objects: dict[str, Any] | None = None) -> Any:
        """Create a model from the result of `get_config`, with new weights."""
        if takes_graph(cls) and "layers" in config:
            graph: Any = registry.LAYERS.table["Functional"]
            make = graph.from_config.__func__
            return make(graph if cls is Model else cls, config, custom_objects)
        return cls(**config)


def takes_graph(cls: type[Model]) -> bool:
    """Check whether a class takes inputs and outputs, by the rule of Keras for its constructor."""
    if cls.__init__ is Model.__init__:
        return True
    spec = inspect.getfullargspec(cls.__init__)
    names = ["inputs", "outputs", "name", "trainable"]
    return spec.args[1:] == names or (spec.varargs, spec.varkw) == ("args", "kwargs")


def _contains_layer(value: object) -> bool:
    """Check whether a value is a layer, or a list or dictionary that contains one."""
    if isinstance(value, (list, tuple, dict)):
        return any(map(_contains_layer, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Layer)


def _get_input_specs(inputs: PyTree) -> PyTree:
    """Return the specs of the first argument of a call, or None if not all are tensors."""
    specs = nest.map_structure(_find_spec, inputs)
    return None if None in nest.flatten(specs) else specs


def _get_argument_specs(args: tuple, kwargs: dict) -> tuple[PyTree, PyTree]:
    """Return the specs of the further arguments of a call; keywords without tensors are omitted."""
    named = {key: nest.map_structure(_find_spec, value) for key, value in kwargs.items()}
    tensor_specs = {key: value for key, value in named.items() if None not in nest.flatten(value)}
    return nest.map_structure(_find_spec, args), tensor_specs


def _find_spec(value: Any) -> TypeSpec | None:
    """Return the spec of a tensor, a composite tensor or a Keras tensor, otherwise None."""
    if isinstance(value, CompositeTensor):
        return value._type_spec
    if isinstance(value, KerasTensor):
        return value.type_spec
    has_spec = hasattr(value, "shape") and hasattr(value, "dtype")
    return TensorSpec(value.shape, value.dtype) if has_spec else None


def _make_spec(shape: TensorShape) -> TensorSpec:
    return TensorSpec(shape, settings.floatx())


def replace_intermediate_inputs(
    name: str, inputs: PyTree, outputs: PyTree
) -> tuple[PyTree, PyTree]:
    """Call the layers of a graph on new inputs, if its inputs are intermediate tensors."""
    flat = nest.flatten(inputs)
    if not all(isinstance(t, KerasTensor) for t in flat) or all(t.node.is_input for t in flat):
        return inputs, outputs
    graph = LayerGraph(name, inputs, outputs)
    to_input = lambda t: t if t.node.is_input else Input(batch_shape=t.shape, dtype=t.dtype)
    values = {id(t): to_input(t) for t in flat}
    graph.call_nodes(graph.nodes, values)
    look_up = lambda t: values[id(t)]
    return nest.map_structure(look_up, inputs), nest.map_structure(look_up, outputs)


def _unwrap_single_list(structure: PyTree) -> PyTree:
    """Replace a list of one tensor by the tensor, as Keras 2 does: the model returns a tensor as well."""
    is_single = isinstance(structure, list) and len(nest.flatten(structure)) == 1
    return structure[0] if is_single else structure


def _to_tuples(structure: PyTree) -> PyTree:
    if isinstance(structure, KerasTensor):
        return tuple(structure.shape.as_list())
    if isinstance(structure, dict):
        return {key: _to_tuples(value) for key, value in structure.items()}
    return [_to_tuples(value) for value in structure]
