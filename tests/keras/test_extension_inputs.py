"""Models with inputs of extension types, with the losses that TensorFlow 2.21 and tf-keras compute."""

import numpy as np
import pytest

import meshflow as tf

K = tf.keras


class Net(tf.experimental.BatchableExtensionType):
    """Work at the nodes of a network, and its links."""

    work: tf.Tensor
    links: tf.Tensor
    shape = property(lambda self: self.work.shape)

    class Spec:
        shape = property(lambda self: self.work.shape)
        dtype = property(lambda self: self.work.dtype)


class Hidden(tf.experimental.ExtensionType):
    x: tf.Tensor


SPEC = Net.Spec(tf.TensorSpec([None, 3]), tf.TensorSpec([None, 3, 3]))
RANDOM = np.random.RandomState(0)
NETS = Net(RANDOM.rand(8, 3).astype("float32"), RANDOM.rand(8, 3, 3).astype("float32"))
TARGETS = RANDOM.rand(8, 1).astype("float32")
DATA = tf.data.Dataset.from_tensor_slices((NETS, TARGETS)).batch(4)


class Pass(K.layers.Layer):
    def build(self, shape):
        self.k = self.add_weight(name="k", shape=(), initializer="ones")

    def call(self, net):
        return Net(net.work + self.k * tf.einsum("bij,bj->bi", net.links, net.work), net.links)


class Read(K.layers.Layer):
    def call(self, net):
        return tf.reduce_sum(net.work, -1, keepdims=True)


def list_layers():
    return [Pass(), Pass(), Read(), K.layers.Dense(1, kernel_initializer="ones")]


class Subclassed(K.Model):
    def __init__(self):
        super().__init__()
        self.parts = list_layers()

    def call(self, x):
        for layer in self.parts:
            x = layer(x)
        return x


def make_functional():
    x = inputs = K.Input(type_spec=SPEC)
    for layer in list_layers():
        x = layer(x)
    return K.Model(inputs, x)


def compile_model(model):
    model.compile(K.optimizers.SGD(0.01), "mse")
    return model


LOSSES = [53.92479, 2.25849]


@pytest.mark.parametrize(
    "make",
    [make_functional, Subclassed, lambda: K.Sequential([K.Input(type_spec=SPEC), *list_layers()])],
    ids=["functional", "subclassed", "sequential"],
)
def test_training_on_datasets(make):
    model = compile_model(make())
    losses = model.fit(DATA, epochs=2, verbose=0).history["loss"]
    np.testing.assert_allclose(losses, LOSSES, rtol=1e-5)


def test_training_on_values():
    model = compile_model(make_functional())
    np.testing.assert_allclose(model.predict(NETS, verbose=0)[:2, 0], [11.321934, 11.212971])
    np.testing.assert_allclose(model.evaluate(DATA, verbose=0), 83.61229, rtol=1e-5)
    losses = model.fit(NETS, TARGETS, batch_size=4, shuffle=False, epochs=2, verbose=0)
    np.testing.assert_allclose(losses.history["loss"], LOSSES, rtol=1e-5)


def test_symbolic_values():
    inputs = K.Input(type_spec=SPEC, name="net")
    assert inputs.shape == [None, 3] and inputs.type_spec == SPEC and inputs.dtype is tf.float32
    hidden = Pass()(inputs)
    assert hidden.type_spec == SPEC and isinstance(K.Model(inputs, hidden)(NETS), Net)
    other = K.Input([1], name="j")
    model = compile_model(K.Model([inputs, other], Read()(hidden) + other))
    features = {"net": NETS, "j": TARGETS}
    data = tf.data.Dataset.from_tensor_slices((features, TARGETS)).batch(4)
    losses = model.fit(data, epochs=2, verbose=0).history["loss"]
    np.testing.assert_allclose(losses, [16.04611, 10.06617], rtol=1e-5)
    with pytest.raises(ValueError, match="only supports specs with a shape"):
        K.Input(type_spec=Hidden.Spec(tf.TensorSpec([None])))
    with pytest.raises(AttributeError):
        inputs.work
