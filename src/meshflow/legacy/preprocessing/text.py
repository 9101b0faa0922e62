"""`tf.keras.preprocessing.text`: words of texts as numbers."""

from __future__ import annotations

import collections
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

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
    """The words of a text.

    Args:
      input_text: the text.
      filters: characters that separate words as `split` does.
      lower: whether words are made lower case.
      split: what separates words.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.preprocessing.text.text_to_word_sequence("One, two!")
      ['one', 'two']
    """
    text = input_text.lower() if lower else input_text
    separated = text.translate({ord(character): split for character in filters})
    return [word for word in separated.split(split) if word]


def hashing_trick(
    text: str,
    n: int,
    hash_function: Any = None,
    filters: str = _PUNCTUATION,
    lower: bool = True,
    split: str = " ",
    analyzer: Callable[[str], Sequence[str]] | None = None,
) -> list[int]:
    """A number in [1, n) for each word of a text, by a hash; different words may share one.

    Args:
      text: the text.
      n: how many numbers there are, with 0, which no word gets.
      hash_function: from a word to an integer; 'md5'; or None for Python's `hash`, which differs
        from process to process.
      filters: characters that separate words as `split` does.
      lower: whether words are made lower case.
      split: what separates words.
      analyzer: from the text to its words, instead of the last three.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.preprocessing.text.hashing_trick("one two one", 100, "md5")
      [39, 78, 39]
    """
    words = (
        text_to_word_sequence(text, filters, lower, split) if analyzer is None else analyzer(text)
    )
    if hash_function == "md5":
        hash_function = lambda word: int.from_bytes(hashlib.md5(word.encode()).digest(), "big")
    number = hash if hash_function is None else hash_function
    return [number(word) % (n - 1) + 1 for word in words]


def one_hot(
    input_text: str,
    n: int,
    filters: str = _PUNCTUATION,
    lower: bool = True,
    split: str = " ",
    analyzer: Callable[[str], Sequence[str]] | None = None,
) -> list[int]:
    """`hashing_trick` with Python's `hash`.

    Args:
      input_text: the text.
      n: how many numbers there are.
      filters: characters that separate words as `split` does.
      lower: whether words are made lower case.
      split: what separates words.
      analyzer: from the text to its words, instead of the last three.

    Example:
      >>> import meshflow as tf
      >>> numbers = tf.keras.preprocessing.text.one_hot("to be or not to be", n=50)
      >>> len(numbers), numbers[0] == numbers[4], all(0 < number < 50 for number in numbers)
      (6, True, True)
    """
    return hashing_trick(input_text, n, hash, filters, lower, split, analyzer)


