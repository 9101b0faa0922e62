"""Whole models in files: `.keras` (zip of JSON and HDF5), `.h5` (Keras 2's layout), or a folder."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from meshflow.keras import identify
from meshflow.keras.saving.weights import _h5py, read_folder, read_h5, write_folder, write_h5


def _plain(value: Any) -> Any:
    """What JSON cannot hold, as something it can."""
    if hasattr(value, "as_list"):
        return value.as_list()
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if hasattr(value, "get_config"):
        return identify.serialize(value)
    if callable(value):
        return identify.get_registered_name(value)
    raise TypeError(
        f"{value!r} of type {type(value).__name__} cannot be written to a model's configuration."
    )


def _model_config(model: Any) -> dict[str, Any]:
    return {"class_name": type(model).__name__, "config": model.get_config(), **_registered(model)}


def _registered(model: Any) -> dict[str, str]:
    name = identify.get_registered_name(type(model))
    return {"registered_name": name} if name != type(model).__name__ else {}


def model_to_json(model: Any, **kwargs: Any) -> str:
    """A model's architecture as JSON text."""
    return json.dumps(_model_config(model), default=_plain, **kwargs)


def model_from_json(json_string: str, custom_objects: Any = None) -> Any:
    """The model with an architecture, with new weights.

    Args:
      json_string: what `Model.to_json` gave.
      custom_objects: classes and functions by name.
    """
    from meshflow.keras import layers

    return layers.deserialize(json.loads(json_string), custom_objects)


def _training_config(model: Any) -> dict[str, Any] | None:
    if not model._is_compiled:
        return None
    arguments = dict(model._compile_arguments)
    try:
        arguments["optimizer"] = identify.serialize(model.optimizer)
        return json.loads(json.dumps(arguments, default=_plain))
    except (NotImplementedError, TypeError):
        # An optimizer without a configuration is left out; the model still loads, uncompiled.
        return None


def save_model(
    model: Any,
    filepath: Any,
    overwrite: bool = True,
    save_format: str | None = None,
    include_optimizer: bool = True,
    **kwargs: Any,
) -> None:
    """Saves a model.

    Args:
      model: the model.
      filepath: path ending in `.keras` or `.h5`, or a folder.
      overwrite: whether an existing file is replaced.
      save_format: 'keras', 'h5' or 'tf'; default by the path.
      include_optimizer: whether the optimizer's state is saved too.
      **kwargs: arguments of TensorFlow's SavedModel are accepted and ignored.

    Raises:
      FileExistsError: when the file exists and may not be replaced.
    """
    path = os.fspath(filepath)
    if os.path.exists(path) and not overwrite:
        raise FileExistsError(f"{path} exists and overwrite is False.")
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    training = _training_config(model)
    meta = {
        "model_config": _model_config(model),
        "training_config": training,
        "built_shape": _built_shape(model),
    }
    state = (
        model.optimizer.get_weights()
        if include_optimizer and training and hasattr(model.optimizer, "get_weights")
        else []
    )
    part = f"{path}.part"
    if path.endswith((".h5", ".hdf5")) or save_format == "h5":
        with _h5py().File(part, "w") as file:
            _write_h5(model, file, meta, state)
        os.replace(part, path)
    elif path.endswith(".keras") or save_format == "keras":
        buffer = io.BytesIO()
        with _h5py().File(buffer, "w") as file:
            _write_h5(model, file, meta, state)
        with zipfile.ZipFile(part, "w") as archive:
            archive.writestr("config.json", json.dumps(meta, default=_plain))
            archive.writestr("metadata.json", json.dumps({"format": "meshflow", "version": 1}))
            archive.writestr("model.weights.h5", buffer.getvalue())
        os.replace(part, path)
    else:
        arrays = {f"{i:05d}": (w.name, w.numpy()) for i, w in enumerate(model.weights)}
        arrays |= {f"optimizer_{i:05d}": (f"optimizer_{i}", value) for i, value in enumerate(state)}
        write_folder(path, arrays)
        (Path(path) / "model.json").write_text(json.dumps(meta, default=_plain))


def _built_shape(model: Any) -> Any:
    shape = getattr(model, "_build_input_shape", None)
    from meshflow.keras.engine.base_layer import as_tuples

    return as_tuples(shape) if shape is not None else None


