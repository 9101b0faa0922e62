"""Datasets of the records of files: lines of text, records of a fixed length, and TFRecord files."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from meshflow.core.runtime.errors import (
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
)
from meshflow.core.values import dtypes
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.data import structure
from meshflow.data.arguments import UNKNOWN_CARDINALITY, IntLike, choose_cycle_length, to_int
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch
from meshflow.data.execution.chunk_reordering import interleave_chunks
from meshflow.data.execution.chunks import MAX_CHUNK_SIZE
from meshflow.data.execution.failures import Failure, catch_failures
from meshflow.environment.limits import UNPACKED_VARIABLE, get_unpacked_limit
from meshflow.environment.types import PyTree
from meshflow.files import gfile
from meshflow.io.records import open_decompressed, parse_compression, read_records

# Lines are read in blocks of about this size.
_BLOCK_BYTES = 1 << 16


class FileRecordDataset(Dataset[Tensor]):
    """The records of files, one file after another or interleaved.

    Args:
      filenames: File name, names, or a dataset of names.
      read: Function from a path to the bytes of the records.
      parallel_reads: Number of files that are interleaved, None for one after another.
    """

    def __init__(
        self,
        filenames: TensorLike | Dataset,
        read: Callable[[str], Iterator[bytes]],
        parallel_reads: IntLike | None = None,
    ) -> None:
        self.parents = (filenames,) if isinstance(filenames, Dataset) else ()
        self._names = None if self.parents else parse_file_names(filenames)
        self._read = read
        reads = 1 if parallel_reads is None else to_int(parallel_reads, "num_parallel_reads")
        self._cycle = choose_cycle_length(reads) if reads < 0 else max(reads, 1)
        spec = filenames.element_spec if self.parents else None
        if isinstance(spec, TensorSpec) and spec.dtype is not dtypes.string:
            raise TypeError(
                f"The `filenames` argument must contain `tf.string` elements. Got a dataset of `{spec.dtype!r}` elements."
            )
        if self.parents and not structure.is_string_scalar(spec):
            raise TypeError(
                "The `filenames` argument must contain `tf.string` elements of shape [] (i.e. scalars). "
                f"Got {spec}."
            )

    def _infer_spec(self) -> PyTree:
        return TensorSpec([], dtypes.string)

    def count_elements(self) -> int:
        """Return UNKNOWN_CARDINALITY, because the records are not counted before a pass."""
        return UNKNOWN_CARDINALITY

    def get_file_names(self) -> list[str] | None:
        """Return the names of the files, None if a dataset provides them."""
        return self._names

    def with_files(self, names: list[str]) -> Dataset:
        """Return a dataset of the records of other files."""
        dataset = self.copy_node()
        dataset._names = names
        return dataset

    def _iter_paths(self, epoch: Epoch) -> Iterator[str]:
        if self._names is not None:
            yield from self._names
            return
        for element in self.parents[0].iter_elements(epoch):
            for name in np.asarray(element, object).reshape(-1):
                yield name.decode() if isinstance(name, bytes) else str(name)

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any]:
        return interleave_chunks(
            catch_failures(self._iter_paths(epoch)),
            self._read_chunks,
            self._cycle,
            1 if self._cycle > 1 else 1 << 62,
        )

    def _read_chunks(self, path: Any) -> Iterator[Any]:
        """Iterate over chunks of the records of a file; an error while reading is the last item."""
        records: list[bytes] = []
        failure = path if type(path) is Failure else None
        try:
            if failure is None:
                if not gfile.exists(path):
                    raise NotFoundError(f"{path}; No such file or directory")
                for record in self._read(path):
                    records.append(record)
                    if len(records) == MAX_CHUNK_SIZE:
                        full, records = records, []
                        yield _make_chunk(full)
        except Exception as error:
            failure = Failure(error)
        if records:
            yield _make_chunk(records)
        if failure is not None:
            yield failure


def _make_chunk(records: list[bytes]) -> list[np.ndarray]:
    leaf = np.empty(len(records), object)
    leaf[:] = records
    return [leaf]


def parse_file_names(names: TensorLike) -> list[str]:
    """Convert a file name or names to a list of strings."""
    if isinstance(names, Path):
        names = str(names)
    elif isinstance(names, (list, tuple)):
        names = [str(n) if isinstance(n, Path) else n for n in names]
        if not names:
            return []
    array = np.asarray(structure.to_array(names))
    if array.dtype != object:
        raise TypeError(
            f"The `filenames` argument must contain `tf.string` elements. Got `{dtypes.as_dtype(array.dtype)!r}` elements."
        )
    return [n.decode() if isinstance(n, bytes) else str(n) for n in array.reshape(-1)]


@contextlib.contextmanager
def _open_file(path: str, compression: str | None, buffer_size: int | None = None) -> Iterator[Any]:
    """Open a file, and turn decompression errors into an error that names the file."""
    with open_decompressed(path, compression, buffer_size) as file:
        try:
            yield file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataLossError(
                f"{path} cannot be decompressed with compression_type={compression!r}: {error}."
            ) from None


def _read_bounded_lines(path: str, file: IO[bytes]) -> Iterator[bytes]:
    """Iterate over the lines of a decompressed file, none longer than `get_unpacked_limit` allows."""
    limit = get_unpacked_limit(gfile.stat(path).length)
    while line := file.readline(limit + 1):
        if len(line) > limit:
            raise _make_too_long_error(path, "a line", limit)
        yield line


def _make_too_long_error(path: str, unit: str, limit: int) -> ResourceExhaustedError:
    return ResourceExhaustedError(
        f"{path} has {unit} of more than {limit:,} bytes when decompressed. If you trust its author, set the "
        f"environment variable {UNPACKED_VARIABLE} to a larger number."
    )


def make_line_reader(
    compression: str | None, buffer_size: int | None = None
) -> Callable[[str], Iterator[bytes]]:
    """Return a function that reads the lines of a text file, without line ends and carriage returns."""
    compression_type = parse_compression(compression)

    def read(path: str) -> Iterator[bytes]:
        with _open_file(path, compression_type, buffer_size) as file:
            blocks: Iterable[list[bytes]] = iter(lambda: file.readlines(_BLOCK_BYTES), [])
            if compression_type:
                blocks = ([line] for line in _read_bounded_lines(path, file))
            for lines in blocks:
                yield from [line.removesuffix(b"\n").replace(b"\r", b"") for line in lines]

    return read


def make_fixed_length_reader(
    size: int, header: int, footer: int, compression: str | None
) -> Callable[[str], Iterator[bytes]]:
    """Return a function that reads records of a fixed length."""
    if size < 1 or header < 0 or footer < 0:
        raise InvalidArgumentError(
            f"`record_bytes` must be greater than zero, `header_bytes` and `footer_bytes` not less than zero; got "
            f"{size}, {header} and {footer}."
        )
    compression_type = parse_compression(compression)

    def read(path: str) -> Iterator[bytes]:
        with _open_file(path, compression_type) as file:
            limit = get_unpacked_limit(gfile.stat(path).length)
            content = file.read(limit + 1) if compression_type else file.read()
        if compression_type and len(content) > limit:
            raise _make_too_long_error(path, "a content", limit)
        body = content[header : len(content) - footer]
        if len(body) % size:
            raise InvalidArgumentError(
                f"Excess bytes in {path}. Excluding the header ({header} bytes) and footer ({footer} bytes), input file "
                f'"{path}" has body length {len(body)} bytes, which is not an exact multiple of the record length '
                f"({size} bytes)."
            )
        for start in range(0, len(body), size):
            yield body[start : start + size]

    return read


class TextLineDataset(FileRecordDataset):
    r"""The lines of text files, as byte strings without line ends and carriage returns.

    Args:
      filenames: File name, names, or a dataset of names.
      compression_type: '', 'GZIP' or 'ZLIB'.
      buffer_size: Number of bytes to read at once.
      num_parallel_reads: Number of files that are interleaved.
      name: Ignored.

    Raises:
      NotFoundError: While iterating, if a file does not exist.

    Example:
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = os.path.join(folder, "text")
      ...     _ = tf.io.write_file(path, "first line\nsecond line\n")
      ...     list(tf.data.TextLineDataset(path).as_numpy_iterator())
      [b'first line', b'second line']
    """

    _tensorflow_name = "TextLineDatasetV2"

    def __init__(
        self,
        filenames: TensorLike | Dataset,
        compression_type: TensorLike = None,
        buffer_size: IntLike | None = None,
        num_parallel_reads: IntLike | None = None,
        name: str | None = None,
    ) -> None:
        size = None if buffer_size is None else to_int(buffer_size, "buffer_size")
        super().__init__(filenames, make_line_reader(compression_type, size), num_parallel_reads)


class FixedLengthRecordDataset(FileRecordDataset):
    """Records of a fixed length from binary files, as byte strings.

    Args:
      filenames: File name, names, or a dataset of names.
      record_bytes: Length of a record.
      header_bytes: Number of bytes to skip at the start of each file.
      footer_bytes: Number of bytes to ignore at the end of each file.
      buffer_size: Ignored.
      compression_type: '', 'GZIP' or 'ZLIB'.
      num_parallel_reads: Number of files that are interleaved.
      name: Ignored.

    Raises:
      InvalidArgumentError: While iterating, if the size of a file is not a multiple of the record
        length.

    Example:
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = os.path.join(folder, "records")
      ...     _ = tf.io.write_file(path, "HEADaabbcc")
      ...     list(tf.data.FixedLengthRecordDataset(path, 2, header_bytes=4).as_numpy_iterator())
      [b'aa', b'bb', b'cc']
    """

    _tensorflow_name = "FixedLengthRecordDatasetV2"

    def __init__(
        self,
        filenames: TensorLike | Dataset,
        record_bytes: IntLike,
        header_bytes: IntLike | None = None,
        footer_bytes: IntLike | None = None,
        buffer_size: IntLike | None = None,
        compression_type: TensorLike = None,
        num_parallel_reads: IntLike | None = None,
        name: str | None = None,
    ) -> None:
        header, footer = (
            0 if n is None else to_int(n, "bytes") for n in (header_bytes, footer_bytes)
        )
        read = make_fixed_length_reader(
            to_int(record_bytes, "record_bytes"), header, footer, compression_type
        )
        super().__init__(filenames, read, num_parallel_reads)


class TFRecordDataset(FileRecordDataset):
    """The records of files that `tf.io.TFRecordWriter` wrote, as byte strings.

    Args:
      filenames: File name, names, or a dataset of names.
      compression_type: '', 'GZIP' or 'ZLIB'.
      buffer_size: Number of bytes to read at once.
      num_parallel_reads: Number of files that are interleaved.
      name: Ignored.

    Raises:
      DataLossError: While iterating, if a record is damaged; the message names the file and the
        offset.
      NotFoundError: While iterating, if a file does not exist.

    Example:
      >>> import tempfile, os
      >>> path = os.path.join(tempfile.mkdtemp(), "a.tfrecord")
      >>> with tf.io.TFRecordWriter(path) as writer:
      ...     for i in range(3):
      ...         feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[i]))
      ...         example = tf.train.Example(features=tf.train.Features(feature={"i": feature}))
      ...         writer.write(example.SerializeToString())
      >>> features = {"i": tf.io.FixedLenFeature([], tf.int64)}
      >>> parsed = tf.data.TFRecordDataset(path).map(lambda r: tf.io.parse_single_example(r, features))
      >>> [int(e["i"]) for e in parsed]
      [0, 1, 2]
    """

    _tensorflow_name = "TFRecordDatasetV2"

    def __init__(
        self,
        filenames: TensorLike | Dataset,
        compression_type: TensorLike = None,
        buffer_size: IntLike | None = None,
        num_parallel_reads: IntLike | None = None,
        name: str | None = None,
    ) -> None:
        compression = parse_compression(compression_type)
        num_bytes = None if buffer_size is None else to_int(buffer_size, "buffer_size")
        super().__init__(
            filenames, lambda path: read_records(path, compression, num_bytes), num_parallel_reads
        )
