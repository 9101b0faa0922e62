"""Automatic mixed precision of functions and of Keras' training."""

import jax
import numpy as np
import pytest

import meshflow as tf
import roundings
from meshflow.core.tracing.pass_pipeline import PassPipeline, apply_installed_passes


@pytest.fixture(autouse=True)
def off_again():
    yield
    tf.config.optimizer.set_experimental_options(
        {"auto_mixed_precision": False, "auto_mixed_precision_onednn_bfloat16": False}
    )
    tf.keras.mixed_precision.set_global_policy("float32")
    assert not PassPipeline.passes


def precisions(concrete, name="dot_general"):
    closed = apply_installed_passes(concrete.closed_jaxpr)
    return {str(e.outvars[0].aval.dtype) for e in closed.eqns if e.primitive.name == name}


@pytest.mark.parametrize(
    "module", [tf.train.experimental, tf.compat.v1.mixed_precision], ids=["train", "compat"]
)
def test_fit_computes_in_bfloat16_with_float32_variables(module):
    optimizer = module.enable_mixed_precision_graph_rewrite(tf.keras.optimizers.Adam(0.02))
    assert isinstance(optimizer, tf.keras.mixed_precision.LossScaleOptimizer)
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Conv2D(4, 3, activation="relu", input_shape=(6, 6, 1)),
            layers.Flatten(),
            layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    y = np.arange(64) % 2
    x = np.random.default_rng(0).normal(size=(64, 6, 6, 1)) + y[:, None, None, None]
    history = model.fit(x, y, epochs=8, verbose=0).history
    assert history["accuracy"][-1] > 0.9
    assert {v.dtype.name for v in model.variables} == {"float32"}
    step = model.make_train_function()
    assert step is not None
    module.disable_mixed_precision_graph_rewrite()


def test_functions_compiled_before_are_compiled_again():
    x = tf.constant(np.random.default_rng(0).normal(size=(4, 4)).astype("float32"))

    @tf.function
    def product(x):
        return tf.matmul(x, x)

    exact = product(x).numpy()
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
    low = product(x).numpy()
    assert precisions(product.get_concrete_function(x)) == {"bfloat16"}
    (limit,) = roundings.allowed(lambda x: x @ x, x.numpy())
    assert low.dtype == np.float32 and 0 < np.abs(low - exact).max() < limit
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = product(x)
    gradient = tape.gradient(y, x).numpy()
    wanted = np.ones((4, 4)) @ x.numpy().T + x.numpy().T @ np.ones((4, 4))
    (limit,) = roundings.allowed(jax.grad(lambda x: (x @ x).sum()), x.numpy())
    assert 0 < np.abs(gradient - wanted).max() < limit
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision": False})
    np.testing.assert_array_equal(product(x).numpy(), exact)


def test_eager_ops_are_not_rewritten():
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
    x = tf.constant([[1.001]])
    assert float(tf.matmul(x, x)[0, 0]) == pytest.approx(1.001**2, abs=1e-6)


def test_explain_accepts_functions_and_models():
    x = tf.ones([2, 3])
    model = tf.keras.Sequential([tf.keras.layers.Dense(2, "relu", input_shape=(3,))])
    for fn in (tf.function(model), model, lambda x: model(x)):
        table = tf.mixed_precision.explain(fn, x)
        assert table.count("bfloat16") >= 1 and "dot_general" in str(table)


def test_bad_arguments():
    enable = tf.train.experimental.enable_mixed_precision_graph_rewrite
    with pytest.raises(ValueError, match='"opt" must be an instance'):
        enable("sgd")
    with pytest.raises(ValueError, match="must not already be an instance of a LossScaleOptimizer"):
        enable(tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD()))
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    with pytest.raises(
        ValueError, match="cannot be enabled, because the global Keras dtype Policy"
    ):
        enable(tf.keras.optimizers.SGD())
    tf.keras.mixed_precision.set_global_policy("float32")
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
    with pytest.raises(ValueError, match="graph rewrite has already been enabled"):
        tf.keras.mixed_precision.set_global_policy("mixed_float16")
    with pytest.raises(ValueError, match="Only one of"):
        tf.config.optimizer.set_experimental_options({"auto_mixed_precision_onednn_bfloat16": True})