def _write_h5(model: Any, file: Any, meta: dict[str, Any], state: list[Any]) -> None:
    file.attrs["keras_version"] = "2.9.0"
    file.attrs["backend"] = "jax"
    file.attrs["model_config"] = json.dumps(meta["model_config"], default=_plain)
    if meta["training_config"]:
        file.attrs["training_config"] = json.dumps(meta["training_config"], default=_plain)
    if meta["built_shape"] is not None:
        file.attrs["built_shape"] = json.dumps(meta["built_shape"])
    write_h5(model, file.create_group("model_weights"))
    group = file.create_group("optimizer_state")
    for i, value in enumerate(state):
        group.create_dataset(f"{i:05d}", data=value)


def load_model(
    filepath: Any,
    custom_objects: Any = None,
    compile: bool = True,
    options: Any = None,
    **kwargs: Any,
) -> Any:
    """Loads a model saved by `save_model`.

    Args:
      filepath: the path.
      custom_objects: classes and functions by name.
      compile: whether the model is compiled as it was.
      options: ignored.
      **kwargs: ignored.

    Returns:
      The model.

    Raises:
      OSError: when there is no such file.
      ValueError: when the file holds no model.
    """
    path = os.fspath(filepath)
    if not os.path.exists(path):
        raise OSError(f"No file or directory found at {path}")
    if os.path.isdir(path):
        return _load_folder(path, custom_objects, compile)
    if zipfile.is_zipfile(path):
        with (
            zipfile.ZipFile(path) as archive,
            _h5py().File(io.BytesIO(archive.read("model.weights.h5")), "r") as file,
        ):
            return _load_h5(file, custom_objects, compile, path)
    with _h5py().File(path, "r") as file:
        return _load_h5(file, custom_objects, compile, path)


def _make(meta: dict[str, Any], custom_objects: Any) -> Any:
    from meshflow.keras import layers

    model = layers.deserialize(meta["model_config"], custom_objects)
    if not model.built and meta.get("built_shape"):
        model.build(meta["built_shape"])
    return model


def _load_h5(file: Any, custom_objects: Any, compile: bool, path: str) -> Any:
    if "model_config" not in file.attrs:
        raise ValueError(
            f"No model config found in the file at {path}: it may hold weights only, to be loaded with Model.load_weights."
        )
    meta = {
        key: json.loads(file.attrs[key])
        for key in ("model_config", "training_config", "built_shape")
        if key in file.attrs
    }
    model = _make(meta, custom_objects)
    read_h5(model, file["model_weights"], by_name=False, skip_mismatch=False)
    state = [file["optimizer_state"][k][()] for k in sorted(file.get("optimizer_state", {}))]
    _compile(model, meta.get("training_config") if compile else None, state, custom_objects)
    return model


def _load_folder(path: str, custom_objects: Any, compile: bool) -> Any:
    config = Path(path) / "model.json"
    if not config.exists():
        raise ValueError(
            f"{path} holds no model (model.json is missing); TensorFlow SavedModels cannot be read."
        )
    meta = json.loads(config.read_text())
    model = _make(meta, custom_objects)
    stored = read_folder(path)
    model.set_weights([stored[k][1] for k in sorted(stored) if not k.startswith("optimizer")])
    state = [stored[k][1] for k in sorted(stored) if k.startswith("optimizer")]
    _compile(model, meta.get("training_config") if compile else None, state, custom_objects)
    return model


def _compile(
    model: Any, training: dict[str, Any] | None, state: list[Any], custom_objects: Any
) -> None:
    if not training:
        return
    from meshflow.keras import losses, metrics, optimizers

    def decode(value: Any, module: Any) -> Any:
        if isinstance(value, dict) and "class_name" in value:
            return module.deserialize(value, custom_objects)
        if isinstance(value, dict):
            return {k: decode(v, module) for k, v in value.items()}
        return [decode(v, module) for v in value] if isinstance(value, list) else value

    training = dict(training)
    optimizer = training.pop("optimizer")
    if "optimizer_config" in training:
        optimizer = training.pop("optimizer_config")
    known = {k: training.get(k) for k in ("loss_weights", "steps_per_execution", "run_eagerly")}
    model.compile(
        optimizers.deserialize(optimizer, custom_objects)
        if isinstance(optimizer, dict)
        else optimizer,
        loss=decode(training.get("loss"), losses),
        metrics=decode(training.get("metrics"), metrics),
        weighted_metrics=decode(training.get("weighted_metrics"), metrics),
        **known,
    )
    if state and hasattr(model.optimizer, "build"):
        model.optimizer.build(model.trainable_variables)
        if len(model.optimizer.weights) == len(state):
            model.optimizer.set_weights(state)
