"""Build models to plan, without values."""

import meshflow as tf
from meshflow.core.variables.variable_creation import shapes_only

LAYERS = tf.keras.layers


class Block(LAYERS.Layer):
    """Build causal attention, and two products."""

    def __init__(self, width, heads, experts=0, **kwargs):
        super().__init__(**kwargs)
        self.first, self.second = LAYERS.LayerNormalization(), LAYERS.LayerNormalization()
        self.attention = LAYERS.MultiHeadAttention(heads, width // heads)
        self.experts = None
        if experts:
            self.experts = LAYERS.MixtureOfExperts(experts, 2 * width, capacity=1.25)
        else:
            self.up, self.down = LAYERS.Dense(4 * width, "gelu"), LAYERS.Dense(width)

    def call(self, x):
        y = self.first(x)
        x = x + self.attention(y, y, use_causal_mask=True)
        y = self.second(x)
        return x + (self.down(self.up(y)) if self.experts is None else self.experts(y))


def gpt(layers, width, heads, tokens, words, experts=0):
    """Build a compiled language model of weight shapes; every second block may have experts."""
    with shapes_only():
        inputs = tf.keras.Input([tokens], dtype="int32")
        x = LAYERS.Embedding(words, width)(inputs)
        for number in range(layers):
            x = Block(width, heads, experts * (number % 2))(x)
        x = LAYERS.LayerNormalization()(x)
        model = tf.keras.Model(inputs, LAYERS.Dense(words, dims="out:vocab")(x), name="gpt")
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss)
    return model


def tokens(batch, length):
    """Specs of a batch of tokens and the tokens that follow."""
    return tf.TensorSpec([batch, length], "int32"), tf.TensorSpec([batch, length], "int32")


def _make_compiled_model(inputs, outputs, loss):
    model = tf.keras.Model(inputs, outputs)
    model.compile("adam", loss)
    return model


def _entropy():
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _vectors(units, width=256):
    inputs = x = tf.keras.Input([width])
    for n in units:
        x = LAYERS.Dense(n, "relu")(x)
    rows = tf.TensorSpec([64, width])
    return _make_compiled_model(inputs, LAYERS.Dense(width)(x), "mse"), (rows, rows)


def _images(residual):
    inputs = x = tf.keras.Input([16, 16, 8])
    for width in (32, 64):
        x = LAYERS.Conv2D(width, 3, padding="same")(x)
        y = LAYERS.ReLU()(LAYERS.BatchNormalization()(x)) if residual else LAYERS.ReLU()(x)
        y = LAYERS.Conv2D(width, 3, padding="same", activation="relu")(y)
        x = LAYERS.MaxPool2D()(x + y if residual else y)
    x = LAYERS.Dense(256, "relu")(LAYERS.Flatten()(x))
    batch = tf.TensorSpec([64, 16, 16, 8]), tf.TensorSpec([64], "int32")
    return _make_compiled_model(inputs, LAYERS.Dense(100)(x), _entropy()), batch


def _masks():
    """A small U-Net."""
    inputs = tf.keras.Input([16, 16, 8])
    fine = LAYERS.Conv2D(32, 3, padding="same", activation="relu")(inputs)
    x = LAYERS.Conv2D(64, 3, padding="same", activation="relu")(LAYERS.MaxPool2D()(fine))
    x = LAYERS.Conv2DTranspose(32, 2, 2, activation="relu")(x)
    x = LAYERS.Conv2D(32, 3, padding="same", activation="relu")(LAYERS.Concatenate()([x, fine]))
    batch = tf.TensorSpec([64, 16, 16, 8]), tf.TensorSpec([64, 16, 16, 1])
    return _make_compiled_model(inputs, LAYERS.Conv2D(1, 1)(x), "mse"), batch


def _recurrent(layer):
    inputs = tf.keras.Input([16], dtype="int32")
    x = layer(LAYERS.Embedding(512, 128)(inputs))
    batch = tf.TensorSpec([64, 16], "int32"), tf.TensorSpec([64], "int32")
    return _make_compiled_model(inputs, LAYERS.Dense(64)(x), _entropy()), batch


def _llama():
    inputs = tf.keras.Input([32], dtype="int32")
    x = LAYERS.Embedding(256, 128)(inputs)
    for _ in range(2):
        y = LAYERS.LayerNormalization(center=False)(x)
        x = x + LAYERS.MultiHeadAttention(4, 32, use_bias=False)(y, y, use_causal_mask=True)
        y = LAYERS.LayerNormalization(center=False)(x)
        gate = LAYERS.Dense(384, "silu", use_bias=False)(y)
        x = x + LAYERS.Dense(128, use_bias=False)(gate * LAYERS.Dense(384, use_bias=False)(y))
    return _make_compiled_model(inputs, LAYERS.Dense(256, dims="out:vocab")(x), _entropy()), tokens(
        64, 32
    )


