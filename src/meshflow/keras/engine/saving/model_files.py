"""Writing of models to `.keras` files (zip of JSON and HDF5), `.h5` files, and SavedModel folders."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Protocol, TypedDict

import numpy as np

from meshflow.core.variables.sharded_variable import merge_shards
from meshflow.core.variables.variable import get_full_name
from meshflow.environment.types import Config, PyTree, StrPath
from meshflow.files import gfile
from meshflow.files.atomic_writes import replace_file
from meshflow.files.paths import to_path_string
from meshflow.keras import registry, serialization
from meshflow.keras.engine.graph.added_terms import AddMetric
from meshflow.keras.engine.layer.helpers import as_tuples, remove_duplicates
from meshflow.keras.engine.layer.losses_and_metrics import flatten_layers
from meshflow.keras.engine.saving import (
    build_config,
    hdf5,
    keras3_serialization,
    keras3_weights,
    optimizer_state,
    tensorflow_metadata,
)
from meshflow.keras.engine.saving.archives import OverwriteError, is_open_hdf5, load_h5py
from meshflow.keras.engine.saving.model_configuration import (
    KERAS_VERSION,
    get_training_config,
    make_model_config,
    to_compile_config,
    to_hdf5_training_config,
    to_json,
)
from meshflow.keras.engine.saving.serving_signatures import find_input_specs
from meshflow.keras.engine.saving.user_state import write_assets
from meshflow.keras.literals import SaveFormat
from meshflow.saved_model.saving import model_writer as saved_model

if TYPE_CHECKING:
    from h5py import Group as HDF5Group


class _OptimizerLayout(Protocol):
    """A module that writes an optimizer's state: `hdf5` or `keras3_weights`."""

    def write_optimizer(
        self, slots: Sequence[Any], file: HDF5Group, extra: Sequence[Any], /
    ) -> None: ...


_log = logging.getLogger("meshflow")
# Number of bytes that are copied at once.
_CHUNK_BYTES = 1 << 22


class SaveArguments(TypedDict, total=False):
    """Further arguments of `Model.save`."""

    include_optimizer: bool
    keras_version: int
    signatures: object
    save_traces: bool
    options: object


def save_model(
    model: Any,
    filepath: StrPath | HDF5Group,
    overwrite: bool = True,
    save_format: SaveFormat | None = None,
    include_optimizer: bool | None = None,
    keras_version: int = 2,
    **kwargs: Any,
) -> None:
    """Save a model: its architecture, weights, and training configuration.

    Args:
      model: The model.
      filepath: Path that ends in `.keras` or `.h5`, a folder, or an `h5py.File` that is open for
        writing.
      overwrite: Whether to replace an existing file.
      save_format: 'keras' (or 'keras_v3'), 'h5' or 'tf'. Default: chosen by the path.
      include_optimizer: Whether to save the optimizer's state, too; by default True. `.keras` files always include it, and
        this argument is an error for them, as in Keras 2.
      keras_version: Version of Keras that defines the form of a `.keras` or `.h5` file: 2 for
        tf-keras and for TensorFlow up to 2.15; 3 for Keras 3 and for TensorFlow since 2.16, in
        `.h5` files without the optimizer's state. Meshflow reads both.
      **kwargs: For folders, `signatures` as in `tf.saved_model.save`, and `save_traces`: whether to
        save the model's functions, too, so that it can be loaded without its class. Others are
        ignored. `.keras` files accept none.

    Raises:
      FileExistsError: if the file exists and `overwrite` is False.
      ValueError: if the format is unknown, `keras_version` is not 2 or 3, or is 3 for a folder, or
        if Keras 3 does not have a part of the model.
      NotImplementedError: if the model is subclassed, for an `.h5` file; and if it defines no
        `get_config`, unless the target is a folder and the model has been called.

    Example:
      >>> import os, tempfile
      >>> model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     tf.keras.models.save_model(model, os.path.join(folder, "model.h5"))
      ...     os.listdir(folder)
      ['model.h5']
    """
    file: Any = filepath if is_open_hdf5(filepath) else None
    path = str(file.filename) if file is not None else to_path_string(filepath)
    if file is not None and file.file.mode == "r":
        raise ValueError(f"{path} is open for reading only: open it with h5py.File({path!r}, 'w').")
    if file is None and gfile.exists(path) and not overwrite:
        raise OverwriteError(f"{path} exists and overwrite is False.")
    file_format = "h5" if file is not None else _choose_format(path, save_format)
    if file_format == "keras":
        refused = sorted(kwargs) + ["include_optimizer"] * (include_optimizer is not None)
        if refused:
            raise ValueError(
                f"The following argument(s) are not supported with the native Keras format: {refused}. Leave them out, or "
                f"save a folder instead of {path}."
            )
    if file_format == "h5":
        _check_can_be_in_hdf5(model)
    include_optimizer = include_optimizer is not False
    if keras_version not in (2, 3) or (keras_version == 3 and file_format == "tf"):
        raise ValueError(
            f"save_model: keras_version is 2 or 3, and 3 only for .keras and .h5 files; got {keras_version!r} for {path}."
        )
    training = get_training_config(model)
    optimizer = model.optimizer if include_optimizer and training else None
    make_config = (
        keras3_serialization.make_model_config if keras_version == 3 else make_model_config
    )
    config = _find_model_config(model) if file_format == "tf" else make_config(model)
    meta = _make_metadata(model, config, training if include_optimizer else None)
    with optimizer_state.model_slots_scope(optimizer, model):
        if file is not None:
            _write_h5(model, file, meta, optimizer, keras_version)
        elif file_format == "h5":
            with replace_file(path) as part, load_h5py().File(part.name, "w") as file:
                _write_h5(model, file, meta, optimizer, keras_version)
        elif file_format == "keras":
            with replace_file(path) as part:
                _write_archive(model, part, meta, optimizer, keras_version)
        else:
            state = [] if optimizer is None else optimizer_state.list_state(optimizer)
            with contextlib.nullcontext() if include_optimizer else _detach_optimizer(model):
                _write_folder(model, path, meta, state, kwargs)


