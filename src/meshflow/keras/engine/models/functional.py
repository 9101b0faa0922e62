"""Functional models: a graph of layer calls with a name."""

from __future__ import annotations

import inspect
from typing import Any

from meshflow.core.values import nest
from meshflow.core.values.convert import constant
from meshflow.core.values.dtypes import DType, as_dtype
from meshflow.core.values.tensor import is_tensor
from meshflow.keras import registry, serialization, settings
from meshflow.keras.blame import within
from meshflow.keras.engine.graph.graph import Graph
from meshflow.keras.engine.models.model import Model
from meshflow.keras.engine.models.operation import Operation
from meshflow.keras.engine.saving.configuration import from_keras, to_json, to_keras
from meshflow.keras.engine.saving.keras2_calls import CONSTANT, KEEP_LISTS
from meshflow.keras.engine.saving.keras3_configuration import OPERATION
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor, Node


class Functional(Model):
    """A model made of a graph: `tf.keras.Model(inputs, outputs)` gives one.

    Args:
      inputs: symbolic inputs, in any nested structure.
      outputs: symbolic outputs, in any nested structure.
      name: the model's name.
      trainable: whether its weights are trained.
      **kwargs: arguments of `Layer`.

    Example:
      >>> import meshflow as tf
      >>> inputs = tf.keras.Input([3])
      >>> model = tf.keras.Model(inputs, tf.keras.layers.Dense(2)(inputs))
      >>> isinstance(model, tf.keras.models.Functional), model.output_shape
      (True, (None, 2))
    """

    _graph: Graph

    def __init__(
        self,
        inputs: Any = None,
        outputs: Any = None,
        name: str | None = None,
        trainable: bool = True,
        **kwargs: Any,
    ) -> None:
        if type(self) is Functional and kwargs:
            raise TypeError(
                f"Keyword argument not understood: {sorted(kwargs)}. A model of symbolic tensors takes `inputs`, `outputs`, "
                "`name` and `trainable`: its layers have the rest."
            )
        name = name or settings.unique_name("model")
        super().__init__(inputs=inputs, outputs=outputs, name=name, trainable=trainable, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """The graph as plain data: layers, their calls, inputs and outputs."""
        return to_keras(graph_config(self._graph, self.name, self.trainable))

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Rebuilds a model from `get_config()`, with new weights."""
        inputs, outputs = graph_from_config(from_keras(config), custom_objects)
        model = cls(inputs=inputs, outputs=outputs, name=config.get("name"))
        if not config.get("trainable", True):
            model.trainable = False
        return model


registry.LAYERS.add(**{OPERATION: Operation})


def graph_config(graph: Graph, name: str, trainable: bool) -> dict[str, Any]:
    """A graph as plain data, in Keras 2's form."""
    included = {id(n) for n in graph.nodes}
    numbers = graph.call_numbers()
    layers = []
    for layer in graph.layers:
        calls = [n for n in layer._inbound_nodes if id(n) in included and not n.is_input]
        described = serialization.serialize(layer)
        own = {"name": layer.name, "inbound_nodes": [_call_config(n, numbers) for n in calls]}
        layers.append(described | own)
    return {
        "name": name,
        "trainable": trainable,
        "layers": layers,
        "input_layers": _places(graph.inputs, numbers),
        "output_layers": _places(graph.outputs, numbers),
    }


def _places(structure: Any, numbers: dict[int, int]) -> Any:
    places = _plain(nest.map_structure(lambda t: _Reference(_place(t, numbers)), structure))
    return [places] if isinstance(structure, KerasTensor) else places


class _Reference:
    """A place in the graph, kept whole while a structure of them is mapped."""

    def __init__(self, place: list[Any]) -> None:
        self.place = place


def _plain(structure: Any) -> Any:
    if isinstance(structure, _Reference):
        return structure.place
    if isinstance(structure, dict):
        return {key: _plain(value) for key, value in structure.items()}
    return [_plain(value) for value in structure]


def _place(tensor: KerasTensor, numbers: dict[int, int]) -> list[Any]:
    layer, _, index = tensor._keras_history
    return [layer.name, numbers[id(tensor.node)], index]


def _call_config(node: Node, numbers: dict[int, int]) -> dict[str, Any]:
    def encode(value: Any) -> Any:
        if isinstance(value, KerasTensor):
            return {"keras_tensor": _place(value, numbers)}
        if isinstance(value, dict):
            return {"mapping": {k: encode(v) for k, v in value.items()}}
        if isinstance(value, (list, tuple)):
            return {"list" if isinstance(value, list) else "tuple": [encode(v) for v in value]}
        return _plain_constant(value)

    args, kwargs = _named(node)
    _check_plain(node)
    if args and type(args[0]) is int and node.keras_inputs[0].dtype.is_floating:
        # TensorFlow would make an integer tensor of it before it sees the other argument.
        args = (float(args[0]), *args[1:])
    return {
        "args": [encode(a) for a in args],
        "kwargs": {k: encode(v) for k, v in kwargs.items()},
        **({"said": {"name": said[0]}} if (said := getattr(node.layer, "_call_name", ())) else {}),
    }


def _check_plain(node: Node) -> None:
    """Raises for arguments of a call that no file can hold."""
    for value in nest.flatten((node.args, node.kwargs)):
        if not isinstance(value, (KerasTensor, DType)) and value is not Ellipsis:
            try:
                to_json(_plain_constant(value))
            except TypeError as error:
                raise TypeError(
                    f"Layer {node.layer.name} was passed non-JSON-serializable arguments. They cannot be serialized out "
                    f"when saving the model: {error}"
                ) from error


def _named(node: Node) -> tuple[Any, dict[str, Any]]:
    """A call's arguments, those after the first by their names, as Keras 2's files have them."""
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


def _plain_constant(value: Any) -> Any:
    if value is Ellipsis:
        return {"ellipsis": True}
    if isinstance(value, DType):
        return {"dtype": value.name}
    if is_tensor(value):
        return {"constant": value.numpy().tolist(), "of": value.dtype.name}
    if hasattr(value, "tolist"):
        return {"constant": value.tolist(), "of": str(value.dtype)}
    return value


def graph_from_config(config: dict[str, Any], custom_objects: Any = None) -> tuple[Any, Any]:
    """Symbolic inputs and outputs of the graph that `graph_config` described.

    Raises:
      ValueError: when the configuration refers to calls that do not exist.
    """
    layers: dict[str, Any] = {}
    results: dict[tuple[str, int], list[KerasTensor]] = {}
    waiting: list[tuple[str, int, dict[str, Any]]] = []
    for entry in config["layers"]:
        with within(f"Layer {entry['name']!r} of model {config.get('name')!r}"):
            layer = registry.LAYERS.deserialize(entry, custom_objects)
        layers[entry["name"]] = layer
        # Of a layer that another model has, too, earlier calls are not this one's.
        nodes = [] if registry.LAYERS.is_shared(layer, entry) else layer._inbound_nodes
        if nodes:
            results[entry["name"], 0] = nodes[0].flat_outputs
        offset = 1 if nodes and not hasattr(layer, "layers") else 0
        keeps_lists = entry["class_name"] in KEEP_LISTS
        for number, call in enumerate(entry["inbound_nodes"]):
            waiting.append((entry["name"], number + offset, _modern_call(call, keeps_lists)))

    def decode(value: Any) -> Any:
        if isinstance(value, dict):
            if "keras_tensor" in value:
                return _referred(results, value["keras_tensor"])
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

    while waiting:
        left = []
        for name, number, call in waiting:
            try:
                args = [decode(a) for a in call["args"]]
                kwargs = {k: decode(v) for k, v in call["kwargs"].items()}
            except KeyError:
                left.append((name, number, call))
                continue
            with within(f"Layer {name!r} of model {config.get('name')!r}"):
                outputs = layers[name](*args, **kwargs)
            results[name, number] = [o for o in nest.flatten(outputs) if isinstance(o, KerasTensor)]
        if len(left) == len(waiting):
            raise ValueError(
                f"The configuration of model {config.get('name')!r} has calls whose inputs never appear: "
                f"{sorted({name for name, _, _ in left})}."
            )
        waiting = left

    def tensors(structure: Any) -> Any:
        if isinstance(structure, dict):
            return {key: tensors(value) for key, value in structure.items()}
        if len(structure) == 3 and isinstance(structure[0], str) and isinstance(structure[1], int):
            return _referred(results, structure)
        if not isinstance(structure, (list, tuple)):
            raise ValueError(
                f"The configuration of model {config.get('name')!r} names no tensor by {structure!r}."
            )
        return [tensors(value) for value in structure]

    return _single(tensors(config["input_layers"])), _single(tensors(config["output_layers"]))


def _referred(results: dict[tuple[str, int], list[KerasTensor]], place: Any) -> KerasTensor:
    """The tensor at [layer, call, output]; a KeyError where it is not made yet."""
    try:
        name, node, index = place
        return results[name, node][index]
    except (TypeError, ValueError, IndexError):
        raise ValueError(f"A model's configuration names no tensor by {place!r}.") from None


def _single(structure: Any) -> Any:
    return structure[0] if isinstance(structure, list) and len(structure) == 1 else structure


def _modern_call(call: Any, keeps_lists: bool) -> dict[str, Any]:
    """A call in our form; Keras 2 files have lists of [layer, node, tensor, kwargs], or one of these."""
    if isinstance(call, dict):
        return call
    one = bool(call) and isinstance(call[0], str)
    call = [call] if one else call
    tensors = [
        _modern_argument(c[2]) if c[0] == CONSTANT else {"keras_tensor": list(c[:3])} for c in call
    ]
    given = dict(call[0][3] or {}) if call and len(call[0]) > 3 else {}
    kwargs = {key: _modern_argument(value) for key, value in given.items()}
    alone = one or (len(tensors) == 1 and not keeps_lists)
    return {"args": [tensors[0] if alone else {"list": tensors}], "kwargs": kwargs}


def _modern_argument(value: Any) -> Any:
    """An argument of a call; tensors are [layer, node, tensor]."""
    if isinstance(value, list):
        if len(value) == 3 and isinstance(value[0], str) and all(type(v) is int for v in value[1:]):
            return {"keras_tensor": value}
        return {"list": [_modern_argument(v) for v in value]}
    if isinstance(value, dict) and value.get("class_name") == "__ellipsis__":
        return {"ellipsis": True}
    if isinstance(value, dict):
        return {"mapping": {key: _modern_argument(v) for key, v in value.items()}}
    return value
