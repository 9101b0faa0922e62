"""What tf.keras reads beside a SavedModel, to make a model of its layers again: `keras_metadata.pb`."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Sequence
from typing import Any

from meshflow.checkpoint.wire import Node
from meshflow.core.values import nest
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.saving.configuration import data_of, model_config, to_json
from meshflow.keras.mixed_precision import policy as policies

__all__ = ["FILE", "written"]

FILE = "keras_metadata.pb"


def written(objects: Sequence[Any], nodes: Sequence[Node], meta: dict[str, Any]) -> bytes:
    """The file.

    Args:
      objects: what is saved, the model first.
      nodes: what each of them owns, in the same order.
      meta: of the model: `training_config`.
    """
    from meshflow.saved_model.graph.messages import SavedMetadata  # noqa: PLC0415 - it needs an optional package

    paths = _paths(nodes)
    found = SavedMetadata()
    for number, item in enumerate(objects):
        if not isinstance(item, Layer) or number not in paths:
            continue
        about = _metadata(item)
        if number == 0:
            about["training_config"] = meta["training_config"]
        entry = found.nodes.add(
            node_id=number,
            node_path=paths[number],
            identifier=_identifier(item),
            metadata=to_json(about),
        )
        entry.version.producer, entry.version.min_consumer = 2, 1
    return found.SerializeToString(deterministic=True)


def _paths(nodes: Sequence[Node]) -> dict[int, str]:
    paths, queue = {0: "root"}, deque([0])
    while queue:
        number = queue.popleft()
        for name, child in nodes[number].children.items():
            if child not in paths:
                paths[child] = f"{paths[number]}.{name}"
                queue.append(child)
    return paths


def _kind(layer: Any) -> str:
    """The class of Keras that a layer is of, or is made from."""
    kinds = {k.__name__ for k in type(layer).__mro__}
    return next((k for k in ("InputLayer", "Sequential", "Functional", "Model") if k in kinds), "")


def _identifier(layer: Any) -> str:
    names = {"InputLayer": "input_layer", "Sequential": "sequential", "Functional": "network"}
    return f"_tf_keras_{names.get(_kind(layer), 'model' if _kind(layer) else 'layer')}"


def _metadata(layer: Any) -> dict[str, Any]:
    try:
        about = {**model_config(layer), "shared_object_id": None}
        if _kind(layer):
            about["config"] = _model_config(layer)
    except (NotImplementedError, TypeError):
        # It is made of the functions that are saved, or not at all.
        about = {"class_name": type(layer).__name__}
    batch = getattr(layer, "_batch_input_shape", None)
    about |= {"name": layer.name, "batch_input_shape": _as_data(batch)}
    if _kind(layer) == "InputLayer":
        return about | {"dtype": layer.dtype, "sparse": False, "ragged": False}
    about |= {
        "trainable": layer.trainable,
        "expects_training_arg": "training" in inspect.signature(layer.call).parameters,
        "dtype": policies.serialize(layer.dtype_policy),
        "stateful": bool(getattr(layer, "stateful", False)),
        "must_restore_from_config": False,
        "preserve_input_structure_in_config": False,
        "autocast": layer._autocast,
    }
    if layer._build_input_shape is not None:
        about["build_input_shape"] = _as_shapes(layer._build_input_shape)
    if _kind(layer):
        about["is_graph_network"] = layer._current_graph() is not None
        specs = layer.__dict__.get("_save_spec")
        spec = None if specs is None else _as_data(specs)
        about["save_spec"] = spec
        args, kwargs = layer.__dict__.get("_more_specs", ((), {}))
        called = [[spec, *map(_as_data, args)], _as_data(kwargs)]
        about["full_save_spec"] = None if spec is None else _tuple(called)
    return about


def _model_config(model: Any) -> dict[str, Any]:
    config = data_of(model)
    _say_inputs(config, model)
    _say_arguments(config, model)
    return config


def _say_inputs(config: Any, model: Any) -> None:
    """Has the first layer of each `Sequential` that was built by a call say what it takes."""
    entries: list[Any] = config.get("layers", []) if isinstance(config, dict) else []
    layers: dict[str, Any] = {layer.name: layer for layer in getattr(model, "layers", ())}
    for entry in entries:
        _say_inputs(entry["config"], layers.get(entry["config"].get("name")))
    shape = model.layers[0]._build_input_shape if entries and model.layers else None
    if _kind(model) == "Sequential" and shape is not None:
        first = entries[0]
        if first["class_name"] != "InputLayer":
            sizes = TensorShape(shape).as_list()
            first["config"].setdefault("batch_input_shape", [None, *sizes[1:]])


def _say_arguments(config: Any, model: Any) -> None:
    """Writes calls with several tensors as Keras 2 does: all but the first argument by name.

    Raises:
      NotImplementedError: for a call that it cannot write.
    """
    layers: dict[str, Any] = {layer.name: layer for layer in getattr(model, "layers", ())}
    for entry in config.get("layers", ()) if isinstance(config, dict) else ():
        layer: Any = layers.get(entry.get("name") or entry["config"].get("name"))
        _say_arguments(entry["config"], layer)
        calls = entry.get("inbound_nodes", ())
        for place, call in enumerate(calls):
            several = len(call) > 1
            if isinstance(call, dict):
                several = isinstance(call["args"][0], dict) and "list" in call["args"][0]
                call = _named_call(call, layer, layer._inbound_nodes[place].outputs)
            # Layers of one op take their first argument as it is, others a list of tensors.
            alone = hasattr(layer, "_function") and not several
            calls[place] = call[0] if alone and isinstance(call[0], list) else call


def _named_call(call: dict[str, Any], layer: Any, outputs: Any) -> list[Any]:
    function = getattr(layer, "_function", layer.call)
    names = [n for n in inspect.signature(function).parameters if n != "self"]
    first, *rest = call["args"]
    given = dict(zip(names[1:], rest, strict=False)) | call["kwargs"]
    kwargs = {name: _reference(value) for name, value in given.items()}
    tensors = first["list"] if isinstance(first, dict) and "list" in first else [first]
    found = []
    for tensor in tensors:
        place = _reference(tensor)
        if place is tensor:
            # A number is of the type of what it meets.
            inexact = nest.flatten(outputs)[0].dtype.is_floating
            number = float(tensor) if inexact and type(tensor) is int else tensor
            place = ["_CONSTANT_VALUE", -1, number]
        found.append([*place, kwargs])
    return found


def _reference(value: Any) -> Any:
    """An argument of a call; tensors as [layer, call, output]."""
    if not isinstance(value, dict):
        return value
    if set(value) == {"keras_tensor"}:
        return value["keras_tensor"]
    if set(value) == {"list"}:
        return [_reference(v) for v in value["list"]]
    raise NotImplementedError(f"Keras 2 has no form for the argument {value!r}.")


def _tuple(items: Sequence[Any]) -> dict[str, Any]:
    return {"class_name": "__tuple__", "items": list(items)}


def _as_shapes(value: Any) -> Any:
    """Shapes of inputs, one or in a structure, as tf.keras' JSON has them."""
    if isinstance(value, dict):
        return {key: _as_shapes(v) for key, v in value.items()}
    if isinstance(value, TensorShape) or all(s is None or isinstance(s, int) for s in value):
        return {"class_name": "TensorShape", "items": list(TensorShape(value).as_list())}
    items = [_as_shapes(v) for v in value]
    return _tuple(items) if isinstance(value, tuple) else items


def _as_data(value: Any) -> Any:
    """Tuples, shapes and specs of tensors as tf.keras' JSON has them."""
    if isinstance(value, TensorSpec):
        shape = _as_shapes(value.shape)
        return {
            "class_name": "TypeSpec",
            "type_spec": "tf.TensorSpec",
            "serialized": [shape, value.dtype.name, value.name],
        }
    if isinstance(value, TensorShape):
        return _as_shapes(value)
    if isinstance(value, tuple):
        return _tuple([_as_data(v) for v in value])
    if isinstance(value, list):
        return [_as_data(v) for v in value]
    if isinstance(value, dict):
        return {k: _as_data(v) for k, v in value.items()}
    return value
