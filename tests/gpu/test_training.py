"""Layers, optimizers, mixed precision, `fit`, and checkpoints on the default device against the CPU."""

import jax
import numpy as np
import pytest

import forked
import meshflow as tf
from device_and_cpu import BFLOAT16, FLOAT32, ON_GPU, TF32, assert_alike, distance, on_both, values

pytestmark = pytest.mark.gpu

layers = tf.keras.layers
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(4, 16, 16, 8)).astype(np.float32)
SEQUENCES = RNG.normal(size=(4, 12, 16)).astype(np.float32)
ROWS = RNG.normal(size=(8, 16)).astype(np.float32)
TOKENS = RNG.integers(0, 50, (4, 12)).astype(np.int32)

LAYERS = {
    "of rows": (
        ROWS,
        {
            "Dense": lambda: layers.Dense(8, "relu"),
            "BatchNormalization": layers.BatchNormalization,
            "LayerNormalization": layers.LayerNormalization,
            "UnitNormalization": layers.UnitNormalization,
            "PReLU": layers.PReLU,
            "EinsumDense": lambda: layers.EinsumDense("ab,bc->ac", 8, bias_axes="c"),
        },
    ),
    "of images": (
        IMAGES,
        {
            "Conv2D": lambda: layers.Conv2D(8, 3, padding="same", activation="relu"),
            "Conv2D, strided": lambda: layers.Conv2D(8, 3, 2),
            "grouped": lambda: layers.Conv2D(8, 3, groups=2),
            "DepthwiseConv2D": lambda: layers.DepthwiseConv2D(3),
            "SeparableConv2D": lambda: layers.SeparableConv2D(8, 3),
            "Conv2DTranspose": lambda: layers.Conv2DTranspose(8, 3, 2),
            "MaxPooling2D": layers.MaxPooling2D,
            "AveragePooling2D": layers.AveragePooling2D,
            "GlobalAveragePooling2D": layers.GlobalAveragePooling2D,
            "UpSampling2D": layers.UpSampling2D,
            "BatchNormalization": layers.BatchNormalization,
            "GroupNormalization": lambda: layers.GroupNormalization(4),
        },
    ),
    "of sequences": (
        SEQUENCES,
        {
            "LSTM": lambda: layers.LSTM(8, return_sequences=True),
            "GRU": lambda: layers.GRU(8),
            "SimpleRNN": lambda: layers.SimpleRNN(8),
            "Bidirectional": lambda: layers.Bidirectional(layers.LSTM(8)),
            "Conv1D": lambda: layers.Conv1D(8, 3, padding="causal"),
            "Attention": lambda: _Self(layers.Attention()),
            "MultiHeadAttention": lambda: _Self(layers.MultiHeadAttention(2, 8)),
        },
    ),
    "of tokens": (TOKENS, {"Embedding": lambda: layers.Embedding(50, 8)}),
}


class _Self(layers.Layer):
    """Attention of a sequence to itself."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def call(self, x):
        return self.attention(
            *([x, x] if isinstance(self.attention, layers.MultiHeadAttention) else [[x, x]])
        )


@pytest.mark.parametrize("group", LAYERS)
def test_layers(group):
    inputs, makers = LAYERS[group]
    tf.keras.utils.set_random_seed(1)
    made = {name: make() for name, make in makers.items()}
    for layer in made.values():
        layer(inputs)

    def run(x):
        results = []
        for layer in made.values():
            with tf.GradientTape() as tape:
                value = layer(x, training=True)
                loss = tf.reduce_sum(value * tf.cos(value))
            gradients = tape.gradient(loss, layer.trainable_variables)
            results.append([value, *map(tf.convert_to_tensor, gradients)])
        return results

    names = [
        f"{name} {i}"
        for name, layer in made.items()
        for i in range(1 + len(layer.trainable_variables))
    ]
    here, there = on_both(run, inputs)
    # A softmax is invariant to a constant added to all keys, so the gradient of the key's bias
    # consists of rounding errors. They are measured relative to the gradient of the key's kernel.
    scales = {"MultiHeadAttention 4": "MultiHeadAttention 3"}
    assert_alike(names, here, there, 3 * TF32, scales)


OPTIMIZERS = (
    "SGD",
    "Adam",
    "AdamW",
    "RMSprop",
    "Adagrad",
    "Adadelta",
    "Adamax",
    "Nadam",
    "Ftrl",
    "Lion",
)


def test_optimizers():
    start = RNG.normal(size=(64, 96)).astype(np.float32)
    gradients = [RNG.normal(size=start.shape).astype(np.float32) for _ in range(3)]

    def trained():
        variables = [tf.Variable(start) for _ in OPTIMIZERS]
        optimizers = [getattr(tf.keras.optimizers, name)(0.01) for name in OPTIMIZERS]
        for optimizer, variable in zip(optimizers, variables, strict=True):
            optimizer.build([variable])

        @tf.function(autograph=False)
        def step(gradient):
            for optimizer, variable in zip(optimizers, variables, strict=True):
                optimizer.apply_gradients([(gradient, variable)])

        for gradient in gradients:
            step(tf.constant(gradient))
        return values(variables)

    here = trained()
    with tf.device("CPU:0"):
        there = trained()
    assert_alike(OPTIMIZERS, here, there, FLOAT32)


def _classes(count=512):
    """Return images whose brightest quarter is the class."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 4, count)
    images = rng.normal(size=(count, 8, 8, 3)).astype(np.float32) * 0.3
    for image, label in zip(images, labels, strict=True):
        image[4 * (label // 2) :][:4, 4 * (label % 2) :][:, :4] += 1.0
    return images, labels.astype(np.int32)


def _net():
    return tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 3)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(4),
            layers.Activation("softmax", dtype="float32"),
        ]
    )


