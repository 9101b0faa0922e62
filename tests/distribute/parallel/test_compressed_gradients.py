"""Gradients in few bits: nothing is lost in the long run, bytes are those of the codes, and training goes on as well."""

import contextlib

import jax.numpy as jnp
import numpy as np
import pytest

import meshflow as tf
from meshflow.distribute.parallel import compress
from meshflow.experimental import dtensor


@pytest.mark.parametrize("kind, bound", [("int8", 0.5 / 127), ("1bit", 1.0)])
def test_codes_and_what_they_lose(kind, bound, rng):
    values = jnp.asarray(rng.normal(size=(3, 4096)), jnp.float32)
    codes, scale = compress.encoded(values, kind)
    assert codes.nbytes == 3 * 4096 // (1 if kind == "int8" else 8)
    found = compress.decoded(codes, scale, kind)
    largest = jnp.abs(values).max()
    assert float(jnp.abs(found - values).max()) <= bound * float(largest) + 1e-6
    # With the error of each step in the next, sums over steps differ by no more than one error.
    error, sent = jnp.zeros_like(values), jnp.zeros_like(values)
    for _ in range(8):
        now = compress.decoded(*compress.encoded(values + error, kind), kind)
        error, sent = values + error - now, sent + now
    np.testing.assert_allclose(sent + error, 8 * values, atol=1e-4)
    assert not np.isnan(compress.decoded(*compress.encoded(jnp.zeros((1, 2048)), kind), kind)).any()


def trained(scope, x, y, optimizer="adam"):
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(3)
    with scope:
        wide = tf.keras.layers.Dense(128, "relu")
        model = tf.keras.Sequential([tf.keras.Input((64,)), wide, tf.keras.layers.Dense(64)])
        model.compile(optimizer, "mse")
    return model, model.fit(x, y, batch_size=32, epochs=5, verbose=0, shuffle=False)


def coded(kind, values):
    """Bytes of codes and numbers of so many values."""
    return (values if kind == "int8" else values // 8) + 4 * values // compress.BLOCKS[kind]


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
    _, expected = trained(contextlib.nullcontext(), x, y)
    mesh = dtensor.create_mesh({"data": 4})
    strategy = tf.distribute.MeshStrategy(mesh, "batch:data", compress=kind, **options)
    model, found = trained(strategy.scope(), x, y)
    limit = 0.02 if kind == "int8" else 0.25
    np.testing.assert_allclose(found.history["loss"], expected.history["loss"], rtol=limit)
    explained = dtensor.explain(model, x[:32], y[:32])
    # Two kernels of 8,192 values, and biases, which are sent as they are.
    assert explained.sent("all-to-all") == 2 * coded(kind, 8192) * 3 // 4
    if not options:
        assert explained.sent("all-gather") == 2 * coded(kind, 8192) * 3 // 4
    large = [c for c in explained.select("reduce-scatter") + explained.select("all-reduce")]
    assert sum(c.bytes for c in large) < 2048
    # What was lost is a part of the optimizer's state.
    kernel = model.layers[0].kernel
    error = model.optimizer.get_slot(kernel, "sent_error")
    assert error.shape == (4, 4, 2048) and float(tf.reduce_max(tf.abs(error))) > 0
    assert error._value.addressable_shards[0].data.shape == (1, 4, 2048)
    saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path / "c")
    assert any("sent_error" in name for name, _ in tf.train.list_variables(saved))
