"""Test methods that reuse the variables and layers of version 1 which they create; names and numbers are TensorFlow's."""

import numpy as np
import pytest

import meshflow as tf

v1 = tf.compat.v1


class _Layer(tf.keras.layers.Layer):
    @v1.keras.utils.track_tf1_style_variables
    def call(self, inputs):
        ones = tf.ones_initializer()
        with v1.variable_scope("m", regularizer=tf.keras.regularizers.L2(0.5)):
            outputs = inputs @ v1.get_variable("w", [3, 2], initializer=ones)
            outputs = v1.layers.dense(
                outputs,
                4,
                kernel_initializer=ones,
                kernel_regularizer=tf.keras.regularizers.L2(0.25),
            )
            outputs = v1.layers.dense(outputs, 4, name="fc")
            outputs = v1.layers.batch_normalization(outputs, training=True)
        with v1.variable_scope("m", reuse=True):
            outputs += tf.reduce_sum(v1.get_variable("w"))
        with v1.variable_scope(None, "d"):
            return outputs + v1.get_variable("q", [1])


def test_calls_share_variables_and_layers():
    layer = _Layer()
    layer(tf.ones([2, 3]))
    assert len(layer.trainable_weights) == 8
    layer(tf.ones([2, 3]))
    expected = [
        *("d/q", "d_1/q", "m/batch_normalization/beta", "m/batch_normalization/gamma"),
        *("m/batch_normalization/moving_mean", "m/batch_normalization/moving_variance"),
        *("m/dense/bias", "m/dense/kernel", "m/fc/bias", "m/fc/kernel", "m/w"),
    ]
    assert sorted(v.name for v in layer.weights) == [f"{name}:0" for name in expected]
    # The penalties of `w`, and of the kernel of the first dense layer.
    losses = [float(loss) for loss in layer.losses]
    assert 3.0 in losses
    assert 2.0 in losses


# Each trace of `call` creates another variable of the scope without a name.
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_models_train_such_layers():
    model = tf.keras.Sequential([_Layer()])
    model.compile("sgd", "mse")
    model.fit(np.arange(12, dtype=np.float32).reshape(4, 3), np.ones((4, 4), np.float32), verbose=0)
    kernels = [v for v in model.weights if v.name == "m/fc/kernel:0"]
    before = kernels[0].numpy()
    model.fit(np.arange(12, dtype=np.float32).reshape(4, 3), np.ones((4, 4), np.float32), verbose=0)
    assert len(kernels) == 1
    assert not np.array_equal(kernels[0].numpy(), before)


class _Nested(tf.keras.layers.Layer):
    is_complete = False

    @v1.keras.utils.track_tf1_style_variables
    def transform(self, inputs):
        return v1.layers.dense(inputs, 2)

    @v1.keras.utils.track_tf1_style_variables
    def call(self, inputs):
        scale = v1.get_variable("s", [], regularizer=tf.keras.regularizers.L2(1.0))
        if not self.is_complete:
            raise ValueError("incomplete")
        return v1.layers.dense(self.transform(v1.layers.dense(inputs * scale, 3)), 4)


def test_methods_call_each_other_and_run_again_after_an_error():
    layer = _Nested()
    with pytest.raises(ValueError, match="incomplete"):
        layer(tf.ones([1, 3]))
    layer.is_complete = True
    for _ in range(2):
        assert layer(tf.ones([1, 3])).shape == [1, 4]
    expected = {"s": [], "dense/kernel": [3, 3], "dense/bias": [3]}
    expected |= {"dense_1/kernel": [3, 2], "dense_1/bias": [2]}
    expected |= {"dense_2/kernel": [2, 4], "dense_2/bias": [4]}
    # As in TensorFlow, names do not contain that of the layer.
    assert {v.name[:-2]: v.shape.as_list() for v in layer.weights} == expected
    assert float(layer.losses[0]) != 0.0


