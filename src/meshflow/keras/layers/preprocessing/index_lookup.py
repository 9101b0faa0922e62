"""Base class of `StringLookup` and `IntegerLookup`: a vocabulary, and ids of its tokens.

The ids are those of the mask token (if there is one and `output_mode` is 'int'), of unknown tokens
(out-of-vocabulary, OOV), and of the tokens, in this order.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.runtime.errors import FailedPreconditionError, InvalidArgumentError
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Config
from meshflow.io import gfile
from meshflow.keras import settings
from meshflow.keras.layers.preprocessing.encoding import (
    check_sparse,
    compute_encoded_shape,
    encode_ids,
    map_ids,
    parse_output_mode,
)
from meshflow.keras.layers.preprocessing.preprocessing_layer import EncodingLayer, read_host_values
from meshflow.keras.literals import OutputMode
from meshflow.ops.ragged import RaggedTensor

_MODES = ("int", "one_hot", "multi_hot", "count", "tf_idf")


class IndexLookup(EncodingLayer):
    """Base class of the lookup layers, which map tokens to ids; it has their arguments.

    Subclasses define the form of a token by `to_token` and `read_tokens`.
    """

    token_dtype = "string"

    def __init__(
        self,
        max_tokens: int | None,
        num_oov_indices: int,
        mask_token: str | int | None,
        oov_token: str | int | None,
        vocabulary: TensorLike = None,
        idf_weights: TensorLike = None,
        invert: bool = False,
        output_mode: OutputMode = "int",
        sparse: bool = False,
        pad_to_max_tokens: bool = False,
        **kwargs: Any,
    ) -> None:
        mode = parse_output_mode(output_mode, _MODES, type(self).__name__)
        _check_arguments(max_tokens, num_oov_indices, invert, mode, output_mode, pad_to_max_tokens)
        check_sparse(sparse, mode)
        self._configured_size = kwargs.pop("vocabulary_size", None)
        # SavedModels of Keras store the vocabulary in a separate file, and set this argument.
        is_static = kwargs.pop("has_input_vocabulary", vocabulary is not None)
        kwargs.pop("has_static_table", None)
        # The dtype is that of ids; "string" is the dtype of the inputs.
        if kwargs.get("dtype") in (None, "string"):
            kwargs["dtype"] = "int64" if mode == "int" else settings.floatx()
        self.invert = invert
        super().__init__(**kwargs)
        self.max_tokens, self.num_oov_indices = max_tokens, num_oov_indices
        self.mask_token = None if mask_token is None else self.to_token(mask_token)
        self.oov_token = None if oov_token is None else self.to_token(oov_token)
        self.output_mode, self.sparse, self.pad_to_max_tokens = mode, sparse, pad_to_max_tokens
        self.input_vocabulary = _to_list(vocabulary)
        self.input_idf_weights = _to_list(idf_weights)
        if idf_weights is not None and mode != "tf_idf":
            raise ValueError(
                "`idf_weights` should only be set if `output_mode` is `'tf_idf'`. "
                f"Received: idf_weights={idf_weights} and output_mode={output_mode}"
            )
        self._tokens: list[Any] = []
        self._token_ids: dict[Any, int] = {}
        if mode == "tf_idf":
            # One weight per id, including those of unknown tokens; the size is known once there is
            # a vocabulary.
            self.idf_weights = Variable(
                np.zeros(self._first_token_id),
                trainable=False,
                dtype=self.compute_dtype,
                shape=[None],
            )
        self.reset_state()
        if vocabulary is not None:
            self.set_vocabulary(vocabulary, idf_weights)
        self.is_static = is_static

    # ---- form of tokens ----------------------------------------------------------------------

    def to_token(self, value: TensorLike) -> Any:
        """Convert a value to a token of the vocabulary.

        Raises:
          NotImplementedError: If the subclass does not define it.
        """
        raise NotImplementedError

    def read_tokens(self, inputs: TensorLike) -> np.ndarray:
        """Return the tokens of a tensor as an array on the host."""
        raise NotImplementedError

    def hash_oov_tokens(self, tokens: list[Any]) -> list[int]:
        """Compute an index below `num_oov_indices` for each unknown token."""
        raise NotImplementedError

    # ---- the vocabulary --------------------------------------------------------------------

    @property
    def _num_mask_ids(self) -> int:
        return int(self.mask_token is not None and self.output_mode == "int")

    @property
    def _first_token_id(self) -> int:
        return self._num_mask_ids + self.num_oov_indices

    def vocabulary_size(self) -> int:
        """Return the number of ids, including those of masked and unknown tokens."""
        return len(self._tokens) + self._first_token_id

    def vocab_size(self) -> int:
        """Return the number of ids; an earlier name of `vocabulary_size`."""
        return self.vocabulary_size()

    def _get_expected_size(self) -> int:
        """Return the number of ids; without a vocabulary, the number in the configuration."""
        configured = None if self._tokens else self._configured_size
        return self.vocabulary_size() if configured is None else int(configured)

    def get_config_size(self) -> int | None:
        """Return the number of ids for the configuration; None if it is unknown."""
        is_known = bool(self._tokens) or self._configured_size is not None
        return self._get_expected_size() if is_known else None

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[Any]:
        """Return the tokens in the order of their ids.

        Args:
          include_special_tokens: Whether to include the mask token and the OOV tokens.
        """
        special = [self.mask_token] * self._num_mask_ids + [self.oov_token] * self.num_oov_indices
        return [*(special if include_special_tokens else ()), *self._tokens]

    def set_vocabulary(self, vocabulary: TensorLike, idf_weights: TensorLike = None) -> None:
        """Set the vocabulary.

        Args:
          vocabulary: Tokens, or path of a text file with one token per line; may start with the
            special tokens.
          idf_weights: One weight per token, for 'tf_idf'.

        Raises:
          ValueError: If the file does not exist, there are no tokens or too many, a token is
            repeated or misplaced, or the number of weights does not match.
          FailedPreconditionError: If a token of a file is repeated.
        """
        is_file = isinstance(vocabulary, str)
        if isinstance(vocabulary, str):
            vocabulary = _read_lines(vocabulary)
        tokens = [self.to_token(v) for v in _to_list(vocabulary)]
        if not tokens:
            raise ValueError(f"Cannot set an empty vocabulary, you passed {vocabulary}.")
        if (self.output_mode == "tf_idf") != (idf_weights is not None):
            raise ValueError(
                "`idf_weights` must be set if output_mode is TF_IDF"
                if idf_weights is None
                else f"`idf_weights` should only be set if output_mode is `'tf_idf'`, got {self.output_mode}."
            )
        special = [self.mask_token] * self._num_mask_ids + [self.oov_token] * self.num_oov_indices
        weights = None if idf_weights is None else np.asarray(_to_list(idf_weights), np.float32)
        if special and tokens[: len(special)] == special:
            tokens = tokens[len(special) :]
            if weights is not None and len(weights) == len(tokens) + len(special):
                weights = weights[len(special) :]
        self._check_tokens(tokens, special, is_file)
        if weights is not None and len(weights) != len(tokens):
            raise ValueError(
                "`idf_weights` must be the same length as vocabulary. "
                f"len(idf_weights) is {len(weights)}; len(vocabulary) is {len(tokens)}"
            )
        self._set_tokens(tokens, weights)

    def restore_tokens(self, table: Mapping[Any, Any]) -> None:
        """Set the vocabulary to that of a saved table; files store the weights of 'tf_idf' separately.

        Args:
          table: Id of each token, or with `invert` token of each id.
        """
        if self.invert:
            entries = sorted(table.items())
        else:
            entries = sorted((index, token) for token, index in table.items())
        self._set_tokens([self.to_token(token) for _, token in entries], None)

    def _check_tokens(self, tokens: list[Any], special: list[Any], is_file: bool) -> None:
        repeated = [token for token, count in Counter(tokens).items() if count > 1]
        if repeated and is_file:
            raise FailedPreconditionError(
                f"HashTable has different value for same key. The file of the vocabulary repeats {repeated}: remove all but "
                "one line of each token."
            )
        if repeated:
            raise ValueError(
                "The passed vocabulary has at least one repeated term. Please uniquify your dataset. The repeated "
                f"terms are {repeated}"
            )
        for token in (self.mask_token, self.oov_token if self.invert else None):
            if token is not None and token in tokens:
                raise ValueError(
                    f"Found reserved token {token!r} at unexpected location in `vocabulary`. Either remove all mask "
                    "and OOV tokens, or include them only at the start of the vocabulary in precisely this order: "
                    f"{special}. Received: {token!r} at vocabulary index {tokens.index(token)}"
                )
        size = len(tokens) + self._first_token_id
        if self.max_tokens is not None and size > self.max_tokens:
            raise ValueError(
                f"Attempted to set a vocabulary larger than the maximum vocab size. Passed vocab size is {size}, "
                f"max vocab size is {self.max_tokens}."
            )

    def _set_tokens(self, tokens: list[Any], weights: np.ndarray | None) -> None:
        self._tokens = tokens
        self._token_ids = {self.to_key(t): i + self._first_token_id for i, t in enumerate(tokens)}
        if self.mask_token is not None:
            # Vectors ignore masked tokens, so the id is -1.
            self._token_ids.setdefault(
                self.to_key(self.mask_token), 0 if self._num_mask_ids else -1
            )
        if weights is not None:
            oov_weights = np.full(self.num_oov_indices, weights.mean() if len(weights) else 0.0)
            all_weights = np.concatenate([oov_weights, weights]).astype(np.float32)
            self.idf_weights.assign(
                np.pad(all_weights, (0, max(self.encoding_depth - len(all_weights), 0)))
            )
        self._update_tables()

    def _update_tables(self) -> None:
        """Update tables that depend on the vocabulary; called for each new vocabulary."""

    def to_key(self, token: Any) -> Hashable:
        """Convert a token of the vocabulary to the form that `read_tokens` returns."""
        return token

    # ---- learning of the vocabulary ------------------------------------------------------------

    def reset_state(self) -> None:
        """Reset the learned state."""
        if self._can_replace_vocabulary:
            # The vocabulary in a configuration may be a learned one.
            self.is_static = self._can_replace_vocabulary = False
            self.input_vocabulary = self.input_idf_weights = None
        if getattr(self, "is_static", False):
            return
        self._counts: Counter[Any] = Counter()
        self._documents: Counter[Any] = Counter()
        self._document_count = 0
        self._tokens, self._token_ids = [], {}

    def update_state(self, data: TensorLike) -> None:
        """Count the tokens of a batch.

        Raises:
          ValueError: If a vocabulary was passed to the constructor.
        """
        if self.is_static:
            raise ValueError(
                f"Cannot adapt layer {self.name} after setting a static vocabulary via init argument or "
                "`set_vocabulary`."
            )
        if isinstance(data, RaggedTensor):
            parts = [row.flat_values if isinstance(row, RaggedTensor) else row for row in data]
            self.count_rows([self.read_tokens(part).reshape(-1).tolist() for part in parts])
            return
        tokens = self.read_tokens(data)
        rows = tokens.reshape(-1, tokens.shape[-1]) if tokens.ndim > 1 else tokens.reshape(1, -1)
        self.count_rows([row.tolist() for row in rows] if tokens.ndim > 1 else rows.tolist())

    def count_rows(self, rows: Sequence[Sequence[Any]]) -> None:
        """Count the tokens of documents."""
        for row in rows:
            self._counts.update(row)
            if self.output_mode == "tf_idf":
                self._documents.update(set(row))
        self._document_count += len(rows)

    def finalize_state(self) -> None:
        """Create the vocabulary from the counts; the most frequent tokens are first."""
        if self.is_static or not self._counts:
            return
        special = {self.to_key(t) for t in (self.mask_token, self.oov_token) if t is not None}
        counted = [(count, token) for token, count in self._counts.items() if token not in special]
        counted.sort(reverse=True)
        max_count = (
            None if self.max_tokens is None else max(self.max_tokens - self._first_token_id, 0)
        )
        tokens = [token for _, token in counted[:max_count]]
        weights = None
        if self.output_mode == "tf_idf":
            document_counts = np.array([self._documents[t] for t in tokens], np.float32)
            weights = np.log(1.0 + np.float32(self._document_count) / (1.0 + document_counts))
        self._set_tokens([self.to_token(t) for t in tokens], weights)

    # ---- calls ---------------------------------------------------------------------------------

    def call(self, inputs: TensorLike | SparseTensor) -> Tensor | SparseTensor:
        """Encode the ids of the tokens; with `invert`, return the tokens of ids."""
        self.check_ready()
        if self.invert:
            return map_ids(self._invert_ids, inputs)
        return self.encode(map_ids(self._find_ids, inputs))

    def check_ready(self) -> None:
        """Raise an error if the layer has no vocabulary yet; a RuntimeError if the size of vectors depends on it."""
        if self._tokens or self.is_static:
            return
        if self.output_mode != "int" and not self.pad_to_max_tokens:
            raise RuntimeError(
                f"When using `output_mode={self.output_mode}` and `pad_to_max_tokens=False`, you must set the layer's vocabulary "
                f"before calling it. Pass `vocabulary` to layer {self.name}, or call `adapt`."
            )
        raise FailedPreconditionError(
            f"Table not initialized: layer {self.name} has no vocabulary. Call `adapt`, or pass `vocabulary`."
        )

    def _find_ids(self, inputs: TensorLike) -> Tensor:
        tokens = self.read_tokens(inputs)
        ids = self.find_row_ids(tokens.reshape(-1).tolist())
        return Tensor(np.asarray(ids, np.int64).reshape(tokens.shape))

    @property
    def token_ids(self) -> Mapping[Any, int]:
        """Return the ids of tokens in the form of `read_tokens`; a new mapping for each vocabulary."""
        return self._token_ids

    def find_row_ids(self, tokens: list[Any], ids: Mapping[Any, int] | None = None) -> list[int]:
        """Return the ids of tokens, by default those of `token_ids`.

        Raises:
          InvalidArgumentError: If a token is unknown and there are no ids of unknown tokens.
        """
        ids = self._token_ids if ids is None else ids
        if self.num_oov_indices == 1:
            return list(map(ids.get, tokens, itertools.repeat(self._num_mask_ids)))
        missing = [t for t in tokens if t not in ids]
        if missing and not self.num_oov_indices:
            raise InvalidArgumentError(format_oov_error(missing))
        oov_ids = dict(zip(missing, self.hash_oov_tokens(missing), strict=True)) if missing else {}
        return [ids[t] if t in ids else oov_ids[t] + self._num_mask_ids for t in tokens]

    def encode(self, ids: TensorLike | SparseTensor) -> Tensor | SparseTensor:
        """Encode ids of tokens according to `output_mode`."""
        weights = self._idf_values if self.output_mode == "tf_idf" else None
        return encode_ids(
            ids,
            self.output_mode,
            self.encoding_depth,
            self.get_output_dtype(),
            weights,
            self.sparse,
        )

    def _invert_ids(self, inputs: TensorLike) -> Tensor:
        raise NotImplementedError

    @property
    def encoding_depth(self) -> int:
        """Return the size of an encoded vector: that of the vocabulary, or `max_tokens` with padding."""
        if self.pad_to_max_tokens and self.max_tokens is not None and self.output_mode != "int":
            return self.max_tokens
        return self._get_expected_size()

    def get_output_dtype(self) -> str:
        """Return the dtype of the outputs: of tokens, ids or vectors."""
        if self.invert:
            return self.token_dtype
        dtype = self.compute_dtype or settings.floatx()
        return "int64" if self.output_mode == "int" and "int" not in dtype else dtype

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Compute the shape of the encoded outputs."""
        depth = None if self.output_mode == "int" else self.encoding_depth
        return compute_encoded_shape(input_shape, self.output_mode, depth)

    @property
    def _idf_values(self) -> np.ndarray:
        with init_scope():
            return np.asarray(self.idf_weights.numpy())

    @property
    def _token_idf_values(self) -> np.ndarray | None:
        if self.output_mode != "tf_idf":
            return None
        return self._idf_values[self.num_oov_indices :][: len(self._tokens)]

    def _weights_in_files(self) -> dict[str, Variable]:
        """Return the weights by their names in files of Keras."""
        return {"idf_weights": self.idf_weights} if self.output_mode == "tf_idf" else {}

    def get_weights(self) -> list[np.ndarray]:
        """Return the learned vocabulary and the 'tf_idf' weights; if it is static, all weights."""
        if self.is_static:
            return super().get_weights()
        if not self._tokens:
            return []
        weights = self._token_idf_values
        return [np.asarray(self.get_vocabulary(False)), *([] if weights is None else [weights])]

    def set_weights(self, weights: Sequence[TensorLike]) -> None:
        """Set the result of `get_weights`."""
        if self.is_static:
            super().set_weights([*weights])
        elif weights:
            self.set_vocabulary(weights[0], weights[1] if len(weights) > 1 else None)

    def get_config(self) -> Config:
        """Return the configuration; it contains a vocabulary that was learned or read from a file."""
        vocabulary, weights = self.input_vocabulary, self.input_idf_weights
        if isinstance(vocabulary, str):
            vocabulary = self.get_vocabulary(False)
        elif vocabulary is None and self._tokens:
            vocabulary, weights = self.get_vocabulary(False), _to_list(self._token_idf_values)
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
            "vocabulary_size": self.get_config_size(),
        }

    def _own_config(self) -> Config:
        """Return the part of the configuration before the vocabulary."""
        return {}


