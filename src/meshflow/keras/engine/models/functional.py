"""`Functional`: a named model that is defined by a graph of layer calls."""

from __future__ import annotations

import collections
import inspect
import logging
from collections.abc import Mapping
from typing import Any

from meshflow.core.values import nest
from meshflow.core.values.convert import constant
from meshflow.core.values.dtypes import DType, as_dtype
from meshflow.core.values.tensor import is_tensor
from meshflow.environment.types import Config, Json, PyTree
from meshflow.keras import registry, serialization, settings
from meshflow.keras.engine.graph import related_shapes  # noqa: F401 - registers its function
from meshflow.keras.engine.graph.graph import LayerGraph, fit_input
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.models.model import Model, replace_intermediate_inputs
from meshflow.keras.engine.models.operation import BoundOp
from meshflow.keras.engine.saving.keras2_calls import CONSTANT_MARKER, OP_LAYERS
from meshflow.keras.engine.saving.keras3_configuration import OPERATION_CLASS
from meshflow.keras.engine.saving.model_configuration import (
    from_keras2_calls,
    to_json,
    to_keras2_calls,
)
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor, Node
from meshflow.keras.error_context import prefix_errors

_log = logging.getLogger("meshflow")


class GraphMembers(Model):
    """Base class of models of symbolic tensors, with private members that tools for Keras read."""

    @property
    def _nodes_by_depth(self) -> dict[int, list[Node]]:
        """Return the calls of layers by their distance from the outputs."""
        graph = self._require_graph("nodes")
        nodes: dict[int, list[Node]] = {}
        depths = graph.compute_depths()
        for node in graph.nodes:
            nodes.setdefault(depths[id(node)], []).append(node)
        return nodes

    @property
    def _input_layers(self) -> list[Layer]:
        return [t.node.layer for t in self._require_graph("inputs").flat_inputs]

    @property
    def _output_layers(self) -> list[Layer]:
        return [t.node.layer for t in self._require_graph("outputs").flat_outputs]

    @property
    def _nested_inputs(self) -> PyTree:
        return self._require_graph("inputs").inputs

    @property
    def _nested_outputs(self) -> PyTree:
        return self._require_graph("outputs").outputs

    @property
    def _tensor_usage_count(self) -> collections.Counter[str]:
        """Return the number of uses of each symbolic tensor, as argument or output, by `str(id(tensor))`."""
        graph = self._require_graph("nodes")
        uses = [i for node in graph.nodes for i in node.flat_input_ids]
        return collections.Counter([*uses, *(str(id(t)) for t in graph.flat_outputs)])

    def _flatten_to_reference_inputs(self, tensors: PyTree) -> list[Any]:
        return self._require_graph("inputs").flatten_inputs(tensors)

    def _conform_to_reference_input(self, tensor: Any, ref_input: KerasTensor) -> Any:
        return fit_input(ref_input, tensor, self.name)

    def _run_internal_graph(
        self, inputs: PyTree, training: object = None, mask: PyTree = None
    ) -> PyTree:
        return self._require_graph("outputs").run(inputs, training, mask)


