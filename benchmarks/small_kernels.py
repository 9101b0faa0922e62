"""Small products, convolutions, sums and programs: by XLA, by oneDNN on the calling thread, by oneDNN's team.

Each way is a process of its own, which all live through the run and measure in turns. Prints tables of medians in
microseconds and appends them to RESULTS.md; `--json FILE` writes every round, `--no-record` leaves RESULTS.md alone.
The thresholds of `meshflow/kernels/sizes.py` are read off these tables.
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

SECONDS = 0.01  # of a measurement
PRODUCTS = (
    *((1, 64, 256), (8, 8, 8), (16, 16, 16), (32, 32, 32), (48, 48, 48), (64, 64, 64), (32, 64, 256)),
    *((32, 128, 512), (128, 128, 128), (1, 1024, 1024), (192, 192, 192), (256, 256, 256), (384, 384, 384)),
)  # fmt: skip
CONVOLUTIONS = (
    *((1, 2, 2, 1), (1, 2, 2, 4), (1, 4, 4, 4), (1, 4, 4, 8), (1, 8, 8, 8), (1, 8, 8, 16), (1, 8, 8, 32), (1, 16, 16, 32), (1, 8, 8, 64)),
    *((8, 8, 8, 32), (1, 16, 16, 64), (8, 16, 16, 32), (8, 16, 16, 64)),
)  # batch, height, width, channels in and out; 3x3 # fmt: skip
SUMS = ((64, 64), (256, 64), (512, 256), (1024, 256), (2048, 512), (8192, 512))
DTYPES = ("float32", "bfloat16")
TRIPS = 50  # of a loop


def cases():
    """Return the names of the measurements."""
    kernels = [f"{kind} {'x'.join(map(str, sizes))} {dtype}"
        for kind, all_sizes in (("product", PRODUCTS), ("loop", PRODUCTS), ("convolution", CONVOLUTIONS),
                                ("gradients", CONVOLUTIONS), ("sum", SUMS))
        for dtype in DTYPES
        for sizes in all_sizes
        if kind != "loop" or sizes[1] <= sizes[2]]  # fmt: skip
    return kernels


PROGRAMS = (
    "dense 64-64-10, fit, ms a step",
    "dense 64-64-10, predict, ms a batch",
    "bidirectional LSTM classifier, ms a step",
    "eager product 64x64, us",
)
UNITS = {"ms": 1e3, "us": 1e6}


def kernel(name):
    """Return a function that runs a case once, and the number of operations in it."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    kind, sizes, dtype = name.split()
    sizes = [int(n) for n in sizes.split("x")]
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)
    if kind in ("product", "loop"):
        m, k, n = sizes
        arrays = normal(m, k), normal(k, n)

        def loop(a, b):
            body = lambda x, _: ((x @ b)[:, :k] * 0.1, None)
            return jax.lax.scan(body, a, None, length=TRIPS)[0]

        function = loop if kind == "loop" else jnp.matmul
    elif kind in ("convolution", "gradients"):
        channels = sizes[-1]
        arrays = normal(*sizes), normal(3, 3, channels, channels)
        numbers = ("NHWC", "HWIO", "NHWC")
        convolve = lambda x, w: jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=numbers
        )
        # The image's gradient and the kernel's.
        both = lambda x, w: jax.vjp(convolve, x, w)[1](x)
        function = both if kind == "gradients" else convolve
    else:
        arrays = (normal(*sizes),)
        # In its own precision, as gradients of biases are.
        function = lambda x: jax.lax.reduce_sum(x, (0,))
    compiled = jax.jit(function).lower(*arrays).compile()
    return lambda: jax.block_until_ready(compiled(*arrays)), TRIPS if kind == "loop" else 1


