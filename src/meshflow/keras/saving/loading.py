"""Loading of models from files and configurations."""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from meshflow import saved_model
from meshflow.checkpoint.array_folder import ArrayFolder, is_array_folder, read_folder
from meshflow.core.values.shapes import TensorShape
from meshflow.core.variables.sharded_variable import merge_shards
from meshflow.environment.json_documents import parse_json
from meshflow.environment.limits import load_budget_scope
from meshflow.environment.types import Config, Json, StrPath
from meshflow.files import gfile
from meshflow.files.contained_files import check_regular
from meshflow.files.copies import local_copy
from meshflow.files.listing import measure_folder
from meshflow.files.paths import to_path_string
from meshflow.keras import registry
from meshflow.keras.engine.layer.shape_inference import map_shapes
from meshflow.keras.engine.models.model import Model
from meshflow.keras.engine.saving import build_config as build_config_module
from meshflow.keras.engine.saving import hdf5, keras3_weights, optimizer_state
from meshflow.keras.engine.saving.archives import Archive, is_open_hdf5, open_hdf5
from meshflow.keras.engine.saving.keras3_configuration import from_keras_3, restore_activation_names
from meshflow.keras.engine.saving.model_configuration import (
    compile_from_config,
)
from meshflow.keras.engine.saving.user_state import read_assets
from meshflow.keras.engine.saving.vocabularies import read_vocabularies
from meshflow.keras.error_context import prefix_errors
from meshflow.keras.registry import CustomObjects
from meshflow.keras.safe_mode import UnsafeConfigError, is_in_safe_mode
from meshflow.keras.safe_mode import safe_mode_scope as safe_mode_scope
from meshflow.keras.saving import isolated_loading, tensorflow_models
from meshflow.keras.saving.restored_model import RestoredModel
from meshflow.keras.weight_values import set_weights
from meshflow.saved_model.loader import is_tensorflow_saved_model

if TYPE_CHECKING:
    import h5py

_log = logging.getLogger("meshflow")


def load_model(
    filepath: StrPath | h5py.File,
    custom_objects: CustomObjects = None,
    compile: bool = True,
    options: object = None,
    safe_mode: bool = True,
    isolated: bool = False,
    **kwargs: Any,
) -> Model:
    """Load a model of `save_model`, a file of Keras 2, or a SavedModel of TensorFlow.

    Args:
      filepath: Path, or an open `h5py.File`.
      custom_objects: Additional classes and functions by name.
      compile: Whether to compile the model as it was.
      options: Ignored.
      safe_mode: Whether to refuse models with code, such as `Lambda` layers with unnamed functions,
        and models that read other files, such as vocabularies. This applies to all formats.
      isolated: Whether to parse the file in a process without network and write access, with limits on
        memory and time. This process receives a configuration and arrays, and creates the model from
        its own layers.
      **kwargs: Ignored.

    Returns:
      The model.

    Raises:
      OSError: If the file does not exist.
      ValueError: If the file has no model, is refused in safe mode, links to other files, or is
        larger than 1 GiB (or 20 times its size, if that is more) when unpacked; the environment
        variable MESHFLOW_MAX_UNPACKED_BYTES sets another limit.

    Example:
      >>> import os, tempfile
      >>> model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     model.save(os.path.join(folder, "model.keras"))
      ...     loaded = tf.keras.models.load_model(os.path.join(folder, "model.keras"))
      >>> bool(tf.reduce_all(loaded(tf.ones([1, 3])) == model(tf.ones([1, 3]))))
      True
    """
    if isolated:
        if custom_objects or safe_mode is False or is_open_hdf5(filepath):
            raise ValueError(
                f"load_model({filepath}, isolated=True): an isolated model has no custom_objects, safe_mode=False or open file. "
                "Pass a path only."
            )
        target = f"{__name__}:load_and_describe"
        return isolated_loading.load_isolated(
            to_path_string(filepath), compile, target, restore_model
        )
    hdf5_file: Any = filepath if is_open_hdf5(filepath) else None
    path = str(hdf5_file.filename) if hdf5_file is not None else to_path_string(filepath)
    is_folder = hdf5_file is None and (gfile.isdir(path) or is_array_folder(path))
    if hdf5_file is None and not is_folder and not gfile.exists(path):
        raise OSError(f"No file or directory found at {path}")
    scope = registry.custom_object_scope(custom_objects or {})
    with prefix_errors(path), scope, safe_mode_scope(safe_mode):
        if is_folder:
            with load_budget_scope(path, lambda: measure_folder(path)):
                return _load_folder(path, custom_objects, compile)
        if hdf5_file is not None:
            with open_hdf5(hdf5_file, path) as file:
                return _load_h5(file, custom_objects, compile, path)
        with local_copy(check_regular(path)) as local_path:
            if zipfile.is_zipfile(local_path):
                with Archive(local_path, path) as archive:
                    model = _load_archive(archive, custom_objects, compile)
                    # As in Keras, `load_assets` may replace values of weights.
                    read_assets(model, archive)
                    return model
            with open_hdf5(local_path, path) as file:
                return _load_h5(file, custom_objects, compile, path)


