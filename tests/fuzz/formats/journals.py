"""Fuzz logs and snapshots of parameter servers: headers and records, without loading pickles."""

import functools

from fuzz.formats.files import written
from meshflow.distribute.parameter_server.server.record_files import (
    pack_header,
    pack_record,
    read_records,
)
from meshflow.files.storage import LOCAL_STORAGE

KINDS = {b"L": "log", b"S": "snapshot"}


def packed(kind, bodies):
    parts = [pack_header(kind, 1)]
    for index, body in enumerate(bodies):
        parts += pack_record(index, body, [memoryview(b"12345678")] * index)
    return b"".join(bytes(part) for part in parts)


@functools.cache
def seeds():
    return [prefix + packed(kind, [b"one", b"", b"three" * 9]) for prefix, kind in KINDS.items()]


def parse(data):
    kind = KINDS.get(data[:1], "log")
    for _ in read_records(LOCAL_STORAGE, written(data[1:], f"{kind}.1"), kind):
        pass


def inside(seed, change, rng):
    """A record is changed, and has the right checksums."""
    prefix = seed[:1] if seed[:1] in KINDS else b"L"
    return prefix + packed(KINDS[prefix], [change(b"one"), change(b"two" * rng.randrange(9))])
