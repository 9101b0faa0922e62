"""Memory of input pipelines: host arrays that become arrays of the device without being copied."""

from __future__ import annotations

import functools
import math
import mmap
from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np

try:
    # What `jax.device_put` ends in, without 30 us of looking at its arguments.
    from jax._src.lib import xla_client

    _put = xla_client.batched_device_put
except (ImportError, AttributeError):
    _put = None

__all__ = ["fresh", "is_ours", "joined", "to_device"]

# XLA takes memory as it is when it begins at a multiple of this.
ALIGNMENT = 64


# Blocks of memory without arrays, those given back last at the end.
_kept: list[mmap.mmap] = []
# Blocks of at least this many bytes are kept when their arrays are gone, as touching fresh pages costs
# more than filling them: up to so many bytes in all, in multiples of a huge page.
_LEAST, _MOST, _PAGE = 1 << 20, 1 << 26, 1 << 21


class _Memory(np.ndarray):
    """Bytes that nobody writes to after their array has been filled."""

    def __del__(self) -> None:
        # At the interpreter's end there may be no globals any more.
        if _give_back is not None and self.base is not None:
            _give_back(cast(mmap.mmap, self.base))


def _give_back(block: mmap.mmap) -> None:
    _kept.append(block)
    while sum(map(len, _kept)) > _MOST:
        del _kept[:1]


def _memory(size: int) -> _Memory:
    if size < _LEAST or size > _MOST // 2:
        return _Memory(size, np.uint8)
    size = -(-size // _PAGE) * _PAGE
    for block in reversed(_kept):
        if len(block) == size:
            try:
                _kept.remove(block)
            except ValueError:
                continue  # another thread has it
            return _Memory(size, np.uint8, block)
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return _Memory(size, np.uint8)
    # A forked process has its own.
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_HUGEPAGE)
    return _Memory(size, np.uint8, block)


def fresh(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array to be filled once, and then only read.

    Args:
      shape: its shape.
      dtype: its dtype, of fixed size.
    """
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    memory = _memory(size + ALIGNMENT)
    start = -memory.ctypes.data % ALIGNMENT
    return np.ndarray(shape, dtype, memory, start)


def is_ours(array: np.ndarray) -> bool:
    """Whether nobody changes an array: `fresh` made it or what it is a part of, or a device array has it."""
    base = array.base
    return _is_kept(base) or (base is not None and _is_kept(getattr(base, "base", None)))


def joined(arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """The part of one of our arrays whose rows are these, one after the other; None where there is none.

    Args:
      arrays: arrays of one shape and dtype.
    """
    first = arrays[0]
    whole: Any = first.base
    if type(whole) is not np.ndarray or whole.shape[1:] != first.shape or not is_ours(whole):
        return None
    if not first.nbytes or first.dtype != whole.dtype or any(a.base is not whole for a in arrays):
        return None
    start = whole.ctypes.data
    places = [a.ctypes.data - start for a in arrays]
    size = first.nbytes
    if places != list(range(places[0], places[0] + size * len(arrays), size)):
        return None
    number = places[0] // size
    alike = whole.flags.c_contiguous and all(a.flags.c_contiguous for a in arrays)
    return whole[number : number + len(arrays)] if alike else None


def _is_kept(memory: Any) -> bool:
    kind = type(memory)
    return kind is _Memory or (kind is memoryview and isinstance(memory.obj, jax.Array))


def to_device(array: np.ndarray) -> jax.Array:
    """An array of numbers on the default device; on a CPU it shares the memory of arrays that are ours.

    Args:
      array: an array, which may change later unless it is ours.
    """
    if _put is None or jax.config.jax_default_device is not None:  # type: ignore[attr-defined]
        return jax.numpy.array(array)
    address = array.__array_interface__["data"][0]
    if address % ALIGNMENT or not is_ours(array) or not array.flags.c_contiguous:
        copy = fresh(array.shape, array.dtype)
        copy[...] = array
        array = copy
    device, sharding = _default_place()
    return _put(_aval(array.shape, array.dtype), sharding, [array], [device], False)


@functools.cache
def _default_place() -> tuple[Any, Any]:
    device = jax.local_devices()[0]
    return device, jax.sharding.SingleDeviceSharding(device)


@functools.lru_cache(256)
def _aval(shape: tuple[int, ...], dtype: np.dtype) -> Any:
    return jax.core.ShapedArray(shape, dtype)
