"""Reuters: 11,228 newswires in 46 topics, as word indices."""

from __future__ import annotations

import numpy as np

from meshflow.files.safe_pickles import read_arrays
from meshflow.keras.datasets import texts
from meshflow.keras.utils.files import get_file

__all__ = [
    "get_label_names",
    "get_word_index",
    "load_data",
]

SHA256 = "d6586e694ee56d7a4e65172e12b3e987c03096cb01eab99753921ef915959916"
WORD_INDEX_MD5 = "4d44cc38712099c9e383dc6e5f11a921"


def load_data(
    path: str = "reuters.npz",
    num_words: int | None = None,
    skip_top: int = 0,
    maxlen: int | None = None,
    test_split: float = 0.2,
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
      test_split: Fraction of the texts for testing.
      seed: Seed of the order of the texts.
      start_char: Index at the start of each text.
      oov_char: Index that replaces words that are left out; None to remove them.
      index_from: Offset of the word indices.

    Returns:
      `(x_train, y_train), (x_test, y_test)`; arrays of lists of word indices, and of labels 0 to
      45.

    Raises:
      ValueError: If no text is short enough.
    """
    file = get_file(path, origin=texts.URL + "reuters.npz", file_hash=SHA256)
    arrays = read_arrays(file)
    x, y = arrays["x"], arrays["y"]
    order = np.arange(len(x))
    np.random.RandomState(seed).shuffle(order)
    filtered, y = texts.filter_texts(
        texts.add_start(x[order], start_char, index_from),
        y[order],
        maxlen,
        num_words,
        skip_top,
        oov_char,
    )
    array = texts.to_object_array(filtered)
    num_train = int(len(array) * (1 - test_split))
    return (array[:num_train], y[:num_train]), (array[num_train:], y[num_train:])


def get_word_index(path: str = "reuters_word_index.json") -> dict[str, int]:
    """Return the index of each word without the offset `index_from`; 1 is the most frequent word.

    Args:
      path: Name of the file in the cache.
    """
    return texts.load_word_index(path, WORD_INDEX_MD5)


# Names of the topics, by label.
_LABELS = (
    "cocoa grain veg-oil earn acq wheat copper housing money-supply coffee sugar trade reserves ship "
    "cotton carcass crude nat-gas cpi money-fx interest gnp meal-feed alum oilseed gold tin strategic-metal "
    "livestock retail ipi iron-steel rubber heat jobs lei bop zinc orange pet-chem dlr gas silver wpi hog lead"
)


def get_label_names() -> tuple[str, ...]:
    """Return the names of the topics, by label.

    Example:
      >>> tf.keras.datasets.reuters.get_label_names()[:3]
      ('cocoa', 'grain', 'veg-oil')
    """
    return tuple(_LABELS.split())
