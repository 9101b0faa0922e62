"""Whole models in files: `.keras` (zip of JSON and HDF5), `.h5` (Keras 2's layout), or a folder."""

from __future__ import annotations

import io
import json
import logging
import time
import zipfile
from typing import IO, Any

from meshflow import saved_model
from meshflow.checkpoint.storage import Folder, is_checkpoint, read_folder, write_folder
from meshflow.core.variables.sharded_variable import whole_variables
from meshflow.files import gfile
from meshflow.files.copies import local_copy
from meshflow.files.paths import text
from meshflow.files.replacing import replacing
from meshflow.keras import registry
from meshflow.keras.engine.layer.weights import set_weights
from meshflow.keras.engine.models.model import Model
from meshflow.keras.safe_mode import UnsafeConfigError
from meshflow.keras.safe_mode import safe_mode as safe_mode_scope
from meshflow.keras.saving import building, hdf5, keras3, optimizer_state
from meshflow.keras.saving.archives import Archive, h5py, open_hdf5
from meshflow.keras.saving.configuration import (
    KERAS_VERSION,
    compile_config,
    compile_from_config,
    model_config,
    model_from_config,
    to_json,
    training_config,
)
from meshflow.keras.saving.serving_signatures import RestoredModel, input_specs
from meshflow.saved_model.saving import content as saved_model_content

_log = logging.getLogger("meshflow")


def save_model(
    model: Any,
    filepath: Any,
    overwrite: bool = True,
    save_format: str | None = None,
    include_optimizer: bool = True,
    **kwargs: Any,
) -> None:
    """Saves a model: architecture, weights, and how it was compiled.

    Args:
      model: the model.
      filepath: path ending in `.keras` or `.h5`, or a folder.
      overwrite: whether an existing file is replaced.
      save_format: 'keras', 'h5' or 'tf'; default by the path.
      include_optimizer: whether the optimizer's state is saved too.
      **kwargs: for folders, `signatures` as in `tf.saved_model.save`, and `save_traces`: whether what the model
        computes is saved too, so that it can be loaded without its class; others are ignored.

    Raises:
      FileExistsError: when the file exists and may not be replaced.
      NotImplementedError: for a subclassed model without `get_config`, unless a folder is written and the
        model has been called.

    Example:
      >>> import meshflow as tf
      >>> import os, tempfile
      >>> model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     tf.keras.models.save_model(model, os.path.join(folder, "model.h5"))
      ...     os.listdir(folder)
      ['model.h5']
    """
    path = text(filepath)
    if gfile.exists(path) and not overwrite:
        raise FileExistsError(f"{path} exists and overwrite is False.")
    kind = _kind(path, save_format)
    training = training_config(model)
    optimizer = model.optimizer if include_optimizer and training else None
    meta = {
        "model_config": _config_if_any(model) if kind == "tf" else model_config(model),
        "training_config": training if include_optimizer else None,
        "built_shape": _built_shape(model),
        "input_specs": building.describe(model.__dict__.get("_save_spec")),
    }
    if kind == "h5":
        with replacing(path) as part, h5py().File(part.name, "w") as file:
            _write_h5(model, file, meta, optimizer)
    elif kind == "keras":
        with replacing(path) as part:
            _write_archive(model, part, meta, optimizer)
    else:
        state = [] if optimizer is None else optimizer_state.state_of(optimizer)
        _write_folder(model, path, meta, state, kwargs)


def _kind(path: str, save_format: str | None) -> str:
    if path.endswith((".h5", ".hdf5")) or save_format == "h5":
        return "h5"
    return "keras" if path.endswith(".keras") or save_format == "keras" else "tf"


def _config_if_any(model: Any) -> dict[str, Any] | None:
    """A subclassed model without `get_config` is saved by what it computes."""
    try:
        return model_config(model)
    except NotImplementedError:
        if input_specs(model) is None:
            raise
        return None


