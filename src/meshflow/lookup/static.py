"""Tables that are filled once."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import FailedPreconditionError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import int64, string
from meshflow.core.values.tensor import Tensor
from meshflow.lookup.table import Table, of_elements
from meshflow.ops import array
from meshflow.ops import math as _math
from meshflow.ops.hashing import to_hash_bucket_fast
from meshflow.ops.strings import as_string

__all__ = ["StaticHashTable", "StaticVocabularyTable"]


class StaticHashTable(Table):
    """A table that does not change.

    Numbers can be looked up in compiled functions; strings exist on the host only, so that their
    tables serve eager code and the functions of datasets.

    Args:
      initializer: `KeyValueTensorInitializer` or `TextFileInitializer`.
      default_value: the value of keys that are not in the table.
      name: the table's name.
      experimental_is_anonymous: accepted; tables are never shared by name.

    Raises:
      FailedPreconditionError: when a key has two values.

    Example:
      >>> import meshflow as tf
      >>> table = tf.lookup.StaticHashTable(
      ...     tf.lookup.KeyValueTensorInitializer(["a", "b"], [0, 1]), default_value=-1)
      >>> table.lookup(tf.constant(["b", "z"])).numpy()
      array([ 1, -1], dtype=int32)
    """

    def __init__(
        self,
        initializer: Any,
        default_value: Any,
        name: str | None = None,
        experimental_is_anonymous: bool = False,
    ) -> None:
        super().__init__(initializer.key_dtype, initializer.value_dtype, name)
        self._initializer = initializer
        self._default = convert_to_tensor(default_value, self._value_dtype)
        keys, values = initializer.pairs()
        self._places: dict[Any, int] = {}
        for place, key in enumerate(keys.tolist()):
            first = self._places.setdefault(key, place)
            if first != place and values[first] != values[place]:
                raise FailedPreconditionError(
                    f"HashTable has different value for same key. Key {key!r} has {values[first]!r} "
                    f"and trying to add value {values[place]!r}"
                )
        rows = list(self._places.values())
        self._content = keys[rows], values[rows]
        self._places = {key: row for row, key in enumerate(self._places)}
        # A place that is not found, -1, is the last one.
        self._rows = np.append(values[rows], np.asarray(self._default._value).reshape(1))

    @property
    def default_value(self) -> Tensor:
        """The value of keys that are not in the table."""
        return self._default

    def size(self, name: str | None = None) -> Tensor:
        """How many keys there are, as an int64 scalar.

        Args:
          name: ignored.
        """
        return convert_to_tensor(np.asarray(len(self._places), np.int64))

    def export(self, name: str | None = None) -> tuple[Tensor, Tensor]:
        """Tensors of all keys and all values.

        Args:
          name: ignored.
        """
        keys, values = self._content
        return convert_to_tensor(keys), convert_to_tensor(values)

    def lookup(self, keys: Any, name: str | None = None) -> Any:
        """Values of keys.

        Args:
          keys: tensor or `SparseTensor` of the keys' dtype.
          name: ignored.

        Returns:
          As `keys`, with values; the default value where the table has no such key.

        Raises:
          TypeError: for keys of another dtype.
        """
        if context.recording is not None and context.recording.takes((self, keys), {}):
            return context.recording.looked_up(self, keys)
        return of_elements(self._look, keys)

    def _look(self, keys: Any) -> Tensor:
        tensor = self._keys(keys)
        if isinstance(tensor._value, jax.core.Tracer) and tensor.dtype is not string:
            return self._look_compiled(tensor)
        known = np.asarray(tensor._concrete("keys of a table (XLA has no strings)"))
        places = [self._places.get(key, -1) for key in known.reshape(-1).tolist()]
        return convert_to_tensor(self._rows[places].reshape(known.shape))

    def _look_compiled(self, tensor: Tensor) -> Tensor:
        """Keys that are known at run time, which are found by bisection."""
        keys, values = self._content
        if not len(keys):
            return array.broadcast_to(self._default, tensor.shape)
        order = np.argsort(keys, kind="stable")
        keys, values = keys[order], values[order]
        flat = array.reshape(tensor, [-1])
        places = _math.minimum(array.searchsorted(keys, flat), len(keys) - 1)
        found = _math.equal(array.gather(convert_to_tensor(keys), places), flat)
        result = array.where(found, array.gather(convert_to_tensor(values), places), self._default)
        return array.reshape(result, tensor.shape)


class StaticVocabularyTable(Table):
    """A table of numbers that also gives unknown keys numbers, by their hash.

    Keys of the table have their own values, from 0 on; others get one of `num_oov_buckets` numbers
    that follow.

    Args:
      initializer: `KeyValueTensorInitializer` or `TextFileInitializer` with int64 values; None for
        a table that hashes only.
      num_oov_buckets: how many numbers there are for unknown keys.
      lookup_key_dtype: the keys' dtype; default the initializer's.
      name: the table's name.
      experimental_is_anonymous: accepted; tables are never shared by name.

    Raises:
      ValueError: when `num_oov_buckets` is not positive.
      TypeError: for values that are not int64, or keys that are neither integers nor strings.

    Example:
      >>> import meshflow as tf
      >>> words = tf.lookup.KeyValueTensorInitializer(["lake", "palmer"], tf.constant([0, 1], tf.int64))
      >>> table = tf.lookup.StaticVocabularyTable(words, num_oov_buckets=1)
      >>> table.lookup(tf.constant(["palmer", "king"])).numpy()
      array([1, 2])
    """

    def __init__(
        self,
        initializer: Any,
        num_oov_buckets: int,
        lookup_key_dtype: Any = None,
        name: str | None = None,
        experimental_is_anonymous: bool = False,
    ) -> None:
        if num_oov_buckets <= 0:
            raise ValueError("`num_oov_buckets` must be > 0; use StaticHashTable.")
        self._buckets = num_oov_buckets
        self._table = None
        if initializer is not None:
            if initializer.value_dtype is not int64:
                raise TypeError(
                    f"Invalid `value_dtype`, expected {int64!s} but got {initializer.value_dtype!s}."
                )
            self._table = StaticHashTable(initializer, -1)
        own = string if self._table is None else self._table.key_dtype
        dtype = own if lookup_key_dtype is None else lookup_key_dtype
        if not (dtype is string or dtype.is_integer):
            raise TypeError(f"Keys must be integers or strings, got {dtype!s}.")
        if dtype.is_integer != own.is_integer:
            raise TypeError(f"Invalid `key_dtype`, expected {dtype!s} but got {own!s}.")
        super().__init__(dtype, int64, name)

    def size(self, name: str | None = None) -> Tensor:
        """How many numbers there are, those for unknown keys included, as an int64 scalar.

        Args:
          name: ignored.
        """
        return convert_to_tensor(np.asarray(self._known() + self._buckets, np.int64))

    def _known(self) -> int:
        return 0 if self._table is None else len(self._table._places)

    def lookup(self, keys: Any, name: str | None = None) -> Any:
        """Numbers of keys.

        Args:
          keys: tensor or `SparseTensor` of the keys' dtype; they must be known, as their text is
            hashed.
          name: ignored.

        Returns:
          As `keys`, with int64 values.

        Raises:
          TypeError: for keys of another dtype.
        """
        if context.recording is not None and context.recording.takes((self, keys), {}):
            return context.recording.looked_up(self, keys)
        return of_elements(self._look, keys)

    def _look(self, keys: Any) -> Tensor:
        tensor = self._keys(keys)
        text = tensor if tensor.dtype is string else as_string(tensor)
        # Ops, not NumPy: in a traced function the hashes of known text are constants without a value.
        hashed = to_hash_bucket_fast(text, self._buckets) + self._known()
        if self._table is None:
            return hashed
        own = self._table.key_dtype
        same = tensor if tensor.dtype is own else _math.cast(tensor, own)
        values = self._table.lookup(same)
        return array.where(_math.equal(values, -1), hashed, values)
