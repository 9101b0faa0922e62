"""A profile of several workers as one: their steps beside each other, who is waited for, operations, traffic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshflow.placement.expected_traffic import Comparison, Exchange, compared
from meshflow.profiler.breakdown import SERVERS, Breakdown, break_down, called
from meshflow.profiler.traces import Trace, kind_of

__all__ = ["Operation", "Report", "Straggler", "Traffic", "Worker", "instruction_of"]


@dataclass
class Operation:
    """An instruction of a program, over all steps of a worker.

    Attributes:
      name: the instruction.
      program: its program.
      what: what it does, in a word or two.
      layer: the layer it was made for, '' when that is not known.
      backward: whether it is of the backward pass.
      kind: '' for computation, or which collective or copy it is.
      count: how often it ran, on all devices.
      time: nanoseconds, on all devices.
      flops: additions and multiplications each time; 0 when that is not known.
    """

    name: str
    program: str
    what: str
    layer: str
    backward: bool
    kind: str
    count: int
    time: float
    flops: float


@dataclass
class Traffic:
    """What collectives of one kind over the same mesh dimensions move on each device.

    Attributes:
      kind: such as 'all-reduce'.
      axes: the mesh dimensions.
      group: how many devices take part together.
      count: how often, on each device.
      bytes: what they worked on, in all.
      sent: what a device has to send for that by the ring algorithm, in all.
      time: nanoseconds, waiting for others included.
    """

    kind: str
    axes: tuple[str, ...]
    group: int
    count: float
    bytes: float
    sent: float
    time: float


@dataclass
class Worker:
    """One process of a profile.

    Attributes:
      name: its task or host.
      trace: the path of its trace, '' when there is none to open.
      breakdown: its steps.
      began: nanoseconds since 1970 of its clock's zero.
      details: nanoseconds by kind of the host's work and detail.
      compiled: (nanoseconds of its clock, function) of each compilation.
      operations: the longest first.
      traffic: its collectives, by kind and mesh dimensions.
      memory: (nanoseconds since 1970, bytes of the process, bytes of its devices).
      devices: what they are, see `describe`.
      tables: numbers that it told of itself, by title and name.
      theory: what a step sends by the formulas of its strategy.
      no_theory: why there are no formulas, '' where nobody looked for any.
    """

    name: str
    trace: str
    breakdown: Breakdown
    began: float = 0.0
    details: dict[str, dict[str, float]] = field(default_factory=dict)
    compiled: list[tuple[float, str]] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    memory: list[tuple[int, int, int]] = field(default_factory=list)
    devices: list[dict[str, Any]] = field(default_factory=list)
    tables: dict[str, dict[str, float]] = field(default_factory=dict)
    theory: list[Exchange] = field(default_factory=list)
    no_theory: str = ""

    @property
    def peak(self) -> float:
        """Operations per second of one of its devices; 0 when that is not known."""
        return float(self.devices[0].get("peak", 0.0)) if self.devices else 0.0

    @property
    def communication(self) -> np.ndarray:
        """Nanoseconds of each step in collectives."""
        parts = self.breakdown.parts
        return sum(
            (taken for name, taken in parts.items() if name.startswith("comm:")),
            np.zeros(len(self.breakdown.steps)),
        )


def read_worker(name: str, trace: Trace, described: dict[str, Any], file: str = "") -> Worker:
    """A worker from its trace and from what it said of itself, which may be nothing."""
    programs = described.get("programs", {})
    _know_collectives(trace, programs)
    operations, traffic = _operations(trace, programs)
    return Worker(
        name,
        file,
        break_down(trace),
        trace.began,
        trace.details,
        trace.compiled,
        operations,
        traffic,
        [tuple(sample) for sample in described.get("memory", [])],
        described.get("devices", []),
        described.get("tables", {}),
        [_exchange(one) for one in described.get("theory", {}).get("exchanges", [])],
        described.get("theory", {}).get("why", ""),
    )


def _exchange(said: dict[str, Any]) -> Exchange:
    return Exchange(said["purpose"], tuple(said["kinds"]), tuple(said["axes"]), said["sent"])


def _know_collectives(trace: Trace, programs: dict[str, dict[str, Any]]) -> None:
    """Tells collectives by their programs: some are named after what asked for them, as psum for an all-reduce."""
    for device in trace.devices.values():
        kinds: dict[int, str] = {}
        for (module, op), number in device.names.items():
            kind = kind_of(instruction_of(programs, module, op).get("op", ""))
            if kind:
                kinds[number] = kind
        if kinds:
            pairs = zip(device.ops, device.kinds, strict=True)
            device.kinds = [kinds.get(op, kind) for op, kind in pairs]


def _operations(
    trace: Trace, programs: dict[str, dict[str, Any]]
) -> tuple[list[Operation], list[Traffic]]:
    found: dict[tuple[str, str], Operation] = {}
    traffic: dict[tuple[str, tuple[str, ...]], Traffic] = {}
    devices = max(len(trace.devices), 1)
    for device in trace.devices.values():
        taken = np.array(device.ends) - np.array(device.starts)
        ops = np.array(device.ops, int)
        counts = np.bincount(ops, minlength=len(device.names))
        times = np.bincount(ops, taken, len(device.names))
        kinds = dict(zip(device.ops, device.kinds, strict=True))
        for (module, op), number in device.names.items():
            known = instruction_of(programs, module, op)
            one = found.setdefault(
                (module, op),
                Operation(
                    op,
                    called(module),
                    known.get("what", op.partition(".")[0]),
                    known.get("layer", ""),
                    bool(known.get("backward")),
                    kinds.get(number, ""),
                    0,
                    0.0,
                    float(known.get("flops", 0)),
                ),
            )
            one.count += int(counts[number])
            one.time += float(times[number])
            if one.kind:
                said = known.get("collective", {"kind": one.kind})
                _add_traffic(traffic, said, counts[number] / devices, times[number] / devices)
    ordered = sorted(found.values(), key=lambda o: -o.time)
    return ordered, sorted(traffic.values(), key=lambda t: -t.time)


def instruction_of(programs: dict[str, dict[str, Any]], module: str, op: str) -> dict[str, Any]:
    """What is known of an instruction; {} for nothing."""
    if module in programs:
        found: dict[str, Any] = programs[module].get(op, {})
        return found
    # Traces of some devices do not tell programs of one name apart.
    alike = (table for name, table in programs.items() if called(name) == called(module))
    return next((table[op] for table in alike if op in table), {})


def _add_traffic(
    traffic: dict[tuple[str, tuple[str, ...]], Traffic],
    said: dict[str, Any],
    count: float,
    time: float,
) -> None:
    key = said["kind"], tuple(said.get("axes", ()))
    group = int(said.get("group", 0))
    one = traffic.setdefault(key, Traffic(*key, group, 0.0, 0.0, 0.0, 0.0))
    one.count += count
    one.bytes += count * said.get("bytes", 0)
    one.sent += count * said.get("sent", 0)
    one.time += time


@dataclass
class Straggler:
    """The worker that others wait for, or that falls behind those that do not wait.

    Attributes:
      worker: its place among the workers.
      excess: nanoseconds a step that it needs more than the others do, by their median.
      part: the part in which it needs most of that.
      part_excess: nanoseconds a step that it needs more in that part.
      share: in which share of the steps it was the last, or of its own steps needed longer than the others do.
    """

    worker: int
    excess: float
    part: str
    part_excess: float
    share: float


@dataclass
class Report:
    """A profile.

    Attributes:
      name: of its folder.
      workers: in the order of their names.
      rows: for each step the places of that step among those of each worker, -1 where it has none.
      missing: workers whose trace is not there, and why.
    """

    name: str
    workers: list[Worker]
    rows: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), int))
    missing: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rows = _aligned(self.workers)

    def label(self, row: int) -> str:
        """The name and number of a step; of tasks that do not wait for each other several."""
        labels = [
            "{} {}".format(*own.breakdown.steps[at])
            for own, at in zip(self.workers, self.rows[row], strict=True)
            if at >= 0
        ]
        return " / ".join(dict.fromkeys(labels[:3]))

    def table(self, values: list[np.ndarray]) -> np.ndarray:
        """One number for each step and worker, NaN where there is none; shape [steps, workers]."""
        table = np.full(self.rows.shape, np.nan)
        for worker, own in enumerate(values):
            has = self.rows[:, worker] >= 0
            table[has, worker] = own[self.rows[has, worker]]
        return table

    def part(self, name: str) -> np.ndarray:
        """A part of all steps, as `table`; 'comm' is all collectives."""
        if name == "comm":
            return self.table([w.communication for w in self.workers])
        return self.table(
            [w.breakdown.parts.get(name, np.zeros(len(w.breakdown.steps))) for w in self.workers]
        )

    @property
    def walls(self) -> np.ndarray:
        """How long each step was, as `table`."""
        return self.table([w.breakdown.walls for w in self.workers])

    @property
    def parts(self) -> list[str]:
        """All parts that any worker has."""
        return list(dict.fromkeys(p for w in self.workers for p in w.breakdown.parts))

    @property
    def together(self) -> bool:
        """Whether the workers wait for each other: they have steps of the same names, and collectives."""
        collectives = [p for p in self.parts if p.startswith("comm:") and p != f"comm:{SERVERS}"]
        taken = sum((self.part(p) > 0 for p in collectives), np.zeros(self.rows.shape, bool))
        return len(self.workers) > 1 and bool(taken.any(0).sum() > 1)

    @property
    def waiting(self) -> np.ndarray:
        """Of each worker's communication the time in which it waited for the last, as `table`."""
        if not self.together or not len(self.rows):
            return np.zeros(self.rows.shape)
        comm = self.part("comm")
        complete = (self.rows >= 0).all(1)
        waited = np.zeros(self.rows.shape)
        waited[complete] = comm[complete] - comm[complete].min(1, keepdims=True)
        return waited

    def theory(self) -> list[Comparison]:
        """What each device sends in a step, counted beside what the formulas of a strategy say; [] without any."""
        expected = next((w.theory for w in self.workers if w.theory), [])
        if not expected:
            return []
        found = [
            (one.kind, one.axes, one.sent / max(len(w.breakdown.steps), 1) / len(self.workers))
            for w in self.workers
            for one in w.traffic
        ]
        return compared(expected, found)

    def straggler(self) -> Straggler | None:
        """Who is waited for, or behind, when that costs more than a twentieth of the steps' time."""
        if not self.together:
            return _behind(self.workers)
        complete = (self.rows >= 0).all(1)
        walls, comm = self.walls[complete], self.part("comm")[complete]
        # Without the first, in which all compile.
        walls, comm = walls[1:], comm[1:]
        if len(walls) < 2:
            return None
        own = walls - comm
        last = own.argmax(1)
        worker = int(np.median(own, 0).argmax())
        others = np.delete(own, worker, 1)
        excess = float(np.mean(own[:, worker] - np.median(others, 1)))
        if excess < 0.05 * float(walls.mean()):
            return None
        gains = {}
        for name in self.parts:
            if name.startswith("comm:"):
                continue
            part = self.part(name)[complete][1:]
            gains[name] = float(
                np.mean(part[:, worker] - np.median(np.delete(part, worker, 1), axis=1))
            )
        worst = max(gains, key=lambda name: gains[name])
        share = float(np.mean(last == worker))
        return Straggler(worker, excess, worst, gains[worst], share)


