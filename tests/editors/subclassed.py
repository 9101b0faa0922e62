"""A layer, a model with its own training step, a metric, a callback and a schedule."""

from typing import Any

import numpy as np

import meshflow as tf
from meshflow import keras
from meshflow.keras import layers


@keras.utils.register_keras_serializable(package="example")
class Projection(layers.Layer):
    def __init__(self, units: int, activation: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.activation = keras.activations.get(activation)

    def build(self, input_shape) -> None:
        self.kernel = self.add_weight(
            name="kernel",
            shape=(input_shape[-1], self.units),
            initializer="glorot_uniform",
            regularizer=keras.regularizers.L2(1e-5),
            trainable=True,
        )
        self.bias = self.add_weight("bias", shape=[self.units], initializer="zeros")
        super().build(input_shape)

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        outputs = tf.matmul(inputs, self.kernel) + self.bias
        if training:
            outputs = tf.nn.dropout(outputs, rate=0.1)
        self.add_loss(1e-3 * tf.reduce_mean(tf.square(outputs)))
        return self.activation(outputs)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


class VariationalAutoencoder(keras.Model):
    def __init__(self, latent: int = 2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.encoder = keras.Sequential([Projection(32, "relu"), layers.Dense(2 * latent)])
        self.decoder = keras.Sequential(
            [Projection(32, "relu"), layers.Dense(8, activation="sigmoid")]
        )
        self.total = keras.metrics.Mean(name="total")
        self.divergence = keras.metrics.Mean(name="divergence")

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return [self.total, self.divergence]

    def call(self, inputs, training=None, mask=None):
        mean, log_variance = tf.split(self.encoder(inputs, training=training), 2, axis=-1)
        noise = tf.random.normal(tf.shape(mean))
        return self.decoder(mean + tf.exp(0.5 * log_variance) * noise, training=training)

    def train_step(self, data) -> dict[str, tf.Tensor]:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            mean, log_variance = tf.split(self.encoder(x), num_or_size_splits=2, axis=-1)
            code = mean + tf.exp(0.5 * log_variance) * tf.random.normal(tf.shape(mean))
            reconstruction = self.decoder(code)
            error = tf.reduce_mean(
                tf.reduce_sum(keras.losses.binary_crossentropy(x, reconstruction))
            )
            divergence = -0.5 * tf.reduce_mean(1 + log_variance - mean**2 - tf.exp(log_variance))
            loss = error + divergence + sum(self.losses)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.total.update_state(loss)
        self.divergence.update_state(divergence)
        return {metric.name: metric.result() for metric in self.metrics}


class Share(keras.metrics.Metric):
    def __init__(self, threshold: float = 0.5, name: str = "share", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.threshold = threshold
        self.count = self.add_weight(name="count", initializer="zeros")
        self.positive = self.add_weight(name="positive", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        hits = tf.cast(y_pred > self.threshold, self.dtype)
        self.positive.assign_add(tf.reduce_sum(hits))
        self.count.assign_add(tf.cast(tf.size(hits), tf.float32))

    def result(self) -> tf.Tensor:
        return tf.math.divide_no_nan(self.positive, self.count)


class Recorder(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_epoch_end(self, epoch, logs=None) -> None:
        self.losses.append((logs or {})["loss"])
        if epoch > 5:
            self.model.stop_training = True


class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, peak: float, steps: int) -> None:
        self.peak, self.steps = peak, steps

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        return self.peak * tf.minimum(step / self.steps, tf.math.rsqrt(step + 1))


class Contrast(keras.losses.Loss):
    def __init__(self, margin: float = 1.0, name: str = "contrast") -> None:
        super().__init__(name=name)
        self.margin = margin

    def call(self, y_true, y_pred):
        return tf.maximum(self.margin - y_true * y_pred, 0.0)


model = VariationalAutoencoder(latent=3, name="vae")
model.compile(
    optimizer=keras.optimizers.AdamW(Warmup(1e-3, 100), weight_decay=1e-4), run_eagerly=False
)
data = np.random.default_rng(0).random((64, 8)).astype("float32")
recorder = Recorder()
model.fit(data, batch_size=16, epochs=2, callbacks=[recorder], verbose=0)
model.build((None, 8))
model.summary(line_length=80)
model.save_weights("vae.weights.h5")
print(recorder.losses, model(data[:2]).numpy().mean())
classifier = keras.Sequential([keras.Input((8,)), Projection(1, name="projection")])
classifier.compile("sgd", loss=Contrast(0.5), metrics=[Share(), "mae"])
classifier.fit(data, np.sign(data[:, 0] - 0.5), epochs=1, class_weight={-1: 1.0, 1: 2.0}, verbose=0)
weights = [w.numpy() for w in classifier.weights]
print(classifier.get_layer("projection").get_config(), [w.dtype for w in weights])
