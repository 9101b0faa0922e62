"""Datasets of the records of files."""

from __future__ import annotations

import contextlib
import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import (
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
)
from meshflow.core.values import dtypes
from meshflow.core.values.specs import TensorSpec
from meshflow.data import structure
from meshflow.data.arguments import UNKNOWN_CARDINALITY, integer
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch
from meshflow.data.execution.chunk_reordering import in_turn
from meshflow.data.execution.chunks import BLOCK
from meshflow.data.execution.resumable import Failed, caught
from meshflow.environment.limits import UNPACKED_VARIABLE, unpacked_limit
from meshflow.files import gfile
from meshflow.io.records import compression_of, opened, read_records


class Files(Dataset):
    """Records of files, file after file.

    Args:
      filenames: a name, names, or a dataset of names.
      read: from a path to the records' bytes.
      parallel_reads: how many files give their records in turn; None for one after another.
    """

    def __init__(
        self, filenames: Any, read: Callable[[str], Iterator[bytes]], parallel_reads: Any = None
    ) -> None:
        self._parents = (filenames,) if isinstance(filenames, Dataset) else ()
        self._names = None if self._parents else file_names(filenames)
        self._read = read
        reads = 1 if parallel_reads is None else integer(parallel_reads, "num_parallel_reads")
        self._cycle = (os.cpu_count() or 1) if reads < 0 else max(reads, 1)
        if self._parents and not structure.is_strings(filenames.element_spec):
            raise TypeError(
                "The `filenames` argument must contain `tf.string` elements of shape [] (scalars). "
                f"Got {filenames.element_spec}."
            )

    def _known_spec(self) -> Any:
        return TensorSpec([], dtypes.string)

    def _count(self) -> int:
        return UNKNOWN_CARDINALITY

    def _file_names(self) -> list[str] | None:
        """The names of the files; None where a dataset gives them."""
        return self._names

    def _of_files(self, names: list[str]) -> Dataset:
        """The records of other files, read in the same way."""
        made = self._copied()
        made._names = names
        return made

    def _paths(self, epoch: Epoch) -> Iterator[str]:
        if self._names is not None:
            yield from self._names
            return
        for element in self._parents[0]._elements(epoch):
            for name in np.asarray(element, object).reshape(-1):
                yield name.decode() if isinstance(name, bytes) else str(name)

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any]:
        return in_turn(
            caught(self._paths(epoch)),
            self._records,
            self._cycle,
            1 if self._cycle > 1 else 1 << 62,
        )

    def _records(self, path: Any) -> Iterator[Any]:
        """Chunks of the records of a file; what cannot be read is the last of it."""
        records: list[bytes] = []
        failed = path if type(path) is Failed else None
        try:
            if failed is None:
                if not gfile.exists(path):
                    raise NotFoundError(f"{path}; No such file or directory")
                for record in self._read(path):
                    records.append(record)
                    if len(records) == BLOCK:
                        full, records = records, []
                        yield _chunk(full)
        except Exception as error:
            failed = Failed(error)
        if records:
            yield _chunk(records)
        if failed is not None:
            yield failed


def _chunk(records: list[bytes]) -> list[np.ndarray]:
    found = np.empty(len(records), object)
    found[:] = records
    return [found]


def file_names(names: Any) -> list[str]:
    """Names of files as a list of texts."""
    if isinstance(names, Path):
        names = str(names)
    elif isinstance(names, (list, tuple)):
        names = [str(n) if isinstance(n, Path) else n for n in names]
        if not names:
            return []
    array = np.asarray(structure.to_array(names))
    if array.dtype != object:
        raise TypeError(
            f"The `filenames` argument must contain `tf.string` elements. Got {array.dtype} elements."
        )
    return [n.decode() if isinstance(n, bytes) else str(n) for n in array.reshape(-1)]


@contextlib.contextmanager
def _reading(path: str, compression: Any, buffer_size: int | None = None) -> Iterator[Any]:
    """An open file; what is wrong with its compression is said with its name."""
    with opened(path, compression, buffer_size) as file:
        try:
            yield file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataLossError(
                f"{path} cannot be decompressed with compression_type={compression!r}: {error}."
            ) from None


def _bounded(path: str, file: Any) -> Iterator[bytes]:
    """The lines of a decompressed file, none longer than `unpacked_limit`."""
    most = unpacked_limit(gfile.stat(path).length)
    while line := file.readline(most + 1):
        if len(line) > most:
            raise _too_long(path, "a line", most)
        yield line


def _too_long(path: str, what: str, most: int) -> ResourceExhaustedError:
    return ResourceExhaustedError(
        f"{path} has {what} of more than {most:,} bytes when decompressed. If you trust its author, set the "
        f"environment variable {UNPACKED_VARIABLE} to a larger number."
    )


def lines(compression: Any, buffer_size: int | None = None) -> Callable[[str], Iterator[bytes]]:
    """A reader of text lines without their ends."""
    kind = compression_of(compression)

    def read(path: str) -> Iterator[bytes]:
        with _reading(path, kind, buffer_size) as file:
            for line in _bounded(path, file) if kind else file:
                yield line.rstrip(b"\n").rstrip(b"\r")

    return read


