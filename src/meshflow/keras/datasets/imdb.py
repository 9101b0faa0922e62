"""IMDB: 50,000 positive and negative film reviews (Maas et al. 2011), as word indices."""

from __future__ import annotations

import numpy as np

from meshflow.files.old_pickles import read_arrays
from meshflow.keras.datasets import texts
from meshflow.keras.utils.files import get_file

__all__ = ["get_word_index", "load_data"]

SHA256 = "69664113be75683a8fe16e3ed0ab59fda8886cb3cd7ada244f7d9544e4676b9f"
WORDS_MD5 = "bfafd718b763782e994055a2d397834f"


def load_data(
    path: str = "imdb.npz",
    num_words: int | None = None,
    skip_top: int = 0,
    maxlen: int | None = None,
    seed: int = 113,
    start_char: int | None = 1,
    oov_char: int | None = 2,
    index_from: int | None = 3,
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Download the data set once and return it.

    Args:
      path: Name of the file in the cache.
      num_words: Number of the most frequent words to keep; None for all.
      skip_top: Number of the most frequent words to leave out.
      maxlen: Texts of this length or longer are left out.
      seed: Seed of the order of the texts.
      start_char: Index at the start of each text.
      oov_char: Index that replaces words that are left out; None to remove them.
      index_from: Offset of the word indices.

    Returns:
      `(x_train, y_train), (x_test, y_test)`; arrays of lists of word indices, and of labels 0 and
      1.

    Raises:
      ValueError: If no text is short enough.
    """
    file = get_file(path, origin=texts.URL + "imdb.npz", file_hash=SHA256)
    arrays = read_arrays(file)
    parts = [(arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")]
    rng = np.random.RandomState(seed)
    shuffled = []
    for x, y in parts:
        order = np.arange(len(x))
        rng.shuffle(order)
        shuffled.append((x[order], y[order]))
    num_train = len(shuffled[0][0])
    x = texts.framed([text for part, _ in shuffled for text in part], start_char, index_from)
    y = np.concatenate([part for _, part in shuffled])
    if maxlen:
        num_train = sum(len(text) < maxlen for text in x[:num_train])
    x, y = texts.limited(x, y, maxlen, num_words, skip_top, oov_char)
    array = texts.as_objects(x)
    return (array[:num_train], y[:num_train]), (array[num_train:], y[num_train:])


def get_word_index(path: str = "imdb_word_index.json") -> dict[str, int]:
    """Return the index of each word without the offset `index_from`; 1 is the most frequent word.

    Args:
      path: Name of the file in the cache.
    """
    return texts.word_index(path, WORDS_MD5)
