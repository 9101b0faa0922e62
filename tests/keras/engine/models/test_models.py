import copy
import json
import pickle

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close
from meshflow.keras import layers


def test_sequential_three_ways():
    a = tf.keras.Sequential([layers.Dense(2, input_shape=(3,))])
    b = tf.keras.Sequential([tf.keras.Input((3,)), layers.Dense(2)])
    c = tf.keras.Sequential([layers.Dense(2)])
    c(np.ones((1, 3)))
    for model, size in ((a, None), (b, None), (c, 1)):
        assert model.built and model.count_params() == 8 and model.output_shape == (size, 2)
    with pytest.raises(ValueError, match="unique"):
        tf.keras.Sequential([layers.Dense(2, name="x"), layers.Dense(2, name="x")])
    with pytest.raises(TypeError, match="Layer"):
        tf.keras.Sequential([3])


def test_functional_sharing_nesting_and_ops():
    shared = layers.Dense(4, use_bias=False, kernel_initializer="ones")
    x, y = tf.keras.Input((3,)), tf.keras.Input((3,))
    inner_in = tf.keras.Input((4,))
    inner = tf.keras.Model(inner_in, tf.nn.relu(inner_in) - 1.0, name="inner")
    out = inner(shared(x) + shared(y)) * 2.0
    model = tf.keras.Model([x, y], [out, tf.reduce_sum(out, axis=-1)])
    assert len(model.trainable_weights) == 1 and model.output_names[0].startswith(
        "tf.math.multiply"
    )
    a, b = model([np.ones((2, 3)), np.ones((2, 3))])
    assert_close(a, np.full((2, 4), 10.0))
    assert_close(b, [40, 40])
    clone = tf.keras.models.clone_model(model)
    assert_close(clone([np.ones((2, 3)), np.ones((2, 3))])[0], a.numpy())
    rebuilt = tf.keras.models.model_from_json(model.to_json())
    # The format of Keras 2's files, in which the calls of nested models are counted from 1.
    tf.keras.models.model_from_config(json.loads(model.to_json()))
    assert_close(rebuilt([np.ones((2, 3)), np.ones((2, 3))])[1], b.numpy())


def test_symbolic_slices_and_shapes():
    x = tf.keras.Input((4, 6))
    y = x[:, 1:3, ::2]
    z = tf.reshape(y, [-1, 6])
    assert y.shape.as_list() == [None, 2, 3] and z.shape.as_list() == [None, 6]
    model = tf.keras.Model(x, z)
    data = np.arange(48.0, dtype="float32").reshape(2, 4, 6)
    assert_close(model(data), data[:, 1:3, ::2].reshape(2, 6))
    with pytest.raises(TypeError, match="symbolic"):
        bool(x)
    with pytest.raises(TypeError, match="Lambda"):
        np.asarray(x)


def test_dynamic_batch_shape_in_a_graph():
    x = tf.keras.Input((4,))
    y = tf.reshape(x, [tf.shape(x)[0], 2, 2])
    assert tf.keras.Model(x, y)(np.ones((5, 4))).shape == (5, 2, 2)


def test_disconnected_and_wrong_inputs():
    x, y = tf.keras.Input((2,), name="x"), tf.keras.Input((2,), name="y")
    with pytest.raises(ValueError, match='"y"'):
        tf.keras.Model(x, x + y)
    with pytest.raises(ValueError, match="symbolic"):
        tf.keras.Model(np.ones(2), x)
    model = tf.keras.Model(x, layers.Dense(1)(x), name="net")
    with pytest.raises(ValueError, match=r"net.*\(None, 2\).*\(1, 3\)"):
        model(np.ones((1, 3)))


