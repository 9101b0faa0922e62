"""Comparison of the traffic of a step by formulas with the collectives of its compiled program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def count_ring_bytes(num_bytes: int, devices: int) -> int:
    """Compute the bytes that each device of a ring sends in an all-gather or a reduce-scatter.

    An all-reduce sends twice as much.
    """
    return num_bytes * (devices - 1) // devices


@dataclass(frozen=True)
class ExpectedTraffic:
    """Bytes that each device sends in a step for one purpose, computed by a formula.

    Attributes:
      purpose: Name of the purpose, such as "gradients".
      kinds: Names of the collectives that serve the purpose, such as "all-reduce".
      axes: Mesh dimensions that these collectives may cross.
      sent: Number of bytes.
    """

    purpose: str
    kinds: tuple[str, ...]
    axes: tuple[str, ...]
    sent: int


@dataclass(frozen=True)
class TrafficComparison:
    """Expected and counted traffic for one purpose.

    Attributes:
      purpose: Purpose of the traffic; "others" for collectives without a formula.
      kinds: Names of the collectives.
      axes: Mesh dimensions that the collectives may cross.
      expected: Bytes by the formula, or None for "others".
      counted: Bytes that the collectives of the program send.
    """

    purpose: str
    kinds: tuple[str, ...]
    axes: tuple[str, ...]
    expected: int | None
    counted: float


def compare_traffic(
    expected: Sequence[ExpectedTraffic], collectives: Iterable[tuple[str, Sequence[str], float]]
) -> list[TrafficComparison]:
    """Assign collectives to the expected traffic and sum their bytes.

    Each collective counts for the first entry that has its kind and all mesh dimensions that it
    crosses.

    Args:
      expected: Traffic by formulas.
      collectives: Kind, mesh dimensions and sent bytes of each collective.

    Example:
      >>> rows = compare_traffic([ExpectedTraffic("gradients", ("all-reduce",), ("data",), 96)],
      ...                 [("all-reduce", ["data"], 96.0), ("all-gather", ["data"], 8.0)])
      >>> [(row.purpose, row.expected, row.counted) for row in rows]
      [('gradients', 96, 96.0), ('others', None, 8.0)]
    """
    counted = [0.0] * len(expected)
    others, kinds, axes = 0.0, list[str](), list[str]()
    for kind, crossed, sent in collectives:
        for index, entry in enumerate(expected):
            if kind in entry.kinds and set(crossed) <= set(entry.axes):
                counted[index] += sent
                break
        else:
            others += sent
            kinds.append(kind)
            axes += crossed
    rows = [
        TrafficComparison(entry.purpose, entry.kinds, entry.axes, entry.sent, count)
        for entry, count in zip(expected, counted, strict=True)
    ]
    if others:
        unmatched = tuple(dict.fromkeys(kinds)), tuple(dict.fromkeys(axes))
        rows.append(TrafficComparison("others", *unmatched, None, others))
    return rows
