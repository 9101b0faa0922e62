"""Sources of the keys and values of static tables."""

from __future__ import annotations

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype, int64, string
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import StrPath
from meshflow.files.gfile import GFile


class KeyValueTensorInitializer:
    """Keys and values of a table, from tensors.

    Args:
      keys: Tensor of keys.
      values: Tensor of values, in the shape of `keys`.
      key_dtype: Dtype of the keys; default that of `keys`.
      value_dtype: Dtype of the values; default that of `values`.
      name: Ignored.

    Raises:
      InvalidArgumentError: If the shapes of keys and values differ.

    Example:
      >>> tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]).value_dtype
      tf.int32
    """

    def __init__(
        self,
        keys: TensorLike,
        values: TensorLike,
        key_dtype: DTypeLike | None = None,
        value_dtype: DTypeLike | None = None,
        name: str | None = None,
    ) -> None:
        self._keys = _to_host_array(keys, key_dtype)
        self._values = _to_host_array(values, value_dtype)
        if self._keys.shape != self._values.shape:
            raise InvalidArgumentError(
                f"KeyValueTensorInitializer: expected values of shape {list(self._keys.shape)}, "
                f"one for each key, got {list(self._values.shape)}."
            )

    @property
    def key_dtype(self) -> DType:
        """Dtype of the keys."""
        return as_dtype(self._keys.dtype)

    @property
    def value_dtype(self) -> DType:
        """Dtype of the values."""
        return as_dtype(self._values.dtype)

    def load_pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return vectors of the keys and values."""
        return self._keys.reshape(-1), self._values.reshape(-1)


def _to_host_array(value: TensorLike, dtype: DTypeLike | None) -> np.ndarray:
    tensor = convert_to_tensor(value, None if dtype is None else as_dtype(dtype))
    return np.asarray(tensor.require_value("the content of a table"))


class TextFileIndex:
    """Special column indices.

    Attributes:
      WHOLE_LINE: The entire line as a string.
      LINE_NUMBER: The index of the line, starting with 0.
    """

    WHOLE_LINE = -2
    LINE_NUMBER = -1


class TextFileInitializer:
    r"""Keys and values of a table, from the lines of a text file.

    Args:
      filename: Path of the file.
      key_dtype: Dtype of the keys, int64 or string.
      key_index: Column index, or a `TextFileIndex`.
      value_dtype: Dtype of the values; numbers are parsed.
      value_index: Column index, or a `TextFileIndex`.
      vocab_size: Number of lines to read; default all.
      delimiter: Separator of columns.
      name: Ignored.
      value_index_offset: Offset that is added to values that are line numbers.

    Raises:
      ValueError: If the file name is empty, an index is invalid, or a dtype does not match an
        index.
      NotFoundError: If the file does not exist.
      InvalidArgumentError: If a line lacks the column, or a field is not a number.

    Example:
      >>> import tempfile, os
      >>> path = os.path.join(tempfile.mkdtemp(), "words.txt")
      >>> tf.io.write_file(path, "cat\ndog\n")
      >>> words = tf.lookup.TextFileInitializer(
      ...     path, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE,
      ...     tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER)
      >>> tf.lookup.StaticHashTable(words, -1).lookup(tf.constant(["dog", "cow"])).numpy()
      array([ 1, -1])
    """

    def __init__(
        self,
        filename: StrPath | Tensor,
        key_dtype: DTypeLike,
        key_index: int,
        value_dtype: DTypeLike,
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
        for role, index, dtype in (
            ("key", key_index, self.key_dtype),
            ("value", value_index, self.value_dtype),
        ):
            if index < TextFileIndex.WHOLE_LINE:
                raise ValueError(f"TextFileInitializer: `{role}_index` must be -2 or more: {index}")
            if index == TextFileIndex.LINE_NUMBER and dtype is not int64:
                raise ValueError(f"`{role}_dtype` must be int64 for `{role}_index` -1, got {dtype}")
            if index == TextFileIndex.WHOLE_LINE and not (
                dtype is string or (role == "key" and dtype.is_integer)
            ):
                raise ValueError(
                    f"`{role}_dtype` must be string for `{role}_index` -2, got {dtype}"
                )
        if vocab_size is not None and vocab_size <= 0:
            raise ValueError(f"TextFileInitializer: `vocab_size` must be positive: {vocab_size}")
        self._key_index, self._value_index = key_index, value_index
        self._num_lines, self._delimiter = vocab_size, delimiter.encode()
        self._offset = value_index_offset

    def load_pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Read the file, and return vectors of the keys and values."""
        with GFile(self._filename, "rb") as file:
            lines = file.read().split(b"\n")
        if lines and not lines[-1]:
            lines.pop()
        if self._num_lines is not None:
            if len(lines) < self._num_lines:
                raise InvalidArgumentError(
                    f"Invalid vocab_size in {self._filename}: expected {self._num_lines} but got "
                    f"{len(lines)}"
                )
            lines = lines[: self._num_lines]
        lines = [line.removesuffix(b"\r") for line in lines]
        keys = self._parse_column(lines, self._key_index, self.key_dtype, 0)
        return keys, self._parse_column(lines, self._value_index, self.value_dtype, self._offset)

    def _parse_column(
        self, lines: list[bytes], index: int, dtype: DType, offset: int
    ) -> np.ndarray:
        if index == TextFileIndex.LINE_NUMBER:
            return np.arange(len(lines), dtype=np.int64) + offset
        fields = lines if index == TextFileIndex.WHOLE_LINE else self._split_fields(lines, index)
        if dtype is string:
            result = np.empty(len(fields), object)
            result[:] = fields
            return result
        parse = int if dtype.is_integer else float
        result = np.empty(len(fields), dtype.as_numpy_dtype)
        for i, field in enumerate(fields):
            try:
                result[i] = parse(field)
            except (ValueError, OverflowError):
                raise InvalidArgumentError(
                    f"Field {field.decode(errors='replace')} in line {i} of {self._filename} is "
                    f"not a valid {dtype.name}."
                ) from None
        return result

    def _split_fields(self, lines: list[bytes], index: int) -> list[bytes]:
        fields = []
        for i, line in enumerate(lines):
            columns = line.split(self._delimiter)
            if len(columns) <= index:
                raise InvalidArgumentError(
                    f"Invalid number of columns in {self._filename} line {i} "
                    f"({line.decode(errors='replace')}): expected at least {index + 1}, got "
                    f"{len(columns)}."
                )
            fields.append(columns[index])
        return fields
