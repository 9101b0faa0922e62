"""Whole models written to files: `.keras` (zip of JSON and HDF5), `.h5` (Keras 2's layout), or a folder."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Iterator
from typing import IO, Any

from meshflow.core.variables.sharded_variable import whole_variables
from meshflow.files import gfile
from meshflow.files.paths import text
from meshflow.files.replacing import replacing
from meshflow.keras import registry
from meshflow.keras.engine.layer.helpers import as_tuples
from meshflow.keras.engine.saving import (
    building,
    hdf5,
    keras3,
    keras3_writing,
    optimizer_state,
    tensorflow_metadata,
)
from meshflow.keras.engine.saving.archives import h5py, is_hdf5
from meshflow.keras.engine.saving.configuration import (
    KERAS_VERSION,
    compile_config,
    hdf5_config,
    model_config,
    to_json,
    training_config,
)
from meshflow.keras.engine.saving.serving_signatures import input_specs
from meshflow.saved_model import saving as saved_model

_log = logging.getLogger("meshflow")
# Bytes copied at once.
_CHUNK = 1 << 22


def save_model(
    model: Any,
    filepath: Any,
    overwrite: bool = True,
    save_format: str | None = None,
    include_optimizer: bool = True,
    keras_version: int = 2,
    **kwargs: Any,
) -> None:
    """Saves a model: architecture, weights, and how it was compiled.

    Args:
      model: the model.
      filepath: path ending in `.keras` or `.h5`, or a folder; or an `h5py.File` that is open for writing.
      overwrite: whether an existing file is replaced.
      save_format: 'keras' (or 'keras_v3'), 'h5' or 'tf'; default by the path.
      include_optimizer: whether the optimizer's state is saved too.
      keras_version: whose form a `.keras` or `.h5` file has: 2 for TensorFlow until 2.15 and tf-keras, 3 for Keras 3
        and TensorFlow since 2.16, in `.h5` files without the optimizer's state. Both are read here.
      **kwargs: for folders, `signatures` as in `tf.saved_model.save`, and `save_traces`: whether what the model
        computes is saved too, so that it can be loaded without its class; others are ignored, and `.keras` takes none.

    Raises:
      FileExistsError: when the file exists and may not be replaced.
      ValueError: for an unknown format.
      NotImplementedError: for a subclassed model without `get_config`, unless a folder is written and the
        model has been called.
      ValueError: for another `keras_version`, for one of a folder, and for what Keras 3 does not have.

    Example:
      >>> import meshflow as tf
      >>> import os, tempfile
      >>> model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     tf.keras.models.save_model(model, os.path.join(folder, "model.h5"))
      ...     os.listdir(folder)
      ['model.h5']
    """
    file = filepath if is_hdf5(filepath) else None
    path = str(file.filename) if file is not None else text(filepath)
    if file is None and gfile.exists(path) and not overwrite:
        raise FileExistsError(f"{path} exists and overwrite is False.")
    kind = "h5" if file is not None else _kind(path, save_format)
    if kind == "keras" and kwargs:
        raise ValueError(
            f"save_model: {sorted(kwargs)} are not supported with the native Keras format ({path}): save a folder."
        )
    if keras_version not in (2, 3) or (keras_version == 3 and kind == "tf"):
        raise ValueError(
            f"save_model: keras_version is 2 or 3, and for .keras and .h5 files only; got {keras_version!r} for {path}."
        )
    _warn_of_what_is_left_out(model)
    training = training_config(model)
    optimizer = model.optimizer if include_optimizer and training else None
    config = keras3_writing.model_config if keras_version == 3 else model_config
    meta = {
        "model_config": _config_if_any(model) if kind == "tf" else config(model),
        "training_config": training if include_optimizer else None,
        "built_shape": _built_shape(model),
        "input_specs": building.describe(model.__dict__.get("_save_spec")),
    }
    if file is not None:
        _write_h5(model, file, meta, optimizer, keras_version)
    elif kind == "h5":
        with replacing(path) as part, h5py().File(part.name, "w") as file:
            _write_h5(model, file, meta, optimizer, keras_version)
    elif kind == "keras":
        with replacing(path) as part:
            _write_archive(model, part, meta, optimizer, keras_version)
    else:
        state = [] if optimizer is None else optimizer_state.state_of(optimizer)
        with contextlib.nullcontext() if include_optimizer else _without_optimizer(model):
            _write_folder(model, path, meta, state, kwargs)


_FORMATS = {
    **dict.fromkeys(("h5", "hdf5"), "h5"),
    **dict.fromkeys(("keras", "keras_v3"), "keras"),
    **dict.fromkeys(("tf", "tensorflow"), "tf"),
}


def _kind(path: str, save_format: str | None) -> str:
    if save_format is not None and save_format not in _FORMATS:
        raise ValueError(
            "Unknown `save_format` argument. Expected one of 'keras', 'tf', or 'h5'. "
            f"Received: {save_format!r}"
        )
    if save_format == "keras_v3" and not path.endswith(".keras"):
        raise ValueError(
            f"Invalid `filepath` argument: with save_format='keras_v3' it ends in `.keras`. Received: {path!r}"
        )
    save_format = _FORMATS.get(save_format or "")
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


@contextlib.contextmanager
def _without_optimizer(model: Any) -> Iterator[None]:
    """Keeps the optimizer out of the objects of a model that are written."""
    optimizer, model.optimizer = model.optimizer, None
    try:
        yield
    finally:
        model.optimizer = optimizer


def _warn_of_what_is_left_out(model: Any) -> None:
    added = {
        "losses": getattr(model, "_symbolic_losses", None),
        "metrics": getattr(model, "_symbolic_metrics", None),
    }
    for what, found in added.items():
        if found:
            _log.warning(
                "%s was given %d %s of tensors between its layers (add_%s), which are not saved: add them again after "
                "loading, or compute them in a layer's `call`.",
                model.name,
                len(found),
                what,
                "loss" if what == "losses" else "metric",
            )


def _write_folder(
    model: Any, path: str, meta: dict[str, Any], state: Any, options: dict[str, Any]
) -> None:
    own = whole_variables(model._saved_weights)
    weights: dict[str, Any] = {f"{i:05d}": w for i, w in enumerate(own)}
    weights |= {f"optimizer_{i:05d}": w for i, w in enumerate(state)}
    arrays = {key: (f"{w._shared_name}:0", w.numpy()) for key, w in weights.items()}
    manifest = json.loads(to_json({"model": meta}))
    what = saved_model.Content(arrays, manifest)
    if options.get("save_traces", True):
        files = {id(w): key for key, w in weights.items()}
        try:
            what = saved_model.content(
                model, options.get("signatures"), files, options.get("options")
            )
            what.arrays, what.manifest = arrays | what.arrays, manifest | what.manifest
            if what.graph is not None:
                what.files[tensorflow_metadata.FILE] = tensorflow_metadata.written(
                    what.objects, what.nodes, meta
                )
        except ImportError as error:
            if not meta["model_config"]:
                raise
            _log.info("%s is saved without its functions: %s", model.name, error)
    saved_model.write(path, what)


def _built_shape(model: Any) -> Any:
    shape = getattr(model, "_build_input_shape", None)
    return as_tuples(shape) if shape is not None else None


def _written_as(keras_version: int) -> str:
    return KERAS_VERSION if keras_version == 2 else keras3_writing.VERSION


def _write_h5(
    model: Any, file: Any, meta: dict[str, Any], optimizer: Any, keras_version: int
) -> None:
    training = meta["training_config"]
    if training and keras_version == 3:
        training = keras3_writing.training_config(training)
    elif training:
        training = hdf5_config(training, optimizer_state.version_of(optimizer) is not None)
    file.attrs["keras_version"] = _written_as(keras_version)
    file.attrs["backend"] = "jax"
    file.attrs["model_config"] = to_json(meta["model_config"])
    if training:
        file.attrs["training_config"] = to_json(training)
    for key in ("built_shape", "input_specs"):
        if meta[key] is not None:
            file.attrs[key] = json.dumps(meta[key])
    hdf5.write_model(model, file.create_group("model_weights"))
    # Keras 3 trains no model of an .h5 file from which it has read an optimizer's state.
    if keras_version == 2:
        _write_optimizer(hdf5, optimizer, file)


def _write_optimizer(layout: Any, optimizer: Any, file: Any) -> None:
    """Writes an optimizer's state in one of the layouts, in the order of its version of Keras."""
    if optimizer is None or not hasattr(optimizer, "weights"):
        return
    version = optimizer_state.version_of(optimizer)
    ordered = None if version is None else optimizer_state.in_order(optimizer, version)
    state = whole_variables(optimizer.weights) if ordered is None else ordered
    layout.write_optimizer(state, file, optimizer_state.without_place(optimizer, version))


