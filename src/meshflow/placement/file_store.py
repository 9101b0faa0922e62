"""Arrays in files: each device has a shard that programs read and write by host callbacks.

Each callback takes a token and returns the next one, so reads and writes happen in the order of the
program, and a program does not read a shard long before it is used. The next program starts with
the last token.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.experimental import io_callback
from jax.sharding import NamedSharding, PartitionSpec

from meshflow.core.runtime.context import variable_lock
from meshflow.core.runtime.device_to_host import read_uncached, to_host
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.environment.types import Array, ArrayLike, StrPath
from meshflow.files.paths import translate_errors
from meshflow.placement.layout import Layout
from meshflow.placement.mesh import Mesh


class FileStore:
    """Folder that holds arrays for the devices of a mesh.

    The files have no names in the folder; a file is deleted together with its array. Each process
    writes files with the shards of its own devices and may use its own folder.

    Args:
      folder: Path of an existing folder.
      mesh: Mesh of the devices.

    Attributes:
      read_bytes: Bytes that programs have read for the devices of this process.
      written_bytes: Bytes that programs have written for these devices.
      token: Token that the last program returned.

    Raises:
      ValueError: If the folder does not exist.
    """

    def __init__(self, folder: StrPath, mesh: Mesh) -> None:
        self.folder = os.fspath(folder)
        if not os.path.isdir(self.folder):
            raise InvalidValueError(
                f"offload_to={self.folder!r} is no folder. Create it, on a fast local disk, before the strategy."
            )
        self.mesh = mesh.jax_mesh
        self.token_spec = PartitionSpec(self.mesh.axis_names)
        zeros = np.zeros(self.mesh.size, np.float32)
        token_sharding = NamedSharding(self.mesh, self.token_spec)
        self.token: jax.Array = jax.make_array_from_callback(
            zeros.shape, token_sharding, zeros.__getitem__
        )
        self.read_bytes = self.written_bytes = 0
        self._count_lock = threading.Lock()

    def create_array(self, value: jax.Array, layout: Layout) -> FileArray:
        """Store an array in a file."""
        array = FileArray(self, value.shape, np.dtype(value.dtype), layout)
        array.fill(value)
        return array

    def block_until_written(self) -> None:
        """Block until all started programs have finished their writes."""
        jax.block_until_ready(self.token)

    def add_traffic(self, read: int = 0, written: int = 0) -> None:
        """Add bytes that the callback of a device has read or written."""
        with self._count_lock:
            self.read_bytes += read
            self.written_bytes += written

    def __deepcopy__(self, memo: dict[int, object]) -> FileStore:
        return self


class UnnamedFile:
    """File without a name, which is deleted together with this object."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        with translate_errors(folder), tempfile.TemporaryFile(dir=folder) as file:
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)

    def allocate(self, size: int) -> None:
        """Allocate disk space so that the file has a size in bytes.

        Raises:
          ResourceExhaustedError: If the disk has too little space.
        """
        with translate_errors(f"offload_to={self._folder!r}: a file of {size:,} bytes"):
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._descriptor, 0, size)
            else:
                os.truncate(self._descriptor, size)

    def write(self, array: np.ndarray, offset: int) -> None:
        """Write the bytes of an array at an offset."""
        remaining = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        with translate_errors(f"offload_to={self._folder!r}"):
            while remaining:
                count = os.pwrite(self._descriptor, remaining, offset)
                remaining, offset = remaining[count:], offset + count

    def read(self, array: np.ndarray, offset: int) -> None:
        """Fill an array with the bytes at an offset."""
        remaining = array.reshape(-1).view(np.uint8).data
        with translate_errors(f"offload_to={self._folder!r}"):
            while remaining:
                count = os.preadv(self._descriptor, [remaining], offset)
                if not count:
                    raise OSError(f"{len(remaining)} bytes are missing")
                remaining, offset = remaining[count:], offset + count


