"""Named pipeline schedules, and the resolution of the `schedule` option."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard, cast

import numpy as np

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.distribute.parallel.schedule import LANES, Action, Schedule, list_prerequisites

_Ticks = dict[Action, int]


def _place_passes(p: int, m: int, backward: Callable[[int, int], int]) -> _Ticks:
    placed = {Action("F", s, i): i + s for s in range(p) for i in range(m)}
    return placed | {Action("B", s, i): backward(s, i) for s in range(p) for i in range(m)}


def _build_gpipe(p: int, m: int) -> _Ticks:
    """Place all forward passes before all backward passes."""
    return _place_passes(p, m, lambda s, i: m + p - 1 + i + p - 1 - s)


def _build_paired_1f1b(p: int, m: int) -> _Ticks:
    """Place a forward and a backward pass in each tick: 1F1B's bubble for devices in lock step."""
    return _place_passes(p, m, lambda s, i: i + 2 * (p - 1) - s)


def _build_classic_1f1b(p: int, m: int) -> _Ticks:
    """Place one pass in each tick, with at most p - s micro-batches in flight from stage s on."""
    ticks: _Ticks = {}
    done = {kind: [0] * p for kind in "FB"}
    tick = 0
    while min(done["B"]) < m:
        for s in range(p):
            f, b = done["F"][s], done["B"][s]
            allowed = {"B": b < m, "F": f < m and f - b < p - s}
            for kind, micro_batch in (("B", b), ("F", f)):
                action = Action(kind, s, micro_batch)
                # A device runs one pass in a tick, so prerequisites must be in earlier ticks, even
                # on the same device.
                ready = all(ticks.get(n, tick) < tick for n, _ in list_prerequisites(action, p))
                if allowed[kind] and ready:
                    ticks[action] = tick
                    done[kind][s] += 1
                    break
        tick += 1
    return ticks


def _build_interleaved(p: int, m: int, chunks: int) -> _Ticks:
    """Place paired passes of `chunks` stages per device, in turn for groups of p micro-batches."""
    ticks: _Ticks = {}
    for i in range(m):
        group, offset = divmod(i, p)
        for c in range(chunks):
            for d in range(p):
                start = group * chunks * p + offset
                stage = c * p + d
                ticks[Action("F", stage, i)] = start + c * p + d
                back = chunks * p - 1 + start + (chunks - 1 - c) * p
                ticks[Action("B", stage, i)] = back + p - 1 - d
    return ticks


def _build_zero_bubble(p: int, m: int) -> _Ticks:
    """Place weight passes into the paired schedule where no device waits for them.

    Late stages run them late, and two of them fit into a tick at the end. A tick becomes longer
    only if all devices have work for it. From 2(p-1) micro-batches on the total idle time is p - 1
    passes, for the first micro-batch to arrive and for the last to return. No device holds more
    than 2p-1 inputs.
    """
    ticks_by_action = _build_paired_1f1b(p, m)
    ticks = m + 2 * (p - 1)
    load = np.zeros((ticks + m, p), int)
    back = np.zeros((ticks + m, p), int)
    for action, tick in ticks_by_action.items():
        load[tick, action.stage] += 1
        back[tick, action.stage] += action.kind == "B"
    ready, done, tick = back.cumsum(axis=0), np.zeros(p, int), 0
    while done.min() < m:
        room = np.minimum(ready[tick] - done, LANES.count("W"))
        # A tick at the end contains only weight passes, and lasts as long as the busiest device
        # needs in any case.
        length = max(load[tick].max(), (load[tick] + room).min(), tick >= ticks)
        for s in range(p):
            for _ in range(min(room[s], length - load[tick, s])):
                ticks_by_action[Action("W", s, int(done[s]))] = tick
                done[s] += 1
        tick += 1
    return _remove_empty_ticks(ticks_by_action)


def _build_forward(p: int, m: int, chunks: int) -> _Ticks:
    """Place only forward passes, for predictions."""
    ticks = _build_interleaved(p, m, chunks)
    return {action: tick for action, tick in ticks.items() if action.kind == "F"}


