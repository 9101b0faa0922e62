"""Test reports of traces: parts of steps, waiting, verdicts; for CPUs, GPUs and TPUs, and for
damaged files."""

import gzip
import json

import numpy as np
import pytest

import helpers
import meshflow as tf
from meshflow.profiler import folders, page, terminal
from meshflow.profiler.breakdown import break_down
from meshflow.profiler.findings import list_findings
from meshflow.profiler.messages import ProfileRequest, ProfileResponse
from meshflow.profiler.programs import parse_instructions
from meshflow.profiler.report import Report, read_worker
from meshflow.profiler.traces import read_trace
from profiler import xspaces
from profiler.xspaces import event


def report(traces, **descriptions):
    read = {name: read_trace(content, name) for name, content in traces.items()}
    return Report("test", [read_worker(n, t, descriptions.get(n, {})) for n, t in read.items()])


def test_parts_sum_to_the_steps():
    for worker in report(xspaces.training(workers=3, cause="input")).workers:
        found = worker.breakdown
        assert len(found.steps) == 8
        np.testing.assert_allclose(sum(found.parts.values()), found.walls, rtol=1e-9)


@pytest.mark.parametrize("cause", ["input", "python", "callback", "compute", "compile"])
def test_a_slow_worker_is_named_with_the_reason(cause):
    for seed in range(helpers.rounds(20, 200)):
        slow = seed % 3
        made = report(xspaces.training(3, slow=slow, cause=cause, seed=seed))
        found = made.find_straggler()
        assert (found.worker, found.part) == (slow, cause)
        assert found.share == 1
        assert abs(found.excess / 1e6 - 10) < 1
        first = next(v for v in list_findings(made) if v.kind == "straggler")
        assert first.text.startswith(f"worker{slow} takes")


def test_equal_workers_have_no_straggler():
    for seed in range(20):
        assert report(xspaces.training(3, delay=0, seed=seed)).find_straggler() is None


@pytest.mark.parametrize("cause", ["input", "python", "compute", "compile", "communication"])
def test_a_worker_that_falls_behind_is_named_with_the_reason(cause):
    """Workers of parameter servers do not wait for each other."""
    part = {"communication": "comm:parameter servers"}.get(cause, cause)
    for seed in range(helpers.rounds(20, 200)):
        slow = seed % 3
        made = report(xspaces.closures(3, slow=slow, cause=cause, seed=seed))
        found = made.find_straggler()
        assert (found.worker, found.part) == (slow, part)
        assert abs(found.excess / 1e6 - 10) < 1 and abs(found.part_excess / 1e6 - 10) < 1
        first = next(v for v in list_findings(made) if v.kind == "straggler")
        assert first.title == f"Worker{slow} is slower than the others" and first.advice
        assert "100% of its steps are longer" in first.text
    for seed in range(20):
        assert report(xspaces.closures(3, delay=0, seed=seed)).find_straggler() is None


def test_alternating_threads_are_one_worker():
    """It exchanges while any of them does, and waits while all do."""
    once, twice = (
        report(xspaces.closures(1, threads=n, seed=1)).workers[0].breakdown for n in (1, 2)
    )
    assert len(once.steps) == len(twice.steps) == 12
    for name in ("compute", "input", "comm:parameter servers", "idle"):
        # A thread's first and last waits are not in a trace.
        found, expected = twice.parts[name][2:-1], once.parts[name][2:-1]
        np.testing.assert_allclose(found, expected, atol=1e4, err_msg=name)
        assert expected.min() > 0.9e6


def test_waiting_is_distinguished_from_sending():
    made = report(xspaces.training(2, slow=1, cause="input"))
    comm, waiting = made.get_part("comm")[1:] / 1e6, made.waiting_times[1:] / 1e6
    np.testing.assert_allclose(comm[:, 1], 2, atol=0.9)
    np.testing.assert_allclose(waiting[:, 0], 10, atol=1.5)
    assert np.all(waiting[:, 1] == 0)


@pytest.mark.parametrize(
    ("cause", "kind", "word"),
    [
        ("input", "input", "waiting for input"),
        ("callback", "host", "Logger"),
        ("compile", "recompiling", "train_step"),
        ("compute", "compute", "ffi_call"),
        ("communication", "communication", "all-reduce"),
    ],
)
def test_verdicts_of_one_worker(cause, kind, word):
    first = list_findings(report(xspaces.training(1, cause=cause)))[0]
    assert first.kind == kind
    assert word in first.text
    assert first.advice


