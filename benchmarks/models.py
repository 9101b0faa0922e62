"""The models of the benchmarks, written once for every Keras (Meshflow's among them)."""


def cnn(keras, narrow=1):
    """Build the CIFAR-10 network of the mixed-precision article: 9,123,978 parameters, divided by
    the given factor of its widths."""
    layers = keras.layers
    model = keras.Sequential([keras.Input((32, 32, 3))])
    for block, pool in (
        ((128, 256, 256, 256), 2),
        ((256, 256, 512, 512), 2),
        ((256, 256, 256, 128), 4),
    ):
        for filters in block:
            model.add(layers.Conv2D(filters // narrow, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D(pool))
    model.add(layers.Flatten())
    model.add(layers.BatchNormalization())
    model.add(layers.Dense(512 // narrow, activation="relu"))
    model.add(layers.Dense(10))
    model.add(layers.Activation("softmax", dtype="float32"))
    return model


VOCABULARY, WIDTH, HEADS, DEPTH, LENGTH = 8192, 256, 4, 4, 128


def language_model(
    keras, vocabulary=VOCABULARY, width=WIDTH, heads=HEADS, depth=DEPTH, length=LENGTH
):
    """A causal transformer, by default with four layers of width 256."""
    layers = keras.layers

    class Positions(layers.Layer):
        def build(self, shape):
            self.table = self.add_weight(
                name="table", shape=(length, width), initializer="random_normal"
            )
            super().build(shape)

        def call(self, x):
            return x + self.table

    tokens = keras.Input((length,), dtype="int32")
    x = Positions()(layers.Embedding(vocabulary, width)(tokens))
    for _ in range(depth):
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        y = layers.MultiHeadAttention(heads, width // heads)(y, y, use_causal_mask=True)
        x = layers.Add()([x, y])
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        y = layers.Dense(4 * width, activation="relu")(y)
        x = layers.Add()([x, layers.Dense(width)(y)])
    x = layers.LayerNormalization(epsilon=1e-5)(x)
    logits = layers.Activation("linear", dtype="float32")(layers.Dense(vocabulary)(x))
    return keras.Model(tokens, logits)


def residual(keras, narrow=1):
    """The residual network of 18 layers with 20 convolutions, for images of 32x32."""
    layers = keras.layers

    def convolved(x, filters, size, strides):
        x = layers.Conv2D(filters, size, strides, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    inputs = keras.Input((32, 32, 3))
    x = layers.ReLU()(convolved(inputs, 64 // narrow, 7, 2))
    for stage, filters in enumerate((64, 128, 256, 512)):
        filters //= narrow
        for block in range(2):
            strides = 2 if block == 0 and stage > 0 else 1
            y = layers.ReLU()(convolved(x, filters, 3, strides))
            y = convolved(y, filters, 3, 1)
            if strides > 1:
                x = convolved(x, filters, 1, strides)
            x = layers.ReLU()(layers.Add()([x, y]))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
