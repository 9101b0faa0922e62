"""Reading the trace of one worker: its steps, what its host did, and what ran on its devices."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.core.runtime.annotations import (
    CALLBACK,
    CHECKPOINT,
    COMMUNICATION,
    INPUT,
    TRACING,
    WAITING,
)
from meshflow.core.runtime.errors import DataLossError

__all__ = ["Trace", "read_trace"]

# What the host did, by the beginning of an event's name.
_HOST = {
    INPUT: "input",
    CHECKPOINT: "checkpoint",
    CALLBACK: "callback",
    COMMUNICATION: "communication",
    TRACING: "compile",
    WAITING: "waiting",
    "backend_compile": "compile",
    "lower_sharding_computation": "compile",
    "trace_to_jaxpr": "compile",
    "np.asarray": "waiting",
    "CommonPjRtBuffer::Await": "waiting",
    "PjRtBuffer::Await": "waiting",
    "block_until_ready": "waiting",
    "Wait for LaunchOnDevice completion": "waiting",
}
_CALL = "PjitFunction("
_COLLECTIVE = re.compile(
    r"^%?(all-reduce|all-gather|reduce-scatter|ragged-all-to-all|all-to-all|collective-permute"
    r"|collective-broadcast|send|recv)\b"
)
_NCCL = re.compile(r"^nccl\w*?(AllReduce|AllGather|ReduceScatter|SendRecv|Broadcast)")
_NCCL_KINDS = {
    "AllReduce": "all-reduce",
    "AllGather": "all-gather",
    "ReduceScatter": "reduce-scatter",
    "SendRecv": "collective-permute",
    "Broadcast": "collective-broadcast",
}
# They span what they run, which is shown by itself.
_SPANNING = re.compile(r"^%?(while|conditional|call)(\.\d+)?$")
_DEVICE = re.compile(r"^/device:(?!CUSTOM)(\w+):(\d+)")


class Spans(NamedTuple):
    """Intervals in nanoseconds of the trace's clock."""

    starts: np.ndarray
    ends: np.ndarray


class Step(NamedTuple):
    """A step as it was annotated; nanoseconds of the trace's clock."""

    name: str
    number: int
    start: float
    end: float


@dataclass
class Device:
    """What ran on one device.

    Attributes:
      kinds: for each event '' for computation, or which collective or copy it is.
      ops: for each event its place in `names`.
      starts: nanoseconds.
      ends: nanoseconds.
      runs: for each event which execution of its program it is of, None where that is not said.
      names: the different (program, instruction); a program's number stands behind its name.
    """

    kinds: list[str] = field(default_factory=list)
    ops: list[int] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    runs: list[int | None] = field(default_factory=list)
    names: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, op: str, start: float, duration: float, stats: dict[str, Any]) -> None:
        """Takes in an event."""
        module = str(stats.get("hlo_module", ""))
        if "program_id" in stats:
            module = f"{module}({stats['program_id']})"
        self.ops.append(self.names.setdefault((module, op), len(self.names)))
        run = stats.get("run_id")
        self.runs.append(None if run is None else int(run))
        self.kinds.append(kind_of(op))
        self.starts.append(start)
        self.ends.append(start + duration)


@dataclass
class Trace:
    """What the trace of one worker says.

    Attributes:
      began: nanoseconds since 1970 of the clock's zero.
      length: how long it is, in nanoseconds.
      steps: in the order of their ends.
      host: spans of the thread that trains, by kind.
      details: for each kind, nanoseconds by detail: which callback, which function was compiled.
      compiled: (nanoseconds, function) of each compilation.
      calls: starts and ends of compiled functions' calls, by name.
      devices: by number.
    """

    began: float = 0.0
    length: float = 0.0
    steps: list[Step] = field(default_factory=list)
    host: dict[str, Spans] = field(default_factory=dict)
    details: dict[str, dict[str, float]] = field(default_factory=dict)
    compiled: list[tuple[float, str]] = field(default_factory=list)
    calls: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    devices: dict[int, Device] = field(default_factory=dict)


