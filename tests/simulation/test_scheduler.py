"""Test the scheduler of simulated threads."""

import threading
import time

import pytest

from simulation import scheduler


def test_real_threads_keep_the_real_clock(monkeypatch):
    """A thread of an earlier test may call a replaced module while a simulation runs."""
    here = scheduler.World(0)
    monkeypatch.setattr(scheduler.World, "current_world", here)
    measured = []

    def sleep_outside():
        scheduler.TIME.sleep(0.001)
        measured.append(scheduler.TIME.monotonic())

    def simulate():
        thread = threading.Thread(target=sleep_outside)
        thread.start()
        thread.join()
        scheduler.TIME.sleep(1000.0)
        measured.append(scheduler.TIME.monotonic())

    started = time.monotonic()
    here.run(simulate)
    assert started < measured[0] <= time.monotonic()
    assert measured[1] == pytest.approx(scheduler.START + 1000.0)