def _write_folder(
    model: Any, path: str, meta: dict[str, Any], state: Any, options: dict[str, Any]
) -> None:
    own = whole_variables(model._saved_weights)
    weights: dict[str, Any] = {f"{i:05d}": w for i, w in enumerate(own)}
    weights |= {f"optimizer_{i:05d}": w for i, w in enumerate(state)}
    arrays = {key: (f"{w._shared_name}:0", w.numpy()) for key, w in weights.items()}
    manifest = json.loads(to_json({"model": meta}))
    if options.get("save_traces", True):
        files = {id(w): key for key, w in weights.items()}
        try:
            more, functions = saved_model_content(model, options.get("signatures"), files)
            arrays, manifest = arrays | more, manifest | functions
        except ImportError as error:
            if not meta["model_config"]:
                raise
            _log.info("%s is saved without its functions: %s", model.name, error)
    write_folder(path, arrays, manifest)


def _built_shape(model: Any) -> Any:
    from meshflow.keras.engine.layer.helpers import as_tuples

    shape = getattr(model, "_build_input_shape", None)
    return as_tuples(shape) if shape is not None else None


def _write_h5(model: Any, file: Any, meta: dict[str, Any], optimizer: Any) -> None:
    file.attrs["keras_version"] = KERAS_VERSION
    file.attrs["backend"] = "jax"
    file.attrs["model_config"] = to_json(meta["model_config"])
    if meta["training_config"]:
        file.attrs["training_config"] = to_json(meta["training_config"])
    for key in ("built_shape", "input_specs"):
        if meta[key] is not None:
            file.attrs[key] = json.dumps(meta[key])
    hdf5.write_model(model, file.create_group("model_weights"))
    if optimizer is not None and hasattr(optimizer, "weights"):
        hdf5.write_optimizer(optimizer, file)


def _write_archive(model: Any, part: IO[bytes], meta: dict[str, Any], optimizer: Any) -> None:
    buffer = io.BytesIO()
    with h5py().File(buffer, "w") as file:
        (keras3 if keras3.can_hold(model) else hdf5).write_model(model, file)
        if optimizer is not None and hasattr(optimizer, "weights"):
            keras3.write_optimizer(optimizer, file)
    config = {"module": "keras", "registered_name": None, **meta["model_config"]}
    if config["class_name"] == "Functional":
        config["class_name"] = "Model"  # the public name, under which Keras looks it up
    if meta["built_shape"] is not None:
        config["build_config"] = {"input_shape": meta["built_shape"]}
        if meta["input_specs"] is not None:
            config["build_config"]["input_specs"] = meta["input_specs"]
    if meta["training_config"]:
        config["compile_config"] = compile_config(meta["training_config"])
    about = {"keras_version": KERAS_VERSION, "date_saved": time.strftime("%Y-%m-%d@%H:%M:%S")}
    with zipfile.ZipFile(part, "w") as archive:
        archive.writestr("metadata.json", json.dumps(about))
        archive.writestr("config.json", to_json(config))
        archive.writestr("model.weights.h5", buffer.getvalue())


def load_model(
    filepath: Any,
    custom_objects: Any = None,
    compile: bool = True,
    options: Any = None,
    safe_mode: bool = True,
    **kwargs: Any,
) -> Model:
    """Loads a model saved by `save_model`, or by Keras 2 as `.h5` or `.keras`.

    Args:
      filepath: the path.
      custom_objects: classes and functions by name.
      compile: whether the model is compiled as it was.
      options: ignored.
      safe_mode: whether a model is refused that brings code, as `Lambda` layers of functions without a name do,
        or that reads other files, such as one with a vocabulary; the same for files of all kinds and folders.
      **kwargs: ignored.

    Returns:
      The model.

    Raises:
      OSError: when there is no such file.
      ValueError: when the file holds no model, what `safe_mode` refuses, links to other files, or more than
        1 GiB (20 times its size where that is more) when unpacked; the environment's
        MESHFLOW_MAX_UNPACKED_BYTES sets another limit.

    Example:
      >>> import meshflow as tf
      >>> import os, tempfile
      >>> model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     model.save(os.path.join(folder, "model.keras"))
      ...     loaded = tf.keras.models.load_model(os.path.join(folder, "model.keras"))
      >>> bool(tf.reduce_all(loaded(tf.ones([1, 3])) == model(tf.ones([1, 3]))))
      True
    """
    path = text(filepath)
    folder = gfile.isdir(path) or is_checkpoint(path)
    if not folder and not gfile.exists(path):
        raise OSError(f"No file or directory found at {path}")
    with registry.custom_object_scope(custom_objects or {}), safe_mode_scope(safe_mode):
        if folder:
            return _load_folder(path, custom_objects, compile)
        with local_copy(path) as here:
            if zipfile.is_zipfile(here):
                with Archive(here, path) as archive:
                    return _load_archive(archive, custom_objects, compile)
            with open_hdf5(here, path) as file:
                return _load_h5(file, custom_objects, compile, path)


