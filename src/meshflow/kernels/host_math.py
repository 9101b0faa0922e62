"""Compiled float32 functions and random words for programs that run op by op on host arrays."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from meshflow.kernels import library

ADDRESS, INTEGER = ctypes.c_void_p, ctypes.c_int64

# In the order of host_math.cc.
FUNCTIONS = ("exp", "logistic", "tanh")
# For fewer elements, the call takes longer than NumPy's loop.
MIN_ELEMENTS = 1 << 10

# Function of an array of float32 in C order and of an array for the result, which may be the same.
FloatFunction: TypeAlias = Callable[[np.ndarray, np.ndarray], None]
# Function of an array of bool in C order, two arrays of its shape with elements of four bytes, which are in C order or
# repeat one number, and the array for the result, which may be one of these.
Selection: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], None]
# Function of uint64 arrays of one size: low and high halves of counters, and keys. It returns uint32 [size, 4]. With a
# length, the counters follow the first one; with the dtype float32, words become numbers in [0, 1).
Philox: TypeAlias = Callable[..., np.ndarray]


@functools.cache
def find_symbol(name: str, argument_types: tuple[Any, ...]) -> Any:
    """Return a function of the compiled library, or None if it is not available."""
    loaded = library.load()
    function = None if loaded is None else getattr(loaded.compiled, name, None)
    if function is not None:
        function.argtypes = argument_types
    return function


def get_address(array: np.ndarray) -> int:
    """Return the address of an array's first element, faster than `array.ctypes.data`."""
    return array.__array_interface__["data"][0]


@functools.cache
def find_float_function(name: str) -> FloatFunction | None:
    """Return the compiled function of one of `FUNCTIONS`, or None if the kernels are not available."""
    types = (ctypes.c_int32, ADDRESS, ADDRESS, INTEGER)
    function = find_symbol("meshflow_float_function", types)
    if function is None:
        return None
    code = FUNCTIONS.index(name)

    def compute(x: np.ndarray, out: np.ndarray) -> None:
        function(code, get_address(x), get_address(out), x.size)

    return compute


@functools.cache
def find_selection() -> Selection | None:
    """Return the compiled selection between two arrays, or None if the kernels are not available."""
    step = ctypes.c_int32
    types = (ADDRESS, ADDRESS, step, ADDRESS, step, ADDRESS, INTEGER)
    function = find_symbol("meshflow_select", types)
    if function is None:
        return None

    def select(which: np.ndarray, first: np.ndarray, second: np.ndarray, out: np.ndarray) -> None:
        cases = [x for a in (first, second) for x in (get_address(a), int(any(a.strides)))]
        function(get_address(which), *cases, get_address(out), which.size)

    return select


@functools.cache
def find_philox() -> Philox | None:
    """Return the compiled generator of words, or None if the kernels are not available."""
    flag = ctypes.c_int32
    types = (ADDRESS, ADDRESS, ADDRESS, INTEGER, flag, flag, ADDRESS)
    function = find_symbol("meshflow_philox_words", types)
    if function is None:
        return None

    def generate(
        low: np.ndarray,
        high: np.ndarray,
        key: np.ndarray,
        length: int | None = None,
        dtype: DTypeLike = np.uint32,
    ) -> np.ndarray:
        count = low.size if length is None else length
        words: np.ndarray = np.empty((count, 4), dtype)
        columns = map(get_address, (low, high, key))
        is_float = words.dtype == np.float32
        function(*columns, count, length is not None, is_float, get_address(words))
        return words

    return generate
