"""Conversion of a schedule into arrays for the pipeline's loop: the work of each tick, and slots."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from meshflow.distribute.parallel.schedule import LANES, PASS_KINDS, Action, Schedule


class WorkColumns(NamedTuple):
    """Work of one kind of pass, for each tick and device.

    All arrays are int32 [ticks, devices], or [ticks, lanes, devices] for weight passes.

    Attributes:
      micro_batch: Index of the micro-batch, -1 if there is no work.
      chunk: Index among the device's stages.
      input: Slot of the stage's input.
      gradient: Slot of the gradient of the stage's output.
      residual: Slot of the residuals that a forward or backward pass keeps for a later pass.
    """

    micro_batch: np.ndarray
    chunk: np.ndarray
    input: np.ndarray
    gradient: np.ndarray
    residual: np.ndarray


class ScheduleColumns(NamedTuple):
    """A schedule as arrays for the pipeline's loop.

    Attributes:
      forward: Forward passes. Those of the last stage are left out if a backward pass, which
        recomputes them, follows.
      backward: Backward passes.
      weights: Weight passes.
      keep_input: int32 [ticks, devices], the slot for the input that arrives from the previous
        stage after the tick. The slot with index `inputs` is never read; it takes values that are
        not needed.
      keep_gradient: The same for gradients that arrive from the next stage.
      has_sends: bool [2, ticks], whether any device sends values to the next stage after the tick,
        and whether any sends gradients to the previous one.
      inputs: Number of slots for inputs on each device.
      gradients: Number of slots for gradients.
      residuals: Number of slots for residuals.
    """

    forward: WorkColumns
    backward: WorkColumns
    weights: WorkColumns
    keep_input: np.ndarray
    keep_gradient: np.ndarray
    has_sends: np.ndarray
    inputs: int
    gradients: int
    residuals: int


_StageAndMicroBatch = tuple[int, int]


def _color_intervals(
    lifetimes: Iterable[tuple[int, int, _StageAndMicroBatch]],
) -> tuple[dict[_StageAndMicroBatch, int], int]:
    """Assign values with lifetimes (first tick, last tick, key) to the smallest number of slots."""
    slots: dict[_StageAndMicroBatch, int] = {}
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    count = 0
    for first, last, key in sorted(lifetimes):
        while busy and busy[0][0] < first:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            free, count = [count], count + 1
        slots[key] = heapq.heappop(free)
        heapq.heappush(busy, (last, slots[key]))
    return slots, count


def _assign_residual_slots(
    schedule: Schedule, first: str, last: str
) -> tuple[dict[_StageAndMicroBatch, int], int]:
    """Assign slots to the residuals that live from passes of one kind to those of another."""
    ticks = schedule.map_ticks()
    lifetimes: list[list[tuple[int, int, _StageAndMicroBatch]]] = [
        [] for _ in range(schedule.devices)
    ]
    for action, tick in ticks.items():
        # The last stage runs its forward pass in its backward pass.
        if action.kind == first and not (first == "F" and action.stage == schedule.stages - 1):
            ends = ticks[action._replace(kind=last)]
            key = action.stage, action.micro_batch
            lifetimes[action.stage % schedule.devices].append((tick, ends, key))
    return _assign_slots(lifetimes)


def _assign_slots(
    lifetimes: Iterable[Iterable[tuple[int, int, _StageAndMicroBatch]]],
) -> tuple[dict[_StageAndMicroBatch, int], int]:
    """Assign slots on each device, and return them with the largest number of slots of a device."""
    slots: dict[_StageAndMicroBatch, int] = {}
    count = 0
    for of_device in lifetimes:
        device_slots, needed = _color_intervals(of_device)
        slots |= device_slots
        count = max(count, needed)
    return slots, count


def _assign_buffer_slots(
    schedule: Schedule, gradients: bool, keeps_residuals: bool, stores_residuals: bool
) -> tuple[dict[_StageAndMicroBatch, int], int]:
    """Assign slots to inputs, or to gradients, by (stage, micro-batch)."""
    ticks = schedule.map_ticks()
    last = schedule.stages - 1
    lifetimes: list[list[tuple[int, int, _StageAndMicroBatch]]] = [
        [] for _ in range(schedule.devices)
    ]
    for stage, i, arrives, last_use in schedule.list_lifetimes():
        # Weight passes read residuals if backward passes keep them; otherwise they read the input
        # and the gradient again.
        ends = ticks[Action("B", stage, i)] if keeps_residuals else last_use
        if stores_residuals and not gradients and stage < last:
            ends = ticks[Action("F", stage, i)]
        if gradients:
            if stage == last or Action("B", stage + 1, i) not in ticks:
                continue
            arrives = ticks[Action("B", stage + 1, i)] + 1
        elif stage == 0:
            continue
        lifetimes[stage % schedule.devices].append((arrives, ends, (stage, i)))
    return _assign_slots(lifetimes)


def build_columns(schedule: Schedule, keeps: bool = False, stores: bool = False) -> ScheduleColumns:
    """Convert a schedule into columns.

    Args:
      schedule: The schedule.
      keeps: Whether backward passes keep residuals for weight passes, instead of recomputing them.
      stores: Whether forward passes store residuals for backward passes.

    Returns:
      The columns.
    """
    inputs, input_count = _assign_buffer_slots(schedule, False, keeps, stores)
    gradients, gradient_count = _assign_buffer_slots(schedule, True, keeps, stores)
    residuals: dict[_StageAndMicroBatch, int] = {}
    residual_count = 0
    if keeps or stores:
        residuals, residual_count = _assign_residual_slots(schedule, *("BW" if keeps else "FB"))
    shape = schedule.ticks, schedule.devices
    # Use only as many lanes of weight passes as the busiest tick needs.
    used = (schedule.table[:, :, LANES.index("W") :, 0] >= 0).sum(axis=2)
    lanes_shape = shape[0], max(int(used.max()), 1), shape[1]
    work = {
        kind: WorkColumns(
            np.full(size, -1, np.int32),
            np.zeros(size, np.int32),
            np.full(size, input_count, np.int32),
            np.full(size, gradient_count, np.int32),
            np.full(size, residual_count, np.int32),
        )
        for kind, size in zip(PASS_KINDS, (shape, shape, lanes_shape), strict=True)
    }
    filled = np.zeros(shape, np.int32)
    keep_input = np.full(shape, input_count, np.int32)
    keep_gradient = np.full(shape, gradient_count, np.int32)
    ticks = schedule.map_ticks()
    last = schedule.stages - 1
    for action, tick in ticks.items():
        kind, stage, i = action.kind, action.stage, action.micro_batch
        index: tuple[int, ...] = tick, stage % schedule.devices
        if kind == "F" and stage < last:
            keep_input[tick, (stage + 1) % schedule.devices] = inputs[stage + 1, i]
        if kind == "B" and stage > 0:
            keep_gradient[tick, (stage - 1) % schedule.devices] = gradients[stage - 1, i]
        if kind == "F" and stage == last and Action("B", stage, i) in ticks:
            continue
        if kind == "W":
            filled[index] += 1
            index = tick, int(filled[index]) - 1, index[1]
        columns = work[kind]
        columns.micro_batch[index] = i
        columns.chunk[index] = stage // schedule.devices
        columns.input[index] = inputs.get((stage, i), input_count)
        columns.gradient[index] = gradients.get((stage, i), gradient_count)
        columns.residual[index] = residuals.get((stage, i), residual_count)
    return ScheduleColumns(
        work["F"],
        work["B"],
        work["W"],
        keep_input,
        keep_gradient,
        np.stack([(keep_input < input_count).any(1), (keep_gradient < gradient_count).any(1)]),
        input_count,
        gradient_count,
        residual_count,
    )
