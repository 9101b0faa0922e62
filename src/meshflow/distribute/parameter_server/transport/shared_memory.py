"""Memory that two processes of a machine share, for the arrays that they send each other.

A segment is an anonymous file (`memfd_create`). Its descriptor is sent over the connection once,
so nothing remains of it when the processes are killed. The sender fills a segment, marks it as
used, and names it in a message. When no array refers to the memory any more, the receiver clears
the mark, and the sender fills the segment again. Reusing segments matters because touching fresh
pages costs ten times as much as filling mapped ones.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType

import numpy as np

from meshflow.core.runtime import transfers
from meshflow.distribute.parameter_server.transport import output_buffers

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:
    fcntl = None

# Smaller arrays are sent through the socket.
_MIN_BYTES = 1 << 16
# Limits on the segments of one direction of a connection: their count, their total size, and how
# many new ones a message may introduce, because the system limits the descriptors that are sent
# together.
_MAX_SEGMENTS, _MAX_TOTAL_BYTES, _MAX_NEW_SEGMENTS = 1024, 1 << 32, 128
_PAGE = mmap.PAGESIZE
# The state of a segment, in the byte that follows its data. A segment is retired when this many
# messages did not use it.
_FREE, _USED, _RETIRED = range(3)
_MAX_IDLE_MESSAGES = 64
IS_SUPPORTED = fcntl is not None and sys.platform == "linux" and hasattr(os, "memfd_create")


class SharedSegment:
    """One segment, as its sender sees it.

    Args:
      segment_id: Id of the segment on its connection.
      size: Number of bytes that it can hold.
    """

    def __init__(self, segment_id: int, size: int) -> None:
        assert fcntl is not None
        self.segment_id, self.size = segment_id, size
        self.descriptor: int | None = os.memfd_create(
            "meshflow", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        )
        os.ftruncate(self.descriptor, size + _PAGE)
        # The seals guarantee the length to the process that maps the segment.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
        self._mapping = mmap.mmap(self.descriptor, size + _PAGE)
        self.data = np.frombuffer(self._mapping, np.uint8, size)
        self.address = self.data.ctypes.data
        # The index of the message that used the segment last.
        self.last_message = 0

    @property
    def is_used(self) -> bool:
        """Check whether the receiver holds an array in the segment."""
        return self._mapping[self.size] != _FREE

    @property
    def is_free(self) -> bool:
        """Check whether neither the sender nor the receiver holds an array in the segment."""
        return not (self.is_used or output_buffers.holds_array(self.address))

    def mark(self, is_retired: bool = False) -> None:
        """Mark the segment as used by the receiver, or as retired, which is final."""
        self._mapping[self.size] = _RETIRED if is_retired else _USED

    def close(self) -> None:
        """Close the descriptor. The memory is released when no process maps it any more."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()
            output_buffers.retain_memory(self.data)


