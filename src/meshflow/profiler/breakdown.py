"""Breakdown of the time of each step of a worker into parts that sum to the step.

At every moment a worker is in one state, the first of this list that applies: its device computes;
its device takes part in a collective; the host compiles, waits for input, exchanges variables with
parameter servers, writes a checkpoint, runs a callback; the host waits for an idle device. The rest
is Python on the host. Work that overlaps with computation is therefore not counted, as it does not
make the step longer. For a worker with several devices, the parts are means over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshflow.profiler.traces import Device, Spans, Step, WorkerTrace, find_outermost

# Parts that the host takes, in the order of their precedence.
_HOST = ("compile", "input", "communication", "checkpoint", "callback", "waiting")
HOST_PARTS = ("python", "callback", "checkpoint")
SERVERS = "parameter servers"


@dataclass
class Breakdown:
    """The steps of a worker and their parts.

    Attributes:
      steps: Names and numbers.
      starts: Start of each step, nanoseconds of the trace's clock.
      walls: Duration of each step, nanoseconds.
      parts: Nanoseconds of each step by part: 'compute', 'python', 'idle', ..., 'comm:' and the
        collective.
    """

    steps: list[tuple[str, int]]
    starts: np.ndarray
    walls: np.ndarray
    parts: dict[str, np.ndarray]


def break_down(trace: WorkerTrace) -> Breakdown:
    """Break down the steps of a trace; without annotated steps, the calls of its main function."""
    steps = trace.steps or _convert_calls_to_steps(trace)
    steps, starts, ends = _find_bounds(trace, steps)
    edges = np.stack([starts, ends]).reshape(2, -1)
    devices = list(trace.devices.values()) or [Device()]
    parts: dict[str, np.ndarray] = {}
    for device in devices:
        for name, nanoseconds in _measure_exclusive_parts(device, trace.host, edges).items():
            parts[name] = parts.get(name, 0.0) + nanoseconds / len(devices)
    walls = ends - starts
    parts["python"] = np.maximum(walls - sum(parts.values()), 0.0) if len(walls) else walls
    return Breakdown(
        [(s.name, s.number) for s in steps], starts, walls, _select_visible_parts(parts)
    )


def _select_visible_parts(parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    always_shown = ("compute", "input", "python", "idle")
    return {
        name: nanoseconds
        for name, nanoseconds in parts.items()
        if name in always_shown or nanoseconds.any()
    }


def _convert_calls_to_steps(trace: WorkerTrace) -> list[Step]:
    longest = max(
        trace.calls.items(), key=lambda c: sum(end - start for start, end in c[1]), default=None
    )
    if longest is None:
        return []
    name, spans = longest
    return [Step(name, number, *span) for number, span in enumerate(find_outermost(spans))]


def _find_bounds(
    trace: WorkerTrace, steps: Sequence[Step]
) -> tuple[list[Step], np.ndarray, np.ndarray]:
    """Return non-nested steps with their start and end times.

    A step starts at the end of the previous one, so that it includes its input and callbacks. It
    ends when the devices have finished its work, because the host runs ahead of them. Steps inside
    of others, as of a custom loop within `fit`, are dropped.
    """
    outer: list[Step] = []
    for step in sorted(steps, key=lambda s: (s.start, -s.end)):
        if not outer or step.start >= outer[-1].end:
            outer.append(step)
    if not outer:
        return [], np.zeros(0), np.zeros(0)
    ends = np.array([s.end for s in outer], float)
    first = np.array([s.start for s in outer], float)
    for call_start, device_end in _find_executions(trace):
        index = int(np.searchsorted(first, call_start, "right")) - 1
        if index >= 0 and call_start <= outer[index].end:
            ends[index] = max(ends[index], device_end)
    ends = np.maximum.accumulate(ends)
    return outer, np.concatenate([first[:1], ends[:-1]]), ends


def get_function_name(program: str) -> str:
    """Return the function of a program, as its calls are named."""
    return program.partition("(")[0].removeprefix("jit_")


def _find_executions(trace: WorkerTrace) -> list[tuple[float, float]]:
    """Return the call times of the program with the longest device time, and the ends of its runs."""
    totals: dict[str, float] = {}
    runs: dict[tuple[str, int], list[float]] = {}
    for device in trace.devices.values():
        modules = [module for module, _ in device.names]
        for op, run, start, end in zip(
            device.ops, device.runs, device.starts, device.ends, strict=True
        ):
            if run is None:
                continue
            module = modules[op]
            totals[module] = totals.get(module, 0.0) + end - start
            bounds = runs.setdefault((module, run), [start, end])
            bounds[0], bounds[1] = min(bounds[0], start), max(bounds[1], end)
    if not totals:
        return []
    longest = max(totals, key=lambda m: totals[m])
    calls = find_outermost(trace.calls.get(get_function_name(longest), []))
    # Runs before the first call were started before the trace.
    spans = sorted(
        span for (m, _), span in runs.items() if m == longest and calls and span[0] >= calls[0][0]
    )
    return [(call[0], span[1]) for call, span in zip(calls, spans, strict=False)]


def _measure_exclusive_parts(
    device: Device, host: dict[str, Spans], edges: np.ndarray
) -> dict[str, np.ndarray]:
    """Return for each part the time within each step that no earlier part takes."""
    starts, ends = np.array(device.starts, float), np.array(device.ends, float)
    kinds = np.array(device.kinds, str)
    layers: list[tuple[str, Spans]] = []
    for kind in sorted(set(device.kinds)):
        mask = kinds == kind
        name = f"comm:{kind}" if kind else "compute"
        layers.append((name, Spans(starts[mask], ends[mask])))
    names = {"waiting": "idle", "communication": f"comm:{SERVERS}"}
    layers += [(names.get(kind, kind), host[kind]) for kind in _HOST if kind in host]
    parts: dict[str, np.ndarray] = {"compute": np.zeros(edges.shape[1])}
    covered, before = Spans(np.zeros(0), np.zeros(0)), np.zeros(edges.shape)
    for name, spans in layers:
        covered = merge_intervals(
            np.concatenate([covered.starts, spans.starts]),
            np.concatenate([covered.ends, spans.ends]),
        )
        after = _measure_before(covered, edges)
        nanoseconds = (after - before)[1] - (after - before)[0]
        parts[name] = parts.get(name, 0.0) + np.maximum(nanoseconds, 0.0)
        before = after
    return parts


def merge_intervals(starts: np.ndarray, ends: np.ndarray) -> Spans:
    """Return the union of intervals as disjoint intervals.

    Example:
      >>> merge_intervals(np.array([0.0, 5.0, 1.0]), np.array([2.0, 6.0, 3.0]))
      Spans(starts=array([0., 5.]), ends=array([3., 6.]))
    """
    if not len(starts):
        return Spans(starts, ends)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    first = np.concatenate([[True], starts[1:] > ends[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Spans(starts[first], ends[last])


def _measure_before(spans: Spans, times: np.ndarray) -> np.ndarray:
    """Return the total length of the intervals before each time."""
    if not len(spans.starts):
        return np.zeros(times.shape)
    lengths = np.concatenate([[0.0], np.cumsum(spans.ends - spans.starts)])
    knots = np.stack([spans.starts, spans.ends], 1).ravel()
    values = np.stack([lengths[:-1], lengths[1:]], 1).ravel()
    return np.interp(times, knots, values)
