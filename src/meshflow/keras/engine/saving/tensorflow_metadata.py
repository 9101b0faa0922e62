"""`keras_metadata.pb`, the file from which tf.keras restores the layers of a SavedModel."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Sequence
from typing import Any

from meshflow.checkpoint.bundle_messages import ObjectNode
from meshflow.core.values import nest
from meshflow.core.values.shapes import TensorShape
from meshflow.environment.types import Config, Json, PyTree
from meshflow.keras.engine.graph.graph import get_graph
from meshflow.keras.engine.graph.json_values import (
    serialize_shapes,
    serialize_tuple,
    serialize_value,
)
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.saving.model_configuration import (
    make_model_config,
    to_json,
    to_plain_config,
)
from meshflow.keras.mixed_precision import policy as policies

METADATA_FILE = "keras_metadata.pb"


def serialize_metadata(
    objects: Sequence[object], nodes: Sequence[ObjectNode], meta: dict[str, Any]
) -> bytes:
    """Serialize the metadata of a model's layers.

    Args:
      objects: The objects of the SavedModel, starting with the model.
      nodes: The children of each object, in the same order.
      meta: Metadata of the model, with the key `training_config`.

    Returns:
      The content of the file.
    """
    from meshflow.saved_model.graph.format.messages import SavedMetadata  # noqa: PLC0415 - protobuf is an optional package

    paths = _find_paths(nodes)
    metadata = SavedMetadata()
    for index, item in enumerate(objects):
        if not isinstance(item, Layer) or index not in paths:
            continue
        layer_metadata = _collect_metadata(item)
        if index == 0:
            layer_metadata["training_config"] = meta["training_config"]
        entry = metadata.nodes.add(
            node_id=index,
            node_path=paths[index],
            identifier=_get_identifier(item),
            metadata=to_json(layer_metadata),
        )
        entry.version.producer, entry.version.min_consumer = 2, 1
    return metadata.SerializeToString(deterministic=True)


def _find_paths(nodes: Sequence[ObjectNode]) -> dict[int, str]:
    paths, queue = {0: "root"}, deque([0])
    while queue:
        index = queue.popleft()
        for name, child in nodes[index].children.items():
            if child not in paths:
                paths[child] = f"{paths[index]}.{name}"
                queue.append(child)
    return paths


def _get_model_class(layer: object) -> str:
    """Return the name of the Keras model class that a layer is an instance of; empty for other layers."""
    names = {cls.__name__ for cls in type(layer).__mro__}
    return next((n for n in ("InputLayer", "Sequential", "Functional", "Model") if n in names), "")


def _get_identifier(layer: object) -> str:
    names = {"InputLayer": "input_layer", "Sequential": "sequential", "Functional": "network"}
    return f"_tf_keras_{names.get(_get_model_class(layer), 'model' if _get_model_class(layer) else 'layer')}"


def _collect_metadata(layer: Any) -> Config:
    try:
        metadata = {**make_model_config(layer), "shared_object_id": None}
        if _get_model_class(layer):
            metadata["config"] = _make_model_config(layer)
    except (NotImplementedError, TypeError):
        # Without a configuration, the object can only be restored from its saved functions.
        metadata = {"class_name": type(layer).__name__}
    batch_shape = getattr(layer, "_batch_input_shape", None)
    metadata |= {"name": layer.name, "batch_input_shape": serialize_value(batch_shape)}
    if _get_model_class(layer) == "InputLayer":
        return metadata | {"dtype": layer.dtype, "sparse": False, "ragged": False}
    metadata |= {
        "trainable": layer.trainable,
        "expects_training_arg": "training" in inspect.signature(layer.call).parameters,
        "dtype": policies.serialize(layer.dtype_policy),
        "stateful": bool(getattr(layer, "stateful", False)),
        "must_restore_from_config": False,
        "preserve_input_structure_in_config": False,
        "autocast": layer._autocast,
    }
    if layer._build_input_shape is not None:
        metadata["build_input_shape"] = serialize_shapes(layer._build_input_shape)
    if _get_model_class(layer):
        metadata["is_graph_network"] = get_graph(layer) is not None
        specs = layer.__dict__.get("_save_spec")
        spec = None if specs is None else serialize_value(specs)
        metadata["save_spec"] = spec
        args, kwargs = layer.__dict__.get("_more_specs", ((), {}))
        arguments = [[spec, *map(serialize_value, args)], serialize_value(kwargs)]
        metadata["full_save_spec"] = None if spec is None else serialize_tuple(arguments)
    return metadata


def _make_model_config(model: Any) -> Config:
    config = to_plain_config(model)
    _add_input_shapes(config, model)
    _convert_calls(config, model)
    return config


def _add_input_shapes(config: Json, model: Any) -> None:
    """Add the input shape to the first layer of each `Sequential` model that was built by a call."""
    entries: list[Any] = config.get("layers", []) if isinstance(config, dict) else []
    layers: dict[str, Any] = {layer.name: layer for layer in getattr(model, "layers", ())}
    for entry in entries:
        _add_input_shapes(entry["config"], layers.get(entry["config"].get("name")))
    shape = model.layers[0]._build_input_shape if entries and model.layers else None
    if _get_model_class(model) == "Sequential" and shape is not None:
        first = entries[0]
        if first["class_name"] != "InputLayer":
            sizes = TensorShape(shape).as_list()
            first["config"].setdefault("batch_input_shape", [None, *sizes[1:]])


def _convert_calls(config: Json, model: Any) -> None:
    """Convert calls with several tensors to the form of tf.keras: all arguments but the first one by name.

    Raises:
      NotImplementedError: if the form cannot express a call.
    """
    layers: dict[str, Any] = {layer.name: layer for layer in getattr(model, "layers", ())}
    for entry in config.get("layers", ()) if isinstance(config, dict) else ():
        layer: Any = layers.get(entry.get("name") or entry["config"].get("name"))
        _convert_calls(entry["config"], layer)
        calls = entry.get("inbound_nodes", ())
        for index, call in enumerate(calls):
            has_list = len(call) > 1
            if isinstance(call, dict):
                has_list = isinstance(call["args"][0], dict) and "list" in call["args"][0]
                call = _convert_call(call, layer, layer.inbound_nodes[index].outputs)
            # Layers of a single op take their first argument directly, other layers a list of
            # tensors.
            is_single = hasattr(layer, "_function") and not has_list
            calls[index] = call[0] if is_single and isinstance(call[0], list) else call


def _convert_call(call: dict[str, Any], layer: Any, outputs: PyTree) -> list[Any]:
    function = getattr(layer, "_function", layer.call)
    names = [n for n in inspect.signature(function).parameters if n != "self"]
    first, *rest = call["args"]
    arguments = dict(zip(names[1:], rest, strict=False)) | call["kwargs"]
    kwargs = {name: _convert_argument(value) for name, value in arguments.items()}
    tensors = first["list"] if isinstance(first, dict) and "list" in first else [first]
    references = []
    for tensor in tensors:
        reference = _convert_argument(tensor)
        if reference is tensor:
            # The number gets the dtype of the other operand.
            inexact = nest.flatten(outputs)[0].dtype.is_floating
            constant = float(tensor) if inexact and type(tensor) is int else tensor
            reference = ["_CONSTANT_VALUE", -1, constant]
        references.append([*reference, kwargs])
    return references


def _convert_argument(value: Json) -> Json:
    """Convert an argument of a call; tensors become [layer, call, output]."""
    if not isinstance(value, dict):
        return value
    if set(value) == {"keras_tensor"}:
        return value["keras_tensor"]
    if set(value) == {"list"}:
        return [_convert_argument(v) for v in value["list"]]
    raise NotImplementedError(f"Keras 2 cannot express the argument {value!r} of a call.")
