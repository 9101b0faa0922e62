"""`StringLookup` and `IntegerLookup`: ids of the tokens of a vocabulary."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.errors import InvalidArgumentError, UnimplementedError
from meshflow.core.values.convert import constant, convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Array, Config
from meshflow.keras.layers.keyword_arguments import LookupArguments, get_arguments
from meshflow.keras.layers.preprocessing.index_lookup import IndexLookup, format_oov_error
from meshflow.keras.layers.preprocessing.preprocessing_layer import read_host_values
from meshflow.keras.literals import OutputMode
from meshflow.ops import array, hashing, math
from meshflow.ops.array.ordering import search_left
from meshflow.ops.deferred_host_values import UnrecordableError, find_recording
from meshflow.saved_model.host_steps.host_calls import run_text_steps

__all__ = ["IntegerLookup", "StringLookup"]


class StringLookup(IndexLookup):
    """Mapping of strings to ids.

    Args:
      max_tokens: Maximum number of ids; default no limit.
      num_oov_indices: Number of ids for unknown strings; if there are several, a hash selects one.
      mask_token: String with id 0, which vectors ignore; default none.
      oov_token: Token that represents unknown strings.
      vocabulary: Strings, or path of a text file with one string per line; by default `adapt`
        learns them.
      idf_weights: Weight of each string, for 'tf_idf'.
      encoding: Encoding of the strings.
      invert: Whether to map ids to strings instead.
      output_mode: 'int', 'one_hot', 'multi_hot', 'count' or 'tf_idf' (counts times weights).
      sparse: Whether vectors are returned as a `tf.SparseTensor`.
      pad_to_max_tokens: Whether vectors have `max_tokens` elements even if there are fewer strings.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, ...), of any rank.

    Output shape:
      The same as the input shape with 'int'; otherwise (batch, vocabulary).

    Raises:
      ValueError: If arguments contradict each other, or the vocabulary is invalid.
      InvalidArgumentError: If the layer is called with an unknown string and `num_oov_indices` is
        0.
      FailedPreconditionError: If the layer is called without a vocabulary.

    Example:
      >>> layer = tf.keras.layers.StringLookup(vocabulary=["a", "b"])
      >>> layer([["b", "?"]]).numpy()
      array([[2, 0]])
    """

    runs_on_host = True

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: str | None = None,
        oov_token: str = "[UNK]",
        vocabulary: TensorLike = None,
        idf_weights: TensorLike = None,
        encoding: str = "utf-8",
        invert: bool = False,
        output_mode: OutputMode = "int",
        sparse: bool = False,
        pad_to_max_tokens: bool = False,
        **kwargs: Unpack[LookupArguments],
    ) -> None:
        self.encoding = encoding
        super().__init__(**get_arguments(locals(), "encoding"))

    def to_token(self, value: str | bytes) -> str:
        """Decode a string."""
        return value.decode(self.encoding) if isinstance(value, bytes) else str(value)

    def to_key(self, token: str) -> bytes:
        """Encode a string."""
        return token.encode(self.encoding)

    def read_tokens(self, inputs: TensorLike) -> np.ndarray:
        """Return the strings of a tensor as an array of bytes.

        Raises:
          UnimplementedError: If the tensor contains numbers.
        """
        values = read_host_values(inputs, "strings to look up (XLA has no strings)")
        if values.dtype != object:
            raise UnimplementedError(f"Cast {values.dtype} to string is not supported [Op:Cast]")
        return values

    def hash_oov_tokens(self, tokens: list[bytes]) -> list[int]:
        """Compute the fingerprints of FarmHash modulo `num_oov_indices`."""
        return [hashing.fingerprint_word(t) % self.num_oov_indices for t in tokens]

    def _invert_ids(self, inputs: TensorLike) -> Tensor:
        words = [t.encode(self.encoding) for t in self.get_vocabulary()]
        oov_word = str(self.oov_token).encode(self.encoding)
        if find_recording(inputs) is not None:
            ids = math.cast(inputs, "int64")
            is_known = math.logical_and(ids >= 0, ids < len(words))
            rows = array.where(is_known, ids, len(words))
            return array.gather(constant([*words, oov_word]), rows)
        host_ids = read_host_values(inputs, "ids of strings (XLA has no strings)")
        strings = np.empty(host_ids.shape, object)
        strings.reshape(-1)[:] = [
            words[i] if 0 <= i < len(words) else oov_word for i in host_ids.reshape(-1).tolist()
        ]
        return Tensor(strings)

    def exported_steps(self, rank: int) -> list[list[Any]]:
        """Describe the layer as steps that files can hold (`saved_model/host_steps/text_steps.py`).

        Args:
          rank: Ignored.

        Raises:
          NotImplementedError: If files cannot hold the layer with its options.
        """
        if self.invert or self.output_mode != "int" or self.num_oov_indices != 1:
            raise NotImplementedError(
                f"layer {self.name} (StringLookup) with vectors as output or several numbers for unknown strings"
            )
        return [self.make_lookup_step()]

    def make_lookup_step(self, oov_id: int | None = None) -> list[Any]:
        """Describe the step that maps each string to its id.

        Args:
          oov_id: Id of unknown strings; default the first id of unknown strings.
        """
        words = [key.decode("latin-1") for key in self._token_ids]
        default = self._num_mask_ids if oov_id is None else oov_id
        return ["look", words, list(self._token_ids.values()), default]

    def _find_ids(self, inputs: TensorLike) -> Tensor:
        if find_recording(inputs) is None:
            return super()._find_ids(inputs)
        if self.num_oov_indices == 1:
            return run_text_steps(inputs, [self.make_lookup_step()])
        if not self.num_oov_indices:
            raise UnrecordableError(
                f"layer {self.name} with num_oov_indices=0, which rejects unknown strings"
            )
        ids = run_text_steps(inputs, [self.make_lookup_step(_UNKNOWN_ID)])
        oov_ids = hashing.to_hash_bucket_fast(inputs, self.num_oov_indices) + self._num_mask_ids
        return array.where(math.equal(ids, _UNKNOWN_ID), oov_ids, ids)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "encoding": self.encoding}


class IntegerLookup(IndexLookup):
    """Mapping of integers to ids; errors as in `StringLookup`.

    Args:
      max_tokens: Maximum number of ids; default no limit.
      num_oov_indices: Number of ids for unknown integers; if there are several, the remainder
        selects one.
      mask_token: Integer with id 0, which vectors ignore; default none.
      oov_token: Token that represents unknown integers.
      vocabulary: Integers; by default `adapt` learns them.
      vocabulary_dtype: 'int64' or 'int32'.
      idf_weights: Weight of each integer, for 'tf_idf'.
      invert: Whether to map ids to integers instead.
      output_mode: 'int', 'one_hot', 'multi_hot', 'count' or 'tf_idf'.
      sparse: Whether vectors are returned as a `tf.SparseTensor`.
      pad_to_max_tokens: Whether vectors have `max_tokens` elements even if there are fewer
        integers.
      **kwargs: Arguments of `Layer`; `max_values`, `mask_value` and `oov_value` are earlier names.

    Input shape:
      (batch, ...), of any rank.

    Output shape:
      The same as the input shape with 'int'; otherwise (batch, vocabulary).

    Example:
      >>> layer = tf.keras.layers.IntegerLookup(vocabulary=[12, 36])
      >>> layer([[36, 1]]).numpy()
      array([[2, 0]])
    """

    token_dtype = "int64"

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: int | None = None,
        oov_token: int = -1,
        vocabulary: TensorLike = None,
        vocabulary_dtype: str = "int64",
        idf_weights: TensorLike = None,
        invert: bool = False,
        output_mode: OutputMode = "int",
        sparse: bool = False,
        pad_to_max_tokens: bool = False,
        **kwargs: Unpack[LookupArguments],
    ) -> None:
        max_tokens = kwargs.pop("max_values", max_tokens)
        mask_token = kwargs.pop("mask_value", mask_token)
        oov_token = kwargs.pop("oov_value", oov_token)
        if vocabulary_dtype not in ("int32", "int64"):
            raise ValueError(
                f"vocabulary_dtype must be 'int64' or 'int32', got {vocabulary_dtype!r}."
            )
        self.vocabulary_dtype = self.token_dtype = vocabulary_dtype
        super().__init__(**get_arguments(locals(), "vocabulary_dtype"))

    def to_token(self, value: int | np.integer) -> np.integer:
        """Convert a value to the dtype of the vocabulary."""
        return np.dtype(self.vocabulary_dtype).type(int(value))

    def to_key(self, token: int | np.integer) -> int:
        """Convert a token to a Python integer."""
        return int(token)

    def read_tokens(self, inputs: TensorLike) -> np.ndarray:
        """Return the integers of a tensor as an array."""
        return read_host_values(inputs, "integers to count").astype(np.int64)

    def _update_tables(self) -> None:
        # The keys are sorted for the binary search in `_search_ids`.
        keys = np.array(sorted(self._token_ids), np.int64)
        self._sorted_tables = keys, np.array([self._token_ids[k] for k in keys.tolist()], np.int64)

    def _find_ids(self, inputs: TensorLike) -> Tensor:
        tokens = math.cast(inputs, "int64")
        keys, ids = self._sorted_tables
        offset, num_oov = self._num_mask_ids, self.num_oov_indices
        if isinstance(tokens.array, jax.core.Tracer):
            return _look_up_ids(tokens, constant(keys), constant(ids), num_oov, offset)
        values = np.asarray(tokens.array)
        result = _search_ids(np, values, keys, ids, num_oov, offset)
        if not num_oov and (result == _UNKNOWN_ID).any():
            raise InvalidArgumentError(format_oov_error(values[result == _UNKNOWN_ID].tolist()))
        return Tensor(result)

    def _invert_ids(self, inputs: TensorLike) -> Tensor:
        tokens = np.array(self.get_vocabulary(), self.vocabulary_dtype)
        ids = math.cast(convert_to_tensor(inputs), "int64")
        is_known = math.logical_and(ids >= 0, ids < len(tokens))
        rows = array.where(is_known, ids, array.zeros_like(ids))
        return array.where(is_known, array.gather(constant(tokens), rows), self.oov_token)

    def get_config(self) -> Config:
        """Return the configuration."""
        config = super().get_config()
        for name in ("mask_token", "oov_token"):
            config[name] = None if config[name] is None else int(config[name])
        if config["vocabulary"] is not None and not isinstance(config["vocabulary"], str):
            config["vocabulary"] = [int(v) for v in config["vocabulary"]]
        return config

    def _own_config(self) -> Config:
        return {"vocabulary_dtype": self.vocabulary_dtype}


_UNKNOWN_ID = -2


@op(same=(), name="lookup")
def _look_up_ids(
    tokens: TensorLike, keys: TensorLike, ids: TensorLike, num_oov: int, offset: int
) -> Tensor:
    """Look up the ids of integers in a program."""
    return _search_ids(jnp, tokens, keys, ids, num_oov, offset)


def _search_ids(
    xp: ModuleType, tokens: Array, keys: Array, ids: Array, num_oov: int, offset: int
) -> Any:
    """Look up the ids of integers; unknown ones have `_UNKNOWN_ID` if there are no ids for them."""
    search = search_left if xp is jnp else np.searchsorted
    rows = xp.minimum(search(keys, tokens), len(keys) - 1)
    oov_ids = tokens % num_oov + offset if num_oov else xp.full_like(tokens, _UNKNOWN_ID)
    return xp.where(xp.take(keys, rows) == tokens, xp.take(ids, rows), oov_ids)
