"""Symbolic calls of a layer, and its places in graphs of layers."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from meshflow.core.autograph.status import switched
from meshflow.core.runtime.context import fresh_names
from meshflow.core.runtime.names import name_scope
from meshflow.core.values import nest
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.keras import settings
from meshflow.keras.engine.layer import shape_inference
from meshflow.keras.engine.layer.helpers import as_tuples, overrides
from meshflow.keras.engine.symbolic.call_signature import call_state
from meshflow.keras.engine.symbolic.input_spec import assert_input_compatibility
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor, Node, shape_of


class LayerGraph:
    """How a layer takes part in functional models; a base class of `Layer`."""

    _name: str
    _input_spec: Any
    _build_input_shape: Any
    _inbound_nodes: list[Node]
    _symbolic_losses: list[KerasTensor]
    _activity_regularizer: Any
    built: bool

    if TYPE_CHECKING:
        # What the rest of `Layer` gives it.
        @property
        def name(self) -> str: ...
        @property
        def compute_dtype(self) -> str | None: ...
        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
        def build(self, input_shape: Any) -> None: ...
        def _calling(self, training: Any, named: bool = True) -> AbstractContextManager[None]: ...
        def _maybe_build(self, inputs: Any, args: Any = (), kwargs: Any = None) -> None: ...
        def _flatten_layers(
            self, recursive: bool = True, include_self: bool = True
        ) -> Iterator[Any]: ...

    def _symbolic_call(self, inputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert_input_compatibility(self._input_spec, inputs, self._name)
        # A graph of layers is built apart: open name scopes are no part of its names.
        with name_scope(""), fresh_names():
            self._build_symbolic(inputs, args, kwargs)
            outputs = self._infer_outputs(inputs, args, kwargs)
        if self._input_spec is not None:
            assert_input_compatibility(self._input_spec, inputs, self._name)
        Node(self, (inputs, *args), kwargs, outputs)
        return outputs

    def _build_symbolic(self, inputs: Any, args: Any, kwargs: Any) -> None:
        with self._calling(None):
            self._maybe_build(inputs, args, kwargs)

    def _infer_outputs(self, inputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        quick = self._quick_output_spec(inputs, args, kwargs)
        if quick is not None:
            if self._activity_regularizer is not None:
                self._symbolic_losses = [*self._symbolic_losses, _scalar(self)]
            return quick
        foreseen: dict[int, tuple[Any, list[KerasTensor]]] = {}

        def run(inputs: Any, *args: Any, **kwargs: Any) -> Any:
            saved = [
                (layer, list(layer._losses), layer._symbolic_losses, list(layer._own_metrics))
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
                for layer, losses, before, metrics in saved:
                    added = [_scalar(layer) for loss in layer._losses if not callable(loss)]
                    foreseen[id(layer)] = (layer, [*before, *added])
                    layer._losses, layer._own_metrics = losses, metrics
                    layer._symbolic_losses = before

        says = overrides(self, "compute_output_shape", LayerGraph)
        declared = functools.partial(self._declared_outputs, inputs) if says else None
        outputs = shape_inference.infer(run, (inputs, *args), kwargs, declared)
        for layer, losses in foreseen.values():
            if len(losses) > len(layer._symbolic_losses):
                layer._symbolic_losses = losses
        return outputs

    def _declared_outputs(self, inputs: Any) -> Any:
        """The output as the author's `compute_output_shape` says, where sizes depend on values."""
        shapes = self.compute_output_shape(nest.map_structure(lambda t: t.shape, inputs))
        dtype = self.compute_dtype or settings.floatx()
        return shape_inference.map_shapes(lambda s: KerasTensor(TensorSpec(s, dtype)), shapes)

    def _quick_output_spec(self, inputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The output from `compute_output_shape`, for built-in layers on one floating input.

        Saves tracing `call`, which is most of the time it takes to build a model.
        """
        if args or not isinstance(inputs, KerasTensor) or not inputs.dtype.is_floating:
            return None
        if inputs._keras_mask is not None:
            # What becomes of the mask is found by tracing only.
            return None
        if not type(self).__module__.startswith("meshflow.keras.layers.") or set(kwargs) - {
            "training"
        }:
            return None
        if not overrides(self, "compute_output_shape", LayerGraph) or getattr(
            self, "_traced_shape", False
        ):
            return None

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

        Example:
          >>> import meshflow as tf
          >>> tf.keras.layers.Dense(4).compute_output_shape([None, 3])
          TensorShape([None, 4])
        """
        shape = shape_inference.map_shapes(lambda s: s, input_shape)
        if not self.built:
            with self._calling(None):
                self._build_input_shape = shape
                self.build(shape)
                self.built = True
        return shape_inference.output_shape(
            self.__call__, shape, self.compute_dtype or settings.floatx()
        )

    def compute_output_signature(self, input_signature: Any) -> Any:
        """`TensorSpec`s of the output for `TensorSpec`s of the input."""
        inputs = nest.map_structure(KerasTensor, input_signature)
        self._build_symbolic(inputs, (), {})
        return nest.map_structure(lambda t: t.type_spec, self._infer_outputs(inputs, (), {}))

    # ---- the layer in a graph --------------------------------------------------------------

    @property
    def inbound_nodes(self) -> list[Node]:
        """Calls of this layer on symbolic tensors."""
        return self._inbound_nodes

    @property
    def outbound_nodes(self) -> list[Node]:
        """Calls of layers on what this layer's calls give."""
        return [user for node in self._inbound_nodes for user in node.users]

    # What TensorFlow's code reads.
    _outbound_nodes = outbound_nodes

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
    def input_mask(self) -> Any:
        """The symbolic mask of the input of the layer's only call, or None."""
        return _masks(self.input)

    @property
    def output_mask(self) -> Any:
        """The symbolic mask of the output of the layer's only call, or None."""
        return _masks(self.output)

    @property
    def output(self) -> Any:
        """The symbolic output of the layer's only call."""
        return self._single_node("output").outputs

    @property
    def input_shape(self) -> Any:
        """Shape of the input as a tuple (or list of tuples)."""
        if not self._inbound_nodes:
            raise AttributeError(
                f"The layer {self.name} has never been called and thus has no defined input shape."
            )
        nodes = self._inbound_nodes
        inputs = [n.outputs if n.is_input else n.input_tensors for n in nodes]
        if len({str(shape_of(i)) for i in inputs}) > 1:
            raise AttributeError(
                f"The layer {self.name} has multiple inbound nodes with different input shapes. Hence the notion "
                "of input shape is ill-defined for the layer. Use `get_input_shape_at(node_index)` instead."
            )
        return as_tuples(shape_of(inputs[0]))

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
        node = self._node_at(node_index, "input")
        return node.outputs if node.is_input else node.input_tensors

    def get_output_at(self, node_index: int) -> Any:
        """The symbolic output of one call."""
        return self._node_at(node_index, "output").outputs

    def _node_at(self, index: int, what: str) -> Node:
        if not self._inbound_nodes:
            raise RuntimeError(
                f"The layer {self.name} has never been called and thus has no defined {what}."
            )
        if index >= len(self._inbound_nodes):
            raise ValueError(
                f"Asked to get {what} at node {index}, but the layer has only {len(self._inbound_nodes)} inbound "
                "nodes."
            )
        return self._inbound_nodes[index]

    def get_input_shape_at(self, node_index: int) -> Any:
        """Input shape of one call."""
        return as_tuples(shape_of(self.get_input_at(node_index)))

    def get_output_shape_at(self, node_index: int) -> Any:
        """Output shape of one call."""
        return as_tuples(shape_of(self.get_output_at(node_index)))

    def get_input_mask_at(self, node_index: int) -> Any:
        """The symbolic mask of the input of one call, or None."""
        return _masks(self.get_input_at(node_index))

    def get_output_mask_at(self, node_index: int) -> Any:
        """The symbolic mask of the output of one call, or None."""
        return _masks(self.get_output_at(node_index))


def _scalar(layer: Any) -> KerasTensor:
    """Stands for a loss that a layer adds."""
    return KerasTensor(TensorSpec((), layer.compute_dtype or settings.floatx()))


def _masks(tensors: Any) -> Any:
    """The mask of a symbolic tensor, or a list of the masks of several."""
    if isinstance(tensors, KerasTensor):
        return tensors._keras_mask
    return [tensor._keras_mask for tensor in nest.flatten(tensors)]
