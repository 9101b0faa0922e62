"""Parser that finds the collectives in the text (HLO) of a compiled program."""

from __future__ import annotations

import math
import re
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import jax
import numpy as np

_COLLECTIVE_NAMES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_INSTRUCTION_PATTERN = re.compile(
    r"^\s*(?:ROOT )?%?[\w.\-]+ = (\(.*?\)|\S+) (" + "|".join(_COLLECTIVE_NAMES) + r")(-start)?\("
)
SHAPE_PATTERN = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_COMPUTATION_PATTERN = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_CALL_PATTERN = re.compile(
    r"\b(body|condition|calls|to_apply|called_computations|branch_computations|true_computation"
    r"|false_computation)=(\{[^}]*\}|%?[\w.\-]+)"
)
_BRANCH_ATTRIBUTES = ("branch_computations", "true_computation", "false_computation")
_TRIP_COUNT_PATTERN = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


@dataclass(frozen=True)
class Collective:
    """Collective operation of a compiled program.

    Attributes:
      kind: Name of the operation, such as "all-reduce".
      shape: Shape of the result on one device, such as "f32[8,4]".
      bytes: Size of the full value: the operand of a sum, the gathered result, or the exchanged
        array.
      sent: Bytes that each device sends with the ring algorithm.
      axes: Mesh dimensions that the operation crosses.
      group: Number of devices that take part together.
      times: Number of executions in one call. A loop of unknown length counts as one iteration; a
        condition counts its branch with the most traffic.
      source: JAX operation that XLA derived the collective from.
    """

    kind: str
    shape: str
    bytes: int
    sent: int
    axes: tuple[str, ...]
    group: int
    times: int
    source: str


def parse_collectives(text: str, mesh: dict[str, int]) -> list[Collective]:
    """Parse the collectives of a program, in the order of its text.

    Args:
      text: Program text, partitioned for one device.
      mesh: Sizes of the mesh dimensions by name.

    Returns:
      The `Collective`s that at least two devices take part in.
    """
    computations, entry = _parse_computations(text, mesh)
    times = _count_executions(computations, entry)
    return [
        replace(collective, times=_scale_executions(times[name, index], collective.source))
        for name, computation in computations.items()
        for index, collective in enumerate(computation.collectives)
        if times[name, index]
    ]


def mark_executions(count: int, iterations: int) -> AbstractContextManager[None]:
    """Open a scope for a condition in a loop, which is true on all devices in the same iterations.

    Args:
      count: Number of iterations in which the condition is true.
      iterations: Number of iterations of the loop.
    """
    return jax.named_scope(f"in_{count}_of_{iterations}_iterations")


_EXECUTIONS_PATTERN = re.compile(r"\bin_(\d+)_of_(\d+)_iterations\b")


def _scale_executions(times: int, source: str) -> int:
    """Return the executions of a collective under `mark_executions`, from those of its loop's body."""
    match = _EXECUTIONS_PATTERN.search(source)
    return times * int(match[1]) // int(match[2]) if match else times


def parse_branch_collectives(text: str, mesh: dict[str, int]) -> list[Collective]:
    """Parse the collectives inside conditional branches, where some devices might not take part.

    Those under `mark_executions` are left out, because all devices take the same branch.
    """
    computations, _ = _parse_computations(text, mesh)
    pending = [
        name
        for computation in computations.values()
        for _, names in computation.calls
        if len(names) > 1
        for name in names
    ]
    inside: dict[str, _HloComputation] = {}
    while pending:
        name = pending.pop()
        if name in computations and name not in inside:
            inside[name] = computations[name]
            pending += [called for _, names in inside[name].calls for called in names]
    return [
        collective
        for computation in inside.values()
        for collective in computation.collectives
        if not _EXECUTIONS_PATTERN.search(collective.source)
    ]


def parse_collective(line: str, mesh: dict[str, int]) -> Collective | None:
    """Parse an instruction; return None if it is no collective or if it sends no data."""
    match = _INSTRUCTION_PATTERN.match(line)
    if match is None:
        return None
    kind, groups = match[2], parse_device_groups(line, math.prod(mesh.values()))
    if kind == "collective-permute":
        groups = groups[groups[:, 0] != groups[:, 1]]
    if not len(groups) or groups.shape[1] < 2:
        return None
    shapes = SHAPE_PATTERN.findall(match[1])
    if match[3] and kind == "all-gather":
        shapes = shapes[len(shapes) // 2 :]
    elif match[3] and kind == "collective-permute":
        shapes = shapes[1:2]
    size = sum(count_shape_bytes(dtype, dims) for dtype, dims in shapes)
    group = groups.shape[1]
    if kind == "reduce-scatter":
        size *= group
    axes = _find_crossed_axes(groups, mesh)
    if kind == "collective-permute":
        group = math.prod(mesh[a] for a in axes)
    source = re.search(r'op_name="([^"]*)"', line)
    shape = ", ".join(f"{d}[{n}]" for d, n in shapes)
    purpose = _shorten_op_name(source[1]) if source else ""
    return Collective(
        kind, shape, size, _count_sent_bytes(kind, size, group), axes, group, 1, purpose
    )


def _shorten_op_name(op_name: str) -> str:
    # Convolutions are the only operations that this package partitions with custom rules.
    return re.sub(r"^jit\([^)]*\)/", "", op_name).replace("custom_partitioning", "convolution")


def _count_sent_bytes(kind: str, size: int, group: int) -> int:
    """Compute the bytes that each of `group` devices sends with the ring algorithm."""
    if kind == "collective-permute":
        return size
    part = size * (group - 1) / group
    return round(2 * part if kind == "all-reduce" else part)


def count_shape_bytes(dtype: str, dims: str) -> int:
    """Compute the size of an HLO shape in bytes, for example "f32" and "8,4"."""
    digits = re.search(r"\d+", dtype)
    bits = int(digits[0]) if digits else 8
    return math.prod(int(d) for d in dims.split(",") if d) * bits // 8


def _find_crossed_axes(groups: np.ndarray, mesh: dict[str, int]) -> tuple[str, ...]:
    """Find the mesh dimensions along which members of a group differ."""
    if groups.max(initial=0) >= math.prod(mesh.values()):
        return ()  # The program of another mesh has the same name.
    coordinates = np.array(np.unravel_index(groups, tuple(mesh.values())))
    differ = (coordinates != coordinates[:, :, :1]).any(axis=(1, 2))
    return tuple(name for name, crossed in zip(mesh, differ, strict=True) if crossed)


def parse_device_groups(line: str, count: int) -> np.ndarray:
    """Parse the device groups of a collective, or the pairs of a permutation.

    Args:
      line: Text of the instruction.
      count: Number of devices of the program.

    Returns:
      An integer array of shape [groups, devices in a group].
    """
    pairs = re.search(r"source_target_pairs=\{(\{.*?\})\}", line)
    listed = pairs or re.search(r"replica_groups=\{(\{.*?\})\}", line)
    if listed:
        rows = re.findall(r"\{([\d, ]*)\}", listed[1])
        return np.array([[int(i) for i in row.split(",")] for row in rows])
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line)
    if iota:
        return _expand_iota(iota[2], iota[3]).reshape(_parse_integers(iota[1]))
    named = re.search(
        r"replica_groups=@?mesh\[([^\]]*)\](?:, ?device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? ?\{([^}]*)\}",
        line,
    )
    if named:
        return _parse_named_groups(named[1], named[2], named[3], named[4])
    return np.arange(count).reshape(1, -1)


