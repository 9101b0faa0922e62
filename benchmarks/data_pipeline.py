"""60,000 uint8 images of 28x28: map(cast / 255), shuffle(10,000), batch(128), against the peers.

    .venv/bin/python benchmarks/data_pipeline.py --peers .venv-peers/bin/python

Prints thousands of images per second, medians of interleaved passes, and appends them to RESULTS.md.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

COUNT, ROUNDS = 60_000, 3


def images():
    return np.random.default_rng(0).integers(0, 255, (COUNT, 28, 28), np.uint8)


def tensorflow_names(tf):
    """The pipeline by elements, and batched before the map."""
    data = tf.data.Dataset.from_tensor_slices(images())

    def scaled(x):
        return tf.cast(x, tf.float32) / 255

    return {
        "map, shuffle, batch": data.map(scaled).shuffle(10_000).batch(128),
        "shuffle, batch, map": data.shuffle(10_000).batch(128).map(scaled),
    }


def torch_names():
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.from_numpy(images()))

    def stacked(rows):
        return torch.stack([r[0] for r in rows]).float() / 255

    return {"DataLoader": DataLoader(data, 128, shuffle=True, collate_fn=stacked)}


def measure(which):
    """Thousands of images per second of one pass, by pipeline."""
    if which == "torch":
        pipelines = torch_names()
    elif which == "tensorflow":
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        import tensorflow

        pipelines = tensorflow_names(tensorflow)
    else:
        import meshflow

        pipelines = tensorflow_names(meshflow)
    found = {}
    for name, pipeline in pipelines.items():
        rates = []
        for _ in range(3):
            start = time.perf_counter()
            count = sum(len(batch) for batch in pipeline)
            rates.append(count / (time.perf_counter() - start) / 1e3)
            assert count == COUNT
        found[name] = statistics.median(rates[1:])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="Python of an environment made by peers.sh")
    parser.add_argument("--measure", help="for the benchmark's own processes")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    rates = {}
    programs = {"meshflow": sys.executable}
    if options.peers:
        programs |= {"tensorflow": options.peers, "torch": options.peers}
    for _ in range(ROUNDS):
        for name, python in programs.items():
            done = subprocess.run(
                [python, __file__, "--measure", name], capture_output=True, text=True, check=True
            )
            for pipeline, rate in json.loads(done.stdout.splitlines()[-1]).items():
                rates.setdefault((name, pipeline), []).append(rate)
    own = statistics.median(rates["meshflow", "map, shuffle, batch"])
    lines = [
        f"- {name}, {pipeline}: {statistics.median(found):,.0f} thousand images/s "
        f"(Meshflow's map, shuffle, batch: {own / statistics.median(found):.1f} times that)"
        for (name, pipeline), found in rates.items()
    ]
    print("\n".join(lines))
    stamp = (
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores, {ROUNDS} rounds"
    )
    with open(Path(__file__).with_name("RESULTS.md"), "a") as file:
        file.write(f"\n## Input pipeline ({stamp})\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
