"""Tables that are filled while a program runs. Their content is the host's."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from meshflow.checkpoint.graph import STATE
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import as_dtype, int64, string
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.lookup.table import Table, filled, of_elements
from meshflow.ops.python_function import numpy_function

__all__ = ["DenseHashTable", "MutableHashTable"]


class MutableHashTable(Table):
    """A table to which keys can be added, and from which they can be taken.

    Numbers can be looked up and inserted in compiled functions, which call back to the host. The
    content is saved in checkpoints.

    Args:
      key_dtype: the keys' dtype.
      value_dtype: the values' dtype.
      default_value: the value of keys that are not in the table; its shape is that of every value.
      name: the table's name.
      checkpoint: whether a `tf.train.Checkpoint` holds the content.
      experimental_is_anonymous: accepted; tables are never shared by name.

    Example:
      >>> import meshflow as tf
      >>> table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, default_value=-1)
      >>> table.insert(tf.constant(["a", "b"]), tf.constant([1, 2], tf.int64))
      >>> table.lookup(tf.constant(["b", "z"])).numpy()
      array([ 2, -1])
      >>> table.size().numpy()
      np.int64(2)
    """

    def __init__(
        self,
        key_dtype: Any,
        value_dtype: Any,
        default_value: Any,
        name: str | None = "MutableHashTable",
        checkpoint: bool = True,
        experimental_is_anonymous: bool = False,
    ) -> None:
        super().__init__(as_dtype(key_dtype), as_dtype(value_dtype), name)
        self._default = convert_to_tensor(default_value, self._value_dtype)
        self._value_shape = self._default.shape.as_list()
        self._checkpoint = checkpoint
        self._content: dict[Any, Any] = {}

    def size(self, name: str | None = None) -> Tensor:
        """How many keys there are, as an int64 scalar.

        Args:
          name: ignored.
        """
        if self._is_recorded():
            return context.recording.of_table("size", self, self)
        return numpy_function(
            lambda: np.asarray(len(self._content), np.int64), [], TensorSpec([], int64)
        )

    def lookup(self, keys: Any, dynamic_default_values: Any = None, name: str | None = None) -> Any:
        """Values of keys.

        Args:
          keys: tensor or `SparseTensor` of the keys' dtype.
          dynamic_default_values: values for missing keys, one for each key or one for all; default
            the table's default value.
          name: ignored.

        Returns:
          As `keys`, with a value in place of each.

        Raises:
          TypeError: for keys of another dtype.
        """
        if self._is_recorded(keys):
            more = {"default": dynamic_default_values}
            return context.recording.of_table("lookup", keys, self, **more)
        return of_elements(self._look, keys, dynamic_default_values)

    def _look(self, keys: Any, defaults: Any) -> Tensor:
        tensor = self._keys(keys)
        default = self._default if defaults is None else self._values(defaults)
        shape = [*tensor.shape.as_list(), *self._value_shape]

        def find(keys: np.ndarray, default: np.ndarray) -> np.ndarray:
            wanted = np.asarray(keys).reshape(-1).tolist()
            self._check(wanted)
            many = np.ndim(default) > len(self._value_shape)
            rows = np.reshape(default, [-1, *self._value_shape]) if many else None
            content = self._content
            values = [
                content[key] if key in content else default if rows is None else rows[i]
                for i, key in enumerate(wanted)
            ]
            return filled(values, shape, self._value_dtype.dtype)

        return self._called(find, [tensor, default], TensorSpec(shape, self._value_dtype))

    def insert(self, keys: Any, values: Any, name: str | None = None) -> None:
        """Sets the values of keys, new ones and known ones.

        Args:
          keys: tensor of the keys' dtype.
          values: a value for each.
          name: ignored.

        Raises:
          TypeError: for keys of another dtype.
          InvalidArgumentError: when the values' shape is not one value for each key.
        """
        if self._is_recorded(keys, values):
            context.recording.of_table("insert", keys, self, values=values)
            return
        tensor, given = self._keys(keys), self._values(values)
        expected = [*tensor.shape.as_list(), *self._value_shape]
        if given.shape.as_list() != expected:
            raise InvalidArgumentError(
                f"Expected shape {expected} for value, got {given.shape.as_list()}"
            )

        def put(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
            wanted = np.asarray(keys).reshape(-1).tolist()
            self._check(wanted)
            rows = np.array(values).reshape([len(wanted), *self._value_shape])
            self._content.update(zip(wanted, rows, strict=True))
            return np.asarray(0, np.int64)

        self._called(put, [tensor, given], TensorSpec([], int64))

    def remove(self, keys: Any, name: str | None = None) -> None:
        """Takes keys out; those that are not there are ignored.

        Args:
          keys: tensor of the keys' dtype.
          name: ignored.

        Raises:
          TypeError: for keys of another dtype.
        """
        if self._is_recorded(keys):
            context.recording.of_table("remove", keys, self)
            return

        def take(keys: np.ndarray) -> np.ndarray:
            wanted = np.asarray(keys).reshape(-1).tolist()
            self._check(wanted)
            for key in wanted:
                self._content.pop(key, None)
            return np.asarray(0, np.int64)

        self._called(take, [self._keys(keys)], TensorSpec([], int64))

    def export(self, name: str | None = None) -> tuple[Tensor, Tensor]:
        """Tensors of all keys and all values, in the order in which they were inserted.

        Args:
          name: ignored.
        """
        count = len(self._content)
        keys = filled(list(self._content), [count], self._key_dtype.dtype)
        values = filled(
            list(self._content.values()), [count, *self._value_shape], self._value_dtype.dtype
        )
        return convert_to_tensor(keys), convert_to_tensor(values)

    def _is_recorded(self, *values: Any) -> bool:
        """Whether a function that is saved does something with it."""
        return context.recording is not None and context.recording.takes((self, *values), {})

    def _values(self, values: Any) -> Tensor:
        return convert_to_tensor(values, self._value_dtype)

    def _check(self, keys: list[Any]) -> None:
        """Refuses keys that the table cannot have."""

    def _called(self, function: Any, tensors: list[Tensor], spec: TensorSpec) -> Any:
        """The result of a function of host arrays."""
        if any(t.dtype is string for t in tensors):
            # Strings are known on the host or not at all.
            known = [t._concrete("a string of a table (XLA has no strings)") for t in tensors]
            function, tensors = functools.partial(function, *known), []
        if spec.dtype is string and not tensors:
            return convert_to_tensor(function())
        return numpy_function(function, tensors, spec)

    # What TensorFlow calls a table's content; older checkpoints have a state.
    _checkpoint_attributes = ("table", STATE)

    def _checkpoint_children(self) -> dict[str, Any]:
        return {}

    def _checkpoint_values(self) -> dict[str, np.ndarray]:
        if not self._checkpoint:
            return {}
        keys, values = self.export()
        return {"-keys": keys.numpy(), "-values": values.numpy()}

    def _restore_checkpoint_values(self, attribute: str, values: dict[str, np.ndarray]) -> None:
        if not self._checkpoint:
            return
        if attribute == STATE:
            pairs = self._of_json(values[""])
        else:
            kept = values["-values"].reshape([-1, *self._value_shape])
            pairs = zip(values["-keys"].reshape(-1).tolist(), kept, strict=True)
        self._content = {
            key: np.asarray(value, self._value_dtype.dtype)
            for key, value in pairs
            if not self._is_unused(key)
        }

    def _is_unused(self, key: Any) -> bool:
        """Whether TensorFlow's files hold a key that stands for none."""
        return False

    def _of_json(self, value: np.ndarray) -> Iterator[tuple[Any, Any]]:
        """The pairs in an older checkpoint."""
        for key, v in json.loads(value.tobytes()):
            yield _unplain(key, self._key_dtype is string), _unplain(v, self._value_dtype is string)