def _make_metadata(model: Any, config: Config | None, training: Config | None) -> dict[str, Any]:
    return {
        "model_config": config,
        "training_config": training,
        "built_shape": _get_built_shape(model),
        "input_specs": build_config.serialize_specs(model.__dict__.get("_save_spec")),
    }


def describe_model(model: Any) -> tuple[Config, dict[str, tuple[str, np.ndarray]]]:
    """Return all that defines a model: its metadata, and the arrays of its weights and optimizer.

    Args:
      model: A model with a configuration.

    Returns:
      The metadata, values of JSON, and names and values of the arrays by key.

    Raises:
      NotImplementedError: If the model has no configuration.
    """
    training = get_training_config(model)
    meta = _make_metadata(model, make_model_config(model), training)
    optimizer = model.optimizer if training else None
    with optimizer_state.model_slots_scope(optimizer, model):
        state = [] if optimizer is None else optimizer_state.list_state(optimizer)
        arrays = _name_arrays(_key_weights(model, state))
    return json.loads(to_json(meta)), arrays


def _key_weights(model: Any, state: Sequence[Any]) -> dict[str, Any]:
    """Return weights and the state of an optimizer by their keys in a folder."""
    weights: dict[str, Any] = {
        f"{i:05d}": w for i, w in enumerate(merge_shards(model._saved_weights))
    }
    return weights | {f"optimizer_{i:05d}": w for i, w in enumerate(state)}


def _name_arrays(weights: Mapping[str, Any]) -> dict[str, tuple[str, np.ndarray]]:
    return {key: (f"{get_full_name(w)}:0", w.numpy()) for key, w in weights.items()}


_FORMATS = {
    **dict.fromkeys(("h5", "hdf5"), "h5"),
    **dict.fromkeys(("keras", "keras_v3"), "keras"),
    **dict.fromkeys(("tf", "tensorflow"), "tf"),
}


def _choose_format(path: str, save_format: SaveFormat | None) -> str:
    if save_format is not None and save_format not in _FORMATS:
        raise ValueError(
            "Unknown `save_format` argument. Expected one of 'keras', 'tf', or 'h5'. "
            f"Received: {save_format!r}"
        )
    file_format = _FORMATS.get(save_format or "")
    if file_format == "keras" and not path.endswith(".keras"):
        raise ValueError(
            f"Invalid `filepath` argument: with save_format={save_format!r} it ends in `.keras`. Received: {path!r}"
        )
    if path.endswith((".h5", ".hdf5")) or file_format == "h5":
        return "h5"
    return "keras" if path.endswith(".keras") else "tf"


