"""Sorted tables of bytes in a file, LevelDB's format: the index of a TensorFlow checkpoint.

A table is blocks of entries, a block that names the last key and the place of each of them, and a footer.
An entry says how many bytes of its key are those of the key before; every sixteenth is written whole.
After each block come a byte for the compression and the masked CRC-32C of both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import IO

from meshflow.environment.protobuf_wire import read_varint, varint
from meshflow.files.crc32c import crc32c, masked

MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER = 48
_TRAILER = 5
_BLOCK = 262144
_WHOLE_EVERY = 16


class _Block:
    """A block that is being filled."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.last = b""
        self._whole = [0]
        self._since = 0

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self._since == _WHOLE_EVERY:
            self._whole.append(len(self.content))
            self._since = 0
        else:
            most = min(len(key), len(self.last))
            while shared < most and key[shared] == self.last[shared]:
                shared += 1
        self.content += varint(shared) + varint(len(key) - shared) + varint(len(value))
        self.content += key[shared:]
        self.content += value
        self.last = key
        self._since += 1

    def ended(self) -> bytes:
        ends = struct.pack(f"<{len(self._whole) + 1}I", *self._whole, len(self._whole))
        return bytes(self.content) + ends


def write_table(file: IO[bytes], items: Iterable[tuple[bytes, bytes]]) -> None:
    """Writes a table.

    Args:
      file: open for bytes.
      items: keys and values, sorted by the key.

    Example:
      >>> import io
      >>> file = io.BytesIO()
      >>> write_table(file, [(b"a", b"1"), (b"ab", b"2")])
      >>> list(read_table(file.getvalue()))
      [(b'a', b'1'), (b'ab', b'2')]
    """
    at = 0

    def put(block: _Block) -> bytes:
        nonlocal at
        content = block.ended() + b"\0"
        file.write(content + struct.pack("<I", masked(crc32c(content))))
        place = varint(at) + varint(len(content) - 1)
        at += len(content) + 4
        return place

    index, block = _Block(), _Block()
    for key, value in items:
        block.add(key, value)
        if len(block.content) >= _BLOCK:
            index.add(block.last, put(block))
            block = _Block()
    if block.content:
        index.add(block.last, put(block))
    places = put(_Block()) + put(index)
    file.write(places.ljust(_FOOTER - len(MAGIC), b"\0") + MAGIC)


def read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a table.

    Args:
      data: the file's bytes.

    Raises:
      ValueError: saying what is wrong with them.
    """
    if len(data) < _FOOTER or not data.endswith(MAGIC):
        raise ValueError("it does not end as a table does")
    footer = data[-_FOOTER:]
    at = 0
    for _ in range(3):
        start, at = read_varint(footer, at)
    size, _ = read_varint(footer, at)
    last = None
    for _, place in _entries(_block(data, start, size)):
        start, at = read_varint(place, 0)
        size, _ = read_varint(place, at)
        for key, value in _entries(_block(data, start, size)):
            if last is not None and key <= last:
                raise ValueError("its keys are not in order")
            last = key
            yield key, value


def _block(data: bytes, start: int, size: int) -> bytes:
    end = start + size
    if end + _TRAILER > len(data) - _FOOTER:
        raise ValueError(f"a block at byte {start} ends behind the file")
    content = data[start : end + 1]
    if struct.unpack_from("<I", data, end + 1)[0] != masked(crc32c(content)):
        raise ValueError(f"the checksum of the block at byte {start} does not match")
    if content[-1]:
        raise ValueError(f"the block at byte {start} is compressed, which TensorFlow's are not")
    return content[:-1]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    count = struct.unpack_from("<I", block, len(block) - 4)[0] if len(block) >= 4 else 0
    end = len(block) - 4 - 4 * count
    if end < 0:
        raise ValueError("a block has no end")
    at, key = 0, b""
    while at < end:
        shared, at = read_varint(block, at)
        own, at = read_varint(block, at)
        size, at = read_varint(block, at)
        if shared > len(key) or at + own + size > end:
            raise ValueError("an entry ends behind its block")
        key = key[:shared] + block[at : at + own]
        at += own
        yield key, block[at : at + size]
        at += size
