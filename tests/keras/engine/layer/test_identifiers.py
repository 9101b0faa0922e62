"""Losses, metrics, layers and their like by name, class, object and configuration; base classes."""

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close

keras = tf.keras
layers = tf.keras.layers
X = np.arange(6, dtype="float32").reshape(2, 3)


def double(x):
    return 2 * x


MODULES = {
    "activations": (keras.activations, ["relu", "tanh", "softmax", "gelu"]),
    "losses": (keras.losses, ["MeanSquaredError", "Huber", "KLDivergence", "mse", "hinge"]),
    "metrics": (keras.metrics, ["Accuracy", "AUC", "Mean", "mae", "binary_accuracy"]),
    "regularizers": (keras.regularizers, ["L1", "L2", "L1L2", "OrthogonalRegularizer"]),
    "constraints": (keras.constraints, ["MaxNorm", "NonNeg", "UnitNorm", "MinMaxNorm"]),
}
GET = {
    "activations": (keras.activations.get, keras.activations.serialize),
    "losses": (keras.losses.get, keras.losses.serialize),
    "metrics": (keras.metrics.get, keras.metrics.serialize),
    "regularizers": (keras.regularizers.get, keras.regularizers.serialize),
    "constraints": (keras.constraints.get, keras.constraints.serialize),
}
DESERIALIZE = {
    "activations": keras.activations.deserialize,
    "losses": keras.losses.deserialize,
    "metrics": keras.metrics.deserialize,
    "regularizers": keras.regularizers.deserialize,
    "constraints": keras.constraints.deserialize,
}
CASES = [(kind, name) for kind, (_, names) in MODULES.items() for name in names]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_by_name_and_configuration(kind, name):
    module = MODULES[kind][0]
    get, serialize = GET[kind]
    thing = getattr(module, name)
    made = thing() if isinstance(thing, type) else thing
    assert get(made) is made
    for found in (get(name), DESERIALIZE[kind](serialize(made))):
        if isinstance(thing, type):
            assert isinstance(found, thing)
            # Default names are numbered.
            configs = [{**m.get_config(), "name": None} for m in (found, made)]
            assert configs[0] == configs[1]
        else:
            assert found is thing


@pytest.mark.parametrize("kind", MODULES)
def test_unknown_names(kind):
    get = GET[kind][0]
    with pytest.raises(ValueError, match=r"[Uu]nknown"):
        get("no_such_thing")
    if kind == "activations":
        assert get(None)(3) == 3
    else:
        assert get(None) is None
    assert get(double) is double


def test_configurations():
    assert keras.regularizers.deserialize(
        {"class_name": "L1", "config": {"l1": 0.5}}
    ).get_config() == {"l1": 0.5}
    norm = keras.constraints.deserialize({"class_name": "MaxNorm", "config": {"max_value": 3}})
    assert norm.get_config() == {"max_value": 3, "axis": 0}
    mean = keras.metrics.deserialize({"class_name": "Mean", "config": {"name": "q"}})
    assert mean.name == "q" and isinstance(mean, keras.metrics.Mean)
    loss = keras.losses.deserialize({"class_name": "Huber", "config": {"delta": 0.5}})
    assert_close(loss([0.0], [2.0]), 0.5 * (2 - 0.25))
    schedule = keras.optimizers.schedules.deserialize(
        {
            "class_name": "ExponentialDecay",
            "config": {"initial_learning_rate": 0.1, "decay_steps": 10, "decay_rate": 0.5},
        }
    )
    assert_close(schedule(10), 0.05)
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    assert again.get_config() == schedule.get_config()


def test_layers_by_configuration():
    layer = layers.Dropout(0.25, name="d")
    again = layers.deserialize(layers.serialize(layer))
    assert isinstance(again, layers.Dropout) and again.get_config() == layer.get_config()
    with pytest.raises(ValueError, match="Nope"):
        layers.deserialize({"class_name": "Nope", "config": {}})

    class Twice(layers.Layer):
        def call(self, inputs):
            return 2 * inputs

    custom = layers.deserialize(layers.serialize(Twice(name="t")), custom_objects={"Twice": Twice})
    assert custom.name == "t"
    assert_close(custom(X), 2 * X)


