"""`fit` on a 64-64-10 MLP, batch 32, against the same Adam step written by hand in JAX; and eager ops.

Prints ratios from one interleaved run and appends them to RESULTS.md. With `--peers PYTHON` (an environment made by
peers.sh) Keras and TensorFlow are measured in the same run.
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
import tracemalloc
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import meshflow as tf

STEPS, ROUNDS, BATCH = 2000, 5, 32


def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(STEPS * BATCH, 64)).astype("float32"), rng.integers(
        0, 10, STEPS * BATCH
    )


def hand_written():
    """A function that runs an epoch of hand-written steps."""
    rng = np.random.default_rng(0)
    sizes = [(64, 64), (64, 10)]
    params = [
        (jnp.asarray(rng.normal(size=s).astype("float32") / 8), jnp.zeros(s[1])) for s in sizes
    ]
    zeros = jax.tree.map(jnp.zeros_like, params)
    state = [params, zeros, jax.tree.map(jnp.zeros_like, params), jnp.float32(0)]

    def loss(params, x, y):
        for i, (w, b) in enumerate(params):
            x = x @ w + b
            x = jax.nn.relu(x) if i == 0 else x
        return -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1).mean()

    @jax.jit
    def step(state, x, y):
        params, m, v, t = state
        value, grads = jax.value_and_grad(loss)(params, x, y)
        t = t + 1
        m = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, m, grads)
        v = jax.tree.map(lambda a, g: 0.999 * a + 0.001 * g * g, v, grads)
        rate = 1e-3 * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        params = jax.tree.map(lambda p, a, b: p - rate * a / (jnp.sqrt(b) + 1e-7), params, m, v)
        return [params, m, v, t], value

    def epoch(x, y):
        nonlocal state
        order = np.random.permutation(len(x))
        for i in range(0, len(x), BATCH):
            index = order[i : i + BATCH]
            state, value = step(state, x.take(index, 0), y.take(index, 0))
        jax.block_until_ready(value)

    return epoch


def fitted():
    """A function that runs an epoch of `fit`."""
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(64, "relu", input_shape=(64,)), tf.keras.layers.Dense(10)]
    )
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return lambda x, y: model.fit(x, y, batch_size=BATCH, verbose=0)


def per_step(epoch, x, y):
    start = time.perf_counter()
    epoch(x, y)
    return (time.perf_counter() - start) / STEPS * 1e3


def import_time(module):
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    return float(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
    )


def micro(function, count=2000):
    function()
    start = time.perf_counter()
    for _ in range(count):
        function()
    return (time.perf_counter() - start) / count * 1e6


def deep(layers=1000):
    """Seconds and peak megabytes of building a deep functional model."""
    tracemalloc.start()
    start = time.perf_counter()
    x = inputs = tf.keras.Input((8,))
    for _ in range(layers):
        x = tf.keras.layers.Activation("relu")(x)
    tf.keras.Model(inputs, x)
    seconds, peak = time.perf_counter() - start, tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return seconds, peak


def peer(python, backend):
    """The same measurements in another environment."""
    script = Path(__file__).with_name("peer_mlp.py")
    environment = {**os.environ, "KERAS_BACKEND": backend}
    output = subprocess.run(
        [python, str(script)], capture_output=True, text=True, check=True, env=environment
    ).stdout
    return json.loads(output.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="Python of an environment with Keras and TensorFlow")
    options = parser.parse_args()
    x, y = data()
    jax_epoch, fit_epoch = hand_written(), fitted()
    per_step(jax_epoch, x, y), per_step(fit_epoch, x, y)
    rows, peers = [], []
    for _ in range(ROUNDS):
        rows.append((per_step(jax_epoch, x, y), per_step(fit_epoch, x, y)))
        if options.peers and len(peers) < 3:
            peers.append((peer(options.peers, "jax"), peer(options.peers, "tensorflow")))
    imports = [(import_time("jax"), import_time("meshflow")) for _ in range(ROUNDS)]
    t = tf.ones([100])

    def two_ops():
        with tf.GradientTape() as tape:
            tape.watch(t)
            z = tf.reduce_sum(t * t)
        return tape.gradient(z, t)

    median = statistics.median
    lines = [
        f"fit, 64-64-10 MLP, batch 32: {median(b for _, b in rows):.3f} ms/step; hand-written JAX {median(a for a, _ in rows):.3f}; "
        f"ratio {median(b / a for a, b in rows):.2f}",
        f"import meshflow {median(b for _, b in imports):.2f} s; import jax {median(a for a, _ in imports):.2f}; "
        f"ratio {median(b / a for a, b in imports):.2f}",
        f"eager x + x {micro(lambda: t + t):.1f} us; two-op tape gradient {micro(two_ops, 500):.0f} us",
    ]
    seconds, peak = deep()
    lines.append(
        f"1,000-layer functional model: {seconds:.2f} s, {peak:.1f} MB at the peak (traced)"
    )
    for name, index in (("jax", 0), ("tensorflow", 1)):
        if peers:
            found = [p[index] for p in peers]
            own = median(b for _, b in rows)
            lines.append(
                f"Keras {found[0]['keras']} on {name}: fit {median(p['fit'] for p in found):.3f} ms/step (Meshflow {own / median(p['fit'] for p in found):.2f} of it); "
                f"1,000 layers {median(p['build_s'] for p in found):.2f} s, {median(p['build_mb'] for p in found):.1f} MB"
            )
    if peers:
        found = [p[1] for p in peers]
        lines.append(
            f"TensorFlow {found[0]['version']}: eager x + x {median(p['add'] for p in found):.1f} us; two-op tape gradient {median(p['tape'] for p in found):.0f} us"
        )
    print("\n".join(lines))
    stamp = f"{datetime.date.today()}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores, JAX {jax.__version__}"
    with open(Path(__file__).with_name("RESULTS.md"), "a") as file:
        file.write(
            f"\n## MLP step, import, eager ({stamp})\n" + "".join(f"- {line}\n" for line in lines)
        )


if __name__ == "__main__":
    main()