def kind_of(op: str) -> str:
    """Which collective or copy an instruction is; '' for computation."""
    found = _COLLECTIVE.match(op)
    if found:
        return found[1]
    if op.startswith("nccl"):
        library = _NCCL.match(op)
        return _NCCL_KINDS[library[1]] if library else "all-reduce"
    return "copy between host and device" if op.startswith(("MemcpyH2D", "MemcpyD2H")) else ""


def read_trace(content: bytes, name: str) -> Trace:
    """Reads a trace, an XSpace or Chrome's JSON.

    Args:
      content: of the file.
      name: its name, for errors; `.json.gz` says which of the two it is.

    Raises:
      DataLossError: for a file that is empty, cut off, or no trace.
    """
    if not content:
        raise DataLossError(
            f"The trace {name} is empty. Was its process ended while it was written?"
        )
    try:
        if name.endswith((".json.gz", ".json")):
            planes = _json_planes(content)
        else:
            planes = _planes(jax.profiler.ProfileData.from_serialized_xspace(content))
        return _read(planes)
    except (ValueError, RuntimeError, KeyError, EOFError, OSError, UnicodeDecodeError) as error:
        raise DataLossError(
            f"The trace {name} cannot be read: it is cut off, or no trace ({error}). Record it again."
        ) from error


# ---- what both formats are read as: (plane, its stats, (line, events)) ----------------------------


def _planes(data: Any) -> Iterator[tuple[str, Any, list[tuple[str, Iterable[Any]]]]]:
    for plane in data.planes:
        yield plane.name, dict(plane.stats), [(line.name, line.events) for line in plane.lines]


class _Event(NamedTuple):
    name: str
    start_ns: float
    duration_ns: float
    stats: Any


def _json_planes(content: bytes) -> Iterator[tuple[str, Any, list[tuple[str, Iterable[Any]]]]]:
    text = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    processes: dict[Any, str] = {}
    threads: dict[Any, str] = {}
    events: dict[Any, dict[Any, list[_Event]]] = defaultdict(lambda: defaultdict(list))
    for one in json.loads(text)["traceEvents"]:
        if one.get("ph") == "M":
            given = one.get("args", {}).get("name", "")
            if one["name"] == "process_name":
                processes[one["pid"]] = given
            elif one["name"] == "thread_name":
                threads[one["pid"], one["tid"]] = given
        elif one.get("ph") == "X":
            stats = list(one.get("args", {}).items())
            event = _Event(one["name"], one["ts"] * 1e3, one.get("dur", 0) * 1e3, stats)
            events[one["pid"]][one["tid"]].append(event)
    for pid, lines in events.items():
        named: list[tuple[str, Iterable[Any]]] = [
            (threads.get((pid, tid), ""), found) for tid, found in lines.items()
        ]
        yield processes.get(pid, ""), {}, named


# ---- taking in -----------------------------------------------------------------------------------


def _read(planes: Iterable[tuple[str, Any, list[tuple[str, Iterable[Any]]]]]) -> Trace:
    trace = Trace()
    host: list[tuple[str, Iterable[Any]]] = []
    for name, stats, lines in planes:
        if "profile_start_time" in stats:
            trace.began = float(stats["profile_start_time"])
            trace.length = float(stats.get("profile_stop_time", trace.began)) - trace.began
        device = _DEVICE.match(name)
        if device:
            _take_device(trace, int(device[2]), lines)
        elif name.startswith("/host:CPU"):
            host += lines
    threads = [_take_thread(trace, events) for _, events in host]
    stepping = [thread for thread in threads if thread.steps]
    main = max(threads, key=lambda t: (len(t.steps), len(t.spans["call"])), default=_Thread())
    for thread in threads:
        trace.steps += thread.steps
    trace.steps.sort(key=lambda s: s.end)
    _take_main(trace, _together(stepping) if len(stepping) > 1 else main)
    return trace


