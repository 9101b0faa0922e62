"""Test the watchdog of launched jobs, at times of its own."""

import types

import pytest

from meshflow.distribute.cluster import supervision


@pytest.fixture
def clock(monkeypatch):
    found = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr(supervision, "time", types.SimpleNamespace(monotonic=lambda: found.now))
    return found


@pytest.fixture
def supervisor():
    """Return a supervisor of two workers that have done two steps, without processes."""
    made = object.__new__(supervision.JobSupervisor)
    service = types.SimpleNamespace(poll=lambda: None)
    workers = [supervision.WorkerProgress() for _ in range(2)]
    vars(made).update(
        _watchdog=10.0, _problem=None, _check_time=100.0, _service=service, workers=workers
    )
    return made


def advance(clock, supervisor, seconds, reporting=()):
    """Check the workers after some seconds, in which some of them reported."""
    clock.now += seconds
    for index in reporting:
        supervisor.workers[index].record_report(2)
    supervisor.check_workers([0, 1])


@pytest.mark.parametrize("reporting", [[], [0, 1]])
def test_a_suspended_launcher_blames_no_worker(clock, supervisor, reporting):
    advance(clock, supervisor, 0.05, [0, 1])
    # Threads may read reports before the check.
    advance(clock, supervisor, 1000.0, reporting)
    advance(clock, supervisor, 0.05, [0, 1])
    # A worker that then hangs is found as before.
    advance(clock, supervisor, 4.0, [0])
    advance(clock, supervisor, 4.0, [0])
    with pytest.raises(supervision.WorkerFailureError, match="Worker 1 has given no sign of life"):
        advance(clock, supervisor, 4.0, [0])


def test_times_between_checks_are_no_pauses(clock, supervisor):
    supervisor._watchdog = 0.08
    advance(clock, supervisor, 0.05, [0, 1])
    advance(clock, supervisor, 0.05, [0])
    with pytest.raises(supervision.WorkerFailureError, match="Worker 1 has given no sign of life"):
        advance(clock, supervisor, 0.05, [0])
