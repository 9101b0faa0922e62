"""Pipelines with other options: layers computed again, states in parts, weights that rules divide."""

import re

import jax
import numpy as np
import pytest

import meshflow as tf
from distribute.parallel.test_pipeline import Own, compiled, curve, mesh_of, pipelined, same
from meshflow.dtensor.explanation import _trace

LAYERS = tf.keras.layers
WIDTH, HIDDEN = 8, 64
SOAK = pytest.mark.soak


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
    """Return a model of blocks in two stages, and the properties of its step."""
    strategy = pipelined(micro_batches=4, **options)
    model = compiled(blocks(count), strategy, loss="mse")
    return model, strategy.explain(model, x, y)


def test_layers_that_are_computed_again_in_stages():
    x, y = batch(2048)
    (_, kept), (model, again) = (in_stages(4, x, y, recompute=r) for r in (None, "layer"))
    # A block that is recomputed as a whole is not cut.
    assert [len(s.layers) for s in kept.pipeline.stages] == [4, 4]
    assert [len(s.layers) for s in again.pipeline.stages] == [2, 2]
    # The hidden rows of two blocks exist at the same time, or of one.
    hidden = 4 * HIDDEN * 2048 // 4
    fallen = kept.step.memory["temporaries"] - again.step.memory["temporaries"]
    assert 0.85 * hidden < fallen < 1.15 * hidden
    assert again.step.sent("collective-permute") == kept.step.sent("collective-permute")
    plain = compiled(blocks(4), None, loss="mse")
    same(curve(model, x, y, 3, batch=2048), curve(plain, x, y, 3, batch=2048))


@SOAK
def test_memory_of_recomputed_layers_grows_only_with_their_inputs():
    x, y = batch(2048)

    def growth(how):
        few, many = (in_stages(n, x, y, recompute=how)[1] for n in (4, 8))
        return many.step.memory["temporaries"] - few.step.memory["temporaries"]

    # Two more blocks in each stage keep their hidden rows, or not.
    hidden = 4 * HIDDEN * 2048 // 4
    assert growth(None) - growth("layer") == pytest.approx(2 * hidden, rel=0.02)
    assert growth("layer") < 0.5 * hidden


@SOAK
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


def square():
    return tf.keras.Sequential(
        [tf.keras.Input([16]), *(LAYERS.Dense(16, "tanh") for _ in range(4))]
    )


@pytest.mark.parametrize("zero", [*(pytest.param(n, marks=SOAK) for n in range(3)), 3])
def test_bytes_of_stages_in_parts(zero):
    """Weights and slots are on the devices of their stage, divided over those of the batch."""
    p, n = 2, 2
    strategy = pipelined(stage=p, data=n, micro_batches=2, zero=zero)
    model = compiled(square, strategy, loss="mse")
    model.optimizer.build(model.trainable_variables)
    x = np.ones((16, 16), np.float32)
    step = strategy.explain(model, x, x).step
    # Of one stage: two kernels, two biases; and the means of the loss.
    weights, losses = 2 * 4 * (16 * 16 + 16), 2 * 4
    ring = lambda size, devices: size * (devices - 1) // devices
    expected = {
        "all-to-all": 0,
        "all-reduce": 2 * ring(0 if zero else weights, n) + losses,
        # Weights are gathered before a step, or after it.
        "all-gather": ring(weights, n) if zero else 0,
        "reduce-scatter": ring(weights, n) if zero else 0,
    }
    assert {kind: step.sent(kind) for kind in expected} == expected
    held, slots = weights // (n if zero == 3 else 1), 2 * weights // (n if zero else 1)
    assert 0 <= step.memory["arguments"] - held - slots - 2 * x.nbytes // n < 64
    if zero == 3:
        assert model.layers[0].kernel.layout.sharding_specs == ["stage", "data"]


def pairs():
    """Define blocks of two products; a rule divides the hidden axis between them."""
    widths = [32, 16] * 4
    return tf.keras.Sequential([tf.keras.Input([16]), *(LAYERS.Dense(w, "tanh") for w in widths)])


@pytest.mark.parametrize("schedule", [pytest.param("1f1b", marks=SOAK), "zero_bubble"])
def test_weights_that_rules_divide_in_stages(schedule):
    p, n, m, rows = 2, 2, 2, 8
    pipeline = tf.distribute.Pipeline("stage", schedule)
    strategy = tf.distribute.MeshStrategy(
        mesh_of(stage=p, model=n), "hidden:model", pipeline=pipeline, micro_batches=m
    )
    model = compiled(pairs, strategy, loss="mse")
    x = np.random.default_rng(0).normal(size=(m * rows, 16)).astype("float32")
    step = strategy.explain(model, x, x).step
    ring = lambda size, devices: size * (devices - 1) // devices
    # A stage has two blocks. A tick reduces the outputs of each in its forward pass, once more in
    # the backward pass, and there the gradients of each block's inputs. Weight passes send nothing,
    # and do not recompute the forward pass.
    ticks, blocks, edge = m + 2 * p - 2, 2, 4 * rows * 16
    sums = [c for c in step.collectives if c.axes == ("model",)]
    assert {c.kind for c in sums} == {"all-reduce"}
    assert sum(c.sent * c.times for c in sums) == ticks * 3 * blocks * 2 * ring(edge, n)
    assert step.sent("collective-permute") == (m + p - 2) * 2 * edge
    # Weights stay on their stages.
    assert {c.kind for c in step.collectives} == {"all-reduce", "collective-permute"}
    assert model.layers[0].kernel.layout.sharding_specs == ["stage", "model"]
    plain = compiled(pairs, None, loss="mse")
    same(curve(model, x, x, 3, batch=m * rows), curve(plain, x, x, 3, batch=m * rows))
    np.testing.assert_allclose(
        model.predict(x, verbose=0), plain.predict(x, verbose=0), rtol=1e-4, atol=1e-5
    )


