"""Sorted string tables in LevelDB's format: the index of a TensorFlow checkpoint.

A table consists of blocks of entries, an index block with the last key and the location of each of
them, and a footer. An
entry stores how many leading bytes its key shares with the previous key; every sixteenth key is
stored completely (a restart
point). Each block is followed by a byte for the compression and the masked CRC-32C of both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import IO

from meshflow.environment.protobuf_wire import decode_varint, encode_varint
from meshflow.files.crc32c import crc32c, mask_checksum

MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5
_BLOCK_BYTES = 262144
_RESTART_INTERVAL = 16


class _BlockBuilder:
    """Builder of a block."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.last = b""
        self._restarts = [0]
        self._num_since_restart = 0

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self._num_since_restart == _RESTART_INTERVAL:
            self._restarts.append(len(self.content))
            self._num_since_restart = 0
        else:
            max_shared = min(len(key), len(self.last))
            while shared < max_shared and key[shared] == self.last[shared]:
                shared += 1
        self.content += (
            encode_varint(shared) + encode_varint(len(key) - shared) + encode_varint(len(value))
        )
        self.content += key[shared:]
        self.content += value
        self.last = key
        self._num_since_restart += 1

    def finish(self) -> bytes:
        restarts = struct.pack(f"<{len(self._restarts) + 1}I", *self._restarts, len(self._restarts))
        return bytes(self.content) + restarts


def write_table(file: IO[bytes], items: Iterable[tuple[bytes, bytes]]) -> None:
    """Write a table.

    Args:
      file: File, open for writing bytes.
      items: Keys and values, sorted by key.

    Example:
      >>> import io
      >>> file = io.BytesIO()
      >>> write_table(file, [(b"a", b"1"), (b"ab", b"2")])
      >>> list(read_table(file.getvalue()))
      [(b'a', b'1'), (b'ab', b'2')]
    """
    offset = 0

    def write_block(block: _BlockBuilder) -> bytes:
        nonlocal offset
        content = block.finish() + b"\0"
        file.write(content + struct.pack("<I", mask_checksum(crc32c(content))))
        location = encode_varint(offset) + encode_varint(len(content) - 1)
        offset += len(content) + 4
        return location

    index, block = _BlockBuilder(), _BlockBuilder()
    for key, value in items:
        block.add(key, value)
        if len(block.content) >= _BLOCK_BYTES:
            index.add(block.last, write_block(block))
            block = _BlockBuilder()
    if block.content:
        index.add(block.last, write_block(block))
    locations = write_block(_BlockBuilder()) + write_block(index)
    file.write(locations.ljust(_FOOTER_BYTES - len(MAGIC), b"\0") + MAGIC)


def read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a table.

    Args:
      data: Bytes of the file.

    Raises:
      ValueError: If the bytes are not a valid table. The message states the problem.
    """
    if len(data) < _FOOTER_BYTES or not data.endswith(MAGIC):
        raise ValueError("it does not end with the footer of a table")
    footer = data[-_FOOTER_BYTES:]
    offset = 0
    for _ in range(3):
        start, offset = decode_varint(footer, offset)
    size, _ = decode_varint(footer, offset)
    last = None
    for _, location in _iterate_entries(_check_block(data, start, size)):
        start, offset = decode_varint(location, 0)
        size, _ = decode_varint(location, offset)
        for key, value in _iterate_entries(_check_block(data, start, size)):
            if last is not None and key <= last:
                raise ValueError("its keys are not in order")
            last = key
            yield key, value


def _check_block(data: bytes, start: int, size: int) -> bytes:
    end = start + size
    if end + _TRAILER_BYTES > len(data) - _FOOTER_BYTES:
        raise ValueError(f"a block at byte {start} ends after the file")
    content = data[start : end + 1]
    if struct.unpack_from("<I", data, end + 1)[0] != mask_checksum(crc32c(content)):
        raise ValueError(f"the checksum of the block at byte {start} does not match")
    if content[-1]:
        raise ValueError(f"the block at byte {start} is compressed, which is not supported")
    return content[:-1]


def _iterate_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    count = struct.unpack_from("<I", block, len(block) - 4)[0] if len(block) >= 4 else 0
    end = len(block) - 4 - 4 * count
    if end < 0:
        raise ValueError("a block is shorter than its restart points")
    offset, key = 0, b""
    while offset < end:
        shared, offset = decode_varint(block, offset)
        own, offset = decode_varint(block, offset)
        size, offset = decode_varint(block, offset)
        if shared > len(key) or offset + own + size > end:
            raise ValueError("an entry ends after its block")
        key = key[:shared] + block[offset : offset + own]
        offset += own
        yield key, block[offset : offset + size]
        offset += size
