"""Weights on the devices of their stage: every optimizer, access from outside, and models that share layers."""

import jax
import numpy as np
import pytest

import meshflow as tf
from distribute.parallel.test_pipeline import (
    LENGTH,
    WORDS,
    Tied,
    compiled,
    curve,
    pipelined,
    same,
    words,
)
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


class Signs(OPTIMIZERS.Optimizer):
    """An optimizer of a user: signs of the momentum, scaled by a norm, with slots in a list."""

    def __init__(self, **kwargs):
        super().__init__("Signs", learning_rate=1e-2, **kwargs)

    def build(self, var_list):
        super().build(var_list)
        self.momenta = [self.add_variable_from_reference(v, "momentum") for v in var_list]

    def update_step(self, gradient, variable):
        momentum = self.momenta[self._index_dict[self._var_key(variable)]]
        momentum.assign(0.9 * momentum + gradient)
        step = tf.sign(momentum) * tf.norm(gradient)
        variable.assign_sub(self.learning_rate * step)


def transforming():
    scale = lambda pairs: [(g / (1 + tf.norm(g)), v) for g, v in pairs]
    return OPTIMIZERS.SGD(0.1, gradient_transformers=[scale])


def transformation():
    optax = pytest.importorskip("optax")
    return OPTIMIZERS.get(optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2)))


def list_states(optimizer):
    """Return the variables of an optimizer, also of one of TensorFlow 1."""
    variables = getattr(optimizer, "optimizer", optimizer).variables
    return variables() if callable(variables) else variables


def constrained():
    rule = {"kernel_constraint": "max_norm"}
    middle = [LAYERS.Dense(n, "tanh", **rule) for n in (32, 24)]
    return tf.keras.Sequential([tf.keras.Input([16]), *middle, LAYERS.Dense(8)])


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (averaging, {"data": 2, "zero": 1}),
        (lambda: Signs(global_clipnorm=0.1), {"data": 2, "zero": 1}),
        (lambda: tf.compat.v1.train.AdamOptimizer(1e-2), {}),
        pytest.param(lambda: OPTIMIZERS.Lamb(1e-2, clipnorm=0.1), {}, marks=SOAK),
        pytest.param(lambda: OPTIMIZERS.Lamb(1e-2), {"data": 2, "zero": 3}, marks=SOAK),
        pytest.param(scaling, {"schedule": "interleaved:2"}, marks=SOAK),
        pytest.param(accumulating, {"data": 2, "zero": 3}, marks=SOAK),
        pytest.param(lambda: OPTIMIZERS.AdaScale(accumulating()), {}, marks=SOAK),
        pytest.param(lambda: OPTIMIZERS.Ftrl(1e-2), {}, marks=SOAK),
        pytest.param(lambda: OPTIMIZERS.legacy.Nadam(1e-2), {}, marks=SOAK),
        pytest.param(lambda: OPTIMIZERS.Adafactor(1e-2), {"data": 2, "zero": 3}, marks=SOAK),
        pytest.param(lambda: Signs(gradient_accumulation_steps=2), {}, marks=SOAK),
        pytest.param(transforming, {}, marks=SOAK),
        pytest.param(transformation, {}, marks=SOAK),
        pytest.param(adam, {"make_model": constrained}, marks=SOAK),
    ],
)
def test_optimizers(make, options):
    options = dict(options)
    make_model = options.pop("make_model", mlp)
    plain = compiled(make_model, None, optimizer=make(), loss="mse")
    strategy = pipelined(micro_batches=2, **options)
    model = compiled(make_model, strategy, optimizer=make(), loss="mse")
    np.testing.assert_allclose(fit(model), fit(plain), rtol=1e-6)
    assert all(are_resident(model))
    assert_close(model.get_weights(), plain.get_weights())
    assert_close(*([v.numpy() for v in list_states(m.optimizer)] for m in (model, plain)))
    # Evaluation reads the same rows, and sends no weights either.
    x, y = data()
    evaluated = [m.evaluate(x, y, verbose=0) for m in (model, plain)]
    np.testing.assert_allclose(*evaluated, rtol=1e-5)
    report = strategy.explain(model, x[:16], y[:16])
    assert report.pipeline.packed == 0
    # Stages only send activations, norms, and the small slots of Adafactor.
    between = [c for c in report.step.collectives if "stage" in c.axes]
    assert sum(c.bytes for c in between if c.kind != "collective-permute") < 1024


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: OPTIMIZERS.Adam(1e-2, global_clipnorm=0.5), {"data": 2, "zero": 1}),
        pytest.param(lambda: OPTIMIZERS.Lamb(1e-2), {"data": 2, "zero": 3}, marks=SOAK),
        pytest.param(adam, {"stage": 4}, marks=SOAK),
        pytest.param(adam, {"schedule": "interleaved:2"}, marks=SOAK),
        pytest.param(adam, {"schedule": "zero_bubble"}, marks=SOAK),
    ],
)
def test_copies_of_tied_weights(make, options):
    def language_model():
        embedding, inputs = LAYERS.Embedding(WORDS, 16), tf.keras.Input([LENGTH], dtype="int32")
        x = embedding(inputs)
        for _ in range(3):
            x = x + LAYERS.Dense(16, "tanh")(x)
        return tf.keras.Model(inputs, Tied(embedding)(x))

    x, y = words(16)
    plain = compiled(language_model, optimizer=make())
    strategy = pipelined(**options)
    model = compiled(language_model, strategy, optimizer=make())
    same(curve(model, x, y, 2), curve(plain, x, y, 2), rtol=1e-6)
    assert all(are_resident(model))
    assert_close(model.get_weights(), plain.get_weights())
    table = model.layers[1].embeddings
    rows = table.buffer.numpy()
    first, *others = [rows[device, chunk] for device, chunk, _ in table.part.positions]
    assert others
    for row in others:
        np.testing.assert_array_equal(row, first)
    report = strategy.explain(model, x[:8], y[:8])
    sent = report.step.sent("collective-permute") - report.pipeline.sent
    assert sent == first.nbytes // options.get("data", 1)


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
    # Another optimizer has slots of other sizes; frozen weights are in a row of their own.
    for other in (model, plain):
        other.layers[0].trainable = False
        other.compile(OPTIMIZERS.Adafactor(1e-2), "mse")
    np.testing.assert_allclose(fit(model), fit(plain), rtol=1e-5)
    assert all(are_resident(model))


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
