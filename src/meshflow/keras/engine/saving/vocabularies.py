"""Vocabularies that layers learnt, which Keras keeps in `.keras` files beside the configuration."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.keras.engine.saving.archives import Archive
from meshflow.keras.engine.saving.group_paths import KERAS_2, KERAS_3, owned

__all__ = ["read_vocabularies"]


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
