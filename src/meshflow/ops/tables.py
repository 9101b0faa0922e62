"""CSV parsing: `tf.io.decode_csv`, and functions that CSV datasets share with it."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, as_dtype
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.limits import get_unpacked_limit
from meshflow.ops.deferred_host_values import DeferredValue
from meshflow.ops.files import to_host_strings

_COLUMN_DTYPES = ("float32", "float64", "int32", "int64", "string")


class Column(NamedTuple):
    """Column of a table.

    Attributes:
      dtype: The dtype.
      default: Replacement for a missing value; None if a value is required.
    """

    dtype: DType
    default: bytes | np.generic | None

    def parse_field(self, index: int, field: str, na_value: str, where: str) -> bytes | np.generic:
        """Parse a field as a number or as bytes.

        Args:
          index: Index of the field, for errors.
          field: The text.
          na_value: Text that represents a missing value.
          where: Description of the row, for errors.

        Raises:
          InvalidArgumentError: If a required value is missing, or the text is not a number.
        """
        if field in ("", na_value):
            if self.default is None:
                raise InvalidArgumentError(f"Field {index} is required but missing in {where}!")
            return self.default
        if self.dtype.name == "string":
            return field.encode("utf-8", "surrogateescape")
        try:
            if self.dtype.is_floating:
                return self.dtype.as_numpy_dtype(float(field))
            limits = np.iinfo(self.dtype.as_numpy_dtype)
            if "_" not in field and limits.min <= (number := int(field)) <= limits.max:
                return self.dtype.as_numpy_dtype(number)
        except ValueError:
            pass
        name = {"float32": "float", "float64": "double"}.get(self.dtype.name, self.dtype.name)
        raise InvalidArgumentError(f"Field {index} in {where} is not a valid {name}: {field}")

    def parse_fields(self, fields: Sequence[str], na_value: str) -> np.ndarray:
        """Parse a field of many rows, with the results of `parse_field`.

        Args:
          fields: The texts.
          na_value: Text that represents a missing value.

        Raises:
          ValueError or OverflowError: If `parse_field` raises an error for a field.
        """
        has_missing = "" in fields or na_value in fields
        if has_missing and self.default is None:
            raise ValueError("A required field is missing.")
        is_missing = [has_missing and field in ("", na_value) for field in fields]
        if self.dtype.name == "string":
            texts: np.ndarray = np.empty(len(fields), object)
            texts[:] = [
                self.default if missing else field.encode("utf-8", "surrogateescape")
                for field, missing in zip(fields, is_missing, strict=True)
            ]
            return texts
        if has_missing:
            fields = ["0" if m else f for f, m in zip(fields, is_missing, strict=True)]
        dtype = self.dtype.as_numpy_dtype
        if self.dtype.is_floating:
            values: np.ndarray = np.array(list(map(float, fields)), dtype)
        else:
            numbers = np.array(list(map(int, fields)), np.int64)
            values = numbers.astype(dtype)
            if any("_" in field for field in fields) or not np.array_equal(values, numbers):
                raise ValueError("A field is not a valid integer of the dtype.")
        if has_missing:
            values[is_missing] = self.default
        return values


def make_columns(record_defaults: Iterable[Any]) -> list[Column]:
    """Create columns from `record_defaults`.

    Raises:
      ValueError: If a dtype is not supported.
    """
    columns = []
    for value in record_defaults:
        if isinstance(value, (DType, np.dtype, type)):
            columns.append(Column(as_dtype(value), None))
        else:
            tensor = convert_to_tensor(value)
            if len(tensor.shape) > 1:
                raise InvalidValueError(
                    f"Each record default should be at most rank 1, got a default of shape {tensor.shape}."
                )
            values = np.asarray(tensor.array).reshape(-1)
            columns.append(Column(tensor.dtype, values[0] if values.size else None))
        dtype = columns[-1].dtype.name
        if dtype not in _COLUMN_DTYPES:
            raise InvalidValueError(
                f"record_defaults: a column of dtype {dtype} cannot be read; use one of {', '.join(_COLUMN_DTYPES)}."
            )
    return columns


def parse_row(
    fields: Sequence[str],
    columns: Sequence[Column],
    select: Sequence[int] | None,
    na_value: str,
    where: str,
) -> list[bytes | np.generic]:
    """Parse the selected fields of a row.

    Raises:
      InvalidArgumentError: If the number of fields is wrong, or a value is invalid.
    """
    # An empty line consists of one empty field.
    selected_fields = fields or [""]
    if select is None:
        if len(selected_fields) != len(columns):
            raise InvalidArgumentError(
                f"Expect {len(columns)} fields but have {len(selected_fields)} in {where}"
            )
    elif select and select[-1] >= len(selected_fields):
        raise InvalidArgumentError(
            f"Expect {len(columns)} fields but have {sum(c < len(selected_fields) for c in select)} in {where}. The row "
            f"has {len(selected_fields)} columns; select_cols={list(select)}."
        )
    else:
        selected_fields = [selected_fields[c] for c in select]
    pairs = zip(columns, selected_fields, strict=True)
    return [c.parse_field(i, f, na_value, where) for i, (c, f) in enumerate(pairs)]


def parse_rows(
    rows: Sequence[Sequence[str]],
    columns: Sequence[Column],
    select: Sequence[int] | None,
    na_value: str,
) -> list[np.ndarray] | None:
    """Parse the selected fields of rows by columns.

    Returns:
      An array for each column, or None if `parse_row` could raise an error for a row.
    """
    widths = set(map(len, rows)) or {0}
    if widths != {len(columns)} if select is None else select and select[-1] >= min(widths):
        return None
    fields = list(zip(*rows, strict=False))
    selected = fields if select is None else [fields[c] for c in select]
    try:
        return [c.parse_fields(f, na_value) for c, f in zip(columns, selected, strict=True)]
    except (ValueError, OverflowError):
        return None


def decode_csv(
    records: TensorLike,
    record_defaults: Sequence[Any],
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    select_cols: Sequence[int] | None = None,
    name: str | None = None,
) -> list[Tensor]:
    """Parse CSV records into columns.

    Args:
      records: Strings, one row each.
      record_defaults: For each column its default, or its dtype if a value is required.
      field_delim: Separator of the fields.
      use_quote_delim: Whether quotation marks enclose fields.
      na_value: Text that represents a missing value.
      select_cols: Indices of the columns to parse, ascending; by default all.
      name: Ignored.

    Returns:
      One tensor with the shape of `records` per column.

    Raises:
      InvalidArgumentError: If a row has a wrong number of fields, a missing required value, or an
        invalid number.
      ValueError: If `select_cols` is not ascending, or its length is not that of `record_defaults`.

    Example:
      >>> [c.numpy().tolist() for c in tf.io.decode_csv(["1,2.5", "3,"], [0, 9.0])]
      [[1, 3], [2.5, 9.0]]
    """
    if isinstance(records, DeferredValue):
        # A map function is being traced: the parsing is recorded, and its results are inputs of the
        # program.
        options = (record_defaults, field_delim, use_quote_delim, na_value, select_cols)
        specs = [TensorSpec([], c.dtype) for c in make_columns(record_defaults)]
        batch = lambda texts: tuple(decode_csv(texts, *options))
        return list(context.host_recorder.parse(records, batch, tuple(specs)))
    words = to_host_strings(records, "a row of a table")
    columns = make_columns(record_defaults)
    select = check_selection(select_cols, len(columns))
    rows = []
    for word in words.reshape(-1):
        record = word.decode("utf-8", "surrogateescape")
        if use_quote_delim and '"' in record:
            _check_quotes(record, field_delim)
        text = io.StringIO(record, newline="")
        fields: list[str] = next(make_reader(text, field_delim, use_quote_delim), [])
        rows.append(fields)
    arrays = parse_rows(rows, columns, select, na_value)
    if arrays is None:
        # Parsing row by row finds the first row with an error.
        values = [
            parse_row(fields, columns, select, na_value, f"record {i}")
            for i, fields in enumerate(rows)
        ]
        arrays = []
        for index, column in enumerate(columns):
            is_string = column.dtype.name == "string"
            array: np.ndarray = np.empty(
                words.size, object if is_string else column.dtype.as_numpy_dtype
            )
            array[:] = [row[index] for row in values]
            arrays.append(array)
    return [Tensor(array.reshape(words.shape)) for array in arrays]


def _check_quotes(record: str, field_delim: str) -> None:
    """Check the quotation marks of a record.

    Raises:
      InvalidArgumentError: If one is inside of a field without quotation marks, or a quoted field is not complete.
    """
    position, delimiter = 0, re.escape(field_delim)
    while position <= len(record):
        is_quoted = record[position : position + 1] == '"'
        pattern = '"(?:[^"]|"")*"' if is_quoted else f'[^"{delimiter}]*'
        match = re.compile(pattern).match(record, position)
        position = -1 if match is None else match.end()
        if position < 0 or record[position : position + 1].strip("\r\n") not in ("", field_delim):
            raise InvalidArgumentError(
                "Quoted field has to end with quote followed by delim or end"
                if is_quoted
                else f"Unquoted fields cannot have quotes/CRLFs inside: {record!r}"
            )
        position += 1


def check_selection(select_cols: Sequence[int] | None, count: int) -> list[int] | None:
    """Check column indices, and return them as integers.

    Raises:
      ValueError: If they are not ascending, or their number is not that of the defaults.
    """
    if select_cols is None:
        return None
    indices = [int(n) for n in np.asarray(select_cols).reshape(-1)]
    if any(n < 0 for n in indices):
        raise InvalidValueError(f"select_cols contains negative values. Got {indices}.")
    if indices != sorted(set(indices)):
        raise InvalidValueError(f"select_cols is not strictly increasing. Got {indices}.")
    if len(indices) != count:
        raise InvalidValueError(
            f"Length of select_cols and record_defaults do not match. Got {len(indices)} and {count}."
        )
    return indices


def make_reader(text: Iterable[str], field_delim: str, use_quote_delim: bool) -> Any:
    """Create a reader of rows, each a list of fields.

    Raises:
      ValueError: If the separator is not one character.
    """
    if len(field_delim) != 1:
        raise InvalidValueError(f"field_delim must be one character, got {field_delim!r}.")
    # Python's limit, which holds for all readers of a process, is 128 kB.
    csv.field_size_limit(max(csv.field_size_limit(), get_unpacked_limit(0)))
    return csv.reader(
        text,
        delimiter=field_delim,
        quoting=csv.QUOTE_MINIMAL if use_quote_delim else csv.QUOTE_NONE,
        strict=True,
    )