def test_a_trace_without_steps():
    quiet = xspaces.space({"/host:CPU": {"python": [event("meshflow:input", 0, 1)]}})
    made = report({"a": quiet})
    assert list_findings(made)[0].kind == "none"
    assert "no step" in terminal.format_line(made)
    assert "No steps" in page.format_page(made)


def test_calls_represent_unnamed_steps():
    calls = [event("PjitFunction(step)", 10 * n, 4) for n in range(5)]
    calls += [event("PjitFunction(step)", 10 * n + 0.1, 3) for n in range(5)]
    found = break_down(read_trace(xspaces.space({"/host:CPU": {"python": calls}}), "a"))
    assert found.steps == [("step", n) for n in range(5)]


def test_devices_finish_after_the_host():
    known = {"hlo_module": "jit_f", "device_ordinal": 0}
    python, pool = [], []
    for n in range(4):
        python.append(event("train", n, 0.9, step_num=n, _r=1))
        python.append(event("PjitFunction(f)", n + 0.1, 0.5))
        pool.append(event("dot.1", 1 + 10 * n, 9, hlo_op="dot.1", run_id=n - 7, **known))
    trace = read_trace(xspaces.space({"/host:CPU": {"python": python, "pool": pool}}), "a")
    found = break_down(trace)
    np.testing.assert_allclose(found.walls / 1e6, 10)
    np.testing.assert_allclose(found.parts["compute"] / 1e6, 9)


def test_computation_hides_overlapping_phases_and_devices_are_averaged():
    known = {"hlo_module": "jit_f", "run_id": 1}
    pool = [
        event("dot.1", 0, 6, hlo_op="dot.1", device_ordinal=0, **known),
        event("all-reduce.1", 4, 6, hlo_op="all-reduce.1", device_ordinal=0, **known),
        event("dot.1", 0, 2, hlo_op="dot.1", device_ordinal=1, **known),
        event("while.1", 0, 10, hlo_op="while.1", device_ordinal=1, **known),
    ]
    python = [event("train", 0, 10, step_num=0, _r=1), event("meshflow:input", 1, 3)]
    trace = read_trace(xspaces.space({"/host:CPU": {"python": python, "pool": pool}}), "a")
    parts = {k: float(v[0]) / 1e6 for k, v in break_down(trace).parts.items()}
    assert parts == {
        "compute": 4.0,
        "comm:all-reduce": 2.0,
        "input": 1.0,
        "python": 3.0,
    }


def _accelerator(plane, lines):
    python = [event("train", 10 * n, 9, step_num=n, _r=1) for n in range(3)]
    return xspaces.space({"/host:CPU": {"python": python}, plane: lines})


def test_planes_of_gpus():
    kernels = [event("sm90_gemm", 10 * n, 4, hlo_op="dot.2", hlo_module="jit_f") for n in range(3)]
    sums = [event("ncclDevKernel_AllReduce_Sum_f32", 10 * n + 4, 2) for n in range(3)]
    copies = [event("MemcpyH2D", 10 * n + 6, 1) for n in range(3)]
    lines = {"Stream #7(Compute)": kernels, "Stream #8(NCCL)": sums, "Stream #9": copies}
    made = report({"a": _accelerator("/device:GPU:0", {**lines, "Source code": kernels})})
    parts = made.workers[0].breakdown.parts
    assert {k: round(float(v[0] / 1e6)) for k, v in parts.items() if v[0]} == {
        "compute": 4,
        "comm:all-reduce": 2,
        "comm:copy between host and device": 1,
        "python": 2,
    }
    assert made.workers[0].operations[0].name == "dot.2"


def test_planes_of_tpus():
    ops = [event("%fusion.3 = f32[8]{0} fusion(f32[8]{0} %p)", 10 * n, 5) for n in range(3)]
    sums = [event("%all-gather.1 = f32[8]{0} all-gather(%p)", 10 * n + 5, 2) for n in range(3)]
    modules = [event("jit_f", 10 * n, 9) for n in range(3)]
    trace = _accelerator("/device:TPU:0", {"XLA Ops": ops + sums, "XLA Modules": modules})
    parts = report({"a": trace}).workers[0].breakdown.parts
    assert round(float(parts["compute"][0] / 1e6)) == 5
    assert round(float(parts["comm:all-gather"][0] / 1e6)) == 2


