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

from meshflow.core.runtime.forks import ForkState, make_fork_error
from meshflow.environment import jax_internals

# These private functions of JAX are None where a JAX version does not have them.
_device_put, _collect_device_arrays = (
    jax_internals.batched_device_put,
    jax_internals.collect_garbage,
)
_ALWAYS_COPY = getattr(jax_internals.array_copy_semantics, "ALWAYS_COPY", None)
_copy_to_devices = None if _ALWAYS_COPY is None else jax_internals.copy_to_devices

# XLA uses host memory without a copy if its address is a multiple of this number of bytes.
ALIGNMENT = 64
# Arrays of up to the first number of bytes are cut from a common buffer of the second number of
# bytes.
_MAX_SMALL_BYTES, _ARENA_BYTES = 1 << 13, 1 << 16
# Larger arrays are allocated in blocks, which are reused when an array is deleted: touching fresh
# pages costs more than filling them. The constants are the size of the largest block, the total
# size of the free blocks, and the approximate size of the mappings from which blocks are cut, in bytes.
# Huge pages are not requested: where memory is fragmented, the system moves other pages for them, which
# takes several times as long as filling small ones. On the other hand, the host reads resident arrays of
# megabytes up to 1.4 times as slowly.
_MAX_BLOCK_BYTES, _MAX_FREE_BYTES, _MAPPING_BYTES = 1 << 25, 1 << 26, 1 << 22


class _MemoryBlock(NamedTuple):
    """A part of a memory mapping. The mapping is removed with its last block."""

    memory: memoryview
    address: int
    size: int


class _WriteOnceMemory(np.ndarray):
    """Bytes that are not written to after their array has been filled."""

    block: _MemoryBlock | None = None

    def __del__(self) -> None:
        # Module globals may be None while the interpreter shuts down.
        if self.block is not None and _release_block is not None:
            _release_block(self.block)


class _ForeignMemory(_WriteOnceMemory):
    """Write-once bytes in memory of another owner, which is notified when they are no longer used."""

    on_release: Callable[[], None] | None = None

    def __del__(self) -> None:
        if self.on_release is not None:
            self.on_release()


# Free blocks. The most recently freed ones are reused first, because they are still in the
# processor's caches.
_free_blocks: list[_MemoryBlock] = []
_free_bytes = 0
# The lock is never waited for: an array may be deleted, and release its block, while its own thread
# holds the lock.
_lock = threading.Lock()


def _release_block(block: _MemoryBlock) -> None:
    global _free_bytes
    if _lock.acquire(False):
        try:
            _free_blocks.append(block)
            _free_bytes += block.size
            while _free_bytes > _MAX_FREE_BYTES:
                _free_bytes -= _free_blocks.pop(0).size
        finally:
            _lock.release()


def _take_free_block(size: int) -> _MemoryBlock | None:
    global _free_bytes
    release_deleted_arrays()
    if not _free_blocks or not _lock.acquire(False):
        return None
    try:
        for index in range(len(_free_blocks) - 1, -1, -1):
            if _free_blocks[index].size == size:
                _free_bytes -= size
                return _free_blocks.pop(index)
        return None
    finally:
        _lock.release()


def _map_block(size: int) -> _MemoryBlock:
    """Return a block of a new mapping; the other blocks of the mapping become free ones."""
    length = max(size, min(_MAPPING_BYTES, 64 * size))
    # The mapping is private, so a forked process gets its own copy.
    mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = memoryview(mapping)
    address = np.frombuffer(mapping, np.uint8).ctypes.data
    starts = range(0, length - size + 1, size)
    block, *free_blocks = (_MemoryBlock(memory[s : s + size], address + s, size) for s in starts)
    for free_block in free_blocks:
        _release_block(free_block)
    return block


class _SmallArrayArena(threading.local):
    """The buffer of a thread from which small arrays are cut in sequence."""

    memory: np.ndarray
    address = 0
    offset = _ARENA_BYTES


_arena = _SmallArrayArena()


