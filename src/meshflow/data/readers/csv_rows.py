"""Datasets of the rows of CSV files."""

from __future__ import annotations

import collections
import csv
import glob
import io
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError, NotFoundError
from meshflow.core.values import dtypes
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.data.arguments import AUTOTUNE, UNKNOWN_CARDINALITY, IntLike, to_int
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch
from meshflow.data.execution import chunks
from meshflow.data.execution.failures import Failure
from meshflow.data.readers.records import parse_file_names
from meshflow.data.transformations import Rearrange
from meshflow.environment.types import PyTree
from meshflow.files import gfile
from meshflow.io.records import open_decompressed, parse_compression
from meshflow.ops.tables import check_selection, make_columns, make_reader, parse_row, parse_rows


class CsvDataset(Dataset):
    r"""The rows of CSV files, each a tuple of scalars.

    Args:
      filenames: File name or names.
      record_defaults: For each selected column its default value, or its dtype if a value is
        required: float32, float64, int32, int64 or string.
      compression_type: '', 'GZIP' or 'ZLIB'.
      buffer_size: Number of bytes to read at once.
      header: Whether the first row of each file contains column names, and is skipped.
      field_delim: Separator of fields.
      use_quote_delim: Whether quotation marks enclose a field.
      na_value: Text that represents a missing value.
      select_cols: Ascending indices of the columns to read, by default all.
      exclude_cols: Indices of the columns to skip, an alternative to `select_cols`.

    Raises:
      InvalidArgumentError: While iterating, if a row has another number of fields, a required value
        is missing, or a text is not a number; the message names the file and the line.
      NotFoundError: While iterating, if a file does not exist.

    Example:
      >>> import tempfile, os
      >>> path = os.path.join(tempfile.mkdtemp(), "a.csv")
      >>> tf.io.write_file(path, "x,name\n1,one\n2,two\n")
      >>> rows = tf.data.experimental.CsvDataset(path, [tf.int32, tf.string], header=True)
      >>> [(int(x), name.numpy()) for x, name in rows]
      [(1, b'one'), (2, b'two')]
    """

    _tensorflow_name = "CsvDatasetV2"

    def __init__(
        self,
        filenames: TensorLike,
        record_defaults: Sequence[Any],
        compression_type: TensorLike = None,
        buffer_size: IntLike | None = None,
        header: bool = False,
        field_delim: str = ",",
        use_quote_delim: bool = True,
        na_value: str = "",
        select_cols: Sequence[int] | None = None,
        exclude_cols: Sequence[int] | None = None,
    ) -> None:
        self._names = parse_file_names(filenames)
        self._columns = make_columns(record_defaults)
        if not self._columns:
            raise InvalidArgumentError("record_defaults must have at least one column.")
        if select_cols is not None and exclude_cols is not None:
            raise InvalidArgumentError("Either select_cols or exclude_cols should be empty.")
        self._select = check_selection(select_cols, len(self._columns))
        excluded = () if exclude_cols is None else np.asarray(exclude_cols).reshape(-1).tolist()
        self._excluded = frozenset(excluded)
        self._compression = parse_compression(compression_type)
        self._buffer = None if buffer_size is None else to_int(buffer_size, "buffer_size")
        if self._buffer is not None and self._buffer <= 0:
            raise InvalidArgumentError(f"buffer_size should be positive, got {self._buffer}.")
        self._header, self._na_value = bool(header), na_value
        self._reader: Callable[[Any], Any] = lambda text: make_reader(
            text, field_delim, use_quote_delim
        )

    def _infer_spec(self) -> PyTree:
        return tuple(TensorSpec([], c.dtype) for c in self._columns)

    def count_elements(self) -> int:
        """Return UNKNOWN_CARDINALITY, because the rows are not counted before a pass."""
        return UNKNOWN_CARDINALITY

    def get_file_names(self) -> list[str] | None:
        """Return the names of the files."""
        return self._names

    def with_files(self, names: list[str]) -> Dataset:
        """Return a dataset of the rows of other files, with the same columns and format."""
        dataset = self.copy_node()
        dataset._names = names
        return dataset

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any]:
        return self._iter_items()

    def _iter_items(self) -> Iterator[Any]:
        for path in self._names:
            if not gfile.exists(path):
                yield Failure(NotFoundError(f"{path}; No such file or directory"))
                return
            file = open_decompressed(path, self._compression, self._buffer)
            with io.TextIOWrapper(file, "utf-8", "surrogateescape", newline="") as text:
                is_complete = yield from self._parse_rows(path, self._reader(text))
            if not is_complete:
                return

    def _parse_rows(self, path: str, reader: Any) -> Generator[Any, None, bool]:
        """Iterate over chunks of rows of a file, and failures; return whether the file could be read."""
        start, error = 0, None
        while error is None:
            damage: Failure | None = None
            block: list[list[str]] = []
            line_numbers: list[int] = []
            try:
                for fields in itertools.islice(reader, chunks.MAX_CHUNK_SIZE):
                    block.append(fields)
                    line_numbers.append(reader.line_num)
            except csv.Error as quote_error:
                damage = _make_quote_failure(
                    quote_error, f"record {start + len(block)}: {path}, line {reader.line_num}"
                )
            except Exception as reader_error:
                error = Failure(reader_error)
            if block:
                first = int(start == 0 and self._header)
                yield from self._parse_block(
                    path, block[first:], start + first, line_numbers[first:]
                )
                start += len(block)
            elif error is None and damage is None:
                if start == 0 and self._header:
                    yield Failure(
                        InvalidArgumentError(f"Can't read header of file {path}: it is empty.")
                    )
                return True
            if damage is not None:
                yield damage
                start += 1
        yield error
        return False

    def _parse_block(
        self, path: str, rows: list[list[str]], start: int, line_numbers: list[int]
    ) -> Iterator[Any]:
        """Parse rows by columns; if a row is not valid, parse them one by one.

        Args:
          path: Name of the file, for errors.
          rows: The fields of consecutive rows.
          start: Index of the first row.
          line_numbers: Line of the file in which each row ends.
        """
        if self._excluded:
            rows = [
                [f for i, f in enumerate(fields or [""]) if i not in self._excluded]
                for fields in rows
            ]
        if not rows:
            return
        chunk = parse_rows(rows, self._columns, self._select, self._na_value)
        if chunk is not None:
            yield chunk
            return
        for index, (fields, line) in enumerate(zip(rows, line_numbers, strict=True), start):
            where = f"record {index}: {path}, line {line}"
            try:
                values = parse_row(fields, self._columns, self._select, self._na_value, where)
            except InvalidArgumentError as error:
                yield Failure(error)
                continue
            yield [
                np.array([v], object if type(v) is bytes else c.dtype.as_numpy_dtype)
                for c, v in zip(self._columns, values, strict=True)
            ]


