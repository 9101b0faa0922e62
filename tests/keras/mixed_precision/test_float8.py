"""The policy `mixed_float8`: products of rounded operands, with scales from former steps."""

import ml_dtypes
import numpy as np
import pytest
from sklearn.datasets import load_digits

import meshflow as tf
from meshflow.keras.mixed_precision import float8

LAYERS = tf.keras.layers
BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    monkeypatch.setenv(float8.EMULATION_VARIABLE, "1")
    yield
    tf.keras.mixed_precision.set_global_policy(None)


class Emulation:
    """Compute the history and the result of a product in NumPy."""

    def __init__(self, length):
        self.history = {name: [0.0] * length for name in ("x", "w", "dy")}

    def rounded(self, name, array, kind):
        """Round `array` to an 8-bit format; its magnitude enters the history."""
        limit = float(ml_dtypes.finfo(kind).max)
        own = float(np.abs(array.astype("f4")).max())
        known = max(self.history[name]) or own
        scale = 2.0 ** np.floor(np.log2(limit / known)) if known else 1.0
        self.history[name] = [own, *self.history[name][:-1]]
        scaled = np.clip(array.astype("f4") * scale, -limit, limit)
        return scaled.astype(kind).astype("f4") / np.float32(scale)


def close(found, wanted, atol=0.0):
    # One unit of bfloat16: sums of products may be rounded after another order of adding.
    wanted = np.asarray(wanted, "f4")
    np.testing.assert_allclose(np.asarray(found, "f4"), wanted, rtol=2**-7, atol=atol or 1e-6)


def test_dense_equals_numpy(rng):
    policy = tf.keras.mixed_precision.Policy("mixed_float8", amax_history_length=3)
    layer = LAYERS.Dense(5, use_bias=False, dtype=policy)
    layer.build((None, 8))
    twin = Emulation(3)
    # Magnitudes that grow past the scale, shrink, and leave the history again.
    for factor in (1.0, 8.0, 0.01, 0.01, 0.01, 0.01):
        x = (factor * rng.normal(size=(16, 8))).astype(BF16)
        dy = (factor * 1e-4 * rng.normal(size=(16, 5))).astype(BF16)
        layer.kernel.assign(rng.normal(size=(8, 5)))
        with tf.GradientTape() as tape:
            inputs = tf.constant(x)
            tape.watch(inputs)
            y = layer(inputs)
        dx, dw = tape.gradient(y, [inputs, layer.kernel], output_gradients=tf.constant(dy))
        xq = twin.rounded("x", x, E4M3)
        wq = twin.rounded("w", layer.kernel.numpy().astype(BF16), E4M3)
        dyq = twin.rounded("dy", dy, E5M2)
        assert y.dtype == "bfloat16" and dx.dtype == "bfloat16" and dw.dtype == "float32"
        close(y, xq @ wq, 0.02 * factor)
        close(dx, dyq @ wq.T, 1e-5 * factor)
        close(dw, xq.T @ dyq, 1e-5 * factor**2)
        history = layer._float8_state.amax_history.numpy()
        np.testing.assert_array_equal(history, np.float32(list(twin.history.values())))


def test_rounding_is_that_of_the_formats(rng):
    for kind, most in ((E4M3, 448.0), (E5M2, 57344.0)):
        for dtype in ("bfloat16", "float16", "float32"):
            x = np.concatenate(
                [rng.normal(size=500) * 2.0 ** rng.integers(-20, 10, 500), [0, -0.0]]
            )
            x = x.astype(dtype)
            scale = float(float8.compute_scale(float8.compute_amax(x), kind))
            top = float(np.abs(x.astype("f8")).max())
            assert scale * top <= most < 2 * scale * top
            wanted = (x.astype("f4") * scale).astype(kind).astype("f4") / scale
            found = np.asarray(float8.round_scaled(x, np.float32(scale), kind))
            assert found.dtype == dtype
            np.testing.assert_array_equal(found.astype("f4"), wanted.astype(dtype).astype("f4"))
    # Numbers beyond the scale do not become infinite.
    x = np.float32([1e9, -1e9])
    np.testing.assert_array_equal(float8.round_scaled(x, np.float32(1), E4M3), [448.0, -448.0])


