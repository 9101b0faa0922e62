"""The Meshflow side of gpu.py: `gpu_models.py PART SETTINGS` runs one part and prints a JSON object for each result.

Lines that begin with `@@` are results. A part that is compared with PyTorch announces its first step and then waits for
orders on its input, so that gpu.py can alternate the two on one device.
"""

import contextlib
import json
import os
import pathlib
import sys
import tempfile
import time
import traceback

STARTED = float(os.environ.get("GPU_STARTED", time.time()))
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# A cached program would hide the time of the first step.
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


def memory(kind="peak_bytes_in_use"):
    """Return the peak of the device's memory so far in MB, or its current use; None if the device
    does not report it."""
    import jax

    stats = jax.local_devices()[0].memory_stats() or {}
    found = stats.get(kind)
    return None if found is None else round(found / 2**20)


class CompileSeconds:
    """Measure the seconds that JAX spends on tracing, lowering and compiling, including XLA's trials
    of kernels."""

    def __init__(self):
        from jax import monitoring

        self.seconds = {}
        monitoring.register_event_duration_secs_listener(self._add)

    def _add(self, name, seconds, **_):
        if "/compile/" in name:
            short = name.rsplit("/", 1)[1].removesuffix("_duration")
            self.seconds[short] = self.seconds.get(short, 0.0) + seconds

    def take(self):
        """Return the seconds since the last call."""
        found, self.seconds = self.seconds, {}
        return {name: round(seconds, 2) for name, seconds in found.items() if seconds > 0.05}


def kernels(run, steps, count=32):
    """Profile a function of some steps: milliseconds of a step by kernel, busy ones, and those from the first to the last.

    Without a GPU there are no kernels.
    """
    import jax

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run()
        (file,) = pathlib.Path(folder).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(file))
    total, calls, spans = {}, {}, []
    for plane in data.planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        for line in plane.lines:
            if not line.name.startswith("Stream"):
                continue
            for event in line.events:
                operation = ""
                with contextlib.suppress(Exception):
                    operation = dict(event.stats).get("hlo_op", "")
                key = f"{operation}: {event.name[:90]}"
                total[key] = total.get(key, 0.0) + event.duration_ns / 1e6 / steps
                calls[key] = calls.get(key, 0) + 1
                spans.append((event.start_ns, event.start_ns + event.duration_ns))
    busy, end = 0.0, 0.0
    for first, last in sorted(spans):
        busy += max(0.0, last - max(first, end))
        end = max(end, last)
    largest = sorted(total, key=total.get, reverse=True)[:count]
    return {
        "busy_ms": busy / 1e6 / steps,
        "span_ms": (end - min((s[0] for s in spans), default=0.0)) / 1e6 / steps,
        "kernels": {key: [round(total[key], 4), calls[key] / steps] for key in largest},
    }


def guarded(function, *arguments):
    """Return the result of a diagnosis, or its failure, which must not end the measurements."""
    try:
        return function(*arguments)
    except Exception as error:
        return failure(error)


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
    """Load CIFAR-10 from Keras' folder, or else generate images of its shape: a pattern for each
    class under noise."""
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


def state(model):
    """Return values that show whether training overflowed: finite weights, activations before
    normalization, the loss scale."""
    (normalization,) = (n for n in model.layers if isinstance(n, layers.BatchNormalization))
    scale = getattr(model.optimizer, "dynamic_scale", None)
    scale = getattr(model.optimizer, "loss_scale", None) if scale is None else scale
    return {
        "finite_weights": bool(all(np.isfinite(w).all() for w in model.get_weights())),
        "largest_moving_mean": float(np.abs(np.asarray(normalization.moving_mean)).max()),
        "largest_moving_variance": float(np.asarray(normalization.moving_variance).max()),
        "loss_scale": None if scale is None else str(getattr(scale, "numpy", lambda: scale)()),
    }


def cnn(settings):
    """The five ways to compute with, one after the other; each is reported when it is done.

    All batches are full, so that an item has one training program, which the first step compiles.
    """
    batch, wanted = settings["batch"], settings["epochs"]
    data, (x, y), (x_test, y_test) = cifar(settings["images"], settings["tests"])
    compiling = CompileSeconds()
    say(progress={"import_and_data_s": time.time() - STARTED}, item=settings["items"][0])
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
            compiling.take()
            model.fit(x[:batch], y[:batch], batch_size=batch, verbose=0)
            first = {"first_step_s": time.time() - began, "compile_s": compiling.take()}
            first["peak_after_first_step_mb"] = memory()
            # Clocks rise, and the step's time is known roughly even if the epochs take too long.
            start = time.perf_counter()
            warm = min(8, len(x) // batch) * batch
            model.fit(x[:warm], y[:warm], batch_size=batch, verbose=0)
            first["warm_ms_per_step"] = 1e3 * (time.perf_counter() - start) * batch / warm
            first["compile_s_of_second_fit"] = compiling.take()
            say(progress=first, item=item)
            keras.utils.set_random_seed(0)
            epochs = Epochs(settings["seconds"][item])
            steps = min(settings["steps"].get(item, len(x) // batch), len(x) // batch)
            start = time.perf_counter()
            history = model.fit(
                x[: steps * batch],
                y[: steps * batch],
                batch_size=batch,
                epochs=wanted,
                verbose=0,
                callbacks=[epochs],
            ).history
            took = time.perf_counter() - start
            # The first epoch starts the pipeline's threads.
            steady = epochs.seconds[1:] or epochs.seconds
            middle = sorted(steady)[len(steady) // 2] / steps
            found = {
                **first,
                "data": data,
                "ms_per_step": 1e3 * middle,
                "fastest_ms_per_step": 1e3 * min(epochs.seconds) / steps,
                "steps_of_an_epoch": steps,
                "epochs_run": len(epochs.seconds),
                "epoch_s": epochs.seconds,
                "measured_s": took,
                "compile_s_of_epochs": compiling.take(),
                # The article's epochs have 50,000 images, which are 157 batches.
                "ten_epochs_s": 10 * 157 * middle,
                "train_loss": history["loss"],
                "train_accuracy": history["accuracy"],
                "tflops": batch * cnn_flops() / middle / 1e12,
                "memory_in_use_mb": memory("bytes_in_use"),
                "peak_memory_mb": memory(),
                "state": guarded(state, model),
            }
            say(progress=found, item=item)
            if item in settings["tested"]:
                loss, accuracy = model.evaluate(x_test, y_test, batch_size=batch, verbose=0)
                found.update(test_loss=loss, test_accuracy=accuracy)
                found["compile_s_of_evaluate"] = compiling.take()
            if item in settings["profiled"]:
                part = x[: 4 * batch], y[: 4 * batch]
                run = lambda: model.fit(*part, batch_size=batch, verbose=0)  # noqa: B023
                found["profile"] = guarded(kernels, run, len(part[0]) // batch)
            say(item=item, **found)
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
    """Train by orders: a line with a number of steps is answered by their seconds, `profile` by the time of kernels."""
    compiling = CompileSeconds()
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
        compile_s=compiling.take(),
        peak_after_first_step_mb=memory(),
        parameters=sum(int(np.prod(v.shape)) for v in model.trainable_variables),
        attention="xla" if not flash_attention.is_enabled() else "auto",
        loss=loss,
    )
    for line in sys.stdin:
        if not line.strip():
            continue
        if line.startswith("profile"):
            say(profile=guarded(kernels, lambda: run(4), 4))
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
