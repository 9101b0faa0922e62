"""Pools of memory for large arrays that are sent repeatedly.

Touching fresh pages costs more than filling pages that are already mapped, so memory without
remaining references is reused.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

from meshflow.core.runtime import transfers
from meshflow.distribute.parameter_server.transport import output_buffers
from meshflow.environment.garbage_collection import LOCAL_REFERENCES
from meshflow.environment.types import Array

# The pool keeps at most this many buffers, of at least this many bytes. The pool's list also refers to
# a buffer without users.
_MAX_BUFFERS, _MIN_BYTES, _UNUSED_REFERENCES = 64, 1 << 20, LOCAL_REFERENCES + 1


class SharingConnection(Protocol):
    """Connection that can share memory with the process at its other end."""

    def offer_output_memory(self, sizes: Sequence[int]) -> AbstractContextManager[None]:
        """Offer shared memory for the outputs of programs that run in this context."""

    def is_shared(self, array: Array) -> bool:
        """Check whether the other process reads the array in shared memory."""

    def is_free(self, array: Array) -> bool:
        """Check whether the other process has released the array."""


class ArrayReceiver(Protocol):
    """Server that arrays are sent to."""

    @property
    def connection(self) -> SharingConnection | None:
        """Return the connection to the server, or None if there is none."""


class BufferPool:
    """Pool of byte buffers that are filled once and then only read. Not thread-safe.

    A buffer is reused as soon as no array refers to it any more.
    """

    def __init__(self) -> None:
        self._buffers: list[np.ndarray] = []

    def get(self, size: int) -> np.ndarray:
        """Return uninitialized bytes for the caller to fill.

        Args:
          size: Number of bytes.
        """
        if size < _MIN_BYTES:
            return transfers.allocate((size,), np.uint8)
        transfers.release_deleted_arrays()
        for buffer in self._buffers:
            if buffer.nbytes == size and sys.getrefcount(buffer) == _UNUSED_REFERENCES:
                return buffer
        new_buffer = transfers.allocate((size,), np.uint8)
        self._buffers.append(new_buffer)
        del self._buffers[:-_MAX_BUFFERS]
        return new_buffer


class ArrayPool:
    """Pool of arrays, by receiving server, for donation to programs.

    A program computes the next array of the same shape in the memory of an earlier one. Arrays for
    a server in another process of this machine are in memory that this server reads directly, and
    can be reused as soon as it has read them. One thread may call `get` while another one calls
    `put`.
    """

    def __init__(self) -> None:
        self._by_receiver: weakref.WeakKeyDictionary[
            SharingConnection | ArrayReceiver, dict[tuple[tuple[int, ...], np.dtype], list[Array]]
        ] = weakref.WeakKeyDictionary()

    def get(self, server: ArrayReceiver, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """Return an array with arbitrary contents, reusing one that was `put` back if possible.

        Args:
          server: The server that will receive the array computed in this memory.
          shape: Shape of the array.
          dtype: Dtype of the array.
        """
        connection = server.connection
        arrays = self._find_arrays(server, shape, dtype)
        for index, value in enumerate(arrays):
            if connection is None or connection.is_free(value):
                return arrays.pop(index)
        zeros = np.zeros(shape, dtype)
        if connection is None:
            return transfers.transfer(zeros, copy=False)
        with connection.offer_output_memory([zeros.nbytes]):
            return transfers.transfer(zeros)

    def put(self, server: ArrayReceiver, value: Array) -> None:
        """Take back an array that this process does not need any more.

        Args:
          server: The server that has read the array, or is still reading it.
          value: The array.
        """
        connection = server.connection
        is_shared = connection is not None and connection.is_shared(value)
        # An array in the shared memory of a connection that was lost would have to be copied from
        # now on, so it is dropped.
        if is_shared or not output_buffers.holds_array(np.asarray(value).ctypes.data):
            self._find_arrays(server, value.shape, value.dtype).append(value)

    def _find_arrays(
        self, server: ArrayReceiver, shape: tuple[int, ...], dtype: np.dtype
    ) -> list[Array]:
        # The arrays are dropped together with the connection that shares their memory.
        by_shape = self._by_receiver.setdefault(server.connection or server, {})
        return by_shape.setdefault((shape, np.dtype(dtype)), [])
