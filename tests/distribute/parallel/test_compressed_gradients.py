"""Test compressed gradients: no error accumulates, bytes equal those of the codes, and training
converges equally."""

import contextlib

import jax.numpy as jnp
import numpy as np
import pytest

import meshflow as tf
from meshflow.distribute.parallel import gradient_compression
from meshflow.experimental import dtensor


@pytest.mark.parametrize("kind, bound", [("int8", 0.5 / 127), ("1bit", 1.0)])
def test_compression_codes_and_their_errors(kind, bound, rng):
    values = jnp.asarray(rng.normal(size=(3, 4096)), jnp.float32)
    codes, scale = gradient_compression.encode(values, kind)
    assert codes.nbytes == 3 * 4096 // (1 if kind == "int8" else 8)
    found = gradient_compression.decode(codes, scale, kind)
    largest = jnp.abs(values).max()
    assert float(jnp.abs(found - values).max()) <= bound * float(largest) + 1e-6
    # With the error of each step in the next, sums over steps differ by no more than one error.
    error, sent = jnp.zeros_like(values), jnp.zeros_like(values)
    for _ in range(8):
        now = gradient_compression.decode(*gradient_compression.encode(values + error, kind), kind)
        error, sent = values + error - now, sent + now
    np.testing.assert_allclose(sent + error, 8 * values, atol=1e-4)
    assert not np.isnan(
        gradient_compression.decode(*gradient_compression.encode(jnp.zeros((1, 2048)), kind), kind)
    ).any()


def train_model(scope, x, y, optimizer="adam", epochs=5):
    tf.keras.backend.reset_uids()
    tf.keras.utils.set_random_seed(3)
    with scope:
        wide = tf.keras.layers.Dense(128, "relu")
        model = tf.keras.Sequential([tf.keras.Input((64,)), wide, tf.keras.layers.Dense(64)])
        model.compile(optimizer, "mse")
    return model, model.fit(x, y, batch_size=32, epochs=epochs, verbose=0, shuffle=False)


def count_code_bytes(kind, values):
    """Return the bytes of codes and numbers of a number of values."""
    return (
        values if kind == "int8" else values // 8
    ) + 4 * values // gradient_compression.BLOCK_LENGTHS[kind]


@pytest.mark.parametrize(
    "kind, options",
    [
        ("int8", {}),
        pytest.param("1bit", {"zero": 1, "micro_batches": 2}, marks=pytest.mark.soak),
        pytest.param("int8", {"zero": 3}, marks=pytest.mark.soak),
    ],
)
def test_fit_sends_codes_and_learns_as_well(kind, options, rng, tmp_path):
    x = rng.normal(size=(112, 64)).astype("float32")
    y = np.tanh(x @ rng.normal(size=(64, 64)).astype("float32") / 8)
    _, expected = train_model(contextlib.nullcontext(), x, y)
    mesh = dtensor.create_mesh({"data": 4})
    strategy = tf.distribute.MeshStrategy(mesh, "batch:data", compress=kind, **options)
    model, found = train_model(strategy.scope(), x, y)
    limit = 0.02 if kind == "int8" else 0.25
    np.testing.assert_allclose(found.history["loss"], expected.history["loss"], rtol=limit)
    explained = dtensor.explain(model, x[:32], y[:32])
    # Two kernels of 8,192 values, and biases, which are sent uncompressed.
    assert explained.sent("all-to-all") == 2 * count_code_bytes(kind, 8192) * 3 // 4
    if not options:
        assert explained.sent("all-gather") == 2 * count_code_bytes(kind, 8192) * 3 // 4
    large = [c for c in explained.select("reduce-scatter") + explained.select("all-reduce")]
    assert sum(c.bytes for c in large) < 2048
    # Compression residuals are part of the optimizer's state.
    kernel = model.layers[0].kernel
    error = model.optimizer.get_slot(kernel, "sent_error")
    assert error.shape == (4, 4, 2048) and float(tf.reduce_max(tf.abs(error))) > 0
    assert error._value.addressable_shards[0].data.shape == (1, 4, 2048)
    saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path / "c")
    assert any("sent_error" in name for name, _ in tf.train.list_variables(saved))


def problem(rng):
    x = rng.normal(size=(112, 64)).astype("float32")
    return x, np.tanh(x @ rng.normal(size=(64, 64)).astype("float32") / 8)


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"zero": 2, "micro_batches": 2}, marks=pytest.mark.soak)]
)
def test_first_gradients_are_uncompressed(options, rng):
    x, y = problem(rng)
    _, expected = train_model(contextlib.nullcontext(), x, y)
    mesh = dtensor.create_mesh({"data": 4})
    strategy = tf.distribute.MeshStrategy(
        mesh, "batch:data", compress="1bit", compress_after=8, **options
    )
    model, found = train_model(strategy.scope(), x, y, epochs=2)
    losses = found.history["loss"]
    np.testing.assert_allclose(losses, expected.history["loss"][:2], rtol=1e-5)
    kernel = model.layers[0].kernel
    error = model.optimizer.get_slot(kernel, "sent_error")
    # Four steps an epoch: not one value was rounded yet.
    assert not np.asarray(error).any()
    more = model.fit(x, y, batch_size=32, epochs=3, verbose=0, shuffle=False)
    assert np.asarray(error).any()
    np.testing.assert_allclose(more.history["loss"], expected.history["loss"][2:], rtol=0.1)