class FileArray:
    """Array with its shards in a file, one for each device of this process.

    Args:
      store: Store with the folder of the file.
      shape: Global shape.
      dtype: NumPy dtype.
      layout: Layout of the array when it is read into the memory of the devices.
    """

    def __init__(
        self, store: FileStore, shape: tuple[int, ...], dtype: np.dtype[Any], layout: Layout
    ) -> None:
        self.store, self.shape, self.dtype = store, tuple(shape), dtype
        self.ndim, self.size = len(self.shape), int(np.prod(self.shape))
        self._layout = layout
        self.sharding = layout.with_memory("device").to_sharding()
        self._shard_shape = self.sharding.shard_shape(self.shape)
        self._shard_bytes = int(np.prod(self._shard_shape)) * dtype.itemsize
        local_indices = [
            n for n, d in enumerate(store.mesh.devices.flat) if d in store.mesh.local_devices
        ]
        # Offsets of the shards in the file, by the indices of the devices in the mesh.
        self._offsets = {n: i * self._shard_bytes for i, n in enumerate(local_indices)}
        self._file = UnnamedFile(store.folder)
        self._file.allocate(max(len(local_indices) * self._shard_bytes, 1))

    @property
    def nbytes(self) -> int:
        """Return the size of the full array in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def is_fully_addressable(self) -> bool:
        """Check whether this process has all shards."""
        return self.sharding.is_fully_addressable

    @property
    def is_fully_replicated(self) -> bool:
        """Check whether each shard is the full array."""
        return self.sharding.is_fully_replicated

    # ---- access from the host ---------------------------------------------------------------

    def numpy(self) -> np.ndarray:
        """Return a copy of the full value; all processes with shards must call this method."""
        if not self.is_fully_addressable:
            return to_host(self.to_memory("host"))
        result = np.empty(self.shape, self.dtype)
        indices = self.sharding.devices_indices_map(self.shape)
        devices = self.store.mesh.devices.flat
        with variable_lock:
            self.store.block_until_written()
            # If several devices have the same part of the array, one of them is read.
            owners = {str(indices[devices[n]]): n for n in self._offsets}
            for index in owners.values():
                result[indices[devices[index]]] = self._read_shard(self._offsets[index])
        return result

    def fill(self, value: ArrayLike) -> None:
        """Replace the value."""
        self.store.block_until_written()
        if isinstance(value, jax.Array) and value.sharding.is_equivalent_to(
            self.sharding, self.ndim
        ):
            array = value
        else:
            array = jax.device_put(value, self.sharding)
        parts = {shard.device: shard.data for shard in array.addressable_shards}
        devices = self.store.mesh.devices.flat
        for index, offset in self._offsets.items():
            self._file.write(read_uncached(parts[devices[index]]), offset)

    def to_memory(self, memory: str) -> jax.Array:
        """Return the value as a JAX array on the mesh."""
        sharding = self._layout.with_memory(memory).to_sharding()
        devices = self.store.mesh.devices.flat
        parts = []
        # The lock prevents other threads from starting a program that writes the file.
        with variable_lock:
            self.store.block_until_written()
            for index, offset in self._offsets.items():
                placement = jax.sharding.SingleDeviceSharding(
                    devices[index], memory_kind=sharding.memory_kind
                )
                parts.append(jax.device_put(self._read_shard(offset), placement))
        return jax.make_array_from_single_device_arrays(self.shape, sharding, parts)

    def _read_shard(self, offset: int) -> np.ndarray:
        shard = np.empty(self._shard_shape, self.dtype)
        self._file.read(shard, offset)
        return shard

    def __array__(
        self, dtype: np.typing.DTypeLike | None = None, copy: bool | None = None
    ) -> np.ndarray:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    # ---- access from programs ---------------------------------------------------------------

    def read(self, token: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Read the value in a traced program; return it with the next token."""
        part = jax.ShapeDtypeStruct(self._shard_shape, self.dtype)

        def read_shard(token: jax.Array) -> tuple[jax.Array, jax.Array]:
            device_index = lax.axis_index(self.store.mesh.axis_names)
            shapes = part, jax.ShapeDtypeStruct(token.shape, token.dtype)
            return io_callback(self._read_callback, shapes, device_index, token)

        along = self.store.token_spec
        return jax.shard_map(
            read_shard,
            mesh=self.store.mesh,
            in_specs=along,
            out_specs=(self.sharding.spec, along),
            check_vma=False,
        )(token)

    def write(self, value: jax.Array, token: jax.Array) -> jax.Array:
        """Replace the value in a traced program; return the next token."""

        def write_shard(value: jax.Array, token: jax.Array) -> jax.Array:
            device_index = lax.axis_index(self.store.mesh.axis_names)
            shape = jax.ShapeDtypeStruct(token.shape, token.dtype)
            return io_callback(self._write_callback, shape, device_index, value, token)

        along = self.store.token_spec
        return jax.shard_map(
            write_shard,
            mesh=self.store.mesh,
            in_specs=(self.sharding.spec, along),
            out_specs=along,
            check_vma=False,
        )(value, token)

    def _read_callback(
        self, device_index: Array, token: ArrayLike
    ) -> tuple[np.ndarray, np.ndarray]:
        self.store.add_traffic(read=self._shard_bytes)
        return self._read_shard(self._offsets[int(device_index)]), np.asarray(token)

    def _write_callback(
        self, device_index: Array, value: ArrayLike, token: ArrayLike
    ) -> np.ndarray:
        self._file.write(np.asarray(value), self._offsets[int(device_index)])
        self.store.add_traffic(written=self._shard_bytes)
        return np.asarray(token)
