"""Gradients of several steps averaged before one update, by the optimizer or `compile`."""

import contextlib

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close

OPTIMIZERS = tf.keras.optimizers
X = np.random.RandomState(0).randn(64, 4).astype("float32")
Y = X[:, :1] ** 2


def trained(optimizer, batch, strategy=None, epochs=3, **compiled):
    """Losses, weights and number of updates after training on X and Y in order."""
    with strategy.scope() if strategy else contextlib.nullcontext():
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential(
            [tf.keras.Input((4,)), tf.keras.layers.Dense(8, "tanh"), tf.keras.layers.Dense(1)]
        )
        optimizer = optimizer()
        model.compile(optimizer, "mse", **compiled)
    history = model.fit(X, Y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0)
    return history.history["loss"], model.get_weights(), int(optimizer.iterations)


def adam(steps=None, **kwargs):
    kwargs = {"global_clipnorm": 1.0, "weight_decay": 0.01, **kwargs}
    if steps is not None:
        kwargs["gradient_accumulation_steps"] = steps
    return OPTIMIZERS.Adam(0.05, **kwargs)


def check_same(one, other):
    for a, b in zip(one[1], other[1], strict=True):
        assert_close(a, b, rtol=1e-4)
    np.testing.assert_allclose(one[0], other[0], rtol=1e-5)
    assert one[2] == other[2]


@pytest.mark.parametrize(
    "how",
    [
        {"of": "optimizer"},
        {"gradient_accumulation_steps": 4},
        {"of": "optimizer", "run_eagerly": True},
        {"of": "optimizer", "steps_per_execution": 4},
        {"of": "optimizer", "scaled": True},
        {"of": "optimizer", "strategy": "mirrored"},
    ],
    ids=str,
)
def test_accumulated_small_batches_equal_one_large_batch(how):
    how = dict(how)
    steps = 4 if how.pop("of", None) else None
    scaled = how.pop("scaled", False)
    strategy = tf.distribute.MirroredStrategy() if how.pop("strategy", None) else None

    def optimizer():
        inner = adam(steps)
        return tf.keras.mixed_precision.LossScaleOptimizer(inner) if scaled else inner

    found = trained(optimizer, 8, strategy, **how)
    assert found[2] == 3 * 64 // 32
    check_same(found, trained(adam, 32))


def test_variables_move_at_every_kth_call_only():
    v = tf.Variable([1.0, 2.0])
    optimizer = OPTIMIZERS.SGD(1.0, gradient_accumulation_steps=3)
    seen = []
    for gradient in (3.0, 6.0, 9.0, 1.0, 1.0, 4.0):
        optimizer.apply_gradients([(tf.constant([gradient, 0.0]), v)])
        seen.append((v.numpy().tolist(), int(optimizer.iterations)))
    after, last = [-5.0, 2.0], [-7.0, 2.0]
    start = [1.0, 2.0]
    assert seen == [(start, 0), (start, 0), (after, 1), (after, 1), (after, 1), (last, 2)]


def test_custom_loops_schedules_averages_and_rows():
    def run(k, compiled):
        table = tf.Variable(np.ones([5, 2], "float32"))
        rate = OPTIMIZERS.schedules.ExponentialDecay(0.5, 1, 0.5)
        optimizer = OPTIMIZERS.Adam(
            rate, use_ema=True, **({"gradient_accumulation_steps": k} if k else {})
        )

        def step(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.nn.embedding_lookup(table, ids) ** 2)
            optimizer.minimize(loss, [table], tape=tape)

        step = tf.function(step) if compiled else step
        for ids in np.array([[0, 1, 1, 2], [2, 3, 0, 0]] * 2):
            for part in np.split(ids, k or 1):
                step(tf.constant(part))
        return (
            table.numpy(),
            optimizer.get_slot(table, "average").numpy(),
            float(optimizer._decayed_lr("float32")),
        )

    for compiled in (False, True):
        for a, b in zip(run(None, compiled), run(2, compiled), strict=True):
            assert_close(a, b)


