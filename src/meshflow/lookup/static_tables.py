"""Hash tables that are filled once, by an initializer."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.symbolic_calls import record_in_graph
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import FailedPreconditionError
from meshflow.core.runtime.tracebacks import hide_frames_of_methods
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, int64, string
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.lookup.table import Table, apply_to_values
from meshflow.ops import array
from meshflow.ops import math as _math
from meshflow.ops.array.ordering import search_left
from meshflow.ops.hashing import to_hash_bucket_fast
from meshflow.ops.strings import as_string


class TableInitializer(Protocol):
    """Source of the keys and values of a table."""

    @property
    def key_dtype(self) -> DType:
        """Dtype of the keys."""

    @property
    def value_dtype(self) -> DType:
        """Dtype of the values."""

    def load_pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return vectors of the keys and values."""


@hide_frames_of_methods
class _StaticTable(Table):
    """Base class of tables whose content does not change."""

    @record_in_graph
    def lookup(self, keys: TensorLike, name: str | None = None) -> Any:
        """Look up the values of keys.

        Args:
          keys: Tensor or `SparseTensor` of the key dtype.
          name: Ignored.

        Returns:
          Values in the shape of `keys`; a `SparseTensor` if `keys` is one.

        Raises:
          TypeError: If the keys have another dtype.
        """
        if context.host_recorder is not None and context.host_recorder.should_record(
            (self, keys), {}
        ):
            return context.host_recorder.look_up(self, keys)
        result = apply_to_values(self, keys)
        return self._look_up(keys) if result is NotImplemented else result

    def _look_up(self, keys: TensorLike) -> Tensor:
        raise NotImplementedError


@hide_frames_of_methods
class StaticHashTable(_StaticTable):
    """An immutable hash table.

    Numbers can be looked up in compiled functions. Strings exist only on the host, so tables of
    strings
    work in eager code and in functions of datasets.

    Args:
      initializer: `KeyValueTensorInitializer` or `TextFileInitializer`.
      default_value: Value of missing keys.
      name: Name of the table.
      experimental_is_anonymous: Ignored; tables are never shared by name.

    Raises:
      FailedPreconditionError: If a key has two values.

    Example:
      >>> table = tf.lookup.StaticHashTable(
      ...     tf.lookup.KeyValueTensorInitializer(["a", "b"], [0, 1]), default_value=-1)
      >>> table.lookup(tf.constant(["b", "z"])).numpy()
      array([ 1, -1], dtype=int32)
    """

    def __init__(
        self,
        initializer: Any,
        default_value: TensorLike,
        name: str | None = None,
        experimental_is_anonymous: bool = False,
    ) -> None:
        super().__init__(initializer.key_dtype, initializer.value_dtype, name)
        self._initializer = initializer
        self.default = convert_to_tensor(default_value, self._value_dtype)
        keys, values = initializer.load_pairs()
        self._indices: dict[Hashable, int] = {}
        for index, key in enumerate(keys.tolist()):
            first = self._indices.setdefault(key, index)
            if first != index and values[first] != values[index]:
                raise FailedPreconditionError(
                    f"HashTable has different value for same key. Key {key!r} has {values[first]!r} "
                    f"and trying to add value {values[index]!r}"
                )
        rows = list(self._indices.values())
        self._content = keys[rows], values[rows]
        self._indices = {key: row for row, key in enumerate(self._indices)}
        # The index of a missing key is -1, and thus that of the default value.
        self._values_and_default = np.append(
            values[rows], np.asarray(self.default.array).reshape(1)
        )

    @property
    def default_value(self) -> Tensor:
        """Value of missing keys."""
        return self.default

    @record_in_graph
    def size(self, name: str | None = None) -> Tensor:
        """Return the number of keys, as an int64 scalar.

        Args:
          name: Ignored.
        """
        return convert_to_tensor(np.asarray(len(self._indices), np.int64))

    def export(self, name: str | None = None) -> tuple[Tensor, Tensor]:
        """Return tensors of all keys and all values.

        Args:
          name: Ignored.
        """
        keys, values = self._content
        return convert_to_tensor(keys), convert_to_tensor(values)

    def _look_up(self, keys: TensorLike) -> Tensor:
        tensor = self._convert_keys(keys)
        if isinstance(tensor.array, jax.core.Tracer) and tensor.dtype is not string:
            return self._look_up_traced(tensor)
        key_array = np.asarray(tensor.require_value("keys of a table (XLA has no strings)"))
        keys_list = key_array.reshape(-1).tolist()
        found = map(self._indices.get, keys_list, itertools.repeat(-1))
        indices = np.fromiter(found, np.intp, len(keys_list))
        return convert_to_tensor(self._values_and_default[indices].reshape(key_array.shape))

    def _look_up_traced(self, tensor: Tensor) -> Tensor:
        """Look up keys in a compiled function by binary search."""
        keys, values = self._content
        if not len(keys):
            return array.broadcast_to(self.default, tensor.shape)
        order = np.argsort(keys, kind="stable")
        keys, values = keys[order], values[order]
        rows = _find_rows(keys, tensor)
        return array.gather(np.append(values, np.asarray(self.default.array).reshape(1)), rows)


