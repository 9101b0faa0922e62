"""Where the time of each step of a worker went: parts that sum to the step.

At every moment a worker counts as doing one thing, the first of this order that is under way: its device
computes; its device takes part in a collective; the host compiles, waits for input, exchanges variables with
servers, writes a checkpoint, runs a callback; the host only waits for a device that does nothing, which is idle.
What is left is the host's Python. So what overlaps with computation costs nothing here, as it costs nothing there.
Of a worker with several devices it is the mean of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshflow.profiler.traces import Device, Spans, Step, Trace, outermost

__all__ = ["HOST_PARTS", "Breakdown", "break_down"]

# Parts that the host takes, in the order in which they count.
_HOST = ("compile", "input", "communication", "checkpoint", "callback", "waiting")
HOST_PARTS = ("python", "callback", "checkpoint")
SERVERS = "parameter servers"


@dataclass
class Breakdown:
    """The steps of a worker, and the parts of each.

    Attributes:
      steps: names and numbers.
      starts: nanoseconds of the trace's clock, one a step.
      walls: nanoseconds, one a step.
      parts: nanoseconds by part, one a step: 'compute', 'python', 'idle', ..., 'comm:' and the collective.
    """

    steps: list[tuple[str, int]]
    starts: np.ndarray
    walls: np.ndarray
    parts: dict[str, np.ndarray]


def break_down(trace: Trace) -> Breakdown:
    """The steps of a trace; where none were named, calls of the function that is called most are taken for them."""
    steps = trace.steps or _calls_as_steps(trace)
    steps, starts, ends = _bounds(trace, steps)
    edges = np.stack([starts, ends]).reshape(2, -1)
    devices = list(trace.devices.values()) or [Device()]
    parts: dict[str, np.ndarray] = {}
    for device in devices:
        for name, taken in _exclusive(device, trace.host, edges).items():
            parts[name] = parts.get(name, 0.0) + taken / len(devices)
    walls = ends - starts
    parts["python"] = np.maximum(walls - sum(parts.values()), 0.0) if len(walls) else walls
    return Breakdown([(s.name, s.number) for s in steps], starts, walls, _worth_showing(parts))


def _worth_showing(parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    kept = ("compute", "input", "python", "idle")
    return {name: taken for name, taken in parts.items() if name in kept or taken.any()}


def _calls_as_steps(trace: Trace) -> list[Step]:
    found = max(
        trace.calls.items(), key=lambda c: sum(end - start for start, end in c[1]), default=None
    )
    if found is None:
        return []
    name, spans = found
    return [Step(name, number, *span) for number, span in enumerate(outermost(spans))]


def _bounds(trace: Trace, steps: Sequence[Step]) -> tuple[list[Step], np.ndarray, np.ndarray]:
    """Each step from the end of the one before it, so that its input and callbacks are its own.

    A step ends when the devices have done what it began: the host runs ahead of them. Steps inside of others, as
    a loop of its own within `fit` may name them, are left out.
    """
    kept: list[Step] = []
    for step in sorted(steps, key=lambda s: (s.start, -s.end)):
        if not kept or step.start >= kept[-1].end:
            kept.append(step)
    if not kept:
        return [], np.zeros(0), np.zeros(0)
    ends = np.array([s.end for s in kept], float)
    first = np.array([s.start for s in kept], float)
    for began, done in _executions(trace):
        number = int(np.searchsorted(first, began, "right")) - 1
        if number >= 0 and began <= kept[number].end:
            ends[number] = max(ends[number], done)
    ends = np.maximum.accumulate(ends)
    return kept, np.concatenate([first[:1], ends[:-1]]), ends


def called(program: str) -> str:
    """The function of a program, as its calls are named."""
    return program.partition("(")[0].removeprefix("jit_")


def _executions(trace: Trace) -> list[tuple[float, float]]:
    """When the program that takes most of the devices' time was called, and when they had done it."""
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
            known = runs.setdefault((module, run), [start, end])
            known[0], known[1] = min(known[0], start), max(known[1], end)
    if not totals:
        return []
    longest = max(totals, key=lambda m: totals[m])
    calls = outermost(trace.calls.get(called(longest), []))
    # Those before the first call were begun before the trace.
    spans = sorted(
        span for (m, _), span in runs.items() if m == longest and calls and span[0] >= calls[0][0]
    )
    return [(call[0], span[1]) for call, span in zip(calls, spans, strict=False)]


def _exclusive(device: Device, host: dict[str, Spans], edges: np.ndarray) -> dict[str, np.ndarray]:
    """For each part the time within each step that no earlier part takes."""
    starts, ends = np.array(device.starts, float), np.array(device.ends, float)
    kinds = np.array(device.kinds, str)
    layers: list[tuple[str, Spans]] = []
    for kind in sorted(set(device.kinds)):
        chosen = kinds == kind
        name = f"comm:{kind}" if kind else "compute"
        layers.append((name, Spans(starts[chosen], ends[chosen])))
    names = {"waiting": "idle", "communication": f"comm:{SERVERS}"}
    layers += [(names.get(kind, kind), host[kind]) for kind in _HOST if kind in host]
    parts: dict[str, np.ndarray] = {"compute": np.zeros(edges.shape[1])}
    covered, before = Spans(np.zeros(0), np.zeros(0)), np.zeros(edges.shape)
    for name, spans in layers:
        covered = merged(
            np.concatenate([covered.starts, spans.starts]),
            np.concatenate([covered.ends, spans.ends]),
        )
        reached = _measure(covered, edges)
        taken = (reached - before)[1] - (reached - before)[0]
        parts[name] = parts.get(name, 0.0) + np.maximum(taken, 0.0)
        before = reached
    return parts


def merged(starts: np.ndarray, ends: np.ndarray) -> Spans:
    """The union of intervals, as intervals that do not meet.

    Example:
      >>> merged(np.array([0.0, 5.0, 1.0]), np.array([2.0, 6.0, 3.0]))
      Spans(starts=array([0., 5.]), ends=array([3., 6.]))
    """
    if not len(starts):
        return Spans(starts, ends)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    first = np.concatenate([[True], starts[1:] > ends[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Spans(starts[first], ends[last])


def _measure(spans: Spans, times: np.ndarray) -> np.ndarray:
    """How much of the intervals lies before each time."""
    if not len(spans.starts):
        return np.zeros(times.shape)
    lengths = np.concatenate([[0.0], np.cumsum(spans.ends - spans.starts)])
    knots = np.stack([spans.starts, spans.ends], 1).ravel()
    values = np.stack([lengths[:-1], lengths[1:]], 1).ravel()
    return np.interp(times, knots, values)
