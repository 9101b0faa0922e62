"""Loops of input pipelines: rows gathered and computed on in one pass, and the draws of shuffles.

Compiled ones release the interpreter's lock and use several threads; without them NumPy gives the
same numbers.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from meshflow.kernels import library

__all__ = [
    "OPERATIONS",
    "TYPES",
    "Loops",
    "Packed",
    "Rows",
    "Step",
    "exchange",
    "operate",
    "shuffle",
    "take",
]

# What rows may hold to be computed on, in rows.cc's order, which begins with plain bytes.
TYPES = ("bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float32", "float64")
_CODES = {np.dtype(name): code for code, name in enumerate(TYPES, 1)}
# Operations with a constant, in rows.cc's order; those of two names have the constant first.
OPERATIONS = {
    "add": lambda a, b, out: np.add(a, b, out=out),
    "sub": lambda a, b, out: np.subtract(a, b, out=out),
    "sub from": lambda a, b, out: np.subtract(b, a, out=out),
    "mul": lambda a, b, out: np.multiply(a, b, out=out),
    "div": lambda a, b, out: np.divide(a, b, out=out),
    "div into": lambda a, b, out: np.divide(b, a, out=out),
}
_NUMBERS = {name: number for number, name in enumerate(OPERATIONS)}
# Threads beyond these wait for memory.
_THREADS = 4


_Byte = ctypes.c_char


class Step(NamedTuple):
    """An operation of float32 numbers with a constant.

    Attributes:
      operation: one of `OPERATIONS`.
      value: float32, a scalar, or [size] with one number for each of a row.
    """

    operation: str
    value: np.ndarray


class Packed(ctypes.Structure):
    """Operations as rows.h has them."""

    _fields_ = (
        ("count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("codes", "values", "each")),
    )

    def __init__(self, steps: Sequence[Step]) -> None:
        count = len(steps)
        # They live as long as this object.
        self.kept = steps
        self.arrays: tuple[ctypes.Array[Any], ...] = (
            (ctypes.c_int32 * count)(*[_NUMBERS[s.operation] for s in steps]),
            (ctypes.c_void_p * count)(*[s.value.ctypes.data for s in steps]),
            (ctypes.c_int32 * count)(*[s.value.ndim for s in steps]),
        )
        super().__init__(count, *(ctypes.addressof(array) for array in self.arrays))


class _Plan(ctypes.Structure):
    """What rows.cc is told about an array, as `Rows` there."""

    _fields_ = (
        ("source", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("stride", "rows", "size", "type")),
        ("steps", Packed),
    )


class Loops:
    """The compiled loops.

    Args:
      compiled: the library that has them.

    Raises:
      AttributeError: when it was built before there were any.
    """

    def __init__(self, compiled: ctypes.CDLL) -> None:
        address, number = ctypes.c_void_p, ctypes.c_int64
        self.prepare = compiled.meshflow_rows_prepare
        self.prepare.argtypes = [address]
        self.take = compiled.meshflow_rows_take
        self.take.argtypes = [address, address, number, address, ctypes.c_int]
        self.begin = compiled.meshflow_rows_begin
        self.begin.argtypes = [address, address, number, address]
        self.finish = compiled.meshflow_rows_finish
        self.finish.argtypes = [ctypes.c_int]
        self.exchange = compiled.meshflow_ring
        self.exchange.argtypes = [address, address, number, address, number, number, address]
        self.exchange.restype = number
        self.shuffle = compiled.meshflow_shuffle
        self.shuffle.argtypes = [address, number, address, number]


@functools.cache
def _loops() -> Loops | None:
    loaded = library.load()
    try:
        return None if loaded is None else Loops(loaded.compiled)
    except AttributeError:
        return None


@functools.cache
def _threads() -> int:
    return min(_THREADS, len(os.sched_getaffinity(0)))


class Rows:
    """The rows of an array, and what is computed of them.

    Args:
      array: of rank at least 1; its memory must stay where it is.
      steps: what is computed, after the numbers have become float32; None for rows as they are.

    Attributes:
      shape: the shape of a row.
      dtype: what the rows have when they are taken.
      steps: what is computed.
    """

    def __init__(self, array: np.ndarray, steps: Sequence[Step] | None = None) -> None:
        self.shape = array.shape[1:]
        self.dtype = array.dtype if steps is None else np.dtype(np.float32)
        self.steps = steps
        self._array = array
        self._take: Any = None
        loops = _loops()
        size = math.prod(self.shape)
        code = 0 if steps is None else _CODES.get(array.dtype, 0)
        known = not array.dtype.hasobject and (steps is None or code > 0)
        if loops is None or not known or not size or not _rows_are_whole(array):
            return
        # The plan holds addresses; what is there must stay.
        self._held = Packed(steps or ())
        self._plan = _Plan(
            array.ctypes.data,
            array.strides[0],
            len(array),
            size if code else size * array.itemsize,
            code,
            self._held,
        )
        self._address = ctypes.addressof(self._plan)
        # What is found out about all numbers of a type is worth it for more numbers than those.
        if steps and array.size > 4 << 8 * min(array.itemsize, 4):
            loops.prepare(self._address)
        self._take, self._threads = loops.take, _threads()
        self._begin, self._finish = loops.begin, loops.finish

    def take(self, index: np.ndarray, out: np.ndarray, address: int | None = None) -> np.ndarray:
        """Some rows.

        Args:
          index: int64 [count], their numbers.
          out: C-contiguous, [count] and as many numbers as a row has.
          address: where `out` is; it takes time to ask.

        Returns:
          `out`.

        Raises:
          IndexError: when there is no such row.
        """
        if self._take is None:
            return _by_numpy(self._array, index, out, self.steps)
        if address is None:
            address = out.ctypes.data
        index = np.ascontiguousarray(index, np.int64)
        if self._take(self._address, _address(index), len(index), address, self._threads):
            raise self._missing(index)
        return out

    @property
    def begins(self) -> bool:
        """Whether there is another thread for what is begun."""
        return self._take is not None and self._threads > 1

    def begin(self, index: np.ndarray, out: np.ndarray, address: int) -> Begun | None:
        """Has some rows taken by another thread, as `take` does; None where there is no such thread."""
        if not self.begins:
            return None
        index = np.ascontiguousarray(index, np.int64)
        job = self._begin(self._address, _address(index), len(index), address)
        return None if job < 0 else Begun(self, index, out, job)

    def _missing(self, index: np.ndarray) -> IndexError:
        count = len(self._array)
        return IndexError(f"rows {index.min()} to {index.max()} of an array that has {count}")


class Begun:
    """Rows that another thread takes; nothing they need ends before they are there."""

    __slots__ = ("_index", "_job", "_out", "_rows")

    def __init__(self, rows: Rows, index: np.ndarray, out: np.ndarray, job: int) -> None:
        self._rows, self._index, self._out, self._job = rows, index, out, job

    def __del__(self) -> None:
        if self._job >= 0:
            self._rows._finish(self._job)

    def result(self) -> np.ndarray:
        """The rows; to be asked for once.

        Raises:
          IndexError: when there is no such row.
        """
        job, self._job = self._job, -1
        if self._rows._finish(job):
            raise self._rows._missing(self._index)
        return self._out


def _address(index: np.ndarray) -> int:
    try:
        # A third of the time of `index.ctypes`.
        return ctypes.addressof(_Byte.from_buffer(index))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return index.ctypes.data


def take(
    array: np.ndarray, index: np.ndarray, out: np.ndarray, steps: Sequence[Step] | None = None
) -> np.ndarray:
    """Rows of an array, by their numbers: `Rows` used once."""
    return Rows(array, steps).take(index, out)


def _rows_are_whole(array: np.ndarray) -> bool:
    """Whether the numbers of a row lie side by side."""
    width = array.itemsize
    for size, stride in zip(array.shape[:0:-1], array.strides[:0:-1], strict=True):
        if size != 1 and stride != width:
            return False
        width *= size
    return True


def _by_numpy(
    array: np.ndarray, index: np.ndarray, out: np.ndarray, steps: Sequence[Step] | None
) -> np.ndarray:
    # Taking from an array in memory is faster than indexing it; one on disk is no plain array.
    found = array.take(index, 0) if type(array) is np.ndarray else array[index]
    out[...] = found.reshape(out.shape)
    operate(out.reshape(len(out), -1), steps or ())
    return out


def operate(rows: np.ndarray, steps: Sequence[Step]) -> None:
    """Does operations on rows, in place.

    Args:
      rows: float32 [count, size].
      steps: the operations.
    """
    with np.errstate(all="ignore"):
        for step in steps:
            OPERATIONS[step.operation](rows, step.value, rows)


def exchange(
    words: np.ndarray, items: np.ndarray, buffer: np.ndarray, first: int
) -> tuple[np.ndarray, int]:
    """Numbers taken from random places of a full ring, which gets new ones at its end, one after the other.

    Args:
      words: uint32 [count], random.
      items: int64 [count], the new numbers.
      buffer: int64, changed.
      first: the place of the ring's first number.

    Returns:
      (int64 [count], the place of the first number afterwards).
    """
    found = np.empty(len(items), np.int64)
    compiled = _loops()
    if compiled is not None:
        items, words = np.ascontiguousarray(items, np.int64), np.ascontiguousarray(words, np.uint32)
        first = compiled.exchange(
            words.ctypes.data,
            items.ctypes.data,
            len(items),
            buffer.ctypes.data,
            len(buffer),
            first,
            found.ctypes.data,
        )
        return found, first
    size = len(buffer)
    for i, (offset, item) in enumerate(zip((words % size).tolist(), items.tolist(), strict=True)):
        place = (first + offset) % size
        found[i], buffer[place], buffer[first] = buffer[place], buffer[first], item
        first = (first + 1) % size
    return found, first


def shuffle(words: np.ndarray, buffer: np.ndarray) -> np.ndarray:
    """All numbers of a buffer in random order (Fisher and Yates), exchanged from the front as in TensorFlow's kernels.

    Args:
      words: uint32, random, one for each number; the last one may be left out.
      buffer: int64 [count], changed.

    Returns:
      The buffer.
    """
    compiled = _loops()
    if compiled is not None:
        words = np.ascontiguousarray(words, np.uint32)
        compiled.shuffle(words.ctypes.data, len(words), buffer.ctypes.data, len(buffer))
        return buffer
    left = buffer.tolist()
    for i, word in enumerate(words.tolist()):
        place = i + word % (len(left) - i)
        left[i], left[place] = left[place], left[i]
    buffer[:] = left
    return buffer
