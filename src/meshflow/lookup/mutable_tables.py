"""Mutable hash tables. Their content is held on the host; compiled functions call back to it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from meshflow.checkpoint.object_graph import PYTHON_STATE
from meshflow.core.dispatch.symbolic_calls import record_in_graph
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.runtime.tracebacks import hide_frames_of_methods
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype, int64, string
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.json_documents import parse_json
from meshflow.environment.types import Json
from meshflow.lookup.table import Table, apply_to_values, stack_values
from meshflow.ops.python_function import numpy_function


@hide_frames_of_methods
class MutableHashTable(Table):
    """A hash table to which keys can be added, and from which they can be removed.

    Numbers can be looked up and inserted in compiled functions, which call back to the host. The
    content is saved in checkpoints.

    Args:
      key_dtype: Dtype of the keys.
      value_dtype: Dtype of the values.
      default_value: Value of missing keys; all values have its shape.
      name: Name of the table.
      checkpoint: Whether a `tf.train.Checkpoint` contains the table.
      experimental_is_anonymous: Ignored; tables are never shared by name.

    Example:
      >>> table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, default_value=-1)
      >>> table.insert(tf.constant(["a", "b"]), tf.constant([1, 2], tf.int64))
      >>> table.lookup(tf.constant(["b", "z"])).numpy()
      array([ 2, -1])
      >>> table.size().numpy()
      np.int64(2)
    """

    def __init__(
        self,
        key_dtype: DTypeLike,
        value_dtype: DTypeLike,
        default_value: TensorLike,
        name: str | None = "MutableHashTable",
        checkpoint: bool = True,
        experimental_is_anonymous: bool = False,
    ) -> None:
        super().__init__(as_dtype(key_dtype), as_dtype(value_dtype), name)
        self.default = convert_to_tensor(default_value, self._value_dtype)
        self.value_shape = self.default.shape.as_list()
        self._checkpoint = checkpoint
        self._content: dict[Any, Any] = {}

    @record_in_graph
    def size(self, name: str | None = None) -> Tensor:
        """Return the number of keys, as an int64 scalar.

        Args:
          name: Ignored.
        """
        if self._should_record():
            return context.host_recorder.use_table("size", self, self)
        return numpy_function(
            lambda: np.asarray(len(self._content), np.int64), [], TensorSpec([], int64)
        )

    @record_in_graph
    def lookup(
        self, keys: TensorLike, dynamic_default_values: TensorLike = None, name: str | None = None
    ) -> Any:
        """Look up the values of keys.

        Args:
          keys: Tensor or `SparseTensor` of the key dtype.
          dynamic_default_values: Values of missing keys, one for each key or one for all; default
            `default_value`.
          name: Ignored.

        Returns:
          Values in the shape of `keys`; a `SparseTensor` if `keys` is one.

        Raises:
          TypeError: If the keys have another dtype.
        """
        if self._should_record(keys):
            options = {"default": dynamic_default_values}
            return context.host_recorder.use_table("lookup", keys, self, **options)
        result = apply_to_values(self, keys, dynamic_default_values)
        return self._look_up(keys, dynamic_default_values) if result is NotImplemented else result

    def _look_up(self, keys: TensorLike, defaults: TensorLike | None) -> Tensor:
        tensor = self._convert_keys(keys)
        default = self.default if defaults is None else self._convert_values(defaults)
        shape = [*tensor.shape.as_list(), *self.value_shape]

        def find(keys: np.ndarray, default: np.ndarray) -> np.ndarray:
            key_list = np.asarray(keys).reshape(-1).tolist()
            self._check_keys(key_list)
            defaults: Sequence[np.ndarray] | np.ndarray = [default] * len(key_list)
            if np.ndim(default) > len(self.value_shape):
                defaults = np.reshape(default, [-1, *self.value_shape])
            values = [self._content.get(key, defaults[i]) for i, key in enumerate(key_list)]
            return stack_values(values, shape, self._value_dtype.dtype)

        return self._call_on_host(find, [tensor, default], TensorSpec(shape, self._value_dtype))

    @record_in_graph
    def insert(self, keys: TensorLike, values: TensorLike, name: str | None = None) -> None:
        """Set the values of keys; existing values are replaced.

        Args:
          keys: Tensor of the key dtype.
          values: One value for each key.
          name: Ignored.

        Raises:
          TypeError: If the keys have another dtype.
          InvalidArgumentError: If there is not one value for each key.
        """
        if self._should_record(keys, values):
            context.host_recorder.use_table("insert", keys, self, values=values)
            return
        key_tensor, value_tensor = self._convert_keys(keys), self._convert_values(values)
        expected = [*key_tensor.shape.as_list(), *self.value_shape]
        if value_tensor.shape.as_list() != expected:
            raise InvalidArgumentError(
                f"Expected shape {expected} for value, got {value_tensor.shape.as_list()}"
            )

        def insert(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
            key_list = np.asarray(keys).reshape(-1).tolist()
            self._check_keys(key_list)
            rows = np.array(values).reshape([len(key_list), *self.value_shape])
            self._content.update(zip(key_list, rows, strict=True))
            return np.asarray(0, np.int64)

        self._call_on_host(insert, [key_tensor, value_tensor], TensorSpec([], int64))

    @record_in_graph
    def remove(self, keys: TensorLike, name: str | None = None) -> None:
        """Remove keys; missing keys are ignored.

        Args:
          keys: Tensor of the key dtype.
          name: Ignored.

        Raises:
          TypeError: If the keys have another dtype.
        """
        if self._should_record(keys):
            context.host_recorder.use_table("remove", keys, self)
            return

        def remove(keys: np.ndarray) -> np.ndarray:
            key_list = np.asarray(keys).reshape(-1).tolist()
            self._check_keys(key_list)
            for key in key_list:
                self._content.pop(key, None)
            return np.asarray(0, np.int64)

        self._call_on_host(remove, [self._convert_keys(keys)], TensorSpec([], int64))

    @record_in_graph
    def export(self, name: str | None = None) -> tuple[Tensor, Tensor]:
        """Return tensors of all keys and all values, in the order of insertion.

        Args:
          name: Ignored.
        """
        count = len(self._content)
        keys = stack_values(list(self._content), [count], self._key_dtype.dtype)
        values = stack_values(
            list(self._content.values()), [count, *self.value_shape], self._value_dtype.dtype
        )
        return convert_to_tensor(keys), convert_to_tensor(values)

    def _should_record(self, *values: TensorLike) -> bool:
        """Check whether the operation is recorded for a function that is being saved."""
        return context.host_recorder is not None and context.host_recorder.should_record(
            (self, *values), {}
        )

    def _convert_values(self, values: TensorLike) -> Tensor:
        return convert_to_tensor(values, self._value_dtype)

    def _check_keys(self, keys: list[Any]) -> None:
        """Raise an error for keys that the table cannot contain."""

    def _call_on_host(
        self, function: Callable[..., np.ndarray], tensors: list[Tensor], spec: TensorSpec
    ) -> Tensor:
        """Call a function of host arrays."""
        if any(t.dtype is string for t in tensors):
            # XLA has no strings, so a function of strings is called at once, with known values.
            strings = [t.require_value("a string of a table (XLA has no strings)") for t in tensors]
            function, tensors = functools.partial(function, *strings), []
        if spec.dtype is string and not tensors:
            return convert_to_tensor(function())
        return numpy_function(function, tensors, spec)

    # Names of the content in checkpoints: TensorFlow's, and that of earlier versions of this
    # package.
    _checkpoint_attributes = ("table", PYTHON_STATE)

    def _checkpoint_values(self) -> dict[str, np.ndarray]:
        if not self._checkpoint:
            return {}
        keys, values = self.export()
        return {"-keys": keys.numpy(), "-values": values.numpy()}

    def _restore_checkpoint_values(self, attribute: str, values: dict[str, np.ndarray]) -> None:
        if not self._checkpoint:
            return
        if attribute == PYTHON_STATE:
            pairs = self._parse_state(values[""])
        else:
            rows = values["-values"].reshape([-1, *self.value_shape])
            pairs = zip(values["-keys"].reshape(-1).tolist(), rows, strict=True)
        self._content = {
            key: np.asarray(value, self._value_dtype.dtype)
            for key, value in pairs
            if not self._is_reserved(key)
        }

    def _is_reserved(self, key: Hashable) -> bool:
        """Check whether a key is a reserved key, which TensorFlow's files contain."""
        return False

    def _parse_state(self, value: np.ndarray) -> Iterator[tuple[Any, Any]]:
        """Parse the pairs in a checkpoint of an earlier version."""
        for key, v in parse_json(value.tobytes()):
            yield (
                _decode_json(key, self._key_dtype is string),
                _decode_json(v, self._value_dtype is string),
            )