class OutgoingSegments:
    """The segments of a sender.

    While one thread sends, other threads may create arrays in segments.
    """

    def __init__(self) -> None:
        self._by_size: dict[int, list[SharedSegment]] = {}
        self._by_address: dict[int, SharedSegment] = {}
        # Addresses of the segments that are reserved for the next message, and for outputs of
        # programs.
        self._lent: set[int] = set()
        self._offered: set[int] = set()
        # Ids are reused, so that the receiver unmaps a retired segment when a new one has its id.
        self._free_ids = list(range(_MAX_SEGMENTS, 0, -1))
        self._bytes = self._new = self._messages = 0
        self._lock = threading.Lock()

    def lend(self, nbytes: int) -> np.ndarray | None:
        """Reserve bytes that the caller fills and sends with the next message.

        Args:
          nbytes: Number of bytes.

        Returns:
          The bytes, or None if no segment is available.
        """
        with self._lock:
            segment = self._find_free_segment(nbytes) if nbytes >= _MIN_BYTES else None
            if segment is None:
                return None
            self._lent.add(segment.address)
            return segment.data[:nbytes]

    @contextlib.contextmanager
    def offer_output_memory(self, sizes: Sequence[int]) -> Iterator[None]:
        """Offer segments for the outputs of programs that run in this context, in the current thread.

        Such outputs are sent without a copy.

        Args:
          sizes: The size in bytes of each output.
        """
        with self._lock:
            offers = [(self._reserve_for_output(size), size) for size in sizes]
        memories = [(segment.data, size) for segment, size in offers if segment is not None]
        try:
            with output_buffers.offer_memory(memories):
                yield
        finally:
            with self._lock:
                self._offered.difference_update(m.ctypes.data for m, _ in memories)

    def find_segment(self, array: np.ndarray) -> SharedSegment | None:
        """Return the segment in which an array is stored, or None.

        Args:
          array: The array.
        """
        return self._by_address.get(array.ctypes.data)

    def store_array(self, memory: memoryview) -> SharedSegment | None:
        """Return a segment that holds the bytes of an array, which are copied unless they are in it.

        Args:
          memory: The bytes of the array.

        Returns:
          The segment, marked as used, or None if no segment is available.
        """
        if memory.nbytes < _MIN_BYTES:
            return None
        array = np.frombuffer(memory, np.uint8)
        with self._lock:
            segment = self.find_segment(array)
            # A segment that the receiver still uses cannot be sent a second time: the first release
            # would free it for both messages.
            is_stored = segment is not None and not segment.is_used
            if not is_stored:
                segment = self._find_free_segment(array.nbytes)
            if segment is None:
                return None
            self._lent.add(segment.address)
        if not is_stored:
            np.copyto(segment.data[: array.nbytes], array)
        segment.mark()
        segment.last_message = self._messages
        return segment

    def finish_message(self) -> None:
        """Record that a message was sent, release its reserved segments and retire idle ones."""
        with self._lock:
            self._lent.clear()
            self._new = 0
            self._messages += 1
            if self._messages % _MAX_IDLE_MESSAGES == 0:
                self._retire_idle(self._messages - _MAX_IDLE_MESSAGES)

    def _find_free_segment(self, nbytes: int) -> SharedSegment | None:
        # Sizes are rounded up to a few distinct ones, so that arrays of similar size share
        # segments.
        unit = max(1 << max(nbytes.bit_length() - 4, 0), _PAGE)
        size = -(-nbytes // unit) * unit
        for segment in self._by_size.get(size, ()):
            if segment.is_free and not self._is_reserved(segment):
                return segment
        return self._create_segment(size)

    def _reserve_for_output(self, nbytes: int) -> SharedSegment | None:
        segment = self._find_free_segment(nbytes) if nbytes >= _MIN_BYTES else None
        if segment is not None:
            self._offered.add(segment.address)
        return segment

    def _is_reserved(self, segment: SharedSegment) -> bool:
        return segment.address in self._lent or segment.address in self._offered

    def _create_segment(self, size: int) -> SharedSegment | None:
        if self._new == _MAX_NEW_SEGMENTS:
            return None
        if self._bytes + size > _MAX_TOTAL_BYTES or not self._free_ids:
            self._retire_idle(self._messages + 1)
        if self._bytes + size > _MAX_TOTAL_BYTES or not self._free_ids:
            return None
        try:
            segment = SharedSegment(self._free_ids[-1], size)
        except OSError:
            # The process is out of descriptors or memory, so arrays are sent through the socket.
            return None
        self._free_ids.pop()
        self._new += 1
        self._bytes += size
        self._by_size.setdefault(size, []).append(segment)
        self._by_address[segment.address] = segment
        return segment

    def _retire_idle(self, first_message: int) -> None:
        """Retire the free segments that no message has used since `first_message`."""
        for size, segments in self._by_size.items():
            for segment in [s for s in segments if s.last_message < first_message]:
                # A segment with an open descriptor has not been introduced to the receiver
                # yet.
                is_needed = not segment.is_free or self._is_reserved(segment)
                if is_needed or segment.descriptor is not None:
                    continue
                segment.mark(is_retired=True)
                segments.remove(segment)
                del self._by_address[segment.address]
                self._free_ids.append(segment.segment_id)
                self._bytes -= size


class IncomingSegments:
    """The segments of a receiver."""

    def __init__(self) -> None:
        self._mappings: dict[int, mmap.mmap] = {}
        self._messages = 0

    def start_message(self) -> None:
        """Record that a message arrives, and regularly unmap retired segments."""
        self._messages += 1
        if self._messages % _MAX_IDLE_MESSAGES == 0:
            for segment_id, mapping in list(self._mappings.items()):
                if mapping[len(mapping) - _PAGE] == _RETIRED:
                    del self._mappings[segment_id]

    def map_array(self, segment_id: int, nbytes: int, descriptor: int | None) -> np.ndarray:
        """Return an array of bytes in a segment, which is released with the last reference to it.

        Args:
          segment_id: Id of the segment.
          nbytes: Number of bytes.
          descriptor: Descriptor of a new segment, or None.

        Raises:
          ValueError: If the segment is unknown or too short, or might shrink.
        """
        if descriptor is not None:
            assert fcntl is not None
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            length = os.fstat(descriptor).st_size
            if not seals & fcntl.F_SEAL_SHRINK:
                raise ValueError("a shared memory segment may shrink, because it is not sealed")
            self._mappings[segment_id] = mmap.mmap(descriptor, length)
        mapping = self._mappings.get(segment_id)
        if mapping is None or nbytes > len(mapping) - _PAGE:
            raise ValueError("a shared memory segment is shorter than its array, or unknown")
        return _wrap_bytes(mapping, nbytes)


def _wrap_bytes(mapping: mmap.mmap, nbytes: int) -> np.ndarray:
    owner = os.getpid()

    def release() -> None:
        # A forked process has a copy of the array, and must not release the segment for its parent.
        if os.getpid() == owner:
            mapping[len(mapping) - _PAGE] = _FREE

    return transfers.wrap_foreign_memory(memoryview(mapping)[:nbytes], release)
