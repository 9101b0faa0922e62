"""Keras models in SavedModels of TensorFlow.

A model is rebuilt from its configuration if its classes are known, and restored as a graph
otherwise.
"""

from __future__ import annotations

import logging

from meshflow import saved_model
from meshflow.checkpoint.checkpoint import restore_objects
from meshflow.core.runtime.errors import DataLossError
from meshflow.environment.json_documents import parse_json
from meshflow.environment.types import Config, Json
from meshflow.files import gfile
from meshflow.files.contained_files import check_contained
from meshflow.keras.engine.models.model import Model
from meshflow.keras.engine.saving import build_config
from meshflow.keras.engine.saving.model_configuration import compile_from_config
from meshflow.keras.engine.saving.vocabularies import restore_vocabularies
from meshflow.keras.registry import LAYERS, CustomObjects
from meshflow.keras.safe_mode import UnsafeConfigError, is_in_safe_mode
from meshflow.keras.saving.restored_model import RestoredModel

_log = logging.getLogger("meshflow")
_METADATA = "keras_metadata.pb"


def load(path: str, custom_objects: CustomObjects, compile: bool) -> Model:
    """Load a model from a SavedModel that TensorFlow wrote.

    Args:
      path: Directory.
      custom_objects: Additional classes and functions by name.
      compile: Whether to compile the model as it was.

    Returns:
      A model with layers if their classes are known, and a `RestoredModel` otherwise.

    Raises:
      ValueError: If the directory has no model, and in safe mode for code.
      DataLossError: If a file is damaged; the message names it.
    """
    meta = _read_root_metadata(path)
    training = meta.get("training_config") if compile else None
    if meta.get("class_name") and isinstance(meta.get("config"), dict):
        try:
            return _rebuild_model(path, meta, training, custom_objects)
        except (UnsafeConfigError, DataLossError):
            raise
        except (ValueError, NotImplementedError, TypeError, AssertionError) as error:
            reason = str(error).split(". ")[0]
            _log.warning("%s: loading the graph of the model, without its layers: %s", path, reason)
    restored = saved_model.load(path, trusted=not is_in_safe_mode())
    if restored.__dict__.get("__call__") is None and not restored.signatures:
        raise ValueError(f"{path} holds no model: it has neither a function nor a signature.")
    model = RestoredModel(restored)
    if training:
        compile_from_config(model, training, custom_objects)
    return model


def _read_root_metadata(path: str) -> Config:
    """Read the metadata of tf.keras for the model; an empty dictionary without its file."""
    from meshflow.saved_model.graph.format.messages import DecodeError, SavedMetadata  # noqa: PLC0415 - it needs an optional package

    file = gfile.join(path, _METADATA)
    if not gfile.exists(file):
        return {}
    with gfile.GFile(check_contained(file, path), "rb") as stream:
        data = stream.read()
    try:
        nodes = SavedMetadata.FromString(data).nodes
        roots = [_unwrap_values(parse_json(n.metadata)) for n in nodes if n.node_path == "root"]
        return dict(roots[0]) if roots else {}
    except (DecodeError, ValueError, TypeError, RecursionError) as error:
        raise DataLossError(f"{file} is damaged: {error}.") from None


def _unwrap_values(value: Json) -> Json:
    """Unwrap tuples and shapes in a configuration of TensorFlow."""
    if isinstance(value, list):
        return [_unwrap_values(v) for v in value]
    if not isinstance(value, dict):
        return value
    if value.get("class_name") == "__tuple__":
        return tuple(_unwrap_values(v) for v in value["items"])
    if value.get("class_name") == "TensorShape" and "items" in value:
        items = value["items"]
        return None if items is None else tuple(items)
    return {k: _unwrap_values(v) for k, v in value.items()}


def _rebuild_model(
    path: str, meta: Config, training: Config | None, custom_objects: CustomObjects
) -> Model:
    config = {"class_name": meta["class_name"], "config": meta["config"]}
    model = LAYERS.deserialize(config, custom_objects)
    build_config.build_model(model, None, meta.get("build_input_shape"))
    if training:
        compile_from_config(model, training, custom_objects)
    prefix = gfile.join(path, saved_model.VARIABLES_DIRECTORY, saved_model.VARIABLES_FILENAME)
    restore_objects(prefix, model).assert_existing_objects_matched().expect_partial()
    restore_vocabularies(model, lambda: saved_model.load(path))
    return model
