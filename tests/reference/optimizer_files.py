"""Write trained models with every optimizer to files, and continue training from them; run in each
program.

`python optimizer_files.py write FOLDER WRITER READER` in one program, then the same with `read` in
the other; they are tf-keras, keras3 and meshflow. Reading prints the largest difference of weights
after three more steps, by file.
"""

import json
import os
import pathlib
import sys

import numpy as np

task, folder, writer, reader = sys.argv[1:]
program = writer if task == "write" else reader
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_USE_LEGACY_KERAS"] = "1" if program == "tf-keras" else ""
if program == "meshflow":
    import meshflow as tf
else:
    import tensorflow as tf

keras, optimizers = tf.keras, tf.keras.optimizers
schedules = optimizers.schedules
# Formats that each program reads from the others: Keras 3 reads state only from its own format, and
# writes no .h5 files that it can train.
FORMS = {
    ("meshflow", "tf-keras"): (".keras", ".h5"),
    ("meshflow", "keras3"): (".of_3.keras",),
    ("tf-keras", "meshflow"): (".keras", ".h5"),
    ("keras3", "meshflow"): (".keras",),
}
MADE = {
    "sgd": lambda: optimizers.SGD(0.05),
    "momentum": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "rmsprop": lambda: optimizers.RMSprop(0.01),
    "centered": lambda: optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "adam": lambda: optimizers.Adam(0.01, global_clipnorm=0.1),
    "amsgrad": lambda: optimizers.Adam(0.01, amsgrad=True),
    "averages": lambda: optimizers.Adam(
        0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4
    ),
    "adamw": lambda: optimizers.AdamW(0.01, weight_decay=0.01),
    "adamax": lambda: optimizers.Adamax(0.01),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "adadelta": lambda: optimizers.Adadelta(1.0),
    "ftrl": lambda: optimizers.Ftrl(0.1, l2_shrinkage_regularization_strength=0.01, beta=0.1),
    "adafactor": lambda: optimizers.Adafactor(0.01),
    "lion": lambda: optimizers.Lion(0.003, weight_decay=0.01),
    "decaying": lambda: optimizers.Adam(schedules.ExponentialDecay(0.05, 2, 0.5)),
    "piecewise": lambda: optimizers.SGD(
        schedules.PiecewiseConstantDecay([2, 4], [0.1, 0.05, 0.01])
    ),
    # tf-keras counts Nadam's steps in a number that no file has.
    "nadam": lambda: None if "tf-keras" in (writer, reader) else optimizers.Nadam(0.01),
    "lamb": lambda: None if "tf-keras" in (writer, reader) else optimizers.Lamb(0.01),
    "gathering": lambda: (
        None
        if "tf-keras" in (writer, reader)
        else optimizers.Adam(0.01, gradient_accumulation_steps=2)
    ),
    "scaled": lambda: scaling(optimizers.Adam(0.01)),
}
# tf-keras leaves the state of these out of its .h5 files.
NOT_IN_H5 = ("scaled",)


def scaling(optimizer):
    """An optimizer with a loss scale."""
    home = optimizers if program == "keras3" else keras.mixed_precision
    return home.LossScaleOptimizer(optimizer)


def model():
    """A model, always the same."""
    x = keras.Input((6,), name="x")
    hidden = keras.layers.Dense(5, activation="tanh", name="first")(x)
    hidden = keras.layers.BatchNormalization(name="norm")(hidden)
    made = keras.Model(x, keras.layers.Dense(2, name="last")(hidden))
    random = np.random.RandomState(0)
    made.set_weights(
        [random.uniform(0.5, 1, w.shape).astype("float32") for w in made.get_weights()]
    )
    return made


def train_model(made):
    """The weights after three steps."""
    random = np.random.RandomState(1)
    x, y = random.normal(size=(8, 6)), random.normal(size=(8, 2))
    for _ in range(3):
        made.train_on_batch(x.astype("float32"), y.astype("float32"))
    return [np.asarray(w) for w in made.get_weights()]


def write():
    """Write files of all optimizers, and the weights after further training."""
    for name, make in MADE.items():
        made, optimizer = model(), make()
        if optimizer is None:
            continue
        made.compile(optimizer, "mse")
        train_model(made)
        path = f"{folder}/{name}"
        made.save(f"{path}.keras")
        if program == "meshflow":
            made.save(f"{path}.of_3.keras", keras_version=3)
        if program != "keras3":
            made.save(f"{path}.h5")
        np.savez(f"{path}.npz", *train_model(made))


def read(forms):
    """The largest difference after training on, by file."""
    found = {}
    for stored in sorted(pathlib.Path(folder).glob("*.npz")):
        with np.load(stored) as file:
            wanted = [file[f"arr_{i}"] for i in range(len(file.files))]
        for form in forms:
            if form == ".h5" and stored.stem in NOT_IN_H5:
                continue
            made = keras.models.load_model(stored.with_suffix(form))
            pairs = zip(train_model(made), wanted, strict=True)
            found[stored.stem + form] = max(float(np.abs(a - b).max()) for a, b in pairs)
    return found


if task == "write":
    write()
    print("{}")
else:
    print(json.dumps(read(FORMS[writer, reader])))
