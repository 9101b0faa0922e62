"""What `StringLookup` and `IntegerLookup` share: a vocabulary, and numbers for its tokens.

A vocabulary's numbers begin with the mask token, where there is one and numbers are wanted, followed by
those of unknown tokens, followed by the tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import FailedPreconditionError, InvalidArgumentError
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.io import gfile
from meshflow.keras import settings
from meshflow.keras.layers.preprocessing.adapting import EncodingLayer, host_values
from meshflow.keras.layers.preprocessing.encoding import (
    encoded,
    encoded_shape,
    mode_of,
    refuse_sparse,
)

__all__ = ["IndexLookup"]

_MODES = ("int", "one_hot", "multi_hot", "count", "tf_idf")


class IndexLookup(EncodingLayer):
    """Numbers for tokens; the base class of the lookup layers, whose arguments it has.

    Subclasses say what a token is: `token_of` and `tokens_of`.
    """

    token_dtype = "string"

    def __init__(
        self,
        max_tokens: int | None,
        num_oov_indices: int,
        mask_token: Any,
        oov_token: Any,
        vocabulary: Any = None,
        idf_weights: Any = None,
        invert: bool = False,
        output_mode: str = "int",
        sparse: bool = False,
        pad_to_max_tokens: bool = False,
        **kwargs: Any,
    ) -> None:
        mode = mode_of(output_mode, _MODES, type(self).__name__)
        _check_arguments(max_tokens, num_oov_indices, invert, mode, output_mode, pad_to_max_tokens)
        refuse_sparse(sparse, mode)
        self._size_to_come = kwargs.pop("vocabulary_size", None)
        # SavedModels of Keras keep the vocabulary elsewhere, and say here that it was given.
        given = kwargs.pop("has_input_vocabulary", vocabulary is not None)
        kwargs.pop("has_static_table", None)
        # Of what is computed with numbers of tokens; that of strings says nothing.
        if kwargs.get("dtype") in (None, "string"):
            kwargs["dtype"] = "int64" if mode == "int" else settings.floatx()
        self.invert = invert
        super().__init__(**kwargs)
        self.max_tokens, self.num_oov_indices = max_tokens, num_oov_indices
        self.mask_token = None if mask_token is None else self.token_of(mask_token)
        self.oov_token = None if oov_token is None else self.token_of(oov_token)
        self.output_mode, self.sparse, self.pad_to_max_tokens = mode, sparse, pad_to_max_tokens
        self.input_vocabulary = _plain(vocabulary)
        self.input_idf_weights = _plain(idf_weights)
        if idf_weights is not None and mode != "tf_idf":
            raise ValueError(
                "`idf_weights` should only be set if `output_mode` is `'tf_idf'`. "
                f"Received: idf_weights={idf_weights} and output_mode={output_mode}"
            )
        self._tokens: list[Any] = []
        self._numbers: dict[Any, int] = {}
        if mode == "tf_idf":
            # Of all numbers, those of unknown tokens included; as many as the vocabulary makes there be.
            self.idf_weights = Variable(
                np.zeros(self._first), trainable=False, dtype=self.compute_dtype, shape=[None]
            )
        self.reset_state()
        if vocabulary is not None:
            self.set_vocabulary(vocabulary, idf_weights)
        self._given = given

    # ---- what a token is -------------------------------------------------------------------

    def token_of(self, value: Any) -> Any:
        """A token as the vocabulary holds it.

        Raises:
          NotImplementedError: unless a subclass defines it.
        """
        raise NotImplementedError

    def tokens_of(self, inputs: Any) -> np.ndarray:
        """The tokens of a tensor, an array of known values."""
        raise NotImplementedError

    def unknown(self, tokens: list[Any]) -> list[int]:
        """A number below `num_oov_indices` for each unknown token, from the token itself."""
        raise NotImplementedError

    # ---- the vocabulary --------------------------------------------------------------------

    @property
    def _masks(self) -> int:
        return int(self.mask_token is not None and self.output_mode == "int")

    @property
    def _first(self) -> int:
        """The number of the first token."""
        return self._masks + self.num_oov_indices

    def vocabulary_size(self) -> int:
        """How many numbers there are, those of masked and unknown tokens included."""
        return len(self._tokens) + self._first

    def vocab_size(self) -> int:
        """The old name of `vocabulary_size`."""
        return self.vocabulary_size()

    def _expected_size(self) -> int:
        """The size; before there is a vocabulary the one that a configuration says."""
        to_come = None if self._tokens else self._size_to_come
        return self.vocabulary_size() if to_come is None else int(to_come)

    def _stated_size(self) -> int | None:
        """The size that configurations say: none while it is not known."""
        known = bool(self._tokens) or self._size_to_come is not None
        return self._expected_size() if known else None

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[Any]:
        """The tokens, in the order of their numbers.

        Args:
          include_special_tokens: whether those that stand for masked and unknown tokens come first.
        """
        special = [self.mask_token] * self._masks + [self.oov_token] * self.num_oov_indices
        return [*(special if include_special_tokens else ()), *self._tokens]

    def set_vocabulary(self, vocabulary: Any, idf_weights: Any = None) -> None:
        """Sets the tokens.

        Args:
          vocabulary: tokens, or the path of a text file with one a line; may begin with the special tokens.
          idf_weights: for 'tf_idf', one weight for each token.

        Raises:
          ValueError: for a file that is not there, no tokens, repeated or misplaced ones, too many,
            or a wrong number of weights.
        """
        if isinstance(vocabulary, str):
            vocabulary = _lines(vocabulary)
        tokens = [self.token_of(v) for v in _plain(vocabulary)]
        if not tokens:
            raise ValueError(f"Cannot set an empty vocabulary, you passed {vocabulary}.")
        if (self.output_mode == "tf_idf") != (idf_weights is not None):
            raise ValueError(
                "`idf_weights` must be set if output_mode is TF_IDF"
                if idf_weights is None
                else f"`idf_weights` should only be set if output_mode is `'tf_idf'`, got {self.output_mode}."
            )
        special = [self.mask_token] * self._masks + [self.oov_token] * self.num_oov_indices
        weights = None if idf_weights is None else np.asarray(_plain(idf_weights), np.float32)
        if special and tokens[: len(special)] == special:
            tokens = tokens[len(special) :]
            if weights is not None and len(weights) == len(tokens) + len(special):
                weights = weights[len(special) :]
        self._check_tokens(tokens, special)
        if weights is not None and len(weights) != len(tokens):
            raise ValueError(
                "`idf_weights` must be the same length as vocabulary. "
                f"len(idf_weights) is {len(weights)}; len(vocabulary) is {len(tokens)}"
            )
        self._set(tokens, weights)

    def restore_tokens(self, table: Mapping[Any, Any]) -> None:
        """Sets the tokens to those of a saved table; weights of 'tf_idf' stay, which files hold beside it.

        Args:
          table: the number of each token, or with `invert` the token of each number.
        """
        if self.invert:
            numbered = sorted(table.items())
        else:
            numbered = sorted((number, token) for token, number in table.items())
        self._set([self.token_of(token) for _, token in numbered], None)

    def _check_tokens(self, tokens: list[Any], special: list[Any]) -> None:
        repeated = [token for token, count in Counter(tokens).items() if count > 1]
        if repeated:
            raise ValueError(
                "The passed vocabulary has at least one repeated term. Please uniquify your dataset. The repeated "
                f"terms are {repeated}"
            )
        misplaced = [t for t in (self.mask_token, self.oov_token if self.invert else None)]
        for token in misplaced:
            if token is not None and token in tokens:
                raise ValueError(
                    f"Found reserved token {token!r} at unexpected location in `vocabulary`. Either remove all mask "
                    "and OOV tokens, or include them only at the start of the vocabulary in precisely this order: "
                    f"{special}. Received: {token!r} at vocabulary index {tokens.index(token)}"
                )
        size = len(tokens) + self._first
        if self.max_tokens is not None and size > self.max_tokens:
            raise ValueError(
                f"Attempted to set a vocabulary larger than the maximum vocab size. Passed vocab size is {size}, "
                f"max vocab size is {self.max_tokens}."
            )

    def _set(self, tokens: list[Any], weights: np.ndarray | None) -> None:
        self._tokens = tokens
        self._numbers = {self.key_of(t): i + self._first for i, t in enumerate(tokens)}
        if self.mask_token is not None:
            # Vectors leave masked tokens out, so their number is none.
            self._numbers.setdefault(self.key_of(self.mask_token), 0 if self._masks else -1)
        if weights is not None:
            unknown = np.full(self.num_oov_indices, weights.mean() if len(weights) else 0.0)
            known = np.concatenate([unknown, weights]).astype(np.float32)
            self.idf_weights.assign(np.pad(known, (0, max(self._depth - len(known), 0))))
        self._changed()

    def _changed(self) -> None:
        """Called when there is another vocabulary."""

    def key_of(self, token: Any) -> Hashable:
        """A token as `tokens_of` gives it."""
        return token

    # ---- learning it -----------------------------------------------------------------------

    def reset_state(self) -> None:
        """Forgets what was learnt."""
        if getattr(self, "_given", False):
            return
        self._counts: Counter[Any] = Counter()
        self._documents: Counter[Any] = Counter()
        self._document_count = 0
        self._tokens, self._numbers = [], {}

    def update_state(self, data: Any) -> None:
        """Counts the tokens of a batch.

        Raises:
          ValueError: when a vocabulary was given.
        """
        if self._given:
            raise ValueError(
                f"Cannot adapt layer {self.name} after setting a static vocabulary via init argument or "
                "`set_vocabulary`."
            )
        tokens = self.tokens_of(data)
        rows = tokens.reshape(-1, tokens.shape[-1]) if tokens.ndim > 1 else tokens.reshape(1, -1)
        self.count_rows([row.tolist() for row in rows] if tokens.ndim > 1 else rows.tolist())

    def count_rows(self, rows: Sequence[Sequence[Any]]) -> None:
        """Counts the tokens of documents."""
        for row in rows:
            self._counts.update(row)
            if self.output_mode == "tf_idf":
                self._documents.update(set(row))
        self._document_count += len(rows)

    def finalize_state(self) -> None:
        """Makes the vocabulary of what was counted: the most frequent tokens first."""
        if self._given or not self._counts:
            return
        special = {self.key_of(t) for t in (self.mask_token, self.oov_token) if t is not None}
        counted = [(count, token) for token, count in self._counts.items() if token not in special]
        counted.sort(reverse=True)
        most = None if self.max_tokens is None else max(self.max_tokens - self._first, 0)
        kept = [token for _, token in counted[:most]]
        weights = None
        if self.output_mode == "tf_idf":
            often = np.array([self._documents[t] for t in kept], np.float32)
            weights = np.log(1.0 + np.float32(self._document_count) / (1.0 + often))
        self._set([self.token_of(t) for t in kept], weights)

    # ---- calling ---------------------------------------------------------------------------

    def call(self, inputs: Any) -> Any:
        """The tokens' numbers, encoded; or with `invert` the tokens of numbers."""
        self._check_ready()
        if self.invert:
            return self._inverted(inputs)
        return self.encode(self._find(inputs))

    def _check_ready(self) -> None:
        if not self._tokens and not self._given:
            raise FailedPreconditionError(
                f"Table not initialized: layer {self.name} has no vocabulary. Call `adapt`, or pass `vocabulary`."
            )

    def _find(self, inputs: Any) -> Tensor:
        tokens = self.tokens_of(inputs)
        numbers = self.find_row(tokens.reshape(-1).tolist())
        return Tensor(np.asarray(numbers, np.int64).reshape(tokens.shape))

    def find_row(self, tokens: list[Any]) -> list[int]:
        """The numbers of tokens.

        Raises:
          InvalidArgumentError: for unknown tokens, when there is no number for them.
        """
        known = self._numbers
        if self.num_oov_indices == 1:
            unknown = self._masks
            return [known.get(t, unknown) for t in tokens]
        missing = [t for t in tokens if t not in known]
        if missing and not self.num_oov_indices:
            raise InvalidArgumentError(_no_unknown(missing))
        others = dict(zip(missing, self.unknown(missing), strict=True)) if missing else {}
        return [known[t] if t in known else others[t] + self._masks for t in tokens]

    def encode(self, numbers: Any) -> Any:
        """Numbers of tokens as `output_mode` wants them."""
        weights = self._idf if self.output_mode == "tf_idf" else None
        return encoded(numbers, self.output_mode, self._depth, self.output_dtype(), weights)

    def _inverted(self, inputs: Any) -> Tensor:
        raise NotImplementedError

    @property
    def _depth(self) -> int:
        if self.pad_to_max_tokens and self.max_tokens is not None and self.output_mode != "int":
            return self.max_tokens
        return self._expected_size()

    def output_dtype(self) -> Any:
        """The tokens' dtype for `invert`, else int64 or the layer's integer dtype, for vectors floats."""
        if self.invert:
            return self.token_dtype
        kind = self.compute_dtype or settings.floatx()
        return "int64" if self.output_mode == "int" and "int" not in kind else kind

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape, or that of the vectors."""
        depth = None if self.output_mode == "int" else self._depth
        return encoded_shape(input_shape, self.output_mode, depth)

    @property
    def _idf(self) -> np.ndarray:
        with init_scope():
            return np.asarray(self.idf_weights.numpy())

    @property
    def _idf_of_tokens(self) -> np.ndarray | None:
        if self.output_mode != "tf_idf":
            return None
        return self._idf[self.num_oov_indices :][: len(self._tokens)]

    def _weights_in_files(self) -> dict[str, Variable]:
        """The weights by the names that files of Keras give them in the layer's group."""
        return {"idf_weights": self.idf_weights} if self.output_mode == "tf_idf" else {}

    def get_weights(self) -> list[np.ndarray]:
        """The learnt vocabulary, as one array, and for 'tf_idf' its weights; when it was given, all weights."""
        if self._given:
            return super().get_weights()
        if not self._tokens:
            return []
        weights = self._idf_of_tokens
        return [np.asarray(self.get_vocabulary(False)), *([] if weights is None else [weights])]

    def set_weights(self, weights: list[Any]) -> None:
        """Sets what `get_weights` gave."""
        if self._given:
            super().set_weights(weights)
        elif weights:
            self.set_vocabulary(weights[0], weights[1] if len(weights) > 1 else None)

    def get_config(self) -> dict[str, Any]:
        """The configuration; a vocabulary that was learnt or read is part of it, so that a saved model has it."""
        vocabulary, weights = self.input_vocabulary, self.input_idf_weights
        if isinstance(vocabulary, str):
            vocabulary = self.get_vocabulary(False)
        elif vocabulary is None and self._tokens:
            vocabulary, weights = self.get_vocabulary(False), _plain(self._idf_of_tokens)
        return {
            **super().get_config(),
            "invert": self.invert,
            "max_tokens": self.max_tokens,
            "num_oov_indices": self.num_oov_indices,
            "oov_token": self.oov_token,
            "mask_token": self.mask_token,
            "output_mode": self.output_mode,
            "sparse": self.sparse,
            "pad_to_max_tokens": self.pad_to_max_tokens,
            **self._own_config(),
            "idf_weights": weights,
            "vocabulary": vocabulary,
            "vocabulary_size": self._stated_size(),
        }

    def _own_config(self) -> dict[str, Any]:
        """What stands before the vocabulary."""
        return {}