def _make_quote_failure(error: csv.Error, where: str) -> Failure:
    """Return the failure for a record with wrong quotation marks."""
    reason = (
        "Reached end of file without closing quoted field"
        if "end of data" in str(error)
        else "Quote inside a string has to be escaped by another quote"
    )
    return Failure(InvalidArgumentError(f"{reason} in {where}: {error}"))


def make_csv_dataset(
    file_pattern: TensorLike,
    batch_size: IntLike,
    column_names: Sequence[str] | None = None,
    column_defaults: Sequence[Any] | None = None,
    label_name: str | None = None,
    select_columns: Sequence[str | int] | None = None,
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    header: bool = True,
    num_epochs: int | None = None,
    shuffle: bool = True,
    shuffle_buffer_size: int = 10000,
    shuffle_seed: int | None = None,
    prefetch_buffer_size: int | None = None,
    num_parallel_reads: int | None = None,
    sloppy: bool = False,
    num_rows_for_inference: int | None = 100,
    compression_type: TensorLike = None,
    ignore_errors: bool = False,
    encoding: str = "utf-8",
) -> Dataset:
    r"""Create a dataset of batches of the rows of CSV files: dictionaries from column names to vectors.

    Args:
      file_pattern: Files or patterns with wildcards.
      batch_size: Number of rows in a batch.
      column_names: Names of all columns, by default those in the first row.
      column_defaults: For each selected column its default value, or its dtype if a value is
        required. By default, the dtypes are inferred from the first rows (int32, int64, float32,
        float64, else string), and missing values become 0 or ''.
      label_name: Column that is returned separately as the label.
      select_columns: Names or indices of the columns to read, by default all.
      field_delim: Separator of fields.
      use_quote_delim: Whether quotation marks enclose a field.
      na_value: Text that represents a missing value.
      header: Whether the first row of each file contains column names.
      num_epochs: Number of repetitions, by default indefinitely.
      shuffle: Whether to read files and rows in random order.
      shuffle_buffer_size: As for `Dataset.shuffle`.
      shuffle_seed: As for `Dataset.shuffle`.
      prefetch_buffer_size: Number of batches to prefetch.
      num_parallel_reads: Number of files that are interleaved.
      sloppy: Ignored; the order is always preserved.
      num_rows_for_inference: Number of rows that the dtypes are inferred from, None for all.
      compression_type: '', 'GZIP' or 'ZLIB'.
      ignore_errors: Whether to skip rows that cannot be parsed.
      encoding: Encoding of the column names.

    Raises:
      ValueError: If no file matches, or names, defaults and columns do not match.

    Example:
      >>> import tempfile, os
      >>> path = os.path.join(tempfile.mkdtemp(), "a.csv")
      >>> tf.io.write_file(path, "x,y\n1,0.5\n2,1.5\n3,2.5\n")
      >>> data = tf.data.experimental.make_csv_dataset(
      ...     path, 2, label_name="y", num_epochs=1, shuffle=False)
      >>> [(f["x"].numpy().tolist(), y.numpy().tolist()) for f, y in data]
      [([1, 2], [0.5, 1.5]), ([3], [2.5])]
    """
    files = _find_files(file_pattern)
    compression = parse_compression(compression_type)

    def read_rows(path: str) -> Iterator[list[str]]:
        with io.TextIOWrapper(
            open_decompressed(path, compression), encoding, "surrogateescape", newline=""
        ) as text:
            lines = make_reader(text, field_delim, use_quote_delim)
            for fields in lines:
                # Surrogate escapes show in which line the invalid bytes are, unlike the error of
                # the decoder.
                if not all(field.isascii() for field in fields):
                    _check_text(path, lines.line_num, fields, encoding)
                yield fields

    if column_names is None:
        if not header:
            raise InvalidValueError(
                "Give `column_names`, or `header=True` for files that name columns."
            )
        column_names = _read_header(files, read_rows)
    names = [str(n) for n in column_names]
    if len(set(names)) != len(names):
        duplicates = {n for n in names if names.count(n) > 1}
        raise InvalidValueError(
            f"Column names must be unique; these names occur more than once: {duplicates}."
        )
    select = None if select_columns is None else _select_columns(select_columns, names)
    if column_defaults is None:
        column_defaults = _infer_defaults(
            files, read_rows, len(names), select, na_value, header, num_rows_for_inference
        )
    selected = names if select is None else [names[i] for i in select]
    if len(column_defaults) != len(selected):
        raise InvalidValueError(
            f"`column_defaults` has {len(column_defaults)} columns, but {len(selected)} are read: {selected}."
        )
    if label_name is not None and label_name not in selected:
        raise InvalidValueError(
            f"`label_name` must be one of the columns {selected}, got {label_name!r}."
        )

    def open_file(name: Tensor) -> Dataset:
        dataset: Dataset = CsvDataset(
            name,
            column_defaults,
            compression_type=compression,
            header=header,
            field_delim=field_delim,
            use_quote_delim=use_quote_delim,
            na_value=na_value,
            select_cols=select,
        )
        return dataset.ignore_errors() if ignore_errors else dataset

    def arrange_columns(columns: tuple[Any, ...]) -> PyTree:
        features = collections.OrderedDict(zip(selected, columns, strict=True))
        if label_name is None:
            return features
        label = features.pop(label_name)
        return features, label

    dataset = Dataset.from_tensor_slices(files)
    if shuffle:
        dataset = dataset.shuffle(len(files), shuffle_seed)
    reads = 1 if num_parallel_reads is None else num_parallel_reads
    dataset = dataset.interleave(open_file, len(files) if reads == AUTOTUNE else reads, 1)
    if shuffle:
        dataset = dataset.shuffle(shuffle_buffer_size, shuffle_seed)
    if num_epochs != 1:
        dataset = dataset.repeat(num_epochs)
    dataset = Rearrange(
        dataset.batch(batch_size, drop_remainder=num_epochs is None), arrange_columns
    )
    return dataset.prefetch(AUTOTUNE if prefetch_buffer_size is None else prefetch_buffer_size)


