"""`tf.keras.preprocessing.text`: conversion of words to integers."""

from __future__ import annotations

import collections
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from meshflow.environment.json_documents import parse_json

__all__ = [
    "Tokenizer",
    "hashing_trick",
    "one_hot",
    "text_to_word_sequence",
    "tokenizer_from_json",
]

_PUNCTUATION = '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n'


def text_to_word_sequence(
    input_text: str, filters: str = _PUNCTUATION, lower: bool = True, split: str = " "
) -> list[str]:
    """Split a text into words.

    Args:
      input_text: The text.
      filters: Characters that separate words, as `split` does.
      lower: Whether to convert words to lowercase.
      split: Separator of words.

    Example:
      >>> tf.keras.preprocessing.text.text_to_word_sequence("One, two!")
      ['one', 'two']
    """
    text = input_text.lower() if lower else input_text
    separated = text.translate({ord(character): split for character in filters})
    return [word for word in separated.split(split) if word]


def hashing_trick(
    text: str,
    n: int,
    hash_function: Callable[[str], int] | str | None = None,
    filters: str = _PUNCTUATION,
    lower: bool = True,
    split: str = " ",
    analyzer: Callable[[str], Sequence[str]] | None = None,
) -> list[int]:
    """Hash each word of a text to an integer in [1, n); different words may collide.

    Args:
      text: The text.
      n: Number of integers, including 0, which no word gets.
      hash_function: Function from a word to an integer; 'md5'; or None for Python's `hash`, which
        differs between processes.
      filters: Characters that separate words, as `split` does.
      lower: Whether to convert words to lowercase.
      split: Separator of words.
      analyzer: Function from the text to its words, instead of `filters`, `lower` and `split`.

    Example:
      >>> tf.keras.preprocessing.text.hashing_trick("one two one", 100, "md5")
      [39, 78, 39]
    """
    words = (
        text_to_word_sequence(text, filters, lower, split) if analyzer is None else analyzer(text)
    )
    if hash_function == "md5":
        hash_function = lambda word: int.from_bytes(hashlib.md5(word.encode()).digest(), "big")
    hash_word: Any = hash if hash_function is None else hash_function
    return [hash_word(word) % (n - 1) + 1 for word in words]


def one_hot(
    input_text: str,
    n: int,
    filters: str = _PUNCTUATION,
    lower: bool = True,
    split: str = " ",
    analyzer: Callable[[str], Sequence[str]] | None = None,
) -> list[int]:
    """Hash each word of a text with Python's `hash`; see `hashing_trick`.

    Args:
      input_text: The text.
      n: Number of integers, including 0, which no word gets.
      filters: Characters that separate words, as `split` does.
      lower: Whether to convert words to lowercase.
      split: Separator of words.
      analyzer: Function from the text to its words, instead of `filters`, `lower` and `split`.

    Example:
      >>> numbers = tf.keras.preprocessing.text.one_hot("to be or not to be", n=50)
      >>> len(numbers), numbers[0] == numbers[4], all(0 < number < 50 for number in numbers)
      (6, True, True)
    """
    return hashing_trick(input_text, n, hash, filters, lower, split, analyzer)