def test_subclassed_models_and_layers():
    class Block(layers.Layer):
        def __init__(self, units):
            super().__init__()
            self.parts = [layers.Dense(units), layers.Dense(units)]
            self.scale = tf.Variable(2.0)

        def call(self, x, training=None):
            for part in self.parts:
                x = part(x)
            return x * self.scale if training else x

    class Net(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.block = Block(3)
            self.heads = {"a": layers.Dense(1), "b": layers.Dense(2)}

        def call(self, x, training=None):
            x = self.block(x, training=training)
            return {k: head(x) for k, head in self.heads.items()}

    net = Net()
    out = net(np.ones((2, 4)))
    assert (
        set(out) == {"a", "b"}
        and len(net.trainable_weights) == 9
        and [layer.name for layer in net.layers] == ["block", "dense_2", "dense_3"]
    )
    assert_close(net(np.ones((2, 4)), training=True)["a"].shape, (2, 1))

    class Forgetful(tf.keras.Model):
        def __init__(self):
            self.dense = layers.Dense(1)

    with pytest.raises(RuntimeError, match="super"):
        Forgetful()


def test_build_and_compute_output_shape():
    class Net(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, x):
            return self.dense(x)

    net = Net()
    net.build((None, 5))
    assert net.count_params() == 18
    assert layers.Conv2D(4, 3).compute_output_shape((None, 8, 8, 3)).as_list() == [None, 6, 6, 4]


def test_get_and_set_weights():
    model = tf.keras.Sequential([layers.Dense(2, input_shape=(2,)), layers.BatchNormalization()])
    values = model.get_weights()
    assert [v.shape for v in values] == [(2, 2), (2,), (2,), (2,), (2,), (2,)]
    model.set_weights([v + 1 for v in values])
    assert_close(model.get_weights()[0], values[0] + 1)
    with pytest.raises(ValueError, match="6 weights"):
        model.set_weights(values[:2])
    with pytest.raises(ValueError, match="kernel"):
        model.layers[0].set_weights([np.ones((3, 2)), values[1]])


def test_masks_flow_through_layers():
    model = tf.keras.Sequential(
        [
            layers.Embedding(5, 4, mask_zero=True),
            layers.Dropout(0.1),
            layers.GlobalAveragePooling1D(),
        ]
    )
    x = np.array([[1, 2, 0, 0]])
    table = model.layers[0]
    y = model(x)
    assert_close(y, table.embeddings.numpy()[[1, 2]].mean(0)[None])


def test_training_is_handed_down():
    seen = []

    class Spy(layers.Layer):
        def call(self, x, training=None):
            seen.append(training)
            return x

    class Outer(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.spy = Spy()

        def call(self, x):
            return self.spy(x)

    model = Outer()
    model(np.ones((1, 1)), training=True)
    assert seen == [True]
    functional_in = tf.keras.Input((1,))
    functional = tf.keras.Model(functional_in, Spy()(functional_in))
    seen.clear()
    functional(np.ones((1, 1)), training=True)
    functional(np.ones((1, 1)))
    assert seen == [True, None]


@pytest.mark.parametrize("suffix", [".keras", ".h5", ""])
def test_saving_complete_models(tmp_path, suffix):
    model = tf.keras.Sequential(
        [
            layers.Dense(4, activation="relu", input_shape=(3,)),
            layers.BatchNormalization(),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    x, y = np.random.default_rng(0).normal(size=(2, 32, 3))
    model.fit(x, y[:, :1], verbose=0)
    path = tmp_path / f"model{suffix}"
    model.save(path)
    loaded = tf.keras.models.load_model(path)
    assert_close(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    model.fit(x, y[:, :1], verbose=0, shuffle=False)
    loaded.fit(x, y[:, :1], verbose=0, shuffle=False)
    assert_close(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


@pytest.mark.parametrize("name", ["w.h5", "w.weights.h5", "checkpoint"])
def test_saving_weights(tmp_path, name):
    def make():
        return tf.keras.Sequential(
            [layers.Dense(4, input_shape=(3,), name="a"), layers.Dense(1, name="b")]
        )

    a, b = make(), make()
    a.save_weights(tmp_path / name)
    b.load_weights(tmp_path / name)
    assert_close(b(np.ones((2, 3))), a(np.ones((2, 3))).numpy())
    other = tf.keras.Sequential([layers.Dense(5, input_shape=(3,))])
    with pytest.raises(ValueError):
        other.load_weights(tmp_path / name)


def test_damaged_and_missing_files_are_named(tmp_path):
    model = tf.keras.Sequential([layers.Dense(1, input_shape=(1,))])
    model.save_weights(tmp_path / "c")
    (tmp_path / "c.data-00000-of-00001").write_bytes(b"broken")
    with pytest.raises(tf.errors.DataLossError, match=r"c\.data-00000-of-00001"):
        model.load_weights(tmp_path / "c")
    with pytest.raises(OSError, match="nowhere"):
        tf.keras.models.load_model(tmp_path / "nowhere.keras")


def test_custom_objects(tmp_path):
    @tf.keras.utils.register_keras_serializable("tests")
    class Twice(layers.Layer):
        def call(self, x):
            return 2 * x

    model = tf.keras.Sequential([tf.keras.Input((1,)), Twice()])
    model.save(tmp_path / "m.keras")
    assert_close(tf.keras.models.load_model(tmp_path / "m.keras")(np.ones((1, 1))), [[2]])


def test_custom_objects_are_found_inside_layers():
    class Scaled(layers.Layer):
        def __init__(self, penalty=None, **others):
            super().__init__(**others)
            self.penalty = tf.keras.regularizers.get(penalty)

        def get_config(self):
            penalty = tf.keras.regularizers.serialize(self.penalty)
            return {**super().get_config(), "penalty": penalty}

    class Own(tf.keras.regularizers.Regularizer):
        def get_config(self):
            return {}

    model = tf.keras.Sequential([tf.keras.Input((1,)), Scaled(Own())])
    known = {"Scaled": Scaled, "Own": Own}
    again = tf.keras.Sequential.from_config(model.get_config(), custom_objects=known)
    assert isinstance(again.layers[0].penalty, Own)
    assert "Own" not in tf.keras.utils.get_custom_objects()


def test_python_control_flow_in_layers_of_the_user():
    class Gate(layers.Layer):
        def call(self, x):
            if tf.reduce_sum(x) > 0:
                return x * 2.0
            else:
                return -x

    x = tf.keras.Input((2,))
    model = tf.keras.Model(x, Gate()(x))
    assert_close(model.predict(np.ones((1, 2)), verbose=0), [[2, 2]])
    assert_close(model.predict(-np.ones((1, 2)), verbose=0), [[1, 1]])


def test_sequential_model_accepts_other_sizes_than_the_first():
    model = tf.keras.Sequential([tf.keras.layers.Dense(3), tf.keras.layers.Dense(2)])
    assert model(tf.ones([2, 8, 4])).shape == [2, 8, 2]
    assert model.input_shape == (2, 8, 4)
    assert model(tf.ones([2, 9, 4])).shape == [2, 9, 2]
    assert model.input_shape == (2, None, 4)
    assert model.layers[0].output.shape.as_list() == [2, None, 3]
    with pytest.raises(ValueError, match="expected axis -1 of input shape to have value 4"):
        model(tf.ones([2, 9, 5]))
    assert model(tf.ones([2, 7, 4])).shape == [2, 7, 2]


def test_sequential_model_enforces_its_declared_shape():
    model = tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(8, 4))])
    with pytest.raises(ValueError, match=r"expected shape=.*8, 4.*found shape=.*9, 4"):
        model(tf.ones([2, 9, 4]))


def test_a_list_of_one_tensor_is_the_tensor():
    x = tf.keras.Input((3,), name="x")
    model = tf.keras.Model([x], [tf.keras.layers.Dense(2)(x)])
    assert tf.is_tensor(model(tf.ones([4, 3]))) and tf.is_tensor(model([tf.ones([4, 3])]))
    assert model.predict(tf.ones([4, 3]), verbose=0).shape == (4, 2)
    assert model.input is x and model.inputs == [x]
    assert model.input_shape == (None, 3) and model.output_shape == (None, 2)
    assert model(model.input).shape == [None, 2]
    again = tf.keras.models.clone_model(model)
    assert tf.is_tensor(again(tf.ones([4, 3])))
    assert len(tf.keras.Model([x], [model.output, x])(tf.ones([4, 3]))) == 2


def test_constants_of_maximum_length_are_sliced_to_unknown_lengths():
    positions = tf.random.normal([1, 50, 3])
    x = tf.keras.Input((None, 3))
    y = tf.keras.layers.Lambda(lambda t: t + positions[:, : tf.shape(t)[1]])(x)
    assert y.shape == [None, None, 3]
    assert tf.keras.Model(x, y)(tf.ones([2, 7, 3])).shape == [2, 7, 3]
    with pytest.raises(ValueError, match=r"\[None, None, 3\] vs. \[1, 2, 5\]"):
        tf.keras.layers.Lambda(lambda t: t + tf.ones([1, 2, 5]))(x)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_copies_of_trained_models_train_on(copied, policy):
    x = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)
    y = x.sum(1, keepdims=True)
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(2, input_shape=(3,), dtype=policy),
            tf.keras.layers.Dense(1, dtype="float32"),
        ]
    )
    optimizer = tf.keras.optimizers.Adam(0.1)
    if policy == "mixed_float16":
        optimizer = tf.keras.mixed_precision.LossScaleOptimizer(optimizer)
    model.compile(optimizer, "mse")
    model.fit(x, y, verbose=0)
    again = copied(model)
    before = again.get_weights()
    for each in (model, again):
        each.fit(x, y, shuffle=False, verbose=0)
    assert int(again.optimizer.iterations) == 2
    for start, own, other in zip(before, again.get_weights(), model.get_weights(), strict=True):
        assert not np.array_equal(start, own)
        np.testing.assert_array_equal(own, other)
    assert copied(model.history).history == model.history.history


