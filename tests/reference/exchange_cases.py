"""Build models of all kinds whose files TensorFlow and Meshflow exchange; run in both."""

import numpy as np

KINDS = (
    "mlp",
    "cnn",
    "resnet",
    "transformer",
    "recurrent",
    "text",
    "several",
    "subclassed",
    "mixed",
)


def dense(layers, keras):
    """Build a sequential model with dropout."""
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(5, activation="relu", kernel_regularizer="l2", name="first"),
            layers.Dropout(0.0, name="drop"),
            layers.Dense(2, name="last"),
        ],
        name="mlp",
    )


def cnn(layers, keras):
    """Convolutions of several kinds, pooling, and moving averages."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(4, 3, padding="same", name="wide"),
            layers.BatchNormalization(name="norm"),
            layers.ReLU(name="relu"),
            layers.MaxPooling2D(name="pool"),
            layers.SeparableConv2D(3, 3, padding="same", name="separable"),
            layers.Conv2DTranspose(2, 2, strides=2, name="back"),
            layers.GlobalAveragePooling2D(name="mean"),
            layers.Dense(2, activation="softmax", name="last"),
        ],
        name="cnn",
    )


def resnet(layers, keras):
    """Blocks with shortcuts, one of them through a convolution."""
    x = inputs = keras.Input((8, 8, 3), name="image")
    for i, (filters, strides) in enumerate(((4, 1), (4, 1), (6, 2))):
        y = layers.Conv2D(filters, 3, strides, "same", use_bias=False, name=f"conv{i}a")(x)
        y = layers.BatchNormalization(name=f"norm{i}a")(y)
        y = layers.Activation("relu", name=f"relu{i}a")(y)
        y = layers.Conv2D(filters, 3, 1, "same", use_bias=False, name=f"conv{i}b")(y)
        y = layers.BatchNormalization(name=f"norm{i}b")(y)
        if x.shape[-1] != filters or strides != 1:
            x = layers.Conv2D(filters, 1, strides, name=f"short{i}")(x)
        x = layers.Activation("relu", name=f"relu{i}b")(layers.Add(name=f"add{i}")([x, y]))
    x = layers.GlobalAveragePooling2D(name="mean")(x)
    return keras.Model(inputs, layers.Dense(2, name="last")(x), name="resnet")


def transformer(layers, keras):
    """A block of attention and of a two-layer network."""
    inputs = keras.Input((6, 8), name="tokens")
    attended = layers.MultiHeadAttention(2, 4, name="attention")(inputs, inputs)
    hidden = layers.LayerNormalization(name="norm1")(layers.Add(name="add1")([inputs, attended]))
    wide = layers.Dense(8, activation="gelu", name="wide")(hidden)
    joined = layers.Add(name="add2")([hidden, layers.Dense(8, name="narrow")(wide)])
    pooled = layers.GlobalAveragePooling1D(name="mean")(
        layers.LayerNormalization(name="norm2")(joined)
    )
    return keras.Model(inputs, layers.Dense(2, name="last")(pooled), name="transformer")


def recurrent(layers, keras):
    """Sequences of several lengths, in both directions, then in one."""
    ids = keras.Input((5,), dtype="int32", name="ids")
    hidden = layers.Embedding(12, 4, mask_zero=True, name="table")(ids)
    both = layers.Bidirectional(layers.LSTM(3, return_sequences=True, name="lstm"), name="both")
    hidden = layers.GRU(3, name="gru")(both(hidden))
    return keras.Model(ids, layers.Dense(2, name="last")(hidden), name="recurrent")


def text(layers, keras):
    """Lines of words."""
    words = layers.TextVectorization(
        output_sequence_length=6, vocabulary=["the", "cat", "sat", "mat", "on"], name="words"
    )
    lines = keras.Input((1,), dtype="string", name="lines")
    hidden = layers.Embedding(7, 4, name="table")(words(lines))
    pooled = layers.GlobalAveragePooling1D(name="mean")(hidden)
    return keras.Model(lines, layers.Dense(2, name="last")(pooled), name="text")


def several(layers, keras):
    """Two inputs, a layer that is used twice, a model inside, two outputs."""
    first, second = keras.Input((4,), name="zeta"), keras.Input((4,), name="alpha")
    shared = layers.Dense(3, activation="tanh", name="shared")
    inside = keras.Input((6,), name="inside")
    inner = keras.Model(inside, layers.Dense(4, name="deep")(inside), name="inner")
    joined = layers.Concatenate(name="joined")([shared(first), shared(second)])
    outputs = [layers.Dense(2, name="last")(inner(joined)), layers.Dense(1, name="side")(first)]
    return keras.Model([first, second], outputs, name="several")


def subclass(layers, keras):
    """Define a subclassed model with a list of layers."""

    @keras.utils.register_keras_serializable("exchange")
    class Subclassed(keras.Model):
        def __init__(self, units=4, **kwargs):
            super().__init__(**kwargs)
            self.units = units
            self.last = layers.Dense(2)
            self.parts = [layers.Dense(units, activation="tanh"), layers.BatchNormalization()]

        def call(self, inputs, training=False):
            return self.last(self.parts[1](self.parts[0](inputs), training=training))

        def get_config(self):
            return {"units": self.units, "name": self.name}

    return Subclassed


def subclassed(layers, keras):
    """An instance of that class."""
    model = subclass(layers, keras)(name="subclassed")
    model(data("subclassed")[0])
    return model


def mixed(layers, keras):
    """Layers that compute in bfloat16 and keep their weights in float32."""
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        inputs = keras.Input((8, 8, 2), name="image")
        hidden = layers.Conv2D(4, 3, activation="relu", name="wide")(inputs)
        hidden = layers.BatchNormalization(name="norm")(hidden)
        hidden = layers.GlobalAveragePooling2D(name="mean")(hidden)
        outputs = layers.Dense(2, dtype="float32", name="last")(hidden)
        return keras.Model(inputs, outputs, name="mixed")
    finally:
        keras.mixed_precision.set_global_policy("float32")


def data(kind):
    """Inputs of a kind of model."""
    rng = np.random.default_rng(KINDS.index(kind))
    shapes = {
        "mlp": [(6,)],
        "cnn": [(8, 8, 2)],
        "resnet": [(8, 8, 3)],
        "transformer": [(6, 8)],
        "several": [(4,), (4,)],
        "subclassed": [(5,)],
        "mixed": [(8, 8, 2)],
    }
    if kind == "recurrent":
        return [np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8], [9, 0, 0, 0, 0]], np.int32)]
    if kind == "text":
        return [np.array([["The cat, sat!"], ["on the mat, dog"], [""]], object)]
    return [rng.normal(size=(3, *shape)).astype("float32") for shape in shapes[kind]]


def make_model(tf, kind):
    """A model of a kind with its own numbers, compiled, and trained for a step."""
    maker = dense if kind == "mlp" else globals()[kind]
    model = maker(tf.keras.layers, tf.keras)
    rng = np.random.default_rng(7)
    values = []
    for value in model.get_weights():
        numbers = rng.normal(size=value.shape).astype("float32") * 0.4
        values.append(numbers.astype(value.dtype) if value.dtype.kind == "f" else value)
    model.set_weights(values)
    for weight in model.weights:
        if "variance" in weight.name:
            weight.assign(np.full(weight.shape, 0.7, "float32"))
    # Its epsilon prevents rounding differences from becoming different steps.
    model.compile(tf.keras.optimizers.Adam(0.01, epsilon=1e-2), "mse")
    step(tf, model, kind)
    return model


def make_inputs(tf, kind, rows=None):
    """Return the inputs in the structure that a model accepts."""
    found = [tf.constant(x[:rows]) for x in data(kind)]
    return found[0] if len(found) == 1 else found


def outputs(tf, model, kind):
    """Return the outputs of a model as arrays of float32."""
    found = model(make_inputs(tf, kind), training=False)
    if isinstance(found, dict):  # of a signature
        found = sorted(found.values(), key=lambda y: -y.shape[-1])
    found = found if isinstance(found, (list, tuple)) else [found]
    return [np.asarray(tf.cast(y, "float32")) for y in found]


def targets(kind):
    """Return the training targets of a model."""
    goal = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], "float32")
    return [goal, goal[:, :1]] if kind == "several" else goal


def step(tf, model, kind):
    """A step of training."""
    model.train_on_batch(make_inputs(tf, kind), targets(kind))
