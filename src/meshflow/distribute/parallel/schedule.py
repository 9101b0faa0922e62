"""Schedules of pipelines as tables: which stage computes which micro-batch in which tick.

In a tick every device does at most a forward pass, then a backward pass, then two weight passes, all before it
exchanges with its neighbours: what a stage makes in a tick can be used next door in the next one. A device has
one stage, or several in turn ("chunks"): stage `k` lies on device `k % devices`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.runtime.errors import InvalidValueError

__all__ = ["KINDS", "LANES", "Action", "Schedule", "before"]

# Forward, backward (of the stage's inputs alone where weight passes are apart), weights.
KINDS = "FBW"
# What a tick has room for, in order.
LANES = "FBWW"


class Action(NamedTuple):
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
      table: int32 [ticks, devices, lanes, 2] of (micro-batch, stage), -1 where there is nothing to do.

    Raises:
      ValueError: for a table that uses what has not arrived, does something twice, or leaves something undone.

    Example:
      >>> from meshflow.distribute.parallel.tables import schedule_of
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
        of_kind = {"F": forward, "B": backward / (1 + self.splits_backward), "W": weights}
        times = np.array([of_kind[kind] for kind in LANES])
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
        return cls.of(placed, devices, stages // devices, micro_batches, ticks)

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
    def of(
        cls, placed: dict[Action, int], devices: int, chunks: int, micro_batches: int, ticks: int
    ) -> Schedule:
        """A schedule from the tick of each action.

        Args:
          placed: the ticks.
          devices: how many devices there are.
          chunks: how many stages each of them has.
          micro_batches: how many micro-batches.
          ticks: how many ticks.

        Raises:
          ValueError: as for `Schedule`, and where a device would do two actions of a kind in one tick.
        """
        table = np.full((ticks, devices, len(LANES), 2), -1, np.int32)
        for action, tick in placed.items():
            device = action.stage % devices
            lanes = [n for n, kind in enumerate(LANES) if kind == action.kind]
            free = [n for n in lanes if table[tick, device, n, 0] < 0]
            if not free:
                micro_batch, stage = table[tick, device, lanes[0]]
                other = Action(action.kind, int(stage), int(micro_batch))
                raise InvalidValueError(
                    f"Schedule: {_named(action)} and {_named(other)} are both in tick {tick} of device {device}; "
                    "a tick has one forward and one backward pass, and two weight passes."
                )
            table[tick, device, free[0]] = action.micro_batch, action.stage
        return cls(devices, chunks, micro_batches, table)


def _entries(table: np.ndarray) -> Iterable[tuple[int, int, Action]]:
    """The (tick, device, action) of a table in the order in which they are done."""
    for tick, device, lane in zip(*np.nonzero(table[:, :, :, 0] >= 0), strict=True):
        micro_batch, stage = table[tick, device, lane]
        yield int(tick), int(device), Action(LANES[lane], int(stage), int(micro_batch))


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


def before(action: Action, stages: int) -> list[tuple[Action, bool]]:
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
        for needed, same in before(action, schedule.stages):
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
            free = 0
            while done[device] < len(order):
                action = order[done[device]]
                lane = LANES.find(action.kind, free)
                ready = all(
                    placed.get(need, tick + 1) <= tick - (not same)
                    for need, same in before(action, stages)
                )
                if lane < 0 or not ready:
                    break
                if action in placed:
                    raise InvalidValueError(f"Schedule: {_named(action)} is in the table twice.")
                placed[action] = tick
                done[device] += 1
                free, moved = lane + 1, True
        if not moved:
            _deadlock(orders, done, placed, stages, tick)
        tick += 1
    return placed


def _deadlock(orders: Any, done: list[int], placed: Any, stages: int, tick: int) -> None:
    waits = []
    for device, order in enumerate(orders):
        if done[device] < len(order):
            action = order[done[device]]
            lacks = next(n for n, _ in before(action, stages) if n not in placed)
            waits.append(f"device {device}: {_named(action)} waits for {_named(lacks)}")
    raise InvalidValueError(
        f"Schedule: the table deadlocks; in tick {tick} no device can go on. {'; '.join(waits)}."
    )
