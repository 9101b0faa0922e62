"""Profile of several workers: aligned steps, the straggler, operations, and traffic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshflow.placement.expected_traffic import ExpectedTraffic, TrafficComparison, compare_traffic
from meshflow.profiler.breakdown import SERVERS, Breakdown, break_down, get_function_name
from meshflow.profiler.traces import WorkerTrace, classify_operation


@dataclass
class Instruction:
    """An instruction of a program, summed over all steps of a worker.

    Attributes:
      name: The instruction.
      program: Its program.
      what: Short description.
      layer: Its layer, '' if unknown.
      backward: Whether it belongs to the backward pass.
      kind: '' for computation, otherwise the type of collective or copy.
      count: Number of runs, on all devices.
      time: Nanoseconds, on all devices.
      flops: Additions and multiplications per run; 0 if unknown.
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
    """Traffic per device of collectives of one kind over the same mesh dimensions.

    Attributes:
      kind: For example 'all-reduce'.
      axes: The mesh dimensions.
      group: Number of devices that participate in one collective.
      count: Number of collectives.
      bytes: Total bytes of the operands.
      sent: Total bytes that a device sends with the ring algorithm.
      time: Nanoseconds, including waiting for other workers.
    """

    kind: str
    axes: tuple[str, ...]
    group: int
    count: float
    bytes: float
    sent: float
    time: float


@dataclass
class WorkerProfile:
    """One process of a profile.

    Attributes:
      name: Its task or host.
      trace: Path of its trace for viewers, '' if there is none.
      breakdown: Its steps.
      epoch_ns: Nanoseconds since 1970 at which its clock is zero.
      details: Nanoseconds by kind of host work and detail.
      compilations: Time (nanoseconds of its clock) and function of each compilation.
      operations: Operations, the slowest first.
      traffic: Its collectives, by kind and mesh dimensions.
      memory: (nanoseconds since 1970, bytes of the process, bytes of its devices).
      devices: Its devices, see `describe_process`.
      tables: Metrics that it reported, by title and name.
      theory: Expected traffic of a step by the formulas of its strategy.
      no_theory: Reason why there are no formulas, '' if unknown.
    """

    name: str
    trace: str
    breakdown: Breakdown
    epoch_ns: float = 0.0
    details: dict[str, dict[str, float]] = field(default_factory=dict)
    compilations: list[tuple[float, str]] = field(default_factory=list)
    operations: list[Instruction] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    memory: list[tuple[int, int, int]] = field(default_factory=list)
    devices: list[dict[str, Any]] = field(default_factory=list)
    tables: dict[str, dict[str, float]] = field(default_factory=dict)
    theory: list[ExpectedTraffic] = field(default_factory=list)
    no_theory: str = ""

    @property
    def peak(self) -> float:
        """Return the peak operations per second of one of its devices; 0 if unknown."""
        return float(self.devices[0].get("peak", 0.0)) if self.devices else 0.0

    @property
    def communication(self) -> np.ndarray:
        """Return the nanoseconds of each step in collectives."""
        parts = self.breakdown.parts
        return sum(
            (nanoseconds for name, nanoseconds in parts.items() if name.startswith("comm:")),
            np.zeros(len(self.breakdown.steps)),
        )


def read_worker(
    name: str, trace: WorkerTrace, description: dict[str, Any], file: str = ""
) -> WorkerProfile:
    """Create a worker from its trace and its description, which may be empty."""
    programs = description.get("programs", {})
    _correct_kinds(trace, programs)
    operations, traffic = _collect_operations(trace, programs)
    return WorkerProfile(
        name,
        file,
        break_down(trace),
        trace.epoch_ns,
        trace.details,
        trace.compilations,
        operations,
        traffic,
        [tuple(sample) for sample in description.get("memory", [])],
        description.get("devices", []),
        description.get("tables", {}),
        [
            _parse_exchange(exchange)
            for exchange in description.get("theory", {}).get("exchanges", [])
        ],
        description.get("theory", {}).get("why", ""),
    )


