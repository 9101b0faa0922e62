"""`Model.save_weights` and `Model.load_weights`, which choose the layout of a file by its path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshflow.checkpoint.checkpoint import restore_objects, write_objects
from meshflow.checkpoint.formats import is_checkpoint
from meshflow.checkpoint.object_graph import is_sequential
from meshflow.core.runtime.annotations import CHECKPOINT, annotate_region
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.atomic_writes import replace_file
from meshflow.files.contained_files import check_regular
from meshflow.files.copies import local_copy
from meshflow.files.paths import to_path_string
from meshflow.keras.engine.saving import hdf5, keras3_weights, safetensors_weights
from meshflow.keras.engine.saving.archives import Archive, OverwriteError, load_h5py, open_hdf5
from meshflow.keras.error_context import prefix_errors
from meshflow.keras.literals import SaveFormat
from meshflow.saved_model import VARIABLES_DIRECTORY, VARIABLES_FILENAME

if TYPE_CHECKING:
    from h5py import Group as HDF5Group

    from meshflow.checkpoint.options import CheckpointOptions


def _is_hdf5_path(path: str, save_format: SaveFormat | None = None) -> bool:
    return save_format in ("h5", "keras", "hdf5") or path.endswith((".h5", ".keras", ".hdf5"))


_FORMATS = (None, "tf", "tensorflow", "h5", "hdf5", "keras")


@annotate_region(CHECKPOINT, "save_weights")
def save_weights(
    model: Any,
    filepath: StrPath,
    overwrite: bool = True,
    save_format: SaveFormat | None = None,
    options: CheckpointOptions | None = None,
) -> None:
    """Save a model's weights; see `Model.save_weights`.

    Args:
      model: The model.
      filepath: Path that ends in `.weights.h5` (Keras 3's layout), `.h5` or `.hdf5` (Keras 2's
        layout), `.safetensors`, or `.safetensors.index.json` (files of 5 GB and their index); or
        the prefix of a checkpoint in TensorFlow's format, which `tf.train.Checkpoint(model)` can
        read, too.
      overwrite: Whether to replace an existing file.
      save_format: 'h5' or 'tf'. Default: chosen by the path.
      options: Options for checkpoints.

    Raises:
      ValueError: if the model has no weights yet, or the format is unknown.
      FileExistsError: if the file exists and `overwrite` is False.

    Example:
      >>> import os, tempfile
      >>> model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     model.save_weights(os.path.join(folder, "model.weights.h5"))
      ...     os.listdir(folder)
      ['model.weights.h5']
    """
    path = to_path_string(filepath)
    if save_format not in _FORMATS:
        raise ValueError(
            f"Unknown format. Received: `save_format`={save_format}. Was expecting one of ['tf', 'h5']."
        )
    if save_format in ("tf", "tensorflow") and _is_hdf5_path(path):
        raise ValueError(
            f"save_weights got save_format={save_format!r}, but the filepath {path!r} has the ending of an HDF5 file. Omit "
            "the ending to save a checkpoint."
        )
    is_safetensors = path.endswith(safetensors_weights.ENDINGS) and save_format is None
    is_file = is_safetensors or _is_hdf5_path(path, save_format)
    # A checkpoint may hold a subclassed model that has no weights yet.
    if not model.built and not model._saved_weights and (is_file or is_sequential(model)):
        raise ValueError(
            f"Unable to save weights of model {model.name}: it has not created its weights yet. Build it or call it on data first."
        )
    exists = gfile.exists(path) if is_file else is_checkpoint(path)
    if exists and not overwrite:
        raise OverwriteError(f"{path} exists and overwrite is False.")
    if is_safetensors:
        safetensors_weights.write_model(model, path)
        return
    if not is_file:
        write_objects(path, model, options)
        return
    has_keras3_layout = path.endswith(".weights.h5") and keras3_weights.can_store_model(model)
    with replace_file(path) as part, load_h5py().File(part.name, "w") as file:
        (keras3_weights if has_keras3_layout else hdf5).write_model(model, file)


@annotate_region(CHECKPOINT, "load_weights")
def load_weights(
    model: Any, filepath: StrPath, skip_mismatch: bool = False, by_name: bool = False
) -> Any:
    """Load a model's weights; see `Model.load_weights`.

    Args:
      model: The model.
      filepath: Path that was passed to `save_weights`, here or in Keras; for checkpoints also their
        folder; or the folder of a SavedModel of such a model.
      skip_mismatch: Whether to skip layers that do not fit.
      by_name: For `.h5` files, whether to match layers by name instead of order. For `.safetensors`
        files, whether to ignore names that only the model or only the file has.

    Returns:
      A `CheckpointLoadStatus` for checkpoints, otherwise None.

    Raises:
      ValueError: if weights do not fit.
      FileNotFoundError: if there is no such file.

    Example:
      >>> import os, tempfile
      >>> make = lambda: tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])
      >>> saved, loaded = make(), make()
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     saved.save_weights(os.path.join(folder, "model.weights.h5"))
      ...     loaded.load_weights(os.path.join(folder, "model.weights.h5"))
      >>> bool(tf.reduce_all(saved.layers[0].kernel == loaded.layers[0].kernel))
      True
    """
    path = to_path_string(filepath)
    is_safetensors = path.endswith(safetensors_weights.ENDINGS) and not is_checkpoint(path)
    if not (is_safetensors or _is_hdf5_path(path)) and (
        is_checkpoint(path) or gfile.isdir(path) or not gfile.exists(path)
    ):
        if by_name or skip_mismatch:
            raise NotImplementedError(
                "Weights may only be loaded with by_name or skip_mismatch from HDF5 files."
            )
        # A SavedModel holds a checkpoint.
        checkpoint_prefix = gfile.join(path, VARIABLES_DIRECTORY, VARIABLES_FILENAME)
        is_folder = gfile.isdir(path) and is_checkpoint(checkpoint_prefix)
        status = restore_objects(checkpoint_prefix if is_folder else path, model)
        if is_folder:
            status.expect_partial()
        # A model that creates its layers later receives their values when it does.
        return status.assert_nontrivial_match() if model.built or model.layers else status
    matched_by_path = (".weights.h5", ".keras", *safetensors_weights.ENDINGS)
    if skip_mismatch and not by_name and not path.endswith(matched_by_path):
        raise ValueError(
            "When calling model.load_weights, skip_mismatch can only be set to True when by_name is True."
        )
    if not model.built and not model._saved_weights:
        raise ValueError(
            f"Unable to load weights into model {model.name}, which has not created its variables yet. Call the model first, then load the weights."
        )
    if not gfile.exists(path):
        raise FileNotFoundError(f"No weights file at {path}.")
    with prefix_errors(path):
        if is_safetensors:
            safetensors_weights.read_model(model, path, skip_mismatch, by_name)
            return None
        with local_copy(check_regular(path)) as local_path:
            if path.endswith(".keras"):
                with Archive(local_path, path) as archive, archive.open_weights() as file:
                    return _read_weights(model, file, by_name, skip_mismatch)
            with open_hdf5(local_path, path) as file:
                return _read_weights(model, file, by_name, skip_mismatch)


def _read_weights(model: Any, file: HDF5Group, by_name: bool, skip_mismatch: bool) -> None:
    group = file.get("model_weights", file)
    if keras3_weights.has_keras3_layout(group):
        if by_name:
            raise ValueError(
                "by_name=True needs a file in Keras 2's layout: a .h5 file, not a .weights.h5 file."
            )
        keras3_weights.read_model(model, group, skip_mismatch)
    else:
        hdf5.read_model(model, group, by_name, skip_mismatch)