def test_files_written_by_callbacks_are_checkpoints():
    python = [
        event("train", 0, 20, step_num=0, _r=1),
        event("meshflow:callback/ModelCheckpoint", 2, 10),
        event("meshflow:checkpoint/save", 3, 8),
    ]
    trace = read_trace(xspaces.space({"/host:CPU": {"python": python}}), "a")
    assert trace.details["callback"] == {"ModelCheckpoint": 2e6}
    assert trace.details["checkpoint"] == {"save": 8e6}
    parts = {k: float(v[0]) / 1e6 for k, v in break_down(trace).parts.items() if v[0]}
    assert parts == {"checkpoint": 8, "callback": 2, "python": 10}


def test_json_equals_the_report():
    events = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/host:CPU"}},
        {"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "python"}},
        {
            "ph": "X",
            "pid": 1,
            "tid": 2,
            "name": "train",
            "ts": 0,
            "dur": 9,
            "args": {"step_num": 4},
        },
        {"ph": "X", "pid": 1, "tid": 2, "name": "meshflow:input", "ts": 2, "dur": 3},
    ]
    content = gzip.compress(json.dumps({"traceEvents": events}).encode())
    found = break_down(read_trace(content, "a.trace.json.gz"))
    assert found.steps == [("train", 4)]
    assert (float(found.parts["input"][0]), float(found.walls[0])) == (3000.0, 9000.0)


HLO = """HloModule jit_step

%fused (p: f32[8,4]) -> f32[8,4] {
  %p = f32[8,4]{1,0} parameter(0)
  ROOT %tanh.1 = f32[8,4]{1,0} tanh(%p)
}

ENTRY %main (a: f32[8,16], b: f32[16,4]) -> f32[8,4] {
  %a = f32[8,16]{1,0} parameter(0)
  %b = f32[16,4]{1,0} parameter(1)
  %dot.1 = f32[8,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/model/wide/jvp()/dot_general"}
  %ffi_call.2 = f32[8,4]{1,0} custom-call(%a, %b), custom_call_target="meshflow_onednn", metadata={op_name="jit(step)/gradient/model/wide/transpose(jvp())/ffi_call"}, backend_config={descriptor = dense<[67, 2, 8, 16, 16, 1, 16, 4, 4, 1, 8, 4, 4, 1, 0]> : tensor<15xi64>}
  %all-reduce.3 = f32[8,4]{1,0} all-reduce(%ffi_call.2), replica_groups={{0,2},{1,3}}, to_apply=%add, metadata={op_name="jit(step)/(gradient/model/wide/transpose(jvp())/x:gradient/model/head/transpose(jvp())/y)"}
  ROOT %f = f32[8,4]{1,0} fusion(%all-reduce.3), kind=kLoop, calls=%fused, metadata={op_name="jit(step)/optimizer/tanh"}
}
"""


def test_instructions_are_attributed_to_layers():
    table = parse_instructions(HLO, {"batch": 2, "model": 2})
    assert set(table) == {"dot.1", "ffi_call.2", "all-reduce.3", "f"}
    layers = {name: (one["layer"], one["backward"]) for name, one in table.items()}
    assert layers == {
        "dot.1": ("model/wide", False),
        "ffi_call.2": ("model/wide", True),
        "all-reduce.3": ("several layers", True),
        "f": ("optimizer", False),
    }
    assert [table[n]["flops"] for n in ("dot.1", "ffi_call.2", "f")] == [1024, 1024, 32]
    assert table["ffi_call.2"]["what"] == "matrix product"
    assert table["all-reduce.3"]["collective"] == {
        "kind": "all-reduce",
        "bytes": 128,
        "sent": 128,
        "axes": ["batch"],
        "group": 2,
    }


def describe_profile(**own):
    return {"format": 1, "version": "0", "worker": "", "programs": {}, "memory": [], **own}


def test_folders_of_profiles(tmp_path):
    programs = {
        "jit_train_step": parse_instructions(HLO.replace("ffi_call.2", "ffi_call.1"), {"b": 4})
    }
    place = xspaces.write(
        tmp_path,
        xspaces.training(2),
        worker1=describe_profile(worker="worker 1", programs=programs),
    )
    for given in (tmp_path, str(place)):
        found = folders.load_report(given)
        assert [w.name for w in found.workers] == ["worker0", "worker 1"]
        first = found.workers[1]
        assert first.operations[0].layer == "model/wide"
        # A ring of 2 sends 2 * 1 / 2 of 128 bytes in each of 8 steps.
        only = first.traffic[0]
        assert (only.axes, only.group, only.count, only.sent) == (("b",), 2, 8, 8 * 128)


