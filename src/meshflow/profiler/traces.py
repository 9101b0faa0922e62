"""Reader of a worker's trace: its steps, the work of its host, and the work of its devices."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

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
from meshflow.ops.files import decompress

# Types of host events, by the prefix of their names.
_HOST_KINDS = {
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
# These events contain others, which have events of their own.
_CONTAINER = re.compile(r"^%?(while|conditional|call)(\.\d+)?$")
_DEVICE = re.compile(r"^/device:(?!CUSTOM)(\w+):(\d+)")


class Spans(NamedTuple):
    """Intervals in nanoseconds of the trace's clock."""

    starts: np.ndarray
    ends: np.ndarray


class Step(NamedTuple):
    """An annotated step; nanoseconds of the trace's clock."""

    name: str
    number: int
    start: float
    end: float


@dataclass
class Device:
    """Events of one device.

    Attributes:
      kinds: Type of each event: '' for computation, otherwise the collective or copy.
      ops: Index of each event in `names`.
      starts: Nanoseconds.
      ends: Nanoseconds.
      runs: Of each event the id of its program's execution, None if unknown.
      names: Unique (program, instruction) pairs; a program's name is followed by its id.
    """

    kinds: list[str] = field(default_factory=list)
    ops: list[int] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    runs: list[int | None] = field(default_factory=list)
    names: dict[tuple[str, str], int] = field(default_factory=dict)

    def add_event(self, op: str, start: float, duration: float, stats: dict[str, Any]) -> None:
        """Add an event."""
        module = str(stats.get("hlo_module", ""))
        if "program_id" in stats:
            module = f"{module}({stats['program_id']})"
        self.ops.append(self.names.setdefault((module, op), len(self.names)))
        run = stats.get("run_id")
        self.runs.append(None if run is None else int(run))
        self.kinds.append(classify_operation(op))
        self.starts.append(start)
        self.ends.append(start + duration)


@dataclass
class WorkerTrace:
    """Contents of a worker's trace.

    Attributes:
      epoch_ns: Nanoseconds since 1970 at which the clock is zero.
      length: Duration in nanoseconds.
      steps: Steps, ordered by their ends.
      host: Spans of the training thread, by kind.
      details: Nanoseconds by kind and detail, such as the callback or the compiled function.
      compilations: (nanoseconds, function) of each compilation.
      calls: Starts and ends of compiled functions' calls, by name.
      devices: Devices by id.
    """

    epoch_ns: float = 0.0
    length: float = 0.0
    steps: list[Step] = field(default_factory=list)
    host: dict[str, Spans] = field(default_factory=dict)
    details: dict[str, dict[str, float]] = field(default_factory=dict)
    compilations: list[tuple[float, str]] = field(default_factory=list)
    calls: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    devices: dict[int, Device] = field(default_factory=dict)


def classify_operation(op: str) -> str:
    """Return the kind of collective or copy of an instruction; '' for computation."""
    collective = _COLLECTIVE.match(op)
    if collective:
        return collective[1]
    if op.startswith("nccl"):
        nccl = _NCCL.match(op)
        return _NCCL_KINDS[nccl[1]] if nccl else "all-reduce"
    return "copy between host and device" if op.startswith(("MemcpyH2D", "MemcpyD2H")) else ""


def read_trace(content: bytes, name: str) -> WorkerTrace:
    """Read a trace, an XSpace or Chrome's JSON.

    Args:
      content: Contents of the file.
      name: Its name; `.json` or `.json.gz` determines the format.

    Raises:
      DataLossError: If the file is empty, truncated, or not a trace.
    """
    if not content:
        raise DataLossError(
            f"The trace {name} is empty. Its process may have been ended while writing it."
        )
    try:
        if name.endswith((".json.gz", ".json")):
            planes = _read_json_planes(content)
        else:
            planes = _read_planes(jax.profiler.ProfileData.from_serialized_xspace(content))
        return _read_trace(planes)
    # A damaged trace may contain values of any type in any place.
    except Exception as error:
        raise DataLossError(
            f"The trace {name} cannot be read: it is cut off, or not a trace ({error}). Record it again."
        ) from error


