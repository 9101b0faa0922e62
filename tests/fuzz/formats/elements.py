"""Files of elements: caches, saved datasets and snapshots."""

import functools
import gzip
import io
import struct
import zlib

import numpy as np

import meshflow as tf
from fuzz.formats.files import written
from meshflow.data.storage import element_files

SPEC = {"v": tf.TensorSpec([None], tf.float32), "s": tf.TensorSpec([], tf.string)}


@functools.cache
def seeds():
    file = io.BytesIO()
    writer = element_files.ElementWriter(file, SPEC)
    for n in range(3):
        writer.write({"v": np.arange(n, dtype=np.float32), "s": np.array(b"word" * n, object)})
    writer.write_end()
    plain = file.getvalue()
    return [plain, gzip.compress(plain, mtime=0)]


def parse(data):
    kind = "GZIP" if data[:2] == b"\x1f\x8b" else None
    for _ in element_files.read_elements(written(data), SPEC, kind):
        pass


def inside(seed, change, rng):
    """The elements' description, or the first element's header, is changed and has the right checksum."""
    plain, at = seeds()[0], 8
    if rng.random() < 0.7:
        at += 8 + struct.unpack_from("<I", plain, at)[0]
    (size,) = struct.unpack_from("<I", plain, at)
    text = change(plain[at + 8 : at + 8 + size])
    frame = struct.pack("<II", len(text), zlib.crc32(text))
    made = plain[:at] + frame + text + plain[at + 8 + size :]
    return gzip.compress(made, mtime=0) if seed[:2] == b"\x1f\x8b" else made
