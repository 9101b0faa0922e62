"""Datasets of the rows of Arrow tables and Parquet files; they need the package pyarrow.

Rows are accessed by index. A table is a list of chunks (row groups of a Parquet file, record
batches of an Arrow table), of which the most recently used ones are in memory. So `map`, `shuffle`
and `batch` process many rows at once, as for arrays, and files of any size are read one chunk at a
time.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidValueError, NotFoundError
from meshflow.core.values import dtypes, nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import TensorLike
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch
from meshflow.data.node import IndexStream
from meshflow.data.readers.records import parse_file_names
from meshflow.data.sources import iter_index_blocks
from meshflow.environment import optional_packages
from meshflow.environment.types import PyTree
from meshflow.files import gfile

# Largest size of the chunks that a dataset keeps in memory, in bytes.
_MAX_CACHED_BYTES = 1 << 28


class ChunkedTable(Dataset):
    """The rows of chunks that are loaded on demand.

    Args:
      spec: Spec of a row.
      sizes: Number of rows of each chunk.
      load: Function from the index of a chunk to its columns, in the order of the leaves of the
        spec. A column of rows of different sizes is an array of arrays.
      files: Names of the files, and a function from names to a dataset of their rows; None if the
        rows are not in files.
    """

    def __init__(
        self,
        spec: PyTree,
        sizes: Sequence[int],
        load: Callable[[int], list[Any]],
        files: tuple[list[str], Callable[[list[str]], Dataset]] | None = None,
    ) -> None:
        self._own_spec, self._sizes, self._load, self._source = spec, list(sizes), load, files
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)]).astype(np.int64)
        self._chunks: collections.OrderedDict[int, list[Any]] = collections.OrderedDict()
        self._lock = threading.Lock()
        leaves = nest.flatten(spec)
        self._uneven = [s for s in leaves if not s.shape.is_fully_defined()]

    def _infer_spec(self) -> PyTree:
        return self._own_spec

    def count_elements(self) -> int:
        """Return the total number of rows of all chunks."""
        return int(self._starts[-1])

    def get_file_names(self) -> list[str] | None:
        """Return the names of the files, None if the rows are not in files."""
        return self._source[0] if self._source else None

    def with_files(self, names: list[str]) -> Dataset:
        """Return a dataset of the rows of other files."""
        assert self._source is not None
        return self._source[1](names)

    def _get_chunk(self, index: int) -> list[Any]:
        with self._lock:
            columns = self._chunks.pop(index, None)
            if columns is None:
                columns = self._load(index)
            self._chunks[index] = columns
            num_bytes = sum(map(_estimate_bytes, self._chunks.values()))
            while num_bytes > _MAX_CACHED_BYTES and len(self._chunks) > 1:
                num_bytes -= _estimate_bytes(self._chunks.popitem(last=False)[1])
            return columns

    def _gather_rows(self, index: np.ndarray) -> list[Any]:
        chunk_indices = np.searchsorted(self._starts, index, "right") - 1
        first = int(chunk_indices[0])
        if (chunk_indices == first).all():
            within = index - self._starts[first]
            return [column[_to_slice(within)] for column in self._get_chunk(first)]
        results: list[Any] = []
        for chunk_index in np.unique(chunk_indices):
            positions = np.flatnonzero(chunk_indices == chunk_index)
            columns = self._get_chunk(int(chunk_index))
            if not results:
                results = [np.empty((len(index), *c.shape[1:]), c.dtype) for c in columns]
            for result, column in zip(results, columns, strict=True):
                result[positions] = column[index[positions] - self._starts[chunk_index]]
        return results

    def vectorize(self, epoch: Epoch) -> IndexStream | None:
        """Return the rows as a stream of indices; None if they differ in size or there are none."""
        if self._uneven or not self.count_elements():
            return None
        largest = int(np.argmax(self._sizes))
        row = _estimate_bytes(self._get_chunk(largest)) / self._sizes[largest]
        # A shuffle over more rows than fit in memory would load a chunk for every row.
        fits_in_memory = self.count_elements() * row <= _MAX_CACHED_BYTES
        spread = None if fits_in_memory else max(int(_MAX_CACHED_BYTES / row / 2), 1)
        return IndexStream(self._gather_rows, iter_index_blocks(self.count_elements()), spread)

    def explain_fallback(self) -> str:
        """Return the property of the rows that prevents access by index."""
        return "its rows have different sizes" if self._uneven else "it has no rows"

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over the rows, chunk by chunk."""
        for index, size in enumerate(self._sizes):
            columns = self._get_chunk(index)
            for i in range(size):
                row = [_get_item(column, i) for column in columns]
                yield nest.pack_sequence_as(self._own_spec, row)


