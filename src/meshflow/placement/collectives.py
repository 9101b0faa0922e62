"""Reading the collectives out of a compiled program's text (HLO)."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

__all__ = ["Collective", "collective_of", "collectives_of", "groups_of", "in_branches"]

_KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%?[\w.\-]+ = (\(.*?\)|\S+) (" + "|".join(_KINDS) + r")(-start)?\("
)
SHAPE = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_CALLED = re.compile(
    r"\b(body|condition|calls|to_apply|called_computations|branch_computations|true_computation"
    r"|false_computation)=(\{[^}]*\}|%?[\w.\-]+)"
)
_BRANCHES = ("branch_computations", "true_computation", "false_computation")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


@dataclass(frozen=True)
class Collective:
    """One collective operation of a compiled program.

    Attributes:
      kind: such as "all-reduce".
      shape: the result on one device, such as "f32[8,4]".
      bytes: size of the whole value: what is summed, the gathered result, what is exchanged.
      sent: bytes that each device sends, by the ring algorithm.
      axes: the mesh dimensions it crosses.
      group: how many devices take part together.
      times: how often it runs in one call; a loop of unknown length counts as one, and of the
        branches of a condition the one counts that sends most.
      source: the operation it was made for.
    """

    kind: str
    shape: str
    bytes: int
    sent: int
    axes: tuple[str, ...]
    group: int
    times: int
    source: str


def collectives_of(text: str, mesh: dict[str, int]) -> list[Collective]:
    """The collectives of a program, in the order of its text.

    Args:
      text: the program, partitioned for one device.
      mesh: sizes of the mesh dimensions by name.

    Returns:
      A list of `Collective`s; those among one device are left out.
    """
    computations, entry = _computations(text, mesh)
    times = _executions(computations, entry)
    return [
        replace(collective, times=times[name, number])
        for name, computation in computations.items()
        for number, collective in enumerate(computation.collectives)
        if times[name, number]
    ]


def in_branches(text: str, mesh: dict[str, int]) -> list[Collective]:
    """The collectives of a program that run where a branch is taken, so that not all devices may meet in them.

    Args:
      text: the program, partitioned for one device.
      mesh: sizes of the mesh dimensions by name.
    """
    computations, _ = _computations(text, mesh)
    waiting = [
        name
        for computation in computations.values()
        for _, names in computation.calls
        if len(names) > 1
        for name in names
    ]
    inside: dict[str, _Computation] = {}
    while waiting:
        name = waiting.pop()
        if name in computations and name not in inside:
            inside[name] = computations[name]
            waiting += [called for _, names in inside[name].calls for called in names]
    return [collective for computation in inside.values() for collective in computation.collectives]


def collective_of(line: str, mesh: dict[str, int]) -> Collective | None:
    """The collective of an instruction, a line of a program's text; None for another, and for one that sends nothing."""
    match = _INSTRUCTION.match(line)
    if match is None:
        return None
    kind, groups = match[2], groups_of(line, math.prod(mesh.values()))
    if kind == "collective-permute":
        groups = groups[groups[:, 0] != groups[:, 1]]
    if not len(groups) or groups.shape[1] < 2:
        return None
    shapes = SHAPE.findall(match[1])
    if match[3] and kind == "all-gather":
        shapes = shapes[len(shapes) // 2 :]
    elif match[3] and kind == "collective-permute":
        shapes = shapes[1:2]
    size = sum(size_of(dtype, dims) for dtype, dims in shapes)
    group = groups.shape[1]
    if kind == "reduce-scatter":
        size *= group
    axes = _crossed(groups, mesh)
    if kind == "collective-permute":
        group = math.prod(mesh[a] for a in axes)
    source = re.search(r'op_name="([^"]*)"', line)
    shape = ", ".join(f"{d}[{n}]" for d, n in shapes)
    purpose = _purpose(source[1]) if source else ""
    return Collective(kind, shape, size, _sent(kind, size, group), axes, group, 1, purpose)


def _purpose(name: str) -> str:
    # Convolutions are the only operations that this package divides itself.
    return re.sub(r"^jit\([^)]*\)/", "", name).replace("custom_partitioning", "convolution")


def _sent(kind: str, size: int, group: int) -> int:
    """What a device sends when a ring of `group` devices does it."""
    if kind == "collective-permute":
        return size
    share = size * (group - 1) / group
    return round(2 * share if kind == "all-reduce" else share)


def size_of(dtype: str, dims: str) -> int:
    digits = re.search(r"\d+", dtype)
    bits = int(digits[0]) if digits else 8
    return math.prod(int(d) for d in dims.split(",") if d) * bits // 8


def _crossed(groups: np.ndarray, mesh: dict[str, int]) -> tuple[str, ...]:
    """The mesh dimensions along which members of a group differ."""
    places = np.array(np.unravel_index(groups, tuple(mesh.values())))
    differ = (places != places[:, :, :1]).any(axis=(1, 2))
    return tuple(name for name, crossed in zip(mesh, differ, strict=True) if crossed)


def groups_of(line: str, count: int) -> np.ndarray:
    """The groups of devices of a collective, one a row; for a permutation the pairs.

    Args:
      line: the instruction's text.
      count: number of devices of the program.

    Returns:
      An integer array of shape [groups, devices in each].
    """
    pairs = re.search(r"source_target_pairs=\{(\{.*?\})\}", line)
    listed = pairs or re.search(r"replica_groups=\{(\{.*?\})\}", line)
    if listed:
        rows = re.findall(r"\{([\d, ]*)\}", listed[1])
        return np.array([[int(i) for i in row.split(",")] for row in rows])
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line)
    if iota:
        return _iota(iota[2], iota[3]).reshape(_numbers(iota[1]))
    named = re.search(
        r"replica_groups=@?mesh\[([^\]]*)\](?:, ?device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? ?\{([^}]*)\}",
        line,
    )
    if named:
        return _named_groups(named[1], named[2], named[3], named[4])
    return np.arange(count).reshape(1, -1)


