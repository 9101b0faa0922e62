"""Models that are planned, and none of which needs values."""

import meshflow as tf
from meshflow.core.variables.variable_creation import shapes_only

LAYERS = tf.keras.layers


class Block(LAYERS.Layer):
    """Attention to what came before, and two products."""

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
    """A compiled language model whose weights are shapes alone; every other block may have experts."""
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