def _get_item(column: np.ndarray, i: int) -> np.ndarray:
    value = column[i]
    return np.array(value, object) if isinstance(value, bytes) else np.asarray(value)


def _to_slice(index: np.ndarray) -> slice | np.ndarray:
    """Return consecutive indices as a slice, which avoids a copy."""
    first, last = int(index[0]), int(index[-1])
    is_consecutive = last - first == len(index) - 1 and (
        len(index) == 1 or bool((np.diff(index) == 1).all())
    )
    return slice(first, last + 1) if is_consecutive else index


def _estimate_bytes(columns: list[Any]) -> int:
    # Arrays of objects hold strings or rows of different sizes. Their memory is estimated.
    return sum(c.nbytes if c.dtype != object else 100 * c.size for c in columns)


def _import_pyarrow() -> Any:
    return _import_module("pyarrow")


def _import_module(module: str) -> Any:
    return optional_packages.import_extra(
        module, "arrow", "Arrow tables and Parquet files need the package pyarrow"
    )


def from_parquet(files: TensorLike, columns: Sequence[str] | None = None) -> Dataset:
    """Create a dataset of the rows of Parquet files, each a dictionary from column names to tensors.

    Row groups are read one at a time. Columns of lists of different lengths become tensors of
    unknown size; nested columns become dictionaries.

    Args:
      files: Names or patterns with wildcards.
      columns: The columns to read, by default all.

    Raises:
      NotFoundError: If no file matches.
      ValueError: If a column does not exist, or has a type that tensors do not support; while
        iterating, if a value is missing in a column that is not floating-point (where missing
        values are NaN).
      ImportError: If the package pyarrow is not installed.

    Example:
      >>> import tempfile, os
      >>> import pyarrow as pa, pyarrow.parquet
      >>> path = os.path.join(tempfile.mkdtemp(), "a.parquet")
      >>> pa.parquet.write_table(pa.table({"x": [1, 2, 3], "y": ["a", "b", "c"]}), path)
      >>> rows = tf.data.experimental.from_parquet(path).batch(3)
      >>> {name: v.numpy().tolist() for name, v in next(iter(rows)).items()}
      {'x': [1, 2, 3], 'y': [b'a', b'b', b'c']}
    """
    parquet = _import_module("pyarrow.parquet")
    names = _find_files(files)
    readers = [parquet.ParquetFile(name) for name in names]
    schema = _get_common_schema(names, [r.schema_arrow for r in readers], columns)
    groups = [
        (reader, index) for reader in readers for index in range(reader.metadata.num_row_groups)
    ]
    names_to_read = list(schema.names)

    def load(index: int) -> list[np.ndarray]:
        reader, group = groups[index]
        return convert_columns(
            reader.read_row_group(group, columns=names_to_read).select(names_to_read)
        )

    sizes = [reader.metadata.row_group(group).num_rows for reader, group in groups]
    return ChunkedTable(
        _make_spec(schema), sizes, load, (names, lambda some: from_parquet(some, columns))
    )