def test_modules_create_keras_layers_once():
    class Scale(tf.Module):
        @v1.keras.utils.track_tf1_style_variables
        def __call__(self, inputs):
            dense = v1.keras.utils.get_or_create_layer("d", lambda: tf.keras.layers.Dense(2))
            return dense(inputs) * v1.get_variable("s", [])

    module = Scale()
    first = module(tf.ones([1, 3]))
    np.testing.assert_array_equal(module(tf.ones([1, 3])), first)
    assert len(module.trainable_variables) == 3


def test_errors_of_other_owners_and_shapes():
    class Other:
        @v1.keras.utils.track_tf1_style_variables
        def run(self):
            return 1

    class Sized(tf.Module):
        @v1.keras.utils.track_tf1_style_variables
        def run(self, size):
            return v1.get_variable("s", [size])

    with pytest.raises(
        ValueError, match=r"must be applied to a method of a subclassed `tf.Module`"
    ):
        Other().run()
    with pytest.raises(ValueError, match="not decorated with"):
        v1.keras.utils.get_or_create_layer("d", lambda: 1)
    module = Sized()
    module.run(2)
    with pytest.raises(
        ValueError, match=r"Trying to share variable s, .* \(3,\) and found shape \(2,\)"
    ):
        module.run(3)


class _Convolutions(tf.keras.layers.Layer):
    def __init__(self):
        super().__init__(name="convolutions")
        self.first = v1.layers.Conv2D(3, 2, kernel_regularizer="l2")
        self.second = v1.layers.Conv2D(4, 2)
        self.own = tf.keras.layers.Dense(2, name="own")
        self.scale = v1.make_template("scale", self._scale, scalar_name="y")

    @staticmethod
    def _scale(inputs, scalar_name):
        regularizer = tf.keras.regularizers.L2(1.0)
        return inputs * v1.get_variable(scalar_name, [], initializer=tf.ones_initializer(), regularizer=regularizer)  # fmt: skip

    @v1.keras.utils.track_tf1_style_variables
    def call(self, inputs):
        with v1.variable_scope("m"):
            outputs = self.second(self.first(inputs))
            outputs = v1.layers.flatten(v1.layers.dropout(v1.layers.conv2d(outputs, 5, 2)))
            return self.scale(self.own(outputs))


def test_objects_of_layers_and_templates_are_named_by_scopes():
    layer = _Convolutions()
    first = layer(tf.ones([1, 5, 5, 1]))
    np.testing.assert_array_equal(layer(tf.ones([1, 5, 5, 1])), first)
    names = {v.name[:-2] for v in layer.weights if "kernel" in v.name}
    assert names == {"m/conv2d/kernel", "m/conv2d_1/kernel", "m/conv2d_2/kernel", "convolutions/m/own/kernel"}  # fmt: skip
    assert "m/scale/y:0" in [v.name for v in layer.weights]
    assert layer.first.kernel.name == "m/conv2d/kernel:0"
    # The penalties of the first kernel and of the scale.
    assert len(layer.losses) == 2


def test_default_arguments_of_functions_and_layers():
    ones = tf.ones([4, 2])
    np.testing.assert_array_equal(v1.layers.dropout(ones), ones)
    assert v1.layers.Dropout().rate == 0.5
    assert v1.layers.Dropout(0.25).rate == 0.25
    tf.keras.backend.set_learning_phase(1)
    try:
        assert float(v1.layers.batch_normalization(ones)[0, 0]) > 0.9
    finally:
        tf.keras.backend.clear_session()


def test_wrapped_functions_keep_their_variables():
    def apply(x, y):
        with v1.variable_scope("net", reuse=v1.AUTO_REUSE):
            ones = tf.ones_initializer()
            first = v1.layers.dense(x, 3, kernel_initializer=ones, name="fc")
            return {"sum": tf.reduce_sum(first), "other": v1.layers.dense(y, 3, name="fc")}

    wrapped = v1.wrap_function(apply, [tf.TensorSpec([None, 2]), tf.TensorSpec([None, 2])])
    assert sorted(v.name for v in wrapped.variables) == ["net/fc/bias:0", "net/fc/kernel:0"]
    for rows in (1, 3):
        results = wrapped(tf.ones([rows, 2]), tf.zeros([1, 2]))
        assert float(results["sum"]) == 6.0 * rows
        assert results["other"].shape == [1, 3]
    with tf.GradientTape() as tape:
        loss = wrapped(tf.ones([1, 2]), tf.ones([1, 2]))["sum"]
    assert None not in tape.gradient(loss, wrapped.variables)