class Functional(GraphMembers):
    """Model that is defined by a graph; `tf.keras.Model(inputs, outputs)` creates one.

    Args:
      inputs: Symbolic inputs, in any nested structure.
      outputs: Symbolic outputs, in any nested structure.
      name: Name of the model.
      trainable: Whether the weights are trained.
      **kwargs: Arguments of `Layer`.

    Example:
      >>> inputs = tf.keras.Input([3])
      >>> model = tf.keras.Model(inputs, tf.keras.layers.Dense(2)(inputs))
      >>> isinstance(model, tf.keras.models.Functional), model.output_shape
      (True, (None, 2))
    """

    _graph: LayerGraph

    def __init__(
        self,
        inputs: PyTree = None,
        outputs: PyTree = None,
        name: str | None = None,
        trainable: bool = True,
        **kwargs: Any,
    ) -> None:
        if type(self) is Functional and kwargs:
            raise TypeError(
                f"Keyword argument not understood: {sorted(kwargs)}. A model of symbolic tensors takes `inputs`, `outputs`, "
                "`name` and `trainable`; pass other arguments to its layers."
            )
        name = name or settings.make_unique_name("model")
        super().__init__(inputs=inputs, outputs=outputs, name=name, trainable=trainable, **kwargs)
        shapes = [t.shape for t in nest.flatten(inputs) if isinstance(t, KerasTensor)]
        sizes = {size for s in shapes if s.rank and isinstance(size := s[0], int)}
        if len(sizes) > 1:
            _log.warning(
                f"Found incompatible static batch sizes among the inputs. Batch sizes: {sorted(sizes)}"
            )

    def _infer_outputs(self, inputs: PyTree, args: tuple, kwargs: dict) -> PyTree:
        try:
            return super()._infer_outputs(inputs, args, kwargs)
        except Exception:
            # Unknown sizes of several inputs are probed with the same number, which may contradict the model.
            tensors = self._graph.flatten_inputs(inputs)
            if any(
                not isinstance(tensor, KerasTensor)
                or tensor.shape.rank is None
                or tensor.shape.as_list() != own.shape.as_list()
                for tensor, own in zip(tensors, self._graph.flat_inputs, strict=True)
            ):
                raise
        return nest.map_structure(lambda t: KerasTensor(t.type_spec), self._graph.outputs)

    def get_config(self) -> Config:
        """Return the configuration: layers, their calls, inputs and outputs."""
        return to_keras2_calls(make_graph_config(self._graph, self.name, self.trainable))

    @classmethod
    def from_config(cls, config: Config, custom_objects: dict[str, Any] | None = None) -> Any:
        """Create a model from the result of `get_config`, with new weights."""
        inputs, outputs, results = build_graph_from_config(
            from_keras2_calls(config), custom_objects
        )
        # Losses and metrics between layers do not lead to an output.
        inputs, (outputs, results) = replace_intermediate_inputs(
            str(config.get("name")), inputs, (outputs, results)
        )
        model = cls(inputs=inputs, outputs=outputs, name=config.get("name"))
        if model._graph is not None:
            model._graph.attach(results)
        if not config.get("trainable", True):
            model.trainable = False
        return model


registry.LAYERS.add(**{OPERATION_CLASS: BoundOp})


def make_graph_config(graph: LayerGraph, name: str, trainable: bool) -> Config:
    """Describe a graph in the format of Keras 2."""
    included = {id(n) for n in graph.nodes}
    indices = graph.index_calls()
    layers = []
    for layer in graph.layers:
        calls = [n for n in layer.inbound_nodes if id(n) in included and not n.is_input]
        entry = serialization.serialize(layer)
        call_configs = [_make_call_config(n, indices) for n in calls]
        layers.append(entry | {"name": layer.name, "inbound_nodes": call_configs})
    return {
        "name": name,
        "trainable": trainable,
        "layers": layers,
        "input_layers": _make_references(graph.inputs, indices),
        "output_layers": _make_references(graph.outputs, indices),
    }


def _make_references(structure: PyTree, indices: dict[int, int]) -> Json:
    references = _unwrap_references(
        nest.map_structure(lambda t: _ReferenceLeaf(_make_reference(t, indices)), structure)
    )
    return [references] if isinstance(structure, KerasTensor) else references


class _ReferenceLeaf:
    """Leaf with a reference, [layer name, node index, tensor index], for `nest`."""

    def __init__(self, place: list[Any]) -> None:
        self.reference = place


def _unwrap_references(structure: PyTree) -> Json:
    if isinstance(structure, _ReferenceLeaf):
        return structure.reference
    if isinstance(structure, dict):
        return {key: _unwrap_references(value) for key, value in structure.items()}
    return [_unwrap_references(value) for value in structure]


def _make_reference(tensor: KerasTensor, indices: dict[int, int]) -> list[Any]:
    layer, _, index = tensor._keras_history
    return [layer.name, indices[id(tensor.node)], index]


