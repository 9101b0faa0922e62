"""A memory-mapped array of 20 GB streamed through map(cast / 255), shuffle(1,000), batch(64).

    .venv/bin/python benchmarks/memory_map.py

The file is sparse and takes no place on the disk. Prints the rate and the most memory that was
resident, which must stay below 1 GB, and appends them to RESULTS.md.
"""

import argparse
import datetime
import os
import platform
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

ROW = (64, 64, 4)
LIMIT = 1 << 30


def resident():
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def stream(folder, gigabytes):
    """Seconds of a pass and the most bytes resident during it."""
    import meshflow as tf

    rows = int(gigabytes * 1e9) // int(np.prod(ROW))
    path = folder / "rows"
    with open(path, "wb") as file:
        file.truncate(rows * int(np.prod(ROW)))
    array = np.memmap(path, np.uint8, "r", shape=(rows, *ROW))
    data = tf.data.Dataset.from_tensor_slices(array)
    data = data.map(lambda x: tf.cast(x, tf.float32) / 255).shuffle(1_000).batch(64)
    most, done = [resident()], threading.Event()

    def watch():
        while not done.wait(0.02):
            most[0] = max(most[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start, count = time.perf_counter(), 0
    try:
        for batch in data:
            count += len(batch)
    finally:
        done.set()
        watcher.join()
    assert count == rows
    return time.perf_counter() - start, most[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds, most = stream(Path(folder), options.gigabytes)
    line = (
        f"- {options.gigabytes:g} GB in {seconds:.0f} s ({options.gigabytes / seconds:.2f} GB/s); "
        f"at most {most / 1e6:,.0f} MB resident"
    )
    print(line)
    assert most < LIMIT, "more than 1 GB was resident"
    stamp = f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores"
    with open(Path(__file__).with_name("RESULTS.md"), "a") as file:
        file.write(f"\n## Memory-mapped array ({stamp})\n\n{line}\n")


if __name__ == "__main__":
    main()