def _no_unknown(missing: list[Any]) -> str:
    return (
        f"When `num_oov_indices=0` all inputs should be in vocabulary, found OOV values {missing[:5]}, consider "
        "setting `num_oov_indices=1`."
    )


def _check_arguments(
    max_tokens: Any, unknown: int, invert: bool, mode: str, given: str, pad: bool
) -> None:
    if max_tokens is not None and max_tokens <= 1:
        raise ValueError(
            f"If set, `max_tokens` must be greater than 1. Received: max_tokens={max_tokens}"
        )
    if pad and max_tokens is None:
        raise ValueError(
            f"If pad_to_max_tokens is True, must set `max_tokens`. Received: max_tokens={max_tokens}"
        )
    if unknown < 0:
        raise ValueError(
            f"`num_oov_indices` must be greater than or equal to 0. Received: num_oov_indices={unknown}"
        )
    if invert and mode != "int":
        raise ValueError(
            f"`output_mode` must be `'int'` when `invert` is true. Received: output_mode={given}"
        )


def _plain(values: Any) -> Any:
    """A list for arrays, tensors and tuples; paths and None stay."""
    if values is None or isinstance(values, str):
        return values
    if hasattr(values, "_concrete"):
        values = host_values(values, "a vocabulary")
    return values.tolist() if hasattr(values, "tolist") else list(values)


def _lines(path: str) -> list[str]:
    if not gfile.exists(path):
        raise ValueError(f"Vocabulary file {path} does not exist.")
    with gfile.GFile(path, "r") as file:
        return file.read().splitlines()