def _parse_exchange(exchange: dict[str, Any]) -> ExpectedTraffic:
    return ExpectedTraffic(
        exchange["purpose"], tuple(exchange["kinds"]), tuple(exchange["axes"]), exchange["sent"]
    )


def _correct_kinds(trace: WorkerTrace, programs: dict[str, dict[str, Any]]) -> None:
    """Set the kinds of events by opcode: the name of a collective may be another, such as psum."""
    for device in trace.devices.values():
        kinds: dict[int, str] = {}
        for (module, op), index in device.names.items():
            kind = classify_operation(find_instruction(programs, module, op).get("op", ""))
            if kind:
                kinds[index] = kind
        if kinds:
            pairs = zip(device.ops, device.kinds, strict=True)
            device.kinds = [kinds.get(op, kind) for op, kind in pairs]


def _collect_operations(
    trace: WorkerTrace, programs: dict[str, dict[str, Any]]
) -> tuple[list[Instruction], list[Traffic]]:
    operations: dict[tuple[str, str], Instruction] = {}
    traffic: dict[tuple[str, tuple[str, ...]], Traffic] = {}
    devices = max(len(trace.devices), 1)
    for device in trace.devices.values():
        durations = np.array(device.ends) - np.array(device.starts)
        ops = np.array(device.ops, int)
        counts = np.bincount(ops, minlength=len(device.names))
        times = np.bincount(ops, durations, len(device.names))
        kinds = dict(zip(device.ops, device.kinds, strict=True))
        for (module, op), index in device.names.items():
            instruction = find_instruction(programs, module, op)
            operation = operations.setdefault(
                (module, op),
                Instruction(
                    op,
                    get_function_name(module),
                    instruction.get("what", op.partition(".")[0]),
                    instruction.get("layer", ""),
                    bool(instruction.get("backward")),
                    kinds.get(index, ""),
                    0,
                    0.0,
                    float(instruction.get("flops", 0)),
                ),
            )
            operation.count += int(counts[index])
            operation.time += float(times[index])
            if operation.kind:
                collective = instruction.get("collective", {"kind": operation.kind})
                _add_traffic(traffic, collective, counts[index] / devices, times[index] / devices)
    ordered = sorted(operations.values(), key=lambda o: -o.time)
    return ordered, sorted(traffic.values(), key=lambda t: -t.time)


def find_instruction(programs: dict[str, dict[str, Any]], module: str, op: str) -> dict[str, Any]:
    """Return the description of an instruction, {} if unknown."""
    if module in programs:
        instruction: dict[str, Any] = programs[module].get(op, {})
        return instruction
    # Traces of some devices have no program ids, so search all programs with this name.
    candidates = (
        table
        for name, table in programs.items()
        if get_function_name(name) == get_function_name(module)
    )
    return next((table[op] for table in candidates if op in table), {})


def _add_traffic(
    traffic: dict[tuple[str, tuple[str, ...]], Traffic],
    collective: dict[str, Any],
    count: float,
    time: float,
) -> None:
    key = collective["kind"], tuple(collective.get("axes", ()))
    group = int(collective.get("group", 0))
    entry = traffic.setdefault(key, Traffic(*key, group, 0.0, 0.0, 0.0, 0.0))
    entry.count += count
    entry.bytes += count * collective.get("bytes", 0)
    entry.sent += count * collective.get("sent", 0)
    entry.time += time


