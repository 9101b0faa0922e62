"""Attention to long sequences: times and memory of `keras.ops.dot_product_attention`, in turns with PyTorch.

    python benchmarks/attention.py --peers .venv-peers/bin/python

Prints milliseconds of the forward pass, and of it with the gradients of queries, keys and values (medians), and the
peak of memory above that of the process before the first call, and appends them to RESULTS.md. 8 heads of 64 features.
Each line is one process for each library; its lengths follow each other in ascending order.
"""

import argparse
import datetime
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

HEADS, FEATURES = 8, 64
MAX_SECONDS = 1.5  # for the repetitions of a measurement


def read_peak():
    """The peak of memory of this process, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def make_meshflow(dtype, causal, threads):
    import meshflow as tf
    from meshflow.kernels import library

    if (loaded := library.load()) is not None:
        loaded.set_threads(threads)

    def attend(q, k, v):
        return tf.keras.ops.dot_product_attention(q, k, v, is_causal=causal)

    def differentiate(q, k, v, g):
        with tf.GradientTape() as tape:
            tape.watch([q, k, v])
            values = attend(q, k, v)
        return tape.gradient(values, [q, k, v], g)

    forward, both = (tf.function(f, jit_compile=True) for f in (attend, differentiate))

    def prepare(batch, length):
        arrays = [
            tf.cast(tf.random.normal([batch, length, HEADS, FEATURES]), dtype) for _ in range(4)
        ]
        wait = lambda values: [v.numpy() for v in tf.nest.flatten(values)]
        return lambda: wait(forward(*arrays[:3])), lambda: wait(both(*arrays))

    return prepare


def make_torch(dtype, causal, threads):
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    torch.set_num_threads(threads)

    def prepare(batch, length):
        q, k, v, g = (
            torch.randn(batch, HEADS, length, FEATURES).to(getattr(torch, dtype)) for _ in range(4)
        )
        operands = [x.requires_grad_() for x in (q, k, v)]

        def forward():
            with torch.no_grad():
                scaled_dot_product_attention(*operands, is_causal=causal)

        def both():
            torch.autograd.grad(
                scaled_dot_product_attention(*operands, is_causal=causal), operands, g
            )

        return forward, both

    return prepare


def measure(run):
    """Milliseconds, a median."""
    run()
    times, end = [], time.perf_counter() + MAX_SECONDS
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 15):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def run_child(options):
    library, dtype, causal, batch, threads, lengths = json.loads(options)
    prepare = {"meshflow": make_meshflow, "torch": make_torch}[library](dtype, causal, threads)
    prepare(1, 16)
    before, rows = read_peak(), []
    for length in lengths:
        forward, both = prepare(batch, length)
        rows.append([measure(forward), measure(both), read_peak() - before])
    print(json.dumps(rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="Python with PyTorch")
    parser.add_argument("--lengths", default="512,1024,2048,4096")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--batches", default="1,4")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--causal", default="no,yes")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return run_child(arguments.child)
    lengths = [int(n) for n in arguments.lengths.split(",")]
    lines = [
        "| dtype | causal | batch | threads | length | forward, ms | with gradients, ms | memory, MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    print(*lines, sep="\n")
    for threads in map(int, arguments.threads.split(",")):
        for dtype in arguments.dtypes.split(","):
            for causal in arguments.causal.split(","):
                for batch in map(int, arguments.batches.split(",")):
                    results = []
                    for name in ("meshflow", "torch") if arguments.peers else ("meshflow",):
                        python = sys.executable if name == "meshflow" else arguments.peers
                        options = json.dumps(
                            [name, dtype, causal == "yes", batch, threads, lengths]
                        )
                        command = [python, __file__, "--child", options]
                        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
                        done = subprocess.run(
                            command, capture_output=True, text=True, check=True, env=environment
                        )
                        results.append(json.loads(done.stdout.splitlines()[-1]))
                    for i, length in enumerate(lengths):
                        cells = [
                            " / ".join(f"{r[i][k]:,.{int(k < 2)}f}" for r in results)
                            for k in range(3)
                        ]
                        line = f"| {dtype} | {causal} | {batch} | {threads} | {length:,} | {' | '.join(cells)} |"
                        print(line, flush=True)
                        lines.append(line)
    title = f"Attention (Meshflow / PyTorch, {datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores)"
    with Path(__file__).with_name("RESULTS.md").open("a") as file:
        print(f"\n## {title}\n", *lines, sep="\n", file=file)


if __name__ == "__main__":
    main()
