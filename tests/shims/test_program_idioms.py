"""Test idioms of public programs for TensorFlow; the expected values are those of TensorFlow 2.15."""

import numpy as np
import pytest

import meshflow as tf

keras, layers, backend = tf.keras, tf.keras.layers, tf.keras.backend


def test_sessions_for_options():
    v1 = tf.compat.v1
    config = v1.ConfigProto()
    config.gpu_options.allow_growth = True
    v1.keras.backend.set_session(v1.Session(config=config))
    assert v1.get_default_session() is None
    with v1.Session() as session:
        assert v1.get_default_session() is v1.keras.backend.get_session() is session
        assert session.run({"a": tf.constant([1])}) == {"a": 1}
        with pytest.raises(TypeError, match="Fetch argument None"):
            session.run(None)
        with pytest.raises(TypeError, match="feed_dict key"):
            session.run(tf.constant(1), feed_dict={"x": 1})
    v1.InteractiveSession(config=config).close()


@pytest.mark.parametrize(
    "combine, shape",
    [
        (lambda x: x + backend.random_normal(shape=(4, 2)), [4, 2]),
        (lambda x: tf.concat([x, np.ones((4, 3), np.float32)], 1), [4, 5]),
        (lambda x: tf.stack([x, tf.ones((4, 2))], 1), [4, 2, 2]),
        (lambda x: tf.where(x > 0, x, tf.ones((4, 2))), [4, 2]),
        (lambda x: tf.einsum("bi,bj->bij", tf.ones((4, 3)), x), [4, 3, 2]),
        (lambda x: keras.losses.mse(tf.zeros((4, 2)), x), [4]),
    ],
)
def test_constants_for_one_batch_size(combine, shape):
    inputs = keras.Input((2,))
    assert combine(inputs).shape == shape
    outputs = layers.Lambda(combine)(inputs)
    assert outputs.shape == shape
    assert keras.Model(inputs, outputs)(np.ones((4, 2))).shape == shape
    with pytest.raises(ValueError, match=r"\[None, 3\] vs\. \[4, 2\]"):
        _ = keras.Input((3,)) + tf.ones((4, 2))


def test_weights_replaced_by_tensors():
    class Normalized(layers.Wrapper):
        def build(self, input_shape):
            super().build(input_shape)
            self.raw = self.layer.kernel
            self.norm = self.add_weight(
                name="norm", shape=(self.raw.shape[-1],), initializer="ones"
            )

        def call(self, inputs):
            self.layer.kernel = tf.nn.l2_normalize(self.raw, -1) * self.norm
            return self.layer(inputs)

    convolutions = (layers.Conv2D(2, 2), layers.Conv2DTranspose(2, 2), layers.EinsumDense("abcd,de->abce", (4, 4, 2)))  # fmt: skip
    for layer in (*convolutions, layers.Dense(2)):
        model = keras.Sequential([keras.Input((4, 4, 2)), Normalized(layer), layers.Flatten()])
        model.compile("sgd", lambda y, p: p)
        model.fit(np.ones((2, 4, 4, 2)), np.ones((2, 1)), verbose=0)
        assert len(model.trainable_weights) == (2 if isinstance(layer, layers.EinsumDense) else 3)

    class Bare(layers.Wrapper):
        def build(self, input_shape):
            self.layer.build(input_shape)
            super().build()

        def call(self, inputs):
            return self.layer(inputs)

    assert Bare(layers.Dense(3))(tf.ones((1, 2))).shape == [1, 3]
    assert layers.TimeDistributed(layers.Dense(3))(tf.ones((1, 2, 4))).shape == [1, 2, 3]


def test_cells_without_output_size():
    class Cell(layers.AbstractRNNCell):
        state_size = [4, 4]

        def build(self, input_shape):
            self.inner, self.dense = layers.LSTMCell(4), layers.Dense(3)
            self.built = True

        def call(self, inputs, states):
            outputs, states = self.inner(inputs, states)
            return self.dense(outputs), states

    assert layers.RNN(Cell(), return_sequences=True)(keras.Input((5, 2))).shape == [None, 5, 3]


def test_merge_functions():
    class Average(layers.Add.__base__):
        def _merge_function(self, inputs):
            weight = backend.random_uniform((4, 1))
            return weight * inputs[0] + (1 - weight) * inputs[1]

    inputs = [keras.Input((2,)), keras.Input((2,))]
    model = keras.Model(inputs, Average()(inputs))
    assert model([tf.ones((4, 2)), tf.ones((4, 2))]).numpy() == pytest.approx(1.0)
