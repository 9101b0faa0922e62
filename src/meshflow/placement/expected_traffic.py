"""What theory says that devices send in a step, beside what the collectives of a program send."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Comparison", "Exchange", "compared", "ring"]


def ring(number: int, devices: int) -> int:
    """What each of a ring of devices sends to gather, or to scatter, so many bytes; half of what a sum takes.

    Args:
      number: the bytes.
      devices: how many devices.
    """
    return number * (devices - 1) // devices


@dataclass(frozen=True)
class Exchange:
    """What each device sends in a step for one purpose, by a formula.

    Attributes:
      purpose: such as "gradients".
      kinds: the collectives that do it, such as "all-reduce".
      axes: the mesh dimensions that they may cross.
      sent: bytes.
    """

    purpose: str
    kinds: tuple[str, ...]
    axes: tuple[str, ...]
    sent: int


@dataclass(frozen=True)
class Comparison:
    """What was counted for an exchange.

    Attributes:
      purpose, kinds, axes: the exchange's; of what no formula is about, "others" and what it is.
      expected: bytes by the formula; None for those others.
      counted: bytes that the collectives send.
    """

    purpose: str
    kinds: tuple[str, ...]
    axes: tuple[str, ...]
    expected: int | None
    counted: float


def compared(
    expected: Sequence[Exchange], found: Iterable[tuple[str, Sequence[str], float]]
) -> list[Comparison]:
    """Puts collectives beside the exchanges that they are for.

    Each counts for the first exchange that has its kind and all mesh dimensions that it crosses.

    Args:
      expected: the exchanges.
      found: kind, mesh dimensions and sent bytes of each collective.

    Example:
      >>> rows = compared([Exchange("gradients", ("all-reduce",), ("data",), 96)],
      ...                 [("all-reduce", ["data"], 96.0), ("all-gather", ["data"], 8.0)])
      >>> [(row.purpose, row.expected, row.counted) for row in rows]
      [('gradients', 96, 96.0), ('others', None, 8.0)]
    """
    counted = [0.0] * len(expected)
    others, kinds, axes = 0.0, list[str](), list[str]()
    for kind, crossed, sent in found:
        for number, one in enumerate(expected):
            if kind in one.kinds and set(crossed) <= set(one.axes):
                counted[number] += sent
                break
        else:
            others += sent
            kinds.append(kind)
            axes += crossed
    rows = [
        Comparison(one.purpose, one.kinds, one.axes, one.sent, count)
        for one, count in zip(expected, counted, strict=True)
    ]
    if others:
        unlike = tuple(dict.fromkeys(kinds)), tuple(dict.fromkeys(axes))
        rows.append(Comparison("others", *unlike, None, others))
    return rows