def _write_state(model: Any, optimizer: Any, file: Any) -> None:
    """Writes an optimizer's state as Keras 3 has it in `.keras` files."""
    if optimizer is None or not hasattr(optimizer, "weights"):
        return
    state = optimizer_state.in_order(optimizer, optimizer_state.KERAS_3)
    if state is None:
        kind = type(optimizer).__name__
        _log.warning("%s is saved for Keras 3 without the state of its %s.", model.name, kind)
    else:
        keras3.write_optimizer(state, file)


def _write_weights(model: Any, part: IO[bytes], optimizer: Any, keras_version: int) -> None:
    """Writes weights and an optimizer's state into an HDF5 file."""
    with h5py().File(part, "w") as file:
        (keras3 if keras3.can_hold(model) else hdf5).write_model(model, file)
        if keras_version == 3:
            _write_state(model, optimizer, file)
        else:
            _write_optimizer(keras3, optimizer, file)


def _write_archive(
    model: Any, part: IO[bytes], meta: dict[str, Any], optimizer: Any, keras_version: int
) -> None:
    # Where the archive has room, not in memory: it is as large as all weights.
    with (
        tempfile.TemporaryFile(dir=os.path.dirname(part.name)) as weights,
        zipfile.ZipFile(part, "w") as archive,
    ):
        _write_weights(model, weights, optimizer, keras_version)
        for name, content in _described(model, meta, optimizer, keras_version).items():
            archive.writestr(name, content)
        member = zipfile.ZipInfo("model.weights.h5", time.localtime()[:6])
        member.file_size = weights.seek(0, os.SEEK_END)
        member.external_attr = 0o600 << 16
        weights.seek(0)
        with archive.open(member, "w") as target:
            shutil.copyfileobj(weights, target, _CHUNK)