def test_layers_of_graphs_are_reused_by_scopes():
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, 2])
        v1.layers.dense(x, 3, name="fc")
        with pytest.raises(ValueError, match="Variable fc/kernel already exists"):
            v1.layers.dense(x, 3, name="fc")
        v1.layers.dense(x, 3, name="fc", reuse=True)
        v1.layers.flatten(v1.layers.flatten(x, name="f"), name="f")
        for reuse in (False, True):
            with v1.variable_scope("s", reuse=reuse):
                v1.layers.dense(x, 3)
        v1.layers.dense(v1.layers.dense(x, 3), 3)
        kernels = [v.name for v in v1.global_variables() if "kernel" in v.name]
    assert kernels == [f"{n}/kernel:0" for n in ("fc", "s/dense", "dense", "dense_1")]


def test_sessions_record_calls_in_their_graph():
    with v1.Session() as session:
        x = v1.get_variable("x", initializer=3)
        x.initializer.run()
        fed = v1.placeholder(tf.int32, [])
        assert session.run(fed * 2 + x, {fed: 4}) == 11
        assert x.eval() == 3
    assert tf.executing_eagerly()
    v1.reset_default_graph()


def test_the_last_constant_fills_the_rest():
    initializer = v1.constant_initializer([0, 1, 2, 3, 4])
    np.testing.assert_array_equal(initializer([2, 3]), [[0, 1, 2], [3, 4, 4]])
    np.testing.assert_array_equal(v1.constant_initializer(2.0)([2]), [2.0, 2.0])
    np.testing.assert_array_equal(v1.constant_initializer([[1, 2], [3, 4]])([2, 2]), [[1, 2], [3, 4]])  # fmt: skip
    assert initializer.get_config()["value"] == [0, 1, 2, 3, 4]


def test_wrapped_functions_keep_all_variables_and_other_arguments():
    def scale(x, negates):
        factor = tf.Variable(3.0) * v1.get_variable("factor", initializer=2.0)
        return -x * factor if negates else x * factor

    wrapped = v1.wrap_function(scale, [tf.TensorSpec([]), True])
    assert wrapped(tf.constant(2.0)).numpy() == -12.0
    assert sorted(v.name for v in wrapped.variables) == ["Variable:0", "factor:0"]
    constant = v1.wrap_function(lambda: tf.Variable(4.0) + 1.0, [])
    constant.variables[0].assign(6.0)
    assert constant().numpy() == 7.0


def test_initializers_of_variables_of_graphs():
    with tf.Graph().as_default() as graph, v1.Session() as session:
        listed = v1.get_variable("listed", initializer=lambda scale=2: [scale, 3])
        local = v1.get_local_variable("local", [], collections=["mine"])
        assert graph.get_collection("mine") == [local] == v1.local_variables()
        assert not local.trainable and local not in v1.trainable_variables()
        session.run([listed.initializer, local.initializer])
        assert session.run(listed).tolist() == [2, 3]
        with pytest.raises(ValueError, match="callable with no arguments"):
            v1.get_variable("given", initializer=lambda x: x)
        with pytest.raises(ValueError, match="do not specify shape"):
            v1.get_variable("shaped", [1], initializer=tf.constant(0.1))
        with pytest.raises(ValueError, match="don't match"):
            v1.get_variable("double", dtype=tf.float64, initializer=tf.constant(0.1))
        with (
            v1.name_scope("outer"),
            v1.variable_scope("inner", auxiliary_name_scope=False) as scope,
        ):
            assert scope.original_name_scope == "outer/"
            assert v1.get_variable("w", []).name == "inner/w:0"


def test_scopes_without_a_name():
    with tf.compat.v1.variable_scope("") as scope:
        assert (scope.name, tf.compat.v1.get_variable("unscoped", [1]).name) == ("", "unscoped:0")
    with pytest.raises(TypeError, match="default_name"), tf.compat.v1.variable_scope(None):
        pass
