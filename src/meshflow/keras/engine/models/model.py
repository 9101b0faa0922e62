"""`Model`: a layer that can be trained, saved and inspected."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Self

from meshflow.core.runtime.names import name_scope
from meshflow.core.values import nest
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.distribute.strategy import get_strategy, has_strategy
from meshflow.keras import registry, settings
from meshflow.keras.engine.graph.graph import Graph
from meshflow.keras.engine.graph.input_layer import Input
from meshflow.keras.engine.layer import made_with, shape_inference
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.helpers import unique
from meshflow.keras.engine.models.summary import count, print_summary
from meshflow.keras.engine.saving.methods import ModelSaving
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor, shape_of
from meshflow.keras.engine.training.training import Trainer
from meshflow.keras.metrics.means import Mean

_log = logging.getLogger("meshflow")


class Model(Trainer, ModelSaving, Layer):  # type: ignore[misc]  # as of `Layer`
    """Layers grouped into something that trains and predicts.

    Made in one of three ways: from symbolic inputs and outputs (Functional API), by subclassing and
    defining `call`, or as a `Sequential`.

    Args:
      *args: `inputs` and `outputs`, structures of symbolic tensors.
      **kwargs: `inputs`, `outputs`, `name`, `trainable`, and other arguments of `Layer`.

    Example:
      >>> import meshflow as tf
      >>> inputs = tf.keras.Input(shape=(3,))
      >>> model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(inputs))
      >>> model.count_params()
      4
    """

    _strategy_at_start: Any = None

    @property
    def distribute_strategy(self) -> Any:
        """The `tf.distribute.Strategy` in whose scope the model was made, or the default one."""
        return self._strategy_at_start or get_strategy()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if cls is Model and (len(args) >= 2 or "outputs" in kwargs):
            return super().__new__(registry.LAYERS.table["Functional"])
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names = ("inputs", "outputs", "name")
        given = dict(zip(names, args, strict=False))
        inputs = kwargs.pop("inputs", given.get("inputs"))
        outputs = kwargs.pop("outputs", given.get("outputs"))
        if isinstance(inputs, str) and outputs is None:
            kwargs.setdefault("name", inputs)
            inputs = None
        if "name" in given:
            kwargs.setdefault("name", given["name"])
        super().__init__(**kwargs)
        self._strategy_at_start = get_strategy() if has_strategy() else None
        self._init_training()
        self._symbolic_losses: list[KerasTensor] = []
        self._symbolic_metrics: list[tuple[str, KerasTensor, Any]] = []
        self._graph: Graph | None = None
        if inputs is not None and outputs is not None:
            inputs, outputs = _without_list(inputs), _without_list(outputs)
            self._graph = Graph(self._name, *_begun_with_inputs(self._name, inputs, outputs))
            self.built = True

    def _current_graph(self) -> Graph | None:
        return self._graph

    # ---- structure -------------------------------------------------------------------------

    @property
    def layers(self) -> list[Layer]:
        """The model's direct layers."""
        if self._graph is not None:
            own = self._graph.layers
            return unique([*own, *(layer for layer in self._tracked.layers if layer is not self)])
        return list(self._tracked.layers)

    def _weighted_groups(self) -> list[list[Any]]:
        """The direct layers and metrics, those of one list or dictionary among the attributes together."""
        if self._graph is None:
            return self._tracked.groups
        return [[part] for part in (*self.layers, *self._tracked.metrics)]

    def _flatten_layers(self, recursive: bool = True, include_self: bool = True) -> Any:
        if include_self:
            yield self
        for layer in self.layers:
            yield from layer._flatten_layers() if recursive else (layer,)

    def get_layer(self, name: str | None = None, index: int | None = None) -> Layer:
        """A layer by name or position.

        Args:
          name: a layer's name.
          index: position in `layers`.

        Returns:
          The layer.

        Raises:
          ValueError: when there is no such layer, listing those there are.
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
        """All layers below this model."""
        return tuple(unique(list(self._flatten_layers(include_self=False))))

    @property
    def weights(self) -> list[Any]:
        """All weights, layer by layer, with the variables of metrics among the attributes.

        Of layers in a list or dictionary the trainable ones come first.
        """
        if not self.built and type(self).build is not Model.build and not self.dynamic:
            raise ValueError(
                f"Weights for model {self.name!r} have not yet been created. They are when the model is first called on "
                "inputs, or by `build()` with an `input_shape`."
            )
        own = self._tracked.variables
        nested: list[Any] = []
        for group in self._weighted_groups():
            if len(group) == 1:
                nested += group[0].weights
            else:
                nested += [w for layer in group for w in layer.trainable_weights]
                nested += [w for layer in group for w in layer.non_trainable_weights]
        return unique([*nested, *own])

    @property
    def trainable_weights(self) -> list[Any]:
        """Weights that training updates."""
        if not self._trainable:
            return []
        nested = [w for layer in self.layers for w in layer.trainable_weights]
        return unique([*nested, *self._own_variables(True)])

    @property
    def non_trainable_weights(self) -> list[Any]:
        """Weights that training leaves alone."""
        trained = {id(w) for w in self.trainable_weights}
        if self._trainable:
            parts = [part for group in self._weighted_groups() for part in group]
            found = [w for part in parts for w in part.non_trainable_weights]
            found += self._own_variables(False)
            return unique([w for w in found if id(w) not in trained])
        return unique(
            [*(w for layer in self.layers for w in layer.trainable_weights), *self.weights]
        )

    @property
    def _saved_weights(self) -> list[Any]:
        """The weights without those of metrics, which files do not hold."""
        of_metrics = {id(w) for metric in self.metrics for w in metric.weights}
        return [w for w in self.weights if id(w) not in of_metrics]

    def _graph_or_error(self, what: str) -> Graph:
        graph = self._current_graph()
        if graph is None:
            raise AttributeError(
                f"Model {self.name} has no symbolic {what}: it was not made with the Functional API and has not "
                "been built."
            )
        return graph

    @property
    def inputs(self) -> Any:
        """The symbolic inputs as a list; None for a subclassed model."""
        graph = self._current_graph()
        return None if graph is None else list(graph.flat_inputs)

    @property
    def outputs(self) -> Any:
        """The symbolic outputs as a list; None for a subclassed model."""
        graph = self._current_graph()
        return None if graph is None else list(graph.flat_outputs)

    @property
    def input(self) -> Any:
        """The symbolic input or inputs."""
        return self._graph_or_error("inputs").inputs

    @property
    def output(self) -> Any:
        """The symbolic output or outputs."""
        return self._graph_or_error("outputs").outputs

    @property
    def input_shape(self) -> Any:
        """Shape of the input as a tuple (or structure of tuples)."""
        graph = self._current_graph()
        if graph is None:
            return super().input_shape
        return _tuples(graph.inputs)

    @property
    def output_shape(self) -> Any:
        """Shape of the output as a tuple (or structure of tuples)."""
        graph = self._current_graph()
        if graph is None:
            return super().output_shape
        return _tuples(graph.outputs)

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs."""
        return [t._keras_history.layer.name for t in self._graph_or_error("inputs").flat_inputs]

    def _expected_inputs(self) -> Any:
        """What inputs must be like: of a graph those of its inputs, unless they are nested or others were set."""
        graph = self._current_graph()
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
                name=key or tensor._keras_history.layer.name,
            )
            for key, tensor in pairs
        ]

    @property
    def output_names(self) -> list[str] | None:
        """Names of the outputs: those of the layers that make them; None for a subclassed model."""
        graph = self._current_graph()
        if graph is None:
            return self.__dict__.get("_output_names")
        names: list[str] = []
        for tensor in graph.flat_outputs:
            base = tensor._keras_history.layer.name
            repeats = sum(1 for n in names if n == base or n.startswith(base + "_"))
            names.append(base if base not in names else f"{base}_{repeats}")
        return names

    # ---- running ---------------------------------------------------------------------------

    def build(self, input_shape: Any) -> None:
        """Creates the weights for inputs of a shape, batch dimension first.

        Args:
          input_shape: a shape, or a structure of shapes; None for sizes that vary.

        Raises:
          ValueError: when `call` fails for this shape or needs more than the inputs.
        """
        if self._graph is not None:
            self.built = True
            return
        inputs = shape_inference.map_shapes(lambda s: KerasTensor(_spec(s)), input_shape)
        self._build_input_shape = input_shape
        self.built = True
        if type(self).call is Model.call:
            return
        # Unlike a call, TensorFlow's `build` leaves the model's name out of the names of weights.
        self._opens_scope = False
        try:
            with name_scope(""):
                self._infer_outputs(inputs, (), {})
        except Exception as error:
            raise ValueError(
                f"You cannot build your model {self.name} by calling `build` if your layers do not support float "
                f"type inputs, or if `call` takes more than one input. Call the model on real data instead. The "
                f"error was: {error}"
            ) from error
        finally:
            self._opens_scope = True

    @property
    def _builds_by_shape(self) -> bool:
        """Whether `build` makes all weights; one of the user's makes layers, which want to be called."""
        return type(self).build is Model.build

    def _maybe_build(self, inputs: Any, args: Any = (), kwargs: Any = None) -> None:
        if not self.built:
            self._save_spec = _specs_of(inputs)
            self._more_specs = _specs_of_others(args, kwargs or {})
        # Sublayers build themselves when they are called; only a user's own `build` runs here.
        if not self.built:
            if type(self).build is not Model.build:
                super()._maybe_build(inputs, args, kwargs)
            else:
                self._build_input_shape = shape_of(inputs)
                self.built = True

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Runs the model; subclasses override it.

        Args:
          inputs: a tensor or structure of tensors.
          training: whether layers behave as in training.
          mask: a mask or masks of the inputs.

        Returns:
          A tensor or structure of tensors.

        Raises:
          NotImplementedError: for a subclass that does not define it.
        """
        graph = self._current_graph()
        if graph is None:
            raise NotImplementedError(
                f"Unimplemented `tf.keras.Model.call()`: {type(self).__name__} was not made from inputs and outputs, "
                "so it must define `call`."
            )
        if mask is not None:
            for tensor, m in zip(nest.flatten(inputs), nest.flatten(mask), strict=False):
                tensor._keras_mask = m
        outputs = graph.run(inputs, training, mask)
        self._run_symbolic_extras(inputs, graph)
        return outputs

    def _cast_inputs(self, inputs: Any) -> Any:
        # The layers cast; a graph's inputs have dtypes of their own.
        return inputs if self._graph is not None else super()._cast_inputs(inputs)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """The masks of the results; of a subclassed model as of a layer.

        Args:
          inputs: the inputs, symbolic or not.
          mask: mask or masks of the inputs.
        """
        graph = self._current_graph()
        if graph is None:
            return super().compute_mask(inputs, mask)
        masks = nest.flatten(mask) if mask is not None else []
        if any(isinstance(x, KerasTensor) for x in nest.flatten(inputs)):
            inputs = nest.map_structure(lambda t: KerasTensor(t.type_spec), inputs)
            for tensor, given in zip(nest.flatten(inputs), masks, strict=False):
                tensor._keras_mask = given
            outputs = self._infer_outputs(inputs, (), {})
        else:
            outputs = self.call(inputs, mask=mask)
        found = [getattr(o, "_keras_mask", None) for o in nest.flatten(outputs)]
        return found if isinstance(graph.outputs, (list, tuple, dict)) else found[0]

    def _set_masks(self, inputs: Any, outputs: Any, explicit: Any) -> None:
        # The layers of a graph give masks to its results.
        own = type(self).compute_mask is not Model.compute_mask
        if self._graph is None and (self._supports_masking or own):
            super()._set_masks(inputs, outputs, explicit)

    def _check_initialized(self) -> None:
        if "_graph" not in self.__dict__:
            raise RuntimeError(
                f"It looks like you are subclassing `Model` ({type(self).__name__}) and you forgot to call "
                "`super().__init__()`. Always start with this line."
            )

    def __setattr__(self, name: str, value: Any) -> None:
        if "_graph" not in self.__dict__ and not name.startswith("__") and _has_layer(value):
            self._check_initialized()
        super().__setattr__(name, value)

    def _add_symbolic_loss(self, loss: KerasTensor) -> None:
        self._graph_or_error("inputs")
        self._symbolic_losses.append(loss)
        self._extras: Any = None

    @property
    def losses(self) -> list[Any]:
        """Losses of the last call; those added as symbolic tensors are listed also before there was one."""
        computed = super().losses
        if all(callable(loss) for loss in self._losses):
            return [*self._symbolic_losses, *computed]
        return computed

    def _add_symbolic_metric(self, value: KerasTensor, name: str) -> None:
        self._graph_or_error("inputs")
        metric = Mean(name=name)
        self._own_metrics.append(metric)
        self._symbolic_metrics.append((name, value, metric))
        self._extras = None

    def _run_symbolic_extras(self, inputs: Any, graph: Graph) -> None:
        """Losses and metrics added to the model as symbolic tensors."""
        wanted = [*self._symbolic_losses, *(value for _, value, _ in self._symbolic_metrics)]
        if not wanted:
            return
        if self.__dict__.get("_extras") is None:
            self._extras = Graph(self.name, graph.inputs, wanted)
        values = self._extras.run(inputs)
        count = len(self._symbolic_losses)
        for value in values[:count]:
            self.add_loss(value)
        for value, (_, _, metric) in zip(values[count:], self._symbolic_metrics, strict=True):
            metric.update_state(value)

    def reset_states(self) -> None:
        """Sets the states that stateful layers keep between batches to zeros."""
        for layer in self.layers:
            if getattr(layer, "stateful", False) and hasattr(layer, "reset_states"):
                layer.reset_states()

    # ---- looking and keeping ---------------------------------------------------------------

    def summary(
        self,
        line_length: int | None = None,
        positions: list[float] | None = None,
        print_fn: Callable[[str], Any] | None = None,
        expand_nested: bool = False,
        show_trainable: bool = False,
        layer_range: Any = None,
    ) -> None:
        """Prints a table of the layers, their output shapes and parameter counts.

        Args:
          line_length: width of the table.
          positions: relative positions of the columns.
          print_fn: called with each line; default `print`.
          expand_nested: whether layers of nested models are listed.
          show_trainable: whether to say which layers are trained.
          layer_range: names (patterns) of the first and last layer to list.

        Raises:
          ValueError: before the model is built.
        """
        self._current_graph()
        if not self.built:
            raise ValueError(
                "This model has not yet been built. Build the model first by calling `build()` or by calling the "
                "model on a batch of data."
            )
        print_summary(
            self, line_length, positions, print_fn, expand_nested, show_trainable, layer_range
        )

    def count_params(self) -> int:
        """Number of scalars in the weights."""
        if not self.built:
            super().count_params()
        return count(self.weights)

    @made_with.default
    def get_config(self) -> dict[str, Any]:
        """The configuration; of a subclass, the constructor's arguments as they were given.

        Nothing for one with arguments that are no plain data, which a warning says.
        """
        if not made_with.is_default(type(self).get_config):
            return {}
        if type(self).__init__ is Model.__init__ and self._current_graph() is not None:
            return dict(registry.LAYERS.table["Functional"].get_config(self))
        if not self._has_config:
            _log.warning(
                "%s was made with arguments that are no plain data: its configuration is empty until it defines "
                "get_config.",
                type(self).__name__,
            )
            return {}
        return Layer.get_config(self)

    def get_build_config(self) -> dict[str, Any] | None:
        """The shapes of the inputs that the model was built for, as `build_from_config` takes them; None before."""
        graph = self._current_graph()
        if graph is None:
            return super().get_build_config()
        return {"input_shape": _tuples(graph.inputs)}

    @property
    def _has_config(self) -> bool:
        """Whether `get_config` says how the model can be made again."""
        method = type(self).get_config
        if type(self).__init__ is Model.__init__ and self._current_graph() is not None:
            return True
        return not made_with.is_default(method) or made_with.arguments(self) is not None

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Makes a model from `get_config()`, with new weights."""
        if cls.__init__ is Model.__init__ and "layers" in config:
            graph: Any = registry.LAYERS.table["Functional"]
            make = graph.from_config.__func__
            return make(graph if cls is Model else cls, config, custom_objects)
        return cls(**config)