def _make_call_config(node: Node, indices: dict[int, int]) -> Config:
    def encode(value: Any) -> Json:
        if isinstance(value, KerasTensor):
            return {"keras_tensor": _make_reference(value, indices)}
        if isinstance(value, dict):
            return {"mapping": {k: encode(v) for k, v in value.items()}}
        if isinstance(value, (list, tuple)):
            return {"list" if isinstance(value, list) else "tuple": [encode(v) for v in value]}
        return _encode_constant(value)

    args, kwargs = _name_arguments(node)
    _check_serializable(node)
    if args and type(args[0]) is int and node.keras_inputs[0].dtype.is_floating:
        # TensorFlow would convert an integer to an integer tensor before it inspects the other
        # argument.
        args = (float(args[0]), *args[1:])
    return {
        "args": [encode(a) for a in args],
        "kwargs": {k: encode(v) for k, v in kwargs.items()},
        **({"said": {"name": name[0]}} if (name := getattr(node.layer, "_call_name", ())) else {}),
    }


def _check_serializable(node: Node) -> None:
    """Raise a `TypeError` for arguments of a call that a file cannot hold."""
    for value in nest.flatten((node.args, node.kwargs)):
        if not isinstance(value, (KerasTensor, DType)) and value is not Ellipsis:
            try:
                to_json(_encode_constant(value))
            except TypeError as error:
                raise TypeError(
                    f"Layer {node.layer.name} was passed non-JSON-serializable arguments. They cannot be serialized out "
                    f"when saving the model: {error}"
                ) from error