def _make(config: dict[str, Any], built: dict[str, Any], custom_objects: Any) -> Any:
    model = model_from_config(config, custom_objects)
    building.build(model, built.get("input_specs"), built.get("built_shape"))
    return model


def _load_h5(file: Any, custom_objects: Any, compile: bool, path: str) -> Any:
    if "model_config" not in file.attrs:
        raise ValueError(
            f"No model config found in the file at {path}: it may hold weights only, to be loaded with Model.load_weights."
        )
    try:
        meta = {
            key: json.loads(file.attrs[key])
            for key in ("model_config", "training_config", "built_shape", "input_specs")
            if key in file.attrs
        }
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its configuration is no JSON: {error}.") from None
    model = _make(meta["model_config"], meta, custom_objects)
    hdf5.read_model(model, file["model_weights"])
    if compile and meta.get("training_config"):
        compile_from_config(model, meta["training_config"], custom_objects)
        names, values = hdf5.read_optimizer(file)
        optimizer_state.restore(model.optimizer, model.trainable_variables, names, values)
    return model


def _load_archive(archive: Archive, custom_objects: Any, compile: bool) -> Any:
    config = archive.config()
    built = dict(config.get("build_config") or {})
    built["built_shape"] = built.pop("input_shape", None)
    model = _make(config, built, custom_objects)
    with archive.weights() as file:
        (keras3 if keras3.is_layout(file) else hdf5).read_model(model, file)
        if compile and config.get("compile_config"):
            compile_from_config(model, config["compile_config"], custom_objects)
            names, values = keras3.read_optimizer(file)
            optimizer_state.restore(model.optimizer, model.trainable_variables, names, values)
    return model


def _load_folder(path: str, custom_objects: Any, compile: bool) -> Any:
    content = Folder(path).manifest if is_checkpoint(path) else {}
    meta = content.get("model") or {"model_config": None}
    if meta["model_config"] is None and "saved_model" not in content:
        raise ValueError(
            f"{path} holds no model; TensorFlow SavedModels cannot be read: save the model as .h5 or .keras there."
        )
    if meta["model_config"] is None:
        return _restored(path, meta, custom_objects, compile)
    try:
        model = _make(meta["model_config"], meta, custom_objects)
    except UnsafeConfigError:
        raise
    except ValueError as error:
        if "saved_model" not in content:
            raise
        why = str(error).split(". ")[0]
        _log.warning("%s: the model's functions are loaded without its class: %s", path, why)
        return _restored(path, meta, custom_objects, compile)
    stored = read_folder(path)
    weights = [k for k in sorted(stored) if k.isdigit()]
    set_weights(model, whole_variables(model._saved_weights), [stored[k][1] for k in weights])
    if compile and meta.get("training_config"):
        compile_from_config(model, meta["training_config"], custom_objects)
        state = [stored[k] for k in sorted(stored) if k.startswith("optimizer_")]
        names, values = [name for name, _ in state], [value for _, value in state]
        optimizer_state.restore(model.optimizer, model.trainable_variables, names, values)
    return model


def _restored(path: str, meta: dict[str, Any], custom_objects: Any, compile: bool) -> Any:
    model = RestoredModel(saved_model.load(path))
    if compile and meta.get("training_config"):
        compile_from_config(model, meta["training_config"], custom_objects)
    return model
