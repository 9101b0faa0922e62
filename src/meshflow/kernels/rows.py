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

__all__ = ["OPERATIONS", "TYPES", "Loops", "Packed", "Step", "drain", "exchange", "operate", "take"]

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

    _fields_ = [
        ("count", ctypes.c_int64),
        ("codes", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("each", ctypes.c_void_p),
    ]

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


class Loops:
    """The compiled loops.

    Args:
      compiled: the library that has them.

    Raises:
      AttributeError: when it was built before there were any.
    """

    def __init__(self, compiled: ctypes.CDLL) -> None:
        address, number = ctypes.c_void_p, ctypes.c_int64
        self.rows = compiled.meshflow_rows
        self.rows.argtypes = [
            *(address, number, number, address, number, number, ctypes.c_int, address),
            *(ctypes.POINTER(Packed), ctypes.c_int),
        ]
        self.exchange = compiled.meshflow_exchange
        self.exchange.argtypes = [address, address, number, address, number, address]
        self.drain = compiled.meshflow_drain
        self.drain.argtypes = [address, address, number]


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


def take(
    array: np.ndarray, index: np.ndarray, out: np.ndarray, steps: Sequence[Step] | None = None
) -> np.ndarray:
    """Rows of an array, by their numbers.

    Args:
      array: of rank at least 1.
      index: int64 [count].
      out: C-contiguous, [count] and the shape of a row; of the array's dtype or, with steps, float32.
      steps: what is computed of them, after they have become float32.

    Returns:
      `out`.

    Raises:
      IndexError: when there is no such row.
    """
    compiled = _loops()
    size = math.prod(array.shape[1:])
    code = 0 if steps is None else _CODES.get(array.dtype, 0)
    known = array.dtype != object and (steps is None or code > 0)
    if compiled is None or not known or not size or not _rows_are_whole(array):
        return _by_numpy(array, index, out, steps)
    index = np.ascontiguousarray(index, np.int64)
    failed = compiled.rows(
        array.ctypes.data,
        array.strides[0],
        len(array),
        index.ctypes.data,
        len(index),
        size if code else size * array.itemsize,
        code,
        out.ctypes.data,
        Packed(steps or ()),
        _threads(),
    )
    if failed:
        raise IndexError(f"rows {index.min()} to {index.max()} of an array that has {len(array)}")
    return out


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
    out[...] = array.take(index, 0) if type(array) is np.ndarray else array[index]
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


def exchange(draws: np.ndarray, items: np.ndarray, buffer: np.ndarray) -> np.ndarray:
    """Numbers taken from random places of a buffer, where new ones are put, one after the other.

    Args:
      draws: float64 [count] in [0, 1).
      items: int64 [count], the new numbers.
      buffer: int64, changed.

    Returns:
      int64 [count].
    """
    compiled = _loops()
    if compiled is not None:
        items = np.ascontiguousarray(items, np.int64)
        found = np.empty(len(items), np.int64)
        compiled.exchange(
            draws.ctypes.data,
            items.ctypes.data,
            len(items),
            buffer.ctypes.data,
            len(buffer),
            found.ctypes.data,
        )
        return found
    at = (draws * len(buffer)).astype(np.int64)
    # A place that an earlier item took gives that item; others what they held.
    order = np.argsort(at, kind="stable")
    again = np.flatnonzero(at[order[1:]] == at[order[:-1]])
    found = buffer[at]
    found[order[again + 1]] = items[order[again]]
    buffer[at] = items
    return found


def drain(draws: np.ndarray, buffer: np.ndarray) -> np.ndarray:
    """All numbers of a buffer in random order.

    Args:
      draws: float64 [count] in [0, 1).
      buffer: int64 [count], changed.
    """
    compiled = _loops()
    if compiled is not None:
        compiled.drain(draws.ctypes.data, buffer.ctypes.data, len(buffer))
        return buffer[::-1]
    left = buffer.tolist()
    for size, draw in zip(range(len(left), 0, -1), draws.tolist(), strict=True):
        place = int(draw * size)
        left[place], left[size - 1] = left[size - 1], left[place]
    return np.array(left[::-1], np.int64)