def _decode_json(value: Json, is_text: bool) -> Json:
    if isinstance(value, list):
        return [_decode_json(v, is_text) for v in value]
    return value.encode("latin-1") if is_text else value


class DenseHashTable(MutableHashTable):
    """A mutable hash table with two reserved keys, which it cannot contain.

    Args:
      key_dtype: Dtype of the keys.
      value_dtype: Dtype of the values.
      default_value: Value of missing keys; all values have its shape.
      empty_key: Reserved key.
      deleted_key: Another reserved key.
      initial_num_buckets: Ignored; the table grows automatically.
      name: Name of the table.
      checkpoint: Whether a `tf.train.Checkpoint` contains the table.
      experimental_is_anonymous: Ignored; tables are never shared by name.

    Raises:
      InvalidArgumentError: If both reserved keys are the same.

    Example:
      >>> table = tf.lookup.experimental.DenseHashTable(
      ...     tf.int64, tf.float32, default_value=0.0, empty_key=0, deleted_key=-1)
      >>> table.insert(tf.constant([5], tf.int64), tf.constant([1.5]))
      >>> table[tf.constant([5, 6], tf.int64)].numpy()
      array([1.5, 0. ], dtype=float32)
    """

    def __init__(
        self,
        key_dtype: DTypeLike,
        value_dtype: DTypeLike,
        default_value: TensorLike,
        empty_key: TensorLike,
        deleted_key: TensorLike,
        initial_num_buckets: int | None = None,
        name: str | None = "MutableDenseHashTable",
        checkpoint: bool = True,
        experimental_is_anonymous: bool = False,
    ) -> None:
        super().__init__(key_dtype, value_dtype, default_value, name, checkpoint)
        empty, deleted = (
            np.asarray(convert_to_tensor(key, self._key_dtype).array).reshape(-1).tolist()[0]
            for key in (empty_key, deleted_key)
        )
        if empty == deleted:
            raise InvalidArgumentError("Empty and deleted keys cannot be equal")
        self._reserved = {empty: "empty_key", deleted: "deleted_key"}

    @record_in_graph
    def insert_or_assign(
        self, keys: TensorLike, values: TensorLike, name: str | None = None
    ) -> None:
        """Call `insert`.

        Args:
          keys: Tensor of the key dtype.
          values: One value for each key.
          name: Ignored.
        """
        self.insert(keys, values)

    @record_in_graph
    def erase(self, keys: TensorLike, name: str | None = None) -> None:
        """Call `remove`.

        Args:
          keys: Tensor of the key dtype.
          name: Ignored.
        """
        self.remove(keys)

    def _check_keys(self, keys: list[Any]) -> None:
        for key in keys:
            if key in self._reserved:
                raise InvalidArgumentError(
                    f"Using the {self._reserved[key]} as a table key is not allowed: {key!r}"
                )

    def _is_reserved(self, key: Hashable) -> bool:
        return key in self._reserved