@dataclass
class Straggler:
    """A worker that slows others down, or is slower than those that do not wait for it.

    Attributes:
      worker: Its index.
      excess: Nanoseconds per step by which it exceeds the median of the others.
      part: The part with the largest excess.
      part_excess: Excess of this part, nanoseconds per step.
      share: Fraction of the steps in which it was the last, or longer than those of the others.
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
      name: Name of its folder.
      workers: Workers, ordered by name.
      rows: Step index of each worker in each row of aligned steps, [rows, workers]; -1 for none.
      missing: Reasons for missing traces, by worker.
    """

    name: str
    workers: list[WorkerProfile]
    rows: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), int))
    missing: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rows = _align_steps(self.workers)

    def format_label(self, row: int) -> str:
        """Return the names and numbers of the steps of a row, without duplicates."""
        labels = [
            "{} {}".format(*worker.breakdown.steps[step])
            for worker, step in zip(self.workers, self.rows[row], strict=True)
            if step >= 0
        ]
        return " / ".join(dict.fromkeys(labels[:3]))

    def table(self, values: list[np.ndarray]) -> np.ndarray:
        """Arrange values of each worker's steps in rows; [rows, workers], NaN for missing steps."""
        table = np.full(self.rows.shape, np.nan)
        for worker, worker_values in enumerate(values):
            is_present = self.rows[:, worker] >= 0
            table[is_present, worker] = worker_values[self.rows[is_present, worker]]
        return table

    def get_part(self, name: str) -> np.ndarray:
        """Return the nanoseconds of a part, as `table`; 'comm' is the sum of all collectives."""
        if name == "comm":
            return self.table([w.communication for w in self.workers])
        return self.table(
            [w.breakdown.parts.get(name, np.zeros(len(w.breakdown.steps))) for w in self.workers]
        )

    @property
    def walls(self) -> np.ndarray:
        """Return the durations of the steps, as `table`."""
        return self.table([w.breakdown.walls for w in self.workers])

    @property
    def parts(self) -> list[str]:
        """Return the parts of all workers."""
        return list(dict.fromkeys(p for w in self.workers for p in w.breakdown.parts))

    @property
    def is_synchronous(self) -> bool:
        """Check whether the workers wait for each other in collectives."""
        collectives = [p for p in self.parts if p.startswith("comm:") and p != f"comm:{SERVERS}"]
        taken = sum((self.get_part(p) > 0 for p in collectives), np.zeros(self.rows.shape, bool))
        return len(self.workers) > 1 and bool(taken.any(0).sum() > 1)

    @property
    def waiting_times(self) -> np.ndarray:
        """Return the part of communication in which a worker waited for the last one, as `table`."""
        if not self.is_synchronous or not len(self.rows):
            return np.zeros(self.rows.shape)
        comm = self.get_part("comm")
        complete = (self.rows >= 0).all(1)
        waited = np.zeros(self.rows.shape)
        waited[complete] = comm[complete] - comm[complete].min(1, keepdims=True)
        return waited

    def compare_theory(self) -> list[TrafficComparison]:
        """Compare the measured traffic per step with the formulas of a strategy, if there are any."""
        expected = next((w.theory for w in self.workers if w.theory), [])
        if not expected:
            return []
        measured = [
            (
                traffic.kind,
                traffic.axes,
                traffic.sent / max(len(w.breakdown.steps), 1) / len(self.workers),
            )
            for w in self.workers
            for traffic in w.traffic
        ]
        return compare_traffic(expected, measured)

    def find_straggler(self) -> Straggler | None:
        """Return the straggler if it costs more than 5 % of step time."""
        if not self.is_synchronous:
            return _find_slow_worker(self.workers)
        complete = (self.rows >= 0).all(1)
        walls, comm = self.walls[complete], self.get_part("comm")[complete]
        # Skip the first step, in which all workers compile.
        walls, comm = walls[1:], comm[1:]
        if len(walls) < 2:
            return None
        busy = walls - comm
        last = busy.argmax(1)
        worker = int(np.median(busy, 0).argmax())
        others = np.delete(busy, worker, 1)
        excess = float(np.mean(busy[:, worker] - np.median(others, 1)))
        if excess < 0.05 * float(walls.mean()):
            return None
        gains = {}
        for name in self.parts:
            if name.startswith("comm:"):
                continue
            part = self.get_part(name)[complete][1:]
            gains[name] = float(
                np.mean(part[:, worker] - np.median(np.delete(part, worker, 1), axis=1))
            )
        worst = max(gains, key=lambda name: gains[name])
        share = float(np.mean(last == worker))
        return Straggler(worker, excess, worst, gains[worst], share)