def test_checkpoints_load_on_other_meshes_without_residuals(rng, tmp_path):
    """Test that residuals belong to the devices that made them: other devices start without
    residuals."""
    x, y = problem(rng)

    def of(devices, read=None):
        mesh = dtensor.create_mesh({"data": devices}, devices=[f"CPU:{i}" for i in range(devices)])
        rounds = {"compress": "int8"} if devices > 1 else {}
        strategy = tf.distribute.MeshStrategy(mesh, "batch:data", **rounds)
        if read is None:
            return train_model(strategy.scope(), x, y, epochs=1)[0]
        with strategy.scope():
            return tf.keras.models.load_model(read)

    first = of(4)
    path = tf.train.Checkpoint(model=first, optimizer=first.optimizer).write(str(tmp_path / "c"))
    first.save(tmp_path / "m.keras")
    second = of(2)
    kernel = second.layers[0].kernel
    error = second.optimizer.get_slot(kernel, "sent_error")
    assert error.numpy().any()
    tf.train.Checkpoint(model=second, optimizer=second.optimizer).read(path)
    assert not error.numpy().any()
    for model in (second, of(2, tmp_path / "m.keras"), of(1, tmp_path / "m.keras")):
        for slot in ("m", "v"):
            found, wanted = (m.optimizer.get_slot(m.layers[0].kernel, slot) for m in (model, first))
            np.testing.assert_array_equal(found, wanted)


def test_compression_residuals_are_restored(rng, tmp_path):
    """Files are read before there is anything to put the errors into."""
    x, y = problem(rng)
    fit = {"batch_size": 32, "shuffle": False, "verbose": 0}

    def new():
        mesh = dtensor.create_mesh({"data": 4})
        strategy = tf.distribute.MeshStrategy(mesh, "batch:data", compress="1bit")
        tf.keras.utils.set_random_seed(3)
        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.Input((64,)), tf.keras.layers.Dense(64)])
            model.compile("adam", "mse")
        return model, tf.train.Checkpoint(model=model, optimizer=model.optimizer)

    model, checkpoint = new()
    model.fit(x, y, **fit)
    path = checkpoint.write(str(tmp_path / "c"))
    again, other = new()
    other.read(path)
    for going_on in (model, again):
        going_on.fit(x, y, **fit)
    np.testing.assert_array_equal(again.layers[0].kernel, model.layers[0].kernel)


def in_one_bit(values):
    blocks = values.reshape(-1, 2048)
    signs = np.where(blocks >= 0, 1, -1)
    return (signs * np.abs(blocks).mean(-1, keepdims=True)).reshape(values.shape)


def run_one_bit_adam(w, x, y, steps, freeze):
    """The algorithm on four devices by NumPy, 8,192 weights of one product and mean squares."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    sent, back = np.zeros((4, 4, 2048)), np.zeros((4, 2048))
    for t in range(1, steps + 1):
        shares = [
            2 * a.T @ (a @ w - b) / b.size
            for a, b in zip(np.split(x, 4), np.split(y, 4), strict=True)
        ]
        if t <= freeze:
            g = sum(shares) / 4
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        else:
            values = np.stack([(0.9 * m + 0.1 * g).reshape(4, 2048) / 4 for g in shares]) + sent
            codes = in_one_bit(values)
            sent = values - codes
            total = codes.sum(0) + back
            whole = in_one_bit(total)
            back, m = total - whole, whole.reshape(w.shape)
        rate = 1e-3 * np.sqrt(1 - 0.999 ** min(t, freeze)) / (1 - 0.9**t)
        w = w - rate * m / (np.sqrt(v) + 1e-7)
    return w


def test_one_bit_adam_sends_momentum(rng):
    x = rng.normal(size=(32, 64)).astype("float32")
    y = rng.normal(size=(32, 128)).astype("float32")
    strategy = tf.distribute.MeshStrategy(
        dtensor.create_mesh({"data": 4}), "batch:data", compress="1bit"
    )
    with strategy.scope():
        layer = tf.keras.layers.Dense(128, use_bias=False)
        model = tf.keras.Sequential([tf.keras.Input((64,)), layer])
        model.compile(tf.keras.optimizers.OneBitAdam(1e-3, freeze_step=3), "mse")
    start = layer.kernel.numpy().astype("float64")
    model.fit(x, y, batch_size=32, epochs=3, verbose=0, shuffle=False)
    np.testing.assert_allclose(layer.kernel, run_one_bit_adam(start, x, y, 3, 3), atol=1e-6)
    variance = model.optimizer.get_slot(layer.kernel, "v").numpy()
    model.fit(x, y, batch_size=32, epochs=4, verbose=0, shuffle=False)
    np.testing.assert_array_equal(model.optimizer.get_slot(layer.kernel, "v"), variance)
    expected = run_one_bit_adam(start, x, y, 7, 3)
    # A share of the momentum that is all but zero may have either sign.
    off = np.abs(layer.kernel.numpy() - expected) > 1e-6
    assert off.mean() < 0.01 and np.abs(expected - start).mean() > 1e-3


def test_one_bit_adam_errors():
    mesh = dtensor.create_mesh({"data": 4})
    with pytest.raises(
        ValueError, match="compress_after=3 sets when compression of gradients starts"
    ):
        tf.distribute.MeshStrategy(mesh, "batch:data", compress_after=3)
    adam = tf.keras.optimizers.OneBitAdam
    with pytest.raises(ValueError, match="`freeze_step` must be an integer of at least 1"):
        adam(freeze_step=0)
    with pytest.raises(ValueError, match=r"'global_clipnorm'.* need gradients"):
        adam(global_clipnorm=1.0)
    for options, match in (({"zero": 1}, "zero=0"), ({"compress_after": 3}, "settles for 5")):
        strategy = tf.distribute.MeshStrategy(mesh, "batch:data", compress="1bit", **options)
        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.Input((64,)), tf.keras.layers.Dense(128)])
            model.compile(adam(freeze_step=5), "mse")
        with pytest.raises(ValueError, match=match):
            model.fit(tf.ones([8, 64]), tf.ones([8, 128]), verbose=0)
