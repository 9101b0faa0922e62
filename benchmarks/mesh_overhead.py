"""What a mesh costs: `fit` under MirroredStrategy against plain steps, and against the same step hand-written.

On one device the step under MirroredStrategy is compared with that of the same model without a strategy; on N
virtual devices with the same step written with `jax.jit` and `NamedSharding`. Prints medians of interleaved rounds
and appends them to RESULTS.md. `mesh_overhead.py [--devices 4] [--model mlp|cnn]`.
"""

import argparse
import datetime
import os
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshflow as tf

BATCH = 256
RATE, MOMENTUM = 0.01, 0.9
LAYERS = tf.keras.layers


def mlp():
    return tf.keras.Sequential(
        [
            tf.keras.Input((256,)),
            *(LAYERS.Dense(512, "relu") for _ in range(3)),
            LAYERS.Dense(10),
        ]
    )


def cnn():
    return tf.keras.Sequential(
        [
            tf.keras.Input((16, 16, 8)),
            LAYERS.Conv2D(32, 3, padding="same", activation="relu"),
            LAYERS.Conv2D(32, 3, padding="same", activation="relu"),
            LAYERS.Flatten(),
            LAYERS.Dense(10),
        ]
    )


def forward(params, x):
    """The same networks on a list of (kernel, bias)."""
    for i, (kernel, bias) in enumerate(params):
        if kernel.ndim == 4:
            x = jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = x + bias
        else:
            x = x.reshape(x.shape[0], -1) @ kernel + bias
        if i + 1 < len(params):
            x = jax.nn.relu(x)
    return x


def data(model, steps):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(steps * BATCH, *model.input_shape[1:])).astype("float32")
    return x, rng.integers(0, 10, steps * BATCH)


def fitted(make, strategy, x, y):
    """A function that runs an epoch of `fit`."""
    with strategy.scope():
        model = make()
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.SGD(RATE, MOMENTUM), loss)
    return lambda: model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)


def hand_written(make, devices, x, y):
    """A function that runs an epoch of hand-written steps, batches split over the devices."""
    mesh = Mesh(np.array(devices), ("batch",))
    split, whole = NamedSharding(mesh, P("batch")), NamedSharding(mesh, P())
    weights = [np.asarray(w) for w in make().get_weights()]
    params = jax.device_put(list(zip(weights[::2], weights[1::2], strict=True)), whole)
    state = [params, jax.device_put(jax.tree.map(np.zeros_like, params), whole)]
    totals = jax.device_put([np.float32(0), np.float32(0)], whole)

    def loss(params, x, y):
        logs = jax.nn.log_softmax(forward(params, x))
        return -jnp.take_along_axis(logs, y[:, None], 1).mean()

    @jax.jit(donate_argnums=(0, 1))
    def step(state, totals, x, y):
        params, velocity = state
        value, grads = jax.value_and_grad(loss)(params, x, y)
        velocity = jax.tree.map(lambda v, g: MOMENTUM * v - RATE * g, velocity, grads)
        params = jax.tree.map(jnp.add, params, velocity)
        # Keras shows the mean loss of the epoch.
        return [params, velocity], [totals[0] + value * len(x), totals[1] + len(x)]

    def epoch():
        nonlocal state, totals
        for i in range(0, len(x), BATCH):
            part = jax.device_put((x[i : i + BATCH], y[i : i + BATCH]), split)
            state, totals = step(state, totals, *part)
        jax.block_until_ready(totals)

    return epoch


def ratios(first, second, rounds):
    """Milliseconds of both, and the median of the second over the first, round by round."""
    first(), second()
    times = []
    for _ in range(rounds):
        pair = []
        for run in (first, second):
            start = time.perf_counter()
            run()
            pair.append(time.perf_counter() - start)
        times.append(pair)
    middle = [statistics.median(t[i] for t in times) for i in (0, 1)]
    return *middle, statistics.median(b / a for a, b in times)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--model", choices=("mlp", "cnn"), default="mlp")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    # XLA sizes its thread pool by NPROC; fewer than four threads a device can deadlock collectives.
    os.environ.setdefault("NPROC", str(4 * options.devices))
    jax.config.update("jax_num_cpu_devices", options.devices)
    make = {"mlp": mlp, "cnn": cnn}[options.model]
    x, y = data(make(), options.steps)
    one = tf.distribute.MirroredStrategy(["CPU:0"])
    many = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(options.devices)])
    plain = fitted(make, tf.distribute.get_strategy(), x, y)
    hand = hand_written(make, jax.devices()[: options.devices], x, y)
    lines = []
    for names, first, second in (
        (("plain fit", "MirroredStrategy on 1 device"), plain, fitted(make, one, x, y)),
        (
            ("hand-written jax.jit and NamedSharding", f"MirroredStrategy on {options.devices}"),
            hand,
            fitted(make, many, x, y),
        ),
    ):
        a, b, ratio = ratios(first, second, options.rounds)
        lines.append(
            f"{options.model}, batch {BATCH}: {names[1]} {b / options.steps * 1e3:.3f} ms/step; {names[0]} "
            f"{a / options.steps * 1e3:.3f}; ratio {ratio:.3f}"
        )
    print("\n".join(lines))
    stamp = f"{datetime.date.today()}, {os.cpu_count()} cores, JAX {jax.__version__}"
    with open(Path(__file__).with_name("RESULTS.md"), "a") as file:
        file.write(
            f"\n## Overhead of a mesh ({stamp})\n" + "".join(f"- {line}\n" for line in lines)
        )


if __name__ == "__main__":
    main()
