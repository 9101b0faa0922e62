"""Schedules of pipelines as tables: which stage computes which micro-batch in which tick.

In a tick every device does at most a forward pass, then a backward pass, then a weight pass, all before it
exchanges with its neighbours: what a stage makes in a tick can be used next door in the next one. A device has
one stage, or several in turn ("chunks"): stage `k` lies on device `k % devices`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidValueError

__all__ = ["KINDS", "NAMES", "Action", "Schedule", "schedule_of"]

# Forward, backward (of the stage's inputs alone where weight passes are apart), weights.
KINDS = "FBW"


@dataclass(frozen=True)
class Action:
    """One piece of work: `kind` is a letter of `KINDS`."""

    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


@dataclass(frozen=True, eq=False)
class Schedule:
    """A checked table.

    Attributes:
      devices: how many devices the pipeline has.
      chunks: how many stages each of them has.
      micro_batches: how many micro-batches there are.
      table: int32 [ticks, devices, kinds, 2] of (micro-batch, stage), -1 where there is nothing to do.

    Raises:
      ValueError: for a table that uses what has not arrived, does something twice, or leaves something undone.

    Example:
      >>> from meshflow.distribute.parallel.schedule import schedule_of
      >>> table = schedule_of("1f1b", devices=4, micro_batches=8)
      >>> table.ticks, round(table.bubble(), 3), table.held()
      (14, 0.273, 7)
    """

    devices: int
    chunks: int
    micro_batches: int
    table: np.ndarray

    def __post_init__(self) -> None:
        _check(self)

    @property
    def stages(self) -> int:
        """How many stages there are on all devices."""
        return self.devices * self.chunks

    @property
    def ticks(self) -> int:
        """How many ticks it takes."""
        return len(self.table)

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of weights are computed apart from those of inputs."""
        return bool((self.table[:, :, 2, 0] >= 0).any())

    @property
    def trains(self) -> bool:
        """Whether it has backward passes."""
        return bool((self.table[:, :, 1, 0] >= 0).any())

    def when(self) -> dict[Action, int]:
        """The tick of each action."""
        return {action: tick for tick, _, action in _entries(self.table)}

    def bubble(self, forward: float = 1.0, backward: float = 2.0, weights: float = 1.0) -> float:
        """The share of the time in which a device waits, if a tick lasts as long as its slowest device.

        Args:
          forward: time of a forward pass.
          backward: time of a backward pass; where weight passes are apart, of the inputs' part: then the
            default is half of it.
          weights: time of a weight pass.
        """
        times = np.array([forward, backward / 2 if self.splits_backward else backward, weights])
        busy = (self.table[:, :, :, 0] >= 0) @ times
        return float(1 - busy.sum() / (busy.max(axis=1).sum() * self.devices))

    def held(self) -> int:
        """The most micro-batches of which a device keeps a stage's input at the same time."""
        lives = np.zeros((self.ticks + 1, self.devices), np.int64)
        for stage, _, arrives, ends in self.lifetimes():
            lives[max(arrives, 0), stage % self.devices] += 1
            lives[ends + 1, stage % self.devices] -= 1
        return int(lives.cumsum(axis=0).max())

    def lifetimes(self) -> list[tuple[int, int, int, int]]:
        """For each (stage, micro-batch): the tick in which its input can first be read, and that of its last use."""
        when = self.when()
        found = []
        for stage in range(self.stages):
            for i in range(self.micro_batches):
                # What stage 0 reads is there from the beginning; it counts from its use.
                first = when[Action("F", stage, i)]
                arrives = when[Action("F", stage - 1, i)] + 1 if stage else first
                uses = [when[a] for k in KINDS if (a := Action(k, stage, i)) in when]
                found.append((stage, i, arrives, max(uses)))
        return found

    def rows(self) -> list[list[str]]:
        """The table as text: for each device the cells of its ticks, as `from_rows` reads them."""
        cells = [[""] * self.ticks for _ in range(self.devices)]
        for tick, device, action in _entries(self.table):
            cells[device][tick] = f"{cells[device][tick]} {action}".strip()
        return cells

    def to_csv(self) -> str:
        """The table in the form that `from_csv` reads."""
        return "".join(",".join(row) + "\n" for row in self.rows())

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[str]], exact: bool = False) -> Schedule:
        """A schedule from the work of each device, in order.

        Args:
          rows: for each device its cells. A cell has actions such as "2F0" (stage 2, forward, micro-batch 0):
            F forward, B the whole backward pass, or I that of the inputs and W that of the weights; or nothing.
          exact: whether the cells are the ticks. Otherwise they only say the order, and each action is done
            as soon as that and what has arrived allow.

        Raises:
          ValueError: for a cell that cannot be read, and as for `Schedule`.
        """
        read = [[_actions(cell, d, n) for n, cell in enumerate(row)] for d, row in enumerate(rows)]
        devices = len(rows)
        everything = [a for row in read for cell in row for a in cell]
        if not everything:
            raise InvalidValueError("The table of a pipeline's schedule is empty.")
        stages = 1 + max(a.stage for a in everything)
        for device, row in enumerate(read):
            for action in (a for cell in row for a in cell):
                if action.stage % devices != device:
                    raise InvalidValueError(
                        f"Schedule: {action} is in the row of device {device}, but with {devices} devices stage "
                        f"{action.stage} lies on device {action.stage % devices}."
                    )
        if stages % devices:
            raise InvalidValueError(
                f"Schedule: the table has {stages} stages, which {devices} devices (rows) do not divide."
            )
        micro_batches = 1 + max(a.micro_batch for a in everything)
        if exact:
            ticks = max(len(row) for row in read)
            placed = {a: t for row in read for t, cell in enumerate(row) for a in cell}
            if len(placed) < len(everything):
                twice = next(a for a in everything if everything.count(a) > 1)
                raise InvalidValueError(f"Schedule: {_named(twice)} is in the table twice.")
        else:
            placed = _earliest([[a for cell in row for a in cell] for row in read], stages)
            ticks = 1 + max(placed.values())
        return cls._of(placed, devices, stages // devices, micro_batches, ticks)

    @classmethod
    def from_csv(cls, text: str, exact: bool = False) -> Schedule:
        """A schedule from comma-separated text: a line for each device; see `from_rows`.

        Args:
          text: the text, for example a file of torchtitan's `pipeline_parallel_schedule_csv`.
          exact: as in `from_rows`.
        """
        lines = [line for line in text.splitlines() if line.strip(" ,")]
        return cls.from_rows([line.split(",") for line in lines], exact)

    @classmethod
    def _of(
        cls, placed: dict[Action, int], devices: int, chunks: int, micro_batches: int, ticks: int
    ) -> Schedule:
        table = np.full((ticks, devices, len(KINDS), 2), -1, np.int32)
        for action, tick in placed.items():
            place = tick, action.stage % devices, KINDS.index(action.kind)
            if table[place][0] >= 0:
                other = Action(action.kind, int(table[place][1]), int(table[place][0]))
                raise InvalidValueError(
                    f"Schedule: {_named(action)} and {_named(other)} are both in tick {tick} of device {place[1]}; "
                    "a tick has one of each kind."
                )
            table[place] = action.micro_batch, action.stage
        return cls(devices, chunks, micro_batches, table)


def _entries(table: np.ndarray) -> Iterable[tuple[int, int, Action]]:
    """The (tick, device, action) of a table in the order in which they are done."""
    for tick, device, kind in zip(*np.nonzero(table[:, :, :, 0] >= 0), strict=True):
        micro_batch, stage = table[tick, device, kind]
        yield int(tick), int(device), Action(KINDS[kind], int(stage), int(micro_batch))


def _named(action: Action) -> str:
    kind = {"F": "the forward pass", "B": "the backward pass", "W": "the weight pass"}[action.kind]
    return f"{kind} of micro-batch {action.micro_batch} in stage {action.stage}"


def _actions(cell: str, device: int, number: int) -> list[Action]:
    """The actions of a cell; a whole backward pass is "B", that of inputs alone "I"."""
    found = []
    for word in cell.replace(";", " ").split():
        kind = next((k for k in "FBIW" if k in word), "")
        stage, _, micro_batch = word.partition(kind) if kind else ("", "", "")
        if not (stage.isdigit() and micro_batch.isdigit()):
            raise InvalidValueError(
                f"Schedule: {word!r} in cell {number} of device {device} is no action. Expected a stage, one of F "
                "(forward), B (backward), I (backward of inputs), W (of weights), and a micro-batch, such as 0F3."
            )
        found.append(Action({"I": "B"}.get(kind, kind), int(stage), int(micro_batch)))
    return found


def _needs(action: Action, stages: int) -> list[tuple[Action, bool]]:
    """What must be done before an action, and whether the same tick is early enough (it lies on the same device)."""
    kind, stage, i = action.kind, action.stage, action.micro_batch
    if kind == "F":
        return [(Action("F", stage - 1, i), False)] if stage else []
    if kind == "W":
        return [(Action("B", stage, i), True)]
    needed = [(Action("F", stage, i), True)]
    return needed if stage == stages - 1 else [*needed, (Action("B", stage + 1, i), False)]


def _check(schedule: Schedule) -> None:
    """Raises ValueError unless everything is done once, and after what it needs."""
    entries = list(_entries(schedule.table))
    when: dict[Action, int] = {}
    for tick, device, action in entries:
        inside = action.stage < schedule.stages and action.micro_batch < schedule.micro_batches
        if not inside or action.stage % schedule.devices != device:
            raise InvalidValueError(
                f"Schedule: tick {tick} of device {device} has {_named(action)}, but there are "
                f"{schedule.micro_batches} micro-batches and {schedule.stages} stages, stage k on device "
                f"k % {schedule.devices}."
            )
        if action in when:
            raise InvalidValueError(
                f"Schedule: {_named(action)} is done twice, in ticks {when[action]} and {tick}."
            )
        when[action] = tick
    backward = any(a.kind != "F" for a in when)
    kinds = ("F", *("B" * backward), *("W" * schedule.splits_backward))
    for i in range(schedule.micro_batches):
        for stage in range(schedule.stages):
            for kind in kinds:
                if Action(kind, stage, i) not in when:
                    raise InvalidValueError(
                        f"Schedule: {_named(Action(kind, stage, i))} is never done in its {schedule.ticks} ticks."
                    )
    for tick, _, action in entries:
        for needed, same in _needs(action, schedule.stages):
            if when[needed] > tick - (not same):
                raise InvalidValueError(
                    f"Schedule: {_named(action)} in tick {tick} needs {_named(needed)}, which is done in tick "
                    f"{when[needed]}" + ("." if same else ", and arrives in the one after that.")
                )


def _earliest(orders: Sequence[Sequence[Action]], stages: int) -> dict[Action, int]:
    """The earliest tick of each action, each device keeping to its order.

    Raises:
      ValueError: where devices wait for each other.
    """
    placed: dict[Action, int] = {}
    done = [0] * len(orders)
    tick = 0
    while any(n < len(order) for n, order in zip(done, orders, strict=True)):
        moved = False
        for device, order in enumerate(orders):
            last = -1
            while done[device] < len(order):
                action = order[done[device]]
                kind = KINDS.index(action.kind)
                ready = all(
                    placed.get(need, tick + 1) <= tick - (not same)
                    for need, same in _needs(action, stages)
                )
                if kind <= last or not ready:
                    break
                if action in placed:
                    raise InvalidValueError(f"Schedule: {_named(action)} is in the table twice.")
                placed[action] = tick
                done[device] += 1
                last, moved = kind, True
        if not moved:
            _deadlock(orders, done, placed, stages, tick)
        tick += 1
    return placed


def _deadlock(orders: Any, done: list[int], placed: Any, stages: int, tick: int) -> None:
    waits = []
    for device, order in enumerate(orders):
        if done[device] < len(order):
            action = order[done[device]]
            lacks = next(n for n, _ in _needs(action, stages) if n not in placed)
            waits.append(f"device {device}: {_named(action)} waits for {_named(lacks)}")
    raise InvalidValueError(
        f"Schedule: the table deadlocks; in tick {tick} no device can go on. {'; '.join(waits)}."
    )


# ---- the tables that have names ----------------------------------------------------------------

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
                ready = all(placed.get(n, tick) < tick for n, _ in _needs(action, p))
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
    """The paired table with weight passes where they make ticks least longer."""
    placed = _paired(p, m)
    ticks = m + 2 * (p - 1)
    load = np.zeros((ticks + m, p))
    for action, tick in placed.items():
        load[tick, action.stage] += 1
    taken = np.zeros_like(load, bool)
    lasts = load.max(axis=1)
    for s in range(p):
        for i in range(m):
            first = placed[Action("B", s, i)]
            longer = np.maximum(load[first:, s] + 1 - lasts[first:], 0)
            tick = first + int(np.argmin(np.where(taken[first:, s], np.inf, longer)))
            placed[Action("W", s, i)] = tick
            taken[tick, s] = True
            load[tick, s] += 1
            lasts[tick] = max(lasts[tick], load[tick, s])
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
      spec: "1f1b" (a forward and a backward pass a tick), "gpipe", "classic_1f1b", "interleaved:2" (so many
        stages on each device), "zero_bubble", "forward" (for predictions); a `Schedule`; rows as for
        `Schedule.from_rows`; or the path of a file that ends in ".csv".
      devices: how many devices the pipeline has.
      micro_batches: how many micro-batches.

    Raises:
      ValueError: for an unknown name, or a table of other sizes.

    Example:
      >>> from meshflow.distribute.parallel.schedule import schedule_of
      >>> print(schedule_of("gpipe", devices=2, micro_batches=2).to_csv(), end="")
      0F0,0F1,,0B0,0B1,
      ,1F0,1F1,1B0,1B1,
    """
    if devices < 1 or micro_batches < 1:
        raise InvalidValueError(
            f"Schedule: {devices} devices and {micro_batches} micro-batches; both must be at least 1."
        )
    if isinstance(spec, str) and not spec.endswith(".csv"):
        return _by_name(spec, devices, micro_batches)
    if isinstance(spec, str):
        with open(spec, encoding="utf-8") as file:
            spec = Schedule.from_csv(file.read())
    elif not isinstance(spec, Schedule):
        spec = Schedule.from_rows(spec)
    if (spec.devices, spec.micro_batches) != (devices, micro_batches):
        raise InvalidValueError(
            f"Schedule: the table is for {spec.devices} devices and {spec.micro_batches} micro-batches, the pipeline "
            f"has {devices} and {micro_batches}."
        )
    return spec


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
            f"Schedule: {name!r} is none of {', '.join(NAMES)}, interleaved:N, and no file that ends in .csv."
        )
    return Schedule._of(placed, devices, chunks, micro_batches, 1 + max(placed.values()))