# ---- common form of both formats: (plane, its stats, (line, events)) -----------------------------


_Plane: TypeAlias = tuple[str, dict[str, Any], list[tuple[str, Iterable[Any]]]]


def _read_planes(data: jax.profiler.ProfileData) -> Iterator[_Plane]:
    for plane in data.planes:
        yield plane.name, dict(plane.stats), [(line.name, line.events) for line in plane.lines]


class _Event(NamedTuple):
    name: str
    start_ns: float
    duration_ns: float
    stats: Any


def _read_json_planes(content: bytes) -> Iterator[_Plane]:
    text = decompress(content, "GZIP") if content[:2] == b"\x1f\x8b" else content
    processes: dict[Any, str] = {}
    threads: dict[Any, str] = {}
    events: dict[Any, dict[Any, list[_Event]]] = defaultdict(lambda: defaultdict(list))
    for entry in json.loads(text)["traceEvents"]:
        if entry.get("ph") == "M":
            label = entry.get("args", {}).get("name", "")
            if entry["name"] == "process_name":
                processes[entry["pid"]] = label
            elif entry["name"] == "thread_name":
                threads[entry["pid"], entry["tid"]] = label
        elif entry.get("ph") == "X":
            stats = list(entry.get("args", {}).items())
            event = _Event(entry["name"], entry["ts"] * 1e3, entry.get("dur", 0) * 1e3, stats)
            events[entry["pid"]][entry["tid"]].append(event)
    for pid, lines in events.items():
        named: list[tuple[str, Iterable[Any]]] = [
            (threads.get((pid, tid), ""), line_events) for tid, line_events in lines.items()
        ]
        yield processes.get(pid, ""), {}, named


# ---- reading -------------------------------------------------------------------------------------


def _read_trace(planes: Iterable[_Plane]) -> WorkerTrace:
    trace = WorkerTrace()
    host: list[tuple[str, Iterable[Any]]] = []
    for name, stats, lines in planes:
        if "profile_start_time" in stats:
            trace.epoch_ns = float(stats["profile_start_time"])
            trace.length = float(stats.get("profile_stop_time", trace.epoch_ns)) - trace.epoch_ns
        device = _DEVICE.match(name)
        if device:
            _read_device(trace, int(device[2]), lines)
        elif name.startswith("/host:CPU"):
            host += lines
    threads = [_read_thread(trace, events) for _, events in host]
    stepping = [thread for thread in threads if thread.steps]
    main = max(threads, key=lambda t: (len(t.steps), len(t.spans["call"])), default=_HostThread())
    for thread in threads:
        trace.steps += thread.steps
    trace.steps.sort(key=lambda s: s.end)
    _read_main_thread(trace, _merge_threads(stepping) if len(stepping) > 1 else main)
    return trace


