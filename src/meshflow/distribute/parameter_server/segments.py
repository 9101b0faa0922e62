"""Memory that two processes of a machine share, for the arrays that they send each other.

A segment is a file without a name, whose descriptor goes over the connection once: nothing is left of it when processes are
killed. Who sends fills a segment, marks it, and names it in a message; when nobody has the received array any more, the other
side clears the mark and the segment is filled again: its pages are there already, and touching fresh ones costs ten times as
much as filling them.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime import transfers
from meshflow.distribute.parameter_server import placed

fcntl: Any
try:
    import fcntl
except ImportError:
    fcntl = None

__all__ = ["POSSIBLE", "Incoming", "Outgoing", "Segment"]

# From so many bytes on arrays go by segments.
_LEAST = 1 << 16
# So many segments at most, and so many of all their bytes, on one way of a connection; with one message so many new ones,
# as the system takes no more descriptors at a time.
_MOST, _MOST_BYTES, _MOST_NEW = 1024, 1 << 32, 128
_PAGE = mmap.PAGESIZE
# What the byte behind the data says. A segment that no message needed for so many of them is given up.
_FREE, _USED, _GIVEN_UP = range(3)
_UNUSED = 64
POSSIBLE = fcntl is not None and sys.platform == "linux" and hasattr(os, "memfd_create")


class Segment:
    """One segment, as its sender has it.

    Args:
      number: its number on the connection.
      size: how many bytes it holds.
    """

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size = number, size
        self.descriptor: int | None = os.memfd_create(
            "meshflow", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        )
        os.ftruncate(self.descriptor, size + _PAGE)
        # Who maps it may rely on its length.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
        self._mapping = mmap.mmap(self.descriptor, size + _PAGE)
        self.data = np.frombuffer(self._mapping, np.uint8, size)
        self.address = self.data.ctypes.data
        # The message that it was last used for.
        self.last = 0

    @property
    def is_used(self) -> bool:
        """Whether the other side has an array in it."""
        return self._mapping[self.size] != _FREE

    @property
    def is_free(self) -> bool:
        """Whether no array is in it, on neither side."""
        return not (self.is_used or placed.holds(self.address))

    def mark(self, given_up: bool = False) -> None:
        """Says that the other side has an array in it, or that no other one comes."""
        self._mapping[self.size] = _GIVEN_UP if given_up else _USED

    def close(self) -> None:
        """Closes the descriptor: the memory stays as long as somebody has mapped it."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()
            placed.keep(self.data)