def _allocate_memory(size: int) -> tuple[np.ndarray, int, int]:
    """Return bytes, the offset at which an array can start in them, and its address."""
    # The buffer of a thread without small arrays has room for no bytes, but does not exist.
    size = max(size, 1)
    if size <= _MAX_SMALL_BYTES:
        offset, _arena.offset = _arena.offset, _arena.offset + size + -size % ALIGNMENT
        if _arena.offset > _ARENA_BYTES:
            _arena.memory, offset, _arena.address = _allocate_aligned(_ARENA_BYTES)
            _arena.address -= offset
            _arena.offset = offset + size + -size % ALIGNMENT
        return _arena.memory, offset, _arena.address + offset
    if size > _MAX_BLOCK_BYTES or not hasattr(mmap, "MAP_PRIVATE"):
        return _allocate_aligned(size)
    # Sizes are rounded up to few different values, so arrays of similar sizes can share blocks.
    unit = 1 << size.bit_length() - 4
    size = -(-size // unit) * unit
    block = _take_free_block(size) or _map_block(size)
    memory = _WriteOnceMemory(size, np.uint8, block.memory)
    memory.block = block
    return memory, 0, block.address


def _allocate_aligned(size: int) -> tuple[np.ndarray, int, int]:
    memory = _WriteOnceMemory(size + ALIGNMENT, np.uint8)
    address = memory.ctypes.data
    start = -address % ALIGNMENT
    return memory, start, address + start


def allocate_with_address(shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, int]:
    """Allocate an array like `allocate`, and return it with its address.

    Args:
      shape: Shape of the array.
      dtype: Dtype of the array, of fixed size.
    """
    memory, start, address = _allocate_memory(math.prod(shape) * dtype.itemsize)
    return np.ndarray(shape, dtype, memory, start), address


def allocate(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Allocate an array that is filled once and only read afterwards.

    Device arrays can share its memory.

    Args:
      shape: Shape of the array.
      dtype: Dtype of the array, of fixed size.
    """
    return allocate_with_address(shape, np.dtype(dtype))[0]


def wrap_foreign_memory(memory: memoryview, on_release: Callable[[], None]) -> np.ndarray:
    """Wrap read-only bytes of another owner, so that device arrays can share them.

    Args:
      memory: The bytes, which the owner must not change.
      on_release: Called when the array is no longer used. Call `release_deleted_arrays` to detect
        the deletion of device arrays.
    """
    foreign = _ForeignMemory(len(memory), np.uint8, memory)
    foreign.on_release = on_release
    return np.ndarray(len(memory), np.uint8, foreign)


def release_deleted_arrays() -> None:
    """Make deleted device arrays release the host memory that they shared."""
    if _collect_device_arrays is not None:
        _collect_device_arrays()


def release_free_blocks() -> None:
    """Return the free memory of deleted arrays to the system, except for parts of mappings that are in use."""
    global _free_bytes
    release_deleted_arrays()
    if _lock.acquire(False):
        try:
            _free_blocks.clear()
            _free_bytes = 0
        finally:
            _lock.release()


def is_immutable(array: np.ndarray) -> bool:
    """Check whether an array never changes.

    Either this module allocated its memory, or the memory belongs to a device array.
    """
    base = array.base
    return _is_write_once(base) or (
        base is not None and _is_write_once(getattr(base, "base", None))
    )


def join_adjacent(arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return one view of consecutive rows of an immutable array, or None for other arrays.

    Args:
      arrays: Arrays of one shape and dtype, for example views of single rows.
    """
    first = arrays[0]
    parent: Any = first.base
    if (
        type(parent) is not np.ndarray
        or parent.shape[1:] != first.shape
        or not is_immutable(parent)
    ):
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


def _is_write_once(memory: object) -> bool:
    memory_type = type(memory)
    if isinstance(memory, memoryview):
        # A view of a device array, or of the read-only array that unpickling creates.
        owner: Any = memory.obj
        return isinstance(owner, jax.Array) or (
            type(owner) is np.ndarray and type(owner.base) in _WRITE_ONCE_TYPES
        )
    return memory_type in _WRITE_ONCE_TYPES


_WRITE_ONCE_TYPES = (_WriteOnceMemory, _ForeignMemory)


def to_device(array: np.ndarray) -> jax.Array:
    """Transfer a numeric array to the default device.

    On a CPU, the result shares the memory of an immutable array.

    Args:
      array: The array; it may be changed afterwards unless it is immutable.
    """
    if not is_immutable(array) or not array.flags.c_contiguous:
        copy = allocate(array.shape, array.dtype)
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
    if ForkState.forked_late:
        raise make_fork_error()
    if _device_put is None or jax.config.jax_default_device is not None:  # type: ignore[attr-defined]
        return jax.device_put(np.array(array) if copy else array)
    device, sharding = _get_default_device()
    return _device_put(
        _make_aval(array.shape, array.dtype), sharding, [array], [device], False, copy
    )


def duplicate(array: jax.Array) -> jax.Array:
    """Copy an array to new buffers on the same devices without compiling a program.

    Args:
      array: An array, not a tracer.
    """
    if ForkState.forked_late:
        raise make_fork_error()
    if not array.is_fully_addressable:
        return jax.numpy.array(
            array, copy=True
        )  # JAX cannot transfer the shards of a global array.
    if _copy_to_devices is None:
        return jax.device_put(array, may_alias=False)
    sharding: Any = array.sharding
    # `jax.device_put` ends in this call, but first inspects its arguments for 100 microseconds.
    return _copy_to_devices([array], [sharding._internal_device_list], [sharding], [_ALWAYS_COPY])[
        0
    ]


@functools.cache
def _get_default_device() -> tuple[jax.Device, jax.sharding.Sharding]:
    device = jax.local_devices()[0]
    return device, jax.sharding.SingleDeviceSharding(device)


def forget_place() -> None:
    """Look up the default device again after the devices were restarted."""
    _get_default_device.cache_clear()


@functools.lru_cache(256)
def _make_aval(shape: tuple[int, ...], dtype: np.dtype) -> jax.core.ShapedArray:
    return jax.core.ShapedArray(shape, dtype)
