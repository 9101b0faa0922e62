"""Keras models in SavedModels of TensorFlow: made again from their configurations, or as what they compute."""

from __future__ import annotations

import json
import logging
from typing import Any

from meshflow import saved_model
from meshflow.checkpoint.checkpoint import restore_objects
from meshflow.core.runtime.errors import DataLossError
from meshflow.files import gfile
from meshflow.keras.engine.saving import building
from meshflow.keras.engine.saving.configuration import compile_from_config
from meshflow.keras.engine.saving.vocabularies import restore_vocabularies
from meshflow.keras.registry import LAYERS
from meshflow.keras.safe_mode import UnsafeConfigError
from meshflow.keras.saving.restored import RestoredModel

__all__ = ["load"]

_log = logging.getLogger("meshflow")
_METADATA = "keras_metadata.pb"


def load(path: str, custom_objects: Any, compile: bool) -> Any:
    """A model from a SavedModel that TensorFlow wrote.

    Args:
      path: the folder.
      custom_objects: classes and functions by name.
      compile: whether the model is compiled as it was.

    Returns:
      The model, of its layers where their classes are known, else one that predicts by TensorFlow's graph.

    Raises:
      ValueError: when the folder holds no model, and for what safe mode refuses.
      DataLossError: when a file is damaged, naming it.
    """
    meta = _root_metadata(path)
    training = meta.get("training_config") if compile else None
    if meta.get("class_name") and isinstance(meta.get("config"), dict):
        try:
            return _made_again(path, meta, training, custom_objects)
        except (UnsafeConfigError, DataLossError):
            raise
        except (ValueError, NotImplementedError, TypeError, AssertionError) as error:
            why = str(error).split(". ")[0]
            _log.warning("%s: the model's graph is loaded, without its layers: %s", path, why)
    restored = saved_model.load(path)
    if restored.__dict__.get("__call__") is None and not restored.signatures:
        raise ValueError(f"{path} holds no model: neither a function to call nor a signature.")
    model = RestoredModel(restored)
    if training:
        compile_from_config(model, training, custom_objects)
    return model


def _root_metadata(path: str) -> dict[str, Any]:
    """What tf.keras notes about the model itself; nothing for a folder without its file."""
    from meshflow.saved_model.graph.messages import DecodeError, SavedMetadata  # noqa: PLC0415 - it needs an optional package

    file = gfile.join(path, _METADATA)
    if not gfile.exists(file):
        return {}
    with gfile.GFile(file, "rb") as opened:
        data = opened.read()
    try:
        nodes = SavedMetadata.FromString(data).nodes
        found = [_plain(json.loads(n.metadata)) for n in nodes if n.node_path == "root"]
        return dict(found[0]) if found else {}
    except (DecodeError, ValueError, TypeError, RecursionError) as error:
        raise DataLossError(f"{file} is damaged: {error}.") from None


def _plain(value: Any) -> Any:
    """A configuration without TensorFlow's wrappers of tuples and shapes."""
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if not isinstance(value, dict):
        return value
    if value.get("class_name") == "__tuple__":
        return tuple(_plain(v) for v in value["items"])
    if value.get("class_name") == "TensorShape" and "items" in value:
        items = value["items"]
        return None if items is None else tuple(items)
    return {k: _plain(v) for k, v in value.items()}


def _made_again(path: str, meta: dict[str, Any], training: Any, custom_objects: Any) -> Any:
    config = {"class_name": meta["class_name"], "config": meta["config"]}
    model = LAYERS.deserialize(config, custom_objects)
    building.build(model, None, meta.get("build_input_shape"))
    if training:
        compile_from_config(model, training, custom_objects)
    prefix = gfile.join(path, saved_model.VARIABLES_DIRECTORY, saved_model.VARIABLES_FILENAME)
    restore_objects(prefix, model).assert_existing_objects_matched().expect_partial()
    restore_vocabularies(model, lambda: saved_model.load(path))
    return model
