"""Pipeline schedules as tables: the micro-batch that each stage computes in each tick.

In a tick every device runs at most one forward pass, then one backward pass, then two weight
passes. It exchanges data with its neighbors afterwards, so a neighbor can use the results in the
next tick. A device has one stage, or several ("chunks"): stage `k` is on device `k % devices`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshflow.core.runtime.errors import InvalidValueError

# Forward pass, backward pass (only of the stage's inputs if weight passes are separate), weight
# pass.
PASS_KINDS = "FBW"
# Passes that fit into a tick, in order.
LANES = "FBWW"


class Action(NamedTuple):
    """One pass of a stage for a micro-batch; `kind` is a letter of `PASS_KINDS`."""

    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


@dataclass(frozen=True, eq=False)
class Schedule:
    """A validated pipeline schedule.

    Attributes:
      devices: Number of devices of the pipeline.
      chunks: Number of stages of each device.
      micro_batches: Number of micro-batches.
      table: int32 [ticks, devices, lanes, 2] of (micro-batch, stage), -1 where there is no pass.

    Raises:
      ValueError: If the table uses a value before it arrives, repeats a pass, or lacks one.

    Example:
      >>> from meshflow.distribute.parallel.named_schedules import resolve_schedule
      >>> table = resolve_schedule("1f1b", devices=4, micro_batches=8)
      >>> table.ticks, round(table.compute_bubble(), 3), table.count_held_inputs()
      (14, 0.273, 7)
    """

    devices: int
    chunks: int
    micro_batches: int
    table: np.ndarray

    def __post_init__(self) -> None:
        _check_table(self)

    @property
    def stages(self) -> int:
        """Return the number of stages on all devices."""
        return self.devices * self.chunks

    @property
    def ticks(self) -> int:
        """Return the number of ticks."""
        return len(self.table)

    @property
    def has_weight_passes(self) -> bool:
        """Whether gradients of weights are computed separately from those of inputs."""
        return bool((self.table[:, :, 2, 0] >= 0).any())

    @property
    def has_backward_passes(self) -> bool:
        """Whether the schedule has backward passes."""
        return bool((self.table[:, :, 1, 0] >= 0).any())

    def map_ticks(self) -> dict[Action, int]:
        """Return the tick of each action."""
        return {action: tick for tick, _, action in _iterate_actions(self.table)}

    def compute_bubble(
        self, forward: float = 1.0, backward: float = 2.0, weights: float = 1.0
    ) -> float:
        """Return the idle fraction of time if each tick lasts as long as its slowest device.

        Args:
          forward: Time of a forward pass.
          backward: Time of a backward pass with gradients of inputs and weights. With separate
            weight passes, half of it is used for the inputs' part.
          weights: Time of a weight pass.

        Returns:
          The fraction, between 0 and 1.
        """
        times_by_kind = {"F": forward, "B": backward / (1 + self.has_weight_passes), "W": weights}
        times = np.array([times_by_kind[kind] for kind in LANES])
        busy = (self.table[:, :, :, 0] >= 0) @ times
        return float(1 - busy.sum() / (busy.max(axis=1).sum() * self.devices))

    def count_held_inputs(self) -> int:
        """Return the largest number of stage inputs that a device keeps at the same time."""
        changes = np.zeros((self.ticks + 1, self.devices), np.int64)
        for stage, _, arrives, ends in self.list_lifetimes():
            changes[max(arrives, 0), stage % self.devices] += 1
            changes[ends + 1, stage % self.devices] -= 1
        return int(changes.cumsum(axis=0).max())

    def list_lifetimes(self) -> list[tuple[int, int, int, int]]:
        """Return (stage, micro-batch, first tick, last tick) of the life of each stage input."""
        ticks = self.map_ticks()
        lifetimes = []
        for stage in range(self.stages):
            for i in range(self.micro_batches):
                # The inputs of stage 0 are available from the beginning, and count from their first
                # use.
                first = ticks[Action("F", stage, i)]
                arrives = ticks[Action("F", stage - 1, i)] + 1 if stage else first
                uses = [ticks[a] for k in PASS_KINDS if (a := Action(k, stage, i)) in ticks]
                lifetimes.append((stage, i, arrives, max(uses)))
        return lifetimes

    def to_rows(self) -> list[list[str]]:
        """Return the table as text: the cells of each device, in the format of `from_rows`."""
        cells = [[""] * self.ticks for _ in range(self.devices)]
        for tick, device, action in _iterate_actions(self.table):
            cells[device][tick] = f"{cells[device][tick]} {action}".strip()
        return cells

    def to_csv(self) -> str:
        """Return the table as comma-separated text, in the format of `from_csv`."""
        return "".join(",".join(row) + "\n" for row in self.to_rows())

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[str]], exact: bool = False) -> Schedule:
        """Create a schedule from the ordered work of each device.

        Args:
          rows: Cells of each device. A cell has actions such as "2F0" (stage 2, forward,
            micro-batch 0), or none. F is a forward pass, B a complete backward pass, I the backward
            pass of inputs, and W the weight pass.
          exact: Whether cells are ticks. Otherwise cells only define the order, and each action
            runs as early as its inputs and the order permit.

        Returns:
          The schedule.

        Raises:
          ValueError: If a cell cannot be parsed, or if the schedule is invalid; see `Schedule`.
        """
        parsed = [
            [_parse_cell(cell, d, n) for n, cell in enumerate(row)] for d, row in enumerate(rows)
        ]
        devices = len(rows)
        actions = [a for row in parsed for cell in row for a in cell]
        if not actions:
            raise InvalidValueError("The table of a pipeline's schedule is empty.")
        stages = 1 + max(a.stage for a in actions)
        for device, row in enumerate(parsed):
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
        micro_batches = 1 + max(a.micro_batch for a in actions)
        if exact:
            ticks = max(len(row) for row in parsed)
            ticks_by_action = {a: t for row in parsed for t, cell in enumerate(row) for a in cell}
            if len(ticks_by_action) < len(actions):
                duplicate = next(a for a in actions if actions.count(a) > 1)
                raise InvalidValueError(
                    f"Schedule: {_describe_action(duplicate)} is in the table twice."
                )
        else:
            ticks_by_action = _schedule_earliest(
                [[a for cell in row for a in cell] for row in parsed], stages
            )
            ticks = 1 + max(ticks_by_action.values())
        return cls.from_ticks(ticks_by_action, devices, stages // devices, micro_batches, ticks)

    @classmethod
    def from_csv(cls, text: str, exact: bool = False) -> Schedule:
        """Create a schedule from comma-separated text with a line for each device; see `from_rows`.

        Args:
          text: The text, for example the content of a file for torchtitan's
            `pipeline_parallel_schedule_csv`.
          exact: As in `from_rows`.

        Returns:
          The schedule.
        """
        lines = [line for line in text.splitlines() if line.strip(" ,")]
        return cls.from_rows([line.split(",") for line in lines], exact)

    @classmethod
    def from_ticks(
        cls, placed: dict[Action, int], devices: int, chunks: int, micro_batches: int, ticks: int
    ) -> Schedule:
        """Create a schedule from the tick of each action.

        Args:
          placed: Tick of each action.
          devices: Number of devices.
          chunks: Number of stages of each device.
          micro_batches: Number of micro-batches.
          ticks: Number of ticks.

        Returns:
          The schedule.

        Raises:
          ValueError: If the schedule is invalid, or if a device would run too many passes of one
            kind in a tick.
        """
        table = np.full((ticks, devices, len(LANES), 2), -1, np.int32)
        for action, tick in placed.items():
            device = action.stage % devices
            lanes = [n for n, kind in enumerate(LANES) if kind == action.kind]
            free = [n for n in lanes if table[tick, device, n, 0] < 0]
            if not free:
                micro_batch, stage = table[tick, device, lanes[0]]
                occupant = Action(action.kind, int(stage), int(micro_batch))
                raise InvalidValueError(
                    f"Schedule: {_describe_action(action)} and {_describe_action(occupant)} are both in tick {tick} of device {device}; "
                    "a tick has one forward and one backward pass, and two weight passes."
                )
            table[tick, device, free[0]] = action.micro_batch, action.stage
        return cls(devices, chunks, micro_batches, table)


def _iterate_actions(table: np.ndarray) -> Iterable[tuple[int, int, Action]]:
    """Yield (tick, device, action) of a table in the order of execution."""
    for tick, device, lane in zip(*np.nonzero(table[:, :, :, 0] >= 0), strict=True):
        micro_batch, stage = table[tick, device, lane]
        yield int(tick), int(device), Action(LANES[lane], int(stage), int(micro_batch))


def _describe_action(action: Action) -> str:
    kind = {"F": "the forward pass", "B": "the backward pass", "W": "the weight pass"}[action.kind]
    return f"{kind} of micro-batch {action.micro_batch} in stage {action.stage}"


def _parse_cell(cell: str, device: int, index: int) -> list[Action]:
    """Parse the actions of a cell; "B" is a complete backward pass, "I" only that of inputs."""
    actions = []
    for word in cell.replace(";", " ").split():
        kind = next((k for k in "FBIW" if k in word), "")
        stage, _, micro_batch = word.partition(kind) if kind else ("", "", "")
        if not (stage.isdigit() and micro_batch.isdigit()):
            raise InvalidValueError(
                f"Schedule: {word!r} in cell {index} of device {device} is no action. Expected a stage, one of F "
                "(forward), B (backward), I (backward of inputs), W (of weights), and a micro-batch, such as 0F3."
            )
        actions.append(Action({"I": "B"}.get(kind, kind), int(stage), int(micro_batch)))
    return actions


def list_prerequisites(action: Action, stages: int) -> list[tuple[Action, bool]]:
    """Return the actions that an action depends on.

    Args:
      action: The action.
      stages: Number of stages.

    Returns:
      (action, allowed in the same tick) pairs. Only actions on the same device are allowed there.
    """
    kind, stage, i = action.kind, action.stage, action.micro_batch
    if kind == "F":
        return [(Action("F", stage - 1, i), False)] if stage else []
    if kind == "W":
        return [(Action("B", stage, i), True)]
    needed = [(Action("F", stage, i), True)]
    return needed if stage == stages - 1 else [*needed, (Action("B", stage + 1, i), False)]


def _check_table(schedule: Schedule) -> None:
    """Raise ValueError unless each action occurs once, and after its prerequisites."""
    entries = list(_iterate_actions(schedule.table))
    ticks: dict[Action, int] = {}
    for tick, device, action in entries:
        is_known = action.stage < schedule.stages and action.micro_batch < schedule.micro_batches
        if not is_known or action.stage % schedule.devices != device:
            raise InvalidValueError(
                f"Schedule: tick {tick} of device {device} has {_describe_action(action)}, but there are "
                f"{schedule.micro_batches} micro-batches and {schedule.stages} stages, stage k on device "
                f"k % {schedule.devices}."
            )
        if action in ticks:
            raise InvalidValueError(
                f"Schedule: {_describe_action(action)} is done twice, in ticks {ticks[action]} and {tick}."
            )
        ticks[action] = tick
    backward = any(a.kind != "F" for a in ticks)
    kinds = ("F", *("B" * backward), *("W" * schedule.has_weight_passes))
    for i in range(schedule.micro_batches):
        for stage in range(schedule.stages):
            for kind in kinds:
                if Action(kind, stage, i) not in ticks:
                    raise InvalidValueError(
                        f"Schedule: {_describe_action(Action(kind, stage, i))} is never done in its {schedule.ticks} ticks."
                    )
    for tick, _, action in entries:
        for needed, same in list_prerequisites(action, schedule.stages):
            if ticks[needed] > tick - (not same):
                raise InvalidValueError(
                    f"Schedule: {_describe_action(action)} in tick {tick} needs {_describe_action(needed)}, which is done in tick "
                    f"{ticks[needed]}" + ("." if same else ", and arrives in the one after that.")
                )


def _schedule_earliest(orders: Sequence[Sequence[Action]], stages: int) -> dict[Action, int]:
    """Return the earliest tick of each action if each device keeps its order.

    Raises:
      ValueError: If devices wait for each other forever.
    """
    ticks: dict[Action, int] = {}
    done = [0] * len(orders)
    tick = 0
    while any(n < len(order) for n, order in zip(done, orders, strict=True)):
        has_progress = False
        for device, order in enumerate(orders):
            lane_start = 0
            while done[device] < len(order):
                action = order[done[device]]
                lane = LANES.find(action.kind, lane_start)
                ready = all(
                    ticks.get(need, tick + 1) <= tick - (not same)
                    for need, same in list_prerequisites(action, stages)
                )
                if lane < 0 or not ready:
                    break
                if action in ticks:
                    raise InvalidValueError(
                        f"Schedule: {_describe_action(action)} is in the table twice."
                    )
                ticks[action] = tick
                done[device] += 1
                lane_start, has_progress = lane + 1, True
        if not has_progress:
            _raise_deadlock(orders, done, ticks, stages, tick)
        tick += 1
    return ticks


def _raise_deadlock(
    orders: Sequence[Sequence[Action]],
    done: list[int],
    ticks: dict[Action, int],
    stages: int,
    tick: int,
) -> None:
    waits = []
    for device, order in enumerate(orders):
        if done[device] < len(order):
            action = order[done[device]]
            missing = next(n for n, _ in list_prerequisites(action, stages) if n not in ticks)
            waits.append(
                f"device {device}: {_describe_action(action)} waits for {_describe_action(missing)}"
            )
    raise InvalidValueError(
        f"Schedule: the table deadlocks; in tick {tick} no device can go on. {'; '.join(waits)}."
    )