def _check_can_be_in_hdf5(model: Any) -> None:
    """Raise the error of Keras 2 if a model is neither Functional nor Sequential."""
    # A user's model may have a method `add`, too.
    bases = {(cls.__module__.split(".")[0], cls.__name__) for cls in type(model).__mro__}
    if not (model._is_graph_network or ("meshflow", "Sequential") in bases):
        raise NotImplementedError(
            "Saving the model to HDF5 format requires the model to be a Functional model or a Sequential model. "
            f"{model.name} is a subclassed model: save it to a `.keras` file or a folder, or use `save_weights`."
        )


def _find_model_config(model: Any) -> Config | None:
    """Return a model's configuration, or None for a subclassed model, which is saved by its functions."""
    try:
        return make_model_config(model)
    except NotImplementedError:
        if find_input_specs(model) is None:
            raise
        return None


@contextlib.contextmanager
def _detach_optimizer(model: Any) -> Iterator[None]:
    """Remove the optimizer from the model while its objects are written."""
    optimizer, model.optimizer = model.optimizer, None
    try:
        yield
    finally:
        model.optimizer = optimizer


def _write_folder(
    model: Any, path: str, meta: dict[str, Any], state: Sequence[Any], options: dict[str, Any]
) -> None:
    weights = _key_weights(model, state)
    arrays = _name_arrays(weights)
    manifest = json.loads(to_json({"model": meta}))
    content = saved_model.SavedModelContent(arrays, manifest)
    if options.get("save_traces", True):
        files = {id(w): key for key, w in weights.items()}
        try:
            content = saved_model.make_content(
                model, options.get("signatures"), files, options.get("options")
            )
            content.arrays, content.manifest = arrays | content.arrays, manifest | content.manifest
            if content.graph is not None:
                content.files[tensorflow_metadata.METADATA_FILE] = (
                    tensorflow_metadata.serialize_metadata(content.objects, content.nodes, meta)
                )
        except ImportError as error:
            if not meta["model_config"]:
                raise
            _log.info("%s is saved without its functions: %s", model.name, error)
    saved_model.write_content(path, content)


def _get_built_shape(model: Any) -> PyTree:
    """Return the shape that the model was built for, with tuples in place of `TensorShape`s."""
    shape = getattr(model, "_build_input_shape", None)
    return as_tuples(shape) if shape is not None else None


def _get_file_version(keras_version: int) -> str:
    return KERAS_VERSION if keras_version == 2 else keras3_serialization.FILE_VERSION


def _write_h5(
    model: Any, file: HDF5Group, meta: dict[str, Any], optimizer: Any, keras_version: int
) -> None:
    training = meta["training_config"]
    if training and keras_version == 3:
        training = keras3_serialization.to_training_config(training)
    elif training:
        training = to_hdf5_training_config(
            training, optimizer_state.find_keras_version(optimizer) is not None
        )
    file.attrs["keras_version"] = _get_file_version(keras_version)
    file.attrs["backend"] = "jax"
    file.attrs["model_config"] = to_json(meta["model_config"])
    if training:
        file.attrs["training_config"] = to_json(training)
    for key in ("built_shape", "input_specs"):
        if meta[key] is not None:
            file.attrs[key] = json.dumps(meta[key])
    hdf5.write_model(model, file.create_group("model_weights"))
    # Keras 3 cannot continue training a model from an .h5 file that holds an optimizer's state.
    if keras_version == 2:
        _write_optimizer(hdf5, optimizer, file)


def _write_optimizer(layout: _OptimizerLayout, optimizer: Any, file: HDF5Group) -> None:
    """Write an optimizer's state in the order of its version of Keras.

    Args:
      layout: Module of the file's layout.
      optimizer: The optimizer. Nothing is written for None, or for one without weights.
      file: HDF5 file.
    """
    if optimizer is None or not hasattr(optimizer, "weights"):
        return
    version = optimizer_state.find_keras_version(optimizer)
    ordered = None if version is None else optimizer_state.order_state(optimizer, version)
    state = merge_shards(optimizer.weights) if ordered is None else ordered
    layout.write_optimizer(state, file, optimizer_state.list_extra_state(optimizer, version))


