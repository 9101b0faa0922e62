"""The Meshflow side of gpu.py: `gpu_models.py PART SETTINGS` runs one part and prints a JSON object for each result.

Lines that begin with `@@` are results. A part that is compared with PyTorch announces its first step and then waits for
orders on its input, so that gpu.py can alternate the two on one device.
"""

import json
import os
import pathlib
import sys
import time
import traceback

STARTED = float(os.environ.get("GPU_STARTED", time.time()))
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# A kept program would hide how long the first step takes.
os.environ.setdefault("MESHFLOW_CACHE_DIR", "")

import models  # noqa: E402
import numpy as np  # noqa: E402

import meshflow as tf  # noqa: E402

layers, keras = tf.keras.layers, tf.keras


def say(**result):
    print("@@ " + json.dumps(result), flush=True)


def failure(error):
    """An exception as text, with the end of its traceback."""
    lines = "".join(traceback.format_exception(error)).strip().splitlines()
    return {"error": f"{type(error).__name__}: {str(error)[:600]}", "traceback": lines[-16:]}


def memory():
    """The peak of the device's memory so far in MB, None where it does not tell."""
    import jax

    stats = jax.local_devices()[0].memory_stats() or {}
    peak = stats.get("peak_bytes_in_use")
    return None if peak is None else round(peak / 2**20)