def test_symbolic_losses_are_listed_before_the_first_call():
    inputs = tf.keras.Input([3])
    outputs = tf.keras.layers.Dense(2, kernel_regularizer="l2")(inputs)
    model = tf.keras.Model(inputs, outputs)
    model.add_loss(tf.reduce_mean(outputs))
    assert len(model.losses) == 2
    y = model(tf.ones([1, 3]))
    assert_close(model.losses[1], tf.reduce_mean(y))
    assert len(model.losses) == 2


def test_lists_inside_a_dictionary_of_inputs():
    a, b, c = (tf.keras.Input((n,), name=name) for name, n in (("a", 3), ("b", 3), ("c", 2)))
    model = tf.keras.Model({"x": [a, b], "y": c}, layers.Concatenate()([a, b, c]))
    one, zero = np.ones((4, 3), "float32"), np.zeros((4, 3), "float32")
    data = {"x": [one, zero], "y": np.full((4, 2), 2, "float32")}
    expected = np.concatenate([one, zero, data["y"]], 1)
    assert_close(model(data), expected)
    assert_close(model.predict(data, verbose=0), expected)
    assert_close(tf.keras.Model.from_config(model.get_config())(data), expected)
    model.compile("sgd", "mse")
    assert model.evaluate(data, expected, verbose=0) == 0
    with pytest.raises(ValueError, match=r"expects 3 input\(s\), but it received 2"):
        model({"x": one, "y": data["y"]})


