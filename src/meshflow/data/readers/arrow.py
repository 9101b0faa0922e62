"""Datasets of the rows of Arrow tables and Parquet files, which need the package pyarrow.

Rows are reached by number: a table is a list of chunks (row groups of a Parquet file, record batches
of an Arrow table), the last used of which are held in memory. So `map`, `shuffle` and `batch`
work on whole blocks, as for arrays, while files of any size are read a chunk at a time.
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
from meshflow.data.dataset import Dataset, Vector
from meshflow.data.epoch import Epoch
from meshflow.data.readers.records import file_names
from meshflow.data.sources import index_blocks
from meshflow.environment import extras
from meshflow.files import gfile

__all__ = ["Chunks", "from_arrow", "from_parquet"]

# Bytes of chunks that one dataset holds in memory.
_HELD = 1 << 28


class Chunks(Dataset):
    """The rows of chunks, each loaded when it is needed.

    Args:
      spec: the spec of a row.
      sizes: the number of rows of each chunk.
      load: from a chunk's number to the columns, in the order of the spec's leaves. A column of
        rows of different sizes is an array of arrays.
      files: the files that are read, and a function from some of them to a dataset of their rows.
    """

    def __init__(
        self,
        spec: Any,
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

    def _known_spec(self) -> Any:
        return self._own_spec

    def _count(self) -> int:
        return int(self._starts[-1])

    def _file_names(self) -> list[str] | None:
        return self._source[0] if self._source else None

    def _of_files(self, names: list[str]) -> Dataset:
        assert self._source is not None
        return self._source[1](names)

    def _chunk(self, number: int) -> list[Any]:
        with self._lock:
            found = self._chunks.pop(number, None)
            if found is None:
                found = self._load(number)
            self._chunks[number] = found
            held = sum(map(_nbytes, self._chunks.values()))
            while held > _HELD and len(self._chunks) > 1:
                held -= _nbytes(self._chunks.popitem(last=False)[1])
            return found

    def _gather(self, index: np.ndarray) -> list[Any]:
        numbers = np.searchsorted(self._starts, index, "right") - 1
        first = int(numbers[0])
        if (numbers == first).all():
            within = index - self._starts[first]
            return [column[_as_slice(within)] for column in self._chunk(first)]
        results: list[Any] = []
        for number in np.unique(numbers):
            places = np.flatnonzero(numbers == number)
            columns = self._chunk(int(number))
            if not results:
                results = [np.empty((len(index), *c.shape[1:]), c.dtype) for c in columns]
            for result, column in zip(results, columns, strict=True):
                result[places] = column[index[places] - self._starts[number]]
        return results

    def _vector(self, epoch: Epoch) -> Vector | None:
        if self._uneven or not self._count():
            return None
        largest = int(np.argmax(self._sizes))
        row = _nbytes(self._chunk(largest)) / self._sizes[largest]
        # A shuffle over more rows than are held would load a chunk for every row.
        whole = self._count() * row <= _HELD
        reach = None if whole else max(int(_HELD / row / 2), 1)
        return Vector(self._gather, index_blocks(self._count()), reach)

    def _why_not_vectorized(self) -> str:
        return "its rows have different sizes" if self._uneven else "it has no rows"

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        for number, size in enumerate(self._sizes):
            columns = self._chunk(number)
            for i in range(size):
                row = [_item(column, i) for column in columns]
                yield nest.pack_sequence_as(self._own_spec, row)


def _item(column: Any, i: int) -> np.ndarray:
    value = column[i]
    return np.array(value, object) if isinstance(value, bytes) else np.asarray(value)


def _as_slice(index: np.ndarray) -> Any:
    first, last = int(index[0]), int(index[-1])
    run = last - first == len(index) - 1 and (len(index) == 1 or bool((np.diff(index) == 1).all()))
    return slice(first, last + 1) if run else index


def _nbytes(columns: list[Any]) -> int:
    # Strings and uneven rows are objects; what they take besides is estimated.
    return sum(c.nbytes if c.dtype != object else 100 * c.size for c in columns)


def _arrow() -> Any:
    return _part("pyarrow")


def _part(module: str) -> Any:
    return extras.load(module, "arrow", "Arrow tables and Parquet files need the package pyarrow")


def from_parquet(files: Any, columns: Sequence[str] | None = None) -> Dataset:
    """The rows of Parquet files, each a dictionary from names of columns to tensors.

    Row groups are read one at a time. Columns of lists of different lengths give tensors of
    unknown size; nested columns give dictionaries.

    Args:
      files: names or patterns with wildcards.
      columns: the columns to read; default all.

    Raises:
      NotFoundError: when no file matches.
      ValueError: for a column that is not there, or of a type that tensors do not have; while
        iterating, for a missing value in a column other than floats (where it is NaN).
      ImportError: without the package pyarrow.

    Example:
      >>> import tempfile, os
      >>> import pyarrow as pa, pyarrow.parquet
      >>> import meshflow as tf
      >>> path = os.path.join(tempfile.mkdtemp(), "a.parquet")
      >>> pa.parquet.write_table(pa.table({"x": [1, 2, 3], "y": ["a", "b", "c"]}), path)
      >>> rows = tf.data.experimental.from_parquet(path).batch(3)
      >>> {name: v.numpy().tolist() for name, v in next(iter(rows)).items()}
      {'x': [1, 2, 3], 'y': [b'a', b'b', b'c']}
    """
    parquet = _part("pyarrow.parquet")
    names = _matching(files)
    readers = [parquet.ParquetFile(name) for name in names]
    schema = _same_schema(names, [r.schema_arrow for r in readers], columns)
    groups = [
        (reader, number) for reader in readers for number in range(reader.metadata.num_row_groups)
    ]
    wanted = list(schema.names)

    def load(number: int) -> list[Any]:
        reader, group = groups[number]
        return leaves_of(reader.read_row_group(group, columns=wanted).select(wanted))

    sizes = [reader.metadata.row_group(number).num_rows for reader, number in groups]
    return Chunks(_spec(schema), sizes, load, (names, lambda some: from_parquet(some, columns)))


def from_arrow(source: Any, columns: Sequence[str] | None = None) -> Dataset:
    """The rows of an Arrow table, each a dictionary from names of columns to tensors.

    Args:
      source: a table, a record batch or a list of them; anything with the Arrow stream interface,
        such as a pandas or Polars data frame; or names or patterns of Arrow (Feather) files,
        which are mapped into memory.
      columns: the columns to take; default all.

    Raises:
      NotFoundError: when no file matches.
      ValueError: for a column that is not there, or of a type that tensors do not have; while
        iterating, for a missing value in a column other than floats (where it is NaN).
      ImportError: without the package pyarrow.

    Example:
      >>> import pyarrow as pa
      >>> import meshflow as tf
      >>> rows = tf.data.experimental.from_arrow(pa.table({"x": [1, 2, 3]})).shuffle(3)
      >>> sorted(int(row["x"]) for row in rows)
      [1, 2, 3]
    """
    pa = _arrow()
    files = None
    if _is_names(source):
        names = _matching(source)
        tables = []
        for name in names:
            mapped = pa.memory_map(name)
            try:
                tables.append(pa.ipc.open_file(mapped).read_all())
            except pa.ArrowInvalid:
                mapped.seek(0)
                tables.append(pa.ipc.open_stream(mapped).read_all())
        files = (names, lambda some: from_arrow(some, columns))
        labels = names
    else:
        items = source if isinstance(source, (list, tuple)) else [source]
        tables = [_as_table(item, pa) for item in items]
        labels = [f"table {i}" for i in range(len(tables))]
    schema = _same_schema(labels, [t.schema for t in tables], columns)
    batches = [b for t in tables for b in t.select(schema.names).to_batches() if b.num_rows]
    return Chunks(
        _spec(schema),
        [b.num_rows for b in batches],
        lambda number: leaves_of(pa.Table.from_batches([batches[number]])),
        files,
    )


def _is_names(source: Any) -> bool:
    first = source[0] if isinstance(source, (list, tuple)) and source else source
    return isinstance(first, (str, bytes)) or hasattr(first, "__fspath__")


def _as_table(item: Any, pa: Any) -> Any:
    if isinstance(item, pa.Table):
        return item
    if isinstance(item, pa.RecordBatch):
        return pa.Table.from_batches([item])
    if isinstance(item, Mapping) or hasattr(item, "__arrow_c_stream__"):
        return pa.table(item)
    raise TypeError(
        f"Expected an Arrow table, a record batch or names of files, got {type(item).__name__}."
    )


def _matching(files: Any) -> list[str]:
    """The files of names and patterns."""
    found = []
    for name in file_names(files):
        some = sorted(gfile.glob(name))
        if not some:
            raise NotFoundError(f"{name}; No such file or directory")
        found.extend(some)
    if not found:
        raise InvalidValueError("There are no names of files.")
    return found


def _same_schema(names: list[str], schemas: list[Any], columns: Sequence[str] | None) -> Any:
    """The schema of the wanted columns, which all files must have."""
    pa = _arrow()
    if not schemas:
        raise InvalidValueError("There are no tables.")
    wanted = schemas[0].names if columns is None else list(columns)
    found = []
    for name, schema in zip(names, schemas, strict=True):
        missing = [c for c in wanted if c not in schema.names]
        if missing:
            raise InvalidValueError(
                f"{name} has no column {missing[0]!r}; its columns: {', '.join(schema.names)}."
            )
        found.append(pa.schema([schema.field(c).remove_metadata() for c in wanted]))
        if [f.type for f in found[-1]] != [f.type for f in found[0]]:
            raise InvalidValueError(
                f"{name} has columns of other types than {names[0]}: {found[-1]} instead of {found[0]}."
            )
    return found[0]


def _spec(schema: Any) -> dict[str, Any]:
    return {field.name: _field_spec(field.name, field.type) for field in schema}


def spec_of(schema: Any, columns: Sequence[str]) -> dict[str, Any]:
    """The spec of the rows of some columns.

    Raises:
      ValueError: for a column of a type that tensors do not have.
    """
    return {name: _field_spec(name, schema.field(name).type) for name in columns}


def _field_spec(name: str, kind: Any) -> Any:
    """The spec of a column's values."""
    types = _arrow().types
    if types.is_struct(kind):
        return {f.name: _field_spec(f"{name}.{f.name}", f.type) for f in kind}
    sizes: list[int | None] = []
    while True:
        if types.is_dictionary(kind):
            kind = kind.value_type
        elif types.is_fixed_size_list(kind):
            sizes.append(kind.list_size)
            kind = kind.value_type
        elif types.is_list(kind) or types.is_large_list(kind):
            sizes.append(None)
            kind = kind.value_type
        elif hasattr(kind, "permutation") and hasattr(kind, "shape"):
            sizes.extend(kind.shape)
            kind = kind.value_type
        else:
            break
    if _is_bytes(kind):
        return TensorSpec(sizes, dtypes.string)
    if not (types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)):
        raise InvalidValueError(
            f"Column {name!r} is of type {kind}, which tensors do not have: cast it, or leave it out with "
            "`columns`."
        )
    return TensorSpec(sizes, dtypes.as_dtype(kind.to_pandas_dtype()))


