"""Transfers of host arrays to the device, and the host memory that input pipelines share with it."""

from __future__ import annotations

import functools
import math
import mmap
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import DTypeLike

from meshflow.core.runtime.forks import Fork, after_fork
from meshflow.environment import jax_internals

# These private functions of JAX are None where a JAX version does not have them.
_put, _let_go = jax_internals.batched_device_put, jax_internals.collect_garbage
_ALWAYS = getattr(jax_internals.array_copy_semantics, "ALWAYS_COPY", None)
_copy = None if _ALWAYS is None else jax_internals.copy_to_devices

__all__ = [
    "duplicate",
    "filled_at",
    "forget_place",
    "fresh",
    "is_ours",
    "joined",
    "lent",
    "let_go",
    "to_device",
    "transfer",
]

# XLA uses host memory without a copy if its address is a multiple of this number of bytes.
ALIGNMENT = 64
# Arrays of up to the first number of bytes are cut from a common buffer of the second number of
# bytes.
_PIECE, _PIECES = 1 << 13, 1 << 16
# Larger arrays are allocated in blocks, which are reused when an array is deleted: touching fresh
# pages costs more than filling them. The constants are the size of the largest block, the total
# size of the free blocks, the approximate size of the mappings from which blocks are cut, and the
# size of a huge page, in bytes.
_LARGEST, _MOST, _MAPPING, _PAGE = 1 << 25, 1 << 26, 1 << 22, 1 << 21


class _Block(NamedTuple):
    """A part of a memory mapping. The mapping is removed with its last block."""

    memory: memoryview
    address: int
    size: int


class _Memory(np.ndarray):
    """Bytes that are not written to after their array has been filled."""

    block: _Block | None = None

    def __del__(self) -> None:
        # Module globals may be None while the interpreter shuts down.
        if self.block is not None and _give_back is not None:
            _give_back(self.block)


class _Lent(_Memory):
    """Write-once bytes in memory of another owner, which is notified when they are no longer used."""

    over: Callable[[], None] | None = None

    def __del__(self) -> None:
        if self.over is not None:
            self.over()


# Free blocks. The most recently freed ones are reused first, because they are still in the
# processor's caches.
_kept: list[_Block] = []
_kept_bytes = 0
# The lock is never waited for: an array may be deleted, and release its block, while its own thread
# holds the lock.
_lock = threading.Lock()


def _give_back(block: _Block) -> None:
    global _kept_bytes
    if _lock.acquire(False):
        try:
            _kept.append(block)
            _kept_bytes += block.size
            while _kept_bytes > _MOST:
                _kept_bytes -= _kept.pop(0).size
        finally:
            _lock.release()


def _kept_block(size: int) -> _Block | None:
    global _kept_bytes
    if _let_go is not None:
        _let_go()
    if not _kept or not _lock.acquire(False):
        return None
    try:
        for index in range(len(_kept) - 1, -1, -1):
            if _kept[index].size == size:
                _kept_bytes -= size
                return _kept.pop(index)
        return None
    finally:
        _lock.release()