def _write_keras3_state(model: Any, optimizer: Any, file: HDF5Group) -> None:
    """Write an optimizer's state in the order of Keras 3's `.keras` files."""
    if optimizer is None or not hasattr(optimizer, "weights"):
        return
    state = optimizer_state.order_state(optimizer, optimizer_state.KERAS_3)
    if state is None:
        _log.warning(
            "%s was saved for Keras 3 without the state of its %s, which Keras 3 does not have.",
            model.name,
            type(optimizer).__name__,
        )
    else:
        keras3_weights.write_optimizer(state, file)


def _write_weights(model: Any, part: IO[bytes], optimizer: Any, keras_version: int) -> None:
    """Write weights and an optimizer's state to an HDF5 file."""
    with load_h5py().File(part, "w") as file:
        (keras3_weights if keras3_weights.can_store_model(model) else hdf5).write_model(model, file)
        if keras_version == 3:
            _write_keras3_state(model, optimizer, file)
        else:
            _write_optimizer(keras3_weights, optimizer, file)
            _write_added_metrics(model, file)


def _write_added_metrics(model: Any, file: HDF5Group) -> None:
    """Write the state of metrics between layers, which tf-keras requires to load a `.keras` file."""
    layers = remove_duplicates(list(flatten_layers(model)))
    metrics = [m for layer in layers if isinstance(layer, AddMetric) for m in layer.metrics]
    for i, metric in enumerate(metrics):
        group = file.create_group(f"metrics/mean_{i}/vars" if i else "metrics/mean/vars")
        for index, variable in enumerate(metric.variables):
            group[str(index)] = variable.numpy()


def _write_archive(
    model: Any, part: IO[bytes], meta: dict[str, Any], optimizer: Any, keras_version: int
) -> None:
    # The weights go to a temporary file next to the archive and not to memory, because they may be
    # large.
    with (
        tempfile.TemporaryFile(dir=os.path.dirname(part.name)) as weights,
        zipfile.ZipFile(part, "w") as archive,
    ):
        _write_weights(model, weights, optimizer, keras_version)
        for name, content in _format_members(model, meta, optimizer, keras_version).items():
            archive.writestr(name, content)
        write_assets(model, archive)
        member = zipfile.ZipInfo("model.weights.h5", time.localtime()[:6])
        member.file_size = weights.seek(0, os.SEEK_END)
        member.external_attr = 0o600 << 16
        weights.seek(0)
        with archive.open(member, "w") as target:
            shutil.copyfileobj(weights, target, _CHUNK_BYTES)


def _get_class_identifiers(cls: type) -> Config:
    """Return the keys by which Keras finds a model's class.

    These are the module for a built-in class, and the registered name for another class.
    """
    if registry.get_public_module(cls) is None:
        return {"module": cls.__module__, "registered_name": registry.get_registered_name(cls)}
    return {"module": "keras", "registered_name": None}


def _format_members(
    model: Any, meta: dict[str, Any], optimizer: Any, keras_version: int
) -> dict[str, str]:
    """Return the text members of a `.keras` file by name."""
    config = {**_get_class_identifiers(type(model)), **meta["model_config"]}
    if config["class_name"] == "Functional":
        config["class_name"] = "Model"  # Keras looks up the class under its public name.
    if registry.is_overridden(model, "get_build_config"):
        config["build_config"] = serialization.serialize_keras_object(model.get_build_config())
    elif meta["built_shape"] is not None:
        config["build_config"] = {"input_shape": meta["built_shape"]}
        if meta["input_specs"] is not None:
            config["build_config"]["input_specs"] = meta["input_specs"]
    if registry.is_overridden(model, "get_compile_config"):
        config["compile_config"] = serialization.serialize_keras_object(model.get_compile_config())
    elif meta["training_config"] and keras_version == 3:
        config["compile_config"] = keras3_serialization.to_compile_config(meta["training_config"])
    elif meta["training_config"]:
        is_new = optimizer_state.find_keras_version(optimizer) is not None
        config["compile_config"] = to_compile_config(
            meta["training_config"], model._compile_arguments, is_new
        )
    metadata = {
        "keras_version": _get_file_version(keras_version),
        "date_saved": time.strftime("%Y-%m-%d@%H:%M:%S"),
    }
    return {"metadata.json": json.dumps(metadata), "config.json": to_json(config)}
