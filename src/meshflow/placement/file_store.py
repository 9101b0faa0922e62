"""Arrays in files: each device has a part, which programs read where they need it and write back.

A program calls back for each read and write, and hands a token from one to the next, so that they happen in the
program's order, and what is read is no longer needed before more of it is. The next program takes the last token.
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

from meshflow.core.runtime.context import writing
from meshflow.core.runtime.device_to_host import read, to_host
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.files.paths import named_errors
from meshflow.placement.layout import Layout
from meshflow.placement.mesh import Mesh

__all__ = ["FileArray", "FileStore", "OpenFile"]


class FileStore:
    """A folder that holds arrays for the devices of a mesh. Its files have no names, and end with their arrays.

    Of several processes each has its own files, with the parts of its devices, and may have its own folder.

    Args:
      folder: the folder, which must exist.
      mesh: the mesh.

    Attributes:
      read_bytes: how many bytes programs have read so far for the devices of this process.
      written_bytes: how many they have written.
      token: what the last program handed on.

    Raises:
      ValueError: for a folder that does not exist.
    """

    def __init__(self, folder: str | os.PathLike[str], mesh: Mesh) -> None:
        self.folder = os.fspath(folder)
        if not os.path.isdir(self.folder):
            raise InvalidValueError(
                f"offload_to={self.folder!r} is no folder. Make it, on a fast local disk, before the strategy."
            )
        self.mesh = mesh.jax_mesh
        self.along = PartitionSpec(self.mesh.axis_names)
        zeros = np.zeros(self.mesh.size, np.float32)
        where = NamedSharding(self.mesh, self.along)
        self.token: Any = jax.make_array_from_callback(zeros.shape, where, zeros.__getitem__)
        self.read_bytes = self.written_bytes = 0
        self._counting = threading.Lock()

    def hold(self, value: jax.Array, layout: Layout) -> FileArray:
        """An array in a file.

        Args:
          value: its first value.
          layout: how it lies on the devices when they have it.
        """
        array = FileArray(self, value.shape, np.dtype(value.dtype), layout)
        array.fill(value)
        return array

    def wait(self) -> None:
        """Waits until all programs that were started have written."""
        jax.block_until_ready(self.token)

    def count(self, read: int = 0, written: int = 0) -> None:
        """Notes bytes that a device's callback has moved."""
        with self._counting:
            self.read_bytes += read
            self.written_bytes += written

    def __deepcopy__(self, memo: Any) -> FileStore:
        return self


class OpenFile:
    """A file without a name, which ends with this object.

    Args:
      folder: the folder that it lies in.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        with named_errors(folder), tempfile.TemporaryFile(dir=folder) as file:
            self._number = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._number)

    def grow(self, size: int) -> None:
        """Has the disk keep room for so many bytes in all.

        Raises:
          ResourceExhaustedError: when it has not so many.
        """
        with named_errors(f"offload_to={self._folder!r}: a file of {size:,} bytes"):
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._number, 0, size)
            else:
                os.truncate(self._number, size)

    def write(self, array: np.ndarray, at: int) -> None:
        """Writes an array's bytes, from one byte on."""
        left = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        with named_errors(f"offload_to={self._folder!r}"):
            while left:
                count = os.pwrite(self._number, left, at)
                left, at = left[count:], at + count

    def read(self, array: np.ndarray, at: int) -> None:
        """Reads as many bytes as an array has into it, from one byte on."""
        left = array.reshape(-1).view(np.uint8).data
        with named_errors(f"offload_to={self._folder!r}"):
            while left:
                count = os.preadv(self._number, [left], at)
                if not count:
                    raise OSError(f"{len(left)} bytes are missing")
                left, at = left[count:], at + count


