"""Where the keys and values of a table come from."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import as_dtype, int64, string
from meshflow.files.gfile import GFile

__all__ = ["KeyValueTensorInitializer", "TextFileIndex", "TextFileInitializer"]


class KeyValueTensorInitializer:
    """Keys and values of a table, given as tensors.

    Args:
      keys: tensor of keys.
      values: tensor of as many values.
      key_dtype: the keys' dtype; default that of `keys`.
      value_dtype: the values' dtype; default that of `values`.
      name: ignored.

    Raises:
      InvalidArgumentError: when there are not as many values as keys.

    Example:
      >>> import meshflow as tf
      >>> tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]).value_dtype
      tf.int32
    """

    def __init__(
        self,
        keys: Any,
        values: Any,
        key_dtype: Any = None,
        value_dtype: Any = None,
        name: str | None = None,
    ) -> None:
        self._keys = _known(keys, key_dtype)
        self._values = _known(values, value_dtype)
        if self._keys.shape != self._values.shape:
            raise InvalidArgumentError(
                f"KeyValueTensorInitializer: expected values of shape {list(self._keys.shape)}, "
                f"one for each key, got {list(self._values.shape)}."
            )

    @property
    def key_dtype(self) -> Any:
        """The keys' dtype."""
        return as_dtype(self._keys.dtype)

    @property
    def value_dtype(self) -> Any:
        """The values' dtype."""
        return as_dtype(self._values.dtype)

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Vectors of the keys and of their values."""
        return self._keys.reshape(-1), self._values.reshape(-1)


def _known(value: Any, dtype: Any) -> np.ndarray:
    tensor = convert_to_tensor(value, None if dtype is None else as_dtype(dtype))
    return np.asarray(tensor._concrete("the content of a table"))


class TextFileIndex:
    """What of a line is a key or a value, besides a column's number.

    Attributes:
      WHOLE_LINE: the line as a string.
      LINE_NUMBER: the line's number, the first being 0.
    """

    WHOLE_LINE = -2
    LINE_NUMBER = -1


class TextFileInitializer:
    """Keys and values of a table, read from the lines of a text file.

    Args:
      filename: the file.
      key_dtype: the keys' dtype, int64 or string.
      key_index: a column's number, or a `TextFileIndex`.
      value_dtype: the values' dtype; numbers are parsed.
      value_index: a column's number, or a `TextFileIndex`.
      vocab_size: how many lines to read; default all.
      delimiter: what separates columns.
      name: ignored.
      value_index_offset: added to line numbers that are values.

    Raises:
      ValueError: for an empty name or a wrong index, or dtypes that do not fit the indices.
      NotFoundError: when there is no such file.
      InvalidArgumentError: for lines without the column, or fields that are no numbers.

    Example:
      >>> import tempfile, os
      >>> import meshflow as tf
      >>> path = os.path.join(tempfile.mkdtemp(), "words.txt")
      >>> tf.io.write_file(path, "cat\\ndog\\n")
      >>> words = tf.lookup.TextFileInitializer(
      ...     path, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE,
      ...     tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER)
      >>> tf.lookup.StaticHashTable(words, -1).lookup(tf.constant(["dog", "cow"])).numpy()
      array([ 1, -1])
    """

    def __init__(
        self,
        filename: Any,
        key_dtype: Any,
        key_index: int,
        value_dtype: Any,
        value_index: int,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: str | None = None,
        value_index_offset: int = 0,
    ) -> None:
        self.key_dtype, self.value_dtype = as_dtype(key_dtype), as_dtype(value_dtype)
        self._filename = filename.numpy().decode() if hasattr(filename, "numpy") else filename
        if not self._filename:
            raise ValueError("TextFileInitializer: `filename` must not be empty.")
        for what, index, dtype in (
            ("key", key_index, self.key_dtype),
            ("value", value_index, self.value_dtype),
        ):
            if index < TextFileIndex.WHOLE_LINE:
                raise ValueError(f"TextFileInitializer: `{what}_index` must be -2 or more: {index}")
            if index == TextFileIndex.LINE_NUMBER and dtype is not int64:
                raise ValueError(f"`{what}_dtype` must be int64 for `{what}_index` -1, got {dtype}")
            if index == TextFileIndex.WHOLE_LINE and not (
                dtype is string or (what == "key" and dtype.is_integer)
            ):
                raise ValueError(
                    f"`{what}_dtype` must be string for `{what}_index` -2, got {dtype}"
                )
        if vocab_size is not None and vocab_size <= 0:
            raise ValueError(f"TextFileInitializer: `vocab_size` must be positive: {vocab_size}")
        self._key_index, self._value_index = key_index, value_index
        self._size, self._delimiter = vocab_size, delimiter.encode()
        self._offset = value_index_offset

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Vectors of the keys and of their values."""
        with GFile(self._filename, "rb") as file:
            lines = file.read().split(b"\n")
        if lines and not lines[-1]:
            lines.pop()
        if self._size is not None:
            if len(lines) < self._size:
                raise InvalidArgumentError(
                    f"Invalid vocab_size in {self._filename}: expected {self._size} but got "
                    f"{len(lines)}"
                )
            lines = lines[: self._size]
        lines = [line.removesuffix(b"\r") for line in lines]
        keys = self._column(lines, self._key_index, self.key_dtype, 0)
        return keys, self._column(lines, self._value_index, self.value_dtype, self._offset)

    def _column(self, lines: list[bytes], index: int, dtype: Any, offset: int) -> np.ndarray:
        if index == TextFileIndex.LINE_NUMBER:
            return np.arange(len(lines), dtype=np.int64) + offset
        fields = lines if index == TextFileIndex.WHOLE_LINE else self._fields(lines, index)
        if dtype is string:
            result = np.empty(len(fields), object)
            result[:] = fields
            return result
        number = int if dtype.is_integer else float
        result = np.empty(len(fields), dtype.as_numpy_dtype)
        for i, field in enumerate(fields):
            try:
                result[i] = number(field)
            except (ValueError, OverflowError):
                raise InvalidArgumentError(
                    f"Field {field.decode(errors='replace')} in line {i} of {self._filename} is "
                    f"not a valid {dtype.name}."
                ) from None
        return result

    def _fields(self, lines: list[bytes], index: int) -> list[bytes]:
        found = []
        for i, line in enumerate(lines):
            columns = line.split(self._delimiter)
            if len(columns) <= index:
                raise InvalidArgumentError(
                    f"Invalid number of columns in {self._filename} line {i} "
                    f"({line.decode(errors='replace')}): expected at least {index + 1}, got "
                    f"{len(columns)}."
                )
            found.append(columns[index])
        return found