def test_a_layer_several_times_in_a_sequential(tmp_path):
    shared = layers.Dense(3)
    stack = [shared, layers.ReLU(), shared]
    model = tf.keras.Sequential([tf.keras.Input((3,)), *stack])
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    expected = shared(tf.nn.relu(shared(x)))
    assert_close(model(x), expected)
    assert_close(model(x[:2]), expected[:2])
    assert model.layers == stack[:2] and len(model.weights) == 2 and model.count_params() == 12
    model.compile("sgd", "mse")
    assert_close(model.predict(x, verbose=0), expected)
    for name in ("m", "m.keras", "m.h5"):
        model.save(tmp_path / name)
        loaded = tf.keras.models.load_model(tmp_path / name)
        assert_close(loaded.predict(x, verbose=0), expected)
        assert len(loaded.weights) == 2
    assert model.pop() is shared and model.layers == stack[:2]
    assert_close(model(x), tf.nn.relu(shared(x)))


def test_clones_start_from_given_tensors():
    layers = tf.keras.layers
    a, b = tf.keras.Input([4]), tf.keras.Input([4])
    dense = layers.Dense(4)
    model = tf.keras.Model([a, b], layers.Dense(2)(layers.add([dense(a), dense(b)])), name="two")
    first, second = tf.keras.Input([4], name="first"), tf.keras.Input([4], name="second")
    clone = tf.keras.models.clone_model(model, [first, second])
    assert clone.inputs[0] is first and clone.name == "two"
    assert [layer.name for layer in clone.layers[:2]] == ["first", "second"]
    assert len(clone.weights) == 4 and len(clone.layers[2]._inbound_nodes) == 2
    given = tf.keras.models.clone_model(model, [layers.Dense(4)(first), second])
    assert given([tf.ones([2, 4]), tf.ones([2, 4])]).shape == (2, 2)
    shapes = tf.keras.models.clone_model(model, [np.ones([3, 4]), np.ones([3, 4])]).input_shape
    assert shapes == [(3, 4), (3, 4)]
    with pytest.raises(ValueError, match=r"model 'two' has 2 input\(s\), got 1"):
        tf.keras.models.clone_model(model, [first])
    with pytest.raises(ValueError, match="`clone_function` argument to be a callable"):
        tf.keras.models.clone_model(model, clone_function=3)

    sequence = tf.keras.Sequential([layers.Dense(3, input_shape=(4,)), layers.Dense(1)])
    assert tf.keras.models.clone_model(sequence, first).inputs[0] is first
    assert tf.keras.models.clone_model(sequence, tf.ones([2, 4])).input_shape == (2, 4)


