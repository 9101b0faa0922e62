"""Activations in files: written during the forward pass, and read in the backward pass."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from meshflow.environment.types import Array, ArrayLike, JaxprEqn, PyTree
from meshflow.placement.file_store import FileStore, UnnamedFile

# Values are stored at multiples of this size, so 32-bit block indices can address eight terabytes.
_BLOCK_BYTES = 4096


class ActivationFiles:
    """Files, one for each device of this process, that hold values of a program until it reads them.

    The host callbacks are pure: their results depend on their operands only, so the compiler may
    remove or duplicate calls. Blocks are in use until the program calls `free_all`.

    Args:
      store: Store with the folder of the files; it counts the bytes.
    """

    def __init__(self, store: FileStore) -> None:
        self.store = store
        self._device_files = [_BlockFile(store) for _ in store.mesh.local_devices]
        # Files by device index, in the order in which the devices make their first calls.
        self._assigned_files: dict[int, _BlockFile] = {}
        self._assign_lock = threading.Lock()
        # Number of blocks that the program being traced needs.
        self._num_blocks = 0

    def free_all(self, zero: jax.Array, after: jax.Array) -> jax.Array:
        """Free all blocks of a device; return the zero that orders the calls of a program.

        Args:
          zero: Zero that the compiler cannot replace by a constant.
          after: Array that must be computed first.
        """
        self._num_blocks = 0
        return self._call_on_each_device(
            self._free_callback, _to_shape_struct(zero), zero, after.reshape(-1)[:1]
        )

    def store_residuals(
        self, values: Sequence[jax.Array], zero: jax.Array
    ) -> tuple[
        list[jax.Array],
        Callable[[Sequence[jax.Array], Sequence[jax.Array]], list[jax.Array]],
        jax.Array,
    ]:
        """Write values to files in a traced program; see `ResidualStorage`.

        Raises:
          ResourceExhaustedError: If the disk has too little space.
        """
        shapes = tuple(map(_to_shape_struct, values))
        # The space for values that a program stores once is allocated before the program is
        # compiled.
        self._num_blocks += _count_blocks(sum(_count_bytes(s) for s in shapes))
        for file in self._device_files:
            file.reserve(self._num_blocks)
        index = jax.ShapeDtypeStruct((), np.int32)

        block, zero = self._call_on_each_device(
            self._store_callback, (index, _to_shape_struct(zero)), zero, *values
        )
        return [block], functools.partial(self._restore, shapes), zero

    def _restore(
        self,
        shapes: tuple[jax.ShapeDtypeStruct, ...],
        stored: Sequence[jax.Array],
        after: Sequence[jax.Array],
    ) -> list[jax.Array]:
        return list(
            self._call_on_each_device(
                functools.partial(self._load_callback, shapes), shapes, stored[0], *after
            )
        )

    def _call_on_each_device(
        self, callback: Callable[..., PyTree], shapes: PyTree, *operands: jax.Array
    ) -> PyTree:
        """Call a host function for each device of a program, with the device index first."""
        mesh = jax.sharding.get_abstract_mesh()
        names = self.store.mesh.axis_names
        manual = tuple(n for n in names if not mesh.empty and n in mesh.manual_axes)
        others = tuple(n for n in names if n not in manual)
        index = lax.axis_index(manual) if manual else jnp.int32(0)
        if not others:
            return jax.pure_callback(callback, shapes, index, *operands)
        count = math.prod(self.store.mesh.shape[n] for n in others)

        def run_on_device(index: jax.Array, *operands: jax.Array) -> PyTree:
            device_index = index * count + lax.axis_index(others)
            return jax.pure_callback(callback, shapes, device_index, *operands)

        # Operands that are sharded over the other dimensions are gathered: each device stores its
        # own copy.
        return jax.shard_map(
            run_on_device,
            mesh=self.store.mesh if mesh.empty else mesh,
            in_specs=PartitionSpec(),
            out_specs=PartitionSpec(),
            axis_names=set(others),
            check_vma=False,
        )(index, *operands)

    # ---- host callbacks --------------------------------------------------------------------

    def _get_file(self, device_index: Array) -> _BlockFile:
        index = int(device_index)
        with self._assign_lock:
            if index not in self._assigned_files:
                self._assigned_files[index] = self._device_files[len(self._assigned_files)]
            return self._assigned_files[index]

    def _free_callback(self, device_index: Array, zero: ArrayLike, after: ArrayLike) -> np.ndarray:
        self._get_file(device_index).top = 0
        return np.asarray(zero)

    def _store_callback(
        self, device_index: Array, zero: ArrayLike, *values: ArrayLike
    ) -> tuple[np.ndarray, np.ndarray]:
        arrays = [np.ascontiguousarray(v) for v in values]
        blocks = self._get_file(device_index)
        block = blocks.allocate(_count_blocks(sum(a.nbytes for a in arrays)))
        for offset, array in zip(_iterate_offsets(block, arrays), arrays, strict=True):
            blocks.file.write(array, offset)
        self.store.add_traffic(written=sum(a.nbytes for a in arrays))
        return np.asarray(block, np.int32), np.asarray(zero)

    def _load_callback(
        self,
        shapes: tuple[jax.ShapeDtypeStruct, ...],
        device_index: Array,
        block: Array,
        *after: ArrayLike,
    ) -> tuple[np.ndarray, ...]:
        arrays = [np.empty(s.shape, s.dtype) for s in shapes]
        for offset, array in zip(_iterate_offsets(int(block), arrays), arrays, strict=True):
            self._get_file(device_index).file.read(array, offset)
        self.store.add_traffic(read=sum(a.nbytes for a in arrays))
        return tuple(arrays)


def count_stored_bytes(equation: JaxprEqn) -> int:
    """Return the number of bytes that an equation of a program writes to files."""
    called = getattr(equation.params.get("callback"), "callback_func", None)
    if getattr(called, "__func__", None) is not ActivationFiles._store_callback:
        return 0
    # The first two operands are the device index and the zero.
    return sum(_count_bytes(v.aval) for v in equation.invars[2:])


class _BlockFile:
    """Blocks of the file of one device; `top` is the first free block."""

    def __init__(self, store: FileStore) -> None:
        self.file = UnnamedFile(store.folder)
        self.top = self._size = 0

    def reserve(self, blocks: int) -> None:
        """Enlarge the file to a number of blocks if it is smaller."""
        if blocks > self._size:
            self.file.allocate(blocks * _BLOCK_BYTES)
            self._size = blocks

    def allocate(self, blocks: int) -> int:
        """Allocate consecutive blocks and return the first one."""
        block, self.top = self.top, self.top + blocks
        # A layer in a loop stores its values once per iteration, which the reserved space does not
        # include.
        self.reserve(self.top)
        return block


def _to_shape_struct(value: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def _count_bytes(shape: Any) -> int:
    return math.prod(shape.shape) * shape.dtype.itemsize


def _count_blocks(num_bytes: int) -> int:
    return -(-num_bytes // _BLOCK_BYTES)


def _iterate_offsets(block: int, arrays: Sequence[np.ndarray]) -> Iterator[int]:
    offset = block * _BLOCK_BYTES
    for array in arrays:
        yield offset
        offset += array.nbytes