@pytest.mark.parametrize("compiled", [False, True])
def test_step_with_nonfinite_gradients_is_skipped(compiled):
    v = tf.Variable([1.0])
    inner = OPTIMIZERS.SGD(1.0, gradient_accumulation_steps=2)
    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(inner)
    assert optimizer.gradient_accumulation_steps == 2

    def step(gradient):
        optimizer.apply_gradients(
            zip(optimizer.get_unscaled_gradients([gradient]), [v], strict=True)
        )

    step = tf.function(step) if compiled else step
    optimizer.build([v])
    optimizer.get_scaled_loss(tf.constant(0.0))
    seen = []
    for gradient in (2.0, np.inf, 4.0):
        step(tf.constant([gradient]) * optimizer.loss_scale)
        seen.append((float(v[0]), int(optimizer.iterations)))
    assert seen == [(1.0, 0), (1.0, 0), (-2.0, 1)]
    assert int(optimizer.skipped_steps) == 1


def test_a_checkpoint_in_the_middle_of_a_round(tmp_path):
    def made():
        v = tf.Variable([1.0])
        optimizer = OPTIMIZERS.Adam(0.5, gradient_accumulation_steps=2)
        return v, optimizer, tf.train.Checkpoint(v=v, optimizer=optimizer)

    v, optimizer, checkpoint = made()
    gradients = [tf.constant([g]) for g in (1.0, -2.0, 3.0, 0.5)]
    for g in gradients[:3]:
        optimizer.apply_gradients([(g, v)])
    path = checkpoint.save(tmp_path / "ckpt")
    w, other, again = made()
    status = again.restore(path)
    other.build([w])
    status.assert_consumed()
    for variable, one in ((v, optimizer), (w, other)):
        one.apply_gradients([(gradients[3], variable)])
        assert int(one.iterations) == 2
    assert w.numpy() == v.numpy() and float(v[0]) != 1.0


def test_configurations_and_saved_models_preserve_accumulation(tmp_path):
    config = adam(4).get_config()
    assert config["gradient_accumulation_steps"] == 4
    assert "gradient_accumulation_steps" not in adam().get_config()
    assert OPTIMIZERS.Adam.from_config(config).gradient_accumulation_steps == 4
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile("adam", "mse", gradient_accumulation_steps=2)
    model.fit(X, Y, batch_size=16, epochs=1, verbose=0)
    model.save(tmp_path / "m.keras")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras")
    assert loaded.optimizer.gradient_accumulation_steps == 2
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations) == 2


@pytest.mark.parametrize("steps", [1, 0, -2, 2.5, True, "2"])
def test_invalid_numbers_of_steps(steps):
    with pytest.raises(
        ValueError, match=r"Adam: `gradient_accumulation_steps` must be an integer >= 2"
    ):
        OPTIMIZERS.Adam(gradient_accumulation_steps=steps)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    with pytest.raises(ValueError, match=r"compile: .* must be an integer >= 2"):
        model.compile("adam", "mse", gradient_accumulation_steps=steps)


def test_two_places_must_agree():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(adam(2), "mse", gradient_accumulation_steps=2)
    with pytest.raises(ValueError, match="was made with 2"):
        model.compile(adam(2), "mse", gradient_accumulation_steps=3)


def test_any_optimizer_and_transformation_of_optax():
    optax = pytest.importorskip("optax")

    def trained_by(make):
        v = tf.Variable([1.0, -2.0])
        optimizer = make()
        for gradient in (0.5, 1.5, 2.0, 4.0):
            for part in (-1.0, 1.0) if optimizer.gradient_accumulation_steps else (0.0,):
                optimizer.apply_gradients([(tf.constant([gradient + part, 1.0]), v)])
        return v.numpy(), int(optimizer.iterations)

    for make in (
        lambda **kw: OPTIMIZERS.experimental.AdamW(0.1, **kw),
        lambda **kw: OPTIMIZERS.Ftrl(0.1, **kw),
        lambda **kw: OPTIMIZERS.legacy.SGD(0.1, momentum=0.9, **kw),
        lambda **kw: OPTIMIZERS.OptaxOptimizer(optax.adam(0.1), **kw),
    ):
        one, two = trained_by(make), trained_by(lambda: make(gradient_accumulation_steps=2))
        assert_close(one[0], two[0])
        assert one[1] == two[1] == 4