def _remove_empty_ticks(ticks: _Ticks) -> _Ticks:
    """Return the same work without ticks in which all devices are idle."""
    new_ticks = {tick: n for n, tick in enumerate(sorted(set(ticks.values())))}
    return {action: new_ticks[tick] for action, tick in ticks.items()}


NAMED_SCHEDULES: dict[str, Callable[[int, int], _Ticks]] = {
    "1f1b": _build_paired_1f1b,
    "gpipe": _build_gpipe,
    "classic_1f1b": _build_classic_1f1b,
    "zero_bubble": _build_zero_bubble,
}
# Schedules with the number of stages of each device after a colon, and the number for names without one.
_CHUNKED_SCHEDULES: dict[str, tuple[Callable[[int, int, int], _Ticks], int]] = {
    "interleaved": (_build_interleaved, 2),
    "forward": (_build_forward, 1),
}


def resolve_schedule(spec: object, devices: int, micro_batches: int) -> Schedule:
    """Return the schedule that an option specifies.

    Args:
      spec: "1f1b" (a forward and a backward pass in each tick), "gpipe", "classic_1f1b",
        "interleaved:2" (the number is the stages of each device), "zero_bubble" or "forward:2" (for
        predictions; "forward" is "forward:1"); a `Schedule`; rows as in `Schedule.from_rows`; text
        as in `Schedule.from_csv`; or the path of a file with such text that ends in ".csv".
      devices: Number of devices of the pipeline.
      micro_batches: Number of micro-batches.

    Returns:
      The schedule.

    Raises:
      ValueError: If the name is unknown, if the file cannot be read, or if the table has other
        sizes.

    Example:
      >>> from meshflow.distribute.parallel.named_schedules import resolve_schedule
      >>> print(resolve_schedule("gpipe", devices=2, micro_batches=2).to_csv(), end="")
      0F0,0F1,,,0B0,0B1
      ,1F0,1F1,1B0,1B1,
    """
    if devices < 1 or micro_batches < 1:
        raise InvalidValueError(
            f"Schedule: {devices} devices and {micro_batches} micro-batches; both must be at least 1."
        )
    if isinstance(spec, os.PathLike) or (isinstance(spec, str) and spec.endswith(".csv")):
        spec = _read_schedule_file(os.fspath(spec))
    elif isinstance(spec, str) and {",", "\n"} & {*spec}:
        spec = Schedule.from_csv(spec)
    elif isinstance(spec, str):
        return _build_named_schedule(spec, devices, micro_batches)
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


def _is_table(spec: object) -> TypeGuard[Sequence[Sequence[str]]]:
    is_list = lambda value: isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    return is_list(spec) and all(
        is_list(row) and all(isinstance(c, str) for c in row) for row in cast("Sequence[Any]", spec)
    )


def _read_schedule_file(path: str) -> Schedule:
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
def _build_named_schedule(name: str, devices: int, micro_batches: int) -> Schedule:
    base, _, count = name.partition(":")
    chunks, ticks = 1, _Ticks()
    if base in _CHUNKED_SCHEDULES and (not count or count.isdigit()):
        build, default = _CHUNKED_SCHEDULES[base]
        chunks = int(count or default)
        ticks = _remove_empty_ticks(build(devices, micro_batches, chunks)) if chunks else ticks
    elif base in NAMED_SCHEDULES and not count:
        ticks = NAMED_SCHEDULES[base](devices, micro_batches)
    if not ticks:
        raise InvalidValueError(
            f"Schedule: {name!r} is none of {', '.join(NAMED_SCHEDULES)}, interleaved:N, forward:N, the path of a .csv file, and a table. A "
            "table has a line for each device, and cells with commas between them, such as 0F0,0F1,0B0,0B1."
        )
    return Schedule.from_ticks(ticks, devices, chunks, micro_batches, 1 + max(ticks.values()))
