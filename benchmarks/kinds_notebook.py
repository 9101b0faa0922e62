"""A notebook of 20 small models for kinds.py: each is built, fitted for a few epochs, evaluated and used to predict.

Each function of `CELLS` takes the library and options for `compile`, and returns a loss. Last batches are partial.
"""

import kinds_models
import numpy as np

CELLS = {}
COUNT = 140


def cell(function):
    CELLS[function.__name__] = function
    return function


def _make_table(features=10):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(COUNT, features)).astype("float32")
    return x, (x @ rng.normal(size=(features, 1)) + 0.1).astype("float32")


def _make_series(length=24, width=3):
    rng = np.random.default_rng(0)
    x = np.cumsum(rng.normal(size=(COUNT, length, width)), 1).astype("float32")
    return x, x[:, -1, :1] * 0.5


def _use(model, x, y=None, epochs=2, batch=32, **options):
    """Fit, evaluate and predict; return the loss."""
    history = model.fit(x, y, epochs=epochs, batch_size=batch, verbose=0, **options)
    model.evaluate(x, y, batch_size=batch, verbose=0)
    model.predict(x, batch_size=batch, verbose=0)
    return float(np.mean(history.history["loss"][-1]))


def _stack(tf, shape, *layers, dtype=None):
    return tf.keras.Sequential([tf.keras.Input(shape, dtype=dtype), *layers])


@cell
def regression(tf, options):
    dense = tf.keras.layers.Dense
    model = _stack(tf, (10,), dense(32, "relu"), dense(32, "relu"), dense(1))
    model.compile("rmsprop", "mse", metrics=["mae"], **options)
    x, y = _make_table()
    return _use(model, x, y, epochs=3, validation_split=0.2)


@cell
def classification(tf, options):
    layers = tf.keras.layers
    model = _stack(
        tf,
        (10,),
        layers.Dense(32, "relu"),
        layers.Dropout(0.3),
        layers.Dense(1, activation="sigmoid"),
    )
    metrics = ["accuracy", tf.keras.metrics.AUC(name="auc")]
    model.compile("adam", "binary_crossentropy", metrics=metrics, **options)
    x, y = _make_table()
    stop = tf.keras.callbacks.EarlyStopping("loss", patience=2)
    return _use(model, x, (y > 0).astype("float32"), epochs=3, callbacks=[stop])


@cell
def tabular(tf, options):
    layers = tf.keras.layers
    x, y = _make_table()
    normalization = layers.Normalization()
    normalization.adapt(x)
    model = _stack(tf, (10,), normalization, layers.Dense(16, "relu"), layers.Dense(1))
    model.compile(tf.keras.optimizers.SGD(0.01, momentum=0.9), "huber", **options)
    return _use(model, x, y)