def test_degenerate_magnitudes_have_usable_scales():
    for value in (0.0, 1e-45, 1e-30, 3e38, np.inf):
        scale = float(float8.compute_scale(np.float32(value), E5M2))
        assert 0 < scale < np.inf and 0 < 1 / scale < np.inf


KINDS = {
    "conv1d": (lambda: LAYERS.Conv1D(4, 3, padding="causal"), (6, 8)),
    "conv2d": (lambda: LAYERS.Conv2D(4, 3, strides=2, padding="same"), (6, 6, 3)),
    "conv3d": (lambda: LAYERS.Conv3D(2, 2), (4, 4, 4, 2)),
    "grouped": (lambda: LAYERS.Conv2D(4, 3, groups=2), (5, 5, 4)),
    "transposed": (lambda: LAYERS.Conv2DTranspose(4, 3, strides=2), (3, 3, 2)),
    "dense over time": (lambda: LAYERS.Dense(4), (3, 5)),
    "einsum": (lambda: LAYERS.EinsumDense("abc,cde->abde", (None, 2, 3)), (3, 5)),
}


@pytest.mark.parametrize("name", KINDS)
def test_layers_round_input_kernel_and_gradient(name, rng):
    make, shape = KINDS[name]
    x = rng.normal(size=(2, *shape)).astype("f4")
    tf.keras.mixed_precision.set_global_policy("mixed_float8")
    layer = make()
    layer(x)
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    plain = make()
    plain.build(x.shape)
    twin = Emulation(1)
    plain.kernel.assign(twin.rounded("w", layer.kernel.numpy().astype(BF16), E4M3))
    inputs, rounded = (
        tf.constant(x.astype(BF16)),
        tf.constant(twin.rounded("x", x.astype(BF16), E4M3)),
    )
    dy = rng.normal(size=plain(rounded).shape.as_list()).astype(BF16)

    def run(layer, x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return [y, *tape.gradient(y, [x, layer.kernel], output_gradients=tf.constant(dy))]

    wanted = run(plain, rounded, twin.rounded("dy", dy, E5M2).astype(BF16))
    for found, value in zip(run(layer, inputs, dy), wanted, strict=True):
        close(found, value, 0.02)


def test_attention_rounds_its_projections(rng):
    layer = LAYERS.MultiHeadAttention(2, 4, dtype="mixed_float8")
    x = tf.constant(rng.normal(size=(2, 3, 8)).astype("f4"))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.cast(layer(x, x, training=True), "float32") ** 2)
    assert all(g is not None for g in tape.gradient(loss, layer.trainable_weights))
    for part in (layer._query_dense, layer._key_dense, layer._value_dense, layer._output_dense):
        assert (part._float8_state.amax_history.numpy()[:, 0] > 0).all()
        assert (part._float8_state.amax_history.numpy()[:, 1] == 0).all()


def plain_attention(layer, x):
    layer.build([x.shape, x.shape])
    return layer([x, x], training=True)


