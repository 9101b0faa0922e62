"""Test guarantees and errors of pipeline tables."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import rounds
from meshflow.distribute.parallel.named_schedules import NAMED_SCHEDULES, resolve_schedule
from meshflow.distribute.parallel.schedule import Action, Schedule
from meshflow.distribute.parallel.schedule_columns import build_columns

TRAINING = sorted(NAMED_SCHEDULES) + [
    "interleaved:1",
    "interleaved:2",
    "interleaved:3",
]
SIZES = {"devices": st.integers(1, 6), "micro_batches": st.integers(1, 12)}


@settings(max_examples=rounds(60, 1000), deadline=None)
@given(name=st.sampled_from(TRAINING), **SIZES)
def test_named_tables_do_everything_once_and_in_order(name, devices, micro_batches):
    table = resolve_schedule(name, devices, micro_batches)
    when = table.map_ticks()
    kinds = "FBW" if name == "zero_bubble" else "FB"
    assert len(when) == table.stages * micro_batches * len(kinds)
    for action, tick in when.items():
        stage, i = action.stage, action.micro_batch
        if action.kind == "F" and stage:
            assert when[Action("F", stage - 1, i)] < tick
        if action.kind == "B":
            assert when[Action("F", stage, i)] <= tick
            if stage < table.stages - 1:
                assert when[Action("B", stage + 1, i)] < tick
        if action.kind == "W":
            assert when[Action("B", stage, i)] <= tick
    assert table.count_held_inputs() <= micro_batches * table.chunks
    assert 0 <= table.compute_bubble() < 1


@settings(max_examples=rounds(40, 500), deadline=None)
@given(name=st.sampled_from(TRAINING), **SIZES)
def test_table_round_trips_through_text(name, devices, micro_batches):
    table = resolve_schedule(name, devices, micro_batches)
    again = Schedule.from_csv(table.to_csv(), exact=True)
    np.testing.assert_array_equal(again.table, table.table)
    # In-order execution takes the same time and has the same result.
    packed = Schedule.from_csv(table.to_csv())
    assert packed.ticks <= table.ticks
    assert set(packed.map_ticks()) == set(table.map_ticks())


@settings(max_examples=rounds(40, 500), deadline=None)
@given(devices=st.integers(1, 8), micro_batches=st.integers(1, 40), chunks=st.integers(1, 4))
def test_bubbles_are_those_of_theory(devices, micro_batches, chunks):
    p, m = devices, micro_batches
    paired, gpipe = resolve_schedule("1f1b", p, m), resolve_schedule("gpipe", p, m)
    theory = (p - 1) / (m + p - 1)
    assert paired.compute_bubble() == pytest.approx(theory)
    assert gpipe.compute_bubble() == pytest.approx(theory)
    assert (paired.ticks, gpipe.ticks) == (m + 2 * (p - 1), 2 * (m + p - 1))
    assert (paired.count_held_inputs(), gpipe.count_held_inputs()) == (min(m, 2 * p - 1), m)
    assert resolve_schedule("classic_1f1b", p, m).count_held_inputs() == min(m, p)
    # Complete groups of p micro-batches.
    several = resolve_schedule(f"interleaved:{chunks}", p, m * p)
    assert several.compute_bubble() == pytest.approx((p - 1) / (chunks * m * p + p - 1))
    assert resolve_schedule("forward", p, m).ticks == m + p - 1


def test_the_numbers_of_the_page():
    assert resolve_schedule("1f1b", 4, 32).compute_bubble() == pytest.approx(0.0857, abs=1e-4)
    assert resolve_schedule("classic_1f1b", 4, 8).compute_bubble() == pytest.approx(0.4)
    assert resolve_schedule("classic_1f1b", 4, 32).compute_bubble() == pytest.approx(
        0.294, abs=1e-3
    )
    assert resolve_schedule("zero_bubble", 8, 64).compute_bubble() == pytest.approx(
        0.0352, abs=1e-4
    )
    assert resolve_schedule("zero_bubble", 16, 64).compute_bubble() == pytest.approx(
        0.0725, abs=1e-4
    )


@settings(max_examples=rounds(40, 500), deadline=None)
@given(devices=st.integers(1, 10), more=st.integers(0, 40))
def test_weight_passes_fill_all_but_the_first_way_and_the_last(devices, more):
    p, m = devices, max(2 * (devices - 1), 1) + more
    table = resolve_schedule("zero_bubble", p, m)
    # The last device cannot start before p - 1 passes, so this is the minimum.
    assert table.compute_bubble() == pytest.approx((p - 1) / (3 * m + p - 1))
    assert (table.ticks, table.count_held_inputs()) == (m + 2 * (p - 1), min(m, 2 * p - 1))
    assert build_columns(table).gradients <= min(m, 2 * p - 1)


@settings(max_examples=rounds(40, 500), deadline=None)
@given(**SIZES)
def test_separate_weight_passes_are_never_slower(devices, micro_batches):
    split, whole = (resolve_schedule(n, devices, micro_batches) for n in ("zero_bubble", "1f1b"))
    assert split.compute_bubble() <= whole.compute_bubble() + 1e-9


@settings(max_examples=rounds(40, 500), deadline=None)
@given(name=st.sampled_from([*TRAINING, "forward", "forward:2"]), **SIZES)
def test_buffer_slots_are_not_overwritten_before_their_last_read(name, devices, micro_batches):
    """Simulate the loop over columns: every read returns the intended micro-batch."""
    table = resolve_schedule(name, devices, micro_batches)
    columns = build_columns(table)
    inputs, gradients, done = {}, {}, 0
    last = table.stages - 1
    for tick in range(table.ticks):
        sent = []
        for device in range(devices):
            lanes = range(columns.weights.input.shape[1])
            places = [(columns.forward, (tick, device)), (columns.backward, (tick, device))]
            places += [(columns.weights, (tick, lane, device)) for lane in lanes]
            for kind, (work, place) in zip("FBWW", places):
                i = int(work.micro_batch[place])
                if i < 0:
                    continue
                done += 1
                stage = int(work.chunk[place]) * devices + device
                if stage:
                    assert inputs[device, int(work.input[place])] == (stage, i)
                if kind != "F" and stage < last:
                    assert gradients[device, int(work.gradient[place])] == (stage, i)
                if kind == "F" and stage < last:
                    sent.append((inputs, columns.keep_input, stage + 1, i))
                if kind == "B" and stage:
                    sent.append((gradients, columns.keep_gradient, stage - 1, i))
        for slots, keep, stage, i in sent:
            device = stage % devices
            slots[device, int(keep[tick, device])] = (stage, i)
    assert columns.inputs <= table.count_held_inputs()
    # The last stage's forward passes are a part of its backward passes.
    assert done == len(table.map_ticks()) - micro_batches * table.has_backward_passes


def order(text):
    return [row.split() for row in text.split("|")]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            "0F0 0B0|1B0 1F0",
            "deadlocks; in tick 1 .* backward pass of micro-batch 0 in stage 1 waits for",
        ),
        (
            "0F0 0B0 0F1 0B1|1F0 1B0 1F1",
            "device 0: .* waits for the backward pass of micro-batch 1 in stage 1",
        ),
        ("0F0 0F1 0B0|1F0 1B0", "micro-batch 1 in stage 0 is never done"),
        ("1F0|0F0", "1F0 is in the row of device 0, but with 2 devices stage 1 lies on device 1"),
        ("0F0 0F0|1F0", "micro-batch 0 in stage 0 is in the table twice"),
        ("0X0|1F0", "'0X0' in cell 0 of device 0 is no action"),
        ("F0|1F0", "'F0' in cell 0"),
        ("|", "empty"),
        ("0F0 2F0|1F0", "3 stages, which 2 devices"),
    ],
)
def test_tables_that_cannot_run_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        Schedule.from_rows(order(rows))


def test_use_before_arrival_is_refused():
    with pytest.raises(
        ValueError,
        match="forward pass of micro-batch 0 in stage 1 in tick 0 needs the forward pass of micro-batch 0 in stage 0, "
        "which is done in tick 0, and arrives in the one after that",
    ):
        Schedule.from_csv("0F0,,0B0\n1F0,1B0,\n", exact=True)
    with pytest.raises(ValueError, match="both in tick 0 of device 0; a tick has one forward"):
        Schedule.from_csv("0F0 0F1,0B0,0B1\n", exact=True)
    table = resolve_schedule("1f1b", 2, 2).table.copy()
    table[0, 0, 0] = 7, 0
    with pytest.raises(ValueError, match="micro-batch 7 in stage 0, but there are 2 micro-batches"):
        Schedule(2, 1, 2, table)


def test_files_and_tables_are_for_their_sizes(tmp_path):
    path = tmp_path / "table.csv"
    text = "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n"
    path.write_text(text)
    table = resolve_schedule(str(path), 2, 2)
    assert table.ticks == 4  # forward and backward passes share ticks where they can
    for spec in (path, text, table.to_rows()):
        np.testing.assert_array_equal(resolve_schedule(spec, 2, 2).table, table.table)
    with pytest.raises(ValueError, match="'banana' in cell 1 of device 1"):
        resolve_schedule("0F0,0B0\n1F0,banana", 2, 1)
    for rows in (["0F0,0B0"], [["0F0", 3]], b"0F0,0B0", 7, tmp_path):
        with pytest.raises(ValueError, match=r"expected the name|Is a directory"):
            resolve_schedule(rows, 1, 1)
    assert resolve_schedule(table, 2, 2) is table
    with pytest.raises(
        ValueError, match="for 2 devices and 2 micro-batches, the pipeline has 4 and 2"
    ):
        resolve_schedule(str(path), 4, 2)
    for name in ("2f2b", "interleaved:0", "interleaved:x", "gpipe:2"):
        with pytest.raises(ValueError, match="is none of 1f1b, gpipe"):
            resolve_schedule(name, 2, 2)
    with pytest.raises(ValueError, match="both must be at least 1"):
        resolve_schedule("gpipe", 2, 0)