@hide_frames_of_methods
class StaticVocabularyTable(_StaticTable):
    """A table of int64 values that hashes missing keys to additional values.

    The keys of the table have their own values, starting with 0; other keys get one of the
    `num_oov_buckets` integers that follow. A lookup needs the values of its keys, because their text is hashed.

    Args:
      initializer: `KeyValueTensorInitializer` or `TextFileInitializer` with int64 values; None to
        hash all keys.
      num_oov_buckets: Number of values for missing keys.
      lookup_key_dtype: Dtype of the keys; default that of the initializer.
      name: Name of the table.
      experimental_is_anonymous: Ignored; tables are never shared by name.

    Raises:
      ValueError: If `num_oov_buckets` is not positive.
      TypeError: If the values are not int64, or the keys are neither integers nor strings.

    Example:
      >>> words = tf.lookup.KeyValueTensorInitializer(["lake", "palmer"], tf.constant([0, 1], tf.int64))
      >>> table = tf.lookup.StaticVocabularyTable(words, num_oov_buckets=1)
      >>> table.lookup(tf.constant(["palmer", "king"])).numpy()
      array([1, 2])
    """

    def __init__(
        self,
        initializer: TableInitializer | None,
        num_oov_buckets: int,
        lookup_key_dtype: DType | None = None,
        name: str | None = None,
        experimental_is_anonymous: bool = False,
    ) -> None:
        if num_oov_buckets <= 0:
            raise ValueError("`num_oov_buckets` must be > 0; use StaticHashTable.")
        self.num_oov_buckets = num_oov_buckets
        self.static_table = None
        if initializer is not None:
            if initializer.value_dtype is not int64:
                raise TypeError(
                    f"Invalid `value_dtype`, expected {int64!s} but got {initializer.value_dtype!s}."
                )
            self.static_table = StaticHashTable(initializer, -1)
        table_dtype = string if self.static_table is None else self.static_table.key_dtype
        dtype = table_dtype if lookup_key_dtype is None else lookup_key_dtype
        if not (dtype is string or dtype.is_integer):
            raise TypeError(f"Keys must be integers or strings, got {dtype!s}.")
        if dtype.is_integer != table_dtype.is_integer:
            raise TypeError(f"Invalid `key_dtype`, expected {dtype!s} but got {table_dtype!s}.")
        super().__init__(dtype, int64, name)

    @record_in_graph
    def size(self, name: str | None = None) -> Tensor:
        """Return the number of values, including those for missing keys, as an int64 scalar.

        Args:
          name: Ignored.
        """
        return convert_to_tensor(np.asarray(self.count_keys() + self.num_oov_buckets, np.int64))

    def count_keys(self) -> int:
        """Return the number of known keys, without the buckets for missing ones."""
        return 0 if self.static_table is None else len(self.static_table._indices)

    def _look_up(self, keys: TensorLike) -> Tensor:
        tensor = self._convert_keys(keys)
        if context.trace is None and self.static_table is not None:
            return self._look_up_known(tensor)
        text = tensor if tensor.dtype is string else as_string(tensor)
        # These are ops instead of NumPy functions, because in a trace the hashes of known strings
        # are constants without a value.
        hashed = to_hash_bucket_fast(text, self.num_oov_buckets) + self.count_keys()
        if self.static_table is None:
            return hashed
        dtype = self.static_table.key_dtype
        values = self.static_table.lookup(
            tensor if tensor.dtype is dtype else _math.cast(tensor, dtype)
        )
        return array.where(_math.equal(values, -1), hashed, values)

    def _look_up_known(self, keys: Tensor) -> Tensor:
        """Look up keys outside of traces; only the missing ones are hashed."""
        assert self.static_table is not None
        dtype = self.static_table.key_dtype
        known = keys if keys.dtype is dtype else _math.cast(keys, dtype)
        values = np.array(self.static_table.lookup(known).numpy())
        missing = values == -1
        if missing.any():
            texts = Tensor(np.asarray(keys.array)[missing])
            texts = texts if keys.dtype is string else as_string(texts)
            hashed = to_hash_bucket_fast(texts, self.num_oov_buckets).numpy()
            values[missing] = hashed + self.count_keys()
        return convert_to_tensor(values)


@op
def _find_rows(keys: TensorLike, queries: TensorLike) -> jax.Array:
    """Return the rows of queries among sorted keys, and the number of keys for missing ones."""
    count = keys.shape[0]
    rows = jnp.minimum(search_left(keys, queries), count - 1)
    return jnp.where(jnp.asarray(keys)[rows] == queries, rows, count).astype(np.int32)
