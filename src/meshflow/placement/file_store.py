"""Arrays in files: each device has a part, which programs read where they need it and write back.

A program calls back for each read and write, and hands a token from one to the next, so that they happen in the
program's order, and what is read is no longer needed before more of it is. The next program takes the last token.
"""

from __future__ import annotations

import os
import tempfile
import threading
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.experimental import io_callback
from jax.sharding import NamedSharding, PartitionSpec

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.placement.layout import Layout
from meshflow.placement.mesh import Mesh

__all__ = ["FileArray", "FileStore"]


class FileStore:
    """A folder that holds arrays for the devices of a mesh. Its files have no names, and end with their arrays.

    Args:
      folder: the folder, which must exist.
      mesh: the mesh.

    Attributes:
      read_bytes: how many bytes programs have read so far.
      written_bytes: how many they have written.
      token: what the last program handed on.

    Raises:
      ValueError: for a folder that does not exist.
      NotImplementedError: where several processes share the mesh.
    """

    def __init__(self, folder: str | os.PathLike[str], mesh: Mesh) -> None:
        self.folder = os.fspath(folder)
        if not os.path.isdir(self.folder):
            raise InvalidValueError(
                f"offload_to={self.folder!r} is no folder. Make it, on a fast local disk, before the strategy."
            )
        if jax.process_count() > 1:
            raise NotImplementedError(
                f"offload_to={self.folder!r} is not available with {jax.process_count()} processes."
            )
        self.mesh = mesh.jax_mesh
        self.along = PartitionSpec(self.mesh.axis_names)
        zeros = np.zeros(self.mesh.size, np.float32)
        self.token: Any = jax.device_put(zeros, NamedSharding(self.mesh, self.along))
        self.read_bytes = self.written_bytes = 0
        self._counting = threading.Lock()

    def hold(self, value: Any, layout: Layout) -> FileArray:
        """An array in a file.

        Args:
          value: its first value.
          layout: how it lies on the devices when they have it.
        """
        array = FileArray(self, value.shape, np.dtype(value.dtype), layout)
        array.fill(np.asarray(value))
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


class FileArray:
    """An array whose parts lie in a file, one for each device.

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
        self.sharding = layout.in_memory("device").sharding()
        where = self.sharding.devices_indices_map(self.shape)
        self._slices = [where[device] for device in store.mesh.devices.flat]
        self._part = self.sharding.shard_shape(self.shape)
        with tempfile.TemporaryFile(dir=store.folder) as file:
            parts = (store.mesh.size, *self._part)
            file.truncate(max(int(np.prod(parts)) * dtype.itemsize, 1))
            # The mapping keeps the file.
            self._parts = np.memmap(file, dtype, "r+", shape=parts)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.size * self.dtype.itemsize

    # ---- from outside of programs ----------------------------------------------------------

    def numpy(self) -> np.ndarray:
        """A copy of the value."""
        self.store.wait()
        whole = np.empty(self.shape, self.dtype)
        for where, part in zip(self._slices, self._parts, strict=True):
            whole[where] = part
        return whole

    def fill(self, value: np.ndarray) -> None:
        """Replaces the value."""
        self.store.wait()
        for number, where in enumerate(self._slices):
            self._parts[number] = value[where]

    def on_devices(self) -> Any:
        """The value as an array of the devices."""
        return jax.device_put(self.numpy(), self.sharding)

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
        # A copy: the file changes while the program has it.
        part = np.array(self._parts[int(number)])
        self.store.count(read=part.nbytes)
        return part, np.asarray(token)

    def _write(self, number: Any, value: Any, token: Any) -> np.ndarray:
        self._parts[int(number)] = np.asarray(value)
        self.store.count(written=self._parts[0].nbytes)
        return np.asarray(token)
