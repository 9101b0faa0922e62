"""Functional models, compile, fit, callbacks and saving."""

import numpy as np

import meshflow as tf
from meshflow.keras import layers

NUM_CLASSES = 10


def make_model(width: int, dropout: float = 0.3) -> tf.keras.Model:
    inputs = tf.keras.Input(shape=(28, 28, 1), name="image")
    x = layers.Rescaling(1.0 / 255)(inputs)
    for filters in (width, 2 * width):
        shortcut = layers.Conv2D(filters, 1, padding="same", use_bias=False)(x)
        x = layers.Conv2D(
            filters,
            (3, 3),
            padding="same",
            activation="relu",
            kernel_initializer=tf.keras.initializers.HeNormal(seed=1),
            kernel_regularizer=tf.keras.regularizers.l2(1e-4),
        )(x)
        x = layers.BatchNormalization(momentum=0.9, name=f"norm_{filters}")(x)
        x = layers.Add()([x, shortcut])
        x = layers.MaxPooling2D(2, strides=2)(x)
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dropout(dropout, seed=3)(x)
    main = layers.Dense(NUM_CLASSES, name="digit", dtype="float32")(x)
    parity = layers.Dense(1, activation=tf.nn.sigmoid, name="parity")(x)
    return tf.keras.Model(inputs=inputs, outputs=[main, parity], name="digits")


model = make_model(16)
steps = 100
schedule = tf.keras.optimizers.schedules.CosineDecay(1e-3, decay_steps=10 * steps, alpha=0.1)
model.compile(
    optimizer=tf.keras.optimizers.Adam(learning_rate=schedule, clipnorm=1.0),
    loss={
        "digit": tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "parity": "binary_crossentropy",
    },
    loss_weights={"digit": 1.0, "parity": 0.5},
    metrics={"digit": ["accuracy", tf.keras.metrics.SparseTopKCategoricalAccuracy(k=3)]},
    steps_per_execution=4,
)
images = np.random.default_rng(0).integers(0, 256, (1000, 28, 28, 1)).astype("float32")
digits = np.arange(1000) % NUM_CLASSES
history = model.fit(
    images,
    {"digit": digits, "parity": digits % 2},
    batch_size=32,
    epochs=3,
    validation_split=0.1,
    verbose=2,
    callbacks=[
        tf.keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True),
        tf.keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True, mode="min"),
        tf.keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, verbose=1),
        tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch, logs)),
    ],
)
best = min(history.history["val_loss"])
epochs = [epoch + 1 for epoch in history.epoch]
print(f"best {best:.3f} of {len(epochs)} epochs")

results = model.evaluate(
    images, {"digit": digits, "parity": digits % 2}, verbose=0, return_dict=True
)
print(results["loss"])
logits = model.predict(images[:5], verbose=0)[0]
print(np.argmax(logits, axis=-1) == digits[:5])
model.save("digits.keras")
restored = tf.keras.models.load_model("digits.keras")
restored.summary()
features = tf.keras.Model(model.input, model.get_layer("norm_32").output)
print(features(images[:2]).shape, model.count_params())
for layer in model.layers:
    if isinstance(layer, layers.Dense):
        kernel, bias = layer.get_weights()
        print(layer.name, layer.units, kernel.shape, bias.sum())
    layer.trainable = False