ATTENTION = {
    "heads": (lambda: LAYERS.MultiHeadAttention(2, 4), lambda m, x: m(x, x, training=True)),
    "dot": (LAYERS.Attention, plain_attention),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_products_of_attention_are_rounded(name, rng):
    make, call = ATTENTION[name]
    tf.keras.mixed_precision.set_global_policy("mixed_float8")
    layer = make()
    tf.keras.mixed_precision.set_global_policy(None)
    x = tf.constant(rng.normal(size=(2, 5, 8)).astype(BF16))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = call(layer, x)
    assert np.isfinite(tape.gradient(y, x).numpy().astype("f4")).all()
    for state in (layer._float8_scores, layer._float8_values):
        assert (state.amax_history.numpy()[:, 0] > 0).all()
    # The weights are at most 1, and the largest of them is remembered.
    assert 0.2 < layer._float8_values.amax_history[0, 0] <= 1
    exact = make()
    call(exact, x)
    exact.set_weights(layer.get_weights())
    close(y, call(exact, tf.cast(x, "float32")), 0.25)


@pytest.mark.parametrize("rank", [1, 2])
def test_separable_convolutions_round_their_second_product(rank, rng):
    kind = (LAYERS.SeparableConv1D, LAYERS.SeparableConv2D)[rank - 1]
    layer = kind(4, 3, strides=2, padding="same", dtype="mixed_float8")
    x = rng.normal(size=(2, *(7, 6)[:rank], 5)).astype(BF16)
    y = layer(tf.constant(x), training=True)
    history = layer._float8_state.amax_history.numpy()
    largest = np.abs(layer.pointwise_kernel.numpy().astype(BF16).astype("f4")).max()
    assert history[0, 0] > 0 and history[1, 0] == largest
    exact = kind(4, 3, strides=2, padding="same")
    exact.build(x.shape)
    exact.set_weights(layer.get_weights())
    close(y, exact(x.astype("f4")), 0.2)


def model(policy="mixed_float8", **compiling):
    tf.keras.utils.set_random_seed(2)
    tf.keras.mixed_precision.set_global_policy(policy)
    made = tf.keras.Sequential(
        [
            LAYERS.Dense(16, "relu", input_shape=(8,)),
            LAYERS.Dense(4),
            LAYERS.Activation("softmax", dtype="float32"),
        ]
    )
    tf.keras.mixed_precision.set_global_policy(None)
    made.compile("sgd", "sparse_categorical_crossentropy", **compiling)
    return made


def histories(made):
    return [d._float8_state.amax_history.numpy() for d in made.layers[:2]]


def data(rng, count=32):
    x = rng.normal(size=(count, 8)).astype("f4")
    return x, (x[:, :4].argmax(1)).astype("i4")


def test_training_in_every_way_remembers_the_same(rng):
    x, y = data(rng)

    def by_hand(made, wrap):
        loss_fn = tf.keras.losses.SparseCategoricalCrossentropy()

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_fn(y, made(x, training=True))
            gradients = tape.gradient(loss, made.trainable_variables)
            made.optimizer.apply_gradients(zip(gradients, made.trainable_variables, strict=True))

        run = wrap(step)
        for i in range(0, 32, 8):
            run(tf.constant(x[i : i + 8]), tf.constant(y[i : i + 8]))
        return made

    def fitted(**compiling):
        made = model(**compiling)
        made.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        return made

    ways = [
        fitted(),
        fitted(run_eagerly=True),
        fitted(steps_per_execution=2),
        by_hand(model(), lambda step: step),
        by_hand(model(), tf.function),
    ]
    for made in ways:
        for found, wanted in zip(histories(made), histories(ways[0]), strict=True):
            assert (found[:, :4] > 0).all() and not found[:, 4:].any()
            np.testing.assert_allclose(found, wanted, rtol=0.02)
        for found, wanted in zip(made.get_weights(), ways[0].get_weights(), strict=True):
            np.testing.assert_allclose(found, wanted, atol=2e-3)


def test_inference_updates_no_history(rng):
    x, y = data(rng)
    made = model()
    made.evaluate(x, y, verbose=0)
    made.predict(x, verbose=0)
    made(x)
    made(x, training=False)
    assert not any(h.any() for h in histories(made))
    made.fit(x, y, verbose=0)
    before = histories(made)
    made.predict(x, verbose=0)
    for found, wanted in zip(histories(made), before, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_gradients_of_a_compiled_call_scale_themselves(rng):
    x, _ = data(rng)
    made = model()
    call = tf.function(lambda x: made(x, training=True))

    def gradients(function):
        with tf.GradientTape() as tape:
            loss = 1e-6 * tf.reduce_mean(function(tf.constant(x))[:, 0])
        return tape.gradient(loss, made.trainable_variables)

    for found, wanted in zip(gradients(call), gradients(made), strict=True):
        assert np.abs(wanted).max() > 0
        np.testing.assert_allclose(found, wanted, atol=0.05 * np.abs(wanted).max())
    assert not histories(made)[0][2, 1:].any() and (histories(made)[0][:2, :2] > 0).all()


def test_other_derivatives(rng):
    layer = LAYERS.Dense(3, dtype="mixed_float8")
    x = tf.constant(rng.normal(size=(2, 4)).astype("f4"))
    layer(x)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = tf.cast(layer(x), "float32")
    rows = tape.jacobian(y, x)
    kernel = layer.kernel.numpy()
    np.testing.assert_allclose(rows[0, :, 0], kernel.T, rtol=0.1)
    np.testing.assert_array_equal(rows[0, :, 1], 0)
    # A layer without gradients yet; its first gradients exceed those of the second derivative,
    # which use their scale and would be clipped.
    fresh = LAYERS.Dense(3, dtype="mixed_float8")
    fresh.build(x.shape)
    fresh.kernel.assign(kernel)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.cast(fresh(x), "float32")
            z = tf.reduce_sum(y**3 + 20 * y)
        first = inner.gradient(z, x)
    second = outer.gradient(first, x)
    y, sums = x.numpy() @ kernel, kernel.sum(0)
    wanted = (6 * y * sums) @ kernel.T
    # Each factor with its roundings: inputs and kernels to 3 bits, gradients, twice, to 2, all to 7.
    size, low, four, five = np.abs, 1 + 2**-8, 1 + 2**-4, 1 + 2**-3
    y = size(y) + size(x) @ size(kernel) * (four**2 * low - 1)
    sums = size(sums) + size(kernel).sum(0) * (four * low - 1)
    most = (6 * y * sums * five**2 * low**4) @ (size(kernel).T * four)
    least = (6 * size(x.numpy() @ kernel) * size(kernel.sum(0))) @ size(kernel).T
    assert (size(second - wanted) <= most - least).all()
    again = tf.recompute_grad(lambda x: tf.cast(layer(x), "float32"))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = again(x)
    off = size(tape.gradient(y, x)[0] - kernel.sum(1))
    assert (off <= size(kernel).sum(1) * (four * low**2 - 1)).all()


def test_an_overflow_is_not_remembered():
    layer = LAYERS.Dense(2, dtype="mixed_float8")
    with tf.GradientTape():
        layer(tf.constant([[1.0, 2.0]]))
        layer(tf.constant([[np.inf, 2.0]]))
    np.testing.assert_array_equal(layer._float8_state.amax_history[0, :3], [0, 2, 0])


def test_histories_are_no_weights_but_are_saved(rng, tmp_path):
    x, y = data(rng)
    made = model()
    made.fit(x, y, verbose=0)
    other = model("mixed_bfloat16")
    assert len(made.weights) == len(other.weights) == 4 and not made.non_trainable_weights
    assert made.count_params() == other.count_params()
    other.set_weights(made.get_weights())
    made.save_weights(str(tmp_path / "weights.h5"))
    other.load_weights(str(tmp_path / "weights.h5"))
    path = tf.train.Checkpoint(model=made).write(str(tmp_path / "checkpoint"))
    again = model()
    again(x)
    tf.train.Checkpoint(model=again).restore(path).assert_consumed()
    for found, wanted in zip(histories(again), histories(made), strict=True):
        np.testing.assert_array_equal(found, wanted)
    again.fit(x, y, verbose=0, shuffle=False)
    made.fit(x, y, verbose=0, shuffle=False)
    for found, wanted in zip(again.get_weights(), made.get_weights(), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_checkpoint_may_be_restored_before_the_layer_is_built(rng, tmp_path):
    x = rng.normal(size=(4, 3)).astype("f4")
    layer = LAYERS.Dense(2, dtype="mixed_float8")
    with tf.GradientTape():
        layer(x)
    path = tf.train.Checkpoint(layer=layer).write(str(tmp_path / "checkpoint"))
    later = LAYERS.Dense(2, dtype="mixed_float8")
    status = tf.train.Checkpoint(layer=later).restore(path)
    later(x)
    status.assert_consumed()
    found = later._float8_state.amax_history.numpy()
    np.testing.assert_array_equal(found, layer._float8_state.amax_history.numpy())


def test_policies_are_configurations():
    Policy = tf.keras.mixed_precision.Policy
    policy = Policy("mixed_float8")
    assert (policy.compute_dtype, policy.variable_dtype) == ("bfloat16", "float32")
    assert policy.amax_history_length == 1024 and policy == Policy("mixed_float8")
    short = Policy("mixed_float8", amax_history_length=16)
    assert short != policy and Policy.from_config(short.get_config()) == short
    layer = LAYERS.Dense(2, dtype=short)
    copy = LAYERS.Dense.from_config(layer.get_config())
    assert copy.dtype_policy == short
    assert LAYERS.Dense(2, dtype="mixed_float8").get_config()["dtype"]["config"] == {
        "name": "mixed_float8"
    }
    for name, length in (("mixed_float8", 0), ("mixed_float8", 1.5), ("float32", 4)):
        with pytest.raises(ValueError, match="amax_history_length must be a positive integer"):
            Policy(name, amax_history_length=length)


def test_missing_float8_units_error_names_the_device(monkeypatch):
    monkeypatch.delenv(float8.EMULATION_VARIABLE)
    with pytest.raises(tf.errors.UnimplementedError) as error:
        tf.keras.mixed_precision.set_global_policy("mixed_float8")
    text = str(error.value)
    assert "needs a GPU with float8 matrix units, found cpu" in text
    assert "MESHFLOW_EMULATE_FLOAT8=1" in text and "mixed_bfloat16" in text
    assert tf.keras.mixed_precision.global_policy().name == "float32"

    class Device:
        platform, device_kind, compute_capability = "gpu", "Some GPU", "8.0"

    monkeypatch.setattr(float8.jax, "devices", lambda: [Device])
    assert (
        float8.find_unavailability_reason()
        == "needs compute capability 8.9 or newer, Some GPU has 8.0"
    )
    Device.compute_capability = "gfx90a"
    assert "gfx90a" in float8.find_unavailability_reason()
    Device.compute_capability = "9.0"
    assert float8.find_unavailability_reason() is None


def test_mirrored_training_has_the_history_of_one_device(rng):
    x, y = data(rng)
    alone = model()
    alone.fit(x, y, batch_size=16, shuffle=False, verbose=0)
    strategy = tf.distribute.MirroredStrategy()
    assert strategy.num_replicas_in_sync > 1
    with strategy.scope():
        made = model()
    made.fit(x, y, batch_size=16, shuffle=False, verbose=0)
    for found, wanted in zip(histories(made), histories(alone), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0.02)
    for found, wanted in zip(made.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-3)


@pytest.mark.parametrize("count", [32, 30])
def test_replicas_share_a_history(rng, count):
    x, y = data(rng, count)
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        made = model()
    alone = model()
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(reduction="sum")

    def trained(made):
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_fn(y, made(x, training=True)) / 32.0
            gradients = tape.gradient(loss, made.trainable_variables)
            made.optimizer.apply_gradients(zip(gradients, made.trainable_variables, strict=True))

        return step

    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    run = tf.function(lambda x, y: strategy.run(trained(made), (x, y)))
    for batch in strategy.experimental_distribute_dataset(batches):
        run(*batch)
    trained(alone)(tf.constant(x), tf.constant(y))
    for found, wanted in zip(histories(made), histories(alone), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0.02)
    for found, wanted in zip(made.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-3)


def test_accuracy_on_digits():
    images, labels = load_digits(return_X_y=True)
    # Complete batches, which need one program.
    x, y = (images / 16).astype("f4")[:1792], labels.astype("i4")[:1792]
    accuracy = {}
    for policy in ("float32", "mixed_float8"):
        tf.keras.utils.set_random_seed(2)
        tf.keras.mixed_precision.set_global_policy(policy)
        made = tf.keras.Sequential(
            [
                LAYERS.Reshape((8, 8, 1), input_shape=(64,)),
                LAYERS.Conv2D(16, 3, strides=2, activation="relu"),
                LAYERS.Flatten(),
                LAYERS.Dense(64, "relu"),
                LAYERS.Dense(10),
                LAYERS.Activation("softmax", dtype="float32"),
            ]
        )
        made.compile(
            tf.keras.optimizers.Adam(0.005), "sparse_categorical_crossentropy", metrics=["accuracy"]
        )
        made.fit(x[::2], y[::2], batch_size=32, epochs=20, verbose=0)
        accuracy[policy] = made.evaluate(x[1::2], y[1::2], batch_size=32, verbose=0)[1]
    assert accuracy["float32"] > 0.95
    assert accuracy["mixed_float8"] > accuracy["float32"] - 0.01