def _found_by(cls: type) -> dict[str, Any]:
    """What Keras finds a model's class by: its own classes by their module, others by their registered names."""
    if registry.public_module(cls) is None:
        return {"module": cls.__module__, "registered_name": registry.get_registered_name(cls)}
    return {"module": "keras", "registered_name": None}


def _described(
    model: Any, meta: dict[str, Any], optimizer: Any, keras_version: int
) -> dict[str, str]:
    """What a `.keras` file says of its model, by member."""
    config = {**_found_by(type(model)), **meta["model_config"]}
    if config["class_name"] == "Functional":
        config["class_name"] = "Model"  # the public name, under which Keras looks it up
    if meta["built_shape"] is not None:
        config["build_config"] = {"input_shape": meta["built_shape"]}
        if meta["input_specs"] is not None:
            config["build_config"]["input_specs"] = meta["input_specs"]
    if meta["training_config"] and keras_version == 3:
        config["compile_config"] = keras3_writing.compile_config(meta["training_config"])
    elif meta["training_config"]:
        config["compile_config"] = compile_config(
            meta["training_config"], new=optimizer_state.version_of(optimizer) is not None
        )
    about = {
        "keras_version": _written_as(keras_version),
        "date_saved": time.strftime("%Y-%m-%d@%H:%M:%S"),
    }
    return {"metadata.json": json.dumps(about), "config.json": to_json(config)}