def _name_arguments(node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call, all but the first by name, as Keras 2 files store them."""
    args, kwargs, layer = node.args, node.kwargs, node.layer
    if len(args) < 2:
        return args, kwargs
    try:
        parameters = inspect.signature(getattr(layer, "_function", layer.call)).parameters.values()
    except (TypeError, ValueError):
        return args, kwargs
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(names) < len(args):
        return args, kwargs
    return args[:1], {**dict(zip(names[1:], args[1:], strict=False)), **kwargs}


def _encode_constant(value: Any) -> Json:
    if value is Ellipsis:
        return {"ellipsis": True}
    if isinstance(value, DType):
        return {"dtype": value.name}
    if is_tensor(value):
        return {"constant": value.numpy().tolist(), "of": value.dtype.name}
    if hasattr(value, "tolist"):
        return {"constant": value.tolist(), "of": str(value.dtype)}
    return value


def build_graph_from_config(
    config: Config,
    custom_objects: dict[str, Any] | None = None,
    tensors: Mapping[tuple[str, int], list[KerasTensor]] | None = None,
) -> tuple[PyTree, PyTree, list[KerasTensor]]:
    """Create the graph of a configuration.

    Args:
      config: Configuration of a Functional model, in which nested models are called from 0.
      custom_objects: Additional classes and functions by name.
      tensors: Existing tensors that the calls may use, by layer name and index of its call.

    Returns:
      Its symbolic inputs, outputs, and the results of all calls in the order of the configuration.
    """
    layers: dict[str, Any] = {}
    results: dict[tuple[str, int], list[KerasTensor]] = dict(tensors or {})
    pending: list[tuple[str, int, dict[str, Any]]] = []
    for entry in config["layers"]:
        with prefix_errors(f"Layer {entry['name']!r} of model {config.get('name')!r}"):
            layer = registry.LAYERS.deserialize(entry, custom_objects)
        layers[entry["name"]] = layer
        # Earlier calls of a layer that another model shares do not belong to this graph.
        nodes = [] if registry.LAYERS.is_called_replacement(layer, entry) else layer.inbound_nodes
        if nodes:
            results[entry["name"], 0] = nodes[0].flat_outputs
        offset = 1 if nodes and not hasattr(layer, "layers") else 0
        keeps_lists = entry["class_name"] in OP_LAYERS
        for i, call in enumerate(entry["inbound_nodes"]):
            pending.append((entry["name"], i + offset, _convert_call(call, keeps_lists)))

    calls = [(name, index) for name, index, _ in pending]

    def decode(value: Json) -> Any:
        if isinstance(value, dict):
            if "keras_tensor" in value:
                return _resolve_reference(results, value["keras_tensor"])
            if "mapping" in value:
                return {k: decode(v) for k, v in value["mapping"].items()}
            if "list" in value:
                return [decode(v) for v in value["list"]]
            if "tuple" in value:
                return tuple(decode(v) for v in value["tuple"])
            if "dtype" in value and len(value) == 1:
                return as_dtype(value["dtype"])
            if "constant" in value:
                return constant(value["constant"], dtype=value["of"])
            if "slice" in value:
                return slice(*(decode(v) for v in value["slice"]))
            if "ellipsis" in value:
                return Ellipsis
        return value

    while pending:
        left = []
        for name, index, call in pending:
            try:
                args = [decode(a) for a in call["args"]]
                kwargs = {k: decode(v) for k, v in call["kwargs"].items()}
            except KeyError:
                left.append((name, index, call))
                continue
            with prefix_errors(f"Layer {name!r} of model {config.get('name')!r}"):
                outputs = layers[name](*args, **kwargs)
            results[name, index] = [o for o in nest.flatten(outputs) if isinstance(o, KerasTensor)]
        if len(left) == len(pending):
            raise ValueError(
                f"The configuration of model {config.get('name')!r} has calls whose inputs never appear: "
                f"{sorted({name for name, _, _ in left})}."
            )
        pending = left

    def resolve(structure: Json) -> PyTree:
        if isinstance(structure, dict):
            return {key: resolve(value) for key, value in structure.items()}
        if len(structure) == 3 and isinstance(structure[0], str) and isinstance(structure[1], int):
            return _resolve_reference(results, structure)
        if not isinstance(structure, (list, tuple)):
            raise ValueError(
                f"The configuration of model {config.get('name')!r} contains {structure!r}, which is not a reference to "
                "a tensor: [layer name, node index, tensor index]."
            )
        return [resolve(value) for value in structure]

    return (
        _unwrap_single(resolve(config["input_layers"])),
        _unwrap_single(resolve(config["output_layers"])),
        [tensor for call in calls for tensor in results[call]],
    )


def _resolve_reference(
    results: dict[tuple[str, int], list[KerasTensor]], reference: Json
) -> KerasTensor:
    """Return the tensor at [layer, node, tensor]; raise a `KeyError` if it is not created yet."""
    try:
        name, node, index = reference
        return results[name, node][index]
    except (TypeError, ValueError, IndexError):
        raise ValueError(
            f"{reference!r} in a model's configuration does not refer to a tensor."
        ) from None


def _unwrap_single(structure: PyTree) -> PyTree:
    return structure[0] if isinstance(structure, list) and len(structure) == 1 else structure


def _convert_call(call: Json, keeps_lists: bool) -> Config:
    """Convert a call of a Keras 2 file: a list of [layer, node, tensor, kwargs], or one of these."""
    if isinstance(call, dict):
        return call
    is_single = bool(call) and isinstance(call[0], str)
    call = [call] if is_single else call
    tensors = [
        _convert_argument(c[2]) if c[0] == CONSTANT_MARKER else {"keras_tensor": list(c[:3])}
        for c in call
    ]
    keywords = dict(call[0][3] or {}) if call and len(call[0]) > 3 else {}
    kwargs = {key: _convert_argument(value) for key, value in keywords.items()}
    is_tensor_argument = is_single or (len(tensors) == 1 and not keeps_lists)
    return {"args": [tensors[0] if is_tensor_argument else {"list": tensors}], "kwargs": kwargs}


def _convert_argument(value: Json) -> Json:
    """Convert an argument of a call; tensors are [layer, node, tensor]."""
    if isinstance(value, list):
        if len(value) == 3 and isinstance(value[0], str) and all(type(v) is int for v in value[1:]):
            return {"keras_tensor": value}
        return {"list": [_convert_argument(v) for v in value]}
    if isinstance(value, dict) and value.get("class_name") == "__ellipsis__":
        return {"ellipsis": True}
    if isinstance(value, dict):
        return {"mapping": {key: _convert_argument(v) for key, v in value.items()}}
    return value
