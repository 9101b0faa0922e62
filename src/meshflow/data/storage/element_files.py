"""Files of elements: what caches, saved datasets and snapshots are made of.

A file is a mark, the elements' spec as JSON, the elements, and an end that says how many there are. An element is a JSON
header (for each leaf its dtype, shape and, for strings, their lengths) and the leaves' bytes; header and bytes
have a checksum each. So no cut, empty or changed file passes for a shorter dataset, nothing is read before
it is known to be what was written, and nothing in a file is run.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import math
import struct
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor, SparseTensorSpec
from meshflow.core.runtime.errors import DataLossError, InvalidValueError, OpError
from meshflow.core.values import dtypes, nest
from meshflow.core.values.specs import TensorSpec
from meshflow.data import structure
from meshflow.data.sparse_leaves import is_sparse
from meshflow.environment.limits import INFLATED
from meshflow.files import gfile

_MARK = b"MFELEM2\n"
# A header's length and checksum; a length of 0 ends the elements.
_FRAME = struct.Struct("<II")
_CHECK = struct.Struct("<I")
_END = struct.Struct("<QI")


class ElementWriter:
    """Writes elements to a file that is open.

    Args:
      file: the file, for bytes.
      spec: the elements' spec.

    Attributes:
      count: how many there are so far.

    Raises:
      InvalidValueError: for elements that are no tensors.
    """

    def __init__(self, file: Any, spec: Any) -> None:
        self._file, self.count = file, 0
        text = json.dumps(spec_to_json(spec)).encode()
        file.write(_MARK + _FRAME.pack(len(text), zlib.crc32(text)) + text)

    def write(self, element: Any) -> None:
        """Appends an element."""
        header, buffers = _taken_apart(nest.flatten(element))
        text = json.dumps(header).encode()
        check = functools.reduce(lambda crc, part: zlib.crc32(part, crc), buffers, 0)
        frame = _FRAME.pack(len(text), zlib.crc32(text))
        self._file.writelines([frame, text, *buffers, _CHECK.pack(check)])
        self.count += 1

    def finish(self) -> None:
        """Writes the end."""
        count = struct.pack("<Q", self.count)
        self._file.write(_FRAME.pack(0, 0) + _END.pack(self.count, zlib.crc32(count)))


def read_elements(
    path: str, spec: Any, compression: str | None = None, count: int | None = None
) -> Generator[Any, None, None]:
    """The elements of a file.

    Args:
      path: the file.
      spec: the elements' spec.
      compression: what it was opened with when it was written.
      count: how many there must be, where that is known from elsewhere.

    Yields:
      Structures of host arrays.

    Raises:
      DataLossError: naming the file, where it was cut or changed; a file that is not compressed and cut is
        found out before its first element.
    """
    try:
        with gfile.GFile(path, "rb") as plain:
            size = plain.size()
            if compression is None:
                _check_end(plain, size)
            with opener(compression)(plain, "rb") as file:
                limit = size * (INFLATED if compression else 1)
                reader = _Reader(path, file, limit)
                reader.check_spec(spec)
                yield from reader.elements(spec, count)
    except (EOFError, OSError, zlib.error) as error:
        raise DataLossError(f"{path} is damaged: {error or 'it ends early'}.") from None


def _check_end(file: Any, size: int) -> None:
    """Raises EOFError where a file does not end as it should."""
    whole = _FRAME.size + _END.size
    if size < len(_MARK) + whole:
        raise EOFError("it ends early")
    file.seek(size - whole)
    end = file.read(whole)
    file.seek(0)
    if end[: _FRAME.size] != _FRAME.pack(0, 0) or _count(end[_FRAME.size :]) is None:
        raise EOFError("its end is missing")


def _count(end: bytes) -> int | None:
    """The number of elements that a file's end gives; None for a damaged one."""
    if len(end) != _END.size:
        return None
    count, check = _END.unpack(end)
    return count if zlib.crc32(end[:8]) == check else None