def _compiled(policy="float32", seed=3):
    tf.keras.utils.set_random_seed(seed)
    tf.keras.mixed_precision.set_global_policy(policy)
    model = _net()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_fit_evaluate_and_predict(policy):
    images, labels = _classes()
    model = _compiled(policy)
    history = model.fit(images, labels, batch_size=64, epochs=4, verbose=0).history
    assert history["loss"][-1] < 0.3 * history["loss"][0]
    loss, accuracy = model.evaluate(images, labels, batch_size=128, verbose=0)
    assert accuracy > 0.9 and loss < history["loss"][0]
    predicted = model.predict(images[:50], verbose=0)
    with tf.device("CPU:0"):
        there = model(images[:50], training=False).numpy()
    assert_alike(["predictions"], [predicted], [there], TF32 if policy == "float32" else BFLOAT16)
    if policy == "mixed_float16":
        assert isinstance(model.optimizer, tf.keras.mixed_precision.LossScaleOptimizer)
        assert float(model.optimizer.loss_scale) > 1.0


def test_losses_are_those_of_the_cpu():
    images, labels = _classes(256)
    found = []
    for device in (None, "CPU:0"):
        with tf.device(device):
            history = _compiled().fit(
                images, labels, batch_size=64, epochs=2, verbose=0, shuffle=False
            )
            found.append(history.history["loss"])
    np.testing.assert_allclose(*found, rtol=5e-3)


def test_a_step_that_overflows_is_skipped():
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(1.0))
    variable = tf.Variable([1.0, 2.0])

    @tf.function(autograph=False)
    def step(factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(variable, "float16") * factor)
            scaled = optimizer.get_scaled_loss(loss)
        gradients = tape.gradient(scaled, [variable])
        optimizer.apply_gradients(
            zip(optimizer.get_unscaled_gradients(gradients), [variable], strict=True)
        )

    before = float(optimizer.loss_scale)
    step(tf.constant(60000.0, "float16"))
    np.testing.assert_array_equal(variable.numpy(), [1.0, 2.0])
    assert float(optimizer.loss_scale) == before / 2
    step(tf.constant(2.0**-10, "float16"))
    np.testing.assert_allclose(variable.numpy(), [1.0 - 2**-10, 2.0 - 2**-10], rtol=1e-6)


def test_the_graph_rewrite_to_mixed_precision():
    images, labels = _classes()
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
    try:
        history = _compiled().fit(images, labels, batch_size=64, epochs=4, verbose=0).history
    finally:
        tf.config.optimizer.set_experimental_options({"auto_mixed_precision": False})
    assert history["loss"][-1] < 0.3 * history["loss"][0]


def test_several_steps_of_one_call():
    images, labels = _classes(256)
    plain, looped = _compiled(), _compiled()
    looped.compile("adam", "sparse_categorical_crossentropy", steps_per_execution=4)
    for model in (plain, looped):
        model.fit(images, labels, batch_size=32, epochs=1, shuffle=False, verbose=0)
    here, there = values(looped.get_weights()), values(plain.get_weights())
    assert_alike(list(map(str, range(len(here)))), here, there, 0.02)