def _classifier():
    """An encoder of sentences, with a class of each."""
    inputs = tf.keras.Input([32], dtype="int32")
    x = LAYERS.Embedding(512, 128)(inputs)
    for _ in range(2):
        x = LAYERS.LayerNormalization()(x + LAYERS.MultiHeadAttention(4, 32)(x, x))
        y = LAYERS.Dense(128)(LAYERS.Dense(512, "gelu")(x))
        x = LAYERS.LayerNormalization()(x + y)
    x = LAYERS.GlobalAveragePooling1D()(x)
    batch = tf.TensorSpec([64, 32], "int32"), tf.TensorSpec([64], "int32")
    return _make_compiled_model(inputs, LAYERS.Dense(8)(x), _entropy()), batch


def _recommender():
    """Build two towers over tables of users and items."""
    inputs = [tf.keras.Input([1], dtype="int32"), tf.keras.Input([8], dtype="int32")]
    user = LAYERS.Flatten()(LAYERS.Embedding(4096, 64)(inputs[0]))
    things = LAYERS.GlobalAveragePooling1D()(LAYERS.Embedding(8192, 64)(inputs[1]))
    x = LAYERS.Dense(256, "relu")(LAYERS.Concatenate()([user, things]))
    x = LAYERS.Dense(128, "relu")(x)
    ids = [tf.TensorSpec([512, 1], "int32"), tf.TensorSpec([512, 8], "int32")]
    return _make_compiled_model(inputs, LAYERS.Dense(1)(x), "mse"), (ids, tf.TensorSpec([512, 1]))


def _pairs():
    """Build two towers with shared weights, and a measure of their distance."""
    inputs = [tf.keras.Input([64]) for _ in range(2)]
    tower = tf.keras.Sequential([LAYERS.Dense(256, "relu"), LAYERS.Dense(128)])
    x = tower(inputs[0]) - tower(inputs[1])
    rows = tf.TensorSpec([64, 64])
    batch = [rows, rows], tf.TensorSpec([64, 1])
    return _make_compiled_model(inputs, LAYERS.Dense(1)(x), "mse"), batch


# Functions that return a compiled model and the specs of a batch.
TWELVE = {
    "dense layers": lambda: _vectors([512] * 4),
    "autoencoder": lambda: _vectors([1024, 32, 1024]),
    "CNN": lambda: _images(residual=False),
    "residual CNN with batch normalization": lambda: _images(residual=True),
    "U-Net": _masks,
    "LSTM": lambda: _recurrent(LAYERS.LSTM(128)),
    "bidirectional GRU": lambda: _recurrent(LAYERS.Bidirectional(LAYERS.GRU(128))),
    "GPT": lambda: (gpt(4, 128, 4, 32, 512), tokens(64, 32)),
    "Llama": _llama,
    "sentence classifier": _classifier,
    "mixture of experts": lambda: (gpt(2, 128, 4, 32, 512, 8), tokens(64, 32)),
    "recommender": _recommender,
}

# The same, each with plans to compile.
FURTHER = {
    "pairs": (_pairs, ["data 8", "data 2 x model 4"]),
    "experts": (
        lambda: (gpt(2, 64, 4, 16, 128, 8), tokens(64, 16)),
        [
            "data 4 x model 2, experts",
            "data 4 x model 2, experts, zero=1",
            'stage 2 x data 4, experts, micro_batches=4, pipeline="stage"',
        ],
    ),
    "small experts": (
        lambda: (gpt(2, 16, 2, 4, 32, 8), tokens(16, 4)),
        [
            "data 8, experts, zero=2",
            "data 8, experts, zero=3",
            'data 8, experts, recompute="layer"',
            "data 4 x model 2, experts, zero=2, micro_batches=4",
        ],
    ),
    "experts in stages": (
        lambda: (gpt(2, 16, 2, 4, 32, 4), tokens(16, 4)),
        [
            'stage 2 x data 2 x model 2, experts, pipeline="stage"',
            'stage 2 x data 2 x model 2, experts, pipeline="stage", keep="residuals"',
            'stage 2 x data 2 x model 2, experts, zero=3, recompute="layer", pipeline="stage", keep="residuals"',
        ],
    ),
}
