"""`TextVectorization`: ids of the words of texts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack, cast

import numpy as np

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Config
from meshflow.keras import registry, settings
from meshflow.keras.layers.keyword_arguments import LookupArguments
from meshflow.keras.layers.preprocessing.encoding import parse_output_mode
from meshflow.keras.layers.preprocessing.lookups import StringLookup
from meshflow.keras.layers.preprocessing.preprocessing_layer import EncodingLayer, read_host_values
from meshflow.keras.literals import OutputMode
from meshflow.keras.safe_mode import BoundName
from meshflow.ops import array, strings
from meshflow.ops.deferred_host_values import UnrecordableError, find_recording
from meshflow.ops.ragged import RaggedTensor
from meshflow.ops.ragged.padding import pad_values
from meshflow.saved_model.host_steps.host_calls import run_text_steps

__all__ = ["TextVectorization"]

_PUNCTUATION = b"!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~'"

_STANDARDIZERS: dict[str, Callable[[bytes], bytes]] = {
    "lower_and_strip_punctuation": lambda text: text.lower().translate(None, _PUNCTUATION),
    "lower": bytes.lower,
    "strip_punctuation": lambda text: text.translate(None, _PUNCTUATION),
}


def _split_characters(text: bytes) -> list[bytes]:
    return [c.encode() for c in text.decode("utf-8", "replace")]


_SPLITTERS: dict[str, Callable[[bytes], list[bytes]]] = {
    "whitespace": bytes.split,
    "character": _split_characters,
}


class TextVectorization(EncodingLayer):
    """Mapping of texts to sequences of word ids, or to vectors over the vocabulary.

    Args:
      max_tokens: Maximum number of ids; default no limit.
      standardize: Preparation of texts: 'lower_and_strip_punctuation', 'lower',
        'strip_punctuation', None, or a function of a string tensor.
      split: Separation into words: 'whitespace', 'character', None, or a function from one text (a
        scalar) to a vector of words.
      ngrams: Lengths of the sequences of adjacent words that are also words: n for all lengths up
        to n, or a tuple of lengths.
      output_mode: 'int' (ids in the order of the words, padded with 0), 'multi_hot', 'count' or
        'tf_idf'.
      output_sequence_length: Number of ids per text for 'int'; default the number of words of the
        longest text in a batch.
      pad_to_max_tokens: Whether vectors have `max_tokens` elements even if there are fewer words.
      vocabulary: Words, or path of a text file with one word per line; by default `adapt` learns
        them.
      idf_weights: Weight of each word, for 'tf_idf'.
      sparse: Whether vectors are returned as a `tf.SparseTensor`.
      ragged: Whether ids are the rows of a `tf.RaggedTensor`; by default they are padded with 0.
      encoding: Encoding of the texts.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch,) or (batch, 1), strings.

    Output shape:
      (batch, tokens), with `output_sequence_length` (batch, output_sequence_length); in other
      output modes (batch, vocabulary).

    Raises:
      ValueError: If options are unknown or contradict each other, or if the texts to split have
        more than one column.

    Example:
      >>> layer = tf.keras.layers.TextVectorization(output_sequence_length=4)
      >>> layer.adapt(["a cat, a dog"])
      >>> layer(["The dog!", "a cat"]).numpy()
      array([[1, 3, 0, 0],
             [2, 4, 0, 0]])
    """

    runs_on_host = True

    def __init__(
        self,
        max_tokens: int | None = None,
        standardize: str | Callable[[Tensor], Tensor] | None = "lower_and_strip_punctuation",
        split: str | Callable[[Tensor], Tensor] | None = "whitespace",
        ngrams: int | Sequence[int] | None = None,
        output_mode: OutputMode = "int",
        output_sequence_length: int | None = None,
        pad_to_max_tokens: bool = False,
        vocabulary: TensorLike = None,
        idf_weights: TensorLike = None,
        sparse: bool = False,
        ragged: bool = False,
        encoding: str = "utf-8",
        **kwargs: Unpack[LookupArguments],
    ) -> None:
        options = cast(Config, kwargs)
        dtype = options.pop("dtype", None)
        if dtype is not None and getattr(dtype, "name", dtype) != "string":
            raise ValueError(
                f"`TextVectorization` may only have a dtype of string. Received dtype: {dtype}."
            )
        vocabulary_options = {
            k: options.pop(k) for k in ("vocabulary_size", "has_input_vocabulary") if k in options
        }
        super().__init__(dtype="string", **options)
        mode = parse_output_mode(
            output_mode, ("int", "multi_hot", "count", "tf_idf"), "TextVectorization"
        )
        self.standardize = _resolve_option(standardize, _STANDARDIZERS, "standardize")
        self.split = _resolve_option(split, _SPLITTERS, "split")
        if ragged and mode != "int":
            raise ValueError(
                f"`ragged` must not be true if `output_mode` is not 'int'. Received output_mode={output_mode}."
            )
        if ragged and output_sequence_length is not None:
            raise ValueError(
                "`output_sequence_length` must not be set if `ragged` is true, because rows keep their lengths. Received "
                f"output_sequence_length={output_sequence_length}."
            )
        if output_sequence_length is not None and mode != "int":
            raise ValueError(
                "`output_sequence_length` must not be set if `output_mode` is not 'int'. Received "
                f"output_sequence_length={output_sequence_length}."
            )
        if output_sequence_length is not None and not isinstance(output_sequence_length, int):
            raise ValueError(
                "`output_sequence_length` must be either None or an integer when `output_mode` is 'int'. Received: "
                f"output_sequence_length={output_sequence_length}"
            )
        self.ngrams, self._ngram_widths = ngrams, _parse_ngrams(ngrams)
        self._ngram_ids: tuple[Mapping[bytes, int], Mapping[Any, int]] | None = None
        self.max_tokens, self.output_mode = max_tokens, mode
        self.output_sequence_length = output_sequence_length
        self.pad_to_max_tokens, self.sparse, self.ragged = pad_to_max_tokens, sparse, ragged
        self.encoding = encoding
        self._lookup_layer = StringLookup(
            max_tokens=max_tokens,
            vocabulary=vocabulary,
            idf_weights=idf_weights,
            pad_to_max_tokens=pad_to_max_tokens,
            mask_token="",
            output_mode=cast(OutputMode, mode),
            sparse=sparse,
            encoding=encoding,
            **vocabulary_options,
        )

    # ---- the vocabulary --------------------------------------------------------------------

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[str]:
        """Return the words in the order of their ids.

        Args:
          include_special_tokens: Whether to include '' and '[UNK]'.
        """
        return self._lookup_layer.get_vocabulary(include_special_tokens)

    def set_vocabulary(self, vocabulary: TensorLike, idf_weights: TensorLike = None) -> None:
        """Set the vocabulary; arguments and errors as in `StringLookup`."""
        self._lookup_layer.set_vocabulary(vocabulary, idf_weights)

    def vocabulary_size(self) -> int:
        """Return the number of ids, including those of padding and unknown words."""
        return self._lookup_layer.vocabulary_size()

    def update_state(self, data: TensorLike) -> None:
        """Count the words of a batch of texts."""
        rows, _ = self._split_texts(data)
        if self._lookup_layer.is_static:
            self._lookup_layer.update_state(data)
        self._lookup_layer.count_rows(rows)

    def finalize_state(self) -> None:
        """Create the vocabulary from the counts."""
        self._lookup_layer.finalize_state()

    def reset_state(self) -> None:
        """Reset the learned state."""
        self._lookup_layer.reset_state()

    def _weights_in_files(self) -> dict[str, Variable]:
        return self._lookup_layer._weights_in_files()

    def get_weights(self) -> list[np.ndarray]:
        """Return the learned vocabulary and weights, as in `StringLookup`."""
        return self._lookup_layer.get_weights()

    def set_weights(self, weights: Sequence[TensorLike]) -> None:
        """Set the result of `get_weights`."""
        self._lookup_layer.set_weights(weights)

    def exported_steps(self, rank: int) -> list[list[Any]]:
        """Describe the layer as steps that files can hold (`saved_model/host_steps/text_steps.py`).

        Args:
          rank: Number of axes of the texts.

        Raises:
          NotImplementedError: If files cannot hold the layer with its options.
        """
        standard = self.standardize or ""
        if not isinstance(standard, str) or self.output_mode != "int" or self.ragged:
            raise NotImplementedError(
                f"layer {self.name} (TextVectorization) with standards of its own, or with vectors or ragged rows as "
                "output"
            )
        return self._make_steps(standard, rank)

    def _make_steps(self, standard: str, rank: int) -> list[list[Any]]:
        if self.split != "whitespace" or self._ngram_widths is not None:
            raise NotImplementedError(
                f"layer {self.name} (TextVectorization) with ngrams, or another split than at whitespace"
            )
        steps: list[list[Any]] = [["flat"]] if rank > 1 else []
        if standard.startswith("lower"):
            steps.append(["lower"])
        if standard.endswith("strip_punctuation"):
            steps.append(["remove", _PUNCTUATION.decode()])
        pad = ["pad", self.output_sequence_length, self._padding_id]
        return [*steps, ["split"], self._lookup_layer.make_lookup_step(), pad]

    # ---- calls ---------------------------------------------------------------------------------

    def _split_texts(
        self, inputs: TensorLike, join: Callable[[Iterable[bytes]], Any] = b" ".join
    ) -> tuple[list[list[Any]], tuple[int, ...]]:
        """Return the words of each text with the n-grams, which `join` makes of words, and the shape of the texts."""
        if isinstance(inputs, RaggedTensor):
            if self.split is not None:
                raise ValueError(
                    f"TextVectorization with split={self.split!r} takes strings of shape [batch] or "
                    "[batch, 1], got a ragged tensor. Use split=None for rows of words."
                )
            words, _ = self._split_texts(array.reshape(inputs.flat_values, [-1, 1]), join)
            ends = inputs.row_splits.numpy().tolist()
            joined = [
                [word for row in words[start:end] for word in row]
                for start, end in itertools.pairwise(ends)
            ]
            return joined, (len(joined),)
        tensor = convert_to_tensor(inputs)
        if callable(self.standardize):
            tensor = self.standardize(tensor)
        texts = read_host_values(tensor, "texts (XLA has no strings)")
        if texts.dtype != object:
            raise TypeError(f"TextVectorization takes strings, got {texts.dtype}.")
        flat: list[bytes] = texts.reshape(-1).tolist()
        if isinstance(self.standardize, str):
            flat = [_STANDARDIZERS[self.standardize](text) for text in flat]
        shape = texts.shape
        if self.split is None:
            rows = np.array(flat, object).reshape(-1, shape[-1] if shape else 1).tolist()
            shape = shape[:-1] if len(shape) > 1 else shape
        else:
            if len(shape) > 1 and shape[-1] != 1:
                raise ValueError(
                    "When using `TextVectorization` to tokenize strings, the input rank must be 1 or the last shape "
                    f"dimension must be 1. Received: inputs.shape={shape} with rank={len(shape)}"
                )
            shape = shape[:-1] if len(shape) > 1 else shape
            split = _SPLITTERS[self.split] if isinstance(self.split, str) else self._split_words
            rows = list(map(split, flat))
        if self._ngram_widths is not None:
            rows = [_add_ngrams(row, self._ngram_widths, join) for row in rows]
        return rows, shape

    def _split_words(self, text: bytes) -> list[bytes]:
        scalar = np.empty((), object)
        scalar[()] = text
        split = cast(Callable[..., Any], self.split)
        words = read_host_values(split(Tensor(scalar)), "words (XLA has no strings)")
        return words.reshape(-1).tolist()

    def call(self, inputs: TensorLike) -> Any:
        """Compute ids or vectors of texts with shape [], [batch] or [batch, 1]."""
        self._lookup_layer.check_ready()
        if find_recording(inputs) is not None:
            return self._record_call(inputs)
        rows, shape = self._split_texts(inputs, self._ngram_form)
        words = list(itertools.chain.from_iterable(rows))
        flat = np.array(self._lookup_layer.find_row_ids(words, self._token_ids), np.int64)
        lengths = np.array(list(map(len, rows)), np.int64)
        if self.ragged and shape:
            return RaggedTensor.from_row_lengths(flat, lengths, validate=False)
        width = self.output_sequence_length
        width = lengths.max(initial=0) if width is None else width
        ids = pad_values(flat, lengths, len(lengths), width, self._padding_id)
        if self.split is None and len(shape) == 1 and len(rows) == 1 and len(rows[0]) == shape[0]:
            ids = ids.reshape(-1, 1) if self.output_mode == "int" else ids
        if not shape:
            ids = ids[0]
        return self._lookup_layer.encode(Tensor(ids))

    @property
    def _ngram_form(self) -> Callable[[Iterable[bytes]], Any]:
        """Return the function that makes n-grams of words: tuples where no word has a space, which saves joining."""
        return tuple if self.split == "whitespace" else b" ".join

    @property
    def _token_ids(self) -> Mapping[Any, int]:
        """Return the ids of the tokens in the forms of words and n-grams."""
        ids = self._lookup_layer.token_ids
        if self._ngram_widths is None:
            return ids
        if self._ngram_ids is None or self._ngram_ids[0] is not ids:
            tuples = {tuple(token.split(b" ")): i for token, i in ids.items() if b" " in token}
            self._ngram_ids = ids, {**ids, **tuples}
        return self._ngram_ids[1]

    def _record_call(self, texts: TensorLike) -> Any:
        """Compute the outputs by ops, for a function that is being saved."""
        standard = self.standardize or ""
        if not isinstance(standard, str):
            texts, standard = standard(texts), ""
        try:
            steps = self._make_steps(standard, len(texts.shape))
        except NotImplementedError as error:
            raise UnrecordableError(str(error)) from error
        if self.ragged and len(texts.shape):
            *standard_steps, _, look_up, _ = steps
            words = strings.split(run_text_steps(texts, standard_steps, "string"))
            ids = run_text_steps(words.flat_values, [look_up])
            return words.with_flat_values(ids)
        return self._lookup_layer.encode(run_text_steps(texts, steps))

    @property
    def is_static(self) -> bool:
        """Return whether the vocabulary was passed to the constructor."""
        return self._lookup_layer.is_static

    @property
    def _padding_id(self) -> int:
        """Return the id after the last word; vectors ignore -1."""
        return 0 if self.output_mode == "int" else -1

    def get_output_dtype(self) -> str:
        """Return the dtype of the outputs: int64, or `floatx()` for vectors."""
        return "int64" if self.output_mode == "int" else settings.floatx()

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Compute the shape of the output: ids per text, or size of the vocabulary."""
        sizes = TensorShape(input_shape).as_list()
        if self.output_mode != "int":
            return TensorShape([*sizes[:1], self._lookup_layer.encoding_depth])
        if self.split is None and len(sizes) > 1:
            return TensorShape(sizes)
        return TensorShape([*sizes[:1], self.output_sequence_length])

    def get_config(self) -> Config:
        """Return the configuration; it contains a learned vocabulary."""
        lookup_config = self._lookup_layer.get_config()
        return {
            **super().get_config(),
            "max_tokens": self.max_tokens,
            "standardize": _serialize_option(self.standardize),
            "split": _serialize_option(self.split),
            "ngrams": self.ngrams,
            "output_mode": self.output_mode,
            "output_sequence_length": self.output_sequence_length,
            "pad_to_max_tokens": self.pad_to_max_tokens,
            "sparse": self.sparse,
            "ragged": self.ragged,
            "vocabulary": lookup_config["vocabulary"],
            "idf_weights": lookup_config["idf_weights"],
            "encoding": self.encoding,
            "vocabulary_size": self._lookup_layer.get_config_size(),
        }


