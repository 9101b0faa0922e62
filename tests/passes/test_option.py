"""The rewrite as an option of `tf.config.optimizer`."""

import logging

import numpy as np
import pytest
from jax.extend import core as jex_core

import meshflow as tf
from meshflow.core.tracing.pass_pipeline import apply_installed_passes

X = np.random.default_rng(0).normal(size=(16, 6, 6, 2)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 3, 16)


@pytest.fixture
def rewriting():
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
    yield
    _off()


@pytest.fixture(autouse=True)
def _off_afterwards():
    yield
    _off()


def _off():
    names = [
        n for n in tf.config.optimizer.get_experimental_options() if n.startswith("auto_mixed")
    ]
    tf.config.optimizer.set_experimental_options(dict.fromkeys(names, False))


def products(jaxpr):
    found = [
        (e.primitive.name, str(e.outvars[0].aval.dtype))
        for e in jaxpr.eqns
        if e.primitive.name in ("dot_general", "conv_general_dilated")
    ]
    for eqn in jaxpr.eqns:
        for inner in jex_core.jaxprs_in_params(eqn.params):
            found += products(inner)
    return found


def test_option_change_recompiles_functions():
    f = tf.function(lambda x: x @ x)
    x = tf.fill((1, 1), 1.001)
    exact = float(f(x))
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
    assert tf.config.optimizer.get_experimental_options()["auto_mixed_precision"] is True
    assert float(f(x)) == 1.0 and f(x).dtype == tf.float32
    assert float(x @ x) == exact  # eager operations are not functions
    _off()
    assert float(f(x)) == exact
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision_onednn_bfloat16": True})
    assert float(f(x)) == 1.0 and f.experimental_get_tracing_count() == 1


def test_gradients_through_functions(rewriting):
    w = tf.Variable(np.eye(4, dtype=np.float32) * 0.5)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(x @ w) @ w)
        gradient = tape.gradient(loss, w)
        w.assign_sub(0.01 * gradient)
        return loss, gradient

    inner = tf.function(lambda x: tf.reduce_sum(tf.tanh(x @ w) @ w))
    x = tf.ones((2, 4))
    with tf.GradientTape() as tape:
        value = inner(x)
    outside = tape.gradient(value, w)
    loss, inside = step(x)
    assert loss.dtype == inside.dtype == outside.dtype == w.dtype == tf.float32
    np.testing.assert_allclose(inside, outside, rtol=0.02, atol=1e-3)
    found = products(apply_installed_passes(step.get_concrete_function(x).closed_jaxpr).jaxpr)
    assert len(found) == 5 and {dtype for _, dtype in found} == {"bfloat16"}


def test_printing_and_checks_inside_functions(rewriting, capfd):
    @tf.function
    def f(x):
        tf.debugging.assert_positive(tf.reduce_sum(x))
        tf.print("sum", tf.reduce_sum(x @ x))
        return x @ x

    assert float(f(tf.ones((2, 2)))[0, 0]) == 2.0
    assert "sum 8" in "".join(capfd.readouterr())


def make_model(**kwargs):
    tf.random.set_seed(1)
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Conv2D(4, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(8, activation="relu"),
            layers.Dense(3),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.SGD(0.05), loss, **kwargs)
    return model


@pytest.mark.parametrize("steps", [1, 2])
def test_keras_training(rewriting, monkeypatch, steps):
    from meshflow.keras.engine.training import step

    traced = []
    original = step.ConcreteFunction

    def watching(*args):
        concrete = original(*args)
        traced.append(concrete)
        return concrete

    monkeypatch.setattr(step, "ConcreteFunction", watching)
    options = {"epochs": 2, "batch_size": 4, "verbose": 0, "shuffle": False}
    model = make_model(steps_per_execution=steps)
    mixed = model.fit(X, Y, **options).history["loss"]
    assert {v.dtype for v in model.variables} == {tf.float32}
    found = [
        p for c in traced for p in products(apply_installed_passes(c.traced.closed_jaxpr).jaxpr)
    ]
    assert {name for name, _ in found} == {"dot_general", "conv_general_dilated"}
    assert {dtype for _, dtype in found} == {"bfloat16"}
    _off()
    exact = make_model(steps_per_execution=steps).fit(X, Y, **options).history["loss"]
    assert mixed != exact
    np.testing.assert_allclose(mixed, exact, rtol=0.02)


# ---- version 1's switch ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "enable",
    [
        lambda *a: tf.train.experimental.enable_mixed_precision_graph_rewrite(*a),
        lambda *a: tf.compat.v1.mixed_precision.enable_mixed_precision_graph_rewrite(*a),
        lambda *a: tf.compat.v1.train.experimental.enable_mixed_precision_graph_rewrite(*a),
    ],
)
def test_enable_and_disable(enable, caplog):
    optimizer = tf.keras.optimizers.SGD(0.1)
    wrapped = enable(optimizer)
    assert tf.config.optimizer.get_experimental_options()["auto_mixed_precision"]
    assert isinstance(wrapped, tf.keras.mixed_precision.LossScaleOptimizer)
    assert wrapped.inner_optimizer is optimizer
    with pytest.raises(ValueError, match="must not already be an instance"):
        enable(wrapped)
    assert float(enable(tf.keras.optimizers.SGD(), 128.0).loss_scale) == 128.0
    tf.compat.v1.mixed_precision.disable_mixed_precision_graph_rewrite()
    assert not tf.config.optimizer.get_experimental_options()["auto_mixed_precision"]
    with caplog.at_level(logging.WARNING, logger="meshflow"):
        tf.train.experimental.disable_mixed_precision_graph_rewrite()
    assert "already disabled" in caplog.text


def test_options_that_cannot_be_enabled():
    enable = tf.train.experimental.enable_mixed_precision_graph_rewrite
    with pytest.raises(ValueError, match='"opt" must be an instance of'):
        enable(3)
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    with pytest.raises(ValueError, match=r"global Keras dtype Policy.*mixed_bfloat16"):
        enable(tf.keras.optimizers.SGD())
    tf.keras.mixed_precision.set_global_policy(None)
    with pytest.raises(ValueError, match="'dynamic', a number"):
        enable(tf.keras.optimizers.SGD(), "fixed")
    assert not tf.config.optimizer.get_experimental_options().get("auto_mixed_precision")


@pytest.mark.parametrize("size", [2, 3])
def test_max_gradients_find_rounded_maxima(size):
    """A convolution's result is rounded for the maximum and may be read unrounded by its gradient."""
    rng = np.random.default_rng(2)
    # Small integers, whose sums are exact in both precisions: otherwise, rounding would change the
    # maxima.
    kernel = tf.constant(rng.integers(-2, 3, (3, 3, 2, 2)), tf.float32)
    image = tf.constant(rng.integers(-3, 4, X.shape), tf.float32)

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            pooled = tf.nn.max_pool2d(tf.nn.conv2d(x, kernel, 1, "SAME"), size, 2, "SAME")
            loss = tf.reduce_mean(tf.nn.conv2d(pooled, kernel, 1, "SAME") ** 2)
            loss += tf.reduce_mean(tf.exp(0.001 * pooled))
        return tape.gradient(loss, x)

    exact = tf.function(gradient)(image)
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
    np.testing.assert_allclose(tf.function(gradient)(image), exact, atol=0.05 * np.abs(exact).max())


def test_explain_accepts_branches_on_tensors():
    def f(x):
        if tf.reduce_sum(x) > 0:
            x = x @ x
        return x

    assert tf.mixed_precision.explain(f, tf.ones((2, 2))).count("bfloat16") == 1