def test_collectives_are_identified_by_their_programs(tmp_path):
    """Test instructions whose names suggest computation but which belong to collectives."""
    said = {"kind": "reduce-scatter", "bytes": 800, "sent": 400, "axes": ["data"], "group": 2}
    table = {"ffi_call.1": {"op": "reduce-scatter", "collective": said}}
    programs = {"jit_train_step": table}
    xspaces.write(tmp_path, xspaces.training(1), worker0=describe_profile(programs=programs))
    (worker,) = folders.load_report(tmp_path).workers
    assert {t.kind: t.sent for t in worker.traffic} == {"reduce-scatter": 8 * 400, "all-reduce": 0}
    assert (worker.breakdown.parts["comm:reduce-scatter"] >= 5 * xspaces.MS).all()
    assert not worker.breakdown.parts["compute"].any()


def test_some_traces_are_broken(tmp_path):
    traces = xspaces.training(3)
    traces["worker1"] = traces["worker1"][:-900]
    traces["worker2"] = b""
    xspaces.write(tmp_path, traces)
    found = folders.load_report(tmp_path)
    assert [w.name for w in found.workers] == ["worker0"]
    assert "cut off" in found.missing["worker1"]
    assert "empty" in found.missing["worker2"]


def test_errors_of_folders(tmp_path):
    with pytest.raises(tf.errors.NotFoundError, match="There is no profile in"):
        folders.load_report(tmp_path)
    place = xspaces.write(tmp_path, {"a": b"no trace at all"}, a=describe_profile())
    with pytest.raises(tf.errors.DataLossError, match=r"a\.xplane\.pb cannot be read"):
        folders.load_report(tmp_path)
    (place / "a.meshflow.json").write_text(json.dumps(describe_profile(format=99, version="9.9")))
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"Meshflow 9\.9 in format 99"):
        folders.load_report(tmp_path)
    (place / "a.meshflow.json").write_text("{")
    with pytest.raises(tf.errors.DataLossError, match="Delete it"):
        folders.load_report(tmp_path)


def test_comparison_names_slower_parts():
    before, after = (report(xspaces.training(2, cause=c, slow=1)) for c in ("none", "compute"))
    text, (heads, rows) = terminal.compare(before, after)
    assert "slower" in text
    assert [row[0] for row in rows][-1] == "step"
    assert {"computing", "all-reduce"} <= {row[0] for row in rows}
    assert len({len(row) for row in rows} | {len(heads)}) == 1
    assert terminal.compare(before, before)[0] == "Steps take as long as before."


def test_steps_of_workers_that_repeat_their_numbers():
    def worker(began, count):
        steps = [event("train", 10 * n, 9, step_num=n % 3, _r=1) for n in range(count)]
        return xspaces.space({"/host:CPU": {"python": steps}}, began)

    made = report({"a": worker(0, 9), "b": worker(31_000_000, 6)})
    # The second worker started three steps later.
    assert made.rows[:, 1].tolist() == [-1, -1, -1, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("count", [0, 1])
def test_a_worker_may_have_no_step_after_the_first(count):
    def worker(count):
        steps = [event("train", 10 * n, 9, step_num=n, _r=1) for n in range(count)]
        return xspaces.space({"/host:CPU": {"python": steps}})

    made = report({"a": worker(9), "b": worker(count)})
    assert made.find_straggler() is None
    assert [f.kind for f in list_findings(made)] == [
        f.kind for f in list_findings(report({"a": worker(9)}))
    ]
    assert terminal.format_line(made) and page.format_page(made)


def test_messages_round_trip():
    asked = ProfileRequest(5, 3, 1, 0, 2**62, "gs://a/b", "now", "host", True)
    assert ProfileRequest.from_bytes(asked.to_bytes()) == asked
    answer = ProfileResponse(False, {".xplane.pb": b"\x00\xff", "worker": b"worker 1"})
    assert ProfileResponse.from_bytes(answer.to_bytes()) == answer
    with pytest.raises(tf.errors.DataLossError):
        ProfileResponse.from_bytes(answer.to_bytes()[:-3])