def offloading(schedule, **options):
    """Return a model of blocks in two stages with offloaded states, weights and activations, and
    its curve."""
    everything = ("optimizer", "parameters", "activations")
    strategy = pipelined(schedule, data=2, micro_batches=2, offload=everything, **options)
    x, y = batch(16)
    made = compiled(blocks(4), strategy, loss="mse")
    return strategy, made, curve(made, x, y, 3, batch=16)


@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        ("1f1b", {"zero": 3, "recompute": "layer"}),
        pytest.param("1f1b", {}, marks=SOAK),
        pytest.param("zero_bubble", {"recompute": "layer"}, marks=SOAK),
        pytest.param("zero_bubble", {"zero": 1}, marks=SOAK),
        pytest.param("interleaved:2", {"zero": 2}, marks=SOAK),
    ],
)
def test_stages_with_states_weights_and_activations_in_files(schedule, options, tmp_path):
    x, y = batch(16)
    expected = curve(compiled(blocks(4), None, loss="mse"), x, y, 3, batch=16)
    strategy, model, found = offloading(schedule, offload_to=tmp_path, **options)
    same(found, expected)
    weights = model.trainable_variables
    slots = [model.optimizer.get_slot(w, n) for w in weights for n in ("m", "v")]
    held = [v._held for v in (*weights, *slots)]
    assert None not in held
    # Each device reads its parts in a step, and writes them.
    parts = sum(4 * np.prod(h.sharding.shard_shape(h.shape), dtype=int) for h in held)
    files = strategy.files["activations"]
    inputs = 4 * WIDTH * 16 // 2
    if options.get("recompute"):
        # Of each stage's two blocks the inputs, of a device's rows.
        assert files.read_bytes == files.written_bytes == 3 * 4 * (parts + 2 * inputs)
    else:
        assert files.written_bytes > 3 * 4 * (parts + 2 * inputs)
    # Storage of one backward pass is reused by the next.
    assert max(p._size for p in strategy.scratch._device_files) <= 2
    assert strategy.explain(model, x, y).step.memory["to_files"] > 0


def test_accelerator_stages_move_offloaded_values():
    _, model, _ = offloading("1f1b", zero=3, recompute="layer")
    x, y = batch(16)
    concrete, arrays = _trace(model, (x, y), {})
    captured = [c._value for c in concrete.traced.captures]
    assert {c.sharding.memory_kind for c in captured if isinstance(c, jax.Array)} > {"pinned_host"}
    text = concrete.lower(arrays, captured, ("cuda",)).as_text()
    placed = re.findall(r'_xla_buffer_placement = "(\w+)"', text)
    # Weights and two slots of each, there and back; and the inputs of blocks: equal stages are one program, if they are.
    moves = placed.count("pinned_host") - 3 * len(model.trainable_variables)
    assert placed.count("device") == placed.count("pinned_host") and moves in (2, 4)


def gated():
    """Slice the values that a rule divides."""
    inputs = tf.keras.Input([16])
    x = LAYERS.Dense(64)(inputs)
    x = LAYERS.Lambda(lambda t: t[..., :32] * tf.sigmoid(t[..., 32:]))(x)
    return tf.keras.Model(inputs, LAYERS.Dense(4)(LAYERS.Dense(16)(x)))


def test_rules_that_would_deadlock_a_stage_are_refused():
    pipeline = tf.distribute.Pipeline("stage")
    mesh = mesh_of(stage=2, model=2)
    strategy = tf.distribute.MeshStrategy(mesh, "hidden:model", pipeline=pipeline)
    model = compiled(gated, strategy, loss="mse")
    x = np.ones((8, 16), np.float32)
    with pytest.raises(
        ValueError, match=r"hidden:model divide a layer .*lambda.* in the middle of a stage"
    ):
        model.fit(x, x[:, :4], verbose=0)
    layouts = tf.keras.dtensor.experimental.LayoutMap(mesh)
    layouts[".*kernel"] = tf.experimental.dtensor.Layout(["unsharded", "model+stage"], mesh)
    strategy = tf.distribute.MeshStrategy(mesh, layouts, pipeline=pipeline)
    with pytest.raises(ValueError, match=r"splits axis 1 of the weight .* over 'model\+stage'"):
        compiled(square, strategy, loss="mse").fit(x, x, verbose=0)
