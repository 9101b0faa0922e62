"""Weights on the devices of their stage: every optimizer, access from outside, and models that share layers."""

import jax
import numpy as np
import pytest

import meshflow as tf
from distribute.parallel.test_pipeline import compiled, pipelined
from distribute.parallel.training import data, mlp
from meshflow.distribute.parallel.packs import separate_equal_arrays
from meshflow.distribute.parallel.stage_buffers import StageBuffer, get_storage

LAYERS, OPTIMIZERS = tf.keras.layers, tf.keras.optimizers
SOAK = pytest.mark.soak


def adam():
    return OPTIMIZERS.Adam(1e-2)


def fit(model, epochs=2):
    fit = {"batch_size": 16, "epochs": epochs, "shuffle": False, "verbose": 0}
    return model.fit(*data(), **fit).history["loss"]


def are_resident(model):
    return [isinstance(get_storage(v), StageBuffer) for v in model.weights]


def assert_close(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def averaging():
    averages = {"use_ema": True, "ema_overwrite_frequency": 2}
    return OPTIMIZERS.AdamW(1e-2, weight_decay=0.1, global_clipnorm=0.1, **averages)


def scaling():
    return tf.keras.mixed_precision.LossScaleOptimizer(adam())


def accumulating():
    return OPTIMIZERS.Adam(1e-2, gradient_accumulation_steps=2)


@pytest.mark.parametrize(
    ("make", "options", "is_resident"),
    [
        (averaging, {"data": 2, "zero": 1}, True),
        (lambda: OPTIMIZERS.Lamb(1e-2, clipnorm=0.1), {}, True),
        pytest.param(scaling, {"schedule": "interleaved:2"}, True, marks=SOAK),
        pytest.param(accumulating, {"data": 2, "zero": 3}, True, marks=SOAK),
        pytest.param(lambda: OPTIMIZERS.Ftrl(1e-2), {}, True, marks=SOAK),
        pytest.param(lambda: OPTIMIZERS.legacy.Nadam(1e-2), {}, True, marks=SOAK),
        pytest.param(lambda: OPTIMIZERS.Adafactor(1e-2), {}, False, marks=SOAK),
        pytest.param(
            lambda: OPTIMIZERS.Adam(1e-2, clipnorm=0.1), {"data": 2, "zero": 1}, False, marks=SOAK
        ),
    ],
)
def test_optimizers(make, options, is_resident):
    plain = compiled(mlp, None, optimizer=make(), loss="mse")
    strategy = pipelined(micro_batches=2, **options)
    model = compiled(mlp, strategy, optimizer=make(), loss="mse")
    np.testing.assert_allclose(fit(model), fit(plain), rtol=1e-6)
    assert are_resident(model) == [is_resident] * len(model.weights)
    assert_close(model.get_weights(), plain.get_weights())
    assert_close(model.optimizer.get_weights(), plain.optimizer.get_weights())
    # Evaluation reads the same rows, and sends no weights either.
    x, y = data()
    evaluated = [m.evaluate(x, y, verbose=0) for m in (model, plain)]
    np.testing.assert_allclose(*evaluated, rtol=1e-5)
    gathered = strategy.explain(model, x[:16], y[:16]).pipeline.packed
    assert (gathered == 0) is is_resident


def test_predictions_of_interleaved_stages_gather_no_weights():
    x, y = data()
    strategy = pipelined("interleaved:2", micro_batches=2)
    model, plain = (compiled(mlp, s, optimizer=adam(), loss="mse") for s in (strategy, None))
    for other in (model, plain):
        fit(other, epochs=1)
    assert_close(*(m.predict(x, verbose=0) for m in (model, plain)))
    program = model._make_loss_program()
    predict = tf.function(
        lambda *rows: strategy.compute_predictions(program, *rows, None).predictions
    )
    step = tf.experimental.dtensor.explain(predict, x[:16], y[:16])
    assert {c.kind for c in step.collectives} == {"collective-permute", "all-reduce"}


def test_equal_weights_have_separate_arrays():
    shapes = [[(4, 3), (3,), (2,)], [(3,), (3, 4), (3,)], [(12,), (3,), (5,)]]
    stages = [
        {10 * s + i: jax.ShapeDtypeStruct(shape, np.float32) for i, shape in enumerate(of_stage)}
        for s, of_stage in enumerate(shapes)
    ]
    parts = [[[*arrays] for arrays in part] for part in separate_equal_arrays(stages)]
    assert parts == [[[0], [11], [20]], [[1], [10], [21]], [[2], [12], [22]]]
    assert separate_equal_arrays([stages[0]] * 2)[3:] == []


def test_variables_outside_of_steps(tmp_path):
    path = str(tmp_path / "all")
    model = compiled(mlp, pipelined(micro_batches=2), optimizer=adam(), loss="mse")
    fit(model)
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(path)
    expected, values = fit(model), model.get_weights()
    fresh = compiled(mlp, pipelined(micro_batches=2), optimizer=adam(), loss="mse")
    # Before the first step, variables have separate arrays.
    fresh.optimizer.build(fresh.trainable_variables)
    for other in (model, fresh):
        tf.train.Checkpoint(model=other, optimizer=other.optimizer).read(path)
        assert fit(other) == expected
        for a, b in zip(other.get_weights(), values, strict=True):
            np.testing.assert_array_equal(a, b)
    kernel = model.layers[0].kernel
    kernel.assign_add(tf.ones_like(kernel))
    np.testing.assert_array_equal(kernel.numpy(), values[0] + 1)
    model.set_weights(values)
    # A loop of the user reads and writes the same values.
    plain = compiled(mlp, None, optimizer=adam(), loss="mse")
    tf.train.Checkpoint(model=plain, optimizer=plain.optimizer).read(path)
    fit(plain)
    x, y = data()

    def make_step(model):
        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            weights = model.trainable_variables
            model.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

        return step

    for other in (model, plain):
        make_step(other)()
    assert_close(model.get_weights(), plain.get_weights())
    # Other optimizers cannot update weights in rows; frozen weights have a separate row.
    for other in (model, plain):
        other.layers[0].trainable = False
        other.compile(OPTIMIZERS.Adafactor(1e-2), "mse")
    np.testing.assert_allclose(fit(model), fit(plain), rtol=1e-5)
    assert are_resident(model) == [True] * 2 + [False] * (len(model.weights) - 2)


@SOAK
def test_models_that_share_layers():
    def make(strategy):
        tf.keras.backend.reset_uids()
        tf.keras.utils.set_random_seed(1)
        with strategy.scope():
            inputs = tf.keras.Input([16])
            hidden = LAYERS.Dense(16, "relu")(LAYERS.Dense(16, "tanh")(inputs))
            small = LAYERS.Dense(8)(hidden)
            models = [small, LAYERS.Dense(8)(LAYERS.Dense(8, "tanh")(hidden))]
            models = [tf.keras.Model(inputs, outputs) for outputs in models]
            for model in models:
                model.compile(adam(), "mse")
        return models

    curves = [
        [fit(model, 1) for _ in range(3) for model in make_models]
        for make_models in (make(tf.distribute.get_strategy()), make(pipelined(micro_batches=2)))
    ]
    np.testing.assert_allclose(*curves, rtol=1e-5)
