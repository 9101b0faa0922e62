"""IMDB: 50,000 film reviews, good or bad (Maas et al. 2011), as numbers of words."""

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
    """Downloads the data set, once.

    Args:
      path: name of the file in the cache.
      num_words: how many of the most frequent words are kept; default all.
      skip_top: how many of the most frequent words are left out.
      maxlen: texts of this length or longer are left out.
      seed: of the order of the texts.
      start_char: the number at the start of each text.
      oov_char: the number in place of words that are left out; None leaves no trace.
      index_from: what is added to the words' numbers.

    Returns:
      `(x_train, y_train), (x_test, y_test)`; arrays of lists of numbers, and of labels 0 and 1.

    Raises:
      ValueError: when no text is short enough.
    """
    file = get_file(path, origin=texts.URL + "imdb.npz", file_hash=SHA256)
    arrays = read_arrays(file)
    parts = [(arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")]
    rng = np.random.RandomState(seed)
    ordered = []
    for x, y in parts:
        order = np.arange(len(x))
        rng.shuffle(order)
        ordered.append((x[order], y[order]))
    first = len(ordered[0][0])
    x = texts.framed([text for part, _ in ordered for text in part], start_char, index_from)
    y = np.concatenate([part for _, part in ordered])
    if maxlen:
        first = sum(len(text) < maxlen for text in x[:first])
    x, y = texts.limited(x, y, maxlen, num_words, skip_top, oov_char)
    array = texts.as_objects(x)
    return (array[:first], y[:first]), (array[first:], y[first:])


def get_word_index(path: str = "imdb_word_index.json") -> dict[str, int]:
    """The number of each word, before `index_from` is added; 1 is the most frequent.

    Args:
      path: name of the file in the cache.
    """
    return texts.word_index(path, WORDS_MD5)
