"""PNG images."""

import functools
import struct
import zlib

import meshflow as tf
from fuzz.formats.images import encoded, loaded


@functools.cache
def seeds():
    modes = ("L", "LA", "RGB", "RGBA", "P", "1", "I;16")
    return [*(encoded("PNG", mode) for mode in modes), encoded("PNG", bits=4, mode="P")]


def parse(data):
    loaded(data)
    for decode in (tf.io.decode_png, lambda d: tf.io.decode_image(d, 3)):
        decode(data)


def inside(seed, change, rng):
    """A chunk is changed, and has the right length and checksum."""
    chunks, at = [], 8
    while at < len(seed):
        (size,) = struct.unpack_from(">I", seed, at)
        chunks.append((seed[at + 4 : at + 8], seed[at + 8 : at + 8 + size]))
        at += size + 12
    number = rng.randrange(len(chunks))
    name, content = chunks[number]
    deflated = name == b"IDAT" and rng.random() < 0.5
    chunks[number] = (
        name,
        zlib.compress(change(zlib.decompress(content))) if deflated else change(content),
    )
    made = (
        struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in chunks
    )
    return seed[:8] + b"".join(made)