def _create_model(config: Config, build_config: Config, custom_objects: CustomObjects) -> Model:
    model = model_from_config(config, custom_objects)
    shape = build_config.get("built_shape")
    build_config_module.build_model(model, build_config.get("input_specs"), shape)
    if shape:
        model._build_input_shape = map_shapes(TensorShape, shape)
    return model


def _load_h5(file: h5py.File, custom_objects: CustomObjects, compile: bool, path: str) -> Model:
    if "model_config" not in file.attrs:
        raise ValueError(
            f"No model config found in the file at {path}. If it has weights only, load them with Model.load_weights."
        )
    try:
        meta = {
            key: parse_json(file.attrs[key])
            for key in ("model_config", "training_config", "built_shape", "input_specs")
            if key in file.attrs
        }
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its configuration is not JSON: {error}.") from None
    if _is_keras_3(file.attrs.get("keras_version", "")):
        meta["model_config"] = restore_activation_names(meta["model_config"])
    model = _create_model(meta["model_config"], meta, custom_objects)
    hdf5.read_model(model, file["model_weights"])
    if compile and meta.get("training_config"):
        compile_from_config(model, meta["training_config"], custom_objects)
        names, values = hdf5.read_optimizer(file)
        optimizer_state.restore_state(model.optimizer, model, names, values)
    return model


def _is_keras_3(version: str | bytes) -> bool:
    return (version.decode() if isinstance(version, bytes) else str(version)).startswith("3.")


def _compile_archived(model: Model, config: Config, custom_objects: CustomObjects) -> bool:
    """Compile a model as TensorFlow does, which does not call a user's `compile`; return whether it is compiled."""
    if registry.is_overridden(model, "compile_from_config"):
        with registry.custom_object_scope(custom_objects or {}):
            model.compile_from_config(config)
    elif registry.is_overridden(model, "compile"):
        _log.warning(
            "`compile()` was not called as part of model loading because the model's `compile()` method is custom. All "
            "subclassed Models that have `compile()` overridden should also override `get_compile_config()` and "
            "`compile_from_config(config)`. Alternatively, you can call `compile()` manually after loading."
        )
    else:
        compile_from_config(model, config, custom_objects)
    return getattr(model, "optimizer", None) is not None


def _load_archive(archive: Archive, custom_objects: CustomObjects, compile: bool) -> Model:
    config = archive.read_config()
    if _is_keras_3(archive.read_keras_version()):
        config = restore_activation_names(config)
    build_config = dict(config.get("build_config") or {})
    build_config["built_shape"] = build_config.pop("input_shape", None)
    model = _create_model(config, build_config, custom_objects)
    with archive.open_weights() as file:
        read_vocabularies(model, archive, file)
        (keras3_weights if keras3_weights.has_keras3_layout(file) else hdf5).read_model(model, file)
        if compile and config.get("compile_config"):
            if not _compile_archived(model, config["compile_config"], custom_objects):
                return model
            names, values = keras3_weights.read_optimizer(file)
            optimizer_state.restore_state(model.optimizer, model, names, values)
    return model


