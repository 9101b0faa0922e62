"""Rows of text tables as tensors: `tf.io.decode_csv`, and what CSV datasets share with it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, as_dtype
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.deferred_host_values import Pending
from meshflow.ops.files import host_bytes

__all__ = ["Column", "columns_of", "decode_csv"]

_KINDS = ("float32", "float64", "int32", "int64", "string")


class Column(NamedTuple):
    """A column of a table.

    Attributes:
      kind: its dtype.
      default: what stands for a missing value; None when there must be one.
    """

    kind: DType
    default: Any

    def value(self, field: str, na_value: str, where: str) -> Any:
        """A field as a number, or bytes.

        Args:
          field: the text.
          na_value: text that means a missing value.
          where: the row, for errors.

        Raises:
          InvalidArgumentError: for a missing required value, or a text that is no number.
        """
        if field in ("", na_value):
            if self.default is None:
                raise InvalidArgumentError(f"A required field is missing in {where}")
            return self.default
        if self.kind.name == "string":
            return field.encode("utf-8", "surrogateescape")
        try:
            if self.kind.is_floating:
                return self.kind.as_numpy_dtype(float(field))
            limits = np.iinfo(self.kind.as_numpy_dtype)
            if "_" not in field and limits.min <= (number := int(field)) <= limits.max:
                return self.kind.as_numpy_dtype(number)
        except ValueError:
            pass
        raise InvalidArgumentError(f"Field {field!r} in {where} is not a valid {self.kind.name}")


def columns_of(record_defaults: Any) -> list[Column]:
    """Columns as `record_defaults` gives them.

    Raises:
      ValueError: for a dtype that tables do not hold.
    """
    columns = []
    for value in record_defaults:
        if isinstance(value, (DType, np.dtype, type)):
            columns.append(Column(as_dtype(value), None))
        else:
            tensor = convert_to_tensor(value)
            values = np.asarray(tensor._value).reshape(-1)
            columns.append(Column(tensor.dtype, values[0] if values.size else None))
        kind = columns[-1].kind.name
        if kind not in _KINDS:
            raise InvalidValueError(
                f"record_defaults: a column of dtype {kind} cannot be read; use one of {', '.join(_KINDS)}."
            )
    return columns


def row_values(
    fields: Sequence[str], columns: Sequence[Column], select: Any, na_value: str, where: str
) -> list[Any]:
    """The values of the wanted fields of a row.

    Raises:
      InvalidArgumentError: for another number of fields, or a value that cannot be read.
    """
    # A line without text is one empty field.
    found = fields or [""]
    if select is None:
        if len(found) != len(columns):
            raise InvalidArgumentError(
                f"Expect {len(columns)} fields but have {len(found)} in {where}"
            )
    elif select and select[-1] >= len(found):
        raise InvalidArgumentError(
            f"Expect at least {select[-1] + 1} fields but have {len(found)} in {where}"
        )
    else:
        found = [found[c] for c in select]
    return [c.value(f, na_value, where) for c, f in zip(columns, found, strict=True)]


def decode_csv(
    records: TensorLike,
    record_defaults: Any,
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    select_cols: Any = None,
    name: str | None = None,
) -> list[Tensor]:
    """Columns of text tables.

    Args:
      records: strings, one row each.
      record_defaults: for each column its default, or its dtype when a value is required.
      field_delim: what separates fields.
      use_quote_delim: whether quotation marks group.
      na_value: text that means a missing value.
      select_cols: numbers of the columns to take, ascending; default all.
      name: ignored.

    Returns:
      One tensor of the shape of `records` per column.

    Raises:
      InvalidArgumentError: for a row with another number of fields, a missing required value, or a
        text that is no number.
      ValueError: when `select_cols` does not ascend or has another length than `record_defaults`.

    Example:
      >>> import meshflow as tf
      >>> [c.numpy().tolist() for c in tf.io.decode_csv(["1,2.5", "3,"], [0, 9.0])]
      [[1, 3], [2.5, 9.0]]
    """
    if isinstance(records, Pending):
        # A map function is looked at: what follows becomes a program of numbers.
        options = (record_defaults, field_delim, use_quote_delim, na_value, select_cols)
        specs = [TensorSpec([], c.kind) for c in columns_of(record_defaults)]
        batch = lambda texts: tuple(decode_csv(texts, *options))
        return list(context.recording.parsed(records, batch, tuple(specs)))
    words = host_bytes(records, "a row of a table")
    columns = columns_of(record_defaults)
    select = selected(select_cols, len(columns))
    rows = []
    for number, word in enumerate(words.reshape(-1)):
        text = io.StringIO(word.decode("utf-8", "surrogateescape"), newline="")
        fields: list[str] = next(reader(text, field_delim, use_quote_delim), [])
        rows.append(row_values(fields, columns, select, na_value, f"record {number}"))
    results = []
    for place, column in enumerate(columns):
        kind: Any = object if column.kind.name == "string" else column.kind.as_numpy_dtype
        array: np.ndarray = np.empty(words.size, kind)
        array[:] = [row[place] for row in rows]
        results.append(Tensor(array.reshape(words.shape)))
    return results


def selected(select_cols: Any, count: int) -> list[int] | None:
    """Numbers of columns, checked.

    Raises:
      ValueError: when they do not ascend, or there is another number of them than of defaults.
    """
    if select_cols is None:
        return None
    numbers = [int(n) for n in np.asarray(select_cols).reshape(-1)]
    if numbers != sorted(set(numbers)) or (numbers and numbers[0] < 0):
        raise InvalidValueError(f"select_cols must be ascending numbers of columns, got {numbers}.")
    if len(numbers) != count:
        raise InvalidValueError(
            f"Length of select_cols ({len(numbers)}) and record_defaults ({count}) do not match."
        )
    return numbers


def reader(text: Any, field_delim: str, use_quote_delim: bool) -> Any:
    """The rows of a text, each a list of fields.

    Raises:
      ValueError: for a separator of more than one character.
    """
    if len(field_delim) != 1:
        raise InvalidValueError(f"field_delim must be one character, got {field_delim!r}.")
    return csv.reader(
        text,
        delimiter=field_delim,
        quoting=csv.QUOTE_MINIMAL if use_quote_delim else csv.QUOTE_NONE,
    )
