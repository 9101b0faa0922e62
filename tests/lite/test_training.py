"""Test that functions that write variables train in LiteRT as they do here, and that other
signatures read the new values."""

import numpy as np
import pytest

import meshflow as tf

pytest.importorskip("ai_edge_litert", reason="needs the extra lite")

L = tf.keras.layers


class Learner(tf.Module):
    def __init__(self):
        self.model = tf.keras.Sequential(
            [
                tf.keras.Input((8, 8, 1)),
                L.Conv2D(3, 3, strides=2, padding="same", activation="relu"),
                L.Conv2D(4, 3, padding="same", use_bias=False),
                L.BatchNormalization(),
                L.MaxPooling2D(3, 2, padding="same"),
                L.Flatten(),
                L.Dense(5),
            ]
        )
        self.optimizer = tf.keras.optimizers.Adam(0.01)

    @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 1]), tf.TensorSpec([None], tf.int32)])
    def train(self, x, y):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, self.model(x, training=True))
            loss = tf.reduce_mean(losses)
        weights = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}

    @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 1])])
    def infer(self, x):
        return {"logits": self.model(x)}


def test_a_network_is_trained_on_the_device(tmp_path):
    tf.keras.utils.set_random_seed(0)
    learner = Learner()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 8, 8, 1)).astype(np.float32), rng.integers(0, 5, 6).astype(np.int32)
    functions = [learner.train.get_concrete_function(), learner.infer.get_concrete_function()]
    direct = tf.lite.TFLiteConverter.from_concrete_functions(functions, learner)
    folder = str(tmp_path / "learner")
    tf.saved_model.save(learner, folder, {"train": functions[0], "infer": functions[1]})
    saved = tf.lite.TFLiteConverter.from_saved_model(folder)
    runners = []
    for converter in (direct, saved):
        interpreter = tf.lite.Interpreter(model_content=converter.convert())
        assert set(interpreter.get_signature_list()) == {"train", "infer"}
        runners.append([interpreter.get_signature_runner(name) for name in ("train", "infer")])
    first = runners[0][1](x=x)["logits"]
    for _ in range(3):
        loss = learner.train(x, y)["loss"].numpy()
        for train, _ in runners:
            np.testing.assert_allclose(train(x=x, y=y)["loss"], loss, rtol=1e-4)
    expected = learner.infer(x)["logits"].numpy()
    assert np.abs(first - expected).max() > 0.1
    for _, infer in runners:
        np.testing.assert_allclose(infer(x=x)["logits"], expected, atol=1e-3)
    direct.experimental_enable_resource_variables = False
    with pytest.raises(tf.errors.UnimplementedError, match="experimental_enable_resource_variables"):  # fmt: skip
        direct.convert()


def test_variables_persist_between_calls_of_one_interpreter():
    total, offset = tf.Variable([1.0, 2.0]), tf.Variable(10.0)

    @tf.function(input_signature=[tf.TensorSpec([2], name="x")])
    def add(x):
        total.assign_add(x)
        return total + offset

    @tf.function(input_signature=[])
    def reset():
        total.assign([0.0, 0.0])

    functions = [add.get_concrete_function(), reset.get_concrete_function()]
    content = tf.lite.TFLiteConverter.from_concrete_functions(functions).convert()
    one, other = (tf.lite.Interpreter(model_content=content) for _ in range(2))
    x = np.float32([1, 1])

    def added(interpreter):
        return next(iter(interpreter.get_signature_runner("add")(x=x).values())).tolist()

    assert [added(one), added(one), added(other)] == [[12, 13], [13, 14], [12, 13]]
    one.get_signature_runner("reset")()
    assert added(one) == [11, 11] and added(other) == [13, 14]
    assert total.numpy().tolist() == [1, 2]