def _behind(workers: list[Worker]) -> Straggler | None:
    """Of workers that do the same without waiting for each other, as those of parameter servers, the slowest."""
    groups: dict[frozenset[str], list[int]] = {}
    for number, worker in enumerate(workers):
        if len(worker.breakdown.steps) > 2:
            names = frozenset(name for name, _ in worker.breakdown.steps)
            groups.setdefault(names, []).append(number)
    found = [_slowest(workers, group) for group in groups.values() if len(group) > 1]
    return max((f for f in found if f is not None), key=lambda f: f.excess, default=None)


def _slowest(workers: list[Worker], group: list[int]) -> Straggler | None:
    busy = [_busy(workers[number].breakdown) for number in group]
    # Without the first, which may compile, and without the longest tenth: a pause is no habit.
    kept = [np.argsort(own[1:])[: -(-9 * (len(own) - 1) // 10)] + 1 for own in busy]
    means = [float(own[k].mean()) for own, k in zip(busy, kept, strict=True)]
    at = int(np.argmax(means))
    others = means[:at] + means[at + 1 :]
    excess = means[at] - float(np.median(others))
    walls = [workers[n].breakdown.walls[k].mean() for n, k in zip(group, kept, strict=True)]
    if excess < 0.05 * float(np.mean(walls)):
        return None
    parts = [
        {name: float(taken[k].mean()) for name, taken in workers[n].breakdown.parts.items()}
        for n, k in zip(group, kept, strict=True)
    ]
    gains = {
        name: taken - float(np.median([p.get(name, 0.0) for p in parts[:at] + parts[at + 1 :]]))
        for name, taken in parts[at].items()
        if name != "idle"
    }
    worst = max(gains, key=lambda name: gains[name])
    share = float(np.mean(busy[at][1:] > np.median(others)))
    return Straggler(group[at], excess, worst, gains[worst], share)


def _busy(breakdown: Breakdown) -> np.ndarray:
    """How long each step was, without waiting for something to do."""
    return breakdown.walls - breakdown.parts.get("idle", 0.0)


def _aligned(workers: list[Worker]) -> np.ndarray:
    """Which steps of the workers are the same: of one name and number, and nearest in time."""
    if not workers:
        return np.zeros((0, 0), int)
    first = max(range(len(workers)), key=lambda w: len(workers[w].breakdown.steps))
    lead = workers[first]
    rows = np.full((len(lead.breakdown.steps), len(workers)), -1)
    rows[:, first] = np.arange(len(rows))
    for number, worker in enumerate(workers):
        if number != first:
            found = _matches(lead, worker)
            # Tasks that do not wait for each other stand side by side in their own orders.
            own = len(worker.breakdown.steps)
            rows[:, number] = found if (found >= 0).any() else _counted(own, len(rows))
    return rows


def _counted(count: int, length: int) -> np.ndarray:
    return np.where(np.arange(length) < count, np.arange(length), -1)


def _matches(lead: Worker, worker: Worker) -> np.ndarray:
    """For each step of one worker the place of the other's that is nearest to it, -1 for none."""
    places: dict[tuple[str, int], list[int]] = {}
    for place, step in enumerate(lead.breakdown.steps):
        places.setdefault(step, []).append(place)
    lead_times = lead.began + lead.breakdown.starts
    times = worker.began + worker.breakdown.starts
    found = np.full(len(lead.breakdown.steps), -1)
    for number, step in enumerate(worker.breakdown.steps):
        same = places.get(step)
        if not same:
            continue
        after = int(np.searchsorted(lead_times[same], times[number]))
        near = same[max(after - 1, 0) : after + 1]
        place = min(near, key=lambda p: abs(lead_times[p] - times[number]))
        known = found[place]
        if known < 0 or abs(times[known] - lead_times[place]) > abs(
            times[number] - lead_times[place]
        ):
            found[place] = number
    return found
