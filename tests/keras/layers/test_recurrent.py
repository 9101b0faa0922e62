"""Compare recurrent layers with tf-keras (tests/reference/generate_recurrent.py), and test other
properties."""

import copy
import sys
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close
from meshflow.keras import layers
from meshflow.keras.layers.cell_dropout import DropoutRNNCellMixin

FOLDER = Path(__file__).parents[2] / "reference"
sys.path.insert(0, str(FOLDER))
from recurrent_cases import CASES, run

sys.path.pop(0)
STORED = np.load(FOLDER / "recurrent.npz")
NAMES = [f"{expression} {call}" for expression, call in CASES]


@pytest.mark.parametrize("number", range(len(CASES)), ids=NAMES)
def test_numbers(number):
    eager, compiled = run(tf, np, number, (lambda f: f, tf.function))
    for values in (eager, compiled):
        for part, value in enumerate(values):
            expected = STORED[f"{number}_{part}"]
            assert value.shape == expected.shape
            assert_close(value, expected, 1e-4, 1e-4 * max(1.0, np.abs(expected).max()))


def test_layers_are_built_from_a_tuple_of_sizes():
    layer = layers.LSTM(2, kernel_constraint="max_norm")
    layer.build((None, None, 4))
    assert layer.cell.kernel.shape == [4, 8]
    assert layer.cell.kernel.constraint is layer.kernel_constraint
    both = layers.Bidirectional(layers.GRU(2))
    both.build((None, 5, 4))
    assert len(both.weights) == 6


def test_names_of_weights():
    layer = layers.LSTM(3, name="memory")
    layer(tf.ones([1, 2, 4]))
    assert [w.name for w in layer.weights] == [
        "memory/lstm_cell/kernel:0",
        "memory/lstm_cell/recurrent_kernel:0",
        "memory/lstm_cell/bias:0",
    ]
    assert layer.get_weights()[2].tolist() == [0.0] * 3 + [1.0] * 3 + [0.0] * 6
    assert layer.units == 3
    assert layer.recurrent_activation is tf.keras.activations.sigmoid


@pytest.mark.parametrize(
    "make",
    [
        lambda: layers.SimpleRNN(3, return_sequences=True),
        lambda: layers.GRU(3, reset_after=False, dropout=0.1),
        lambda: layers.LSTM(3, go_backwards=True, unit_forget_bias=False),
        lambda: layers.RNN([layers.GRUCell(2), layers.LSTMCell(3)]),
        lambda: layers.Bidirectional(layers.GRU(2), merge_mode="ave"),
        lambda: layers.Bidirectional(
            layers.GRU(2), backward_layer=layers.GRU(2, go_backwards=True)
        ),
    ],
)
def test_configurations_survive(make, rng, tmp_path):
    model = tf.keras.Sequential([layers.Input((5, 4)), layers.Masking(), make()])
    x = rng.normal(size=(2, 5, 4)).astype("float32")
    expected = model.predict(x, verbose=0)
    model.save(tmp_path / "model.h5")
    again = tf.keras.models.load_model(tmp_path / "model.h5")
    assert again.get_config() == model.get_config()
    np.testing.assert_allclose(again.predict(x, verbose=0), expected, rtol=1e-6)


def test_fit_learns_to_remember(rng):
    tf.keras.utils.set_random_seed(1)
    x = rng.integers(0, 2, size=(256, 6, 1)).astype("float32")
    model = tf.keras.Sequential([layers.LSTM(8), layers.Dense(1)])
    model.compile(tf.keras.optimizers.Adam(0.03), "mse")
    losses = model.fit(x, x[:, 0], epochs=25, verbose=0).history["loss"]
    assert losses[-1] < 0.02 < losses[0]


def test_states_between_batches():
    model = tf.keras.Sequential([layers.GRU(2, stateful=True, batch_input_shape=(1, 3, 2))])
    x = np.ones((1, 3, 2), "float32")
    first, second = model.predict(x, verbose=0), model.predict(x, verbose=0)
    assert np.abs(first - second).max() > 1e-4
    model.reset_states()
    np.testing.assert_allclose(model.predict(x, verbose=0), first, rtol=1e-6)
    layer = model.layers[0]
    layer.reset_states(np.full((1, 2), 0.5))
    assert layer.states[0].numpy().tolist() == [[0.5, 0.5]]
    assert len(model.weights) == 3
    with pytest.raises(ValueError, match="needs to know its batch size"):
        layers.GRU(2, stateful=True)(tf.keras.Input([3, 2]))
    with pytest.raises(AttributeError, match="must be stateful"):
        layers.GRU(2).reset_states()