class FileArray:
    """An array whose parts lie in a file, one for each device of this process.

    Args:
      store: the store.
      shape: its shape.
      dtype: its dtype.
      layout: how it lies on the devices.
    """

    def __init__(
        self, store: FileStore, shape: tuple[int, ...], dtype: np.dtype[Any], layout: Layout
    ) -> None:
        self.store, self.shape, self.dtype = store, tuple(shape), dtype
        self.ndim, self.size = len(self.shape), int(np.prod(self.shape))
        self._layout = layout
        self.sharding = layout.in_memory("device").sharding()
        self._part = self.sharding.shard_shape(self.shape)
        self._part_bytes = int(np.prod(self._part)) * dtype.itemsize
        own = [n for n, d in enumerate(store.mesh.devices.flat) if d in store.mesh.local_devices]
        # Where the parts begin in the file, by the devices' numbers in the mesh.
        self._places = {n: place * self._part_bytes for place, n in enumerate(own)}
        self._file = OpenFile(store.folder)
        self._file.grow(max(len(own) * self._part_bytes, 1))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.size * self.dtype.itemsize

    @property
    def is_fully_addressable(self) -> bool:
        """Whether this process has all parts."""
        return self.sharding.is_fully_addressable

    @property
    def is_fully_replicated(self) -> bool:
        """Whether each part is the whole."""
        return self.sharding.is_fully_replicated

    # ---- from outside of programs ----------------------------------------------------------

    def numpy(self) -> np.ndarray:
        """A copy of the value; where several processes have parts, all of them must ask for it."""
        if not self.is_fully_addressable:
            return to_host(self.in_memory("host"))
        found = np.empty(self.shape, self.dtype)
        places = self.sharding.devices_indices_map(self.shape)
        devices = self.store.mesh.devices.flat
        with writing:
            self.store.wait()
            # Of what several devices have, one's.
            own = {str(places[devices[n]]): n for n in self._places}
            for number in own.values():
                found[places[devices[number]]] = self._read_part(self._places[number])
        return found

    def fill(self, value: Any) -> None:
        """Replaces the value."""
        self.store.wait()
        if not isinstance(value, jax.Array) or not value.sharding.is_equivalent_to(
            self.sharding, self.ndim
        ):
            value = jax.device_put(value, self.sharding)
        parts = {shard.device: shard.data for shard in value.addressable_shards}
        devices = self.store.mesh.devices.flat
        for number, place in self._places.items():
            self._file.write(read(parts[devices[number]]), place)

    def in_memory(self, memory: str) -> jax.Array:
        """The value as an array of the mesh.

        Args:
          memory: "device" or "host".
        """
        sharding = self._layout.in_memory(memory).sharding()
        devices = self.store.mesh.devices.flat
        parts = []
        # No program begins meanwhile that would write.
        with writing:
            self.store.wait()
            for number, place in self._places.items():
                where = jax.sharding.SingleDeviceSharding(
                    devices[number], memory_kind=sharding.memory_kind
                )
                parts.append(jax.device_put(self._read_part(place), where))
        return jax.make_array_from_single_device_arrays(self.shape, sharding, parts)

    def _read_part(self, place: int) -> np.ndarray:
        part = np.empty(self._part, self.dtype)
        self._file.read(part, place)
        return part

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    # ---- in programs -----------------------------------------------------------------------

    def read(self, token: Any) -> tuple[Any, Any]:
        """The value in a program, and the next token."""
        part = jax.ShapeDtypeStruct(self._part, self.dtype)

        def local(token: Any) -> tuple[Any, Any]:
            number = lax.axis_index(self.store.mesh.axis_names)
            shapes = part, jax.ShapeDtypeStruct(token.shape, token.dtype)
            return io_callback(self._read, shapes, number, token)

        along = self.store.along
        return jax.shard_map(
            local,
            mesh=self.store.mesh,
            in_specs=along,
            out_specs=(self.sharding.spec, along),
            check_vma=False,
        )(token)

    def write(self, value: Any, token: Any) -> Any:
        """Has a program replace the value; the next token."""

        def local(value: Any, token: Any) -> Any:
            number = lax.axis_index(self.store.mesh.axis_names)
            shape = jax.ShapeDtypeStruct(token.shape, token.dtype)
            return io_callback(self._write, shape, number, value, token)

        along = self.store.along
        return jax.shard_map(
            local,
            mesh=self.store.mesh,
            in_specs=(self.sharding.spec, along),
            out_specs=along,
            check_vma=False,
        )(value, token)

    def _read(self, number: Any, token: Any) -> tuple[np.ndarray, np.ndarray]:
        self.store.count(read=self._part_bytes)
        return self._read_part(self._places[int(number)]), np.asarray(token)

    def _write(self, number: Any, value: Any, token: Any) -> np.ndarray:
        self._file.write(np.asarray(value), self._places[int(number)])
        self.store.count(written=self._part_bytes)
        return np.asarray(token)
