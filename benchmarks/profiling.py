"""What profiles cost: a server that nobody asks, a trace that is taken, and opening a long one.

    .venv/bin/python benchmarks/profiling.py
    .venv/bin/python benchmarks/profiling.py --rounds 40 --steps 10000

The demo's CNN trains in turns without a profiler's server, with one, and while a trace is taken; processor time and time by the
clock of a step are medians of all rounds. Then a trace of many steps is read and its page written. Appends to RESULTS.md.
"""

import argparse
import datetime
import os
import platform
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import meshflow as tf
from meshflow.profiler import folders, server

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import train_digits

profiler = tf.profiler.experimental
BATCH, STEPS = 32, 12


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


class Steps(tf.keras.callbacks.Callback):
    """Measure the time of each step but the first."""

    def on_epoch_begin(self, epoch, logs=None):
        self.times, self.before = [], None

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter(), time.process_time()
        if self.before is not None:
            self.times.append((now[0] - self.before[0], now[1] - self.before[1]))
        self.before = now


def step_times(model, data) -> tuple[float, float]:
    """Milliseconds of a step by the clock and of processors, medians of an epoch."""
    steps = Steps()
    model.fit(*data, batch_size=BATCH, verbose=0, callbacks=[steps])
    wall, processors = zip(*steps.times, strict=True)
    return 1e3 * statistics.median(wall), 1e3 * statistics.mean(processors)


def costs(rounds: int) -> list[str]:
    """Lines about the server and about traces."""
    rng = np.random.default_rng(0)
    data = rng.random((STEPS * BATCH, 32, 32, 3), np.float32), rng.integers(0, 10, STEPS * BATCH)
    model = train_digits.build_model(8)
    model.compile("adam", "sparse_categorical_crossentropy")
    for _ in range(2):
        model.fit(*data, batch_size=BATCH, verbose=0)
    measured = {"no server": step_times, "idle server": served, "traced": traced}
    kinds: dict[str, list[tuple[float, float]]] = {name: [] for name in measured}
    for number in range(rounds):
        names = list(measured)
        # Each kind is as often the first of a round as the others.
        for name in names[number % 3 :] + names[: number % 3]:
            kinds[name].append(measured[name](model, data))
    lines, base = [], None
    for name, found in kinds.items():
        wall, processors = (statistics.median(v) for v in zip(*found, strict=True))
        base = base or (wall, processors)
        lines.append(
            f"- {name}: {wall:.2f} ms by the clock ({wall / base[0] - 1:+.1%}), {processors:.2f} ms of processors "
            f"({processors / base[1] - 1:+.1%})"
        )
    return lines


def served(model, data) -> tuple[float, float]:
    """Return `step_times` beside an idle server."""
    profiler.server.start(free_port())
    try:
        return step_times(model, data)
    finally:
        # Programs have it for their life.
        server._server.stop(None).wait()
        server._server = None


def traced(model, data) -> tuple[float, float]:
    """Return `step_times` while a trace is recorded and discarded."""
    profiler.start(tempfile.gettempdir())
    try:
        return step_times(model, data)
    finally:
        profiler.stop(save=False)


def opening(count: int) -> list[str]:
    """Lines about a trace of many steps of a small model."""
    model = tf.keras.Sequential([tf.keras.layers.Dense(16), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensors((tf.ones([8, 4]), tf.ones([8, 1]))).repeat()
    model.fit(data, steps_per_epoch=10, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        profiler.start(folder)
        model.fit(data, steps_per_epoch=count, verbose=0)
        profiler.stop()
        (place,) = folders.find_profiles(folder)
        began, used = time.perf_counter(), time.process_time()
        report = folders.load_report(place)
        page = folders.write_page(place, report)
        wall, processors = time.perf_counter() - began, time.process_time() - used
        trace = next(Path(place).glob("*.xplane.pb")).stat().st_size
        size = Path(page).stat().st_size
    assert len(report.rows) >= count - 1
    return [
        f"- {count:,} steps, a trace of {trace / 1e6:.0f} MB: read and its page of {size / 1e3:.0f} kB written in "
        f"{wall:.2f} s, {processors:.2f} s of processors"
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10_000)
    options = parser.parse_args()
    lines = costs(options.rounds) + opening(options.steps)
    print("\n".join(lines))
    stamp = f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores"
    with open(Path(__file__).with_name("RESULTS.md"), "a") as file:
        file.write(f"\n## Profiling ({stamp})\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
