"""Record files, plain and compressed."""

import functools
import gzip
import struct
import zlib

from fuzz.formats.files import written
from meshflow.files.crc32c import crc32c, mask_checksum
from meshflow.io import records


def framed(record):
    summed = lambda data: struct.pack("<I", mask_checksum(crc32c(data)))
    length = struct.pack("<Q", len(record))
    return length + summed(length) + record + summed(record)


@functools.cache
def seeds():
    plain = b"".join(map(framed, (b"", b"one", b"two" * 50)))
    return [plain, gzip.compress(plain, mtime=0), zlib.compress(plain), framed(b"0" * 3000)]


def parse(data):
    path = written(data)
    kind = "GZIP" if data[:2] == b"\x1f\x8b" else "ZLIB" if data[:1] == b"\x78" else ""
    for _ in records.read_records(path, kind):
        pass


def inside(seed, change, rng):
    """Corrupt lengths with valid checksums, or compressed contents before compression."""
    plain = seeds()[0]
    if seed[:2] == b"\x1f\x8b":
        return gzip.compress(change(plain), mtime=0)
    if seed[:1] == b"\x78":
        return zlib.compress(change(plain))
    length = rng.choice((1 << 62, 1 << 33, 1 << 31, 100, (1 << 64) - 1))
    false = framed(b"")[:0] + struct.pack("<Q", length)
    return seed + false + struct.pack("<I", mask_checksum(crc32c(false))) + b"abc"
