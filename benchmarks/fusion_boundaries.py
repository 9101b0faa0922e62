"""Training steps and first fits of deep networks with and without fusion boundaries, next to TensorFlow.

    .venv/bin/python benchmarks/fusion_boundaries.py [--peer PYTHON] [--rounds 3] [--note TEXT] [kind ...]

Alternates processes on one core and appends CPU seconds of the first `fit`, milliseconds of CPU time for each step and
peak memory to RESULTS.md. `without` is Meshflow without the pass `insert_fusion_boundaries`. PYTHON is an environment
with TensorFlow and tf-keras.
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

import numpy as np

STEPS = 8
# Too slow without boundaries.
ONLY_WITH = ("residual chain, 200 blocks",)


def add_convolution(tf, x, filters, size=3, strides=1, activation=True):
    layers = tf.keras.layers
    x = layers.Conv2D(filters, size, strides, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    return layers.ReLU()(x) if activation else x


def finish(tf, inputs, x, units=10):
    return tf.keras.Model(inputs, tf.keras.layers.Dense(units)(x))


def residual_chain(tf, blocks):
    layers = tf.keras.layers
    inputs = x = tf.keras.Input((16, 16, 16))
    for _ in range(blocks):
        x = layers.ReLU()(layers.Add()([x, add_convolution(tf, x, 16, activation=False)]))
    return finish(tf, inputs, layers.GlobalAveragePooling2D()(x))


def preactivation_chain(tf, blocks=30):
    layers = tf.keras.layers
    inputs = x = tf.keras.Input((16, 16, 16))
    for _ in range(blocks):
        h = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Add()([x, layers.Conv2D(16, 3, padding="same")(h)])
    return finish(tf, inputs, layers.GlobalAveragePooling2D()(x))


def resnet(tf, blocks=9):
    layers = tf.keras.layers
    inputs = tf.keras.Input((32, 32, 3))
    x = add_convolution(tf, inputs, 16)
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(blocks):
            strides = 2 if stage and not block else 1
            h = add_convolution(tf, x, filters, strides=strides)
            h = add_convolution(tf, h, filters, activation=False)
            if strides > 1:
                x = add_convolution(tf, x, filters, 1, strides, activation=False)
            x = layers.ReLU()(layers.Add()([x, h]))
    return finish(tf, inputs, layers.GlobalAveragePooling2D()(x))


def densenet(tf, blocks=3, depth=12, growth=12):
    layers = tf.keras.layers
    inputs = tf.keras.Input((32, 32, 3))
    x = layers.Conv2D(24, 3, padding="same")(inputs)
    for block in range(blocks):
        for _ in range(depth):
            h = layers.ReLU()(layers.BatchNormalization()(x))
            h = layers.Conv2D(growth, 3, padding="same", use_bias=False)(h)
            x = layers.Concatenate()([x, h])
        if block < blocks - 1:
            x = add_convolution(tf, x, x.shape[-1] // 2, 1)
            x = layers.AveragePooling2D()(x)
    return finish(tf, inputs, layers.GlobalAveragePooling2D()(x))


def mobilenet(tf, blocks=16):
    layers = tf.keras.layers
    inputs = tf.keras.Input((64, 64, 3))
    x = add_convolution(tf, inputs, 16, strides=2)
    for block in range(blocks):
        strides, filters = (2 if block % 4 == 0 and block else 1), 16 + 8 * (block // 4)
        h = layers.Conv2D(6 * x.shape[-1], 1, use_bias=False)(x)
        h = layers.ReLU(6.0)(layers.BatchNormalization()(h))
        h = layers.DepthwiseConv2D(3, strides, padding="same", use_bias=False)(h)
        h = layers.ReLU(6.0)(layers.BatchNormalization()(h))
        h = layers.BatchNormalization()(layers.Conv2D(filters, 1, use_bias=False)(h))
        x = layers.Add()([x, h]) if x.shape == h.shape else h
    return finish(tf, inputs, layers.GlobalAveragePooling2D()(x))


def convnext(tf, blocks=9, width=48):
    layers = tf.keras.layers
    inputs = tf.keras.Input((32, 32, 3))
    x = layers.Conv2D(width, 2, 2)(inputs)
    for _ in range(blocks):
        h = layers.DepthwiseConv2D(7, padding="same")(x)
        h = layers.LayerNormalization(epsilon=1e-6)(h)
        h = layers.Dense(4 * width, activation="gelu")(h)
        x = layers.Add()([x, layers.Dropout(0.1)(layers.Dense(width)(h))])
    return finish(tf, inputs, layers.GlobalAveragePooling2D()(x))


def transformer(tf, blocks=12, width=64):
    layers = tf.keras.layers
    inputs = tf.keras.Input((64,), dtype="int32")
    x = layers.Embedding(1000, width)(inputs)
    for _ in range(blocks):
        h = layers.LayerNormalization()(x)
        h = layers.MultiHeadAttention(4, width // 4, dropout=0.1)(h, h)
        x = layers.Add()([x, layers.Dropout(0.1)(h)])
        h = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dropout(0.1)(layers.Dense(width)(h))])
    return finish(tf, inputs, layers.GlobalAveragePooling1D()(x))


def post_norm_transformer(tf, blocks=6, width=128):
    layers = tf.keras.layers
    inputs = tf.keras.Input((64,), dtype="int32")
    x = layers.Embedding(1000, width)(inputs)
    for _ in range(blocks):
        h = layers.MultiHeadAttention(4, width // 4)(x, x)
        x = layers.LayerNormalization()(layers.Add()([x, h]))
        h = layers.Dense(width)(layers.Dense(4 * width, activation="relu")(x))
        x = layers.LayerNormalization()(layers.Add()([x, h]))
    return finish(tf, inputs, layers.GlobalAveragePooling1D()(x))


def lstm(tf):
    layers = tf.keras.layers
    inputs = tf.keras.Input((40,), dtype="int32")
    x = layers.Embedding(1000, 64)(inputs)
    x = layers.Bidirectional(layers.LSTM(64, return_sequences=True))(x)
    return finish(tf, inputs, layers.GRU(64)(x))


def mlp(tf, depth=8, width=256):
    layers = tf.keras.layers
    inputs = x = tf.keras.Input((64,))
    for _ in range(depth):
        x = layers.Dropout(0.2)(layers.Dense(width, activation="relu")(x))
    return finish(tf, inputs, x)


def residual_mlp(tf, depth=40, width=64):
    layers = tf.keras.layers
    inputs = tf.keras.Input((64,))
    x = layers.Dense(width)(inputs)
    for _ in range(depth):
        x = layers.Activation("swish")(layers.Add()([x, layers.Dense(width)(x)]))
    return finish(tf, inputs, x)


def cnn(tf):
    layers = tf.keras.layers
    inputs = x = tf.keras.Input((32, 32, 3))
    for filters in (32, 64, 128):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.Dropout(0.25)(layers.MaxPooling2D()(x))
    return finish(tf, inputs, layers.Flatten()(x))


def unet(tf):
    layers = tf.keras.layers
    inputs = x = tf.keras.Input((32, 32, 3))
    skips = []
    for filters in (16, 32, 64):
        x = add_convolution(tf, add_convolution(tf, x, filters), filters)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    for filters in (64, 32, 16):
        x = layers.Concatenate()([layers.UpSampling2D()(x), skips.pop()])
        x = add_convolution(tf, add_convolution(tf, x, filters), filters)
    return finish(tf, inputs, layers.GlobalAveragePooling2D()(x))


def conv3d(tf):
    layers = tf.keras.layers
    inputs = x = tf.keras.Input((16, 16, 16, 1))
    for filters in (16, 32, 64):
        x = layers.Conv3D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.MaxPooling3D()(layers.ReLU()(layers.BatchNormalization()(x)))
    return finish(tf, inputs, layers.Flatten()(x))


def wgan_gp(tf):
    """A critic with a gradient penalty, for images of 16x16x1."""
    layers = tf.keras.layers
    inputs = x = tf.keras.Input((16, 16, 16))
    for filters in (32, 64):
        x = layers.LeakyReLU(0.2)(layers.Conv2D(filters, 3, 2, padding="same")(x))
    critic = tf.keras.Model(inputs, layers.Dense(1)(layers.Flatten()(x)))

    class Trainer(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.critic = critic

        def call(self, x):
            return self.critic(x)

        def train_step(self, data):
            real, _ = data
            fake = tf.random.normal(tf.shape(real))
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    inner.watch(fake)
                    score = self.critic(fake, training=True)
                slopes = tf.sqrt(tf.reduce_sum(inner.gradient(score, fake) ** 2, [1, 2, 3]))
                loss = tf.reduce_mean(score - self.critic(real, training=True))
                loss += 10.0 * tf.reduce_mean((slopes - 1.0) ** 2)
            variables = self.critic.trainable_variables
            self.optimizer.apply_gradients(
                zip(tape.gradient(loss, variables), variables, strict=True)
            )
            return {"loss": loss}

    return Trainer()


KINDS = {
    "residual chain, 25 blocks": lambda tf: residual_chain(tf, 25),
    "residual chain, 50 blocks": lambda tf: residual_chain(tf, 50),
    "residual chain, 100 blocks": lambda tf: residual_chain(tf, 100),
    "residual chain, 200 blocks": lambda tf: residual_chain(tf, 200),
    "pre-activation chain, 30 blocks": preactivation_chain,
    "ResNet-56": resnet,
    "DenseNet, 3 x 12 layers": densenet,
    "MobileNetV2, 16 blocks": mobilenet,
    "ConvNeXt, 9 blocks": convnext,
    "transformer, 12 blocks": transformer,
    "post-norm transformer, 6 blocks": post_norm_transformer,
    "LSTM and GRU": lstm,
    "MLP, 8 layers": mlp,
    "residual MLP, 40 layers": residual_mlp,
    "CNN with dropout": cnn,
    "U-Net": unet,
    "Conv3D": conv3d,
    "WGAN-GP": wgan_gp,
}


def measure(kind, framework, precision):
    """Train one model in this process; return first fit (CPU s), step (CPU ms) and peak memory (MB)."""
    if framework == "tensorflow":
        import tensorflow as tf
    else:
        import meshflow as tf

        if framework == "without":
            from meshflow.core.tracing import pass_pipeline

            pass_pipeline.insert_fusion_boundaries = lambda closed: closed
    tf.keras.utils.set_random_seed(0)
    tf.keras.mixed_precision.set_global_policy(precision)
    model = KINDS[kind](tf)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    rng = np.random.default_rng(0)
    source = model if kind != "WGAN-GP" else model.critic
    shape, batch = source.input_shape[1:], 8
    if len(shape) == 1:
        batch = 32
        x = rng.integers(0, 1000, (STEPS * batch, *shape)).astype("int32")
        x = x if "int" in str(source.inputs[0].dtype) else x.astype("float32") / 1000
    else:
        x = rng.standard_normal((STEPS * batch, *shape)).astype("float32")
    y = rng.integers(0, 10, STEPS * batch)
    start = time.process_time()
    model.fit(x[:batch], y[:batch], batch_size=batch, verbose=0)
    first = time.process_time() - start
    seconds = []
    while len(seconds) < 5 or (sum(seconds) < 1 and len(seconds) < 40):
        start = time.process_time()
        model.fit(x, y, batch_size=batch, verbose=0)
        seconds.append(time.process_time() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"first": first, "step": 1e3 * statistics.median(seconds) / STEPS, "peak": peak}


def run_child(python, kind, framework, precision):
    command = [python, __file__, "--child", framework, "--precision", precision, kind]
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["MESHFLOW_CACHE_DIR"] = ""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", metavar="kind", help="part of the name of a model")
    parser.add_argument("--peer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--note", default="")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--child")
    parser.add_argument("--no-entry", action="store_true", help="do not append to RESULTS.md")
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(arguments.kinds[0], arguments.child, arguments.precision)))
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {arguments.core})
    frameworks = {"without": sys.executable, "with": sys.executable}
    if arguments.peer:
        frameworks["tensorflow"] = arguments.peer
    chosen = [k for k in KINDS if not arguments.kinds or any(part in k for part in arguments.kinds)]
    head = " / ".join(frameworks)
    lines = [
        f"| model | step, CPU ms ({head}) | ratio | first fit, CPU s | ratio | peak, MB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    print(*lines, sep="\n")
    for kind in chosen:
        runs = [
            {
                framework: run_child(python, kind, framework, arguments.precision)
                for framework, python in frameworks.items()
                if framework != "without" or kind not in ONLY_WITH
            }
            for _ in range(arguments.rounds)
        ]
        medians = {
            key: [
                statistics.median(run[f][key] for run in runs) if f in runs[0] else float("nan")
                for f in frameworks
            ]
            for key in ("step", "first", "peak")
        }
        cells = [kind]
        for key, digits in (("step", 1), ("first", 1)):
            cells.append(" / ".join(f"{value:,.{digits}f}" for value in medians[key]))
            cells.append(f"{medians[key][1] / medians[key][0]:.2f}")
        cells.append(" / ".join(f"{value:,.0f}" for value in medians["peak"]))
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if arguments.no_entry:
        return
    stamp = f"{datetime.date.today()}, {platform.machine()}, one core, {arguments.precision}, {arguments.rounds} rounds"
    stamp += f", {arguments.note}" if arguments.note else ""
    with open(Path(__file__).with_name("RESULTS.md"), "a") as file:
        file.write(f"\n## Fusion boundaries ({stamp})\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
