"""2,000 JPEG files of 256x256: decode, resize to 128x128, random flip, scale, batch(32), against the peers.

    .venv/bin/python benchmarks/jpeg_pipeline.py --peers .venv-peers/bin/python

Prints images per second, medians of interleaved passes, and appends them to RESULTS.md.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

COUNT, ROUNDS, SIDE, BATCH = 2_000, 3, 128, 32


def write_files(folder):
    """Generate smooth images with some noise, which compress about as well as photographs."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for i in range(COUNT):
        coarse = Image.fromarray(rng.integers(0, 255, (12, 12, 3), np.uint8))
        image = np.asarray(coarse.resize((256, 256), Image.BICUBIC), np.int16)
        image = np.clip(image + rng.normal(0, 8, image.shape), 0, 255).astype(np.uint8)
        Image.fromarray(image).save(folder / f"{i:04}.jpg", quality=90)


def tensorflow_names(tf, paths):
    def load(path):
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        image = tf.image.resize(image, [SIDE, SIDE]) / 255.0
        return tf.image.random_flip_left_right(image)

    data = tf.data.Dataset.from_tensor_slices(paths)
    return (
        data.map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE)
    )


class Files:
    """The files as a dataset of PyTorch's."""

    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        import torch
        from PIL import Image

        image = Image.open(self.paths[index]).convert("RGB").resize((SIDE, SIDE), Image.BILINEAR)
        found = torch.from_numpy(np.array(image)).float() / 255.0
        return found.flip(1) if torch.rand(()) < 0.5 else found


def pipeline(which, paths):
    if which == "torch":
        from torch.utils.data import DataLoader

        return DataLoader(Files(paths), BATCH, num_workers=os.cpu_count())
    if which == "tensorflow":
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        import tensorflow as tf
    else:
        import meshflow as tf
    return tensorflow_names(tf, paths)


def measure(which, folder):
    """Images per second of one pass, after a pass to warm up."""
    batches = pipeline(which, sorted(str(p) for p in Path(folder).glob("*.jpg")))
    rates = []
    for _ in range(3):
        start = time.perf_counter()
        count = sum(len(batch) for batch in batches)
        rates.append(count / (time.perf_counter() - start))
        assert count == COUNT
    return statistics.median(rates[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="Python of an environment made by peers.sh")
    parser.add_argument("--measure", nargs=2, help="for the benchmark's own processes")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return
    programs = {"meshflow": sys.executable}
    if options.peers:
        programs |= {"tensorflow": options.peers, "torch": options.peers}
    rates = {name: [] for name in programs}
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        for _ in range(ROUNDS):
            for name, python in programs.items():
                command = [python, __file__, "--measure", name, folder]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                rates[name].append(json.loads(done.stdout.splitlines()[-1]))
    own = statistics.median(rates["meshflow"])
    lines = [
        f"- {name}: {statistics.median(found):,.0f} images/s "
        f"(Meshflow {own / statistics.median(found):.2f} times that)"
        for name, found in rates.items()
    ]
    print("\n".join(lines))
    stamp = (
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores, {ROUNDS} rounds"
    )
    with open(Path(__file__).with_name("RESULTS.md"), "a") as file:
        file.write(f"\n## JPEG files ({stamp})\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
