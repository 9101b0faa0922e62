"""The models of kinds.py, each written once against the API of Keras 2, for Meshflow and TensorFlow.

Each function of `KINDS` and `CHAINS` takes the library and whether sizes are tiny, and returns a `Task`. A name that ends
in `_bf16` is the same model with the policy "mixed_bfloat16".
"""

import functools
import math
from typing import Any, NamedTuple

import models
import numpy as np


class Task(NamedTuple):
    """A model and its data: a batch that is repeated, and a smaller one.

    Attributes:
      model: Model before `compile`.
      x: Inputs of `STEPS` batches and a partial one.
      y: Targets, or None.
      loss: Loss for `compile`, or None for models that compute their own.
      is_deterministic: Whether two libraries compute the same losses from the same weights.
      samples: Inputs of `predict`, if they are not those of training.
    """

    model: Any
    x: Any
    y: Any
    loss: Any = None
    batch: int = 32
    is_deterministic: bool = True
    samples: Any = None


STEPS = 4
KINDS, CHAINS = {}, {}
# Kinds that call ops of TensorFlow or have a custom training step, which Keras 3 on JAX cannot run.
TENSORFLOW_KINDS = ("dlrm", "vae", "dcgan", "wgan_gp", "graph", "siamese", "experts", "diffusion")


def _register(table):
    return lambda function: table.setdefault(function.__name__, function)


kind = _register(KINDS)


def _count(batch):
    return STEPS * batch + batch // 2 + 1


def make_images(count, side, channels=3, classes=10):
    """Return random images and classes."""
    rng = np.random.default_rng(0)
    x = rng.random((count, side, side, channels), np.float32)
    return x, rng.integers(0, classes, count).astype("int32")


