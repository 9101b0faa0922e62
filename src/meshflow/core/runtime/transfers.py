"""Host arrays that become arrays of the device by transfers, and the memory that input pipelines share with it."""

from __future__ import annotations

import functools
import math
import mmap
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.core.runtime.forks import Fork, after_fork
from meshflow.environment import jax_internals

# None where JAX has another way.
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

# XLA takes memory as it is when it begins at a multiple of this.
ALIGNMENT = 64
# Arrays of up to so many bytes are pieces of an array of so many.
_PIECE, _PIECES = 1 << 13, 1 << 16
# Larger ones lie in blocks that are kept when the arrays are gone, as touching fresh pages costs more than
# filling them: blocks of up to so many bytes, so many in all, cut from mappings of about so many.
_LARGEST, _MOST, _MAPPING, _PAGE = 1 << 25, 1 << 26, 1 << 22, 1 << 21


class _Block(NamedTuple):
    """A part of a mapping, which ends with its last block."""

    memory: memoryview
    address: int
    size: int


class _Memory(np.ndarray):
    """Bytes that nobody writes to after their array has been filled."""

    block: _Block | None = None

    def __del__(self) -> None:
        # At the interpreter's end there may be no globals any more.
        if self.block is not None and _give_back is not None:
            _give_back(self.block)


class _Lent(_Memory):
    """The same in memory of somebody else, who is told when it is over."""

    over: Callable[[], None] | None = None

    def __del__(self) -> None:
        if self.over is not None:
            self.over()


# Blocks without arrays. Those given back last come first: the processor still has them in its caches.
_kept: list[_Block] = []
_kept_bytes = 0
# Never waited for: an array may end, and give back its block, while its own thread has the lock.
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
        for at in range(len(_kept) - 1, -1, -1):
            if _kept[at].size == size:
                _kept_bytes -= size
                return _kept.pop(at)
        return None
    finally:
        _lock.release()


def _mapped(size: int) -> _Block:
    """A block of a new mapping, whose others are kept."""
    length = -(-size // _PAGE) * _PAGE if size > _MAPPING else min(_MAPPING, 64 * size)
    # A forked process has its own.
    mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    memory = memoryview(mapping)
    address = np.frombuffer(mapping, np.uint8).ctypes.data
    starts = range(0, length - size + 1, size)
    first, *others = (_Block(memory[s : s + size], address + s, size) for s in starts)
    for block in others:
        _give_back(block)
    return first


class _Pieces(threading.local):
    """The array that small ones are cut from, side by side."""

    memory: np.ndarray
    address = 0
    at = _PIECES


_pieces = _Pieces()


def _memory(size: int) -> tuple[np.ndarray, int, int]:
    """Bytes, the place among them where an array begins, and its address."""
    if size <= _PIECE:
        at, _pieces.at = _pieces.at, _pieces.at + size + -size % ALIGNMENT
        if _pieces.at > _PIECES:
            _pieces.memory, at, _pieces.address = _aligned(_PIECES)
            _pieces.address -= at
            _pieces.at = at + size + -size % ALIGNMENT
        return _pieces.memory, at, _pieces.address + at
    if size > _LARGEST or not hasattr(mmap, "MADV_HUGEPAGE"):
        return _aligned(size)
    # Few different sizes, so that arrays of nearly the same one share blocks.
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
    """`fresh`, and the address of the array.

    Args:
      shape: its shape.
      dtype: its dtype, of fixed size.
    """
    memory, start, address = _memory(math.prod(shape) * dtype.itemsize)
    return np.ndarray(shape, dtype, memory, start), address


def fresh(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array to be filled once, and then only read.

    Args:
      shape: its shape.
      dtype: its dtype, of fixed size.
    """
    return filled_at(shape, np.dtype(dtype))[0]


def lent(memory: memoryview, over: Callable[[], None]) -> np.ndarray:
    """Bytes that somebody else has filled and leaves alone, as an array for device arrays to share.

    Args:
      memory: the bytes.
      over: called when nobody has the array any more; `let_go` has device arrays that ended be noticed.
    """
    whole = _Lent(len(memory), np.uint8, memory)
    whole.over = over
    return np.ndarray(len(memory), np.uint8, whole)


def let_go() -> None:
    """Has device arrays that ended let go of the host memory that they shared."""
    if _let_go is not None:
        _let_go()


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
    if kind is memoryview:
        # Of a device array, or what unpickling makes of an array that nobody was to write to.
        whole = memory.obj
        return isinstance(whole, jax.Array) or (
            type(whole) is np.ndarray and type(whole.base) in _OURS
        )
    return kind in _OURS


_OURS = (_Memory, _Lent)


def to_device(array: np.ndarray) -> jax.Array:
    """An array of numbers on the default device; on a CPU it shares the memory of arrays that are ours.

    Args:
      array: an array, which may change later unless it is ours.
    """
    if not is_ours(array) or not array.flags.c_contiguous:
        copy = fresh(array.shape, array.dtype)
        copy[...] = array
        array = copy
    # One that begins elsewhere is copied by XLA, which holds it until then.
    return transfer(array, copy=False)


def transfer(array: np.ndarray, copy: bool = True) -> jax.Array:
    """An array of numbers on the default device. `jax.numpy.array` compiles a program for each shape; this does not.

    Args:
      array: the array.
      copy: False where nobody changes it any more: a CPU then shares its memory.
    """
    if Fork.late:
        raise after_fork()
    if _put is None or jax.config.jax_default_device is not None:  # type: ignore[attr-defined]
        return jax.device_put(np.array(array) if copy else array)
    device, sharding = _default_place()
    return _put(_aval(array.shape, array.dtype), sharding, [array], [device], False, copy)


def duplicate(array: jax.Array) -> jax.Array:
    """An array's value in buffers of its own, on the same devices, without a program.

    Args:
      array: an array, no tracer.
    """
    if Fork.late:
        raise after_fork()
    if not array.is_fully_addressable:
        return jax.numpy.array(array, copy=True)  # JAX transfers no parts of a global array
    if _copy is None:
        return jax.device_put(array, may_alias=False)
    sharding: Any = array.sharding
    # What `jax.device_put` ends in, without 100 us of looking at its arguments.
    return _copy([array], [sharding._internal_device_list], [sharding], [_ALWAYS])[0]


@functools.cache
def _default_place() -> tuple[Any, Any]:
    device = jax.local_devices()[0]
    return device, jax.sharding.SingleDeviceSharding(device)


def forget_place() -> None:
    """Has the default device be looked up again, after the devices were started anew."""
    _default_place.cache_clear()


@functools.lru_cache(256)
def _aval(shape: tuple[int, ...], dtype: np.dtype) -> Any:
    return jax.core.ShapedArray(shape, dtype)
