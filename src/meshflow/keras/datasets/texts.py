"""What the data sets of texts share: numbers of words, rare ones left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.keras.utils.files import get_file

__all__ = ["framed", "limited", "word_index"]

URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"


def framed(texts: Sequence[Any], start_char: int | None, index_from: int | None) -> list[list[int]]:
    """Texts with a number at their start, and their words' numbers shifted."""
    shift = index_from or 0
    start = [] if start_char is None else [start_char]
    # Without a start, and without a shift, the words stay as they are.
    return [start + [int(w) + shift for w in text] for text in texts]


def limited(
    texts: list[list[int]],
    labels: Any,
    maxlen: int | None,
    num_words: int | None,
    skip_top: int,
    oov_char: int | None,
) -> tuple[list[list[int]], Any]:
    """Texts shorter than `maxlen`, and only words of middling frequency.

    Args:
      texts: numbers of words; frequent words have small ones.
      labels: one for each text.
      maxlen: texts of this length or longer are left out.
      num_words: words with this number or a larger one are left out.
      skip_top: words with a smaller number are left out.
      oov_char: the number in their place; None to leave no trace.

    Raises:
      ValueError: when no text is left.
    """
    if maxlen:
        kept = [i for i, text in enumerate(texts) if len(text) < maxlen]
        texts, labels = [texts[i] for i in kept], np.asarray(labels)[kept]
        if not texts:
            raise ValueError(
                f"After filtering for sequences shorter than maxlen={maxlen}, no sequence was kept. Increase maxlen."
            )
    most = num_words or max(max(text, default=0) for text in texts) + 1
    if oov_char is not None:
        texts = [[w if skip_top <= w < most else oov_char for w in text] for text in texts]
    else:
        texts = [[w for w in text if skip_top <= w < most] for text in texts]
    return texts, labels


def as_objects(texts: Sequence[list[int]]) -> np.ndarray:
    """An array of lists."""
    found = np.empty(len(texts), object)
    found[:] = texts
    return found


def word_index(path: str, md5: str) -> dict[str, int]:
    """The number of each word, downloaded once."""
    with open(get_file(path, origin=URL + path.rsplit("/", 1)[-1], file_hash=md5)) as file:
        return json.load(file)
