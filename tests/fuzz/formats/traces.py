"""Traces of profilers: Chrome's JSON, and XSpace messages of a profiler."""

import functools
import gzip
import json

from fuzz.formats.protos import tried
from meshflow.profiler.messages import ProfileRequest, ProfileResponse, pack, unpack
from meshflow.profiler.traces import read_trace


@functools.cache
def seeds():
    def name(kind, pid, tid, text):
        return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": text}}

    events = [
        name("process_name", 1, 0, "/host:CPU"),
        name("process_name", 2, 0, "/device:GPU:0"),
        name("thread_name", 1, 1, "python"),
        name("thread_name", 2, 1, "Stream #1"),
    ]
    for i in range(3):
        args = {"step_num": str(i), "hlo_op": f"fusion.{i}"}
        events += [
            {"ph": "X", "name": "train", "pid": p, "tid": 1, "ts": 10 * i, "dur": 8, "args": args}
            for p in (1, 2)
        ]
    text = json.dumps({"traceEvents": events}).encode()
    # An XSpace: a plane (1) with its name (2) and a line (3) with its name (2).
    plane = pack([(1, 7), (2, b"/host:CPU"), (3, pack([(1, 1), (2, b"python"), (3, 9)]))])
    space = pack([(1, plane), (4, b"host")])
    request = ProfileRequest(100, session="s", host="h", returns_files=True).to_bytes()
    response = ProfileResponse(False, {"xplane.pb": space}).to_bytes()
    return [text, gzip.compress(text, mtime=0), space, request, response]


def parse(data):
    if data[:1] == b"{" or data[:2] == b"\x1f\x8b":
        read_trace(data, "case.json.gz")
        return
    tried(
        lambda: ProfileRequest.from_bytes(data),
        lambda: ProfileResponse.from_bytes(data),
        lambda: unpack(data),
        lambda: read_trace(data, "case.xplane.pb"),
    )


def inside(seed, change, rng):
    """The JSON in a compressed trace is changed."""
    text = change(seeds()[0])
    return gzip.compress(text, mtime=0) if rng.random() < 0.2 else text