def _find_files(patterns: TensorLike) -> list[str]:
    """Return the sorted files that match patterns.

    Raises:
      ValueError: If no file matches.
    """
    names = parse_file_names(patterns)
    if not names:
        raise InvalidValueError("File pattern is empty.")
    paths = sorted(f for pattern in names for f in glob.glob(pattern))
    if not paths:
        raise InvalidValueError(f"No files match `file_pattern` {patterns}.")
    return paths


def _check_text(path: str, line: int, fields: list[str], encoding: str) -> None:
    for field in fields:
        invalid = next((c for c in field if "\udc80" <= c <= "\udcff"), None)
        if invalid is not None:
            raise InvalidValueError(
                f"{path}, line {line}: byte 0x{ord(invalid) - 0xDC00:02x} is not valid in the encoding {encoding}. Set "
                "`encoding` to the encoding of the file."
            )


def _read_header(files: list[str], rows: Callable[[str], Iterator[list[str]]]) -> list[str]:
    first = next(rows(files[0]), None)
    if not first:
        raise InvalidValueError(
            f"Received an empty file: {files[0]} has no row that names columns."
        )
    for path in files[1:]:
        if next(rows(path), None) != first:
            raise InvalidValueError(
                f"All CSV files must have the same header; {path} has another one."
            )
    return first