def _find_slow_worker(workers: list[WorkerProfile]) -> Straggler | None:
    """Return the slowest of the workers that do not wait for each other, as with parameter servers."""
    groups: dict[frozenset[str], list[int]] = {}
    for index, worker in enumerate(workers):
        if len(worker.breakdown.steps) > 2:
            names = frozenset(name for name, _ in worker.breakdown.steps)
            groups.setdefault(names, []).append(index)
    stragglers = [_find_slowest(workers, group) for group in groups.values() if len(group) > 1]
    return max((f for f in stragglers if f is not None), key=lambda f: f.excess, default=None)


def _find_slowest(workers: list[WorkerProfile], group: list[int]) -> Straggler | None:
    busy = [_measure_busy_time(workers[number].breakdown) for number in group]
    # Skip the first step, which may compile, and the longest tenth, because a pause is not typical.
    selected = [np.argsort(times[1:])[: -(-9 * (len(times) - 1) // 10)] + 1 for times in busy]
    means = [float(times[k].mean()) for times, k in zip(busy, selected, strict=True)]
    slowest = int(np.argmax(means))
    others = means[:slowest] + means[slowest + 1 :]
    excess = means[slowest] - float(np.median(others))
    walls = [workers[n].breakdown.walls[k].mean() for n, k in zip(group, selected, strict=True)]
    if excess < 0.05 * float(np.mean(walls)):
        return None
    parts = [
        {
            name: float(nanoseconds[k].mean())
            for name, nanoseconds in workers[n].breakdown.parts.items()
        }
        for n, k in zip(group, selected, strict=True)
    ]
    gains = {
        name: nanoseconds
        - float(np.median([p.get(name, 0.0) for p in parts[:slowest] + parts[slowest + 1 :]]))
        for name, nanoseconds in parts[slowest].items()
        if name != "idle"
    }
    worst = max(gains, key=lambda name: gains[name])
    share = float(np.mean(busy[slowest][1:] > np.median(others)))
    return Straggler(group[slowest], excess, worst, gains[worst], share)


def _measure_busy_time(breakdown: Breakdown) -> np.ndarray:
    """Return the durations of the steps without idle time."""
    return breakdown.walls - breakdown.parts.get("idle", 0.0)


def _align_steps(workers: list[WorkerProfile]) -> np.ndarray:
    """Align the steps of workers by name, number and time."""
    if not workers:
        return np.zeros((0, 0), int)
    first = max(range(len(workers)), key=lambda w: len(workers[w].breakdown.steps))
    lead = workers[first]
    rows = np.full((len(lead.breakdown.steps), len(workers)), -1)
    rows[:, first] = np.arange(len(rows))
    for index, worker in enumerate(workers):
        if index != first:
            matches = _match_steps(lead, worker)
            # Without common steps, the workers do not wait for each other; align their steps by
            # order.
            num_steps = len(worker.breakdown.steps)
            rows[:, index] = matches if (matches >= 0).any() else _number_rows(num_steps, len(rows))
    return rows


def _number_rows(count: int, length: int) -> np.ndarray:
    return np.where(np.arange(length) < count, np.arange(length), -1)


def _match_steps(lead: WorkerProfile, worker: WorkerProfile) -> np.ndarray:
    """Return for each step of `lead` the nearest equal step of `worker`, or -1."""
    indices: dict[tuple[str, int], list[int]] = {}
    for i, step in enumerate(lead.breakdown.steps):
        indices.setdefault(step, []).append(i)
    lead_times = lead.epoch_ns + lead.breakdown.starts
    times = worker.epoch_ns + worker.breakdown.starts
    matches = np.full(len(lead.breakdown.steps), -1)
    for j, step in enumerate(worker.breakdown.steps):
        candidates = indices.get(step)
        if not candidates:
            continue
        insertion = int(np.searchsorted(lead_times[candidates], times[j]))
        near = candidates[max(insertion - 1, 0) : insertion + 1]
        i = min(near, key=lambda p: abs(lead_times[p] - times[j]))
        previous = matches[i]
        if previous < 0 or abs(times[previous] - lead_times[i]) > abs(times[j] - lead_times[i]):
            matches[i] = j
    return matches