def program(name):
    """The same for a program."""
    import numpy as np

    import meshflow as tf

    layers, rng = tf.keras.layers, np.random.default_rng(0)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if name.startswith("eager"):
        a = tf.constant(rng.normal(size=(64, 64)), "float32")
        return lambda: tf.matmul(a, a)._value.block_until_ready(), 1
    if name.startswith("dense"):
        model = tf.keras.Sequential([layers.Dense(64, "relu", input_shape=(64,)), layers.Dense(10)])
        steps, x = 200, rng.normal(size=(6400, 64)).astype("float32")
        y = rng.integers(0, 10, len(x))
    else:
        model = tf.keras.Sequential(
            [layers.Embedding(5000, 64), layers.Bidirectional(layers.LSTM(64)), layers.Dense(2)]
        )
        steps, x = 8, rng.integers(0, 5000, (8 * 32, 100))
        y = rng.integers(0, 2, len(x))
    model.compile("adam", loss)
    if "predict" in name:
        return lambda: model.predict(x, batch_size=32, verbose=0), steps
    return lambda: model.fit(x, y, batch_size=32, verbose=0), steps


def worker(way):
    """Measure the cases that the input names, one per line."""
    from meshflow.kernels import sizes

    if way in ("team", "former"):
        sizes.MAX_INLINE_WORK = -1
    if way == "inline":
        sizes.MAX_INLINE_WORK = float("inf")
    if way in ("team", "inline"):
        sizes.MIN_PRODUCT_WORK, sizes.MIN_CONVOLUTION_WORK, sizes.VECTOR_WORK = 0, 0, float("inf")
    ready = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in ready:
            function, count = (program if name in PROGRAMS else kernel)(name)
            function()
            start = time.perf_counter()
            function()
            ready[name] = function, count, max(1, int(SECONDS / (time.perf_counter() - start)))
        function, count, repeats = ready[name]
        start = time.perf_counter()
        for _ in range(repeats):
            function()
        print((time.perf_counter() - start) / repeats / count, flush=True)


def measured(names, ways, rounds):
    """Seconds of each round by name and way, all ways in turns."""

    def begun(way):
        kernels = "xla" if way == "xla" else "auto"
        environment = {**os.environ, "MESHFLOW_KERNELS": kernels}
        command = [sys.executable, __file__, "--worker", way]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=environment, **pipes)

    workers, found = {way: begun(way) for way in ways}, {}
    for name in names:
        found[name] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, process in workers.items():
                process.stdin.write(name + "\n")
                process.stdin.flush()
                found[name][way].append(float(process.stdout.readline()))
    for process in workers.values():
        process.stdin.close()
        process.wait()
    return found


def table(found, unit):
    """Lines of a table of medians, with the multiply-adds of each case where it has such."""
    ways = list(next(iter(found.values())))
    lines = [f"| case | {' | '.join(ways)} |", "|---|" + "---|" * len(ways)]
    for name, rows in found.items():
        scale = unit or UNITS[name.split(", ")[-1].split()[0]]
        numbers = [f"{statistics.median(rows[way]) * scale:.4g}" for way in ways]
        lines.append(f"| {name} | {' | '.join(numbers)} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--json", help="file for every round")
    parser.add_argument("--note", default="", help="what to say of the machine")
    parser.add_argument("--no-record", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options.worker)
    wanted = lambda names: [name for name in names if options.only in name]
    kernels = measured(wanted(cases()), ("xla", "inline", "team"), options.rounds)
    programs = measured(wanted(PROGRAMS), ("xla", "former", "default"), options.rounds)
    lines = [
        line
        for found, unit in ((kernels, 1e6), (programs, None))
        if found
        for line in (*table(found, unit), "")
    ]
    print("\n".join(lines))
    if options.json:
        Path(options.json).write_text(json.dumps({**kernels, **programs}, indent=1))
    if not options.no_record:
        import jax

        import meshflow as tf

        machine = options.note or platform.processor() or platform.machine()
        stamp = f"{datetime.date.today()}, {machine}, {os.cpu_count()} cores, JAX {jax.__version__}, Meshflow {tf.__version__}, {options.rounds} rounds"
        with open(Path(__file__).with_name("RESULTS.md"), "a") as file:
            file.write(f"\n## Small kernels, microseconds ({stamp})\n\n" + "\n".join(lines))
    return None


if __name__ == "__main__":
    main()