def test_clones_of_subclassed_models():
    class Own(tf.keras.Model):
        def __init__(self, units=3, **kwargs):
            super().__init__(**kwargs)
            self.dense = tf.keras.layers.Dense(units)

        def call(self, inputs):
            return self.dense(inputs)

    clone = tf.keras.models.clone_model(Own(5))
    assert type(clone) is Own and clone.dense.units == 5 and not clone.weights
    with pytest.raises(ValueError, match="Received model of type 'Own'"):
        tf.keras.models.clone_model(Own(), clone_function=lambda layer: layer)
    with pytest.raises(ValueError, match="Expected `model` argument to be a `Model`"):
        tf.keras.models.clone_model(3)

    class Graph(tf.keras.Model):
        pass

    x = tf.keras.Input([4])
    assert tf.keras.models.clone_model(Graph(x, tf.keras.layers.Dense(2)(x))).output_shape == (
        None,
        2,
    )


def test_clones_of_layers_that_are_not_registered():
    class Twice(layers.Layer):
        def call(self, inputs, scale=2.0):
            return [scale * x for x in inputs]

    # A class with the name of another one does not replace it.
    class Dense(layers.Dense):
        pass

    inputs = [tf.keras.Input((1,)), tf.keras.Input((1,))]
    inner = tf.keras.Model(inputs, Twice()(inputs, scale=3.0))
    total = layers.Add()(Twice(name="outer")(inner(inputs)))
    outputs = layers.Dense(2)(Dense(3)(total))
    model = tf.keras.Model(inputs, layers.TimeDistributed(Dense(4))(outputs[:, None]))
    line = tf.keras.Sequential([Dense(1, input_shape=(2,)), layers.Dense(3)])
    for original, x in ((model, [np.ones((1, 1))] * 2), (line, np.ones((1, 2)))):
        clone = tf.keras.models.clone_model(original)
        clone.set_weights(original.get_weights())
        assert_close(clone(x), original(x))
        for layer, other in zip(original.layers, clone.layers, strict=True):
            assert type(other) is type(layer) and other is not layer
    assert type(tf.keras.models.clone_model(model).layers[-1].layer) is Dense