def _resolve_option(
    value: str | Callable[..., Any] | None, known: Mapping[str, Callable[..., Any]], name: str
) -> str | Callable[..., Any] | None:
    """Return the name of a built-in option, None, or a function (found by its name).

    Raises:
      ValueError: If the name is unknown.
    """
    if isinstance(value, BoundName):
        return value.value
    if value is None or callable(value) or value in known:
        return value
    function = registry.get_registered_object(value) if isinstance(value, str) else None
    if function is None:
        raise ValueError(
            f"Unknown value for `{name}` argument of layer TextVectorization. Allowed values are: `None`, a "
            f"`Callable`, or one of the following values: {tuple(known)}. Received: {value}"
        )
    return function


def _serialize_option(option: str | Callable[..., Any] | None) -> str | None:
    get_name = registry.get_registered_name
    return BoundName(get_name(option), option) if callable(option) else option


def _parse_ngrams(ngrams: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if ngrams is None:
        return None
    if isinstance(ngrams, int) and ngrams > 0:
        return tuple(range(1, ngrams + 1))
    if isinstance(ngrams, (tuple, list)) and all(isinstance(n, int) for n in ngrams):
        return tuple(ngrams)
    raise ValueError(
        f"`ngrams` must be None, an integer, or a tuple of integers. Received: ngrams={ngrams}"
    )


def _add_ngrams(
    words: list[bytes], widths: tuple[int, ...], join: Callable[[Iterable[bytes]], Any]
) -> list[Any]:
    result: list[Any] = []
    for width in widths:
        runs = zip(*[words[i:] for i in range(width)], strict=False)
        if width == 1:
            result += words
        else:
            # The runs are tuples already.
            result += runs if join is tuple else map(join, runs)
    return result
