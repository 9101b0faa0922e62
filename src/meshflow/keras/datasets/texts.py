"""Helpers of the text data sets: offsets of word indices, and removal of rare words."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from meshflow.keras.utils.files import get_file

URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"


def add_start(
    texts: Sequence[Sequence[int]], start_char: int | None, index_from: int | None
) -> list[list[int]]:
    """Prepend a start index to texts and add an offset to their word indices."""
    shift = index_from or 0
    start = [] if start_char is None else [start_char]
    return [start + [int(w) + shift for w in text] for text in texts]


def filter_texts(
    texts: list[list[int]],
    labels: np.ndarray,
    maxlen: int | None,
    num_words: int | None,
    skip_top: int,
    oov_char: int | None,
) -> tuple[list[list[int]], np.ndarray]:
    """Remove long texts, and words that are too frequent or too rare.

    Args:
      texts: Word indices; frequent words have small ones.
      labels: A label for each text.
      maxlen: Texts of this length or longer are removed.
      num_words: Words with this index or a larger one are removed.
      skip_top: Words with a smaller index are removed.
      oov_char: Index that replaces removed words; None to leave no trace.

    Raises:
      ValueError: If no text is left.
    """
    if maxlen:
        indices = [i for i, text in enumerate(texts) if len(text) < maxlen]
        texts, labels = [texts[i] for i in indices], np.asarray(labels)[indices]
        if not texts:
            raise ValueError(
                f"After filtering for sequences shorter than maxlen={maxlen}, no sequence was kept. Increase maxlen."
            )
    end = num_words or max(max(text, default=0) for text in texts) + 1
    if oov_char is not None:
        texts = [[w if skip_top <= w < end else oov_char for w in text] for text in texts]
    else:
        texts = [[w for w in text if skip_top <= w < end] for text in texts]
    return texts, labels


def to_object_array(texts: Sequence[list[int]]) -> np.ndarray:
    """Return an object array of lists."""
    array = np.empty(len(texts), object)
    array[:] = texts
    return array


def load_word_index(path: str, md5: str) -> dict[str, int]:
    """Download the word indices once and return them."""
    with open(get_file(path, origin=URL + path.rsplit("/", 1)[-1], file_hash=md5)) as file:
        return json.load(file)
