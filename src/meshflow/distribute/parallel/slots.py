"""A schedule as columns of numbers that a loop reads: what to do in a tick, and where what arrives is kept."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from meshflow.distribute.parallel.schedule import KINDS, LANES, Action, Schedule

__all__ = ["Columns", "columns_of"]


class Work(NamedTuple):
    """What each device does of one kind, all int32 [ticks, devices]; weight passes are [ticks, lanes, devices].

    Attributes:
      micro_batch: the micro-batch, -1 for nothing.
      chunk: which of the device's stages.
      input: the slot of the stage's input.
      gradient: the slot of its output's gradient.
      kept: the slot of what a backward pass keeps for the weight pass.
    """

    micro_batch: np.ndarray
    chunk: np.ndarray
    input: np.ndarray
    gradient: np.ndarray
    kept: np.ndarray


class Columns(NamedTuple):
    """A schedule for the loop that runs it.

    Attributes:
      forward: the forward passes; those of the last stage are left out where a backward pass, which
        computes them again, follows.
      backward: the backward passes.
      weights: the weight passes.
      keep_input: int32 [ticks, devices], the slot for the input that arrives from the left after the tick;
        one that nobody reads (number `inputs`) for what is of no use.
      keep_gradient: the same for gradients from the right.
      inputs: how many slots for inputs a device needs.
      gradients: how many for gradients.
      kept: how many for what weight passes need.
    """

    forward: Work
    backward: Work
    weights: Work
    keep_input: np.ndarray
    keep_gradient: np.ndarray
    inputs: int
    gradients: int
    kept: int


_Key = tuple[int, int]


def _colored(lives: Iterable[tuple[int, int, _Key]]) -> tuple[dict[_Key, int], int]:
    """Slots for values that live from one tick to another, as few as can be."""
    slots: dict[_Key, int] = {}
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    count = 0
    for first, last, key in sorted(lives):
        while busy and busy[0][0] < first:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            free, count = [count], count + 1
        slots[key] = heapq.heappop(free)
        heapq.heappush(busy, (last, slots[key]))
    return slots, count


def _of_weight_passes(schedule: Schedule) -> tuple[dict[_Key, int], int]:
    """Slots from backward passes to weight passes."""
    when = schedule.when()
    lives: list[list[tuple[int, int, _Key]]] = [[] for _ in range(schedule.devices)]
    for action, tick in when.items():
        if action.kind == "B":
            ends = when[action._replace(kind="W")]
            key = action.stage, action.micro_batch
            lives[action.stage % schedule.devices].append((tick, ends, key))
    return _slots(lives)


def _slots(lives: Iterable[Iterable[tuple[int, int, _Key]]]) -> tuple[dict[_Key, int], int]:
    """Slots for what lives on each device, and how many of them a device has."""
    slots: dict[_Key, int] = {}
    count = 0
    for of_device in lives:
        found, needed = _colored(of_device)
        slots |= found
        count = max(count, needed)
    return slots, count


def _kept(schedule: Schedule, gradients: bool, keeps: bool) -> tuple[dict[_Key, int], int]:
    """Slots by (stage, micro-batch), and how many a device has."""
    when = schedule.when()
    last = schedule.stages - 1
    lives: list[list[tuple[int, int, _Key]]] = [[] for _ in range(schedule.devices)]
    for stage, i, arrives, last_use in schedule.lifetimes():
        # Weight passes have what they need kept apart, or read it again.
        ends = when[Action("B", stage, i)] if keeps else last_use
        if gradients:
            if stage == last or Action("B", stage + 1, i) not in when:
                continue
            arrives = when[Action("B", stage + 1, i)] + 1
        elif stage == 0:
            continue
        lives[stage % schedule.devices].append((arrives, ends, (stage, i)))
    return _slots(lives)


def columns_of(schedule: Schedule, keeps: bool = False) -> Columns:
    """The columns of a schedule.

    Args:
      schedule: the schedule.
      keeps: whether backward passes keep what weight passes need, instead of computing it again.
    """
    inputs, input_count = _kept(schedule, False, keeps)
    gradients, gradient_count = _kept(schedule, True, keeps)
    kept, kept_count = _of_weight_passes(schedule) if keeps else ({}, 0)
    shape = schedule.ticks, schedule.devices
    # As many lanes of weight passes as any tick has need of.
    used = (schedule.table[:, :, LANES.index("W") :, 0] >= 0).sum(axis=2)
    several = shape[0], max(int(used.max()), 1), shape[1]
    work = {
        kind: Work(
            np.full(size, -1, np.int32),
            np.zeros(size, np.int32),
            np.full(size, input_count, np.int32),
            np.full(size, gradient_count, np.int32),
            np.full(size, kept_count, np.int32),
        )
        for kind, size in zip(KINDS, (shape, shape, several), strict=True)
    }
    filled = np.zeros(shape, np.int32)
    keep_input = np.full(shape, input_count, np.int32)
    keep_gradient = np.full(shape, gradient_count, np.int32)
    when = schedule.when()
    last = schedule.stages - 1
    for action, tick in when.items():
        kind, stage, i = action.kind, action.stage, action.micro_batch
        place: tuple[int, ...] = tick, stage % schedule.devices
        if kind == "F" and stage < last:
            keep_input[tick, (stage + 1) % schedule.devices] = inputs[stage + 1, i]
        if kind == "B" and stage > 0:
            keep_gradient[tick, (stage - 1) % schedule.devices] = gradients[stage - 1, i]
        if kind == "F" and stage == last and Action("B", stage, i) in when:
            continue
        if kind == "W":
            filled[place] += 1
            place = tick, int(filled[place]) - 1, place[1]
        columns = work[kind]
        columns.micro_batch[place] = i
        columns.chunk[place] = stage // schedule.devices
        columns.input[place] = inputs.get((stage, i), input_count)
        columns.gradient[place] = gradients.get((stage, i), gradient_count)
        columns.kept[place] = kept.get((stage, i), kept_count)
    return Columns(
        work["F"],
        work["B"],
        work["W"],
        keep_input,
        keep_gradient,
        input_count,
        gradient_count,
        kept_count,
    )
