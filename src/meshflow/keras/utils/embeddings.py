"""Embeddings of a new vocabulary from those of another one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshflow.core.values.tensor import TensorLike
from meshflow.environment.types import ArrayLike
from meshflow.files.gfile import GFile
from meshflow.keras import initializers


def warmstart_embedding_matrix(
    base_vocabulary: str | ArrayLike,
    new_vocabulary: str | ArrayLike,
    base_embeddings: str | ArrayLike,
    new_embeddings_initializer: str | Callable[..., TensorLike] = "uniform",
) -> np.ndarray:
    """Create embeddings for a new vocabulary; words of the base vocabulary keep theirs.

    Args:
      base_vocabulary: Words of the base embeddings: a list, an array, or a text file with a word
        per line.
      new_vocabulary: Words of the new embeddings, in the same formats.
      base_embeddings: Array of shape (words, size), or the path of a `.npy` file.
      new_embeddings_initializer: Initializer of the embeddings of other words.

    Returns:
      An array of shape (new words, size).

    Raises:
      ValueError: If the numbers of embeddings and words differ.

    Example:
      >>> tf.keras.utils.warmstart_embedding_matrix(["a", "b"], ["b", "c"], [[1.0], [2.0]], "zeros").tolist()
      [[2.0], [0.0]]
    """
    base_words, new_words = _read_vocabulary(base_vocabulary), _read_vocabulary(new_vocabulary)
    base = np.asarray(_load_embeddings(base_embeddings), np.float32)
    if base.ndim != 2 or len(base) != len(base_words):
        raise ValueError(
            f"base_embeddings must have a row for each of the {len(base_words)} words of base_vocabulary, got shape {base.shape}."
        )
    initializer = initializers.get(new_embeddings_initializer)
    embeddings = np.array(initializer((len(new_words), base.shape[1])))
    rows = {word: row for row, word in reversed(list(enumerate(base_words)))}
    for row, word in enumerate(new_words):
        if word in rows:
            embeddings[row] = base[rows[word]]
    return embeddings


def _read_vocabulary(vocabulary: str | ArrayLike) -> list[str]:
    if isinstance(vocabulary, str):
        with GFile(vocabulary, "r") as file:
            return [line.rstrip("\n") for line in file]
    return list(np.asarray(vocabulary).tolist())


def _load_embeddings(embeddings: str | ArrayLike) -> ArrayLike:
    return np.load(embeddings) if isinstance(embeddings, str) else embeddings