class Tokenizer:
    """Numbers for the words of texts: 1 for the most frequent one, and so on; 0 stands for none.

    Args:
      num_words: only words with numbers below this are used; None for all.
      filters: characters that separate words as `split` does.
      lower: whether words are made lower case.
      split: what separates words.
      char_level: whether single characters are the words.
      oov_token: a word that stands for unknown ones, with number 1; without it they are left out.
      analyzer: from a text to its words, instead of `filters`, `lower` and `split`.
      **kwargs: `document_count`, the number of texts seen so far.

    Example:
      >>> import meshflow as tf
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

    def _words(self, text: Any) -> Sequence[str]:
        if isinstance(text, list):
            return [word.lower() for word in text] if self.lower else text
        if self.char_level:
            return text.lower() if self.lower else text
        if self.analyzer is not None:
            return self.analyzer(text)
        return text_to_word_sequence(text, self.filters, self.lower, self.split)

    def fit_on_texts(self, texts: Iterable[Any]) -> None:
        """Counts the words of texts and numbers them anew.

        Args:
          texts: texts, or lists of words.
        """
        for text in texts:
            words = self._words(text)
            self.document_count += 1
            for word in words:
                self.word_counts[word] = self.word_counts.get(word, 0) + 1
            for word in set(words):
                self.word_docs[word] += 1
        # Python's sort keeps the order of first appearance among equals.
        ordered = sorted(self.word_counts, key=lambda word: -self.word_counts[word])
        first = [] if self.oov_token is None else [self.oov_token]
        self.word_index = {word: i for i, word in enumerate([*first, *ordered], 1)}
        self.index_word = {i: word for word, i in self.word_index.items()}
        for word, count in self.word_docs.items():
            self.index_docs[self.word_index[word]] = count

    def fit_on_sequences(self, sequences: Sequence[Sequence[int]]) -> None:
        """Counts in how many sequences each number is, for mode 'tfidf'.

        Args:
          sequences: lists of numbers.
        """
        self.document_count += len(sequences)
        for sequence in sequences:
            for number in set(sequence):
                self.index_docs[number] += 1

    def _known(self, number: int | None) -> int | None:
        """A word's number, or what stands for it."""
        if number is None or (self.num_words and number >= self.num_words):
            return None if self.oov_token is None else self.word_index.get(self.oov_token)
        return number

    def texts_to_sequences_generator(self, texts: Iterable[Any]) -> Iterator[list[int]]:
        """The numbers of the words of each text, one text after another.

        Args:
          texts: texts, or lists of words.
        """
        for text in texts:
            numbers = (self._known(self.word_index.get(word)) for word in self._words(text))
            yield [n for n in numbers if n is not None]

    def texts_to_sequences(self, texts: Iterable[Any]) -> list[list[int]]:
        """The numbers of the words of each text.

        Args:
          texts: texts, or lists of words.
        """
        return list(self.texts_to_sequences_generator(texts))

    def sequences_to_texts_generator(self, sequences: Iterable[Iterable[int]]) -> Iterator[str]:
        """The words that numbers stand for, one text after another.

        Args:
          sequences: lists of numbers.
        """
        for sequence in sequences:
            numbers = (self._known(int(n) if n in self.index_word else None) for n in sequence)
            yield " ".join(self.index_word[n] for n in numbers if n is not None)

    def sequences_to_texts(self, sequences: Iterable[Iterable[int]]) -> list[str]:
        """The words that numbers stand for, as texts.

        Args:
          sequences: lists of numbers.
        """
        return list(self.sequences_to_texts_generator(sequences))

    def texts_to_matrix(self, texts: Iterable[Any], mode: str = "binary") -> np.ndarray:
        """`sequences_to_matrix` of texts.

        Args:
          texts: texts, or lists of words.
          mode: as there.
        """
        return self.sequences_to_matrix(self.texts_to_sequences(texts), mode)

    def sequences_to_matrix(
        self, sequences: Sequence[Sequence[int]], mode: str = "binary"
    ) -> np.ndarray:
        """A row for each sequence and a column for each number.

        Args:
          sequences: lists of numbers.
          mode: 'binary' (is it there), 'count' (how often), 'freq' (its share) or 'tfidf':
            (1 + log(count)) * log(1 + documents / (1 + documents with it)).

        Raises:
          ValueError: for another mode, or before words or documents were counted.
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
            for number in sequence:
                if number < width:
                    row[number] += 1
            if mode == "freq" and len(sequence):
                row /= len(sequence)
        if mode == "binary":
            return (matrix > 0).astype(matrix.dtype)
        if mode != "tfidf":
            return matrix
        with_it = np.array([self.index_docs.get(number, 0) for number in range(width)])
        rarity = np.log(1 + self.document_count / (1 + with_it))
        return np.where(matrix > 0, (1 + np.log(np.maximum(matrix, 1))) * rarity, 0)

    def get_config(self) -> dict[str, Any]:
        """The settings and the counted words, the latter as JSON."""
        counted = ("word_counts", "word_docs", "index_docs", "index_word", "word_index")
        plain = ("num_words", "filters", "lower", "split", "char_level", "oov_token")
        config = {name: getattr(self, name) for name in (*plain, "document_count")}
        return config | {name: json.dumps(getattr(self, name)) for name in counted}

    def to_json(self, **kwargs: Any) -> str:
        """This tokenizer as JSON, which `tokenizer_from_json` reads, Keras' as well.

        Args:
          **kwargs: arguments of `json.dumps`.
        """
        return json.dumps({"class_name": "Tokenizer", "config": self.get_config()}, **kwargs)


def tokenizer_from_json(json_string: str) -> Tokenizer:
    """A tokenizer from what `Tokenizer.to_json` gave.

    Args:
      json_string: the JSON.

    Example:
      >>> import meshflow as tf
      >>> tokenizer = tf.keras.preprocessing.text.Tokenizer()
      >>> tokenizer.fit_on_texts(["to be or not to be"])
      >>> again = tf.keras.preprocessing.text.tokenizer_from_json(tokenizer.to_json())
      >>> again.texts_to_sequences(["not to be"])
      [[4, 1, 2]]
    """
    config = dict(json.loads(json_string)["config"])
    by_word = {
        name: json.loads(config.pop(name)) for name in ("word_counts", "word_docs", "word_index")
    }
    by_number = {name: json.loads(config.pop(name)) for name in ("index_docs", "index_word")}
    tokenizer = Tokenizer(**config)
    for name, found in by_word.items():
        setattr(tokenizer, name, found)
    for name, found in by_number.items():
        # JSON has strings as keys.
        setattr(tokenizer, name, {int(k): v for k, v in found.items()})
    return tokenizer