def make_texts(count, length, vocabulary, classes=2):
    """Return random texts with zeros at their ends, and classes."""
    rng = np.random.default_rng(0)
    x = rng.integers(1, vocabulary, (count, length)).astype("int32")
    x[np.arange(length) >= rng.integers(length // 2, length + 1, (count, 1))] = 0
    return x, rng.integers(0, classes, count).astype("int32")


def make_class_loss(tf):
    """Return the loss of logits and classes."""
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _classify_images(tf, model, side, channels=3, batch=32, is_deterministic=True):
    x, y = make_images(_count(batch), side, channels)
    return Task(model, x, y, make_class_loss(tf), batch, is_deterministic)


@kind
def mlp(tf, tiny):
    """A perceptron with dropout, for handwritten digits."""
    layers, width = tf.keras.layers, 16 if tiny else 256
    model = tf.keras.Sequential([tf.keras.Input((28, 28, 1)), layers.Flatten()])
    for _ in range(2):
        model.add(layers.Dense(width, activation="relu"))
        model.add(layers.Dropout(0.2))
    model.add(layers.Dense(10))
    return _classify_images(tf, model, 28, 1, is_deterministic=False)


@kind
def mnist(tf, tiny):
    """The convolutional network for handwritten digits."""
    layers, filters = tf.keras.layers, 4 if tiny else 32
    model = tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            layers.Conv2D(filters, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(2 * filters, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(10),
        ]
    )
    return _classify_images(tf, model, 28, 1, is_deterministic=False)


@kind
def lenet(tf, tiny):
    """LeNet-5: tanh and average pooling."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            layers.Conv2D(6, 5, padding="same", activation="tanh"),
            layers.AveragePooling2D(),
            layers.Conv2D(16, 5, activation="tanh"),
            layers.AveragePooling2D(),
            layers.Flatten(),
            layers.Dense(16 if tiny else 120, activation="tanh"),
            layers.Dense(84, activation="tanh"),
            layers.Dense(10),
        ]
    )
    return _classify_images(tf, model, 28, 1)


@kind
def vgg(tf, tiny):
    """Stacks of convolutions and poolings."""
    layers = tf.keras.layers
    side = 32
    model = tf.keras.Sequential([tf.keras.Input((side, side, 3))])
    for filters, count in ((64, 2), (128, 2), (256, 3), (256, 3)):
        for _ in range(count):
            filters_now = filters // (16 if tiny else 2)
            model.add(layers.Conv2D(filters_now, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D())
    model.add(layers.Flatten())
    model.add(layers.Dense(16 if tiny else 512, activation="relu"))
    model.add(layers.Dense(10))
    return _classify_images(tf, model, side)


@kind
def resnet(tf, tiny):
    """The residual network of 20 convolutions."""
    return _classify_images(tf, models.residual(tf.keras, 4 if tiny else 2), 32)


def _convolve(tf, x, filters, size, strides=1, activation="relu"):
    layers = tf.keras.layers
    x = layers.Conv2D(filters, size, strides, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    return layers.Activation(activation)(x) if activation else x


@kind
def densenet(tf, tiny):
    """Build dense blocks, in which each layer reads all earlier ones."""
    layers, growth = tf.keras.layers, 4 if tiny else 12
    inputs = tf.keras.Input((32, 32, 3))
    x = layers.Conv2D(2 * growth, 3, padding="same", use_bias=False)(inputs)
    for block in range(3):
        for _ in range(2 if tiny else 6):
            y = layers.ReLU()(layers.BatchNormalization()(x))
            y = layers.Conv2D(4 * growth, 1, use_bias=False)(y)
            y = layers.ReLU()(layers.BatchNormalization()(y))
            y = layers.Conv2D(growth, 3, padding="same", use_bias=False)(y)
            x = layers.Concatenate()([x, y])
        if block < 2:
            x = layers.ReLU()(layers.BatchNormalization()(x))
            x = layers.Conv2D(x.shape[-1] // 2, 1, use_bias=False)(x)
            x = layers.AveragePooling2D()(x)
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(layers.BatchNormalization()(x)))
    return _classify_images(tf, tf.keras.Model(inputs, layers.Dense(10)(x)), 32)


def _inverted(tf, x, filters, strides, expansion, activation, squeezes):
    """An inverted residual block, with squeeze and excitation on request."""
    layers, width = tf.keras.layers, x.shape[-1] * expansion
    y = _convolve(tf, x, width, 1, activation=activation)
    y = layers.DepthwiseConv2D(3, strides, padding="same", use_bias=False)(y)
    y = layers.Activation(activation)(layers.BatchNormalization()(y))
    if squeezes:
        s = layers.GlobalAveragePooling2D(keepdims=True)(y)
        s = layers.Conv2D(max(1, x.shape[-1] // 4), 1, activation=activation)(s)
        s = layers.Conv2D(width, 1, activation="sigmoid")(s)
        y = layers.Multiply()([y, s])
    y = _convolve(tf, y, filters, 1, activation=None)
    return layers.Add()([x, y]) if strides == 1 and x.shape[-1] == filters else y


def _mobile(tf, tiny, activation, squeezes):
    side = 32 if tiny else 64
    inputs = tf.keras.Input((side, side, 3))
    x = _convolve(tf, inputs, 8 if tiny else 16, 3, 2, activation)
    for filters, count, strides in ((16, 2, 1), (24, 2, 2), (40, 3, 2), (80, 3, 2)):
        filters = max(8, filters // 4) if tiny else filters
        for block in range(1 if tiny else count):
            first = strides if block == 0 else 1
            x = _inverted(tf, x, filters, first, 2 if tiny else 6, activation, squeezes)
    x = _convolve(tf, x, 16 if tiny else 320, 1, activation=activation)
    x = tf.keras.layers.Dense(10)(tf.keras.layers.GlobalAveragePooling2D()(x))
    return _classify_images(tf, tf.keras.Model(inputs, x), side, batch=16)


@kind
def mobilenet(tf, tiny):
    """Inverted residual blocks like MobileNetV2's."""
    return _mobile(tf, tiny, "relu", False)


@kind
def efficientnet(tf, tiny):
    """Inverted residual blocks with squeeze and excitation, like EfficientNet's."""
    return _mobile(tf, tiny, "swish", True)


@kind
def convnext(tf, tiny):
    """Depthwise 7x7 convolutions, layer normalization and GELU."""
    layers, side = tf.keras.layers, 32 if tiny else 64
    inputs = tf.keras.Input((side, side, 3))
    x = inputs
    for stage, width in enumerate((8, 16) if tiny else (32, 64, 128)):
        strides = 2 if stage else 4
        x = layers.Conv2D(width, strides, strides)(x)
        x = layers.LayerNormalization(epsilon=1e-6)(x)
        for _ in range(1 if tiny else 2):
            y = layers.DepthwiseConv2D(7, padding="same")(x)
            y = layers.LayerNormalization(epsilon=1e-6)(y)
            y = layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(y))
            x = layers.Add()([x, y])
    x = layers.LayerNormalization()(layers.GlobalAveragePooling2D()(x))
    return _classify_images(tf, tf.keras.Model(inputs, layers.Dense(10)(x)), side, batch=16)


@kind
def unet(tf, tiny):
    """Segmentation with transposed convolutions and skip connections."""
    layers, side, width = tf.keras.layers, 32 if tiny else 64, 4 if tiny else 16
    inputs = x = tf.keras.Input((side, side, 3))
    skips = []
    for level in range(3):
        x = _convolve(tf, _convolve(tf, x, width << level, 3), width << level, 3)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = _convolve(tf, x, width << 3, 3)
    for level in reversed(range(3)):
        x = layers.Conv2DTranspose(width << level, 2, 2)(x)
        x = layers.Concatenate()([x, skips[level]])
        x = _convolve(tf, _convolve(tf, x, width << level, 3), width << level, 3)
    model = tf.keras.Model(inputs, layers.Conv2D(3, 1)(x))
    batch = 8
    images, _ = make_images(_count(batch), side)
    masks = np.argmax(images, -1).astype("int32")
    return Task(model, images, masks, make_class_loss(tf), batch)


@kind
def conv3d(tf, tiny):
    """Convolutions over volumes."""
    layers, side, filters = tf.keras.layers, 12 if tiny else 24, 4 if tiny else 16
    model = tf.keras.Sequential([tf.keras.Input((side, side, side, 1))])
    for level in range(2):
        model.add(layers.Conv3D(filters << level, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling3D())
        model.add(layers.BatchNormalization())
    model.add(layers.GlobalAveragePooling3D())
    model.add(layers.Dense(10))
    batch = 8
    rng = np.random.default_rng(0)
    x = rng.random((_count(batch), side, side, side, 1), np.float32)
    y = rng.integers(0, 10, len(x)).astype("int32")
    return Task(model, x, y, make_class_loss(tf), batch)


@kind
def audio(tf, tiny):
    """Convolutions over waveforms of one channel."""
    layers, length = tf.keras.layers, 1024 if tiny else 8000
    model = tf.keras.Sequential([tf.keras.Input((length, 1))])
    for level, size in enumerate((80, 3, 3, 3)):
        filters = (4 if tiny else 32) << (level // 2)
        model.add(layers.Conv1D(filters, size, 4 if level == 0 else 1, padding="same"))
        model.add(layers.BatchNormalization())
        model.add(layers.ReLU())
        model.add(layers.MaxPooling1D(4))
    model.add(layers.GlobalAveragePooling1D())
    model.add(layers.Dense(10))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(_count(16), length, 1)).astype("float32")
    y = rng.integers(0, 10, len(x)).astype("int32")
    return Task(model, x, y, make_class_loss(tf), 16)


def _sequence(tf, tiny, *recurrent):
    length, width = 12 if tiny else 60, 8 if tiny else 64
    model = tf.keras.Sequential([tf.keras.Input((length, width))])
    for layer in recurrent:
        model.add(layer)
    model.add(tf.keras.layers.Dense(10))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(_count(32), length, width)).astype("float32")
    return Task(model, x, rng.integers(0, 10, len(x)).astype("int32"), make_class_loss(tf))


@kind
def lstm(tf, tiny):
    """Two LSTM layers."""
    units = 8 if tiny else 64
    layer = tf.keras.layers.LSTM
    return _sequence(tf, tiny, layer(units, return_sequences=True), layer(units))


@kind
def gru(tf, tiny):
    """Two GRU layers."""
    units = 8 if tiny else 64
    layer = tf.keras.layers.GRU
    return _sequence(tf, tiny, layer(units, return_sequences=True), layer(units))


def _read_text(tf, tiny, *layers, is_masked=False):
    """A text classifier of an embedding and these layers."""
    vocabulary, length = 200 if tiny else 5000, 16 if tiny else 80
    embedding = tf.keras.layers.Embedding(vocabulary, 8 if tiny else 64, mask_zero=is_masked)
    model = tf.keras.Sequential([tf.keras.Input((length,), dtype="int32"), embedding, *layers])
    model.add(tf.keras.layers.Dense(2))
    x, y = make_texts(_count(32), length, vocabulary)
    return Task(model, x, y, make_class_loss(tf))


@kind
def bidirectional(tf, tiny):
    """A bidirectional LSTM over masked texts."""
    layers = tf.keras.layers
    recurrent = layers.Bidirectional(layers.LSTM(8 if tiny else 32))
    return _read_text(tf, tiny, recurrent, is_masked=True)


@kind
def text_conv(tf, tiny):
    """Convolutions over texts."""
    layers, filters = tf.keras.layers, 8 if tiny else 128
    convolution = layers.Conv1D(filters, 5, activation="relu")
    wide = layers.Dense(filters, activation="relu")
    return _read_text(tf, tiny, convolution, layers.GlobalMaxPooling1D(), wide)


def attend(tf, x, heads, width, activation="relu"):
    """A block of attention and a wide layer, with normalization before each."""
    layers = tf.keras.layers
    y = layers.LayerNormalization(epsilon=1e-6)(x)
    y = layers.MultiHeadAttention(heads, width // heads)(y, y)
    x = layers.Add()([x, y])
    y = layers.LayerNormalization(epsilon=1e-6)(x)
    y = layers.Dense(width)(layers.Dense(4 * width, activation=activation)(y))
    return layers.Add()([x, y])


@kind
def encoder(tf, tiny):
    """A transformer that classifies texts."""
    layers, width = tf.keras.layers, 8 if tiny else 128
    vocabulary, length = 200 if tiny else 5000, 16 if tiny else 80
    tokens = tf.keras.Input((length,), dtype="int32")
    places = layers.Embedding(length, width)(tf.range(length))
    x = layers.Embedding(vocabulary, width)(tokens) + places
    for _ in range(1 if tiny else 3):
        x = attend(tf, x, 2 if tiny else 4, width)
    x = layers.Dense(2)(layers.GlobalAveragePooling1D()(x))
    x_train, y_train = make_texts(_count(32), length, vocabulary)
    return Task(tf.keras.Model(tokens, x), x_train, y_train, make_class_loss(tf))


@kind
def language_model(tf, tiny):
    """A causal transformer that predicts the next token."""
    sizes = (64, 16, 2, 1, 16) if tiny else (4096, 192, 4, 4, 96)
    model = models.language_model(tf.keras, *sizes)
    batch = 4 if tiny else 8
    x = np.random.default_rng(0).integers(0, sizes[0], (_count(batch), sizes[4])).astype("int32")
    return Task(model, x, np.roll(x, -1, 1), make_class_loss(tf), batch)


@kind
def vit(tf, tiny):
    """A transformer over patches of images."""
    layers, width, patch = tf.keras.layers, 16 if tiny else 96, 4
    inputs = tf.keras.Input((32, 32, 3))
    x = layers.Conv2D(width, patch, patch)(inputs)
    x = layers.Reshape(((32 // patch) ** 2, width))(x)
    places = layers.Embedding((32 // patch) ** 2, width)(tf.range((32 // patch) ** 2))
    x = x + places
    for _ in range(1 if tiny else 4):
        x = attend(tf, x, 2 if tiny else 3, width, "gelu")
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    x = layers.Dense(10)(layers.GlobalAveragePooling1D()(x))
    return _classify_images(tf, tf.keras.Model(inputs, x), 32)


def _interactions(tf, tiny, combine):
    """Numbers and categories, and a click."""
    layers = tf.keras.layers
    tables, rows, width = (3, 20, 4) if tiny else (12, 5000, 16)
    numbers = tf.keras.Input((13,))
    categories = tf.keras.Input((tables,), dtype="int32")
    vectors = [layers.Embedding(rows, width)(categories[:, i]) for i in range(tables)]
    logits = combine(layers, numbers, vectors, width)
    rng = np.random.default_rng(0)
    batch = 64
    count = _count(batch)
    x = rng.normal(size=(count, 13)).astype("float32")
    c = rng.integers(0, rows, (count, tables)).astype("int32")
    y = rng.integers(0, 2, (count, 1)).astype("float32")
    loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
    return Task(tf.keras.Model([numbers, categories], logits), (x, c), y, loss, batch)


@kind
def dlrm(tf, tiny):
    """Products of all pairs of vectors, and a network on top of them."""

    def combine(layers, numbers, vectors, width):
        x = layers.Dense(width, activation="relu")(layers.Dense(64, activation="relu")(numbers))
        every = tf.stack([x, *vectors], 1)
        products = tf.matmul(every, every, transpose_b=True)
        products = layers.Flatten()(products)
        x = layers.Concatenate()([x, products])
        for units in (64, 32):
            x = layers.Dense(units, activation="relu")(x)
        return layers.Dense(1)(x)

    return _interactions(tf, tiny, combine)


@kind
def wide_deep(tf, tiny):
    """A linear model of all features, and a deep one."""

    def combine(layers, numbers, vectors, width):
        x = layers.Concatenate()([numbers, *vectors])
        linear, deep = layers.Dense(1)(x), x
        for units in (128, 64, 32):
            deep = layers.Dense(units, activation="relu")(deep)
        return layers.Add()([linear, layers.Dense(1)(deep)])

    return _interactions(tf, tiny, combine)


@kind
def autoencoder(tf, tiny):
    """A convolutional autoencoder."""
    layers, filters = tf.keras.layers, 4 if tiny else 32
    model = tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            layers.Conv2D(filters, 3, 2, padding="same", activation="relu"),
            layers.Conv2D(filters // 2, 3, 2, padding="same", activation="relu"),
            layers.Conv2DTranspose(filters // 2, 3, 2, padding="same", activation="relu"),
            layers.Conv2DTranspose(filters, 3, 2, padding="same", activation="relu"),
            layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
        ]
    )
    x, _ = make_images(_count(32), 28, 1)
    return Task(model, x, x, "binary_crossentropy")


def make_vae(tf, encoder, decoder):
    """A variational autoencoder with its own training step, of an encoder to twice the decoder's inputs."""

    class VariationalAutoencoder(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = encoder, decoder
            self.total = tf.keras.metrics.Mean(name="loss")

        @property
        def metrics(self):
            return [self.total]

        def call(self, x):
            mean, _ = tf.split(self.encoder(x), 2, 1)
            return self.decoder(mean)

        def train_step(self, x):
            with tf.GradientTape() as tape:
                mean, log_variance = tf.split(self.encoder(x, training=True), 2, 1)
                z = mean + tf.exp(0.5 * log_variance) * tf.random.normal(tf.shape(mean))
                y = self.decoder(z, training=True)
                errors = tf.keras.losses.binary_crossentropy(x, y)
                axes = list(range(1, len(errors.shape)))
                loss = tf.reduce_mean(tf.reduce_sum(errors, axes) if axes else errors)
                divergence = 1 + log_variance - tf.square(mean) - tf.exp(log_variance)
                loss += tf.reduce_mean(tf.reduce_sum(-0.5 * divergence, 1))
            gradients = tape.gradient(loss, self.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
            self.total.update_state(loss)
            return {"loss": self.total.result()}

        def test_step(self, x):
            mean, _ = tf.split(self.encoder(x), 2, 1)
            errors = tf.keras.losses.binary_crossentropy(x, self.decoder(mean))
            self.total.update_state(tf.reduce_mean(errors))
            return {"loss": self.total.result()}

    return VariationalAutoencoder()


@kind
def vae(tf, tiny):
    """A convolutional variational autoencoder."""
    keras, layers, filters = tf.keras, tf.keras.layers, 4 if tiny else 32
    encoder = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(filters, 3, 2, padding="same", activation="relu"),
            layers.Conv2D(2 * filters, 3, 2, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(2 * 2),
        ]
    )
    decoder = keras.Sequential(
        [
            keras.Input((2,)),
            layers.Dense(7 * 7 * filters, activation="relu"),
            layers.Reshape((7, 7, filters)),
            layers.Conv2DTranspose(2 * filters, 3, 2, padding="same", activation="relu"),
            layers.Conv2DTranspose(filters, 3, 2, padding="same", activation="relu"),
            layers.Conv2DTranspose(1, 3, padding="same", activation="sigmoid"),
        ]
    )
    x, _ = make_images(_count(32), 28, 1)
    return Task(make_vae(tf, encoder, decoder), x, None, is_deterministic=False)


def make_gan(tf, generator, critic, latent, penalty=None):
    """Build a pair of networks with a custom training step: with Wasserstein's loss if a penalty's
    weight is passed."""

    class AdversarialPair(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.generator, self.critic = generator, critic
            self.critic_optimizer = tf.keras.optimizers.Adam(1e-4, beta_1=0.5)
            self.cross_entropy = tf.keras.losses.BinaryCrossentropy(from_logits=True)

        def call(self, z):
            return self.generator(z)

        def compute(self, network, x):
            # The output may have 16 bits.
            return tf.cast(network(x, training=True), tf.float32)

        def judge(self, real, fake):
            true, false = self.compute(self.critic, real), self.compute(self.critic, fake)
            if penalty is None:
                ones, zeros = tf.ones_like(true), tf.zeros_like(false)
                return self.cross_entropy(ones, true) + self.cross_entropy(zeros, false)
            share = tf.random.uniform([tf.shape(real)[0]] + [1] * (len(real.shape) - 1))
            between = real + share * (fake - real)
            with tf.GradientTape() as tape:
                tape.watch(between)
                judged = self.compute(self.critic, between)
            slopes = tape.gradient(judged, between)
            axes = list(range(1, len(slopes.shape)))
            norms = tf.sqrt(tf.reduce_sum(tf.square(slopes), axes) + 1e-12)
            loss = tf.reduce_mean(false) - tf.reduce_mean(true)
            return loss + penalty * tf.reduce_mean(tf.square(norms - 1.0))

        def train_step(self, real):
            count = tf.shape(real)[0]
            for _ in range(1 if penalty is None else 2):
                fake = self.compute(self.generator, tf.random.normal([count, latent]))
                with tf.GradientTape() as tape:
                    critic_loss = self.judge(real, fake)
                weights = self.critic.trainable_weights
                gradients = tape.gradient(critic_loss, weights)
                self.critic_optimizer.apply_gradients(zip(gradients, weights, strict=True))
            with tf.GradientTape() as tape:
                fake = self.compute(self.generator, tf.random.normal([count, latent]))
                judged = self.compute(self.critic, fake)
                if penalty is None:
                    loss = self.cross_entropy(tf.ones_like(judged), judged)
                else:
                    loss = -tf.reduce_mean(judged)
            weights = self.generator.trainable_weights
            gradients = tape.gradient(loss, weights)
            self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
            return {"loss": loss, "critic_loss": critic_loss}

    return AdversarialPair()


def _draw_and_judge(tf, tiny, penalty):
    keras, layers, filters = tf.keras, tf.keras.layers, 4 if tiny else 32
    latent = 8 if tiny else 64
    generator = keras.Sequential(
        [keras.Input((latent,)), layers.Dense(7 * 7 * filters), layers.Reshape((7, 7, filters))]
    )
    for _ in range(2):
        generator.add(layers.BatchNormalization())
        generator.add(layers.LeakyReLU())
        generator.add(layers.Conv2DTranspose(filters, 4, 2, padding="same"))
    generator.add(layers.Conv2D(1, 5, padding="same", activation="tanh"))
    critic = keras.Sequential([keras.Input((28, 28, 1))])
    for level in range(2):
        critic.add(layers.Conv2D(filters << level, 4, 2, padding="same"))
        critic.add(layers.LeakyReLU())
        critic.add(layers.Dropout(0.3))
    critic.add(layers.Flatten())
    critic.add(layers.Dense(1))
    x, _ = make_images(_count(32), 28, 1)
    model = make_gan(tf, generator, critic, latent, penalty)
    samples = np.random.default_rng(0).normal(size=(len(x), latent)).astype("float32")
    return Task(model, x, None, is_deterministic=False, samples=samples)


@kind
def dcgan(tf, tiny):
    """A convolutional generative adversarial network."""
    return _draw_and_judge(tf, tiny, None)


@kind
def wgan_gp(tf, tiny):
    """The same with Wasserstein's loss and a penalty on gradients of gradients."""
    return _draw_and_judge(tf, tiny, 10.0)


@kind
def seq2seq(tf, tiny):
    """An encoder and a decoder of GRUs with attention between them."""
    layers, units = tf.keras.layers, 8 if tiny else 64
    vocabulary, length = 50 if tiny else 2000, 8 if tiny else 24
    source = tf.keras.Input((length,), dtype="int32")
    target = tf.keras.Input((length,), dtype="int32")
    x = layers.Embedding(vocabulary, units)(source)
    memory, state = layers.GRU(units, return_sequences=True, return_state=True)(x)
    y = layers.Embedding(vocabulary, units)(target)
    y = layers.GRU(units, return_sequences=True)(y, initial_state=state)
    y = layers.Concatenate()([y, layers.AdditiveAttention()([y, memory])])
    model = tf.keras.Model([source, target], layers.Dense(vocabulary)(y))
    texts = np.random.default_rng(0).integers(0, vocabulary, (_count(32), length)).astype("int32")
    return Task(model, (texts, texts[:, ::-1].copy()), np.roll(texts, 1, 1), make_class_loss(tf))


@kind
def graph(tf, tiny):
    """Messages along the edges of graphs, by gather and sums over segments."""
    layers, width = tf.keras.layers, 8 if tiny else 64
    nodes, edges, features = (8, 16, 4) if tiny else (64, 256, 16)

    class Messages(layers.Layer):
        def build(self, shape):
            self.message = layers.Dense(width, activation="relu")
            self.update = layers.Dense(width, activation="relu")

        def call(self, inputs):
            x, links = inputs
            count = tf.shape(x)[0] * nodes
            links = links + nodes * tf.range(tf.shape(x)[0])[:, None, None]
            flat, links = tf.reshape(x, [-1, x.shape[-1]]), tf.reshape(links, [-1, 2])
            messages = self.message(tf.gather(flat, links[:, 0]))
            sums = tf.math.unsorted_segment_sum(messages, links[:, 1], count)
            return tf.reshape(self.update(tf.concat([flat, sums], 1)), [-1, nodes, width])

    inputs = tf.keras.Input((nodes, features))
    links = tf.keras.Input((edges, 2), dtype="int32")
    x = inputs
    for _ in range(2):
        x = Messages()([x, links])
    model = tf.keras.Model([inputs, links], layers.Dense(4)(layers.GlobalAveragePooling1D()(x)))
    rng = np.random.default_rng(0)
    count = _count(16)
    features = rng.normal(size=(count, nodes, features)).astype("float32")
    links = rng.integers(0, nodes, (count, edges, 2)).astype("int32")
    y = rng.integers(0, 4, count).astype("int32")
    return Task(model, (features, links), y, make_class_loss(tf), 16)


@kind
def siamese(tf, tiny):
    """One convolutional network for two images, and the distance of their vectors."""
    layers, filters = tf.keras.layers, 4 if tiny else 32
    tower = tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            layers.Conv2D(filters, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(filters, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(filters),
        ]
    )
    first, second = tf.keras.Input((28, 28, 1)), tf.keras.Input((28, 28, 1))
    distance = layers.Lambda(lambda pair: tf.abs(pair[0] - pair[1]))([tower(first), tower(second)])
    model = tf.keras.Model([first, second], layers.Dense(1, activation="sigmoid")(distance))
    x, y = make_images(_count(32), 28, 1, classes=2)
    return Task(model, (x, x[::-1].copy()), y.astype("float32")[:, None], "binary_crossentropy")


@kind
def experts(tf, tiny):
    """Build a mixture of experts that uses the best two for each example."""
    layers, width, count = tf.keras.layers, 8 if tiny else 64, 4

    class Mixture(layers.Layer):
        def build(self, shape):
            self.gate = layers.Dense(count)
            shape = (count, shape[-1], 2 * width)
            self.up = self.add_weight(name="up", shape=shape, initializer="he_normal")
            shape = (count, 2 * width, width)
            self.down = self.add_weight(name="down", shape=shape, initializer="he_normal")

        def call(self, x):
            best, chosen = tf.math.top_k(self.gate(x), 2)
            shares = tf.nn.softmax(best)[..., None] * tf.one_hot(chosen, count)
            y = tf.nn.relu(tf.einsum("bi,eio->beo", x, self.up))
            y = tf.einsum("beo,eow->bew", y, self.down)
            return tf.einsum("bew,bke->bw", y, shares)

    model = tf.keras.Sequential([tf.keras.Input((28, 28, 1)), layers.Flatten()])
    model.add(layers.Dense(width, activation="relu"))
    model.add(Mixture())
    model.add(Mixture())
    model.add(layers.Dense(10))
    return _classify_images(tf, model, 28, 1)


def make_diffusion(tf, network):
    """Build a model that predicts the noise in images: `network` reads noisy images and the noise's
    share."""

    class NoiseModel(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.network = network

        def call(self, x):
            return self.network([x, tf.fill([tf.shape(x)[0], 1, 1, 1], 0.5)])

        def train_step(self, images):
            noise = tf.random.normal(tf.shape(images))
            angle = tf.random.uniform([tf.shape(images)[0], 1, 1, 1], 0.05, 1.5)
            noisy = tf.cos(angle) * images + tf.sin(angle) * noise
            with tf.GradientTape() as tape:
                found = self.network([noisy, tf.sin(angle) ** 2], training=True)
                loss = tf.reduce_mean(tf.abs(noise - tf.cast(found, noise.dtype)))
            gradients = tape.gradient(loss, self.network.trainable_weights)
            pairs = zip(gradients, self.network.trainable_weights, strict=True)
            self.optimizer.apply_gradients(pairs)
            return {"loss": loss}

    return NoiseModel()


@kind
def diffusion(tf, tiny):
    """The network of a diffusion model: residual blocks, swish, bilinear enlargement, skips."""
    layers, widths = tf.keras.layers, (4, 8, 8) if tiny else (32, 64, 96)
    side, features, batch = 16 if tiny else 32, 4 if tiny else 16, 8

    def block(x, width):
        skip = x if x.shape[-1] == width else layers.Conv2D(width, 1)(x)
        x = layers.BatchNormalization(center=False, scale=False)(x)
        x = layers.Conv2D(width, 3, padding="same", activation="swish")(x)
        return layers.Add()([layers.Conv2D(width, 3, padding="same")(x), skip])

    def embed(share):
        waves = 6.2832 * tf.exp(tf.range(features, dtype="float32") * (6.9 / features))
        return tf.concat([tf.sin(waves * share), tf.cos(waves * share)], 3)

    images, share = tf.keras.Input((side, side, 3)), tf.keras.Input((1, 1, 1))
    wide = layers.UpSampling2D(side)(layers.Lambda(embed, dtype="float32")(share))
    x = layers.Concatenate()([layers.Conv2D(widths[0], 1)(images), wide])
    skips = []
    for width in widths[:-1]:
        for _ in range(2):
            x = block(x, width)
            skips.append(x)
        x = layers.AveragePooling2D()(x)
    for _ in range(2):
        x = block(x, widths[-1])
    for width in reversed(widths[:-1]):
        x = layers.UpSampling2D(2, interpolation="bilinear")(x)
        for _ in range(2):
            x = block(layers.Concatenate()([x, skips.pop()]), width)
    network = tf.keras.Model([images, share], layers.Conv2D(3, 1, dtype="float32")(x))
    x_train, _ = make_images(_count(batch), side)
    return Task(make_diffusion(tf, network), x_train, None, None, batch, False)


@kind
def wavenet(tf, tiny):
    """Dilated causal convolutions with gates, residual and skip connections."""
    layers, length, width = tf.keras.layers, 64 if tiny else 1024, 8 if tiny else 32
    inputs = tf.keras.Input((length, 1))
    x, skips = layers.Conv1D(width, 2, padding="causal")(inputs), []
    for _ in range(1 if tiny else 2):
        for level in range(3 if tiny else 6):
            convolve = lambda activation, x=x, level=level: layers.Conv1D(
                width, 2, dilation_rate=1 << level, padding="causal", activation=activation
            )(x)
            y = layers.Multiply()([convolve("tanh"), convolve("sigmoid")])
            skips.append(layers.Conv1D(width, 1)(y))
            x = layers.Add()([x, layers.Conv1D(width, 1)(y)])
    x = layers.ReLU()(layers.Add()(skips))
    x = layers.Conv1D(64, 1)(layers.Conv1D(width, 1, activation="relu")(x))
    batch = 8
    rng = np.random.default_rng(0)
    waves = rng.normal(size=(_count(batch), length, 1)).astype("float32")
    targets = rng.integers(0, 64, (len(waves), length)).astype("int32")
    return Task(tf.keras.Model(inputs, x), waves, targets, make_class_loss(tf), batch)


@kind
def separable(tf, tiny):
    """Depthwise separable convolutions with residual connections, like Xception's."""
    layers, side = tf.keras.layers, 16 if tiny else 64
    inputs = tf.keras.Input((side, side, 3))
    x = _convolve(tf, inputs, 8 if tiny else 32, 3, 2)
    for width in (8, 16) if tiny else (64, 128, 256):
        y = x
        for _ in range(2):
            y = layers.SeparableConv2D(width, 3, padding="same", use_bias=False)(layers.ReLU()(y))
            y = layers.BatchNormalization()(y)
        y = layers.MaxPooling2D(3, 2, padding="same")(y)
        x = layers.Add()([y, _convolve(tf, x, width, 1, 2, None)])
    x = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    return _classify_images(tf, tf.keras.Model(inputs, x), side, batch=16)


@kind
def inception(tf, tiny):
    """Parallel branches of convolutions and pooling."""
    layers, side, width = tf.keras.layers, 16 if tiny else 32, 4 if tiny else 16
    inputs = tf.keras.Input((side, side, 3))
    x = _convolve(tf, inputs, 2 * width, 3)
    for block in range(4):
        wide = width << (block // 2)
        branches = [_convolve(tf, x, wide, 1)]
        branches.append(_convolve(tf, _convolve(tf, x, wide, 1), 2 * wide, 3))
        branches.append(_convolve(tf, _convolve(tf, x, wide // 2, 1), wide, 5))
        pooled = layers.MaxPooling2D(3, 1, padding="same")(x)
        branches.append(_convolve(tf, pooled, wide, 1))
        x = layers.Concatenate()(branches)
        x = layers.MaxPooling2D()(x) if block == 1 else x
    x = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    return _classify_images(tf, tf.keras.Model(inputs, x), side)


@kind
def small(tf, tiny):
    """A network of three narrow layers over tables."""
    dense = tf.keras.layers.Dense
    layers = [dense(16 if tiny else 64, activation="relu") for _ in range(2)]
    model = tf.keras.Sequential([tf.keras.Input((20,)), *layers, dense(1)])
    x = np.random.default_rng(0).normal(size=(_count(32), 20)).astype("float32")
    return Task(model, x, x[:, :1] * 0.5, "mse")


@kind
def factors(tf, tiny):
    """Products of users' and items' vectors, with biases."""
    layers, rows, width = tf.keras.layers, 50 if tiny else 20000, 8 if tiny else 32
    pair = tf.keras.Input((2,), dtype="int32")
    vectors = [layers.Embedding(rows, width)(pair[:, i]) for i in range(2)]
    biases = [layers.Embedding(rows, 1)(pair[:, i]) for i in range(2)]
    logits = layers.Add()([layers.Dot(1)(vectors), *biases])
    x = np.random.default_rng(0).integers(0, rows, (_count(256), 2)).astype("int32")
    y = (x.sum(1) % 5).astype("float32")[:, None]
    return Task(tf.keras.Model(pair, logits), x, y, "mse", 256)


def _reduce_precision(make):
    @functools.wraps(make)
    def reduced(tf, tiny):
        tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
        return make(tf, tiny)

    return reduced


for _make in (mnist, resnet, mobilenet, lstm, language_model):
    KINDS[f"{_make.__name__}_bf16"] = _reduce_precision(_make)


# ---- deep networks ---------------------------------------------------------------------------


def _chain(count, tf, tiny):
    layers, side = tf.keras.layers, 8 if tiny else 16
    inputs = tf.keras.Input((side, side, 3))
    x = layers.Conv2D(16, 3, padding="same")(inputs)
    for _ in range(4 if tiny else count):
        y = layers.Conv2D(16, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.Add()([x, layers.BatchNormalization()(y)]))
    x = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    return _classify_images(tf, tf.keras.Model(inputs, x), side)


for _count_of_blocks in (50, 100, 200):
    CHAINS[f"chain_{_count_of_blocks}"] = functools.partial(_chain, _count_of_blocks)


@_register(CHAINS)
def densenet121(tf, tiny):
    """DenseNet121 of the applications, or a small network like it."""
    if tiny:
        return densenet(tf, tiny)
    make = tf.keras.applications.DenseNet121
    model = make(weights=None, input_shape=(64, 64, 3), classes=10, classifier_activation=None)
    return _classify_images(tf, model, 64, batch=8)


# ---- texts of many lengths, and decoding ----------------------------------------------------


def make_text_model(tf, name, vocabulary, width):
    """Return a classifier of texts of any length: `conv`, `lstm`, `masked` or `attention`."""
    layers = tf.keras.layers
    tokens = tf.keras.Input((None,), dtype="int32")
    x = layers.Embedding(vocabulary, width, mask_zero=name == "masked")(tokens)
    if name == "conv":
        x = layers.Conv1D(width, 5, padding="same", activation="relu")(x)
        x = layers.GlobalMaxPooling1D()(x)
    elif name == "lstm":
        x = layers.LSTM(width)(x)
    elif name == "masked":
        x = layers.Bidirectional(layers.LSTM(width))(x)
    else:
        x = layers.GlobalAveragePooling1D()(attend(tf, x, 2, width))
    x = layers.Dense(2)(layers.Dense(width, activation="relu")(x))
    return tf.keras.Model(tokens, x)


TEXT_MODELS = "conv", "lstm", "masked", "attention"


def make_decoder(tf, vocabulary, width, depth, longest):
    """Return a causal transformer for texts of any length."""
    layers = tf.keras.layers

    class Positions(layers.Layer):
        def build(self, shape):
            normal = tf.keras.initializers.RandomNormal(stddev=0.02)
            self.table = self.add_weight(name="table", shape=(longest, width), initializer=normal)

        def call(self, x):
            return x + self.table[: tf.shape(x)[1]]

    tokens = tf.keras.Input((None,), dtype="int32")
    x = Positions()(layers.Embedding(vocabulary, width)(tokens))
    for _ in range(depth):
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        y = layers.MultiHeadAttention(2, width // 2)(y, y, use_causal_mask=True)
        x = layers.Add()([x, y])
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        y = layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(y))
        x = layers.Add()([x, y])
    x = layers.LayerNormalization(epsilon=1e-5)(x)
    return tf.keras.Model(tokens, layers.Dense(vocabulary)(x))


def seed_weights(model):
    """Set matrices and kernels to values that depend on their shapes only, so that libraries compute the same."""
    rng = np.random.default_rng(0)
    values = model.get_weights()
    for i, value in enumerate(values):
        if value.ndim > 1:
            fan = math.prod(value.shape[:-1])
            values[i] = rng.uniform(-1, 1, value.shape) * (3 / max(fan, value.shape[-1])) ** 0.5
    model.set_weights(values)
