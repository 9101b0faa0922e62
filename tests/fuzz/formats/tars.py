"""Tar files of samples, plain and compressed."""

import functools
import gzip
import io
import tarfile

from fuzz.formats.files import written
from meshflow.data.readers.tar import _read_samples


@functools.cache
def seeds():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in ("0.txt", "0.cls", "1.txt"):
            info = tarfile.TarInfo(name)
            info.size = 5
            tar.addfile(info, io.BytesIO(b"12345"))
    plain = file.getvalue()[:3072]
    return [plain, gzip.compress(plain, mtime=0)]


def parse(data):
    for _ in _read_samples(written(data)):
        pass


def inside(seed, change, rng):
    """A header is changed, and has the right checksum."""
    plain = seeds()[0]
    at = 1024 * rng.randrange(3)
    header = bytearray(change(plain[at : at + 512])[:512].ljust(512, b"\0"))
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    made = plain[:at] + bytes(header) + plain[at + 512 :]
    return gzip.compress(made, mtime=0) if seed[:2] == b"\x1f\x8b" else made