def test_a_pipeline_feeds_the_device():
    images, labels = _classes()
    scale = tf.Variable(0.5)
    dataset = (
        tf.data.Dataset.from_tensor_slices((images, labels))
        .map(lambda x, y: (x * scale + tf.random.uniform([], 0.0, 0.01), y))
        .shuffle(100)
        .batch(64, drop_remainder=True)
        .prefetch(2)
    )
    batch = next(iter(dataset))[0]
    assert ("GPU" in batch.device) == ON_GPU
    history = _compiled().fit(dataset, epochs=4, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]


def test_maps_run_on_the_cpu():
    from meshflow.data.execution.cpu_programs import compile_for_cpu

    found = compile_for_cpu(lambda x: x + 1)(np.ones(100_000, np.float32))
    assert {device.platform for device in found.devices()} == {"cpu"}


def test_a_loop_over_an_iterator_in_a_function():
    dataset = tf.data.Dataset.range(10).map(lambda i: tf.cast(i, tf.float32)).batch(2)

    @tf.function
    def total(iterator):
        result = 0.0
        for batch in iterator:
            result += tf.reduce_sum(batch)
        return result

    assert float(total(iter(dataset))) == 45.0


def test_checkpoints_and_files(tmp_path):
    images, labels = _classes(128)
    model = _compiled()
    model.fit(images, labels, batch_size=64, epochs=1, verbose=0)
    expected = model.predict(images[:16], verbose=0)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = checkpoint.save(str(tmp_path / "checkpoint"))
    model.fit(images, labels, batch_size=64, epochs=1, verbose=0)
    assert not np.array_equal(model.predict(images[:16], verbose=0), expected)
    checkpoint.restore(path).assert_consumed()
    np.testing.assert_array_equal(model.predict(images[:16], verbose=0), expected)
    model.save(str(tmp_path / "model.keras"))
    loaded = tf.keras.models.load_model(str(tmp_path / "model.keras"))
    np.testing.assert_allclose(loaded.predict(images[:16], verbose=0), expected, atol=1e-5)
    model.export(str(tmp_path / "exported"))
    served = tf.saved_model.load(str(tmp_path / "exported")).serve(images[:16])
    np.testing.assert_allclose(served.numpy(), expected, atol=5e-3)


def test_variables_are_updated_in_place(compile_tier):
    images, labels = _classes(128)
    model = _compiled()
    model.fit(images, labels, batch_size=64, epochs=1, verbose=0)
    before = [v._value for v in model.trainable_variables]
    addresses = {a.unsafe_buffer_pointer() for a in before}
    del before
    model.fit(images, labels, batch_size=64, epochs=1, verbose=0)
    after = {v._value.unsafe_buffer_pointer() for v in model.trainable_variables}
    assert len(addresses & after) >= len(after) // 2


@pytest.mark.parametrize(
    ("causal", "length"), [(False, 128), (True, 128), (True, 1024 if ON_GPU else 192)]
)
def test_fused_attention(causal, length):
    from meshflow.kernels import flash_attention

    arrays = np.random.default_rng(1).normal(size=(3, 2, length, 4, 64)).astype(np.float32)
    q, k, v = (tf.cast(a, "bfloat16") for a in arrays)
    assert flash_attention.is_usable(q._value, k._value, v._value, False) == ON_GPU

    def attend(dtype, q, k, v):
        # All runs read the same numbers, those that bfloat16 represents.
        factors = [tf.cast(tf.cast(a, "bfloat16"), dtype) for a in (q, k, v)]
        with tf.GradientTape() as tape:
            tape.watch(factors)
            value = tf.keras.ops.dot_product_attention(*factors, is_causal=causal)
            value = tf.cast(value, "float64" if dtype == "float64" else "float32")
            loss = tf.reduce_sum(value * value)
        return [value, *tape.gradient(loss, factors)]

    here = values(tf.function(lambda *a: attend("bfloat16", *a), autograph=False)(*arrays))
    with tf.device("CPU:0"):
        there = values(tf.function(lambda *a: attend("bfloat16", *a), autograph=False)(*arrays))
        exact = values(tf.function(lambda *a: attend("float64", *a), autograph=False)(*arrays))
    names = ["value", "d q", "d k", "d v"]
    # Rounding to bfloat16 accounts for about 0.003 of each.
    report = {}
    for name, found, plain, reference in zip(names, here, there, exact, strict=True):
        wrong, right = (
            np.sqrt(np.square(a, dtype=np.float64).sum((0, 2, 3)))
            for a in (found - reference, reference)
        )
        report[name] = {
            "device": distance(found.astype(np.float64), reference),
            "CPU": distance(plain.astype(np.float64), reference),
            "largest errors at": {int(i): float(wrong[i]) for i in np.argsort(-wrong)[:6]},
            "norm there": float(right[np.argmax(wrong)]),
            "scale": float(np.vdot(found, reference) / np.vdot(reference, reference)),
        }
    assert all(r["device"] <= BFLOAT16 for r in report.values()), report