@pytest.mark.parametrize(
    "positions", [[32, 53, 65, 98], [32.1 / 98, 53.1 / 98, 65.1 / 98, 1.0], [32, 53, 65]]
)
def test_summaries_with_positions(positions):
    model = tf.keras.Sequential([layers.Dense(2, input_shape=(3,))])
    lines = []
    model.summary(line_length=98, positions=positions, print_fn=lines.append)
    assert [lines[2].index(heading) for heading in ("Output", "Param")] == [32, 53]


def test_clones_may_share_layers():
    inputs = tf.keras.Input([4])
    dense = tf.keras.layers.Dense(4)
    model = tf.keras.Model(inputs, tf.keras.layers.ReLU()(dense(inputs)))
    clone = tf.keras.models.clone_model(
        model,
        clone_function=lambda layer: (
            layer if layer is dense else tf.keras.layers.ELU(name=layer.name)
        ),
    )
    assert clone.layers[1] is dense and type(clone.layers[2]).__name__ == "ELU"
    x = np.float32([[1.0, -2.0, 3.0, 0.5]])
    np.testing.assert_allclose(clone(x), tf.nn.elu(dense(x)), rtol=1e-6)


def test_a_sequential_model_selects_its_input_by_name():
    model = tf.keras.Sequential([tf.keras.Input([2], name="x"), tf.keras.layers.Dense(1)])
    x = tf.ones([4, 2])
    np.testing.assert_array_equal(model({"x": x, "other": tf.zeros([4, 3])}), model(x))
    model.compile("sgd", "mse")
    model.fit(tf.data.Dataset.from_tensors(({"x": x}, tf.ones([4, 1]))), verbose=0)
    assert model._is_graph_network and not tf.keras.Sequential()._is_graph_network


def test_sequential_model_with_an_empty_shape_is_built_at_its_first_call():
    model = tf.keras.Sequential([tf.keras.layers.Dense(2), tf.keras.layers.Dense(3)])
    model.build(input_shape=())
    assert model.built and model.weights == []
    assert model(tf.ones([4, 5])).shape == [4, 3]
    assert [tuple(w.shape) for w in model.weights] == [(5, 2), (2,), (2, 3), (3,)]
    assert model(tf.ones([4, 6, 5])).shape == [4, 6, 3]


def test_a_repeated_layer_of_a_sequential_model_runs_once_unless_the_input_is_declared():
    double = layers.Dense(3, use_bias=False, kernel_initializer=lambda *_, **__: 2 * tf.eye(3))
    x = tf.ones([1, 3])
    assert tf.keras.Sequential([double] * 2)(x).numpy().tolist() == [[2, 2, 2]]
    built = tf.keras.Sequential([double] * 2)
    built.build([None, 3])
    assert built(x).numpy().tolist() == [[2, 2, 2]]
    declared = tf.keras.Sequential([tf.keras.Input([3]), double, double])
    assert declared(x).numpy().tolist() == [[4, 4, 4]]


def test_subclassed_models_may_set_inputs_and_outputs():
    class Named(tf.keras.Model):
        def __init__(self):
            super().__init__()
            assert self.inputs is None and self.outputs is None
            self.inputs = {"a": tf.keras.Input([2])}
            self.outputs = ["b"]
            self.dense = tf.keras.layers.Dense(1)

        def call(self, inputs):
            return self.dense(inputs["a"])

    model = Named()
    model.compile("sgd", "mse")
    model.fit({"a": tf.ones([2, 2])}, tf.ones([2, 1]), verbose=0)
    assert list(model.inputs) == ["a"] and model.outputs == ["b"]