def _load_folder(path: str, custom_objects: CustomObjects, compile: bool) -> Model:
    if is_tensorflow_saved_model(path):
        return tensorflow_models.load(path, custom_objects, compile)
    content = ArrayFolder(path).manifest if is_array_folder(path) else {}
    meta = content.get("model") or {"model_config": None}
    if meta["model_config"] is None and "saved_model" not in content:
        raise ValueError(
            f"{path} holds no model: expected a saved_model.pb of TensorFlow or a model that Meshflow saved."
        )
    if meta["model_config"] is None:
        return _load_restored_model(path, meta, custom_objects, compile)
    try:
        model = _create_model(meta["model_config"], meta, custom_objects)
    except UnsafeConfigError:
        raise
    except ValueError as error:
        if "saved_model" not in content:
            raise
        reason = str(error).split(". ")[0]
        _log.warning("%s: loading the functions of the model without its class: %s", path, reason)
        return _load_restored_model(path, meta, custom_objects, compile)
    return _restore_weights(model, meta, read_folder(path), custom_objects, compile)


def load_and_describe(arguments: Json, file: IO[bytes]) -> None:
    """Load a model, and write its description; called in an isolated process."""
    model = load_model(arguments["path"], compile=arguments["compile"])
    isolated_loading.write_description(model, file)


def restore_model(
    meta: Config, stored: Mapping[str, tuple[str, np.ndarray]], compile: bool
) -> Model:
    """Create a model from its metadata and arrays, the results of `describe_model`."""
    return _restore_weights(
        _create_model(meta["model_config"], meta, None), meta, stored, None, compile
    )


def _restore_weights(
    model: Model,
    meta: Config,
    stored: Mapping[str, tuple[str, np.ndarray]],
    custom_objects: CustomObjects,
    compile: bool,
) -> Model:
    weights = [k for k in sorted(stored) if k.isdigit()]
    set_weights(model.name, merge_shards(model._saved_weights), [stored[k][1] for k in weights])
    if compile and meta.get("training_config"):
        compile_from_config(model, meta["training_config"], custom_objects)
        state = [stored[k] for k in sorted(stored) if k.startswith("optimizer_")]
        names, values = [name for name, _ in state], [value for _, value in state]
        optimizer_state.restore_state(model.optimizer, model, names, values, has_created_order=True)
    return model


def _load_restored_model(
    path: str, meta: Config, custom_objects: CustomObjects, compile: bool
) -> Model:
    model = RestoredModel(saved_model.load(path, trusted=not is_in_safe_mode()))
    if compile and meta.get("training_config"):
        compile_from_config(model, meta["training_config"], custom_objects)
    return model


def model_from_config(config: Config, custom_objects: CustomObjects = None) -> Model:
    """Create a model with new weights from a configuration of Meshflow or Keras 2.

    Args:
      config: The configuration, with class name.
      custom_objects: Additional classes and functions by name.

    Example:
      >>> model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])
      >>> config = {"class_name": "Sequential", "config": model.get_config()}
      >>> tf.keras.models.model_from_config(config).output_shape
      (None, 2)
    """
    expected = (
        "model_from_config: expected a dictionary with class_name and config, as from to_json or "
        f"tf.keras.layers.serialize, got {config!r:.100}."
    )
    if not isinstance(config, dict):
        raise TypeError(expected)
    if not {"class_name", "config"} <= set(config):
        raise ValueError(expected)
    with registry.custom_object_scope(custom_objects or {}):
        config = from_keras_3(config)
        return registry.LAYERS.deserialize(config, custom_objects)


def model_from_json(
    json_string: str, custom_objects: CustomObjects = None, safe_mode: bool = True
) -> Model:
    """Create a model with new weights from the JSON of its architecture.

    Args:
      json_string: Result of `Model.to_json` of Meshflow or Keras 2.
      custom_objects: Additional classes and functions by name.
      safe_mode: Whether to refuse architectures that contain code or name files; see `load_model`.

    Raises:
      ValueError: If a name is unknown, and in safe mode for code.

    Example:
      >>> text = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)]).to_json()
      >>> tf.keras.models.model_from_json(text).output_shape
      (None, 2)
    """
    with safe_mode_scope(safe_mode):
        return model_from_config(parse_json(json_string), custom_objects)
