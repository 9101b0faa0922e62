"""`Model.save_weights` and `load_weights`: which layout a path means."""

from __future__ import annotations

from typing import Any

from meshflow.checkpoint.checkpoint import restore_objects, write_objects
from meshflow.checkpoint.containers import is_checkpoint
from meshflow.core.runtime.annotations import CHECKPOINT, inside
from meshflow.files import gfile
from meshflow.files.copies import local_copy
from meshflow.files.paths import text
from meshflow.files.replacing import replacing
from meshflow.keras.engine.saving import hdf5, keras3, safetensors
from meshflow.keras.engine.saving.archives import Archive, h5py, open_hdf5
from meshflow.saved_model import VARIABLES_DIRECTORY, VARIABLES_FILENAME


def _is_h5(path: str, save_format: str | None = None) -> bool:
    return save_format in ("h5", "keras", "hdf5") or path.endswith((".h5", ".keras", ".hdf5"))


_FORMATS = (None, "tf", "tensorflow", "h5", "hdf5", "keras")


@inside(CHECKPOINT, "save_weights")
def save_weights(
    model: Any,
    filepath: Any,
    overwrite: bool = True,
    save_format: str | None = None,
    options: Any = None,
) -> None:
    """Saves a model's weights; see `Model.save_weights`.

    Args:
      model: the model.
      filepath: a path ending in `.weights.h5` (Keras 3's layout), `.h5` or `.hdf5` (Keras 2's), `.safetensors`
        or `.safetensors.index.json` (files of 5 GB and their index), or the prefix of a checkpoint in TensorFlow's format, which `tf.train.Checkpoint(model)` can read too.
      overwrite: whether an existing file is replaced.
      save_format: 'h5' or 'tf'; default by the path.
      options: a `tf.train.CheckpointOptions`, for checkpoints.

    Raises:
      ValueError: for a model without weights yet, and for an unknown format.
      FileExistsError: when the file exists and may not be replaced.

    Example:
      >>> import meshflow as tf
      >>> import os, tempfile
      >>> model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     model.save_weights(os.path.join(folder, "model.weights.h5"))
      ...     os.listdir(folder)
      ['model.weights.h5']
    """
    path = text(filepath)
    if save_format not in _FORMATS:
        raise ValueError(
            f"Unknown format. Received: `save_format`={save_format}. Was expecting one of ['tf', 'h5']."
        )
    by_name = path.endswith(safetensors.ENDINGS) and save_format is None
    in_file = by_name or (_is_h5(path, save_format) and save_format not in ("tf", "tensorflow"))
    # A checkpoint may hold a subclassed model that has no weights yet.
    if not model.built and not model._saved_weights and (in_file or hasattr(model, "add")):
        raise ValueError(
            f"Unable to save weights of model {model.name}: it has not created its weights yet. Build it or call it on data first."
        )
    there = gfile.exists(path) if in_file else is_checkpoint(path)
    if there and not overwrite:
        raise FileExistsError(f"{path} exists and overwrite is False.")
    if by_name:
        safetensors.write_model(model, path)
        return
    if not in_file:
        write_objects(path, model, options)
        return
    modern = path.endswith(".weights.h5") and keras3.can_hold(model)
    with replacing(path) as part, h5py().File(part.name, "w") as file:
        (keras3 if modern else hdf5).write_model(model, file)


@inside(CHECKPOINT, "load_weights")
def load_weights(
    model: Any, filepath: Any, skip_mismatch: bool = False, by_name: bool = False
) -> Any:
    """Loads a model's weights; see `Model.load_weights`.

    Args:
      model: the model.
      filepath: the path given to `save_weights`, here or in Keras; for checkpoints also their folder; or the folder
        of a SavedModel of such a model.
      skip_mismatch: whether layers that do not fit are left out.
      by_name: whether layers are matched by name instead of order, in `.h5` files; of `.safetensors`, whether names that
        only the model or only the file has are passed over.

    Returns:
      For checkpoints a `CheckpointLoadStatus`, else None.

    Raises:
      ValueError: when weights do not fit.
      FileNotFoundError: when there is no such file.

    Example:
      >>> import meshflow as tf
      >>> import os, tempfile
      >>> make = lambda: tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])
      >>> saved, loaded = make(), make()
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     saved.save_weights(os.path.join(folder, "model.weights.h5"))
      ...     loaded.load_weights(os.path.join(folder, "model.weights.h5"))
      >>> bool(tf.reduce_all(saved.layers[0].kernel == loaded.layers[0].kernel))
      True
    """
    path = text(filepath)
    in_safetensors = path.endswith(safetensors.ENDINGS) and not is_checkpoint(path)
    if not (in_safetensors or _is_h5(path)) and (
        is_checkpoint(path) or gfile.isdir(path) or not gfile.exists(path)
    ):
        if by_name or skip_mismatch:
            raise NotImplementedError(
                "Weights may only be loaded with by_name or skip_mismatch from HDF5 files."
            )
        # A SavedModel holds a checkpoint.
        inside_folder = gfile.join(path, VARIABLES_DIRECTORY, VARIABLES_FILENAME)
        is_folder = gfile.isdir(path) and is_checkpoint(inside_folder)
        status = restore_objects(inside_folder if is_folder else path, model)
        if is_folder:
            status.expect_partial()
        # One that makes its layers later takes their values then.
        return status.assert_nontrivial_match() if model.built or model.layers else status
    alone = (".weights.h5", ".keras", *safetensors.ENDINGS)
    if skip_mismatch and not by_name and not path.endswith(alone):
        raise ValueError(
            "When calling model.load_weights, skip_mismatch can only be set to True when by_name is True."
        )
    if not model.built and not model._saved_weights:
        raise ValueError(
            f"Unable to load weights into model {model.name}, which has not created its variables yet. Call the model first, then load the weights."
        )
    if not gfile.exists(path):
        raise FileNotFoundError(f"No weights file at {path}.")
    if in_safetensors:
        safetensors.read_model(model, path, skip_mismatch, by_name)
        return None
    with local_copy(path) as here:
        if path.endswith(".keras"):
            with Archive(here, path) as archive, archive.weights() as file:
                return _read(model, file, by_name, skip_mismatch)
        with open_hdf5(here, path) as file:
            return _read(model, file, by_name, skip_mismatch)


def _read(model: Any, file: Any, by_name: bool, skip_mismatch: bool) -> None:
    group = file.get("model_weights", file)
    if keras3.is_layout(group):
        if by_name:
            raise ValueError("by_name needs a file in Keras 2's layout (.h5, not .weights.h5).")
        keras3.read_model(model, group, skip_mismatch)
    else:
        hdf5.read_model(model, group, by_name, skip_mismatch)