class _HostThread:
    """Events of a host thread: (start, end, name) by kind."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.spans: dict[str, list[tuple[float, float, str]]] = defaultdict(list)


def _read_thread(trace: WorkerTrace, events: Iterable[Any]) -> _HostThread:
    thread = _HostThread()
    # The kind depends on the name only, and few names occur often, so kinds are cached.
    kinds: dict[str, str | None] = {}
    for event in events:
        name = event.name
        kind = kinds.get(name, "?")
        if kind == "?":
            kind = kinds[name] = _classify_event(name, event)
        if kind is None:
            continue
        start, duration = event.start_ns, event.duration_ns
        if kind == "thunk":
            stats = dict(event.stats)
            number = int(stats.get("device_ordinal", 0))
            device = trace.devices.setdefault(number, Device())
            device.add_event(name, start, duration, stats)
        elif kind == "step":
            number = int(dict(event.stats).get("step_num", len(thread.steps)))
            thread.steps.append(Step(name, number, start, start + duration))
        else:
            thread.spans[kind].append((start, start + duration, name))
    return thread


def _classify_event(name: str, event: Any) -> str | None:
    """Return the kind of host events with a name; None for ignored ones."""
    if name.startswith(("end: ", "ThreadpoolListener", "ThunkExecutor")):
        return None
    if name.startswith(_CALL):
        return "call"
    for prefix, kind in _HOST_KINDS.items():
        if name.startswith(prefix):
            return kind
    stats = {key for key, _ in event.stats}
    if "hlo_op" in stats:
        return None if _CONTAINER.match(name) else "thunk"
    return "step" if "step_num" in stats or "_r" in stats else None


def _merge_threads(threads: list[_HostThread]) -> _HostThread:
    """Merge threads that take turns with the steps: the result waits while all threads wait."""
    merged = _HostThread()
    for kind in dict.fromkeys(kind for thread in threads for kind in thread.spans):
        for thread in threads:
            merged.spans[kind] += thread.spans[kind]
    edges = [
        edge
        for thread in threads
        for start, end in find_outermost([span[:2] for span in thread.spans["waiting"]])
        for edge in ((start, 1), (end, -1))
    ]
    num_waiting, since, merged.spans["waiting"] = 0, 0.0, []
    for time, change in sorted(edges):
        if num_waiting == len(threads) and change < 0:
            merged.spans["waiting"].append((since, time, ""))
        num_waiting, since = num_waiting + change, time
    return merged


def find_outermost(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the intervals that are not inside others, as nested calls are recorded twice."""
    outer: list[tuple[float, float]] = []
    for start, end in sorted(spans, key=lambda s: (s[0], -s[1])):
        if not outer or start >= outer[-1][1]:
            outer.append((start, end))
    return outer


def _read_main_thread(trace: WorkerTrace, main: _HostThread) -> None:
    calls = main.spans.pop("call", [])
    for start, end, name in calls:
        trace.calls.setdefault(name[len(_CALL) : -1], []).append((start, end))
    compiling = main.spans.get("compile", [])
    # In a call that compiles, all time up to the end of the compilation counts, including lowering
    # and passes.
    for start, end, _ in [c for c in compiling if c[2].startswith("backend_compile")]:
        enclosing = [c for c in calls if c[0] <= start and end <= c[1]]
        if enclosing:
            call_start, _, call = max(enclosing, key=lambda c: c[1] - c[0])
            compiling.append((call_start, end, call))
            trace.compilations.append((start, call[len(_CALL) : -1]))
        else:
            trace.compilations.append((start, "an operation"))
    for kind, spans in main.spans.items():
        array = np.array([s[:2] for s in spans], float).reshape(-1, 2)
        trace.host[kind] = Spans(array[:, 0], array[:, 1])
        details: dict[str, float] = defaultdict(float)
        # Checkpoints written by a callback count as checkpoints.
        inner = main.spans.get("checkpoint", []) if kind == "callback" else []
        for start, end, name in spans:
            checkpoint_time = sum(e - s for s, e, _ in inner if start <= s and e <= end)
            details[name.partition("/")[2]] += end - start - checkpoint_time
        trace.details[kind] = {name: nanoseconds for name, nanoseconds in details.items() if name}


def _read_device(trace: WorkerTrace, number: int, lines: list[tuple[str, Iterable[Any]]]) -> None:
    line_names = {name for name, _ in lines}
    prefixes = ("XLA Ops", "Async XLA Ops") if "XLA Ops" in line_names else ("Stream",)
    device = trace.devices.setdefault(number, Device())
    for name, events in lines:
        if not name.startswith(prefixes):
            continue
        for event in events:
            stats = dict(event.stats)
            op = str(stats.get("hlo_op", event.name)).removeprefix("%").partition(" = ")[0]
            if _CONTAINER.match(op) is None:
                device.add_event(op, event.start_ns, event.duration_ns, stats)