def from_arrow(source: Any, columns: Sequence[str] | None = None) -> Dataset:
    """Create a dataset of the rows of an Arrow table, each a dictionary from column names to tensors.

    Args:
      source: A table, a record batch or a list of them; an object with the Arrow stream interface,
        such as a pandas or Polars data frame; or names or patterns of Arrow (Feather) files, which
        are mapped into memory.
      columns: The columns to read, by default all.

    Raises:
      NotFoundError: If no file matches.
      ValueError: If a column does not exist, or has a type that tensors do not support; while
        iterating, if a value is missing in a column that is not floating-point (where missing
        values are NaN).
      ImportError: If the package pyarrow is not installed.

    Example:
      >>> import pyarrow as pa
      >>> rows = tf.data.experimental.from_arrow(pa.table({"x": [1, 2, 3]})).shuffle(3)
      >>> sorted(int(row["x"]) for row in rows)
      [1, 2, 3]
    """
    pa = _import_pyarrow()
    files = None
    if _are_file_names(source):
        names = _find_files(source)
        tables = []
        for name in names:
            memory_map = pa.memory_map(name)
            try:
                tables.append(pa.ipc.open_file(memory_map).read_all())
            except pa.ArrowInvalid:
                memory_map.seek(0)
                tables.append(pa.ipc.open_stream(memory_map).read_all())
        files = (names, lambda some: from_arrow(some, columns))
        labels = names
    else:
        items = source if isinstance(source, (list, tuple)) else [source]
        tables = [_to_table(item, pa) for item in items]
        labels = [f"table {i}" for i in range(len(tables))]
    schema = _get_common_schema(labels, [t.schema for t in tables], columns)
    batches = [b for t in tables for b in t.select(schema.names).to_batches() if b.num_rows]
    return ChunkedTable(
        _make_spec(schema),
        [b.num_rows for b in batches],
        lambda index: convert_columns(pa.Table.from_batches([batches[index]])),
        files,
    )


def _are_file_names(source: object) -> bool:
    first = source[0] if isinstance(source, (list, tuple)) and source else source
    return isinstance(first, (str, bytes)) or hasattr(first, "__fspath__")


def _to_table(item: Any, pa: Any) -> Any:
    if isinstance(item, pa.Table):
        return item
    if isinstance(item, pa.RecordBatch):
        return pa.Table.from_batches([item])
    if isinstance(item, Mapping) or hasattr(item, "__arrow_c_stream__"):
        return pa.table(item)
    raise TypeError(
        f"Expected an Arrow table, a record batch or names of files, got {type(item).__name__}."
    )


def _find_files(files: TensorLike) -> list[str]:
    """Return the files that match names and patterns."""
    paths = []
    for name in parse_file_names(files):
        matches = sorted(gfile.glob(name))
        if not matches:
            raise NotFoundError(f"{name}; No such file or directory")
        paths.extend(matches)
    if not paths:
        raise InvalidValueError("No names of files were passed.")
    return paths


def _get_common_schema(names: list[str], schemas: list[Any], columns: Sequence[str] | None) -> Any:
    """Return the schema of the selected columns, which must be the same in all files."""
    pa = _import_pyarrow()
    if not schemas:
        raise InvalidValueError("No tables were passed.")
    selected = schemas[0].names if columns is None else list(columns)
    selected_schemas = []
    for name, schema in zip(names, schemas, strict=True):
        missing = [c for c in selected if c not in schema.names]
        if missing:
            raise InvalidValueError(
                f"{name} has no column {missing[0]!r}; its columns: {', '.join(schema.names)}."
            )
        selected_schemas.append(pa.schema([schema.field(c).remove_metadata() for c in selected]))
        if [f.type for f in selected_schemas[-1]] != [f.type for f in selected_schemas[0]]:
            raise InvalidValueError(
                f"{name} has columns of other types than {names[0]}: {selected_schemas[-1]} instead of {selected_schemas[0]}."
            )
    return selected_schemas[0]


def _make_spec(schema: Any) -> dict[str, Any]:
    return {field.name: _make_field_spec(field.name, field.type) for field in schema}


def make_column_spec(schema: Any, columns: Sequence[str]) -> dict[str, Any]:
    """Return the spec of rows that consist of some columns.

    Raises:
      ValueError: If a column has a type that tensors do not support.
    """
    return {name: _make_field_spec(name, schema.field(name).type) for name in columns}


