"""`Sequential`: a linear stack of layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.runtime.eager import executing_eagerly
from meshflow.core.runtime.tracebacks import hide_frames_of_methods
from meshflow.core.values import nest
from meshflow.core.values.composite import is_extension
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.module import Module
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Config, PyTree, overridable
from meshflow.keras import registry, serialization
from meshflow.keras.engine.graph.graph import LayerGraph, fit_input, get_graph
from meshflow.keras.engine.graph.input_layer import Input, InputLayer
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.helpers import as_tuples, remove_duplicates
from meshflow.keras.engine.layer.layer_arguments import ModelArguments
from meshflow.keras.engine.models.functional import (
    GraphMembers,
    build_graph_from_config,
    make_graph_config,
)
from meshflow.keras.engine.symbolic.input_spec import assert_input_compatibility
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor, ShapelessSpecError
from meshflow.keras.error_context import prefix_errors

if TYPE_CHECKING:
    from meshflow.keras.engine.layer.base_layer import UnknownLayer


@hide_frames_of_methods
class Sequential(GraphMembers):
    """Linear stack of layers with one input and one output each.

    Args:
      layers: Layers to add, or None.
      name: Name of the model.
      **kwargs: Other arguments of `Model`.

    Raises:
      TypeError: If an added object is not a layer.
      ValueError: If two layers have the same name; the same layer may be added repeatedly.

    Example:
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(3,))])
      >>> model(tf.ones([4, 3])).shape
      TensorShape([4, 2])
    """

    def __init__(
        self,
        layers: Layer | Sequence[Any] | None = None,
        name: str | None = None,
        **kwargs: Unpack[ModelArguments],
    ) -> None:
        super().__init__(name=name, **kwargs)
        self._stack: list[Layer] = []
        self._input: KerasTensor | None = None
        self._output: Any = None
        self._is_input_declared = False
        for layer in [layers] if isinstance(layers, Layer) else (layers or []):
            self.add(layer)

    @property
    def layers(self) -> list[UnknownLayer]:
        """Return the layers without an `InputLayer`; a repeated layer is listed once.

        The layers of losses and metrics that were added as symbolic tensors are the last ones.
        """
        return remove_duplicates([*self._stack, *self._list_attached_layers()])

    def _list_attached_layers(self) -> list[Layer]:
        graph = self._get_graph()
        if graph is None or not graph.attached:
            return []
        stack_ids = {id(layer) for layer in self._stack}
        is_extra = lambda layer: id(layer) not in stack_ids and not isinstance(layer, InputLayer)
        return [layer for layer in graph.layers if is_extra(layer)]

    def _flatten_layers(self, recursive: bool = True, include_self: bool = True) -> Iterator[Any]:
        layers = super()._flatten_layers(recursive, include_self)
        if include_self:
            yield next(layers)
        if self._is_input_declared and self._input is not None:
            yield self._input._keras_history.layer
        yield from layers

    @property
    def _builds_by_shape(self) -> bool:
        return True

    def _group_weighted_parts(self) -> list[list[Any]]:
        return [[layer] for layer in self.layers]

    def add(self, layer: Any) -> None:
        """Add a layer at the end of the stack.

        Args:
          layer: Layer or `tf.Module`; or, as the first one, `tf.keras.Input(...)`.

        Raises:
          TypeError: If the object is neither a layer nor a module.
          ValueError: If the model contains another layer with this name, or a module is not callable.
        """
        if isinstance(layer, KerasTensor):
            layer = layer._keras_history.layer
        if not isinstance(layer, Layer):
            if isinstance(layer, Module):
                layer = _wrap_module(layer)
            elif callable(layer) and hasattr(layer, "variables"):
                layer = registry.LAYERS.table["Lambda"](layer)
            else:
                raise TypeError(
                    f"The added layer must be an instance of class Layer. Received: layer={layer} of type {type(layer)}."
                )
        if any(existing.name == layer.name and existing is not layer for existing in self._stack):
            raise ValueError(
                "All layers added to a Sequential model should have unique names. Name "
                f'"{layer.name}" is already the name of a layer in this model. Update the `name` argument to pass a '
                "unique name."
            )
        self.built = False
        self._reset_steps()
        if isinstance(layer, InputLayer):
            if self._stack or self._input is not None:
                raise ValueError(
                    f"Model {self.name} has layers already; add an Input as the first layer only."
                )
            self._set_input(layer.inbound_nodes[0].outputs)
            self._is_input_declared = True
            return
        if not self._stack and self._input is None:
            shape = _get_declared_shape(layer)
            if shape is not None:
                self._set_input(
                    Input(
                        batch_shape=shape, dtype=_get_input_dtype(layer), name=f"{layer.name}_input"
                    )
                )
                self._is_input_declared = True
        if self._input is not None:
            self._output = _call_with_one_output(layer, self._output)
        self._stack.append(layer)
        if self._input is not None:
            self._invalidate_graph()

    def _set_input(self, tensor: Tensor) -> None:
        self._input, self._output = cast(KerasTensor, tensor), tensor

    def _invalidate_graph(self) -> None:
        self._graph_pending = True
        self.built = bool(self._stack)

    def _get_graph(self) -> LayerGraph | None:
        if self.__dict__.get("_graph_pending"):
            attached = [] if self._graph is None else self._graph.attached
            self._graph = LayerGraph(self.name, self._input, self._output)
            self._graph.attach(attached)
            self._graph_pending = False
        return self._graph

    def pop(self) -> Layer:
        """Remove and return the last layer, and the losses and metrics of symbolic tensors.

        Raises:
          TypeError: If there are no layers.
        """
        if not self._stack:
            raise TypeError("There are no layers in the model.")
        layer = self._stack.pop()
        self._reset_steps()
        if self._input is not None:
            if layer.inbound_nodes:
                layer.inbound_nodes.pop()
            self._graph = None
            if self._stack:
                self._output = self._stack[-1].inbound_nodes[-1].outputs
                self._invalidate_graph()
            else:
                self._input = self._output = None
                self._graph_pending = self._is_input_declared = self.built = False
        return layer

    @overridable
    def build(self, input_shape: ShapeLike = None) -> None:
        """Create the weights for an input shape, batch dimension first."""
        if self._input is None:
            if input_shape is None:
                raise ValueError(
                    "You must provide an `input_shape` argument to build a Sequential model."
                )
            # Keras accepts an empty shape, with which the layers are built at the first call.
            if TensorShape(input_shape).rank != 0:
                name = f"{self._stack[0].name}_input" if self._stack else None
                self._connect(TensorShape(input_shape).as_list(), None, name)
                self._is_input_declared = True
        self._build_input_shape = TensorShape(
            as_tuples(self._input.shape) if self._input is not None else input_shape
        )
        self.built = True

    def _maybe_build(self, inputs: PyTree, args: tuple = (), kwargs: dict | None = None) -> None:
        # The method of a subclass may call the layers on other tensors, or not at all.
        if not self.built and type(self).call is Sequential.call:
            self._connect_to(inputs)
        self.built = True

    def _connect_to(self, inputs: PyTree) -> None:
        """Call the layers on a symbolic input like the first inputs, unless there is one."""
        has_shape = isinstance(getattr(inputs, "shape", None), TensorShape)
        if self._input is None and self._stack and has_shape and not is_extension(inputs):
            shape = inputs.shape.as_list()
            # Batch sizes vary in training; an eager call keeps its batch size, as in TensorFlow.
            batch_shape = shape if executing_eagerly() else [None, *shape[1:]]
            first = self._stack[0]
            assert_input_compatibility(first.input_spec, inputs, first.name)
            name = f"{first.name}_input"
            try:
                self._connect(batch_shape, inputs.dtype, name, isinstance(inputs, SparseTensor))
            except ShapelessSpecError:
                # The layers are called one by one, for example to return a distribution.
                self._input = self._output = None
            self._discard_inferred_losses()

    def _discard_inferred_losses(self) -> None:
        """Remove the placeholders of losses, which the call that follows computes."""
        for layer in self._flatten_layers():
            layer._inferred_losses = []

    def _connect(
        self,
        shape: Sequence[int | None],
        dtype: DTypeLike | None,
        name: str | None,
        is_sparse: bool = False,
    ) -> None:
        """Call the layers on a symbolic input of a shape; those that occur again only once, as Keras does."""
        self._stack[:] = dict.fromkeys(self._stack)
        self._set_input(Input(batch_shape=list(shape), dtype=dtype, name=name, sparse=is_sparse))
        for layer in self._stack:
            self._output = _call_with_one_output(layer, self._output)
        self._invalidate_graph()

    def _relax_input_shape(self, inputs: Any) -> None:
        """Make input sizes unknown that differ from the first inputs, unless declared."""
        if self._is_input_declared or self._input is None or not self._stack:
            return
        if self._list_attached_layers():
            return  # They belong to the present input.
        current, new = self._input.shape.as_list(), inputs.shape.as_list()
        if len(current) != len(new) or all(
            a in (None, b) for a, b in zip(current, new, strict=True)
        ):
            return
        shape = [a if a == b else None for a, b in zip(current, new, strict=True)]
        before = self._input, self._output
        calls = [(layer, list(layer.inbound_nodes)) for layer in self.layers]
        for layer in self._stack:
            layer.inbound_nodes.pop()
        try:
            self._connect(shape, before[0].dtype, before[0]._keras_history.layer.name)
            self._discard_inferred_losses()
        except Exception:
            # The layers reject such inputs; the previous graph remains in use.
            self._input, self._output = before
            for layer, nodes in calls:
                layer.inbound_nodes[:] = nodes
            raise

    @overridable
    def call(self, inputs: PyTree, training: Any = None, mask: PyTree = None) -> PyTree:
        """Compute the output of the last layer.

        Args:
          inputs: Input tensor.
          training: Whether layers use training mode.
          mask: Mask of the inputs.
        """
        if isinstance(inputs, (list, tuple)) and len(inputs) == 1:
            inputs = inputs[0]
        if isinstance(inputs, Mapping) and isinstance(self._input, KerasTensor):
            inputs = inputs.get(self._input._keras_history.layer.name, inputs)
        if mask is not None:
            inputs._keras_mask = mask
        if type(self).call is not Sequential.call:
            self._connect_to(inputs)
        if self._input is None:
            # Inputs of several features have no placeholder, so that loading a file needs their specs.
            self._set_save_spec(inputs)
        graph = self._get_graph()
        if graph is not None and (graph.precomputed is not None or graph.attached):
            return graph.run(inputs)
        if self._input is not None and hasattr(inputs, "_value"):
            self._relax_input_shape(inputs)
            # Inputs of another rank pass through the layers, if the first inputs determined the shape.
            if self._is_input_declared or len(inputs.shape) == self._input.shape.rank:
                inputs = fit_input(self._input, inputs, self.name)
        for layer in self._stack if self._input is not None else dict.fromkeys(self._stack):
            inputs = layer(inputs)
        return inputs

    @overridable
    def compute_output_shape(self, input_shape: PyTree) -> PyTree:
        """Compute the shape of the output for an input shape."""
        shape: Any = TensorShape(input_shape)
        for layer in self._stack:
            shape = layer.compute_output_shape(shape)
        return shape

    @property
    def weights(self) -> list[Variable]:
        """Return all weights, layer by layer.

        Raises:
          ValueError: If the input shape is not known yet.
        """
        if not self.built and self._stack and not any(layer.built for layer in self._stack):
            raise ValueError(
                f"Weights for model {self.name} have not yet been created. Weights are created when the Model is "
                "first called on inputs or `build()` is called with an `input_shape`."
            )
        return super().weights

    @property
    def _saved_weights(self) -> list[Any]:
        # A model that is not built has a file without weights.
        return super()._saved_weights if self.built else []

    def get_config(self) -> Config:
        """Return the configuration, which contains the name and the layers."""
        configs = []
        if self._input is not None:
            input_layer = self._input._keras_history.layer
            configs.append(serialization.serialize(input_layer))
        configs += [serialization.serialize(layer) for layer in self._stack]
        config = {"name": self.name, "layers": configs}
        attached_names = {layer.name for layer in self._list_attached_layers()}
        graph = self._get_graph()
        if graph is not None and attached_names:
            entries = make_graph_config(graph, self.name, self.trainable)["layers"]
            # Keras ignores this entry.
            config["attached_layers"] = [e for e in entries if e["name"] in attached_names]
        return config

    @classmethod
    def from_config(
        cls, config: Config | list[Config], custom_objects: dict[str, Any] | None = None
    ) -> Any:
        """Create a model from the result of `get_config`, with new weights."""
        name = config.get("name") if isinstance(config, dict) else None
        entries = config["layers"] if isinstance(config, dict) else config
        model = cls(name=name)
        layers: dict[str, Layer] = {}
        for i, entry in enumerate(entries):
            with prefix_errors(f"Layer {i} of model {name!r}"):
                layer = registry.LAYERS.deserialize(entry, custom_objects=custom_objects)
            # Names are unique, so a second entry with the same name is the same layer.
            model.add(layers.setdefault(layer.name, layer))
        if isinstance(config, dict) and config.get("build_input_shape") and not model.built:
            model.build(config["build_input_shape"])
        if isinstance(config, dict):
            attach_layers(model, config, custom_objects)
        return model


def attach_layers(
    model: Sequential, config: Config, custom_objects: dict[str, Any] | None = None
) -> None:
    """Add the losses and metrics of symbolic tensors that a configuration has, to a model.

    Args:
      model: Model of the same layers.
      config: Result of `Sequential.get_config`.
      custom_objects: Additional classes and functions by name.
    """
    graph, entries = get_graph(model), config.get("attached_layers")
    if graph is None or not entries:
        return
    tensors: dict[tuple[str, int], list[KerasTensor]] = {}
    for (name, call, _), tensor in graph.get_tensors_by_key().items():
        tensors.setdefault((name, call), []).append(tensor)
    added = {"name": model.name, "layers": entries, "input_layers": [], "output_layers": []}
    graph.attach(build_graph_from_config(added, custom_objects, tensors)[2])


def _get_declared_shape(layer: Layer) -> tuple[int | None, ...] | None:
    """Return the batch input shape that a layer, or the first layer of a nested model, declares."""
    shape = getattr(layer, "_batch_input_shape", None)
    if shape is not None:
        # A layer that was called on single elements does not determine the batch size.
        return shape or None
    graph = get_graph(layer)
    if graph is not None and len(graph.flat_inputs) == 1:
        return as_tuples(graph.flat_inputs[0].shape)
    return None


def _get_input_dtype(layer: Layer) -> DTypeLike | None:
    graph = get_graph(layer)
    if graph is not None:
        return graph.flat_inputs[0].dtype
    return layer.dtype


def _wrap_module(module: Module) -> Layer:
    """Return a layer that calls a module, or its method `call`."""
    function = module if callable(module) else getattr(module, "call", None)
    if function is None:
        raise ValueError(f"__call__ is not defined on object {module}")
    layer = cast(Layer, registry.LAYERS.table["Lambda"](function))
    # The layer tracks the variables of its attributes.
    layer.module = module
    return layer


def _call_with_one_output(layer: Layer, inputs: Any) -> Any:
    outputs = layer(inputs)
    if len(nest.flatten(outputs)) != 1:
        raise ValueError(
            "All layers in a Sequential model should have a single output tensor. For multi-output layers, use the "
            f"functional API. Layer {layer.name!r} has {len(nest.flatten(outputs))} outputs."
        )
    return outputs
