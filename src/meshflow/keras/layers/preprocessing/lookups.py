"""`StringLookup` and `IntegerLookup`: numbers for the tokens of a vocabulary."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.errors import InvalidArgumentError, UnimplementedError
from meshflow.core.values.convert import constant, convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.layers.preprocessing.adapting import host_values
from meshflow.keras.layers.preprocessing.lookup import IndexLookup
from meshflow.ops import array, hashing, math
from meshflow.ops.deferred_host_values import Unrecordable, saving
from meshflow.saved_model.host_calls import stepped

__all__ = ["IntegerLookup", "StringLookup"]


class StringLookup(IndexLookup):
    """Numbers for strings.

    Args:
      max_tokens: the largest number of numbers; default no limit.
      num_oov_indices: how many numbers there are for unknown strings, which a hash is taken of when
        there are several.
      mask_token: a string that has the number 0, and that vectors leave out; default none.
      oov_token: what stands for unknown strings.
      vocabulary: the strings, or the path of a text file with one a line; default `adapt` learns them.
      idf_weights: for 'tf_idf', the weight of each string.
      encoding: how strings are encoded.
      invert: whether to give strings for numbers instead.
      output_mode: 'int', 'one_hot', 'multi_hot', 'count' or 'tf_idf' (counts times weights).
      sparse: not available.
      pad_to_max_tokens: whether vectors have `max_tokens` elements also when there are fewer strings.
      **kwargs: arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The same with 'int'; otherwise (batch, vocabulary).

    Raises:
      ValueError: for arguments that do not go together, or a bad vocabulary.
      InvalidArgumentError: when called with an unknown string and `num_oov_indices` is 0.
      FailedPreconditionError: when called before there is a vocabulary.

    Example:
      >>> import meshflow as tf
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
        vocabulary: Any = None,
        idf_weights: Any = None,
        encoding: str = "utf-8",
        invert: bool = False,
        output_mode: str = "int",
        sparse: bool = False,
        pad_to_max_tokens: bool = False,
        **kwargs: Any,
    ) -> None:
        self.encoding = encoding
        super().__init__(
            max_tokens,
            num_oov_indices,
            mask_token,
            oov_token,
            vocabulary,
            idf_weights,
            invert,
            output_mode,
            sparse,
            pad_to_max_tokens,
            **kwargs,
        )

    def token_of(self, value: Any) -> str:
        """A string."""
        return value.decode(self.encoding) if isinstance(value, bytes) else str(value)

    def key_of(self, token: str) -> bytes:
        """The string's bytes."""
        return token.encode(self.encoding)

    def tokens_of(self, inputs: Any) -> np.ndarray:
        """An array of bytes.

        Raises:
          UnimplementedError: for numbers.
        """
        values = host_values(inputs, "strings to look up (XLA has no strings)")
        if values.dtype != object:
            raise UnimplementedError(f"Cast {values.dtype} to string is not supported [Op:Cast]")
        return values

    def unknown(self, tokens: list[bytes]) -> list[int]:
        """FarmHash's numbers."""
        return [hashing.farm_fingerprint(t) % self.num_oov_indices for t in tokens]

    def _inverted(self, inputs: Any) -> Tensor:
        words = [t.encode(self.encoding) for t in self.get_vocabulary()]
        unknown = str(self.oov_token).encode(self.encoding)
        if saving(inputs) is not None:
            numbers = math.cast(inputs, "int64")
            known = math.logical_and(numbers >= 0, numbers < len(words))
            places = array.where(known, numbers, len(words))
            return array.gather(constant([*words, unknown]), places)
        given = host_values(inputs, "numbers of strings (XLA has no strings)")
        found = np.empty(given.shape, object)
        found.reshape(-1)[:] = [
            words[n] if 0 <= n < len(words) else unknown for n in given.reshape(-1).tolist()
        ]
        return Tensor(found)

    def exported_steps(self, rank: int) -> list[list[Any]]:
        """What it does, as steps that files can hold (`saved_model/text.py`).

        Args:
          rank: ignored.

        Raises:
          NotImplementedError: where they cannot hold it.
        """
        if self.invert or self.output_mode != "int" or self.num_oov_indices != 1:
            raise NotImplementedError(
                f"layer {self.name} (StringLookup) with vectors as output or several numbers for unknown strings"
            )
        return [self.look_step()]

    def look_step(self, unknown: int | None = None) -> list[Any]:
        """The step that gives each string its number.

        Args:
          unknown: that of unknown strings; default the first of them.
        """
        words = [key.decode("latin-1") for key in self._numbers]
        other = self._masks if unknown is None else unknown
        return ["look", words, list(self._numbers.values()), other]

    def _find(self, inputs: Any) -> Tensor:
        if saving(inputs) is None:
            return super()._find(inputs)
        if self.num_oov_indices == 1:
            return stepped(inputs, [self.look_step()])
        if not self.num_oov_indices:
            raise Unrecordable(f"layer {self.name} with num_oov_indices=0, which refuses strings")
        known = stepped(inputs, [self.look_step(_UNKNOWN)])
        others = hashing.to_hash_bucket_fast(inputs, self.num_oov_indices) + self._masks
        return array.where(math.equal(known, _UNKNOWN), others, known)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "encoding": self.encoding}