def _unplain(value: Any, is_text: bool) -> Any:
    if isinstance(value, list):
        return [_unplain(v, is_text) for v in value]
    return value.encode("latin-1") if is_text else value


class DenseHashTable(MutableHashTable):
    """A table that changes, with two keys that it cannot have.

    Args:
      key_dtype: the keys' dtype.
      value_dtype: the values' dtype.
      default_value: the value of keys that are not in the table; its shape is that of every value.
      empty_key: a key that is never used.
      deleted_key: another one.
      initial_num_buckets: accepted; the table grows by itself.
      name: the table's name.
      checkpoint: whether a `tf.train.Checkpoint` holds the content.
      experimental_is_anonymous: accepted; tables are never shared by name.

    Raises:
      InvalidArgumentError: when both keys are the same.

    Example:
      >>> import meshflow as tf
      >>> table = tf.lookup.experimental.DenseHashTable(
      ...     tf.int64, tf.float32, default_value=0.0, empty_key=0, deleted_key=-1)
      >>> table.insert(tf.constant([5], tf.int64), tf.constant([1.5]))
      >>> table[tf.constant([5, 6], tf.int64)].numpy()
      array([1.5, 0. ], dtype=float32)
    """

    def __init__(
        self,
        key_dtype: Any,
        value_dtype: Any,
        default_value: Any,
        empty_key: Any,
        deleted_key: Any,
        initial_num_buckets: int | None = None,
        name: str | None = "MutableDenseHashTable",
        checkpoint: bool = True,
        experimental_is_anonymous: bool = False,
    ) -> None:
        super().__init__(key_dtype, value_dtype, default_value, name, checkpoint)
        empty, deleted = (
            np.asarray(convert_to_tensor(key, self._key_dtype)._value).reshape(-1).tolist()[0]
            for key in (empty_key, deleted_key)
        )
        if empty == deleted:
            raise InvalidArgumentError("Empty and deleted keys cannot be equal")
        self._reserved = {empty: "empty_key", deleted: "deleted_key"}

    def insert_or_assign(self, keys: Any, values: Any, name: str | None = None) -> None:
        """`insert`.

        Args:
          keys: tensor of the keys' dtype.
          values: a value for each.
          name: ignored.
        """
        self.insert(keys, values)

    def erase(self, keys: Any, name: str | None = None) -> None:
        """`remove`.

        Args:
          keys: tensor of the keys' dtype.
          name: ignored.
        """
        self.remove(keys)

    def _check(self, keys: list[Any]) -> None:
        for key in keys:
            if key in self._reserved:
                raise InvalidArgumentError(
                    f"Using the {self._reserved[key]} as a table key is not allowed: {key!r}"
                )

    def _is_unused(self, key: Any) -> bool:
        return key in self._reserved
