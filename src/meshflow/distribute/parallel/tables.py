"""The schedules of pipelines that have names, and how options name them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.distribute.parallel.schedule import LANES, Action, Schedule, before

__all__ = ["NAMES", "schedule_of"]

_Ticks = dict[Action, int]


def _both(p: int, m: int, backward: Callable[[int, int], int]) -> _Ticks:
    placed = {Action("F", s, i): i + s for s in range(p) for i in range(m)}
    return placed | {Action("B", s, i): backward(s, i) for s in range(p) for i in range(m)}


def _gpipe(p: int, m: int) -> _Ticks:
    """All forward passes, then all backward passes."""
    return _both(p, m, lambda s, i: m + p - 1 + i + p - 1 - s)


def _paired(p: int, m: int) -> _Ticks:
    """A forward and a backward pass in each tick: the bubble of 1F1B where devices go in step."""
    return _both(p, m, lambda s, i: i + 2 * (p - 1) - s)


def _classic(p: int, m: int) -> _Ticks:
    """One pass in each tick, backward passes first, at most p - s micro-batches on the way from stage s on."""
    placed: _Ticks = {}
    done = {kind: [0] * p for kind in "FB"}
    tick = 0
    while min(done["B"]) < m:
        for s in range(p):
            f, b = done["F"][s], done["B"][s]
            allowed = {"B": b < m, "F": f < m and f - b < p - s}
            for kind, number in (("B", b), ("F", f)):
                action = Action(kind, s, number)
                # One device has one pass a tick, so that nothing is early enough in the same one.
                ready = all(placed.get(n, tick) < tick for n, _ in before(action, p))
                if allowed[kind] and ready:
                    placed[action] = tick
                    done[kind][s] += 1
                    break
        tick += 1
    return placed


def _interleaved(p: int, m: int, chunks: int) -> _Ticks:
    """`chunks` stages on each device, in turn for groups of p micro-batches; paired."""
    placed: _Ticks = {}
    for i in range(m):
        group, place = divmod(i, p)
        for c in range(chunks):
            for d in range(p):
                begin = group * chunks * p + place
                stage = c * p + d
                placed[Action("F", stage, i)] = begin + c * p + d
                back = chunks * p - 1 + begin + (chunks - 1 - c) * p
                placed[Action("B", stage, i)] = back + p - 1 - d
    return placed


def _zero_bubble(p: int, m: int) -> _Ticks:
    """The paired table with weight passes where no device waits for them: late in late stages, two in a tick at the end.

    A tick becomes longer only when all devices have something to fill it with. From 2(p-1) micro-batches on they
    wait p - 1 passes in all, for the first to arrive and for the last to come back; none holds more than 2p-1.
    """
    placed = _paired(p, m)
    ticks = m + 2 * (p - 1)
    load = np.zeros((ticks + m, p), int)
    back = np.zeros((ticks + m, p), int)
    for action, tick in placed.items():
        load[tick, action.stage] += 1
        back[tick, action.stage] += action.kind == "B"
    ready, done, tick = back.cumsum(axis=0), np.zeros(p, int), 0
    while done.min() < m:
        room = np.minimum(ready[tick] - done, LANES.count("W"))
        # At the end there is nothing else, and none waits for less than the one that has most.
        lasts = max(load[tick].max(), (load[tick] + room).min(), tick >= ticks)
        for s in range(p):
            for _ in range(min(room[s], lasts - load[tick, s])):
                placed[Action("W", s, int(done[s]))] = tick
                done[s] += 1
        tick += 1
    return _without_gaps(placed)


def _forward(p: int, m: int) -> _Ticks:
    """Forward passes alone, for predictions."""
    return {Action("F", s, i): i + s for s in range(p) for i in range(m)}


def _without_gaps(placed: _Ticks) -> _Ticks:
    """The same work without the ticks in which nobody has any."""
    used = {tick: n for n, tick in enumerate(sorted(set(placed.values())))}
    return {action: used[tick] for action, tick in placed.items()}


NAMES: dict[str, Callable[[int, int], _Ticks]] = {
    "1f1b": _paired,
    "gpipe": _gpipe,
    "classic_1f1b": _classic,
    "zero_bubble": _zero_bubble,
    "forward": _forward,
}


def schedule_of(spec: Any, devices: int, micro_batches: int) -> Schedule:
    """The schedule that an option names.

    Args:
      spec: "1f1b" (a forward and a backward pass in each tick), "gpipe", "classic_1f1b", "interleaved:2" (so many
        stages on each device), "zero_bubble", "forward" (for predictions); a `Schedule`; rows as for
        `Schedule.from_rows`; text as for `Schedule.from_csv`; or the path of a file of it that ends in ".csv".
      devices: how many devices the pipeline has.
      micro_batches: how many micro-batches.

    Raises:
      ValueError: for an unknown name, a file that cannot be read, or a table of other sizes.

    Example:
      >>> from meshflow.distribute.parallel.tables import schedule_of
      >>> print(schedule_of("gpipe", devices=2, micro_batches=2).to_csv(), end="")
      0F0,0F1,,,0B0,0B1
      ,1F0,1F1,1B0,1B1,
    """
    if devices < 1 or micro_batches < 1:
        raise InvalidValueError(
            f"Schedule: {devices} devices and {micro_batches} micro-batches; both must be at least 1."
        )
    if isinstance(spec, os.PathLike) or (isinstance(spec, str) and spec.endswith(".csv")):
        spec = _of_file(os.fspath(spec))
    elif isinstance(spec, str) and {",", "\n"} & {*spec}:
        spec = Schedule.from_csv(spec)
    elif isinstance(spec, str):
        return _by_name(spec, devices, micro_batches)
    elif not isinstance(spec, Schedule):
        if not _is_table(spec):
            raise InvalidValueError(
                "Schedule: expected the name of a schedule, the path of a file that ends in .csv, its text, or for each "
                f"device a list of cells such as '0F0', got {spec!r}."
            )
        spec = Schedule.from_rows(spec)
    if (spec.devices, spec.micro_batches) != (devices, micro_batches):
        raise InvalidValueError(
            f"Schedule: the table is for {spec.devices} devices and {spec.micro_batches} micro-batches, the pipeline "
            f"has {devices} and {micro_batches}."
        )
    return spec


def _is_table(spec: Any) -> bool:
    listed = lambda value: isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    return listed(spec) and all(
        listed(row) and all(isinstance(c, str) for c in row) for row in spec
    )


def _of_file(path: str) -> Schedule:
    try:
        with open(path, encoding="utf-8") as file:
            return Schedule.from_csv(file.read())
    except OSError as error:
        raise InvalidValueError(
            f"Schedule: the file {path!r} cannot be read: {error.strerror}. Expected the path, from the folder "
            f"{os.getcwd()!r}, of a text with a line for each device and cells such as 0F0."
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"Schedule: the file {path!r} is no text: {error}.") from None


@functools.lru_cache(maxsize=64)
def _by_name(name: str, devices: int, micro_batches: int) -> Schedule:
    base, _, number = name.partition(":")
    chunks = 1
    if base == "interleaved" and (not number or number.isdigit()):
        chunks = int(number or 2)
        placed = _without_gaps(_interleaved(devices, micro_batches, chunks)) if chunks else {}
    elif base in NAMES and not number:
        placed = NAMES[base](devices, micro_batches)
    else:
        placed = {}
    if not placed:
        raise InvalidValueError(
            f"Schedule: {name!r} is none of {', '.join(NAMES)}, interleaved:N, no file that ends in .csv, and no table: "
            "that has a line for each device, and cells with commas between them, such as 0F0,0F1,0B0,0B1."
        )
    return Schedule.of(placed, devices, chunks, micro_batches, 1 + max(placed.values()))