def _numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def _iota(dims: str, order: str | None) -> np.ndarray:
    ids = np.arange(math.prod(_numbers(dims))).reshape(_numbers(dims))
    return (ids.transpose(_numbers(order)) if order else ids).ravel()


def _named_groups(mesh: str, dims: str | None, order: str | None, axes: str) -> np.ndarray:
    """Groups along named axes of a mesh of the program's own; ``'x':(2)4`` is a part of an axis."""
    sizes = {n: int(s) for n, s in re.findall(r"'([^']*)'=(\d+)", mesh)}
    total = math.prod(sizes.values())
    ids = _iota(dims, order) if dims else np.arange(total)
    wanted: dict[str, list[tuple[int, int]]] = {}
    for name, before, size in re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", axes):
        wanted.setdefault(name, []).append((int(before or 1), int(size or sizes[name])))
    shape: list[int] = []
    grouped: list[int] = []
    for name, whole in sizes.items():
        at = 1
        for before, size in sorted(wanted.get(name, [])):
            if before > at:
                shape.append(before // at)
            grouped.append(len(shape))
            shape.append(size)
            at = before * size
        shape.append(whole // at)
    others = [i for i in range(len(shape)) if i not in grouped]
    members = math.prod(shape[i] for i in grouped)
    return ids.reshape(shape).transpose(*others, *grouped).reshape(-1, members)


@dataclass
class _Computation:
    """What counts of a computation: its collectives, and the computations that it runs.

    Attributes:
      collectives: its own, each once.
      calls: for each call how often it runs, and its alternatives, one of which runs each time.
    """

    collectives: list[Collective] = field(default_factory=list)
    calls: list[tuple[int, list[str]]] = field(default_factory=list)

    def read(self, line: str, mesh: dict[str, int]) -> None:
        """Takes in an instruction."""
        collective = collective_of(line, mesh)
        if collective is not None:
            self.collectives.append(collective)
        trips = _TRIPS.search(line)
        times = int(trips[1]) if trips else 1
        branches: list[str] = []
        for attribute, names in _CALLED.findall(line):
            called = re.findall(r"[\w.\-]+", names)
            if attribute in _BRANCHES:
                branches += called
            else:
                self.calls += [(times, [name]) for name in called]
        if branches:
            self.calls.append((1, branches))


def _computations(text: str, mesh: dict[str, int]) -> tuple[dict[str, _Computation], str]:
    """The computations of a program by name, and the name of the one that it starts with."""
    found: dict[str, _Computation] = {}
    entry, current = "", ""
    for line in text.splitlines():
        head = _COMPUTATION.match(line)
        if head:
            current = head[2]
            found[current] = _Computation()
            entry = current if head[1] else entry
        elif current:
            found[current].read(line, mesh)
    return found, entry


def _executions(computations: dict[str, _Computation], entry: str) -> Counter[tuple[str, int]]:
    """How often each collective (computation, number in it) runs in one call of the program."""
    done: dict[str, Counter[tuple[str, int]]] = {}

    def traffic(counts: Counter[tuple[str, int]]) -> tuple[int, int]:
        sent = (computations[n].collectives[i].sent * times for (n, i), times in counts.items())
        return sum(sent), counts.total()

    def run(name: str) -> Counter[tuple[str, int]]:
        if name in done or name not in computations:
            return done.get(name, Counter())
        own = computations[name]
        counts = Counter((name, number) for number in range(len(own.collectives)))
        for times, alternatives in own.calls:
            for key, inner in max(map(run, alternatives), key=traffic).items():
                counts[key] += times * inner
        done[name] = counts
        return counts

    return run(entry)
