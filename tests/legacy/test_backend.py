"""Test `tf.keras.backend` against tf-keras (tests/reference/generate_backend.py), and properties
other than values."""

import sys
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from meshflow.keras import backend as K

FOLDER = Path(__file__).parent.parent / "reference"
sys.path.insert(0, str(FOLDER))
from backend_expressions import evaluate, expressions

sys.path.pop(0)
STORED = np.load(FOLDER / "backend.npz")


@pytest.mark.parametrize(
    ("number", "expression"), list(enumerate(expressions())), ids=expressions()
)
def test_value(number, expression):
    actual = evaluate(expression, tf, np)
    if f"{number}_error" in STORED:
        assert isinstance(actual, Exception)
        assert type(actual).__name__ == str(STORED[f"{number}_error"])
        return
    if isinstance(actual, Exception):
        raise actual
    expected = [STORED[f"{number}_{part}"] for part in range(len(actual))]
    assert f"{number}_{len(actual)}" not in STORED
    for one, other in zip(actual, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        if one.dtype.kind in "US":
            assert str(one) == str(other)
        else:
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def test_learning_phase():
    layer = tf.keras.layers.Lambda(lambda x: K.in_train_phase(x, -x))
    assert layer(tf.ones([1])).numpy() == -1.0
    assert layer(tf.ones([1]), training=True).numpy() == 1.0
    with K.learning_phase_scope(1):
        assert K.learning_phase() == 1
        assert layer(tf.ones([1])).numpy() == 1.0
    K.set_learning_phase(1)
    K.clear_session()
    assert K.learning_phase() == 0
    with pytest.raises(ValueError, match="0 or 1"):
        K.set_learning_phase(2)


def test_fed_learning_phase_of_a_graph():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        layers = [
            tf.keras.layers.Lambda(lambda x: K.in_train_phase(x, -x)),
            tf.keras.layers.Dropout(0.5),
        ]
        model = tf.keras.Sequential([tf.keras.Input([64]), *layers])
        phase, x = K.learning_phase(), tf.ones([1, 64])
        assert phase is K.learning_phase()
        expression = K.in_train_phase(2 * x, x)
        y = model(x)

        def run(feeds):
            return [np.unique(v).size for v in session.run([y, expression + y], feeds)]

        assert run({}) == run({phase: 0}) == [1, 1]
        assert run({phase: True}) == [2, 2]
        function = K.function([model.input, phase], [model.output])
        ones = np.ones([1, 64])
        assert [set(function([ones, v])[0].flat) for v in (0, 1)] == [{-1.0}, {0.0, 2.0}]
    with pytest.raises(ValueError, match="must be symbolic"):
        K.function([tf.keras.Input([1]), K.learning_phase()], [])


def test_functions_of_symbolic_tensors():
    x, y = tf.keras.Input([3]), K.placeholder((None, 3))
    both = K.function([x, y], [x + y, K.sum(x * y, axis=-1)])
    total, product = both([np.ones((2, 3)), np.full((2, 3), 2.0)])
    assert total.tolist() == [[3.0] * 3] * 2
    assert product.tolist() == [6.0, 6.0]
    with pytest.raises(ValueError, match="updates"):
        K.function([x], [x], updates=[1])
    assert K.is_keras_tensor(K.placeholder(ndim=2))
    assert K.int_shape(K.placeholder(ndim=2)) == (None, None)


def test_variables():
    v = K.random_normal_variable((3, 4), 0.0, 1.0, seed=1)
    K.batch_set_value([(v, np.ones((3, 4)))])
    K.set_value(v, K.get_value(v) * 2)
    assert K.count_params(v) == 12
    assert K.eval(v).tolist() == [[2.0] * 4] * 3
    assert 2.0 <= K.get_value(K.random_uniform_variable((5,), 2.0, 3.0)).min() <= 3.0
    K.manual_variable_initialization(False)


def test_random_numbers():
    tf.random.set_seed(3)
    normal = K.random_normal((2000,), 1.0, 2.0)
    assert abs(K.get_value(K.mean(normal)) - 1.0) < 0.2
    assert abs(K.get_value(K.std(normal)) - 2.0) < 0.2
    assert K.get_value(K.max(K.abs(K.truncated_normal((2000,))))) <= 2.0
    assert K.dtype(K.random_uniform((2,), dtype="float64")) == "float64"
    assert 0.2 < K.get_value(K.mean(K.random_bernoulli((2000,), 0.3))) < 0.4
    dropped = K.get_value(K.dropout(K.ones((1000,)), 0.5))
    assert set(dropped) == {0.0, 2.0}


def test_print_tensor(capsys):
    assert K.print_tensor(tf.constant([1.0, 2.0]), "here:").shape == [2]
    assert capsys.readouterr().out == "here: [1 2]\n"


@pytest.mark.parametrize(
    "options", [{}, {"mask": True}, {"mask": True, "zero_output_for_mask": True}]
)
def test_rnn_is_the_same_in_a_compiled_function(options, rng):
    x = tf.constant(rng.normal(size=(2, 5, 3)).astype("float32"))
    w = tf.Variable(rng.normal(size=(3, 3)).astype("float32"))
    if "mask" in options:
        options = options | {"mask": tf.constant(rng.uniform(size=(2, 5)) > 0.4)}

    def run():
        def step(inputs, states):
            output = K.tanh(K.dot(inputs + states[0], w))
            return output, [output]

        with tf.GradientTape() as tape:
            last, outputs, states = K.rnn(step, x, [tf.zeros([2, 3])], **options)
            loss = K.sum(K.square(outputs)) + K.sum(states[0] * last)
        return [last, outputs, *states, tape.gradient(loss, w)]

    for one, other in zip(run(), tf.function(run)(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_settings():
    layout = K.image_data_format()
    try:
        K.set_floatx("float64")
        assert K.dtype(K.zeros((1,))) == K.floatx() == "float64"
        K.set_epsilon(1e-3)
        assert K.epsilon() == 1e-3
        K.set_image_data_format("channels_first")
        assert K.image_data_format() == "channels_first"
    finally:
        K.set_floatx("float32")
        K.set_epsilon(1e-7)
        K.set_image_data_format(layout)
    first = K.get_uid("thing")
    assert K.get_uid("thing") == first + 1


def test_functions_of_one_element_lists_return_lists():
    x = tf.keras.Input([3])
    (found,) = K.function([x], [x * 2])([np.ones((1, 3))])
    assert found.tolist() == [[2.0] * 3]
    assert K.function(x, x * 2)(np.ones((1, 3))).shape == (1, 3)


@pytest.mark.parametrize("size", [3, np.int64(3)])
def test_integer_shapes_of_vectors(size):
    assert K.ones(size).numpy().tolist() == [1, 1, 1]
    assert K.zeros(size, dtype="int32").numpy().tolist() == [0, 0, 0]
    assert K.placeholder(size).shape == [3]