class _Thread:
    """What one thread of the host did: (start, end, rest of the name) by kind."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.spans: dict[str, list[tuple[float, float, str]]] = defaultdict(list)


def _take_thread(trace: Trace, events: Iterable[Any]) -> _Thread:
    thread = _Thread()
    # What an event is depends on its name alone, and most have one of a few.
    kinds: dict[str, str | None] = {}
    for event in events:
        name = event.name
        kind = kinds.get(name, "?")
        if kind == "?":
            kind = kinds[name] = _kind(name, event)
        if kind is None:
            continue
        start, duration = event.start_ns, event.duration_ns
        if kind == "thunk":
            stats = dict(event.stats)
            number = int(stats.get("device_ordinal", 0))
            device = trace.devices.setdefault(number, Device())
            device.add(name, start, duration, stats)
        elif kind == "step":
            number = int(dict(event.stats).get("step_num", len(thread.steps)))
            thread.steps.append(Step(name, number, start, start + duration))
        else:
            thread.spans[kind].append((start, start + duration, name))
    return thread


def _kind(name: str, event: Any) -> str | None:
    """What events of a name on the host are; None for what is not looked at."""
    if name.startswith(("end: ", "ThreadpoolListener", "ThunkExecutor")):
        return None
    if name.startswith(_CALL):
        return "call"
    for prefix, kind in _HOST.items():
        if name.startswith(prefix):
            return kind
    stats = {key for key, _ in event.stats}
    if "hlo_op" in stats:
        return None if _SPANNING.match(name) else "thunk"
    return "step" if "step_num" in stats or "_r" in stats else None


def _together(threads: list[_Thread]) -> _Thread:
    """Threads that take turns with the steps, as one: it works while any works, and waits while all wait."""
    found = _Thread()
    for kind in dict.fromkeys(kind for thread in threads for kind in thread.spans):
        for thread in threads:
            found.spans[kind] += thread.spans[kind]
    edges = [
        edge
        for thread in threads
        for start, end in outermost([span[:2] for span in thread.spans["waiting"]])
        for edge in ((start, 1), (end, -1))
    ]
    waiting, since, found.spans["waiting"] = 0, 0.0, []
    for when, change in sorted(edges):
        if waiting == len(threads) and change < 0:
            found.spans["waiting"].append((since, when, ""))
        waiting, since = waiting + change, when
    return found


def outermost(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Intervals without those that lie in others: of calls that are shown twice, the outer ones."""
    outer: list[tuple[float, float]] = []
    for start, end in sorted(spans, key=lambda s: (s[0], -s[1])):
        if not outer or start >= outer[-1][1]:
            outer.append((start, end))
    return outer


def _take_main(trace: Trace, main: _Thread) -> None:
    calls = main.spans.pop("call", [])
    for start, end, name in calls:
        trace.calls.setdefault(name[len(_CALL) : -1], []).append((start, end))
    compiling = main.spans.get("compile", [])
    # Of a call that compiles all up to the end of that is compilation, lowering and passes too.
    for start, end, _ in [c for c in compiling if c[2].startswith("backend_compile")]:
        around = [c for c in calls if c[0] <= start and end <= c[1]]
        if around:
            first, _, call = max(around, key=lambda c: c[1] - c[0])
            compiling.append((first, end, call))
            trace.compiled.append((start, call[len(_CALL) : -1]))
        else:
            trace.compiled.append((start, "an operation"))
    for kind, spans in main.spans.items():
        array = np.array([s[:2] for s in spans], float).reshape(-1, 2)
        trace.host[kind] = Spans(array[:, 0], array[:, 1])
        details: dict[str, float] = defaultdict(float)
        # What a callback writes counts as a checkpoint.
        inner = main.spans.get("checkpoint", []) if kind == "callback" else []
        for start, end, name in spans:
            written = sum(e - s for s, e, _ in inner if start <= s and e <= end)
            details[name.partition("/")[2]] += end - start - written
        trace.details[kind] = {name: taken for name, taken in details.items() if name}


def _take_device(trace: Trace, number: int, lines: list[tuple[str, Iterable[Any]]]) -> None:
    named = {name for name, _ in lines}
    wanted = ("XLA Ops", "Async XLA Ops") if "XLA Ops" in named else ("Stream",)
    device = trace.devices.setdefault(number, Device())
    for name, events in lines:
        if not name.startswith(wanted):
            continue
        for event in events:
            stats = dict(event.stats)
            op = str(stats.get("hlo_op", event.name)).removeprefix("%").partition(" = ")[0]
            if _SPANNING.match(op) is None:
                device.add(op, event.start_ns, event.duration_ns, stats)
