"""Pipelines with other options: layers that are computed again, and what that leaves in memory."""

import jax
import numpy as np
import pytest

import meshflow as tf
from distribute.parallel.test_pipeline import Own, compiled, curve, pipelined, same

LAYERS = tf.keras.layers
WIDTH, HIDDEN = 8, 64


def block():
    inputs = tf.keras.Input([WIDTH])
    return tf.keras.Model(
        inputs, inputs + LAYERS.Dense(WIDTH)(LAYERS.Dense(HIDDEN, "tanh")(inputs))
    )


def blocks(count):
    return lambda: tf.keras.Sequential([tf.keras.Input([WIDTH]), *(block() for _ in range(count))])


def batch(rows):
    x = np.random.default_rng(0).normal(size=(rows, WIDTH)).astype("float32")
    return x, np.tanh(x)


def in_stages(count, x, y, **options):
    """A model of blocks in two stages, and what its step is."""
    strategy = pipelined(micro_batches=4, **options)
    model = compiled(blocks(count), strategy, loss="mse")
    return model, strategy.explain(model, x, y)


def test_layers_that_are_computed_again_in_stages():
    x, y = batch(2048)
    (_, kept), (model, again) = (in_stages(4, x, y, recompute=r) for r in (None, "layer"))
    # What is computed again as one is not cut.
    assert [len(s.layers) for s in kept.pipeline.stages] == [4, 4]
    assert [len(s.layers) for s in again.pipeline.stages] == [2, 2]
    # Two blocks' hidden rows lie in memory at the same time, or one's.
    hidden = 4 * HIDDEN * 2048 // 4
    fallen = kept.step.memory["temporaries"] - again.step.memory["temporaries"]
    assert 0.85 * hidden < fallen < 1.15 * hidden
    assert again.step.sent("collective-permute") == kept.step.sent("collective-permute")
    plain = compiled(blocks(4), None, loss="mse")
    same(curve(model, x, y, 3, batch=2048), curve(plain, x, y, 3, batch=2048))


@pytest.mark.soak
def test_memory_of_layers_that_are_computed_again_grows_with_their_inputs_alone():
    x, y = batch(2048)

    def growth(how):
        few, many = (in_stages(n, x, y, recompute=how)[1] for n in (4, 8))
        return many.step.memory["temporaries"] - few.step.memory["temporaries"]

    # Two more blocks in each stage keep their hidden rows, or not.
    hidden = 4 * HIDDEN * 2048 // 4
    assert growth(None) - growth("layer") == pytest.approx(2 * hidden, rel=0.02)
    assert growth("layer") < 0.5 * hidden


@pytest.mark.soak
def test_state_and_random_numbers_of_layers_that_are_computed_again():
    x, y = batch(8)
    y = y[:, :1]
    plain = compiled(Own, None, loss="mse")
    expected = curve(plain, x, y, 3)
    for how in ("layer", jax.checkpoint_policies.dots_saveable):
        model = compiled(Own, pipelined(micro_batches=1, recompute=how), loss="mse")
        same(curve(model, x, y, 3), expected)
    wanted = plain.normed.moving_mean.numpy()
    np.testing.assert_allclose(model.normed.moving_mean.numpy(), wanted, rtol=1e-4, atol=1e-6)
