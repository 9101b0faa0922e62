"""Symbolic calls of a layer, and its nodes in graphs of layers."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from meshflow.core.autograph.status import override_status
from meshflow.core.runtime.context import fresh_name_scope
from meshflow.core.runtime.name_scopes import name_scope
from meshflow.core.values import nest
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import PyTree, overridable
from meshflow.keras import settings
from meshflow.keras.engine.layer import shape_inference
from meshflow.keras.engine.layer.call_errors import LayerCall, make_symbolic_error
from meshflow.keras.engine.layer.helpers import as_tuples, has_override
from meshflow.keras.engine.layer.losses_and_metrics import make_loss_placeholder
from meshflow.keras.engine.symbolic.call_signature import call_state
from meshflow.keras.engine.symbolic.input_spec import assert_input_compatibility
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor, Node, get_shapes


class SymbolicCallMethods:
    """Methods of `Layer` for calls on symbolic tensors."""

    _name: str
    _input_spec: Any
    _build_input_shape: Any
    _inbound_nodes: list[Node]
    _inferred_losses: list[KerasTensor]
    _activity_regularizer: Any
    built: bool

    if TYPE_CHECKING:
        # Attributes that other base classes of `Layer` define.
        @property
        def name(self) -> str:
            """Return the name of the layer."""

        @property
        def compute_dtype(self) -> str | None:
            """Return the dtype name of the computation, None if it follows the inputs."""

        def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
            """Call the layer on tensors or symbolic tensors."""

        def build(self, input_shape: PyTree) -> None:
            """Create the weights for inputs of a shape."""

        def call(self, inputs: PyTree, *args: Any, **kwargs: Any) -> PyTree:
            """Compute the outputs."""

        def _call_scope(
            self, training: Any, named: bool = True
        ) -> AbstractContextManager[None]: ...
        def _maybe_build(
            self, inputs: PyTree, args: tuple = (), kwargs: dict | None = None
        ) -> None: ...
        def _flatten_layers(
            self, recursive: bool = True, include_self: bool = True
        ) -> Iterator[Any]: ...

    def _call_symbolically(self, inputs: PyTree, args: tuple, kwargs: dict) -> PyTree:
        assert_input_compatibility(self._input_spec, inputs, self._name)
        # Names in a graph of layers do not depend on name scopes that are open while the graph is
        # built.
        try:
            with name_scope(""), fresh_name_scope():
                self._build_symbolic(inputs, args, kwargs)
                outputs = self._infer_outputs(inputs, args, kwargs)
        except Exception as error:
            call = LayerCall(self, self.call, (inputs, *args), kwargs)
            described = make_symbolic_error(error, call)
            if described is error:
                raise
            raise described from None
        if self._input_spec is not None:
            assert_input_compatibility(self._input_spec, inputs, self._name)
        Node(self, (inputs, *args), kwargs, outputs)
        return outputs

    def _build_symbolic(self, inputs: PyTree, args: tuple, kwargs: dict) -> None:
        with self._call_scope(None):
            self._maybe_build(inputs, args, kwargs)

    def _infer_outputs(self, inputs: PyTree, args: tuple, kwargs: dict) -> PyTree:
        computed = self._compute_output_spec(inputs, args, kwargs)
        if computed is not None:
            if self._activity_regularizer is not None:
                self._inferred_losses = [*self._inferred_losses, make_loss_placeholder(self)]
            return computed
        losses_by_layer: dict[int, tuple[Any, list[KerasTensor]]] = {}
        # A user's `__call__` has called this method, and takes its result.
        inherited_call = next(
            c.__call__
            for c in type(self).__mro__
            if c.__module__.startswith("meshflow.") and "__call__" in vars(c)
        )

        def run(inputs: Any, *args: Any, **kwargs: Any) -> Any:
            saved = [
                (layer, list(layer._losses), layer._inferred_losses, list(layer._own_metrics))
                for layer in self._flatten_layers()
            ]
            layers, trainings = list(call_state.layers), list(call_state.training)
            call_state.layers.clear()
            call_state.training[:] = trainings[-1:]
            try:
                with override_status(True):
                    return inherited_call(self, inputs, *args, **kwargs)
            finally:
                call_state.layers[:], call_state.training[:] = layers, trainings
                for layer, losses, before, metrics in saved:
                    added = [
                        make_loss_placeholder(layer) for loss in layer._losses if not callable(loss)
                    ]
                    losses_by_layer[id(layer)] = (layer, [*before, *added])
                    layer._losses, layer._own_metrics = losses, metrics
                    layer._inferred_losses = before

        has_own_rule = has_override(self, "compute_output_shape", SymbolicCallMethods)
        declared = functools.partial(self._get_declared_outputs, inputs) if has_own_rule else None
        outputs = shape_inference.infer_outputs(run, (inputs, *args), kwargs, declared)
        for layer, losses in losses_by_layer.values():
            if len(losses) > len(layer._inferred_losses):
                layer._inferred_losses = losses
        return outputs

    def _get_declared_outputs(self, inputs: PyTree) -> PyTree:
        """Return the outputs that an overridden `compute_output_shape` declares."""
        shapes = self.compute_output_shape(nest.map_structure(lambda t: t.shape, inputs))
        dtype = self.compute_dtype or settings.floatx()
        return shape_inference.map_shapes(lambda s: KerasTensor(TensorSpec(s, dtype)), shapes)

    def _compute_output_spec(self, inputs: PyTree, args: tuple, kwargs: dict) -> KerasTensor | None:
        """Compute the output by `compute_output_shape`, if a built-in layer has one float input.

        This saves the trace of `call`, which takes most of the time of building a model.
        """
        if args or not isinstance(inputs, KerasTensor) or not inputs.dtype.is_floating:
            return None
        creates_mask = getattr(self, "mask_zero", False)
        if inputs._keras_mask is not None or inputs.is_composite or creates_mask:
            # Only a trace determines the mask of the output, and whether it is sparse or ragged.
            return None
        if not type(self).__module__.startswith("meshflow.keras.layers.") or set(kwargs) - {
            "training"
        }:
            return None
        if not has_override(self, "compute_output_shape", SymbolicCallMethods) or getattr(
            self, "_traced_shape", False
        ):
            return None
        nodes = self._inbound_nodes
        if nodes and get_shapes(nodes[0].args[0]) != inputs.shape:
            # A trace determines whether the weights fit these inputs.
            return None
        if next(self._flatten_layers(include_self=False), None) is not None:
            # A trace builds the sublayers, such as an activation with weights.
            return None

        shape = self.compute_output_shape(inputs.shape)
        compute = self.compute_dtype or inputs.dtype.name
        if isinstance(shape, TensorShape) or (
            isinstance(shape, tuple) and all(d is None or isinstance(d, int) for d in shape)
        ):
            if 0 in shape and 0 not in inputs.shape:
                # A trace reports windows that do not fit into the inputs.
                return None
            return KerasTensor(TensorSpec(shape, compute))
        return None

    @overridable
    def compute_output_shape(self, input_shape: PyTree) -> PyTree:
        """Compute the shape of the output for an input shape, without running the layer.

        Args:
          input_shape: Shape or structure of shapes.

        Returns:
          A `TensorShape` or a structure of them.

        Example:
          >>> tf.keras.layers.Dense(4).compute_output_shape([None, 3])
          TensorShape([None, 4])
        """
        shape = shape_inference.map_shapes(lambda s: s, input_shape)
        if not self.built:
            with self._call_scope(None):
                self._build_input_shape = shape
                self.build(shape)
                self.built = True
        return shape_inference.infer_output_shape(
            self.__call__, shape, self.compute_dtype or settings.floatx()
        )

    @overridable
    def compute_output_signature(self, input_signature: PyTree) -> PyTree:
        """Compute the `TensorSpec`s of the output for `TensorSpec`s of the input."""
        inputs = nest.map_structure(KerasTensor, input_signature)
        self._build_symbolic(inputs, (), {})
        return nest.map_structure(lambda t: t.type_spec, self._infer_outputs(inputs, (), {}))

    # ---- the layer in a graph --------------------------------------------------------------

    @property
    def inbound_nodes(self) -> list[Node]:
        """Return the calls of this layer on symbolic tensors."""
        return self._inbound_nodes

    @property
    def outbound_nodes(self) -> list[Node]:
        """Return the calls of layers on the outputs of this layer."""
        return [user for node in self._inbound_nodes for user in node.users]

    # Code written for TensorFlow reads this name.
    _outbound_nodes = outbound_nodes

    def _get_first_node(self, attribute: str) -> Node:
        if not self._inbound_nodes:
            raise AttributeError(
                f"Layer {self.name} has no inbound nodes: it is not connected, so it has no {attribute}. Call it on a "
                "tf.keras.Input."
            )
        return self._inbound_nodes[0]

    @property
    def input(self) -> Tensor:
        """Return the symbolic input of the layer's first call."""
        return _get_inputs(self._get_first_node("input"))

    @property
    def input_mask(self) -> PyTree:
        """Return the symbolic mask of the input of the layer's first call, or None."""
        return _get_masks(self.input)

    @property
    def output_mask(self) -> PyTree:
        """Return the symbolic mask of the output of the layer's first call, or None."""
        return _get_masks(self.output)

    @property
    def output(self) -> Tensor:
        """Return the symbolic output of the layer's first call."""
        return self._get_first_node("output").outputs

    @property
    def input_shape(self) -> PyTree:
        """Return the shape of the input as a tuple or list of tuples."""
        if not self._inbound_nodes:
            raise AttributeError(
                f"The layer {self.name} has never been called and thus has no defined input shape."
            )
        inputs = [_get_inputs(node) for node in self._inbound_nodes]
        if len({str(get_shapes(i)) for i in inputs}) > 1:
            raise AttributeError(
                f"The layer {self.name} has multiple inbound nodes with different input shapes. Hence the notion "
                "of input shape is ill-defined for the layer. Use `get_input_shape_at(node_index)` instead."
            )
        return as_tuples(get_shapes(inputs[0]))

    @property
    def output_shape(self) -> PyTree:
        """Return the shape of the output as a tuple or list of tuples."""
        if not self._inbound_nodes:
            raise AttributeError(
                f"The layer {self.name} has never been called and thus has no defined output shape."
            )
        shapes = {str(get_shapes(node.outputs)) for node in self._inbound_nodes}
        if len(shapes) > 1:
            raise AttributeError(
                f"The layer {self.name} has multiple inbound nodes with different output shapes. Hence the notion "
                "of output shape is ill-defined for the layer. Use `get_output_shape_at(node_index)` instead."
            )
        return as_tuples(get_shapes(self._inbound_nodes[0].outputs))

    def get_input_at(self, node_index: int) -> PyTree:
        """Return the symbolic input of one call."""
        return _get_inputs(self._get_node(node_index, "input"))

    def get_output_at(self, node_index: int) -> PyTree:
        """Return the symbolic output of one call."""
        return self._get_node(node_index, "output").outputs

    def _get_node(self, index: int, attribute: str) -> Node:
        if not self._inbound_nodes:
            raise RuntimeError(
                f"The layer {self.name} has never been called and thus has no defined {attribute}."
            )
        if index >= len(self._inbound_nodes):
            raise ValueError(
                f"Asked to get {attribute} at node {index}, but the layer has only {len(self._inbound_nodes)} inbound "
                "nodes."
            )
        return self._inbound_nodes[index]

    def get_input_shape_at(self, node_index: int) -> PyTree:
        """Return the input shape of one call."""
        return as_tuples(get_shapes(_get_inputs(self._get_node(node_index, "input shape"))))

    def get_output_shape_at(self, node_index: int) -> PyTree:
        """Return the output shape of one call."""
        return as_tuples(get_shapes(self._get_node(node_index, "output shape").outputs))

    def get_input_mask_at(self, node_index: int) -> PyTree:
        """Return the symbolic mask of the input of one call, or None."""
        return _get_masks(self.get_input_at(node_index))

    def get_output_mask_at(self, node_index: int) -> PyTree:
        """Return the symbolic mask of the output of one call, or None."""
        return _get_masks(self.get_output_at(node_index))


def _get_inputs(node: Node) -> PyTree:
    """Return the symbolic inputs of a call; those of an input layer are its outputs."""
    return node.outputs if node.is_input else node.input_tensors


def _get_masks(tensors: PyTree) -> PyTree:
    """Return the mask of a symbolic tensor, or a list of the masks of several."""
    if isinstance(tensors, KerasTensor):
        return tensors._keras_mask
    return [tensor._keras_mask for tensor in nest.flatten(tensors)]
