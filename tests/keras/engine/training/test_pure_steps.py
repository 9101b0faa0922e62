"""Training loops and steps of JAX: variables, losses and seeds in its transformations, `train_step(state, data)`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshflow as tf

X = np.random.RandomState(0).normal(size=(12, 3)).astype("float32")
Y = np.random.RandomState(1).normal(size=(12, 1)).astype("float32")


class Pure(tf.keras.Sequential):
    """Build a model whose steps are functions of JAX that handle its loss and metrics themselves."""

    def loss_and_updates(self, trained, others, x, y):
        predicted, others = self.stateless_call(trained, others, x, training=True)
        return self.compute_loss(x, y, predicted), (predicted, others)

    def measured(self, values, loss, y, predicted):
        logs, new = {}, []
        for metric in self.metrics:
            own = values[len(new) : len(new) + len(metric.variables)]
            seen = (loss,) if metric.name == "loss" else (y, predicted)
            own = metric.stateless_update_state(own, *seen)
            logs[metric.name] = metric.stateless_result(own)
            new += own
        return logs, new

    def train_step(self, state, data):
        trained, others, held, measured = state
        x, y = data
        graded = jax.value_and_grad(self.loss_and_updates, has_aux=True)
        (loss, (predicted, others)), gradients = graded(trained, others, x, y)
        trained, held = self.optimizer.stateless_apply(held, gradients, trained)
        logs, measured = self.measured(measured, loss, y, predicted)
        return logs, (trained, others, held, measured)

    def test_step(self, state, data):
        trained, others, measured = state
        x, y = data
        predicted, others = self.stateless_call(trained, others, x)
        logs, measured = self.measured(measured, self.compute_loss(x, y, predicted), y, predicted)
        return logs, (trained, others, measured)

    def predict_step(self, state, data):
        outputs, others = self.stateless_call(*state, data)
        return 2.0 * outputs, (state[0], others)


def made(kind, **options):
    tf.keras.utils.set_random_seed(1)
    layers = [tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(1)]
    model = kind([tf.keras.Input([3]), *layers])
    model.compile("adam", "mse", metrics=["mae"], **options)
    return model


@pytest.mark.parametrize("eager", [False, True])
def test_pure_steps_equal_ordinary_steps(eager):
    model, other = made(Pure, run_eagerly=eager), made(tf.keras.Sequential)
    settings = {"batch_size": 6, "epochs": 2, "shuffle": False, "verbose": 0}
    history, expected = (m.fit(X, Y, **settings).history for m in (model, other))
    for name in ("loss", "mae"):
        np.testing.assert_allclose(history[name], expected[name], 1e-5)
    for a, b in zip(model.variables, other.variables, strict=True):
        np.testing.assert_allclose(a, b, 1e-4, 1e-5)
    np.testing.assert_allclose(
        model.evaluate(X, Y, batch_size=6, verbose=0),
        other.evaluate(X, Y, batch_size=6, verbose=0),
        1e-5,
    )
    np.testing.assert_allclose(
        model.predict(X, verbose=0), 2 * other.predict(X, verbose=0), 1e-4, 1e-5
    )


def test_steps_that_return_another_state_are_named():
    class Short(Pure):
        def train_step(self, state, data):
            return {}, state[:2]

    with pytest.raises(ValueError, match=r"train_step.*4 lists with \[4, 2, 9, 4\] values"):
        made(Short, run_eagerly=True).fit(X, Y, verbose=0)


def test_values_of_variables_are_arguments_of_functions_of_jax():
    model = made(tf.keras.Sequential)
    model.optimizer.build(model.trainable_variables)
    loss = tf.keras.losses.MeanSquaredError()

    def value(trained, others):
        predicted, others = model.stateless_call(trained, others, X, training=True)
        return loss(Y, predicted), others

    @jax.jit
    def step(trained, others, held):
        (found, others), gradients = jax.value_and_grad(value, has_aux=True)(trained, others)
        return found, *model.optimizer.stateless_apply(held, gradients, trained)

    before = [v.numpy() for v in model.trainable_variables]
    parts = model.trainable_variables, model.non_trainable_variables, model.optimizer.variables
    found, trained, held = step(*([jnp.asarray(v) for v in part] for part in parts))
    assert isinstance(found, jax.Array) and all(isinstance(v, jax.Array) for v in (*trained, *held))
    np.testing.assert_allclose(float(found), float(loss(Y, model(X, training=True))), 1e-5)
    for variable, old, new in zip(model.trainable_variables, before, trained, strict=True):
        np.testing.assert_array_equal(variable, old)
        assert not np.allclose(old, new)


def test_jax_functions_do_not_change_generators():
    jax.jit(lambda: jnp.asarray(tf.random.normal([2])))()
    assert np.isfinite(tf.random.normal([2]).numpy()).all()
    with pytest.raises(ValueError, match="only use seeded random ops"):
        jax.jit(lambda: jnp.asarray(tf.keras.random.normal([2])))()
    draw = lambda seed: tf.keras.random.randint([4], 0, 100, seed=seed).numpy().tolist()
    assert (
        draw(jax.random.PRNGKey(5))
        == draw(jax.random.key(5))
        == jax.random.randint(jax.random.PRNGKey(5), [4], 0, 100, "int32").tolist()
    )