def test_states_are_symbolic_tensors_too(rng):
    x, h, c = tf.keras.Input([None, 2]), tf.keras.Input([3]), tf.keras.Input([3])
    encoded, *states = layers.LSTM(3, return_state=True)(x, initial_state=[h, c])
    decoded = layers.LSTM(3, return_sequences=True)(x, initial_state=states)
    model = tf.keras.Model([x, h, c], [encoded, decoded])
    assert model.output_shape == [(None, 3), (None, None, 3)]
    given = [rng.normal(size=s).astype("float32") for s in ((2, 4, 2), (2, 3), (2, 3))]
    again = tf.keras.Model.from_config(model.get_config())
    again.set_weights(model.get_weights())
    for one, other in zip(model(given), again(given), strict=True):
        assert_close(one, other)


def test_users_cells_and_constants():
    class Fading(layers.AbstractRNNCell):
        state_size = output_size = 2

        def build(self, input_shape):
            self.rate = self.add_weight("rate", (), initializer="ones")

        def call(self, inputs, states, constants):
            total = self.rate * states[0] + inputs * constants[0]
            return total, [total]

    layer = layers.RNN(Fading())
    result = layer(tf.ones([1, 3, 2]), constants=[tf.constant([[2.0, 3.0]])])
    assert result.numpy().tolist() == [[6.0, 9.0]]
    assert len(layer.trainable_weights) == 1
    output, _ = layers.SimpleRNNCell(2, kernel_initializer="ones")(
        tf.ones([1, 3]), [tf.zeros([1, 2])]
    )
    np.testing.assert_allclose(output, np.tanh([[3.0, 3.0]]), rtol=1e-6)
    state = layers.LSTMCell(2).get_initial_state(batch_size=3, dtype="float32")
    assert [s.shape.as_list() for s in state] == [[3, 2], [3, 2]]


@pytest.mark.parametrize(
    "make", [lambda **k: layers.LSTM(4, **k), lambda **k: layers.RNN([layers.GRUCell(4, **k)])]
)
def test_dropout_is_the_same_in_each_step(make):
    tf.random.set_seed(2)
    layer = make(dropout=0.5)
    x = tf.ones([1, 1, 8])
    long = tf.repeat(x, 4, axis=1)
    assert not np.allclose(layer(x, training=True), layer(x))
    assert np.isfinite(layer(long, training=True)).all()
    compiled = tf.function(lambda x: layer(x, training=True))
    assert not np.allclose(compiled(long), compiled(long))
    assert np.isfinite(make(recurrent_dropout=0.5)(long, training=True)).all()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: layers.RNN(3), "should have a `call` method"),
        (lambda: layers.LSTM(-1), "positive integer"),
        (lambda: layers.LSTM(2)(tf.ones([2, 2])), "expected ndim=3"),
        (
            lambda: layers.LSTM(2)(tf.ones([1, 2, 2]), initial_state=[tf.ones([1, 2])]),
            "has 2 states",
        ),
        (
            lambda: layers.LSTM(2, unroll=True)(tf.keras.Input([None, 2])),
            "fixed number of timesteps",
        ),
        (lambda: layers.StackedRNNCells([layers.Dense(2)]), "`state_size`"),
        (lambda: layers.Bidirectional(3), "Please initialize `Bidirectional`"),
        (lambda: layers.Bidirectional(layers.LSTM(2), "x"), "Invalid merge mode"),
        (
            lambda: layers.Bidirectional(layers.LSTM(2), backward_layer=layers.LSTM(2)),
            "different `go_backwards`",
        ),
        (
            lambda: layers.Bidirectional(layers.GRU(2))(tf.ones([1, 2, 2]), initial_state=[1]),
            "underlying RNNs",
        ),
    ],
)
def test_errors(make, text):
    with pytest.raises(ValueError, match=text):
        make()


class PairCell(layers.Layer):
    """A cell of two inputs and two states of different ranks."""

    def __init__(self, **kwargs):
        self.state_size = [tf.TensorShape([3]), tf.TensorShape([4, 5])]
        self.output_size = [tf.TensorShape([3]), tf.TensorShape([4, 5])]
        super().__init__(**kwargs)

    def build(self, shapes):
        (_, a), (_, b, c) = shapes
        self.one = self.add_weight("one", [a, 3])
        self.two = self.add_weight("two", [b, c, 4, 5])

    def call(self, inputs, states):
        a = tf.matmul(inputs[0], self.one)
        b = tf.einsum("bij,ijkl->bkl", inputs[1], self.two)
        return (a, b), (states[0] + a, states[1] + b)


