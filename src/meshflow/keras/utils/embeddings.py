"""Embeddings of a vocabulary made of those of another one."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.files.gfile import GFile
from meshflow.keras import initializers

__all__ = ["warmstart_embedding_matrix"]


def warmstart_embedding_matrix(
    base_vocabulary: Any,
    new_vocabulary: Any,
    base_embeddings: Any,
    new_embeddings_initializer: Any = "uniform",
) -> np.ndarray:
    """Embeddings for a new vocabulary: words that were known before keep theirs.

    Args:
      base_vocabulary: the words that there were: a list, an array, or a text file with one on each line.
      new_vocabulary: the words that there are now, likewise.
      base_embeddings: the embeddings of `base_vocabulary`, shape (words, size), an array or a path of a `.npy` file.
      new_embeddings_initializer: of the embeddings of the other words.

    Returns:
      An array of shape (new words, size).

    Raises:
      ValueError: when there are not as many embeddings as words.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.utils.warmstart_embedding_matrix(["a", "b"], ["b", "c"], [[1.0], [2.0]], "zeros").tolist()
      [[2.0], [0.0]]
    """
    base, new = _words(base_vocabulary), _words(new_vocabulary)
    known = np.asarray(_array(base_embeddings), np.float32)
    if known.ndim != 2 or len(known) != len(base):
        raise ValueError(
            f"base_embeddings must have a row for each of the {len(base)} words of base_vocabulary, got shape {known.shape}."
        )
    start = initializers.get(new_embeddings_initializer)
    made = np.array(start((len(new), known.shape[1])))
    places = {word: place for place, word in reversed(list(enumerate(base)))}
    for place, word in enumerate(new):
        if word in places:
            made[place] = known[places[word]]
    return made


def _words(vocabulary: Any) -> list[Any]:
    if isinstance(vocabulary, str):
        with GFile(vocabulary, "r") as file:
            return [line.rstrip("\n") for line in file]
    return list(np.asarray(vocabulary).tolist())


def _array(embeddings: Any) -> Any:
    return np.load(embeddings) if isinstance(embeddings, str) else embeddings