class Tokenizer:
    """Mapping of words to ids: 1 for the most frequent word, and so on; 0 is padding.

    Args:
      num_words: Upper bound of the ids: only words with smaller ids are used; None for all words.
      filters: Characters that separate words, as `split` does.
      lower: Whether to convert words to lowercase.
      split: Separator of words.
      char_level: Whether characters are used as words.
      oov_token: Word with id 1 that replaces unknown words; without it, they are skipped.
      analyzer: Function from a text to its words, instead of `filters`, `lower` and `split`.
      **kwargs: `document_count`, the number of texts that were already counted.

    Example:
      >>> tokenizer = tf.keras.preprocessing.text.Tokenizer(oov_token="?")
      >>> tokenizer.fit_on_texts(["the cat", "the dog"])
      >>> tokenizer.texts_to_sequences(["the bird", "dog"])
      [[2, 1], [4]]
    """

    def __init__(
        self,
        num_words: int | None = None,
        filters: str = _PUNCTUATION,
        lower: bool = True,
        split: str = " ",
        char_level: bool = False,
        oov_token: str | None = None,
        analyzer: Callable[[str], Sequence[str]] | None = None,
        **kwargs: Any,
    ) -> None:
        num_words = kwargs.pop("nb_words", num_words)
        self.document_count = kwargs.pop("document_count", 0)
        if kwargs:
            raise TypeError(f"Unrecognized keyword arguments: {kwargs}")
        self.num_words, self.filters, self.lower, self.split = num_words, filters, lower, split
        self.char_level, self.oov_token, self.analyzer = char_level, oov_token, analyzer
        self.word_counts: dict[str, int] = collections.OrderedDict()
        self.word_docs: dict[str, int] = collections.defaultdict(int)
        self.index_docs: dict[int, int] = collections.defaultdict(int)
        self.word_index: dict[str, int] = {}
        self.index_word: dict[int, str] = {}

    def _split_words(self, text: str | list[str]) -> Sequence[str]:
        if isinstance(text, list):
            return [word.lower() for word in text] if self.lower else text
        if self.char_level:
            return text.lower() if self.lower else text
        if self.analyzer is not None:
            return self.analyzer(text)
        return text_to_word_sequence(text, self.filters, self.lower, self.split)

    def fit_on_texts(self, texts: Iterable[str | list[str]]) -> None:
        """Count the words of texts, and assign ids to all words counted so far.

        Args:
          texts: Texts, or lists of words.
        """
        for text in texts:
            words = self._split_words(text)
            self.document_count += 1
            for word in words:
                self.word_counts[word] = self.word_counts.get(word, 0) + 1
            for word in set(words):
                self.word_docs[word] += 1
        # The sort is stable, so that equally frequent words remain in the order of their first
        # occurrence.
        ordered = sorted(self.word_counts, key=lambda word: -self.word_counts[word])
        first = [] if self.oov_token is None else [self.oov_token]
        self.word_index = {word: i for i, word in enumerate([*first, *ordered], 1)}
        self.index_word = {i: word for word, i in self.word_index.items()}
        for word, count in self.word_docs.items():
            self.index_docs[self.word_index[word]] = count

    def fit_on_sequences(self, sequences: Sequence[Sequence[int]]) -> None:
        """Count the sequences that contain each id, for mode 'tfidf'.

        Args:
          sequences: Lists of word ids.
        """
        self.document_count += len(sequences)
        for sequence in sequences:
            for word_id in set(sequence):
                self.index_docs[word_id] += 1

    def _resolve_id(self, word_id: int | None) -> int | None:
        """Return the id of a known word, or that of the out-of-vocabulary token."""
        if word_id is None or (self.num_words and word_id >= self.num_words):
            return None if self.oov_token is None else self.word_index.get(self.oov_token)
        return word_id

    def texts_to_sequences_generator(self, texts: Iterable[str | list[str]]) -> Iterator[list[int]]:
        """Convert texts to word ids, one text at a time.

        Args:
          texts: Texts, or lists of words.
        """
        for text in texts:
            ids = (self._resolve_id(self.word_index.get(word)) for word in self._split_words(text))
            yield [n for n in ids if n is not None]

    def texts_to_sequences(self, texts: Iterable[str | list[str]]) -> list[list[int]]:
        """Convert texts to word ids.

        Args:
          texts: Texts, or lists of words.
        """
        return list(self.texts_to_sequences_generator(texts))

    def sequences_to_texts_generator(self, sequences: Iterable[Iterable[int]]) -> Iterator[str]:
        """Convert word ids to texts, one sequence at a time.

        Args:
          sequences: Lists of word ids.
        """
        for sequence in sequences:
            ids = (self._resolve_id(int(n) if n in self.index_word else None) for n in sequence)
            yield " ".join(self.index_word[n] for n in ids if n is not None)

    def sequences_to_texts(self, sequences: Iterable[Iterable[int]]) -> list[str]:
        """Convert word ids to texts.

        Args:
          sequences: Lists of word ids.
        """
        return list(self.sequences_to_texts_generator(sequences))

    def texts_to_matrix(self, texts: Iterable[str | list[str]], mode: str = "binary") -> np.ndarray:
        """Convert texts to a matrix; see `sequences_to_matrix`.

        Args:
          texts: Texts, or lists of words.
          mode: As in `sequences_to_matrix`.
        """
        return self.sequences_to_matrix(self.texts_to_sequences(texts), mode)

    def sequences_to_matrix(
        self, sequences: Sequence[Sequence[int]], mode: str = "binary"
    ) -> np.ndarray:
        """Convert sequences to a matrix of shape [sequences, word ids].

        Args:
          sequences: Lists of word ids.
          mode: 'binary' (presence), 'count', 'freq' (fraction of the sequence) or 'tfidf': (1 +
            log(count)) * log(1 + documents / (1 + documents with the word)).

        Raises:
          ValueError: If the mode is unknown, or no words or documents were counted.
        """
        if mode not in ("binary", "count", "freq", "tfidf"):
            raise ValueError(f"Unknown vectorization mode: {mode}")
        if not self.num_words and not self.word_index:
            raise ValueError(
                "Specify a dimension (`num_words` argument), or fit on some text data first."
            )
        if mode == "tfidf" and not self.document_count:
            raise ValueError("Fit the Tokenizer on some data before using tfidf mode.")
        width = self.num_words or len(self.word_index) + 1
        matrix = np.zeros((len(sequences), width))
        for row, sequence in zip(matrix, sequences, strict=True):
            for word_id in sequence:
                if word_id < width:
                    row[word_id] += 1
            if mode == "freq" and len(sequence):
                row /= len(sequence)
        if mode == "binary":
            return (matrix > 0).astype(matrix.dtype)
        if mode != "tfidf":
            return matrix
        document_counts = np.array([self.index_docs.get(word_id, 0) for word_id in range(width)])
        inverse_frequency = np.log(1 + self.document_count / (1 + document_counts))
        return np.where(matrix > 0, (1 + np.log(np.maximum(matrix, 1))) * inverse_frequency, 0)

    def get_config(self) -> dict[str, Any]:
        """Return the configuration and the counts, the latter as JSON."""
        counts = ("word_counts", "word_docs", "index_docs", "index_word", "word_index")
        names = (
            *("num_words", "filters", "lower", "split", "char_level", "oov_token"),
            "document_count",
        )
        config = {name: getattr(self, name) for name in names}
        return config | {name: json.dumps(getattr(self, name)) for name in counts}

    def to_json(self, **kwargs: Any) -> str:
        """Return the tokenizer as JSON, which both `tokenizer_from_json` and Keras can read.

        Args:
          **kwargs: Arguments of `json.dumps`.
        """
        return json.dumps({"class_name": "Tokenizer", "config": self.get_config()}, **kwargs)


def tokenizer_from_json(json_string: str) -> Tokenizer:
    """Create a tokenizer from the JSON that `Tokenizer.to_json` returned.

    Args:
      json_string: The JSON.

    Example:
      >>> tokenizer = tf.keras.preprocessing.text.Tokenizer()
      >>> tokenizer.fit_on_texts(["to be or not to be"])
      >>> restored = tf.keras.preprocessing.text.tokenizer_from_json(tokenizer.to_json())
      >>> restored.texts_to_sequences(["not to be"])
      [[4, 1, 2]]
    """
    config = dict(parse_json(json_string)["config"])
    tokenizer_state = {
        name: parse_json(config.pop(name)) for name in ("word_counts", "word_docs", "word_index")
    }
    for name in ("index_docs", "index_word"):
        # JSON converts keys to strings.
        tokenizer_state[name] = {int(k): v for k, v in parse_json(config.pop(name)).items()}
    tokenizer = Tokenizer(**config)
    for name, value in tokenizer_state.items():
        setattr(tokenizer, name, value)
    return tokenizer