def test_a_cell_of_nested_inputs_outputs_and_states():
    inputs = tf.keras.Input((None, 2)), tf.keras.Input((None, 2, 3))
    rnn = layers.RNN(PairCell(), return_state=True)
    first, second, one, two = tf.nest.flatten(rnn(inputs))
    model = tf.keras.Model(inputs, [first, second, one, two])
    rng = np.random.default_rng(0)
    x, y = (rng.random(s).astype("float32") for s in ((8, 6, 2), (8, 6, 2, 3)))
    last_a, last_b, sum_a, sum_b = model([x, y])
    steps = np.einsum("btij,ijkl->btkl", y, rnn.cell.two.numpy())
    np.testing.assert_allclose(last_a, x[:, -1] @ rnn.cell.one.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last_b, steps[:, -1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sum_a, x.sum(1) @ rnn.cell.one.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sum_b, steps.sum(1), rtol=1e-5, atol=1e-6)


def test_initial_states_are_a_list():
    x = tf.zeros([2, 3, 4])
    assert [s.shape for s in layers.GRU(5).get_initial_state(x)] == [(2, 5)]
    stacked = layers.RNN([layers.GRUCell(3), layers.LSTMCell(2)]).get_initial_state(x)
    assert type(stacked) is list
    assert [s.shape for s in tf.nest.flatten(stacked)] == [(2, 3), (2, 2), (2, 2)]


class _MaskedCell(DropoutRNNCellMixin, layers.Layer):
    """Cell that multiplies its inputs by a mask and adds the state, times a mask."""

    dropout = recurrent_dropout = 0.5
    state_size = output_size = 3

    def call(self, inputs, states, training=None):
        masks = self.get_dropout_mask_for_cell(inputs, training, count=2)
        state = states[0] * 0 * self.get_recurrent_dropout_mask_for_cell(states[0], training)
        output = tf.concat([inputs[:, :2] * masks[0][:, :2], inputs[:, 2:] * masks[1][:, 2:]], 1)
        return output + state, [output]


def test_masks_of_users_cells_are_the_same_in_each_step():
    inputs = tf.ones([40, 4, 3])
    for cell in (_MaskedCell(), layers.StackedRNNCells([_MaskedCell()])):
        layer = layers.RNN(cell, return_sequences=True)
        call = tf.function(lambda x, training, layer=layer: layer(x, training=training))
        for compute in (layer, call):
            first, second = (compute(inputs, training=True).numpy() for _ in range(2))
            assert (first == first[:, :1]).all() and (second == second[:, :1]).all()
            assert set(np.unique(first)) == {0, 2} and (first != second).any()
            np.testing.assert_array_equal(compute(inputs, training=False), inputs)


def test_masks_of_users_cells_with_several_inputs():
    class Cell(DropoutRNNCellMixin, layers.Layer):
        dropout, state_size, output_size = 0.5, 3, np.int64(3)

        def call(self, inputs, states, training=None):
            mask = self.get_dropout_mask_for_cell(inputs["a"], training)
            return inputs["a"] * mask + inputs["b"], states

    inputs = {"a": tf.ones([2, 4, 3]), "b": tf.zeros([2, 4, 3])}
    outputs = layers.RNN(Cell(), return_sequences=True)(inputs, training=True).numpy()
    assert (outputs == outputs[:, :1]).all() and set(np.unique(outputs)) <= {0, 2}


def test_masks_of_a_users_cell_outside_of_a_sequence():
    cell, x = _MaskedCell(), tf.ones([10, 8])
    first, second = cell.get_dropout_mask_for_cell(x, True, 2)
    assert (first != second).numpy().any()
    np.testing.assert_array_equal(cell.get_dropout_mask_for_cell(x, True), first)
    assert (cell.get_recurrent_dropout_mask_for_cell(x, True) != first).numpy().any()
    cell.reset_dropout_mask()
    assert (cell.get_dropout_mask_for_cell(x, True) != first).numpy().any()
    np.testing.assert_array_equal(cell.get_dropout_mask_for_cell(x, tf.constant(False)), x)
    tf.function(lambda: cell.get_dropout_mask_for_cell(x, True))()
    copy.deepcopy(cell)
    cell.dropout = 0
    assert cell.get_dropout_mask_for_cell(x, True) is None
