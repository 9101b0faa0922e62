"""The file format of elements, used by caches, saved datasets and snapshots.

A file consists of a magic number, the spec of the elements as JSON, the elements, and an end mark
with their number. An element is a JSON header (for each leaf its dtype and shape, and the lengths
of strings) and the bytes of the leaves. A chunk of elements has the same form for their stacked leaves,
and a header with their number. Header and bytes have a checksum each. So a truncated,
empty or modified file is never mistaken for a shorter dataset, no data is used before it is
verified, and reading a file never executes code from it.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import math
import struct
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor, SparseTensorSpec
from meshflow.core.runtime.errors import DataLossError, InvalidValueError, OpError
from meshflow.core.values import dtypes, nest
from meshflow.core.values.composite import is_extension_spec
from meshflow.core.values.specs import TensorSpec
from meshflow.data import structure
from meshflow.data.execution.chunks import iter_leaf
from meshflow.data.optional import OptionalSpec
from meshflow.data.storage.composite_leaves import join_leaves, split_leaf
from meshflow.environment.json_documents import parse_json
from meshflow.environment.limits import MAX_DEFLATE_RATIO, UNPACKED_VARIABLE, get_unpacked_limit
from meshflow.environment.types import Json, PyTree
from meshflow.files import gfile
from meshflow.ops.ragged import RaggedTensorSpec
from meshflow.ops.tensor_array import TensorArraySpec

_MAGIC = b"MFELEMC\n"
# Files with this magic number contain no chunks.
_MAGIC_WITHOUT_CHUNKS = b"MFELEM2\n"
# The key of the number of elements in the header of a chunk, and that of the header of its leaves.
_COUNT, _LEAVES = "count", "leaves"
# Length and checksum of a header; the length 0 marks the end of the elements.
_FRAME = struct.Struct("<II")
_CHECK = struct.Struct("<I")
_END = struct.Struct("<QI")


class ElementWriter:
    """Writes elements to an open file.

    Args:
      file: Binary file.
      spec: Spec of the elements.

    Attributes:
      count: Number of elements written so far.

    Raises:
      InvalidValueError: If the elements are not tensors.
    """

    def __init__(self, file: IO[bytes], spec: PyTree) -> None:
        self._file, self.count = file, 0
        text = json.dumps(spec_to_json(spec, names_classes=False)).encode()
        file.write(_MAGIC + _FRAME.pack(len(text), zlib.crc32(text)) + text)

    def write(self, element: PyTree) -> None:
        """Append an element."""
        leaves = [part for leaf in nest.flatten(element) for part in split_leaf(leaf)]
        header, buffers = _serialize_leaves(leaves)
        self._write_frame(header, buffers, 1)

    def write_chunk(self, leaves: Sequence[np.ndarray]) -> None:
        """Append several elements.

        Args:
          leaves: Their stacked leaves.
        """
        header, buffers = _serialize_leaves(list(leaves))
        count = len(leaves[0])
        self._write_frame({_COUNT: count, _LEAVES: header}, buffers, count)

    def _write_frame(self, header: Json, buffers: list[bytes], count: int) -> None:
        text = json.dumps(header).encode()
        checksum = functools.reduce(lambda crc, part: zlib.crc32(part, crc), buffers, 0)
        frame = _FRAME.pack(len(text), zlib.crc32(text))
        self._file.writelines([frame, text, *buffers, _CHECK.pack(checksum)])
        self.count += count

    def write_end(self) -> None:
        """Write the end mark."""
        count = struct.pack("<Q", self.count)
        self._file.write(_FRAME.pack(0, 0) + _END.pack(self.count, zlib.crc32(count)))


def read_elements(
    path: str, spec: PyTree, compression: str | None = None, count: int | None = None
) -> Generator[Any, None, None]:
    """Iterate over the elements of a file; see `read_chunks`.

    Yields:
      Elements as structures of host arrays.
    """
    pack = structure.make_packer(spec)
    for leaves, size in read_chunks(path, spec, compression, count):
        if size is None:
            yield pack(leaves)
        else:
            yield from map(pack, map(list, zip(*map(iter_leaf, leaves), strict=True)))


def read_chunks(
    path: str, spec: PyTree, compression: str | None = None, count: int | None = None
) -> Generator[tuple[list[Any], int | None], None, None]:
    """Iterate over the parts of a file of elements.

    Args:
      path: The file.
      spec: Spec of the elements.
      compression: Compression that the file was written with.
      count: Expected number of elements, None if it is not known.

    Yields:
      The leaves of an element and None, or the stacked leaves of several elements and their number.

    Raises:
      DataLossError: If the file was truncated or modified; the message names it. The truncation of
        an uncompressed file is detected before its first element is yielded.
    """
    try:
        with gfile.GFile(path, "rb") as raw_file:
            size = raw_file.size()
            if compression is None:
                _check_end_mark(raw_file, size)
            with make_opener(compression)(raw_file, "rb") as file:
                # An element takes no more memory than a file of this size may contain.
                unpacked_size = size * (MAX_DEFLATE_RATIO if compression else 1)
                limit = min(unpacked_size, get_unpacked_limit(size))
                reader = _ElementReader(path, file, limit)
                reader.check_spec(spec)
                yield from reader.iter_parts(nest.flatten(spec), count)
    except (EOFError, OSError, zlib.error) as error:
        raise DataLossError(f"{path} is damaged: {error or 'it ends early'}.") from None


def _check_end_mark(file: gfile.GFile, size: int) -> None:
    """Raise an EOFError if a file has no valid end mark."""
    end_size = _FRAME.size + _END.size
    if size < len(_MAGIC) + end_size:
        raise EOFError("it ends early")
    file.seek(size - end_size)
    end = file.read(end_size)
    file.seek(0)
    if end[: _FRAME.size] != _FRAME.pack(0, 0) or _parse_count(end[_FRAME.size :]) is None:
        raise EOFError("its end is missing")


def _parse_count(end: bytes) -> int | None:
    """Return the number of elements from an end mark, None if it is damaged."""
    if len(end) != _END.size:
        return None
    count, checksum = _END.unpack(end)
    return count if zlib.crc32(end[:8]) == checksum else None


class _ElementReader:
    """Reads one file from start to end.

    Args:
      path: Path of the file, for errors.
      file: The decompressed file.
      limit: Largest number of bytes that a part of the file may have.
    """

    def __init__(self, path: str, file: IO[bytes], limit: int) -> None:
        self._path, self._file, self._limit = path, file, limit
        # Elements of the same sizes have equal headers.
        self._last_text = b""
        self._last_header: Json = None

    def _make_error(self, reason: str) -> DataLossError:
        return DataLossError(f"{self._path} is damaged: {reason}.")

    def _read_bytes(self, size: int) -> bytes:
        # The limit keeps a damaged length from allocating more memory than the file can contain.
        if not 0 <= size <= self._limit:
            raise EOFError(
                f"it ends early, or holds an array of {size:,} bytes, more than {UNPACKED_VARIABLE} allows"
            )
        data = self._file.read(size)
        if len(data) < size:
            raise EOFError("it ends early")
        return data

    def _read_json(self, size: int, checksum: int) -> Json:
        text = self._read_bytes(size)
        if zlib.crc32(text) != checksum:
            raise self._make_error("a checksum does not match")
        if text != self._last_text:
            self._last_text, self._last_header = text, parse_json(text)
        return self._last_header

    @contextlib.contextmanager
    def _report_invalid_header(self) -> Iterator[None]:
        """Turn the errors of an invalid header into an error that names the file."""
        try:
            yield
        except (OpError, EOFError, OSError, zlib.error):
            raise
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
            raise self._make_error(f"a header makes no sense ({error})") from None
        except (MemoryError, RecursionError):
            raise self._make_error("a header makes no sense") from None

    def check_spec(self, spec: PyTree) -> None:
        """Check the format of the file and the spec of its elements."""
        if self._read_bytes(len(_MAGIC)) not in (_MAGIC, _MAGIC_WITHOUT_CHUNKS):
            raise self._make_error("it is not a file of elements, or one of an older version")
        with self._report_invalid_header():
            spec_json = self._read_json(*_FRAME.unpack(self._read_bytes(_FRAME.size)))
            is_equal = spec_json == spec_to_json(spec, names_classes=False)
            saved_spec = spec if is_equal else spec_from_json(spec_json)
        if not structure.are_compatible(spec, saved_spec):
            raise InvalidValueError(
                f"{self._path} holds elements of {saved_spec}, which do not fit {spec}: delete it, or "
                "choose another name."
            )

    def iter_parts(
        self, specs: Sequence[Any], expected_count: int | None
    ) -> Generator[tuple[list[Any], int | None], None, None]:
        """Iterate over the elements and chunks, and verify each; see `read_chunks`."""
        index = 0
        with self._report_invalid_header():
            while True:
                size, checksum = _FRAME.unpack(self._read_bytes(_FRAME.size))
                if size == 0:
                    break
                header = self._read_json(size, checksum)
                if not isinstance(header, dict):
                    yield join_leaves(specs, self._read_leaves(header, index)), None
                    index += 1
                    continue
                leaves, size = self._read_leaves(header[_LEAVES], index), header[_COUNT]
                if len(leaves) != len(specs) or {len(leaf) for leaf in leaves} != {size}:
                    raise ValueError("the leaves of a chunk do not fit its header")
                yield leaves, size
                index += size
        counts = {
            index,
            _parse_count(self._read_bytes(_END.size)),
            index if expected_count is None else expected_count,
        }
        if self._file.read(1):
            raise self._make_error("something follows its end")
        if counts != {index}:
            raise self._make_error(f"it has {index} elements, and should have {counts - {index}}")

    def _read_leaves(self, header: Json, index: int) -> list[Any]:
        checksum, leaves = 0, []
        for name, shape, *lengths in header:
            arrays = []
            for part_name, part_shape in _list_arrays(name, shape, lengths):
                array, checksum = self._read_array(part_name, part_shape, lengths, checksum)
                arrays.append(array)
            leaves.append(arrays[0] if len(arrays) == 1 else SparseTensor(*arrays))
        if _CHECK.unpack(self._read_bytes(_CHECK.size))[0] != checksum:
            raise self._make_error(f"element {index}: a checksum does not match")
        return leaves

    def _read_array(
        self, name: str, shape: list[int], lengths: list[Any], checksum: int
    ) -> tuple[np.ndarray, int]:
        if name == "string":
            strings = np.empty(len(lengths[0]), object)
            for index, length in enumerate(lengths[0]):
                strings[index] = self._read_bytes(length)
                checksum = zlib.crc32(strings[index], checksum)
            return strings.reshape(shape), checksum
        kind = np.dtype(dtypes.as_dtype(name).as_numpy_dtype)
        data = self._read_bytes(math.prod(shape) * kind.itemsize)
        return np.frombuffer(data, kind).reshape(shape), zlib.crc32(data, checksum)


def _list_arrays(
    name: str, shape: list[int], lengths: list[Any]
) -> Iterable[tuple[str, list[int]]]:
    """Return the dtype and shape of each array that a leaf consists of."""
    if not name.startswith("sparse "):
        return [(name, shape)]
    count, rank = shape
    return [("int64", [count, rank]), (name.removeprefix("sparse "), [count]), ("int64", [rank])]


def _serialize_leaves(leaves: list[Any]) -> tuple[list[Any], list[bytes]]:
    """Return the header and the bytes of an element."""
    header: list[Any] = []
    buffers: list[bytes] = []
    for leaf in leaves:
        if isinstance(leaf, SparseTensor):
            indices, values, shape = (
                t.numpy() for t in (leaf.indices, leaf.values, leaf.dense_shape)
            )
            entry: list[Any] = [f"sparse {structure.infer_dtype(values).name}", list(indices.shape)]
            arrays: list[Any] = [indices, values, shape]
        else:
            arrays = [np.asarray(leaf)]
            entry = [structure.infer_dtype(arrays[0]).name, list(arrays[0].shape)]
        for array in arrays:
            if array.dtype == object:
                strings = array.reshape(-1).tolist()
                entry.append([len(w) for w in strings])
                buffers.extend(strings)
            else:
                buffers.append(np.ascontiguousarray(array).tobytes())
        header.append(entry)
    return header, buffers


def make_opener(compression: str | None) -> Callable[[Any, str], Any]:
    """Return a function that reads or writes an open file under a compression.

    Args:
      compression: 'GZIP', 'FAST' (its fastest level), or None.
    """
    if compression in (None, "NONE", ""):
        return lambda file, _: _Uncompressed(file)
    levels = {"GZIP": 9, "FAST": 1}
    if compression not in levels:
        raise InvalidValueError(f"compression must be 'GZIP' or None, got {compression!r}.")
    level = levels[compression]
    return lambda file, mode: gzip.GzipFile("", mode, level, file, mtime=0)


class _Uncompressed:
    """An uncompressed file with the interface of a compressed one; closing it does not close the file.

    Args:
      file: The file.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.read, self.write = file.read, file.write

    def writelines(self, parts: list[bytes]) -> None:
        for part in parts:
            self.write(part)

    def __enter__(self) -> _Uncompressed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing, because the caller that opened the file closes it."""


def spec_to_json(spec: PyTree, names_classes: bool = True) -> Json:
    """Convert a spec of elements to JSON values.

    Args:
      spec: The spec.
      names_classes: Whether `spec_from_json` must be able to find the classes of the values. Otherwise specs of
        extension types become text.

    Raises:
      InvalidValueError: If the elements contain datasets, or values of a class that cannot be found.
    """
    convert = functools.partial(spec_to_json, names_classes=names_classes)
    if isinstance(spec, dict):
        return {"dict": {k: convert(v) for k, v in spec.items()}}
    if isinstance(spec, tuple):
        return {"tuple": list(map(convert, spec))}
    if isinstance(spec, OptionalSpec):
        return {"optional": convert(spec.element_spec)}
    if isinstance(spec, TensorArraySpec):
        key: tuple[Any, ...] = spec._get_key()
        sizes, dtype, *flags = key
        return {"array": sizes and list(sizes), "dtype": dtype.name, "flags": flags}
    if is_extension_spec(spec) and not names_classes:
        return {"extension": str(spec)}
    if not isinstance(spec, (TensorSpec, SparseTensorSpec, RaggedTensorSpec)):
        raise InvalidValueError(
            f"Elements of {spec} cannot be saved: they must be tensors, optionals or tensor arrays."
        )
    shape = None if spec.shape.rank is None else spec.shape.as_list()
    type_entry: dict[str, Any] = {"sparse": True} if isinstance(spec, SparseTensorSpec) else {}
    if isinstance(spec, RaggedTensorSpec):
        type_entry = {"ragged": spec.ragged_rank, "splits": spec.row_splits_dtype.name}
    return {"shape": shape, "dtype": spec.dtype.name, **type_entry}


def spec_from_json(value: Json) -> PyTree:
    """Convert the JSON values of `spec_to_json` back to a spec."""
    if "dict" in value:
        return {k: spec_from_json(v) for k, v in value["dict"].items()}
    if "tuple" in value:
        return tuple(spec_from_json(v) for v in value["tuple"])
    if "optional" in value:
        return OptionalSpec(spec_from_json(value["optional"]))
    if "extension" in value:
        return value["extension"]  # This text is part of an error message.
    dtype = dtypes.as_dtype(value["dtype"])
    if "array" in value:
        return TensorArraySpec(value["array"], dtype, *value["flags"])
    if "ragged" in value:
        splits = dtypes.as_dtype(value["splits"])
        return RaggedTensorSpec(value["shape"], dtype, value["ragged"], splits)
    spec_type = SparseTensorSpec if value.get("sparse") else TensorSpec
    return spec_type(value["shape"], dtype)
