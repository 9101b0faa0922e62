"""Checkpoints beside TensorFlow's: 100 MB in 16 variables, and 3,000 scalars, saved and restored.

    python benchmarks/checkpoints.py [--peer .venv-peers/bin/python] [--rounds 7] [--asynchronous]

Each round runs Meshflow and TensorFlow in turn, in processes that stay; medians are printed, and how they compare.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

WORK = """
import json, os, sys, time
import numpy as np
import {module} as tf

kinds = {{
    "100 MB": [tf.Variable(np.random.rand(1_638_400).astype("float32")) for _ in range(16)],
    "3,000 scalars": [tf.Variable(float(i)) for i in range(3000)],
}}
print("ready", flush=True)
for line in sys.stdin:
    kind, path = line.rstrip().split("\\t")
    checkpoint = tf.train.Checkpoint(v=kinds[kind])
    start = time.perf_counter()
    written = checkpoint.write(path)
    middle = time.perf_counter()
    status = checkpoint.read(written)
    kinds[kind][-1].numpy()
    end = time.perf_counter()
    status.assert_consumed()
    print(json.dumps([middle - start, end - middle]), flush=True)
"""


def begun(python, module):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    if module == "tensorflow":
        environment.pop("PYTHONPATH", None)
    process = subprocess.Popen(
        [python, "-c", WORK.format(module=module)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def beside(peer, rounds):
    """Medians of saving and restoring, of both."""
    with tempfile.TemporaryDirectory() as folder:
        workers = {
            "meshflow": begun(sys.executable, "meshflow"),
            "tensorflow": begun(peer, "tensorflow"),
        }
        for kind in ("100 MB", "3,000 scalars"):
            times = {name: [] for name in workers}
            for number in range(rounds + 1):
                for name, process in workers.items():
                    process.stdin.write(f"{kind}\t{folder}/{name}-{number % 2}\n")
                    process.stdin.flush()
                    found = json.loads(process.stdout.readline())
                    if number:  # the first one warms up
                        times[name].append(found)
            for index, what in enumerate(("saved", "restored")):
                ours, theirs = (
                    statistics.median(t[index] for t in times[name]) for name in workers
                )
                print(
                    f"{kind} {what}: {ours:.3f} s, TensorFlow {theirs:.3f} s, {ours / theirs:.2f} times"
                )
        for process in workers.values():
            process.stdin.close()
            process.wait()


def asynchronous(count):
    """How long training waits for a checkpoint of 1 GB that a thread writes."""
    import meshflow as tf

    variables = [tf.Variable(tf.ones([(1 << 28) // 16])) for _ in range(16)]

    @tf.function
    def step():
        for v in variables:
            v.assign_add(v * 0.5)
        return variables[0][0]

    checkpoint, options = (
        tf.train.Checkpoint(v=variables),
        tf.train.CheckpointOptions(enable_async=True),
    )
    timed = lambda work: (time.perf_counter(), work(), time.perf_counter())
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            float(step())
        plain, saves, called, next_steps = [], [], [], []
        for _ in range(count):
            for _ in range(3):
                start, _, end = timed(lambda: float(step()))
                plain.append(end - start)
            start, _, end = timed(lambda: checkpoint.write(f"{folder}/c", options))
            saves.append(end - start)
            start, _, end = timed(step)
            called.append(end - start)
            start, _, end = timed(lambda: float(step()))
            next_steps.append(end - start)
            checkpoint.sync()
        shown = {
            "a step": plain,
            "the call that saves": saves,
            "the call of the step after it": called,
            "until it and one more are done": next_steps,
        }
        for name, times in shown.items():
            print(f"1 GB in the background, {name}: {1e3 * statistics.median(times):.1f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", default=".venv-peers/bin/python")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--asynchronous", action="store_true")
    chosen = parser.parse_args()
    if chosen.asynchronous:
        asynchronous(chosen.rounds)
    else:
        beside(chosen.peer, chosen.rounds)
