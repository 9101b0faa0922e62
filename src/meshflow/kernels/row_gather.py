"""Loops of input pipelines: gathering rows with elementwise steps in one pass, and shuffling.

The compiled loops release the global interpreter lock and use several threads; without them, NumPy
computes the same values.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from meshflow.environment import cpu_info
from meshflow.kernels import library

# Element types that rows may have if steps are applied, in row_gather.cc's order after plain bytes.
TYPES = ("bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float32", "float64")
_CODES = {np.dtype(name): code for code, name in enumerate(TYPES, 1)}
# Operations with a constant, in row_gather.cc's order; "from" and "into" exchange the operands.
OPERATIONS = {
    "add": lambda a, b, out: np.add(a, b, out=out),
    "sub": lambda a, b, out: np.subtract(a, b, out=out),
    "sub from": lambda a, b, out: np.subtract(b, a, out=out),
    "mul": lambda a, b, out: np.multiply(a, b, out=out),
    "div": lambda a, b, out: np.divide(a, b, out=out),
    "div into": lambda a, b, out: np.divide(b, a, out=out),
}
_OPERATION_CODES = {name: number for number, name in enumerate(OPERATIONS)}
# More threads would wait for memory.
_MAX_THREADS = 4


_Byte = ctypes.c_char


class RowStep(NamedTuple):
    """An operation of float32 rows with a constant.

    Attributes:
      operation: One of `OPERATIONS`.
      value: float32: a scalar, or [size] with one value for each element of a row.
    """

    operation: str
    value: np.ndarray


class PackedSteps(ctypes.Structure):
    """Steps as in row_gather.h."""

    _fields_ = (
        ("count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("codes", "values", "each")),
    )

    def __init__(self, steps: Sequence[RowStep]) -> None:
        count = len(steps)
        # The structure holds addresses of these, so they must live as long as this object.
        self.steps = steps
        self.arrays: tuple[ctypes.Array[Any], ...] = (
            (ctypes.c_int32 * count)(*[_OPERATION_CODES[s.operation] for s in steps]),
            (ctypes.c_void_p * count)(*[s.value.ctypes.data for s in steps]),
            (ctypes.c_int32 * count)(*[s.value.ndim for s in steps]),
        )
        super().__init__(count, *(ctypes.addressof(array) for array in self.arrays))


class _RowsDescription(ctypes.Structure):
    """Description of an array for row_gather.cc, as `Rows` there."""

    _fields_ = (
        ("source", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("stride", "rows", "size", "type")),
        ("steps", PackedSteps),
    )


class CompiledLoops:
    """The compiled loops.

    Args:
      compiled: The library that contains them.

    Raises:
      AttributeError: If the library is older than the loops.
    """

    def __init__(self, compiled: ctypes.CDLL) -> None:
        address, integer = ctypes.c_void_p, ctypes.c_int64
        self.prepare = compiled.meshflow_rows_prepare
        self.prepare.argtypes = [address]
        self.take = compiled.meshflow_rows_take
        self.take.argtypes = [address, address, integer, address, ctypes.c_int]
        self.begin = compiled.meshflow_rows_begin
        self.begin.argtypes = [address, address, integer, address]
        self.finish = compiled.meshflow_rows_finish
        self.finish.argtypes = [ctypes.c_int]
        self.exchange = compiled.meshflow_ring
        self.exchange.argtypes = [address, address, integer, address, integer, integer, address]
        self.exchange.restype = integer
        self.shuffle = compiled.meshflow_shuffle
        self.shuffle.argtypes = [address, integer, address, integer]


@functools.cache
def _load_loops() -> CompiledLoops | None:
    loaded = library.load()
    try:
        return None if loaded is None else CompiledLoops(loaded.compiled)
    except AttributeError:
        return None


@functools.cache
def _count_threads() -> int:
    return min(_MAX_THREADS, cpu_info.count_processors())


class RowSource:
    """The rows of an array, optionally with elementwise steps.

    Args:
      array: Array of rank at least 1; its memory must not move.
      steps: Steps applied after a cast to float32; None for unchanged rows.

    Attributes:
      shape: Shape of a row.
      dtype: Dtype of the gathered rows.
      steps: The steps.
    """

    def __init__(self, array: np.ndarray, steps: Sequence[RowStep] | None = None) -> None:
        self.shape = array.shape[1:]
        self.dtype = array.dtype if steps is None else np.dtype(np.float32)
        self.steps = steps
        self._array = array
        self._take: Any = None
        loops = _load_loops()
        size = math.prod(self.shape)
        code = 0 if steps is None else _CODES.get(array.dtype, 0)
        is_supported = not array.dtype.hasobject and (steps is None or code > 0)
        if loops is None or not is_supported or not size or not _has_contiguous_rows(array):
            return
        # The plan holds addresses of these arrays, so keep them alive.
        self._packed_steps = PackedSteps(steps or ())
        self._description = _RowsDescription(
            array.ctypes.data,
            array.strides[0],
            len(array),
            size if code else size * array.itemsize,
            code,
            self._packed_steps,
        )
        self._address = ctypes.addressof(self._description)
        # The table of results for all values of a small type pays off only for larger arrays.
        if steps and array.size > 4 << 8 * min(array.itemsize, 4):
            loops.prepare(self._address)
        self._take, self._threads = loops.take, _count_threads()
        self._begin, self.finish = loops.begin, loops.finish

    def take(self, index: np.ndarray, out: np.ndarray, address: int | None = None) -> np.ndarray:
        """Gather rows.

        Args:
          index: int64 [count], indices of the rows.
          out: C-contiguous, [count] and as many elements as a row has.
          address: Address of `out`, if known; computing it takes time.

        Returns:
          `out`.

        Raises:
          IndexError: If an index is out of range.
        """
        if self._take is None:
            return _take_with_numpy(self._array, index, out, self.steps)
        if address is None:
            address = out.ctypes.data
        index = np.ascontiguousarray(index, np.int64)
        if self._take(self._address, _get_address(index), len(index), address, self._threads):
            raise self.make_index_error(index)
        return out

    @property
    def has_worker_thread(self) -> bool:
        """Check whether `start` can use another thread."""
        return self._take is not None and self._threads > 1

    def start(self, index: np.ndarray, out: np.ndarray, address: int) -> PendingRows | None:
        """Gather rows as `take` does, on another thread; return None if there is no such thread."""
        if not self.has_worker_thread:
            return None
        index = np.ascontiguousarray(index, np.int64)
        job = self._begin(self._address, _get_address(index), len(index), address)
        return None if job < 0 else PendingRows(self, index, out, job)

    def make_index_error(self, index: np.ndarray) -> IndexError:
        """Create the error for indices that are out of range."""
        count = len(self._array)
        return IndexError(f"rows {index.min()} to {index.max()} of an array that has {count}")


class PendingRows:
    """Rows that another thread gathers. The operands are kept alive until it has finished."""

    __slots__ = ("_index", "_job", "_out", "_rows")

    def __init__(self, rows: RowSource, index: np.ndarray, out: np.ndarray, job: int) -> None:
        self._rows, self._index, self._out, self._job = rows, index, out, job

    def __del__(self) -> None:
        if self._job >= 0:
            self._rows.finish(self._job)

    def result(self) -> np.ndarray:
        """Return the rows; may be called once.

        Raises:
          IndexError: If an index is out of range.
        """
        job, self._job = self._job, -1
        if self._rows.finish(job):
            raise self._rows.make_index_error(self._index)
        return self._out


def _get_address(index: np.ndarray) -> int:
    try:
        # This takes a third of the time of `index.ctypes`.
        return ctypes.addressof(_Byte.from_buffer(index))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return index.ctypes.data


def take_rows(
    array: np.ndarray, index: np.ndarray, out: np.ndarray, steps: Sequence[RowStep] | None = None
) -> np.ndarray:
    """Gather rows of an array once; see `RowSource.take`."""
    return RowSource(array, steps).take(index, out)


def _has_contiguous_rows(array: np.ndarray) -> bool:
    """Check whether the elements of a row are contiguous."""
    width = array.itemsize
    for size, stride in zip(array.shape[:0:-1], array.strides[:0:-1], strict=True):
        if size != 1 and stride != width:
            return False
        width *= size
    return True


def _take_with_numpy(
    array: np.ndarray, index: np.ndarray, out: np.ndarray, steps: Sequence[RowStep] | None
) -> np.ndarray:
    # Taking from an array in memory is faster than indexing it; a memory-mapped one needs indexing.
    rows = array.take(index, 0) if type(array) is np.ndarray else array[index]
    out[...] = rows.reshape(out.shape)
    apply_steps(out.reshape(len(out), -1), steps or ())
    return out


def apply_steps(rows: np.ndarray, steps: Sequence[RowStep]) -> None:
    """Apply steps to rows, in place.

    Args:
      rows: float32 [count, size].
      steps: The steps.
    """
    with np.errstate(all="ignore"):
        for step in steps:
            OPERATIONS[step.operation](rows, step.value, rows)


def exchange_ring(
    words: np.ndarray, items: np.ndarray, buffer: np.ndarray, first: int
) -> tuple[np.ndarray, int]:
    """Replace random elements of a full ring buffer, in sequence, and append new ones.

    Args:
      words: uint32 [count], random.
      items: int64 [count], new elements.
      buffer: int64, changed in place.
      first: Index of the ring's first element.

    Returns:
      The removed elements, int64 [count], and the new index of the first element.
    """
    removed = np.empty(len(items), np.int64)
    loops = _load_loops()
    if loops is not None:
        items, words = np.ascontiguousarray(items, np.int64), np.ascontiguousarray(words, np.uint32)
        first = loops.exchange(
            words.ctypes.data,
            items.ctypes.data,
            len(items),
            buffer.ctypes.data,
            len(buffer),
            first,
            removed.ctypes.data,
        )
        return removed, first
    size = len(buffer)
    for i, (offset, item) in enumerate(zip((words % size).tolist(), items.tolist(), strict=True)):
        index = (first + offset) % size
        removed[i], buffer[index], buffer[first] = buffer[index], buffer[first], item
        first = (first + 1) % size
    return removed, first


def shuffle(words: np.ndarray, buffer: np.ndarray) -> np.ndarray:
    """Shuffle a buffer (Fisher and Yates), exchanging from the front like TensorFlow's kernels.

    Args:
      words: uint32, random, one for each element; the last one is optional.
      buffer: int64 [count], changed in place.

    Returns:
      The buffer.
    """
    loops = _load_loops()
    if loops is not None:
        words = np.ascontiguousarray(words, np.uint32)
        loops.shuffle(words.ctypes.data, len(words), buffer.ctypes.data, len(buffer))
        return buffer
    items = buffer.tolist()
    for i, word in enumerate(words.tolist()):
        j = i + word % (len(items) - i)
        items[i], items[j] = items[j], items[i]
    buffer[:] = items
    return buffer