def _select_columns(select: Sequence[str | int], names: list[str]) -> list[int]:
    """Return the ascending indices of the selected columns.

    Raises:
      ValueError: If a column does not exist, or is selected twice.
    """
    indices = []
    for item in select:
        if isinstance(item, str):
            if item not in names:
                raise InvalidValueError(
                    f"`select_columns`: there is no column {item!r}; columns: {names}."
                )
            indices.append(names.index(item))
        elif not 0 <= item < len(names):
            raise InvalidValueError(
                f"`select_columns`: there is no column {item}; there are {len(names)}."
            )
        else:
            indices.append(int(item))
    if len(set(indices)) != len(indices):
        raise InvalidValueError(f"`select_columns` names a column twice: {list(select)}.")
    return sorted(indices)


def _infer_defaults(
    files: list[str],
    rows: Callable[[str], Iterator[list[str]]],
    count: int,
    select: list[int] | None,
    na_value: str,
    header: bool,
    limit: int | None,
) -> list[Any]:
    """Return default values of the dtypes that the first rows have."""
    columns = list(range(count)) if select is None else select
    levels = [-1] * len(columns)
    num_rows = 0
    for path in files:
        for row_index, fields in enumerate(rows(path)):
            if row_index == 0 and header:
                continue
            if limit is not None and num_rows >= limit:
                break
            if len(fields) != count:
                raise InvalidValueError(
                    f"Problem inferring types: row {row_index} of {path} has {len(fields)} fields, expected {count}."
                )
            num_rows += 1
            for position, column in enumerate(columns):
                if fields[column] not in ("", na_value):
                    levels[position] = max(levels[position], _find_narrowest_dtype(fields[column]))
    return [_DTYPES_AND_DEFAULTS[level][1] for level in levels]


_FLOAT32 = float(np.finfo(np.float32).max)
# Dtypes from narrow to wide, each with its default value. The last one also applies to columns
# without values.
_DTYPES_AND_DEFAULTS = [
    (
        kind,
        np.zeros((), kind.as_numpy_dtype) if kind is not dtypes.string else np.array(b"", object),
    )
    for kind in (dtypes.int32, dtypes.int64, dtypes.float32, dtypes.float64, dtypes.string)
]


def _find_narrowest_dtype(field: str) -> int:
    """Return the index of the narrowest dtype that can represent a field."""
    try:
        value = int(field)
        if -(1 << 63) <= value < 1 << 63:
            return 0 if -(1 << 31) <= value < 1 << 31 else 1
    except ValueError:
        pass
    try:
        return 2 if -_FLOAT32 <= float(field) <= _FLOAT32 else 3
    except ValueError:
        return 4