def _has_layer(value: Any) -> bool:
    """Whether a value is a layer, or a list or dictionary with one."""
    if isinstance(value, (list, tuple, dict)):
        return any(map(_has_layer, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Layer)


def _specs_of(inputs: Any) -> Any:
    """Specs of a call's inputs, or None when not all are tensors."""
    leaves = nest.flatten(inputs)
    if not all(hasattr(x, "shape") and hasattr(x, "dtype") for x in leaves):
        return None
    return nest.map_structure(lambda x: TensorSpec(x.shape, x.dtype), inputs)


def _specs_of_others(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Specs of a call's other arguments: None for what is no tensor, which names leave out."""

    def spec(x: Any) -> Any:
        return TensorSpec(x.shape, x.dtype) if hasattr(x, "shape") and hasattr(x, "dtype") else None

    named = {key: nest.map_structure(spec, value) for key, value in kwargs.items()}
    known = {key: value for key, value in named.items() if None not in nest.flatten(value)}
    return nest.map_structure(spec, args), known


def _spec(shape: TensorShape) -> Any:
    return TensorSpec(shape, settings.floatx())


def _begun_with_inputs(name: str, inputs: Any, outputs: Any) -> tuple[Any, Any]:
    """Inputs and outputs of a graph; where it begins amid another one, its layers are called again on own inputs."""
    flat = nest.flatten(inputs)
    if not all(isinstance(t, KerasTensor) for t in flat) or all(t.node.is_input for t in flat):
        return inputs, outputs
    graph = Graph(name, inputs, outputs)
    begin = lambda t: t if t.node.is_input else Input(batch_shape=t.shape, dtype=t.dtype)
    values = {id(t): begin(t) for t in flat}
    graph.call_nodes(graph.nodes, values)
    look_up = lambda t: values[id(t)]
    return nest.map_structure(look_up, inputs), nest.map_structure(look_up, outputs)


def _without_list(structure: Any) -> Any:
    """Keras 2 takes a list of one tensor for the tensor: the model then returns a tensor as well."""
    one = isinstance(structure, list) and len(nest.flatten(structure)) == 1
    return structure[0] if one else structure


def _tuples(structure: Any) -> Any:
    if isinstance(structure, KerasTensor):
        return tuple(structure.shape.as_list())
    if isinstance(structure, dict):
        return {key: _tuples(value) for key, value in structure.items()}
    return [_tuples(value) for value in structure]