class _Reader:
    """What is read from one file, in order."""

    def __init__(self, path: str, file: Any, limit: int) -> None:
        self._path, self._file, self._limit = path, file, limit

    def _lost(self, what: str) -> DataLossError:
        return DataLossError(f"{self._path} is damaged: {what}.")

    def _bytes(self, size: int) -> bytes:
        # A file that says more than it can hold must not take memory.
        if not 0 <= size <= self._limit:
            raise EOFError("it ends early")
        data = self._file.read(size)
        if len(data) < size:
            raise EOFError("it ends early")
        return data

    def _json(self, size: int, check: int) -> Any:
        text = self._bytes(size)
        if zlib.crc32(text) != check:
            raise self._lost("a checksum does not match")
        with self._sound():
            return json.loads(text)

    @contextlib.contextmanager
    def _sound(self) -> Iterator[None]:
        """Turns what a header that makes no sense raises into an error that names the file."""
        try:
            yield
        except (OpError, EOFError, OSError, zlib.error):
            raise
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
            raise self._lost(f"a header makes no sense ({error})") from None
        except (MemoryError, RecursionError):
            raise self._lost("a header makes no sense") from None

    def check_spec(self, spec: Any) -> None:
        """Raises for a file of another format, or of elements that do not fit."""
        if self._bytes(len(_MARK)) != _MARK:
            raise self._lost("it is not a file of elements, or one of an older version")
        saved = self._json(*_FRAME.unpack(self._bytes(_FRAME.size)))
        with self._sound():
            found = spec_from_json(saved)
        if not structure.compatible(spec, found):
            raise InvalidValueError(
                f"{self._path} holds elements of {found}, which do not fit {spec}: delete it, or "
                "choose another name."
            )

    def elements(self, spec: Any, wanted: int | None) -> Generator[Any, None, None]:
        """The elements, checked one by one."""
        pack = structure.packer(spec)
        number = 0
        while True:
            size, check = _FRAME.unpack(self._bytes(_FRAME.size))
            if size == 0:
                break
            header = self._json(size, check)
            with self._sound():
                element = pack(self._leaves(header, number))
            yield element
            number += 1
        counts = {number, _count(self._bytes(_END.size)), number if wanted is None else wanted}
        if self._file.read(1):
            raise self._lost("something follows its end")
        if counts != {number}:
            raise self._lost(f"it has {number} elements, and should have {counts - {number}}")

    def _leaves(self, header: Any, number: int) -> list[Any]:
        check, leaves = 0, []
        for name, shape, *lengths in header:
            arrays = []
            for part_name, part_shape in _parts(name, shape, lengths):
                array, check = self._array(part_name, part_shape, lengths, check)
                arrays.append(array)
            leaves.append(arrays[0] if len(arrays) == 1 else SparseTensor(*arrays))
        if _CHECK.unpack(self._bytes(_CHECK.size))[0] != check:
            raise self._lost(f"element {number}: a checksum does not match")
        return leaves

    def _array(
        self, name: str, shape: list[int], lengths: list[Any], check: int
    ) -> tuple[np.ndarray, int]:
        if name == "string":
            words = np.empty(len(lengths[0]), object)
            for place, length in enumerate(lengths[0]):
                words[place] = self._bytes(length)
                check = zlib.crc32(words[place], check)
            return words.reshape(shape), check
        kind = np.dtype(dtypes.as_dtype(name).as_numpy_dtype)
        data = self._bytes(math.prod(shape) * kind.itemsize)
        return np.frombuffer(data, kind).reshape(shape), zlib.crc32(data, check)


def _parts(name: str, shape: list[int], lengths: list[Any]) -> Iterable[tuple[str, list[int]]]:
    """Dtypes and shapes of the arrays that a leaf is made of."""
    if not name.startswith("sparse "):
        return [(name, shape)]
    count, rank = shape
    return [("int64", [count, rank]), (name.removeprefix("sparse "), [count]), ("int64", [rank])]


def _taken_apart(leaves: list[Any]) -> tuple[list[Any], list[bytes]]:
    """An element's header, and its bytes."""
    header: list[Any] = []
    buffers: list[bytes] = []
    for leaf in leaves:
        if is_sparse(leaf):
            indices, values, shape = (
                t.numpy() for t in (leaf.indices, leaf.values, leaf.dense_shape)
            )
            entry: list[Any] = [f"sparse {structure.dtype_of(values).name}", list(indices.shape)]
            arrays = [indices, values, shape]
        else:
            arrays = [np.asarray(leaf)]
            entry = [structure.dtype_of(arrays[0]).name, list(arrays[0].shape)]
        for array in arrays:
            if array.dtype == object:
                words = array.reshape(-1).tolist()
                entry.append([len(w) for w in words])
                buffers.extend(words)
            else:
                buffers.append(np.ascontiguousarray(array).tobytes())
        header.append(entry)
    return header, buffers


def opener(compression: str | None) -> Callable[[Any, str], Any]:
    """What reads or writes an open file under a compression: 'GZIP', 'FAST' (its fastest level) or none."""
    if compression in (None, "NONE", ""):
        return lambda file, _: _Uncompressed(file)
    levels = {"GZIP": 9, "FAST": 1}
    if compression not in levels:
        raise InvalidValueError(f"compression must be 'GZIP' or None, got {compression!r}.")
    level = levels[compression]
    return lambda file, mode: gzip.GzipFile("", mode, level, file, mtime=0)


class _Uncompressed:
    """A file as it is; leaving it, as one leaves a compressed one, keeps it open."""

    def __init__(self, file: Any) -> None:
        self.read, self.write = file.read, file.write

    def writelines(self, parts: list[bytes]) -> None:
        for part in parts:
            self.write(part)

    def __enter__(self) -> _Uncompressed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing: who opened the file closes it."""


def spec_to_json(spec: Any) -> Any:
    """A spec of elements as JSON values.

    Raises:
      InvalidValueError: for elements that are neither dense nor sparse tensors.
    """
    if isinstance(spec, dict):
        return {"dict": {k: spec_to_json(v) for k, v in spec.items()}}
    if isinstance(spec, tuple):
        return {"tuple": [spec_to_json(v) for v in spec]}
    if not isinstance(spec, (TensorSpec, SparseTensorSpec)):
        raise InvalidValueError(f"Elements of {spec} cannot be saved: they must be tensors.")
    shape = None if spec.shape.rank is None else spec.shape.as_list()
    kind = {"sparse": True} if isinstance(spec, SparseTensorSpec) else {}
    return {"shape": shape, "dtype": spec.dtype.name, **kind}


def spec_from_json(saved: Any) -> Any:
    """The spec of which `spec_to_json` made JSON values."""
    if "dict" in saved:
        return {k: spec_from_json(v) for k, v in saved["dict"].items()}
    if "tuple" in saved:
        return tuple(spec_from_json(v) for v in saved["tuple"])
    kind = SparseTensorSpec if saved.get("sparse") else TensorSpec
    return kind(saved["shape"], dtypes.as_dtype(saved["dtype"]))