def _is_bytes(kind: Any) -> bool:
    types = _arrow().types
    return (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or any(test(kind) for test in (types.is_string_view, types.is_binary_view))
    )


def leaves_of(table: Any) -> list[Any]:
    """The columns of a table as arrays, in the order of the leaves of its spec."""
    spec = _spec(table.schema)
    columns = {
        name: _columns(name, column.combine_chunks(), spec[name])
        for name, column in zip(table.schema.names, table.columns, strict=True)
    }
    return nest.flatten(columns)


def _columns(name: str, array: Any, spec: Any) -> Any:
    if isinstance(array, _arrow().ChunkedArray):
        array = _arrow().concat_arrays(array.chunks)
    if isinstance(spec, dict):
        if array.null_count:
            raise _missing(name, array)
        parts = zip(spec, array.flatten(), strict=True)
        return {key: _columns(f"{name}.{key}", part, spec[key]) for key, part in parts}
    return _column(name, array)


def _missing(name: str, array: Any) -> InvalidValueError:
    return InvalidValueError(
        f"Column {name!r} misses {array.null_count} of {len(array)} values, and tensors of its type {array.type} "
        "have no missing values: fill them first."
    )


def _column(name: str, array: Any) -> np.ndarray:
    """A column as an array of rows."""
    types = _arrow().types
    kind = array.type
    if types.is_dictionary(kind):
        return _column(name, array.dictionary_decode())
    if hasattr(array, "to_numpy_ndarray"):
        return array.to_numpy_ndarray()
    if array.null_count and not types.is_floating(kind):
        raise _missing(name, array)
    if types.is_fixed_size_list(kind):
        values = _column(name, array.flatten())
        return values.reshape(len(array), kind.list_size, *values.shape[1:])
    if types.is_list(kind) or types.is_large_list(kind):
        values = _column(name, array.flatten())
        ends = np.cumsum(np.asarray(array.value_lengths()))
        rows = np.empty(len(array), object)
        rows[:] = _split(values, ends)
        return rows
    if _is_bytes(kind):
        texts = np.empty(len(array), object)
        texts[:] = [v.encode() if isinstance(v, str) else v for v in array.to_pylist()]
        return texts
    return array.to_numpy(zero_copy_only=False)


def _split(values: np.ndarray, ends: np.ndarray) -> Any:
    parts = np.split(values, ends[:-1]) if len(ends) else []
    # An array of arrays of one size would become a matrix.
    held = np.empty(len(parts), object)
    for i, part in enumerate(parts):
        held[i] = part
    return held