def fixed(
    size: int, header: int, footer: int, compression: Any
) -> Callable[[str], Iterator[bytes]]:
    """A reader of records of one size."""
    if size < 1 or header < 0 or footer < 0:
        raise InvalidArgumentError(
            f"`record_bytes` must be greater than zero, `header_bytes` and `footer_bytes` not less than zero; got "
            f"{size}, {header} and {footer}."
        )
    kind = compression_of(compression)

    def read(path: str) -> Iterator[bytes]:
        with _reading(path, kind) as file:
            most = unpacked_limit(gfile.stat(path).length)
            content = file.read(most + 1) if kind else file.read()
        if kind and len(content) > most:
            raise _too_long(path, "a content", most)
        body = content[header : len(content) - footer]
        if len(body) % size:
            raise InvalidArgumentError(
                f"Excess bytes in {path}: header_bytes ({header}), record_bytes ({size}) and footer_bytes ({footer}) do "
                f"not divide its {len(content)} bytes."
            )
        for start in range(0, len(body), size):
            yield body[start : start + size]

    return read


class TextLineDataset(Files):
    r"""The lines of text files, as byte strings without their ends.

    Args:
      filenames: a name, names, or a dataset of names.
      compression_type: '', 'GZIP' or 'ZLIB'.
      buffer_size: bytes read at once.
      num_parallel_reads: how many files give their lines in turn.
      name: ignored.

    Raises:
      NotFoundError: while iterating, for a file that is not there.

    Example:
      >>> import meshflow as tf
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = os.path.join(folder, "text")
      ...     _ = tf.io.write_file(path, "first line\nsecond line\n")
      ...     list(tf.data.TextLineDataset(path).as_numpy_iterator())
      [b'first line', b'second line']
    """

    def __init__(
        self,
        filenames: Any,
        compression_type: Any = None,
        buffer_size: Any = None,
        num_parallel_reads: Any = None,
        name: str | None = None,
    ) -> None:
        size = None if buffer_size is None else integer(buffer_size, "buffer_size")
        super().__init__(filenames, lines(compression_type, size), num_parallel_reads)


class FixedLengthRecordDataset(Files):
    """Records of one size from binary files, as byte strings.

    Args:
      filenames: a name, names, or a dataset of names.
      record_bytes: size of a record.
      header_bytes: bytes to leave out at the start of each file.
      footer_bytes: bytes to leave out at its end.
      buffer_size: accepted.
      compression_type: '', 'GZIP' or 'ZLIB'.
      num_parallel_reads: how many files give their records in turn.
      name: ignored.

    Raises:
      InvalidArgumentError: while iterating, for a file of another size.

    Example:
      >>> import meshflow as tf
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = os.path.join(folder, "records")
      ...     _ = tf.io.write_file(path, "HEADaabbcc")
      ...     list(tf.data.FixedLengthRecordDataset(path, 2, header_bytes=4).as_numpy_iterator())
      [b'aa', b'bb', b'cc']
    """

    def __init__(
        self,
        filenames: Any,
        record_bytes: Any,
        header_bytes: Any = None,
        footer_bytes: Any = None,
        buffer_size: Any = None,
        compression_type: Any = None,
        num_parallel_reads: Any = None,
        name: str | None = None,
    ) -> None:
        header, footer = (
            0 if n is None else integer(n, "bytes") for n in (header_bytes, footer_bytes)
        )
        read = fixed(integer(record_bytes, "record_bytes"), header, footer, compression_type)
        super().__init__(filenames, read, num_parallel_reads)


class TFRecordDataset(Files):
    """The records of files that `tf.io.TFRecordWriter` wrote, as byte strings.

    Args:
      filenames: a name, names, or a dataset of names.
      compression_type: '', 'GZIP' or 'ZLIB'.
      buffer_size: bytes read at once.
      num_parallel_reads: how many files give their records in turn.
      name: ignored.

    Raises:
      DataLossError: while iterating, for a damaged record, naming the file and the byte.
      NotFoundError: while iterating, for a file that is not there.

    Example:
      >>> import tempfile, os
      >>> import meshflow as tf
      >>> path = os.path.join(tempfile.mkdtemp(), "a.tfrecord")
      >>> with tf.io.TFRecordWriter(path) as writer:
      ...     for i in range(3):
      ...         feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[i]))
      ...         example = tf.train.Example(features=tf.train.Features(feature={"i": feature}))
      ...         writer.write(example.SerializeToString())
      >>> wanted = {"i": tf.io.FixedLenFeature([], tf.int64)}
      >>> parsed = tf.data.TFRecordDataset(path).map(lambda r: tf.io.parse_single_example(r, wanted))
      >>> [int(e["i"]) for e in parsed]
      [0, 1, 2]
    """

    def __init__(
        self,
        filenames: Any,
        compression_type: Any = None,
        buffer_size: Any = None,
        num_parallel_reads: Any = None,
        name: str | None = None,
    ) -> None:
        kind = compression_of(compression_type)
        size = None if buffer_size is None else integer(buffer_size, "buffer_size")
        super().__init__(filenames, lambda path: read_records(path, kind, size), num_parallel_reads)
