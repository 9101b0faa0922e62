"""Vocabularies of layers, which Keras keeps beside the configuration: in `.keras` files and in SavedModels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.checkpoint.graph import children
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.saving.archives import Archive
from meshflow.keras.engine.saving.group_paths import KERAS_2, KERAS_3, owned

__all__ = ["read_vocabularies", "restore_vocabularies"]


def read_vocabularies(model: Any, archive: Archive, weights: Any) -> None:
    """Gives layers the vocabularies of a file.

    Args:
      model: the model.
      archive: the file; none of its vocabularies where the configuration has them.
      weights: its HDF5 file, which has the weights of 'tf_idf'.
    """
    # Where versions look for a layer differs only in lists that hold it more than once.
    for style in (KERAS_3, KERAS_2):
        for path, layer in owned(model, style):
            if not hasattr(layer, "set_vocabulary"):
                continue
            try:
                text = archive.read(f"assets/{path}/vocabulary.txt").getvalue().decode()
            except KeyError:
                continue
            tokens = text.split("\n")
            idf = weights.get(f"{path}/vars/idf_weights")
            # It is as long as the layer's vectors may become.
            layer.set_vocabulary(tokens, None if idf is None else np.asarray(idf)[: len(tokens)])


def restore_vocabularies(model: Any, saved: Callable[[], Any]) -> None:
    """Gives layers without a vocabulary the tables of a SavedModel.

    Args:
      model: the model.
      saved: gives the saved objects; called where a layer lacks a vocabulary.
    """
    lookups = [layer for layer in model.submodules if hasattr(layer, "restore_tokens")]
    if not all(layer.vocabulary_size() > layer._first for layer in lookups):
        _restore(model, saved(), set())


def _restore(item: Any, saved: Any, seen: set[int]) -> None:
    if id(item) in seen:
        return
    seen.add(id(item))
    table = _part(saved, "lookup_table")
    if table is not None and hasattr(item, "restore_tokens"):
        item.restore_tokens(table.content)
    for name, child in children(item).items():
        if isinstance(child, (Layer, Sequence, Mapping)) and _part(saved, name) is not None:
            _restore(child, _part(saved, name), seen)


def _part(saved: Any, name: str) -> Any:
    if isinstance(saved, list):
        return saved[int(name)] if int(name) < len(saved) else None
    return (saved if isinstance(saved, dict) else saved.__dict__).get(name)