class IntegerLookup(IndexLookup):
    """Numbers for integers; arguments and errors as for `StringLookup`.

    Args:
      max_tokens: the largest number of numbers; default no limit.
      num_oov_indices: how many numbers there are for unknown integers; the remainder chooses among several.
      mask_token: an integer that has the number 0, and that vectors leave out; default none.
      oov_token: what stands for unknown integers.
      vocabulary: the integers; default `adapt` learns them.
      vocabulary_dtype: 'int64' or 'int32'.
      idf_weights: for 'tf_idf', the weight of each integer.
      invert: whether to give integers for numbers instead.
      output_mode: 'int', 'one_hot', 'multi_hot', 'count' or 'tf_idf'.
      sparse: not available.
      pad_to_max_tokens: whether vectors have `max_tokens` elements also when there are fewer integers.
      **kwargs: arguments of `Layer`; `max_values`, `mask_value` and `oov_value` are old names.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The same with 'int'; otherwise (batch, vocabulary).

    Example:
      >>> import meshflow as tf
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
        vocabulary: Any = None,
        vocabulary_dtype: str = "int64",
        idf_weights: Any = None,
        invert: bool = False,
        output_mode: str = "int",
        sparse: bool = False,
        pad_to_max_tokens: bool = False,
        **kwargs: Any,
    ) -> None:
        max_tokens = kwargs.pop("max_values", max_tokens)
        mask_token = kwargs.pop("mask_value", mask_token)
        oov_token = kwargs.pop("oov_value", oov_token)
        if vocabulary_dtype not in ("int32", "int64"):
            raise ValueError(
                f"vocabulary_dtype must be 'int64' or 'int32', got {vocabulary_dtype!r}."
            )
        self.vocabulary_dtype = self.token_dtype = vocabulary_dtype
        super().__init__(
            max_tokens,
            num_oov_indices,
            mask_token,
            oov_token,
            vocabulary,
            idf_weights,
            invert,
            output_mode,
            sparse,
            pad_to_max_tokens,
            **kwargs,
        )

    def token_of(self, value: Any) -> Any:
        """An integer."""
        return np.dtype(self.vocabulary_dtype).type(int(value))

    def key_of(self, token: Any) -> int:
        """A Python integer."""
        return int(token)

    def tokens_of(self, inputs: Any) -> np.ndarray:
        """An array of integers."""
        return host_values(inputs, "integers to count").astype(np.int64)

    def _changed(self) -> None:
        # Sorted, for programs to find their place.
        keys = np.array(sorted(self._numbers), np.int64)
        self._sorted = keys, np.array([self._numbers[k] for k in keys.tolist()], np.int64)

    def _find(self, inputs: Any) -> Tensor:
        tokens = math.cast(inputs, "int64")
        keys, numbers = self._sorted
        shift, several = self._masks, self.num_oov_indices
        if isinstance(tokens._value, jax.core.Tracer):
            return _looked_up(tokens, constant(keys), constant(numbers), several, shift)
        found = _search(np, np.asarray(tokens._value), keys, numbers, several, shift)
        if not several and (found == _UNKNOWN).any():
            missing = np.asarray(tokens._value)[found == _UNKNOWN]
            raise InvalidArgumentError(
                f"When `num_oov_indices=0` all inputs should be in vocabulary, found OOV values "
                f"{missing.tolist()[:5]}, consider setting `num_oov_indices=1`."
            )
        return Tensor(found)

    def _inverted(self, inputs: Any) -> Tensor:
        words = np.array(self.get_vocabulary(), self.vocabulary_dtype)
        numbers = math.cast(convert_to_tensor(inputs), "int64")
        known = math.logical_and(numbers >= 0, numbers < len(words))
        places = array.where(known, numbers, array.zeros_like(numbers))
        return array.where(known, array.gather(constant(words), places), self.oov_token)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        config = super().get_config()
        for name in ("mask_token", "oov_token"):
            config[name] = None if config[name] is None else int(config[name])
        if config["vocabulary"] is not None and not isinstance(config["vocabulary"], str):
            config["vocabulary"] = [int(v) for v in config["vocabulary"]]
        return config

    def _own_config(self) -> dict[str, Any]:
        return {"vocabulary_dtype": self.vocabulary_dtype}


_UNKNOWN = -2


@op(same=(), name="lookup")
def _looked_up(
    tokens: TensorLike, keys: TensorLike, numbers: TensorLike, several: int, shift: int
) -> Tensor:
    """Numbers of integers, in a program."""
    return _search(jnp, tokens, keys, numbers, several, shift)


def _search(xp: Any, tokens: Any, keys: Any, numbers: Any, several: int, shift: int) -> Any:
    """Numbers of integers; `_UNKNOWN` for unknown ones when there is no number for them."""
    places = xp.minimum(xp.searchsorted(keys, tokens), len(keys) - 1)
    unknown = tokens % several + shift if several else xp.full_like(tokens, _UNKNOWN)
    return xp.where(xp.take(keys, places) == tokens, xp.take(numbers, places), unknown)