@pytest.mark.skipif(not ON_GPU, reason="XLA's CPU compiler chooses the accumulators itself")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_gradient_of_a_bias_is_summed_in_float32(dtype):
    @tf.function(autograph=False)
    def slope(x, bias):
        with tf.GradientTape() as tape:
            tape.watch(bias)
            loss = tf.reduce_sum(tf.cast(tf.nn.bias_add(x, bias) * x, "float32"))
        return tape.gradient(loss, bias)

    x = tf.cast(tf.fill([64, 32, 32, 128], 0.25), dtype)
    found = slope(x, tf.zeros([128], dtype))
    np.testing.assert_array_equal(np.asarray(found.numpy(), np.float32), 64 * 32 * 32 * 0.25)


def test_causal_attention_sees_no_later_position():
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    layer = layers.MultiHeadAttention(4, 64)
    attend = tf.function(lambda x: layer(x, x, use_causal_mask=True), autograph=False)
    x = np.random.default_rng(1).normal(size=(2, 1024, 256)).astype(np.float32)
    changed = x.copy()
    changed[:, 700] += 1.0
    first, second = (np.asarray(attend(a).numpy(), np.float32) for a in (x, changed))
    np.testing.assert_array_equal(first[:, :700], second[:, :700])
    assert np.abs(first[:, 700:] - second[:, 700:]).max() > 1e-4


def test_tensorfloat_32_can_be_turned_off():
    x = RNG.normal(size=(512, 512)).astype(np.float32)
    exact = x.astype(np.float64) @ x.astype(np.float64)
    product = tf.function(lambda a: tf.matmul(a, a))
    far = {}
    try:
        for enabled in (True, False):
            tf.config.experimental.enable_tensor_float_32_execution(enabled)
            found = tf.matmul(tf.constant(x), tf.constant(x)), product(tf.constant(x))
            far[enabled] = [
                float(np.linalg.norm(f.numpy() - exact) / np.linalg.norm(exact)) for f in found
            ]
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(True)
    assert max(far[False]) < 2e-6, far
    assert max(far[True]) < TF32, far
    if ON_GPU:
        assert min(far[True]) > 2e-5, far


DETERMINISTIC = """
import numpy as np, meshflow as tf
def trained():
    tf.keras.utils.set_random_seed(7)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(256, 8, 8, 3)).astype(np.float32), rng.integers(0, 4, 256)
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Conv2D(16, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten(),
        layers.Dropout(0.2), layers.Dense(32, activation="relu"), layers.Dense(4)])
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, batch_size=32, epochs=2, verbose=0)
    return b"".join(w.tobytes() for w in model.get_weights())
print("same" if trained() == trained() else "different")
"""


def test_two_runs_are_bitwise_equal():
    code, text = forked.run(DETERMINISTIC, after="import jax", TF_DETERMINISTIC_OPS="1")
    assert code == 0 and text.strip().endswith("same"), text


def test_device_memory_is_reported():
    if not ON_GPU:
        with pytest.raises(ValueError, match="Allocator stats not available"):
            tf.config.experimental.get_memory_info("CPU:0")
        return
    kept = tf.zeros([1 << 20])
    found = tf.config.experimental.get_memory_info("GPU:0")
    assert found["peak"] >= found["current"] >= 4 << 20 and kept is not None
    details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0])
    assert details["compute_capability"] >= (7, 0) and details["device_name"]
    assert jax.local_devices()[0].platform == "gpu"
