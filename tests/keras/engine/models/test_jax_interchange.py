"""Models as functions of JAX, and functions and modules of JAX as layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshflow as tf

L = tf.keras.layers


def small_model():
    tf.keras.utils.set_random_seed(1)
    return tf.keras.Sequential(
        [L.Dense(4, "relu", input_shape=(3,)), L.BatchNormalization(), L.Dense(2)]
    )


X = np.random.RandomState(0).normal(size=(8, 3)).astype("float32")
Y = np.random.RandomState(1).normal(size=(8, 2)).astype("float32")


def test_stateless_training_in_jax_is_training_by_fit():
    model, other = small_model(), small_model()
    optimizer, metric = tf.keras.optimizers.SGD(0.1, 0.9), tf.keras.metrics.MeanSquaredError()
    optimizer.build(model.trainable_variables)

    def loss(trained, others, x, y):
        predicted, others = model.stateless_call(trained, others, x, training=True)
        return jnp.mean((predicted - y) ** 2), (predicted, others)

    @jax.jit
    def step(trained, others, state, seen, x, y):
        (value, (predicted, others)), grads = jax.value_and_grad(loss, has_aux=True)(
            trained, others, x, y
        )
        seen = metric.stateless_update_state(seen, y, predicted)
        trained, state = optimizer.stateless_apply(state, grads, trained)
        return trained, others, state, seen, value

    as_jax = lambda variables: [jnp.asarray(v.numpy()) for v in variables]
    held = [
        as_jax(v)
        for v in (
            model.trainable_variables,
            model.non_trainable_variables,
            optimizer.variables,
            metric.variables,
        )
    ]
    before = [v.numpy() for v in model.variables]
    values = []
    for _ in range(3):
        *held, value = step(*held, jnp.asarray(X), jnp.asarray(Y))
        values.append(float(value))
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    other.compile(tf.keras.optimizers.SGD(0.1, 0.9), "mse")
    history = other.fit(X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(values, history, 1e-5)
    np.testing.assert_allclose(float(metric.stateless_result(held[3])), np.mean(values), 1e-5)
    for new, variable in zip(
        held[0] + held[1], other.trainable_variables + other.non_trainable_variables, strict=True
    ):
        np.testing.assert_allclose(new, variable, 1e-4, 1e-5)
    assert all(float(jnp.sum(v)) == 0 for v in as_jax(metric.stateless_reset_state()))


def test_stateless_calls_of_tensors_are_recorded_and_write_nothing():
    model = small_model()
    trained = [tf.constant(v) for v in model.trainable_variables]
    others = [v.numpy() for v in model.non_trainable_variables]
    moving = model.layers[1].moving_mean.numpy()
    with tf.GradientTape() as tape:
        tape.watch(trained)
        outputs, new, losses = model.stateless_call(
            trained, others, X, training=True, return_losses=True
        )
    assert isinstance(outputs, tf.Tensor) and losses == []
    np.testing.assert_allclose(outputs, model(X, training=True), 1e-5)
    np.testing.assert_allclose(new[0], model.layers[1].moving_mean, 1e-5)
    assert (np.asarray(new[0]) != moving).any()
    assert all(g is not None for g in tape.gradient(outputs, trained))
    doubled = [v * 2 for v in trained]
    assert (np.asarray(model.stateless_call(doubled, others, X)[0]) != np.asarray(outputs)).any()


def test_errors_of_stateless_calls():
    with pytest.raises(ValueError, match="must be built"):
        L.Dense(2).stateless_call([], [], X)
    model = small_model()
    with pytest.raises(ValueError, match=r"trainable_variables.*length 1, but expected 6"):
        model.stateless_call([X], [], X)
    wrong = [np.zeros(v.shape) for v in model.trainable_variables]
    wrong[0] = np.zeros([9, 9], "float32")
    with pytest.raises(ValueError, match=r"shape \(9, 9\), expected \(3, 4\)"):
        model.stateless_call(wrong, model.non_trainable_variables, X)
    with pytest.raises(ValueError, match="must be built"):
        tf.keras.optimizers.SGD().stateless_apply([], [], [])


def stateful_call(params, state, rng, inputs, training):
    noise = jax.random.bernoulli(rng, 0.5, inputs.shape) if training else 1.0
    return (inputs * noise) @ params["dense"]["w"] + params["b"], {"calls": state["calls"] + 1}


def stateful_init(rng, inputs):
    w = jax.random.normal(rng, (inputs.shape[-1], 2)) * 0.1
    return {"dense": {"w": w}, "b": jnp.zeros(2)}, {"calls": jnp.zeros((), jnp.int32)}


def test_functions_with_state_and_keys_are_layers_of_models():
    layer = L.JaxLayer(stateful_call, stateful_init, seed=4)
    model = tf.keras.Sequential([tf.keras.Input((3,)), layer])
    assert model.output_shape == (None, 2)
    assert {v.name for v in layer.trainable_variables} == {
        "jax_layer/dense_w:0",
        "jax_layer/b:0",
    } and layer.trainable_variables[0].dtype == tf.float32
    model.compile("sgd", "mse")
    history = model.fit(X, Y, epochs=4, batch_size=4, verbose=0).history["loss"]
    state = layer.non_trainable_variables
    assert history[-1] < history[0] and any(v.shape == () and int(v) == 8 for v in state)
    one, two = (layer(X, training=True) for _ in range(2))
    assert (np.asarray(one) != np.asarray(two)).any()
    np.testing.assert_array_equal(layer(X), layer(X))


def test_plain_functions_accept_parameters_and_nested_inputs(tmp_path):
    def both(params, inputs):
        first, second = inputs
        return {"sum": first @ params["w"] + second, "product": first[:, :2] * second}

    layer = L.JaxLayer(both, params={"w": np.ones((3, 2), "float32"), "named": "stays"})
    found = layer([X, Y])
    np.testing.assert_allclose(found["sum"], X.sum(1, keepdims=True) + Y, 1e-5)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer([X, Y])["sum"] ** 2)
    gradient = tape.gradient(loss, layer.trainable_variables)[0]
    np.testing.assert_allclose(gradient, 2 * X.T @ np.asarray(found["sum"]), 1e-4)
    a, b = tf.keras.Input((3,)), tf.keras.Input((2,))
    model = tf.keras.Model([a, b], layer([a, b]))
    np.testing.assert_allclose(model([X, Y])["product"], X[:, :2] * Y)
    layer.trainable_variables[0].assign(np.full([3, 2], 2.0))
    model.save_weights(tmp_path / "w.weights.h5")
    layer.trainable_variables[0].assign(np.zeros([3, 2]))
    model.load_weights(tmp_path / "w.weights.h5")
    np.testing.assert_array_equal(layer.trainable_variables[0], np.full([3, 2], 2.0))


def test_wrong_functions_are_named():
    with pytest.raises(ValueError, match="cannot all be"):
        L.JaxLayer(lambda params, inputs: inputs)
    with pytest.raises(ValueError, match="takes the argument `other`"):
        L.JaxLayer(lambda params, inputs, other: inputs, params=X)
    with pytest.raises(ValueError, match="`call_fn` must take the argument `inputs`"):
        L.JaxLayer(lambda params: params, params=X)
    with pytest.raises(ValueError, match="no argument `state`"):
        L.JaxLayer(lambda params, inputs: inputs, params=X, state=X)
    bad = L.JaxLayer(lambda params, state, inputs: inputs, params=X, state=X)
    with pytest.raises(ValueError, match="must return \\(outputs, state\\)"):
        bad(X)


def test_parameters_and_state_are_found_in_nested_structures():
    def call(params, state, inputs):
        return inputs @ params["w"], {"seen": [state["seen"][0] + 1.0]}

    layer = L.JaxLayer(call, params={"w": np.ones((3, 2), "float32")}, state={"seen": [0.0]})
    layer(X)
    assert isinstance(layer.params["w"], tf.Variable) and float(layer.state["seen"][0]) == 1.0
    again = L.JaxLayer(call, params=layer.params, state=layer.state)
    assert again.params["w"] is layer.params["w"]
    assert L.JaxLayer(lambda inputs: inputs, lambda inputs: {})(X).shape == X.shape
    plain = L.JaxLayer(lambda inputs: inputs)
    assert plain(X).shape == X.shape and plain.params is None and plain.weights == []
    for other in ({"seen": 0.0}, [0.0], {"seen": {"a": 0.0}}):
        with pytest.raises(ValueError, match="a state with the leaves"):
            L.JaxLayer(
                lambda params, state, inputs: (inputs, {"seen": [jnp.ones([])]}),
                params={},
                state=other,
            )(X)


def test_modules_of_flax_linen(tmp_path):
    linen = pytest.importorskip("flax.linen", reason="flax")

    class Net(linen.Module):
        @linen.compact
        def __call__(self, inputs, training=False):
            x = linen.relu(linen.Dense(4)(inputs))
            x = linen.BatchNorm(use_running_average=not training)(x)
            return linen.Dense(2)(linen.Dropout(0.3, deterministic=not training)(x))

    layer = L.FlaxLayer(Net())
    model = tf.keras.Sequential([tf.keras.Input((3,)), layer])
    assert len(layer.trainable_variables) == 6
    model.compile(tf.keras.optimizers.Adam(0.05), "mse")
    history = model.fit(X, Y, epochs=12, batch_size=8, verbose=0).history["loss"]
    assert history[-1] < history[0]
    variables = Net().init(jax.random.PRNGKey(0), X)
    given = L.FlaxLayer(Net(), variables=variables)
    np.testing.assert_allclose(given(X), Net().apply(variables, X), 1e-5, 1e-6)
    with pytest.raises(NotImplementedError, match="Net has no `get_config`"):
        layer.get_config()
    Net.get_config = lambda self: {}
    Net.from_config = classmethod(lambda cls, config: cls(**config))
    with tf.keras.utils.custom_object_scope({"Net": Net}):
        model.save(tmp_path / "m.keras")
        np.testing.assert_array_equal(tf.keras.models.load_model(tmp_path / "m.keras")(X), model(X))


def test_modules_of_flax_nnx():
    nnx = pytest.importorskip("flax.nnx", reason="flax")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first, self.norm = nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)
            self.drop, self.last = nnx.Dropout(0.3, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)

        def __call__(self, x):
            return self.last(self.drop(self.norm(nnx.relu(self.first(x)))))

    module = Net(nnx.Rngs(0))
    layer = L.FlaxLayer(module)
    module.eval()
    np.testing.assert_allclose(layer(X), module(X), 1e-5, 1e-6)
    assert len(layer.trainable_variables) == 6
    model = tf.keras.Sequential([tf.keras.Input((3,)), layer])
    model.compile(tf.keras.optimizers.Adam(0.05), "mse")
    history = model.fit(X, Y, epochs=12, batch_size=8, verbose=0).history["loss"]
    assert history[-1] < history[0]
    with pytest.raises(TypeError, match="flax"):
        L.FlaxLayer(3)


def test_modules_of_equinox_are_parameters():
    eqx = pytest.importorskip("equinox", reason="equinox")
    module = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.PRNGKey(0))
    layer = L.JaxLayer(lambda params, inputs: jax.vmap(params)(inputs), params=module)
    np.testing.assert_allclose(layer(X), jax.vmap(module)(X), 1e-5, 1e-6)
    assert len(layer.trainable_variables) == 4
    model = tf.keras.Sequential([tf.keras.Input((3,)), layer])
    model.compile("adam", "mse")
    assert np.isfinite(model.fit(X, Y, verbose=0).history["loss"]).all()


@tf.keras.saving.register_keras_serializable("interchange")
def normalized_call(params, state, inputs, training):
    mean = jnp.mean(inputs, 0) if training else state["mean"]
    return (inputs - mean) @ params["w"], {"mean": 0.9 * state["mean"] + 0.1 * mean}


@tf.keras.saving.register_keras_serializable("interchange")
def normalized_init(rng, inputs):
    width = inputs.shape[-1]
    return {"w": jax.random.normal(rng, (width, 2))}, {"mean": jnp.zeros(width)}


def test_registered_functions_with_state_are_loaded_and_trained(tmp_path):
    layer = L.JaxLayer(normalized_call, normalized_init, seed=3)
    model = tf.keras.Sequential([tf.keras.Input((3,)), layer])
    model.compile(tf.keras.optimizers.Adam(0.05), "mse")
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    model.save(tmp_path / "m.keras")
    again = tf.keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(again(X), model(X))
    for one in (model, again):
        one.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    for here, there in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(here, there)
    config = {**layer.get_config(), "init_fn": None}
    with pytest.raises(ValueError, match="read from a file needs `init_fn`"):
        L.JaxLayer.from_config(config)


def test_modules_of_equinox_with_state_are_saved_and_trained_on(tmp_path):
    eqx = pytest.importorskip("equinox", reason="equinox")

    class Net(eqx.Module):
        first: eqx.nn.Linear
        norm: eqx.nn.BatchNorm

        def __init__(self, key):
            self.first = eqx.nn.Linear(3, 2, key=key)
            self.norm = eqx.nn.BatchNorm(2, "batch", mode="batch")

        def __call__(self, x, state):
            return self.norm(self.first(x), state)

    def call(params, state, inputs, training):
        net = eqx.nn.inference_mode(params, not training)
        mapped = jax.vmap(net, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        return mapped(inputs, state)

    def init(rng, inputs):
        return eqx.nn.make_with_state(Net)(rng)

    model = tf.keras.Sequential([tf.keras.Input((3,)), L.JaxLayer(call, init, seed=3)])
    model.compile(tf.keras.optimizers.Adam(0.05), "mse")
    before = [np.asarray(w) for w in model.non_trainable_weights]
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    after = model.non_trainable_weights
    assert any((np.asarray(w) != v).any() for w, v in zip(after, before, strict=True))
    model.save(tmp_path / "m.keras")
    names = {"call": call, "init": init}
    again = tf.keras.models.load_model(tmp_path / "m.keras", custom_objects=names)
    for one in (model, again):
        one.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    np.testing.assert_array_equal(again(X), model(X))


def test_64_bit_state_is_preserved_by_a_32_bit_function():
    def count(params, state, inputs):
        return inputs @ params["w"], {"n": state["n"] + inputs.sum()}

    layer = L.JaxLayer(
        count, params={"w": jnp.ones([2, 1], "float32")}, state={"n": jnp.zeros([], "float64")}
    )
    layer(tf.ones([3, 2]))
    (state,) = [w for w in layer.non_trainable_weights if w.dtype == tf.float64]
    assert float(state) == 6.0


def test_layer_of_an_anonymous_function_cannot_be_deserialized():
    layer = L.JaxLayer(lambda params, inputs: inputs * params["w"], params={"w": jnp.ones(2)})
    config = {**layer.get_config(), "call_fn": "<lambda>"}
    with pytest.raises(ValueError, match="`call_fn` must be a function, got '<lambda>'"):
        L.JaxLayer.from_config(config)