def _mapped(size: int) -> _Block:
    """Return a block of a new mapping; the other blocks of the mapping become free ones."""
    length = -(-size // _PAGE) * _PAGE if size > _MAPPING else min(_MAPPING, 64 * size)
    # The mapping is private, so a forked process gets its own copy.
    mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    memory = memoryview(mapping)
    address = np.frombuffer(mapping, np.uint8).ctypes.data
    starts = range(0, length - size + 1, size)
    block, *free_blocks = (_Block(memory[s : s + size], address + s, size) for s in starts)
    for free_block in free_blocks:
        _give_back(free_block)
    return block


class _Pieces(threading.local):
    """The buffer of a thread from which small arrays are cut in sequence."""

    memory: np.ndarray
    address = 0
    at = _PIECES


_pieces = _Pieces()


def _memory(size: int) -> tuple[np.ndarray, int, int]:
    """Return bytes, the offset at which an array can start in them, and its address."""
    if size <= _PIECE:
        offset, _pieces.at = _pieces.at, _pieces.at + size + -size % ALIGNMENT
        if _pieces.at > _PIECES:
            _pieces.memory, offset, _pieces.address = _aligned(_PIECES)
            _pieces.address -= offset
            _pieces.at = offset + size + -size % ALIGNMENT
        return _pieces.memory, offset, _pieces.address + offset
    if size > _LARGEST or not hasattr(mmap, "MADV_HUGEPAGE"):
        return _aligned(size)
    # Sizes are rounded up to few different values, so arrays of similar sizes can share blocks.
    unit = 1 << size.bit_length() - 4
    size = -(-size // unit) * unit
    block = _kept_block(size) or _mapped(size)
    memory = _Memory(size, np.uint8, block.memory)
    memory.block = block
    return memory, 0, block.address


def _aligned(size: int) -> tuple[np.ndarray, int, int]:
    memory = _Memory(size + ALIGNMENT, np.uint8)
    address = memory.ctypes.data
    start = -address % ALIGNMENT
    return memory, start, address + start


def filled_at(shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, int]:
    """Allocate an array like `allocate`, and return it with its address.

    Args:
      shape: Shape of the array.
      dtype: Dtype of the array, of fixed size.
    """
    memory, start, address = _memory(math.prod(shape) * dtype.itemsize)
    return np.ndarray(shape, dtype, memory, start), address


def fresh(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Allocate an array that is filled once and only read afterwards.

    Device arrays can share its memory.

    Args:
      shape: Shape of the array.
      dtype: Dtype of the array, of fixed size.
    """
    return filled_at(shape, np.dtype(dtype))[0]


def lent(memory: memoryview, on_release: Callable[[], None]) -> np.ndarray:
    """Wrap read-only bytes of another owner, so that device arrays can share them.

    Args:
      memory: The bytes, which the owner must not change.
      on_release: Called when the array is no longer used. Call `release_deleted_arrays` to detect
        the deletion of device arrays.
    """
    foreign = _Lent(len(memory), np.uint8, memory)
    foreign.over = on_release
    return np.ndarray(len(memory), np.uint8, foreign)


def let_go() -> None:
    """Make deleted device arrays release the host memory that they shared."""
    if _let_go is not None:
        _let_go()


def is_ours(array: np.ndarray) -> bool:
    """Check whether an array never changes.

    Either this module allocated its memory, or the memory belongs to a device array.
    """
    base = array.base
    return _is_kept(base) or (base is not None and _is_kept(getattr(base, "base", None)))


def joined(arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return one view of consecutive rows of an immutable array, or None for other arrays.

    Args:
      arrays: Arrays of one shape and dtype, for example views of single rows.
    """
    first = arrays[0]
    parent: Any = first.base
    if type(parent) is not np.ndarray or parent.shape[1:] != first.shape or not is_ours(parent):
        return None
    if not first.nbytes or first.dtype != parent.dtype or any(a.base is not parent for a in arrays):
        return None
    start = parent.ctypes.data
    offsets = [a.ctypes.data - start for a in arrays]
    size = first.nbytes
    if offsets != list(range(offsets[0], offsets[0] + size * len(arrays), size)):
        return None
    row = offsets[0] // size
    contiguous = parent.flags.c_contiguous and all(a.flags.c_contiguous for a in arrays)
    return parent[row : row + len(arrays)] if contiguous else None


def _is_kept(memory: object) -> bool:
    memory_type = type(memory)
    if isinstance(memory, memoryview):
        # A view of a device array, or of the read-only array that unpickling creates.
        owner: Any = memory.obj
        return isinstance(owner, jax.Array) or (
            type(owner) is np.ndarray and type(owner.base) in _OURS
        )
    return memory_type in _OURS


_OURS = (_Memory, _Lent)


def to_device(array: np.ndarray) -> jax.Array:
    """Transfer a numeric array to the default device.

    On a CPU, the result shares the memory of an immutable array.

    Args:
      array: The array; it may be changed afterwards unless it is immutable.
    """
    if not is_ours(array) or not array.flags.c_contiguous:
        copy = fresh(array.shape, array.dtype)
        copy[...] = array
        array = copy
    # XLA copies an array with an unaligned address, and keeps a reference to it until then.
    return transfer(array, copy=False)


def transfer(array: np.ndarray, copy: bool = True) -> jax.Array:
    """Transfer a numeric array to the default device without compiling a program.

    `jax.numpy.array` compiles a program for each shape.

    Args:
      array: The array.
      copy: Whether the array may be changed afterwards. If False, a CPU device shares its memory.
    """
    if Fork.late:
        raise after_fork()
    if _put is None or jax.config.jax_default_device is not None:  # type: ignore[attr-defined]
        return jax.device_put(np.array(array) if copy else array)
    device, sharding = _default_place()
    return _put(_aval(array.shape, array.dtype), sharding, [array], [device], False, copy)


def duplicate(array: jax.Array) -> jax.Array:
    """Copy an array to new buffers on the same devices without compiling a program.

    Args:
      array: An array, not a tracer.
    """
    if Fork.late:
        raise after_fork()
    if not array.is_fully_addressable:
        return jax.numpy.array(
            array, copy=True
        )  # JAX cannot transfer the shards of a global array.
    if _copy is None:
        return jax.device_put(array, may_alias=False)
    sharding: Any = array.sharding
    # `jax.device_put` ends in this call, but first inspects its arguments for 100 microseconds.
    return _copy([array], [sharding._internal_device_list], [sharding], [_ALWAYS])[0]


@functools.cache
def _default_place() -> tuple[jax.Device, jax.sharding.Sharding]:
    device = jax.local_devices()[0]
    return device, jax.sharding.SingleDeviceSharding(device)


def forget_place() -> None:
    """Has the default device be looked up again, after the devices were started anew."""
    _default_place.cache_clear()


@functools.lru_cache(256)
def _aval(shape: tuple[int, ...], dtype: np.dtype) -> jax.core.ShapedArray:
    return jax.core.ShapedArray(shape, dtype)