def _parse_integers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def _expand_iota(dims: str, order: str | None) -> np.ndarray:
    ids = np.arange(math.prod(_parse_integers(dims))).reshape(_parse_integers(dims))
    return (ids.transpose(_parse_integers(order)) if order else ids).ravel()


def _parse_named_groups(mesh: str, dims: str | None, order: str | None, axes: str) -> np.ndarray:
    """Parse groups along named axes of the program's mesh; `'x':(2)4` is a part of an axis."""
    sizes = {n: int(s) for n, s in re.findall(r"'([^']*)'=(\d+)", mesh)}
    total = math.prod(sizes.values())
    ids = _expand_iota(dims, order) if dims else np.arange(total)
    parts_by_axis: dict[str, list[tuple[int, int]]] = {}
    for name, before, size in re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", axes):
        parts_by_axis.setdefault(name, []).append((int(before or 1), int(size or sizes[name])))
    shape: list[int] = []
    grouped: list[int] = []
    for name, axis_size in sizes.items():
        covered = 1
        for before, size in sorted(parts_by_axis.get(name, [])):
            if before > covered:
                shape.append(before // covered)
            grouped.append(len(shape))
            shape.append(size)
            covered = before * size
        shape.append(axis_size // covered)
    others = [i for i in range(len(shape)) if i not in grouped]
    members = math.prod(shape[i] for i in grouped)
    return ids.reshape(shape).transpose(*others, *grouped).reshape(-1, members)


@dataclass
class _HloComputation:
    """Collectives and calls of an HLO computation.

    Attributes:
      collectives: Collectives in this computation, not in the called ones.
      calls: Number of executions of each call and its alternatives, of which each execution runs
        one.
    """

    collectives: list[Collective] = field(default_factory=list)
    calls: list[tuple[int, list[str]]] = field(default_factory=list)

    def add_instruction(self, line: str, mesh: dict[str, int]) -> None:
        """Add an instruction of the computation."""
        collective = parse_collective(line, mesh)
        if collective is not None:
            self.collectives.append(collective)
        trips = _TRIP_COUNT_PATTERN.search(line)
        times = int(trips[1]) if trips else 1
        branches: list[str] = []
        for attribute, names in _CALL_PATTERN.findall(line):
            called = re.findall(r"[\w.\-]+", names)
            if attribute in _BRANCH_ATTRIBUTES:
                branches += called
            else:
                self.calls += [(times, [name]) for name in called]
        if branches:
            self.calls.append((1, branches))


def _parse_computations(text: str, mesh: dict[str, int]) -> tuple[dict[str, _HloComputation], str]:
    """Parse the computations of a program by name; also return the name of the entry computation."""
    computations: dict[str, _HloComputation] = {}
    entry, current = "", ""
    for line in text.splitlines():
        head = _COMPUTATION_PATTERN.match(line)
        if head:
            current = head[2]
            computations[current] = _HloComputation()
            entry = current if head[1] else entry
        elif current:
            computations[current].add_instruction(line, mesh)
    return computations, entry


def _count_executions(
    computations: dict[str, _HloComputation], entry: str
) -> Counter[tuple[str, int]]:
    """Count the executions of each collective, by computation and index, in one call."""
    cached: dict[str, Counter[tuple[str, int]]] = {}

    def measure_traffic(counts: Counter[tuple[str, int]]) -> tuple[int, int]:
        sent = (computations[n].collectives[i].sent * times for (n, i), times in counts.items())
        return sum(sent), counts.total()

    def count_computation(name: str) -> Counter[tuple[str, int]]:
        if name in cached or name not in computations:
            return cached.get(name, Counter())
        computation = computations[name]
        counts = Counter((name, index) for index in range(len(computation.collectives)))
        for times, alternatives in computation.calls:
            for key, inner in max(
                map(count_computation, alternatives), key=measure_traffic
            ).items():
                counts[key] += times * inner
        cached[name] = counts
        return counts

    return count_computation(entry)