def _make_field_spec(name: str, arrow_type: Any) -> PyTree:
    """Return the spec of the values of a column."""
    types = _import_pyarrow().types
    if types.is_struct(arrow_type):
        return {f.name: _make_field_spec(f"{name}.{f.name}", f.type) for f in arrow_type}
    sizes: list[int | None] = []
    while True:
        if types.is_dictionary(arrow_type):
            arrow_type = arrow_type.value_type
        elif types.is_fixed_size_list(arrow_type):
            sizes.append(arrow_type.list_size)
            arrow_type = arrow_type.value_type
        elif types.is_list(arrow_type) or types.is_large_list(arrow_type):
            sizes.append(None)
            arrow_type = arrow_type.value_type
        elif hasattr(arrow_type, "permutation") and hasattr(arrow_type, "shape"):
            sizes.extend(arrow_type.shape)
            arrow_type = arrow_type.value_type
        else:
            break
    if _is_bytes_type(arrow_type):
        return TensorSpec(sizes, dtypes.string)
    if not (
        types.is_boolean(arrow_type)
        or types.is_integer(arrow_type)
        or types.is_floating(arrow_type)
    ):
        raise InvalidValueError(
            f"Column {name!r} has the type {arrow_type}, which tensors do not support. Cast it, or exclude it with "
            "`columns`."
        )
    return TensorSpec(sizes, dtypes.as_dtype(arrow_type.to_pandas_dtype()))


def _is_bytes_type(arrow_type: Any) -> bool:
    types = _import_pyarrow().types
    return (
        types.is_string(arrow_type)
        or types.is_large_string(arrow_type)
        or types.is_binary(arrow_type)
        or types.is_large_binary(arrow_type)
        or types.is_fixed_size_binary(arrow_type)
        or any(test(arrow_type) for test in (types.is_string_view, types.is_binary_view))
    )


def convert_columns(table: Any) -> list[Any]:
    """Convert the columns of a table to arrays, in the order of the leaves of its spec."""
    spec = _make_spec(table.schema)
    columns = {
        name: _convert_nested_column(name, column.combine_chunks(), spec[name])
        for name, column in zip(table.schema.names, table.columns, strict=True)
    }
    return nest.flatten(columns)


def _convert_nested_column(name: str, array: Any, spec: PyTree) -> PyTree:
    """Convert a column to an array, and a nested column to a dictionary of arrays."""
    if isinstance(array, _import_pyarrow().ChunkedArray):
        array = _import_pyarrow().concat_arrays(array.chunks)
    if isinstance(spec, dict):
        if array.null_count:
            raise _make_missing_error(name, array)
        parts = zip(spec, array.flatten(), strict=True)
        return {
            key: _convert_nested_column(f"{name}.{key}", part, spec[key]) for key, part in parts
        }
    return _convert_column(name, array)


def _make_missing_error(name: str, array: Any) -> InvalidValueError:
    """Return the error for missing values in a column."""
    return InvalidValueError(
        f"Column {name!r} misses {array.null_count} of {len(array)} values, and tensors of its type {array.type} "
        "have no missing values. Replace the missing values first."
    )


def _convert_column(name: str, array: Any) -> np.ndarray:
    """Convert a column to an array of rows."""
    types = _import_pyarrow().types
    arrow_type = array.type
    if types.is_dictionary(arrow_type):
        return _convert_column(name, array.dictionary_decode())
    if hasattr(array, "to_numpy_ndarray"):
        return array.to_numpy_ndarray()
    if array.null_count and not types.is_floating(arrow_type):
        raise _make_missing_error(name, array)
    if types.is_fixed_size_list(arrow_type):
        values = _convert_column(name, array.flatten())
        return values.reshape(len(array), arrow_type.list_size, *values.shape[1:])
    if types.is_list(arrow_type) or types.is_large_list(arrow_type):
        values = _convert_column(name, array.flatten())
        ends = np.cumsum(np.asarray(array.value_lengths()))
        rows = np.empty(len(array), object)
        rows[:] = _split_rows(values, ends)
        return rows
    if _is_bytes_type(arrow_type):
        strings = np.empty(len(array), object)
        strings[:] = [v.encode() if isinstance(v, str) else v for v in array.to_pylist()]
        return strings
    return array.to_numpy(zero_copy_only=False)


def _split_rows(values: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Split values into an array of arrays.

    Args:
      values: The values of all rows.
      ends: End of each row in `values`.
    """
    parts = np.split(values, ends[:-1]) if len(ends) else []
    # `np.array` would combine rows of the same size to a matrix.
    rows = np.empty(len(parts), object)
    for i, part in enumerate(parts):
        rows[i] = part
    return rows