def _make_convolutional(tf):
    layers = tf.keras.layers
    return _stack(
        tf,
        (16, 16, 1),
        layers.Conv2D(8, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(16, 3, activation="relu"),
        layers.GlobalAveragePooling2D(name="features"),
        layers.Dense(10),
    )


@cell
def images(tf, options):
    model = _make_convolutional(tf)
    model.compile("adam", kinds_models.make_class_loss(tf), metrics=["accuracy"], **options)
    return _use(model, *kinds_models.make_images(COUNT, 16, 1))


@cell
def normalized_images(tf, options):
    layers = tf.keras.layers
    inputs = tf.keras.Input((16, 16, 3))
    x = layers.Conv2D(8, 3, padding="same")(layers.Rescaling(2.0, -1.0)(inputs))
    for _ in range(2):
        y = layers.Conv2D(8, 3, padding="same", use_bias=False)(x)
        x = layers.Add()([x, layers.ReLU()(layers.BatchNormalization()(y))])
    x = layers.Dense(10)(layers.Flatten()(x))
    model = tf.keras.Model(inputs, x)
    model.compile("adam", kinds_models.make_class_loss(tf), metrics=["accuracy"], **options)
    return _use(model, *kinds_models.make_images(COUNT, 16))


@cell
def transfer(tf, options):
    base = _make_convolutional(tf)
    features = tf.keras.Model(base.input, base.get_layer("features").output)
    features.trainable = False
    inputs = tf.keras.Input((16, 16, 1))
    outputs = tf.keras.layers.Dense(5)(features(inputs, training=False))
    model = tf.keras.Model(inputs, outputs)
    x, y = kinds_models.make_images(COUNT, 16, 1, 5)
    model.compile("adam", kinds_models.make_class_loss(tf), **options)
    _use(model, x, y, epochs=1)
    features.trainable = True
    model.compile(tf.keras.optimizers.Adam(1e-4), kinds_models.make_class_loss(tf), **options)
    return _use(model, x, y, epochs=1)


@cell
def lstm(tf, options):
    layers = tf.keras.layers
    model = _stack(tf, (24, 3), layers.LSTM(16), layers.Dense(1))
    model.compile("adam", "mse", **options)
    return _use(model, *_make_series())


@cell
def gru(tf, options):
    layers = tf.keras.layers
    model = _stack(
        tf, (24, 3), layers.GRU(16, return_sequences=True), layers.GRU(8), layers.Dense(1)
    )
    model.compile("adam", "mse", **options)
    return _use(model, *_make_series())


@cell
def signals(tf, options):
    layers = tf.keras.layers
    model = _stack(
        tf,
        (24, 3),
        layers.Conv1D(16, 5, activation="relu"),
        layers.MaxPooling1D(),
        layers.Conv1D(16, 3, activation="relu"),
        layers.GlobalMaxPooling1D(),
        layers.Dense(1),
    )
    model.compile("adam", "mae", **options)
    return _use(model, *_make_series())


@cell
def forecast(tf, options):
    layers = tf.keras.layers
    values = np.sin(np.arange(300) / 10).astype("float32")
    data = tf.data.Dataset.from_tensor_slices(values).window(13, shift=2, drop_remainder=True)
    data = data.flat_map(lambda window: window.batch(13))
    data = data.map(lambda window: (window[:-1, None], window[-1:])).batch(32)
    model = _stack(tf, (12, 1), layers.SimpleRNN(8), layers.Dense(1))
    model.compile("adam", "mse", **options)
    history = model.fit(data, epochs=2, verbose=0).history
    model.evaluate(data, verbose=0)
    model.predict(data, verbose=0)
    return history["loss"][-1]


@cell
def texts(tf, options):
    layers = tf.keras.layers
    model = _stack(
        tf,
        (20,),
        layers.Embedding(200, 16),
        layers.GlobalAveragePooling1D(),
        layers.Dense(16, "relu"),
        layers.Dense(2),
        dtype="int32",
    )
    model.compile("adam", kinds_models.make_class_loss(tf), metrics=["accuracy"], **options)
    return _use(model, *kinds_models.make_texts(COUNT, 20, 200))


@cell
def words(tf, options):
    layers = tf.keras.layers
    vectorization = layers.TextVectorization(100, output_sequence_length=12)
    rng = np.random.default_rng(0)
    names = np.array([f"word{i}" for i in range(60)])
    lines = [" ".join(names[rng.integers(0, 60, 12)]) for _ in range(COUNT)]
    vectorization.adapt(lines)
    x = np.asarray(vectorization(np.array(lines)))
    y = rng.integers(0, 2, COUNT).astype("float32")
    embedding = layers.Embedding(100, 8, mask_zero=True)
    recurrent = layers.Bidirectional(layers.LSTM(8))
    model = _stack(tf, (12,), embedding, recurrent, layers.Dense(1), dtype="int64")
    loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], **options)
    return _use(model, x, y)


@cell
def attention(tf, options):
    tokens = tf.keras.Input((20,), dtype="int32")
    x = tf.keras.layers.Embedding(200, 16)(tokens)
    x = kinds_models.attend(tf, x, 2, 16)
    x = tf.keras.layers.Dense(2)(tf.keras.layers.GlobalAveragePooling1D()(x))
    model = tf.keras.Model(tokens, x)
    model.compile("adam", kinds_models.make_class_loss(tf), **options)
    return _use(model, *kinds_models.make_texts(COUNT, 20, 200))


@cell
def autoencoder(tf, options):
    layers = tf.keras.layers
    model = _stack(
        tf,
        (16, 16, 1),
        layers.Flatten(),
        layers.Dense(32, "relu"),
        layers.Dense(256, activation="sigmoid"),
        layers.Reshape((16, 16, 1)),
    )
    x, _ = kinds_models.make_images(COUNT, 16, 1)
    model.compile("adam", "mse", **options)
    return _use(model, x, x)


