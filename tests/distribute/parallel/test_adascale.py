"""AdaScale: gains of gradients that strategies, accumulation and replicas divide, beside NumPy's."""

import numpy as np
import pytest

import meshflow as tf
from distribute.parallel.training import mesh, mlp, trained

SGD, AdaScale = tf.keras.optimizers.SGD, tf.keras.optimizers.AdaScale


class Reference:
    """The algorithm for a product and mean squares: momentum, and a schedule of a rate for each step."""

    def __init__(self, w, parts, scale=None, smoothing=None, momentum=0.9):
        self.w, self.parts, self.momentum = w.astype("float64"), parts, momentum
        self.scale = parts if scale is None else scale
        self.smoothing = max(1 - self.scale / 1000, 0) if smoothing is None else smoothing
        self.velocity, self.position, self.averages = np.zeros_like(self.w), 0.0, np.zeros(2)

    def step(self, x, y, rate):
        n, scale = self.parts, self.scale
        shares = [
            2 * a.T @ (a @ self.w - b) / b.size
            for a, b in zip(np.split(x, n), np.split(y, n), strict=True)
        ]
        mean = sum(shares) / n
        local, total = sum((g**2).sum() for g in shares), (mean**2).sum()
        # As FairScale writes it.
        variance = local * (scale / n) / (n - 1) - total * scale / (n - 1)
        square = max(total - variance / scale, 0)
        new = np.array([max(variance, 1e-6), square])
        self.averages = self.smoothing * self.averages + (1 - self.smoothing) * new
        v, u = self.averages
        gain = (v + u) / (v / scale + u)
        self.velocity = self.momentum * self.velocity - gain * rate(int(self.position)) * mean
        self.w = self.w + self.velocity
        self.position += gain
        return gain


def problem(rng, rows=16):
    x = rng.normal(size=(rows, 6)).astype("float32")
    return x, (x @ rng.normal(size=(6, 3)) + rng.normal(size=(rows, 3))).astype("float32")


def model_of(optimizer, **compiled):
    layer = tf.keras.layers.Dense(3, use_bias=False)
    model = tf.keras.Sequential([tf.keras.Input((6,)), layer])
    model.compile(optimizer, "mse", **compiled)
    return model, layer.kernel


def rates(step):
    return 0.05 if step < 5 else 0.02


def schedule():
    # A boundary belongs to the rate before it.
    return tf.keras.optimizers.schedules.PiecewiseConstantDecay([4], [0.05, 0.02])


@pytest.mark.parametrize(
    "options, steps, arguments",
    [
        ({}, None, {}),
        ({"zero": 2, "micro_batches": 2}, 2, {"scale": 8, "smoothing": 0.5}),
        pytest.param({"zero": 3}, None, {"smoothing": 0.9}, marks=pytest.mark.soak),
    ],
)
def test_gain_over_devices_and_micro_batches(options, steps, arguments, rng):
    x, y = problem(rng, 32)
    strategy = tf.distribute.MeshStrategy(mesh(data=4), "batch:data", **options)
    with strategy.scope():
        optimizer = AdaScale(SGD(schedule(), momentum=0.9), **arguments)
        model, kernel = model_of(optimizer, gradient_accumulation_steps=steps)
    parts = 4 * options.get("micro_batches", 1) * (steps or 1)
    reference = Reference(kernel.numpy(), parts, **arguments)
    fit = {"batch_size": 32 // (steps or 1), "shuffle": False, "verbose": 0, "epochs": 6}
    history = model.fit(x, y, **fit).history
    # Rows are divided by steps, then devices, then micro-batches, all in their order.
    expected = [reference.step(x, y, rates) for _ in range(6)]
    np.testing.assert_allclose(history["gain"], expected, rtol=1e-4)
    np.testing.assert_allclose(kernel, reference.w, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(optimizer.gained_steps, sum(expected), rtol=1e-4)
    assert min(expected) > 1 and max(expected) < reference.scale and int(optimizer.iterations) == 6


def test_gain_over_accumulated_steps_scaled_losses_and_checkpoints(rng, tmp_path):
    x, y = problem(rng)
    optimizer = AdaScale(SGD(schedule(), momentum=0.9, gradient_accumulation_steps=4))
    whole = tf.keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=256.0)
    model, kernel = model_of(whole)
    reference = Reference(kernel.numpy(), 4)
    fit = {"batch_size": 4, "shuffle": False, "verbose": 0}
    found = [model.fit(x, y, **fit).history["gain"][0] for _ in range(3)]
    expected = [reference.step(x, y, rates) for _ in range(3)]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    path = tf.train.Checkpoint(model=model, optimizer=whole).save(tmp_path / "c")
    config = tf.keras.optimizers.serialize(whole)
    again = tf.keras.optimizers.deserialize(config)
    assert again.inner_optimizer.get_config() == optimizer.get_config()
    other, weights = model_of(again)
    tf.train.Checkpoint(model=other, optimizer=again).restore(path)
    other.fit(x, y, **fit)
    reference.step(x, y, rates)
    np.testing.assert_allclose(again.inner_optimizer.gained_steps, reference.position, rtol=1e-4)
    np.testing.assert_allclose(weights, reference.w, rtol=1e-4, atol=1e-6)


def test_gain_of_replicas(rng):
    x, y = problem(rng)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = tf.Variable(rng.normal(size=(6, 3)).astype("float32"))
        optimizer = AdaScale(SGD(0.05, momentum=0.9))
    reference = Reference(w.numpy(), 2)
    halves = strategy.experimental_distribute_values_from_function(
        lambda c: (
            tf.constant(np.split(x, 2)[c.replica_id_in_sync_group]),
            tf.constant(np.split(y, 2)[c.replica_id_in_sync_group]),
        )
    )

    @tf.function
    def step(rows):
        def one(a, b):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((a @ w - b) ** 2) / 2
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])

        strategy.run(one, args=rows)

    for _ in range(2):
        step(halves)
        gain = reference.step(x, y, lambda step: 0.05)
        np.testing.assert_allclose(optimizer.gain, gain, rtol=1e-4)
    np.testing.assert_allclose(w, reference.w, rtol=1e-4, atol=1e-6)


def test_optimizers_without_a_gain(rng):
    optax = pytest.importorskip("optax")
    x, y = problem(rng)
    model, _ = model_of(AdaScale(SGD(0.05)))
    with pytest.raises(ValueError, match="AdaScale needs the gradients of several parts"):
        model.fit(x, y, verbose=0)
    with pytest.raises(TypeError, match="a LossScaleOptimizer goes around it"):
        AdaScale(tf.keras.mixed_precision.LossScaleOptimizer(SGD()))
    with pytest.raises(TypeError, match="whose learning rate optax keeps"):
        AdaScale(tf.keras.optimizers.OptaxOptimizer(optax.sgd(0.1)))
    with pytest.raises(ValueError, match="`scale` must be at least 1"):
        AdaScale(SGD(), scale=0.5)
    with pytest.raises(ValueError, match="`smoothing` must be in the range"):
        AdaScale(SGD(), smoothing=1.0)
    strategy = tf.distribute.MeshStrategy(mesh(data=4), "batch:data", zero=3, recompute="layer")
    with pytest.raises(ValueError, match="none knows its own"):
        trained(mlp, strategy, optimizer=lambda: AdaScale(SGD()))