class Outgoing:
    """The segments of who sends; other threads may have arrays made in them while one sends."""

    def __init__(self) -> None:
        self._by_size: dict[int, list[Segment]] = {}
        self._at: dict[int, Segment] = {}
        # Addresses of those that were given out to be filled, for the next message and for programs.
        self._lent: set[int] = set()
        self._offered: set[int] = set()
        # Numbers are given again, so that the other side lets go of what had them before.
        self._numbers = list(range(_MOST, 0, -1))
        self._bytes = self._new = self._messages = 0
        self._lock = threading.Lock()

    def lend(self, nbytes: int) -> np.ndarray | None:
        """Bytes to be filled and sent with the next message; None when there are none.

        Args:
          nbytes: how many.
        """
        with self._lock:
            segment = self._free(nbytes) if nbytes >= _LEAST else None
            if segment is None:
                return None
            self._lent.add(segment.address)
            return segment.data[:nbytes]

    @contextlib.contextmanager
    def placing(self, sizes: Sequence[int]) -> Iterator[None]:
        """Arrays of so many bytes that programs make inside, in this thread, lie in segments: they go without a copy.

        Args:
          sizes: how many bytes, of one array each.
        """
        with self._lock:
            offers = [(self._offer(size), size) for size in sizes]
        memories = [(segment.data, size) for segment, size in offers if segment is not None]
        try:
            with placed.offered(memories):
                yield
        finally:
            with self._lock:
                self._offered.difference_update(m.ctypes.data for m, _ in memories)

    def segment_of(self, array: np.ndarray) -> Segment | None:
        """The segment that an array lies in; None where there is none.

        Args:
          array: the array.
        """
        return self._at.get(array.ctypes.data)

    def of(self, memory: memoryview) -> Segment | None:
        """The segment that holds an array, which is filled with it unless it lies there; None when there is none.

        Args:
          memory: the array's bytes.
        """
        if memory.nbytes < _LEAST:
            return None
        array = np.frombuffer(memory, np.uint8)
        with self._lock:
            segment = self.segment_of(array)
            # While the other side has it no other message can name it: the first to be over there would free it.
            lies_there = segment is not None and not segment.is_used
            if not lies_there:
                segment = self._free(array.nbytes)
            if segment is None:
                return None
            self._lent.add(segment.address)
        if not lies_there:
            np.copyto(segment.data[: array.nbytes], array)
        segment.mark()
        segment.last = self._messages
        return segment

    def sent(self) -> None:
        """Notes that a message has gone, with all that was lent for it."""
        with self._lock:
            self._lent.clear()
            self._new = 0
            self._messages += 1
            if self._messages % _UNUSED == 0:
                self._give_up(self._messages - _UNUSED)

    def _free(self, nbytes: int) -> Segment | None:
        # Few different sizes, so that arrays of nearly the same one share segments.
        unit = max(1 << max(nbytes.bit_length() - 4, 0), _PAGE)
        size = -(-nbytes // unit) * unit
        for segment in self._by_size.get(size, ()):
            if segment.is_free and not self._is_given_out(segment):
                return segment
        return self._made(size)

    def _offer(self, nbytes: int) -> Segment | None:
        segment = self._free(nbytes) if nbytes >= _LEAST else None
        if segment is not None:
            self._offered.add(segment.address)
        return segment

    def _is_given_out(self, segment: Segment) -> bool:
        return segment.address in self._lent or segment.address in self._offered

    def _made(self, size: int) -> Segment | None:
        if self._new == _MOST_NEW:
            return None
        if self._bytes + size > _MOST_BYTES or not self._numbers:
            self._give_up(self._messages + 1)
        if self._bytes + size > _MOST_BYTES or not self._numbers:
            return None
        try:
            made = Segment(self._numbers[-1], size)
        except OSError:
            # Out of descriptors, or of memory: arrays go through the connection.
            return None
        self._numbers.pop()
        self._new += 1
        self._bytes += size
        self._by_size.setdefault(size, []).append(made)
        self._at[made.address] = made
        return made

    def _give_up(self, before: int) -> None:
        """Lets go of segments that nobody has, and which were not used from a message on."""
        for size, segments in self._by_size.items():
            for segment in [s for s in segments if s.last < before]:
                # One that has not been sent yet has still to be.
                is_needed = not segment.is_free or self._is_given_out(segment)
                if is_needed or segment.descriptor is not None:
                    continue
                segment.mark(given_up=True)
                segments.remove(segment)
                del self._at[segment.address]
                self._numbers.append(segment.number)
                self._bytes -= size


class Incoming:
    """The segments of who receives."""

    def __init__(self) -> None:
        self._mappings: dict[int, mmap.mmap] = {}
        self._messages = 0

    def arrived(self) -> None:
        """Notes that a message has come, and lets go of what the other side has given up."""
        self._messages += 1
        if self._messages % _UNUSED == 0:
            for number, mapping in list(self._mappings.items()):
                if mapping[len(mapping) - _PAGE] == _GIVEN_UP:
                    del self._mappings[number]

    def take(self, number: int, nbytes: int, descriptor: int | None) -> np.ndarray:
        """The bytes of a segment, which is the sender's again when nobody has them any more.

        Args:
          number: the segment's number.
          nbytes: how many bytes.
          descriptor: a descriptor, when the segment is new.

        Raises:
          ValueError: for a segment that is not there, or too short, or may become so.
        """
        if descriptor is not None:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            length = os.fstat(descriptor).st_size
            if not seals & fcntl.F_SEAL_SHRINK:
                raise ValueError("a segment may shrink")
            self._mappings[number] = mmap.mmap(descriptor, length)
        mapping = self._mappings.get(number)
        if mapping is None or nbytes > len(mapping) - _PAGE:
            raise ValueError("a segment is not as long as its array")
        return _received(mapping, nbytes)


def _received(mapping: mmap.mmap, nbytes: int) -> np.ndarray:
    owner = os.getpid()

    def over() -> None:
        # A forked process has the array too, and not the last one.
        if os.getpid() == owner:
            mapping[len(mapping) - _PAGE] = _FREE

    return transfers.lent(memoryview(mapping)[:nbytes], over)
