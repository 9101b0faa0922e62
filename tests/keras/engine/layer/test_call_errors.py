"""Errors in calls of layers name the layer, symbolic shapes and the arguments, as in tf-keras."""

import traceback

import numpy as np
import pytest

import meshflow as tf

layers, Input = tf.keras.layers, tf.keras.Input


class Projection(layers.Layer):
    def build(self, input_shape):
        self.kernel = self.add_weight("kernel", (5, 2))

    def call(self, inputs):
        return tf.matmul(inputs, self.kernel)


class Outer(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = Projection(name="inner")

    def call(self, inputs):
        return self.inner(inputs)


class Network(tf.keras.Model):
    def __init__(self):
        super().__init__(name="net")
        self.first, self.second = layers.Dense(4, name="first"), Projection(name="second")

    def call(self, x, training=None):
        return self.second(self.first(x))


def call_twice(layer, *shapes):
    return [layer(Input(shape)) for shape in shapes]


# tf-keras 2.21 raises a ValueError (TypeError for dtypes) for all of them.
MISTAKES = [
    (lambda: call_twice(layers.Dense(2, name="n"), (3,), (4,)), "n", "(None, 4)"),
    (lambda: layers.Dense(2, name="n")(Input((None,))), "n", "(None, None)"),
    (lambda: layers.Conv2D(2, 3, name="n")(Input((8, 8))), "n", "(None, 8, 8)"),
    (lambda: layers.Conv2D(2, 5, name="n")(Input((3, 3, 1))), "n", "(None, 3, 3, 1)"),
    (lambda: layers.Conv1D(2, 5, name="n")(Input((3, 1))), "n", "(None, 3, 1)"),
    (lambda: layers.Conv2D(4, 3, groups=2, name="n")(Input((8, 8, 3))), "n", "(None, 8, 8, 3)"),
    (lambda: layers.SeparableConv2D(2, 5, name="n")(Input((3, 3, 1))), "n", "(None, 3, 3, 1)"),
    (lambda: layers.MaxPooling2D(4, name="n")(Input((3, 3, 1))), "n", "(None, 3, 3, 1)"),
    (lambda: layers.ConvLSTM2D(2, 5, name="n")(Input((3, 4, 4, 1))), "n", "(None, 3, 4, 4, 1)"),
    (lambda: layers.Reshape((5,), name="n")(Input((8,))), "n", "(None, 8)"),
    (lambda: layers.Reshape((-1, -1), name="n")(Input((8,))), "n", "(None, 8)"),
    (lambda: layers.Permute((2, 1), name="n")(Input((3,))), "n", "(None, 3)"),
    (lambda: layers.RepeatVector(2, name="n")(Input((3, 4))), "n", "(None, 3, 4)"),
    (lambda: layers.Cropping2D(5, name="n")(Input((4, 4, 1))), "n", "(None, 4, 4, 1)"),
    (lambda: layers.Resizing(4, 4, name="n")(Input((3,))), "n", "(None, 3)"),
    (lambda: layers.CenterCrop(4, 4, name="n")(Input((3,))), "n", "(None, 3)"),
    (
        lambda: layers.Concatenate(name="n")([Input((3, 4)), Input((5, 4))]),
        "n",
        "(None, 5, 4)",
    ),
    (lambda: layers.Concatenate(name="n")(Input((3,))), "n", "(None, 3)"),
    (lambda: layers.Add(name="n")([Input((3,)), Input((4,))]), "n", "[None, 3] vs. [None, 4]"),
    (
        lambda: layers.Add(name="n")([Input(batch_shape=(2, 3)), Input(batch_shape=(4, 3))]),
        "n",
        "[2, 3] vs. [4, 3]",
    ),
    (lambda: layers.Maximum(name="n")([Input((3,)), Input((4,))]), "n", "[None, 3] vs. [None, 4]"),
    (lambda: layers.Subtract(name="n")([Input((3,))] * 3), "n", "(None, 3)"),
    (
        lambda: layers.Dot(1, name="n")([Input((3,)), Input((4,))]),
        "n",
        "(None, 3) and (None, 4)",
    ),
    (lambda: layers.LSTM(2, name="n")(Input((3,))), "n", "(None, 3)"),
    (
        lambda: layers.GRU(4, name="n")(Input((3, 2)), initial_state=Input((5,))),
        "n",
        "[None, 5], In[1]: [4, 12]",
    ),
    (lambda: call_twice(layers.LSTM(2, name="n"), (3, 2), (3, 5)), "n", "(None, 3, 5)"),
    (
        lambda: layers.TimeDistributed(layers.Conv2D(2, 3), name="n")(Input((5, 8, 8))),
        "n",
        "(None, 5, 8, 8)",
    ),
    (lambda: layers.BatchNormalization(axis=4, name="n")(Input((3,))), "n", "(None, 3)"),
    (lambda: call_twice(layers.LayerNormalization(name="n"), (3,), (4,)), "n", "(None, 4)"),
    (lambda: call_twice(layers.PReLU(name="n"), (3,), (4,)), "n", "(None, 4)"),
    (
        lambda: layers.MultiHeadAttention(2, 4, name="n")(
            Input((3, 4)), Input((5, 4)), Input((6, 4))
        ),
        "n",
        "value=tf.Tensor(shape=(None, 5, 4)",
    ),
    (
        lambda: layers.Attention(name="n")([Input((3, 4)), Input((5, 6))]),
        "n",
        "[None, 3, 4], In[1]: [None, 6, 5]",
    ),
    (lambda: layers.Softmax(axis=4, name="n")(Input((3,))), "n", "(None, 3)"),
    (
        lambda: layers.Lambda(lambda t: tf.matmul(t, tf.ones((5, 2))), name="n")(Input((3,))),
        "n",
        "[None, 3], In[1]: [5, 2]",
    ),
    (lambda: Input((3,)) @ tf.ones((5, 2)), "tf.linalg.matmul", "[None, 3], In[1]: [5, 2]"),
    (lambda: Input((3,)) + Input((5,)), "tf.__operators__.add", "[None, 3] vs. [None, 5]"),
    (lambda: Input((3,)) * np.ones(5, "float32"), "tf.math.multiply", "[None, 3] vs. [5]"),
    (lambda: Input((3,)) < Input((5,)), "tf.math.less", "[None, 3] vs. [None, 5]"),
    (lambda: tf.reshape(Input((12,)), (7, 2)), "tf.reshape", "None * 12 values"),
    (
        lambda: tf.concat([Input((3, 4)), Input((5, 6))], 1),
        "tf.concat",
        "[None, 3, 4] vs. shape[1] = [None, 5, 6]",
    ),
    (lambda: tf.ensure_shape(Input((3,)), (None, 5)), "tf.ensure_shape", "(None, 3)"),
    (
        lambda: tf.stack([Input((3,)), Input((5,))]),
        "tf.stack",
        "values[0].shape = [None, 3] != values[1].shape = [None, 5]",
    ),
    (lambda: tf.einsum("ij,jk->ik", Input((3,)), tf.ones((5, 2))), "tf.einsum", "[None, 3]"),
    (lambda: tf.split(Input((7,)), 2, axis=1), "tf.split", "(None, 7)"),
    (lambda: tf.unstack(Input((3,)), axis=0), "tf.unstack", "(None, 3)"),
    (lambda: tf.reduce_sum(Input((3,)), axis=4), "tf.math.reduce_sum", "(None, 3)"),
    (lambda: Input((3,))[:, 7], "tf.__operators__.getitem", "(None, 3)"),
    (
        lambda: tf.nn.conv2d(Input((8, 8, 3)), tf.ones((3, 3, 4, 2)), 1, "SAME"),
        "tf.nn.convolution",
        "[None, 8, 8, 3]",
    ),
    (lambda: Projection(name="n")(Input((3,))), "n", "[None, 3], In[1]: [5, 2]"),
    (lambda: Outer(name="n")(Input((3,))), "inner", "[None, 3], In[1]: [5, 2]"),
    (lambda: Network()(Input((3,))), "second", "x=tf.Tensor(shape=(None, 3), dtype=float32)"),
    (
        lambda: tf.keras.Sequential([Input((4,)), layers.Dense(2)], name="n")(Input((3,))),
        "n",
        "(None, 3)",
    ),
]


@pytest.mark.parametrize(("make", "layer", "shapes"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_while_a_model_is_built(make, layer, shapes):
    with pytest.raises(ValueError) as caught:
        make()
    text = str(caught.value)
    assert type(caught.value) is ValueError
    assert f'layer "{layer}"' in text and shapes in text
    assert "720" not in text and "5040" not in text
    check_traceback(caught.value, 6)


def check_traceback(error, max_frames):
    text = "".join(traceback.format_exception(error))
    assert "JAX has removed" not in text and "direct cause" not in text
    assert "/jax/" not in text
    assert len(traceback.extract_tb(error.__traceback__)) <= max_frames


@pytest.mark.parametrize(
    ("make", "layer"),
    [
        (lambda: Input((3,)) + Input((3,), dtype="int32"), "tf.__operators__.add"),
        (lambda: tf.matmul(Input((3,)), tf.ones((3, 2), tf.int32)), "tf.linalg.matmul"),
        (lambda: tf.one_hot(Input((3,)), 3), "tf.one_hot"),
        (lambda: tf.sin(Input((3,), dtype="int32")), "tf.math.sin"),
    ],
)
def test_dtype_mistakes_are_type_errors(make, layer):
    with pytest.raises(TypeError) as caught:
        make()
    assert type(caught.value) is TypeError and f'layer "{layer}"' in str(caught.value)
    check_traceback(caught.value, 6)


@pytest.mark.parametrize(
    "run",
    [
        lambda x: tf.map_fn(lambda row: row @ x, x),
        lambda x: tf.while_loop(lambda y: True, lambda y: [y @ x], [x], maximum_iterations=2),
        lambda x: tf.function(lambda: tf.scan(lambda a, e: a @ x, x))(),
        lambda x: x + tf.ones((3, 2)),
        lambda x: tf.reshape(x, [4]),
    ],
)
def test_tracebacks_of_ops(run):
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        run(tf.ones((2, 3)))
    check_traceback(caught.value, 12)


def compile_model(*built):
    model = tf.keras.Sequential(list(built)) if built else Network()
    model.compile("sgd", "mse")
    return model


X, Y = np.ones((8, 3), "float32"), np.ones((8, 2), "float32")


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda: Network()(X), ['layer "second" (type Projection)', "[8, 4], In[1]: [5, 2]"]),
        (
            lambda: compile_model().fit(X, Y, batch_size=4, verbose=0),
            ['layer "second"', "inputs=tf.Tensor(shape=(4, 4), dtype=float32)"],
        ),
        (lambda: compile_model().evaluate(X, Y, batch_size=4, verbose=0), ['layer "second"']),
        (lambda: compile_model().predict(X, batch_size=4, verbose=0), ['layer "second"']),
        (lambda: compile_model().train_on_batch(X, Y), ['layer "second"', "(8, 4)"]),
        (lambda: Network().build((None, 3)), ['layer "second"', "[None, 4], In[1]: [5, 2]"]),
        (lambda: tf.function(Outer())(X), ['layer "inner"', "(8, 3)"]),
        (
            lambda: compile_model(Input((3,)), layers.Dense(3, name="head")).fit(X, Y, verbose=0),
            ['loss "mean_squared_error" of output "head"', "y_true=tf.Tensor(shape=(8, 2)"],
        ),
        (
            lambda: compile_model(Input((4,)), layers.Dense(2)).fit(X, Y, verbose=0),
            ["sequential", "(None, 4)", "(8, 3)"],
        ),
    ],
)
def test_mistakes_in_the_first_call(run, words):
    with pytest.raises(ValueError) as caught:
        run()
    assert all(word in str(caught.value) for word in words), str(caught.value)
    check_traceback(caught.value, 6)


def test_errors_of_user_code_preserve_class_and_frames():
    class Lookup(layers.Layer):
        def call(self, inputs):
            return {}["missing"]

    class Structured(Exception):
        def __init__(self, code, text):
            super().__init__(code, text)

    class Fails(layers.Layer):
        def call(self, inputs):
            raise Structured(3, "text")

    for inputs in (tf.ones((2, 3)), Input((3,))):
        with pytest.raises(KeyError, match="missing") as caught:
            Lookup(name="find")(inputs)
        assert 'layer "find"' in str(caught.value)
        assert caught.traceback[-1].name == "call"
        with pytest.raises(Structured) as structured:
            Fails(name="fails")(inputs)
        assert structured.value.args == (3, "text")
        assert 'layer "fails"' in structured.value.__notes__[-1]


def test_all_frames_are_available():
    def count_frames():
        with pytest.raises(ValueError) as caught:
            Outer()(Input((3,)))
        return len(traceback.extract_tb(caught.value.__traceback__))

    short = count_frames()
    tf.debugging.disable_traceback_filtering()
    try:
        assert count_frames() > 2 * short
    finally:
        tf.debugging.enable_traceback_filtering()
    assert count_frames() == short