FUNCTIONS = {
    "binary_accuracy": (([[0.0], [1.0]], [[0.2], [0.4]]), [1, 0]),
    "categorical_accuracy": (([[0.0, 1], [1, 0]], [[0.2, 0.8], [0.4, 0.6]]), [1, 0]),
    "sparse_categorical_accuracy": (([1, 0], [[0.2, 0.8], [0.4, 0.6]]), [1, 0]),
    "top_k_categorical_accuracy": (
        ([[0.0, 0, 1], [1, 0, 0]], [[0.2, 0.7, 0.1], [0.4, 0.6, 0.5]], 2),
        [0, 0],
    ),
    "sparse_top_k_categorical_accuracy": (
        ([2, 0], [[0.1, 0.7, 0.2], [0.4, 0.6, 0.5]], 2),
        [1, 0],
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_metric_functions(name):
    arguments, expected = FUNCTIONS[name]
    assert_close(getattr(keras.metrics, name)(*arguments), expected)


def test_loss_functions():
    y, p = np.array([[0.0, 1.0], [1.0, 0.0]], "float32"), np.array([[0.2, 0.8], [0.4, 0.6]])
    p = p.astype("float32")
    hinge = np.maximum(np.max((1 - y) * p, -1) - np.sum(y * p, -1) + 1, 0)
    assert_close(keras.losses.categorical_hinge(y, p), hinge)
    truth = np.where(y == 1, p, 1 - p)
    focal = -((1 - truth) ** 2) * np.log(truth)
    assert_close(keras.losses.binary_focal_crossentropy(y, p), focal.mean(-1), 1e-4)
    balanced = np.where(y == 1, 0.3, 0.7) * (1 - truth) * -np.log(truth)
    found = keras.losses.binary_focal_crossentropy(
        y, p, apply_class_balancing=True, alpha=0.3, gamma=1.0
    )
    assert_close(found, balanced.mean(-1), 1e-4)
    own = np.sum(y * p, -1)
    expected = 0.25 * (1 - own) ** 2 * -np.log(own)
    assert_close(keras.losses.categorical_focal_crossentropy(y, p), expected, 1e-4)


def test_custom_losses_and_metrics():
    class Pinball(keras.losses.Loss):
        def call(self, y_true, y_pred):
            e = y_true - y_pred
            return tf.reduce_mean(tf.maximum(0.9 * e, -0.1 * e), -1)

    assert_close(Pinball()([[1.0], [2.0]], [[2.0], [1.0]]), (0.1 + 0.9) / 2)
    assert_close(Pinball(reduction="sum")([[1.0], [2.0]], [[2.0], [1.0]], [2.0, 1.0]), 1.1)
    wrapped = keras.losses.LossFunctionWrapper(lambda a, b, scale: scale * (a - b), scale=2.0)
    assert_close(wrapped([[3.0]], [[1.0]]), 4)
    with pytest.raises(NotImplementedError):
        keras.losses.Loss()([1.0], [2.0])

    class Largest(keras.metrics.Metric):
        def __init__(self, name="largest", **kwargs):
            super().__init__(name, **kwargs)
            self.value = self.add_weight("value", initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.value.assign(tf.maximum(self.value, tf.reduce_max(tf.abs(y_true - y_pred))))

        def result(self):
            return self.value

    largest = Largest()
    largest.update_state(tf.constant([1.0, 2.0]), tf.constant([4.0, 2.0]))
    assert_close(largest(tf.constant([0.0]), tf.constant([1.0])), 3)
    largest.reset_state()
    assert_close(largest.result(), 0)
    mean = keras.metrics.MeanMetricWrapper(lambda a, b: tf.abs(a - b), name="m")
    mean.update_state([1.0, 2.0], [2.0, 5.0], sample_weight=[1.0, 3.0])
    assert_close(mean.result(), 10 / 4)
    with pytest.raises(TypeError, match="abstract class Metric without result and update_state"):
        keras.metrics.Metric().result()


def test_custom_regularizers_and_constraints():
    class Largest(keras.regularizers.Regularizer):
        def __call__(self, x):
            return tf.reduce_max(tf.abs(x))

        def get_config(self):
            return {}

    class Halved(keras.constraints.Constraint):
        def __call__(self, w):
            return w / 2

    layer = layers.Dense(1, kernel_initializer="ones", kernel_regularizer=Largest())
    layer(X)
    assert_close(layer.losses, [1])
    v = tf.Variable([2.0], constraint=Halved())
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.apply_gradients([(tf.constant([1.0]), v)])
    assert_close(v, [0.5])
    assert_close(keras.regularizers.Regularizer()(tf.constant(3.0)), 0)
    assert_close(keras.constraints.Constraint()(tf.constant([3.0])), [3])
    with pytest.raises(NotImplementedError):
        keras.regularizers.Regularizer().get_config()
    with pytest.raises(NotImplementedError):
        keras.optimizers.schedules.LearningRateSchedule()(3)


def test_wrappers_and_specs():
    inner = layers.Dense(2, name="inner")
    wrapper = layers.Wrapper(inner)
    assert wrapper.layer is inner
    again = layers.Wrapper.from_config(wrapper.get_config())
    assert again.layer.get_config() == inner.get_config()
    with pytest.raises(ValueError, match="with a `tf"):
        layers.Wrapper(3)
    spec = layers.InputSpec(shape=(None, 3))
    assert spec.ndim == 2 and repr(spec) == "InputSpec(shape=(None, 3), ndim=2)"
    assert layers.InputSpec.from_config(spec.get_config()).shape == (None, 3)
    with pytest.raises(ValueError, match="Axis 5"):
        layers.InputSpec(ndim=2, axes={5: 1})

    class Two(layers.Layer):
        def __init__(self):
            super().__init__()
            self.input_spec = layers.InputSpec(ndim=2, axes={-1: 3})

        def call(self, inputs):
            return inputs

    assert_close(Two()(X), X)
    for wrong in (np.ones((2, 4)), np.ones((2, 3, 3))):
        with pytest.raises(ValueError, match="incompatible"):
            Two()(wrong)
    start = layers.InputLayer(input_shape=(3,), batch_size=2, name="start")
    assert start.output.shape == (2, 3) and start.get_config()["batch_input_shape"] == (2, 3)
    model = keras.Model(start.output, layers.Dense(1)(start.output))
    assert model.predict(X, verbose=0).shape == (2, 1)
    again = keras.Model.from_config(model.get_config())
    assert again.layers[0].name == "start"


def test_merging_functions():
    other = X + 1
    assert_close(layers.dot([X, other], axes=1), np.sum(X * other, 1, keepdims=True))
    cosine = np.sum(X * other, 1) / np.linalg.norm(X, axis=1) / np.linalg.norm(other, axis=1)
    assert_close(layers.dot([X, other], axes=1, normalize=True)[:, 0], cosine, 1e-5)
    a, b = np.random.rand(2, 3, 4), np.random.rand(2, 5, 3)
    found = layers.Dot(axes=(1, 2))([a.astype("float32"), b.astype("float32")])
    assert_close(found, np.einsum("bij,bki->bjk", a, b), 1e-5)
    assert_close(layers.concatenate([X, other]), np.concatenate([X, other], -1))
    assert_close(layers.concatenate([X, other], axis=0), np.concatenate([X, other], 0))
    with pytest.raises(ValueError, match="2 inputs"):
        layers.Dot(axes=1)([X, X, X])


def test_elementwise_merging_functions():
    other = X[::-1].copy()
    for merge, expected in (
        (layers.add, X + other),
        (layers.subtract, X - other),
        (layers.multiply, X * other),
        (layers.average, (X + other) / 2),
        (layers.maximum, np.maximum(X, other)),
        (layers.minimum, np.minimum(X, other)),
    ):
        assert_close(merge([X, other]), expected)
    with pytest.raises(ValueError, match="2 inputs"):
        layers.subtract([X])


def test_activations_without_a_tf_keras_twin():
    x = np.linspace(-8, 8, 9)
    assert_close(keras.activations.leaky_relu(x), np.where(x > 0, x, 0.2 * x))
    assert_close(keras.activations.relu6(x), np.clip(x, 0, 6))
    assert_close(keras.activations.silu(x), x / (1 + np.exp(-x)))


def test_spatial_dropout():
    x = np.ones((6, 3, 3, 3, 8), "float32")
    for layer, ones in (
        (layers.SpatialDropout3D(0.5, seed=1), x),
        (layers.SpatialDropout2D(0.5, seed=1), x[:, 0]),
        (layers.SpatialDropout1D(0.5, seed=1), x[:, 0, 0]),
    ):
        found = layer(ones, training=True).numpy()
        kept = found.reshape(6, -1, 8)
        # Complete channels are dropped, and the others are doubled.
        assert_close(kept, np.broadcast_to(kept[:, :1], kept.shape))
        assert set(np.unique(found)) == {0.0, 2.0}
        assert 8 < np.sum(kept[:, 0] > 0) < 40
        assert_close(layer(ones), ones)
    first = layers.SpatialDropout3D(0.5, data_format="channels_first", seed=1)
    kept = first(x[:, :, :, :, :3], training=True).numpy().reshape(6, 3, -1)
    assert_close(kept, np.broadcast_to(kept[:, :, :1], kept.shape))


def test_data_formats():
    for name in ("Conv2D", "MaxPooling2D", "SpatialDropout2D", "Flatten"):
        arguments = {"Conv2D": (1, 1), "SpatialDropout2D": (0.5,)}.get(name, ())
        with pytest.raises(ValueError, match="data_format"):
            getattr(layers, name)(*arguments, data_format="nope")
        try:
            keras.backend.set_image_data_format("channels_first")
            assert getattr(layers, name)(*arguments).data_format == "channels_first"
            assert layers.MaxPooling1D().data_format == "channels_last"
        finally:
            keras.backend.set_image_data_format("channels_last")


def test_optax_transformations():
    import optax

    v = tf.Variable([1.0, 2.0])
    optimizer = keras.optimizers.OptaxOptimizer(optax.sgd(0.5, momentum=0.9))
    for _ in range(2):
        optimizer.apply_gradients([(tf.constant([1.0, -1.0]), v)])
    # Momentum: steps of 0.5 * (1 and 1.9).
    assert_close(v, [1 - 0.5 * 2.9, 2 + 0.5 * 2.9])
    with pytest.raises(ValueError, match="transformation"):
        keras.optimizers.OptaxOptimizer(optax.sgd(0.5), weight_decay=0.1)