def format_oov_error(missing: list[Any]) -> str:
    """Format the message about values that the vocabulary does not contain."""
    return (
        f"When `num_oov_indices=0` all inputs should be in vocabulary, found OOV values {missing[:5]}, consider "
        "setting `num_oov_indices=1`."
    )


def _check_arguments(
    max_tokens: int | None,
    num_oov: int,
    invert: bool,
    mode: str,
    output_mode: str,
    pad: bool,
) -> None:
    if max_tokens is not None and max_tokens <= 1:
        raise ValueError(
            f"If set, `max_tokens` must be greater than 1. Received: max_tokens={max_tokens}"
        )
    if pad and max_tokens is None:
        raise ValueError(
            f"If pad_to_max_tokens is True, must set `max_tokens`. Received: max_tokens={max_tokens}"
        )
    if num_oov < 0:
        raise ValueError(
            f"`num_oov_indices` must be greater than or equal to 0. Received: num_oov_indices={num_oov}"
        )
    if invert and mode != "int":
        raise ValueError(
            f"`output_mode` must be `'int'` when `invert` is true. Received: output_mode={output_mode}"
        )


def _to_list(values: TensorLike) -> Any:
    """Convert an array, tensor or tuple to a list; paths and None are returned unchanged."""
    if values is None or isinstance(values, str):
        return values
    if hasattr(values, "require_value"):
        values = read_host_values(values, "a vocabulary")
    values = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(values, (Mapping, bytes)) or not isinstance(values, Iterable):
        raise TypeError(
            f"vocabulary must be a list of tokens or the path of a file, got {type(values).__name__} {values!r:.100}."
        )
    return list(values)


def _read_lines(path: str) -> list[str]:
    if not gfile.exists(path):
        raise ValueError(f"Vocabulary file {path} does not exist.")
    with gfile.GFile(path, "r") as file:
        return file.read().splitlines()
