"""Vocabularies of layers, which `.keras` files and SavedModels hold outside the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meshflow.checkpoint.object_graph import list_children
from meshflow.environment.limits import STRING_BYTES, spend_load_budget
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.saving.archives import Archive
from meshflow.keras.engine.saving.group_paths import KERAS_2_STYLE, KERAS_3_STYLE, iterate_objects
from meshflow.keras.engine.saving.hdf5 import read_dataset

if TYPE_CHECKING:
    from h5py import Group as HDF5Group


def read_vocabularies(model: Layer, archive: Archive, weights: HDF5Group) -> None:
    """Set the vocabularies of a model's layers from a `.keras` file.

    Args:
      model: The model.
      archive: The file. Layers with a vocabulary in the configuration have none here.
      weights: The archive's HDF5 file, which holds the weights of 'tf_idf'.
    """
    # The paths of the two versions differ only for lists that contain a layer more than once.
    for style in (KERAS_3_STYLE, KERAS_2_STYLE):
        for path, layer in iterate_objects(model, style):
            if not hasattr(layer, "set_vocabulary"):
                continue
            try:
                content = archive.read(f"assets/{path}/vocabulary.txt").getvalue().decode()
            except KeyError:
                continue
            spend_load_budget(STRING_BYTES * content.count("\n"), f"the vocabulary of {path}")
            tokens = content.split("\n")
            idf = weights.get(f"{path}/vars/idf_weights")
            # The stored weights may be longer than the vocabulary: they have the layer's maximum
            # size.
            layer.set_vocabulary(tokens, None if idf is None else read_dataset(idf)[: len(tokens)])


def restore_vocabularies(model: Layer, load_objects: Callable[[], Any]) -> None:
    """Restore missing vocabularies of a model's layers from the tables of a SavedModel.

    Args:
      model: The model.
      load_objects: Function that loads the saved objects. It is called only if a layer lacks a
        vocabulary.
    """
    lookups: list[Any] = [layer for layer in model.submodules if hasattr(layer, "restore_tokens")]
    if not all(layer.vocabulary_size() > layer._first_token_id for layer in lookups):
        _restore_tables(model, load_objects(), set())


def _restore_tables(item: Any, saved: Any, seen: set[int]) -> None:
    if id(item) in seen:
        return
    seen.add(id(item))
    table = _get_child(saved, "lookup_table")
    if table is not None and hasattr(item, "restore_tokens"):
        item.restore_tokens(table.content)
    for name, child in list_children(item).items():
        if isinstance(child, (Layer, Sequence, Mapping)) and _get_child(saved, name) is not None:
            _restore_tables(child, _get_child(saved, name), seen)


def _get_child(parent: Any, name: str) -> Any:
    if isinstance(parent, list):
        return parent[int(name)] if int(name) < len(parent) else None
    return (parent if isinstance(parent, dict) else parent.__dict__).get(name)