@cell
def variational(tf, options):
    dense = tf.keras.layers.Dense
    encoder = _stack(tf, (64,), dense(32, "relu"), dense(4))
    decoder = _stack(tf, (2,), dense(32, "relu"), dense(64, activation="sigmoid"))
    model = kinds_models.make_vae(tf, encoder, decoder)
    model.compile("adam", **options)
    x = np.random.default_rng(0).random((COUNT, 64)).astype("float32")
    return _use(model, x)


@cell
def adversarial(tf, options):
    dense = tf.keras.layers.Dense
    generator = _stack(tf, (8,), dense(32, "relu"), dense(64, activation="tanh"))
    critic = _stack(tf, (64,), dense(32), tf.keras.layers.LeakyReLU(), dense(1))
    model = kinds_models.make_gan(tf, generator, critic, 8)
    model.compile("adam", **options)
    x = np.random.default_rng(0).random((COUNT, 64)).astype("float32")
    history = model.fit(x, epochs=2, batch_size=32, verbose=0).history
    model.predict(x[:20, :8], verbose=0)
    return history["loss"][-1]


@cell
def several_inputs(tf, options):
    layers = tf.keras.layers
    numbers, category = tf.keras.Input((10,)), tf.keras.Input((1,), dtype="int32")
    x = layers.Concatenate()([numbers, layers.Flatten()(layers.Embedding(12, 4)(category))])
    x = layers.Dense(16, activation="relu")(x)
    value = layers.Dense(1, name="value")(x)
    label = layers.Dense(3, activation="softmax", name="label")(x)
    model = tf.keras.Model([numbers, category], [value, label])
    losses = {"value": "mse", "label": "sparse_categorical_crossentropy"}
    model.compile("adam", losses, loss_weights={"value": 1.0, "label": 0.2}, **options)
    x, y = _make_table()
    rng = np.random.default_rng(0)
    categories = rng.integers(0, 12, (COUNT, 1)).astype("int32")
    labels = rng.integers(0, 3, COUNT).astype("int32")
    return _use(model, [x, categories], {"value": y, "label": labels})


@cell
def subclass(tf, options):
    class Network(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = tf.keras.layers.Dense(16, activation="relu")
            self.dropout = tf.keras.layers.Dropout(0.2)
            self.out = tf.keras.layers.Dense(1)

        def call(self, x, training=False):
            return self.out(self.dropout(self.hidden(x), training=training))

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    model = Network()
    model.compile("adam", "mse", **options)
    return _use(model, *_make_table())


@cell
def loop(tf, options):
    x, y = _make_table()
    model = _stack(tf, (10,), tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(1))
    optimizer = tf.keras.optimizers.Adam(0.01)
    metric = tf.keras.metrics.MeanSquaredError()

    @tf.function(**options)
    def train(x, y):
        with tf.GradientTape() as tape:
            predicted = model(x, training=True)
            loss = tf.reduce_mean(tf.square(predicted - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss, predicted

    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(100).batch(32)
    for _ in range(3):
        metric.reset_state()
        for inputs, targets in data:
            _, predicted = train(inputs, targets)
            metric.update_state(targets, predicted)
    return float(metric.result())


@cell
def siamese(tf, options):
    layers = tf.keras.layers
    tower = _stack(tf, (10,), layers.Dense(16, "relu"), layers.Dense(8))
    first, second = tf.keras.Input((10,)), tf.keras.Input((10,))
    difference = layers.Subtract()([tower(first), tower(second)])
    distance = layers.Lambda(lambda v: tf.norm(v, axis=1, keepdims=True))(difference)
    model = tf.keras.Model([first, second], distance)

    def contrast(is_same, distance):
        far = tf.square(tf.maximum(1.0 - distance, 0.0))
        return tf.reduce_mean(is_same * tf.square(distance) + (1.0 - is_same) * far)

    model.compile("adam", contrast, **options)
    x, y = _make_table()
    return _use(model, [x, x[::-1].copy()], (y > 0).astype("float32"))