def ceilings(settings):
    """Measure a large product and a copy by plain JAX, as bounds of the device."""
    import jax
    import jax.numpy as jnp

    def seconds(function, *arrays):
        run = jax.jit(function)
        jax.block_until_ready(run(*arrays))
        found = []
        for _ in range(5):
            start = time.perf_counter()
            result = [run(*arrays) for _ in range(settings["repeats"])]
            jax.block_until_ready(result[-1])
            found.append((time.perf_counter() - start) / settings["repeats"])
            del result
        return sorted(found)[2]

    n = settings["size"]
    device = jax.local_devices()[0]
    result = {
        "jax": jax.__version__,
        "device": device.device_kind,
        "platform": device.platform,
        "memory_stats": {k: v for k, v in (device.memory_stats() or {}).items() if "limit" in k},
    }
    for dtype in ("bfloat16", "float16", "float32"):
        x = jax.random.normal(jax.random.key(0), (n, n), jnp.float32).astype(dtype)
        result[f"{dtype}_tflops"] = 2 * n**3 / seconds(lambda a: a @ a, x) / 1e12
    with jax.default_matmul_precision("highest"):
        result["float32_highest_tflops"] = 2 * n**3 / seconds(lambda a: a @ a, x) / 1e12
    big = jnp.ones(settings["bytes"] // 4, jnp.float32)
    result["copy_gb_per_s"] = 2 * big.nbytes / seconds(lambda a: a + 1.0, big) / 1e9
    host = np.ones(settings["host_bytes"] // 4, np.float32)
    start = time.perf_counter()
    for _ in range(5):
        jax.block_until_ready(jax.device_put(host))
    result["host_to_device_gb_per_s"] = 5 * host.nbytes / (time.perf_counter() - start) / 1e9
    say(item="ceilings", **result)


# ---- the CIFAR-10 network of the mixed-precision article ------------------------------------


def cifar(count, tests):
    """CIFAR-10 where Keras has kept it, else images of its shape: a pattern for each class under noise."""
    kept = pathlib.Path.home() / ".keras" / "datasets" / "cifar-10-batches-py"
    if kept.exists():
        (x, y), (x_test, y_test) = keras.datasets.cifar10.load_data()
        scale = np.float32(255)
        return "CIFAR-10", (x[:count] / scale, y[:count]), (x_test[:tests] / scale, y_test[:tests])
    rng = np.random.default_rng(0)
    coarse = rng.normal(size=(10, 8, 8, 3)).astype(np.float32)
    patterns = coarse.repeat(4, 1).repeat(4, 2) * 0.15
    y = rng.integers(0, 10, count + tests).astype(np.int32)
    x = rng.standard_normal((count + tests, 32, 32, 3), dtype=np.float32)
    x *= 0.35
    x += patterns[y] + 0.5
    return "synthetic", (x[:count], y[:count]), (x[count:], y[count:])


def cnn_flops():
    """Floating-point operations of a training step for one image: forward, and twice that for the gradients."""
    total, side, channels = 0, 32, 3
    blocks = ((128, 256, 256, 256), 2), ((256, 256, 512, 512), 2), ((256, 256, 256, 128), 4)
    for block, pool in blocks:
        for filters in block:
            total += 2 * side * side * 9 * channels * filters
            channels = filters
        side //= pool
    return 3 * (total + 2 * (512 * 512 + 512 * 10))


class Epochs(keras.callbacks.Callback):
    """The seconds of each epoch; training stops where another would pass the limit."""

    def __init__(self, limit):
        super().__init__()
        self.limit, self.seconds = limit, []

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self.began)
        if sum(self.seconds) + self.seconds[-1] > self.limit:
            self.model.stop_training = True


def cnn(settings):
    """The five ways to compute with, one after the other; each is reported when it is done."""
    data, (x, y), (x_test, y_test) = cifar(settings["images"], settings["tests"])
    batch, wanted = settings["batch"], settings["epochs"]
    for item in settings["items"]:
        say(begins=item)
        began = time.time()
        try:
            tf.config.experimental.enable_tensor_float_32_execution(item != "float32")
            policy = item if item.startswith("mixed") else "float32"
            keras.mixed_precision.set_global_policy(policy)
            keras.utils.set_random_seed(0)
            model = models.cnn(keras, settings.get("narrow", 1))
            optimizer = keras.optimizers.Adam(settings["rate"])
            if item == "graph rewrite":
                rewrite = tf.train.experimental.enable_mixed_precision_graph_rewrite
                optimizer = rewrite(optimizer)
            model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
            model.fit(x[:batch], y[:batch], batch_size=batch, verbose=0)
            first = time.time() - began
            # The first epochs: caches fill, and clocks rise.
            model.fit(x[: 8 * batch], y[: 8 * batch], batch_size=batch, verbose=0)
            keras.utils.set_random_seed(0)
            epochs = Epochs(settings["seconds"][item])
            history = model.fit(
                x, y, batch_size=batch, epochs=wanted, verbose=0, callbacks=[epochs]
            ).history
            steps = -(-len(x) // batch)
            middle = sorted(epochs.seconds)[len(epochs.seconds) // 2]
            loss, accuracy = model.evaluate(x_test, y_test, batch_size=1000, verbose=0)
            say(
                item=item,
                data=data,
                first_step_s=first,
                ms_per_step=1e3 * middle / steps,
                fastest_ms_per_step=1e3 * min(epochs.seconds) / steps,
                epochs_run=len(epochs.seconds),
                epoch_s=epochs.seconds,
                ten_epochs_s=10 * sum(epochs.seconds) / len(epochs.seconds),
                train_loss=history["loss"],
                test_loss=loss,
                test_accuracy=accuracy,
                tflops=batch * cnn_flops() / (middle / steps) / 1e12,
                peak_memory_mb=memory(),
            )
        except Exception as error:
            say(item=item, **failure(error))
        finally:
            if item == "graph rewrite":
                tf.train.experimental.disable_mixed_precision_graph_rewrite()
            tf.config.experimental.enable_tensor_float_32_execution(True)
            model = history = None


# ---- models that alternate with PyTorch -----------------------------------------------------


class Tied(layers.Layer):
    """Tokens and positions as vectors, and vectors as logits by the same table."""

    def __init__(self, vocabulary, width, length, **kwargs):
        super().__init__(**kwargs)
        self.vocabulary, self.width, self.length = vocabulary, width, length

    def build(self, shape):
        normal = keras.initializers.RandomNormal(stddev=0.02)
        self.table = self.add_weight(
            name="tokens", shape=(self.vocabulary, self.width), initializer=normal
        )
        self.places = self.add_weight(
            name="positions", shape=(self.length, self.width), initializer=normal
        )
        super().build(shape)

    def call(self, tokens):
        table = tf.cast(self.table, self.compute_dtype)
        return tf.gather(table, tokens) + tf.cast(self.places, self.compute_dtype)

    def logits(self, x):
        return tf.matmul(x, tf.cast(self.table, self.compute_dtype), transpose_b=True)


class GPT2(keras.Model):
    """GPT-2: pre-normalised blocks of causal attention and a wide layer, with tied embeddings."""

    def __init__(self, vocabulary, width, heads, depth, length):
        super().__init__()
        self.embedding = Tied(vocabulary, width, length)
        self.blocks = []
        for _ in range(depth):
            norms = [layers.LayerNormalization(epsilon=1e-5) for _ in range(2)]
            attention = layers.MultiHeadAttention(heads, width // heads)
            wide = layers.Dense(4 * width, activation=lambda x: tf.nn.gelu(x, approximate=True))
            self.blocks.append([*norms, attention, wide, layers.Dense(width)])
        self.norm = layers.LayerNormalization(epsilon=1e-5)

    def call(self, tokens):
        x = self.embedding(tokens)
        for norm1, norm2, attention, wide, narrow in self.blocks:
            y = norm1(x)
            x = x + attention(y, y, use_causal_mask=True)
            x = x + narrow(wide(norm2(x)))
        return self.embedding.logits(self.norm(x))


def gpt2(s):
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    model = GPT2(s["vocabulary"], s["width"], s["heads"], s["depth"], s["length"])
    model.compile(
        keras.optimizers.AdamW(3e-4, weight_decay=0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    text = np.random.default_rng(0).integers(
        0, s["vocabulary"], (8 * s["batch"], s["length"] + 1), dtype=np.int32
    )
    return model, text[:, :-1], text[:, 1:]


def resnet50(s):
    """ResNet-50 with the strides in the 3x3 convolutions, for images of bytes."""
    keras.mixed_precision.set_global_policy("mixed_bfloat16")

    def convolved(x, filters, size, strides=1, relu=True):
        x = layers.Conv2D(filters, size, strides, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)
        return layers.ReLU()(x) if relu else x

    side, widths = s["side"], s["widths"]
    inputs = keras.Input((side, side, 3), dtype="uint8")
    x = layers.Rescaling(1 / 127.5, -1.0)(inputs)
    x = layers.MaxPooling2D(3, 2, "same")(convolved(x, widths[0], 7, 2))
    for stage, (width, count) in enumerate(zip(widths, s["blocks"], strict=True)):
        for block in range(count):
            strides = 2 if block == 0 and stage else 1
            y = convolved(x, width, 1)
            y = convolved(y, width, 3, strides)
            y = convolved(y, 4 * width, 1, relu=False)
            if block == 0:
                x = convolved(x, 4 * width, 1, strides, relu=False)
            x = layers.ReLU()(layers.Add()([x, y]))
    x = layers.Dense(s["classes"])(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, layers.Activation("linear", dtype="float32")(x))
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (4 * s["batch"], side, side, 3), dtype=np.uint8)
    return model, x, rng.integers(0, s["classes"], len(x), dtype=np.int32)


def lstm(s):
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    model = keras.Sequential(
        [
            keras.Input((s["length"],), dtype="int32"),
            layers.Embedding(s["vocabulary"], s["width"]),
            layers.LSTM(s["units"], return_sequences=True),
            layers.LSTM(s["units"]),
            layers.Dense(s["classes"]),
            layers.Activation("linear", dtype="float32"),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    x = rng.integers(0, s["vocabulary"], (4 * s["batch"], s["length"]), dtype=np.int32)
    return model, x, rng.integers(0, s["classes"], len(x), dtype=np.int32)


class DLRM(keras.Model):
    """Numbers through a network, categories through a table, and the products of all pairs through another."""

    def __init__(self, tables, rows, width, bottom, top):
        super().__init__()
        self.first_rows = tf.constant((np.arange(tables) * rows).astype(np.int32))
        self.table = layers.Embedding(tables * rows, width)
        self.bottom = [layers.Dense(n, activation="relu") for n in (*bottom, width)]
        self.top = [*[layers.Dense(n, activation="relu") for n in top], layers.Dense(1)]
        pairs = np.stack(np.tril_indices(tables + 1, -1), 1)
        self.pairs = tf.constant((pairs[:, 0] * (tables + 1) + pairs[:, 1]).astype(np.int32))

    def call(self, inputs):
        numbers, categories = inputs
        for layer in self.bottom:
            numbers = layer(numbers)
        vectors = self.table(categories + self.first_rows)
        every = tf.concat([numbers[:, None], vectors], 1)
        products = tf.matmul(every, every, transpose_b=True)
        products = tf.reshape(products, [-1, products.shape[1] * products.shape[2]])
        x = tf.concat([numbers, tf.gather(products, self.pairs, axis=1)], 1)
        for layer in self.top:
            x = layer(x)
        return x


def dlrm(s):
    model = DLRM(s["tables"], s["rows"], s["width"], s["bottom"], s["top"])
    model.compile(keras.optimizers.SGD(0.1), keras.losses.BinaryCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    count = 4 * s["batch"]
    numbers = rng.normal(size=(count, 13)).astype(np.float32)
    categories = rng.integers(0, s["rows"], (count, s["tables"]), dtype=np.int32)
    y = rng.integers(0, 2, (count, 1)).astype(np.float32)
    return model, (numbers, categories), y


def alternating(make, settings):
    """Trains as it is told: a line with a number of steps is answered by their seconds."""
    model, x, y = make(settings)
    batch = settings["batch"]

    def run(steps):
        start = time.perf_counter()
        history = model.fit(x, y, batch_size=batch, steps_per_epoch=steps, verbose=0)
        return time.perf_counter() - start, history.history["loss"][-1]

    run(1)
    first = time.time() - STARTED
    _, loss = run(3)
    from meshflow.kernels import flash_attention

    say(
        ready="meshflow",
        first_step_s=first,
        parameters=sum(int(np.prod(v.shape)) for v in model.trainable_variables),
        attention="xla" if not flash_attention.is_wanted() else "auto",
        loss=loss,
    )
    for line in sys.stdin:
        if not line.strip():
            continue
        seconds, loss = run(int(line.split()[-1]))
        say(seconds=seconds, loss=loss, peak_memory_mb=memory())


ALTERNATING = {"gpt2": gpt2, "resnet50": resnet50, "lstm": lstm, "dlrm": dlrm}

if __name__ == "__main__":
    part, given = sys.argv[1], json.loads(sys.argv[2])
    try:
        if part in ALTERNATING:
            alternating(ALTERNATING[part], given)
        else:
            {"ceilings": ceilings, "cnn": cnn}[part](given)
    except Exception as error:
        say(item=part, **failure(error))
        raise
