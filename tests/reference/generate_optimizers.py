"""Write optimizers.npz: variables after each of several steps of TensorFlow's optimizers.

Keys are `<case>` (dense gradients) and `<case>/sparse` (IndexedSlices with repeated rows); the cases
and their arguments are in the JSON text under `cases`, so that the test builds the same optimizers.
"""

import json
import os
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
import tf_keras

STEPS, ROWS, COLUMNS = 6, 5, 2
# (class, version, arguments): `legacy` is OptimizerV2, the default of TensorFlow 2.1 to 2.10.
CASES = [
    ("SGD", "legacy", {}),
    ("SGD", "legacy", {"momentum": 0.9}),
    ("SGD", "legacy", {"momentum": 0.9, "nesterov": True}),
    ("SGD", "legacy", {"momentum": 0.5, "decay": 0.1}),
    ("RMSprop", "legacy", {}),
    ("RMSprop", "legacy", {"centered": True}),
    ("RMSprop", "legacy", {"momentum": 0.9, "epsilon": 1e-3}),
    ("RMSprop", "legacy", {"momentum": 0.9, "centered": True, "epsilon": 1e-3}),
    ("Adam", "legacy", {"epsilon": 1e-3}),
    ("Adam", "legacy", {"amsgrad": True, "beta_1": 0.5, "beta_2": 0.6}),
    ("Adam", "legacy", {"decay": 0.1, "clipnorm": 0.5}),
    ("Adagrad", "legacy", {"epsilon": 1e-2}),
    ("Adadelta", "legacy", {"epsilon": 1e-3}),
    ("Adamax", "legacy", {"epsilon": 1e-3}),
    ("Nadam", "legacy", {"epsilon": 1e-3}),
    ("Ftrl", "legacy", {}),
    ("Ftrl", "legacy", {"l1_regularization_strength": 0.1, "l2_regularization_strength": 0.2}),
    ("Ftrl", "legacy", {"beta": 0.3, "learning_rate_power": -0.7}),
    ("Ftrl", "legacy", {"l2_shrinkage_regularization_strength": 0.2, "beta": 0.3}),
    ("SGD", "since 2.11", {"momentum": 0.9, "weight_decay": 0.1}),
    ("RMSprop", "since 2.11", {"epsilon": 1e-2}),
    ("RMSprop", "since 2.11", {"epsilon": 1e-2, "momentum": 0.9, "centered": True}),
    ("Adagrad", "since 2.11", {"epsilon": 1e-2}),
    ("Nadam", "since 2.11", {"epsilon": 1e-3}),
    ("Adadelta", "since 2.11", {"epsilon": 1e-3}),
    ("Adamax", "since 2.11", {"epsilon": 1e-3}),
    ("Ftrl", "since 2.11", {"beta": 0.3}),
    ("SGD", "since 2.11", {"momentum": 0.9, "nesterov": True}),
    ("AdamW", "since 2.11", {"weight_decay": 0.1}),
    ("Lion", "since 2.11", {"weight_decay": 0.1}),
    ("Adafactor", "since 2.11", {}),
    ("Adafactor", "since 2.11", {"relative_step": False, "clip_threshold": 0.5}),
    ("Adam", "since 2.11", {"global_clipnorm": 0.5}),
    ("Adam", "since 2.11", {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 3}),
]
RATE = 0.1


def make(name, space, arguments):
    return getattr(
        getattr(tf_keras.optimizers, space) if space == "legacy" else tf_keras.optimizers, name
    )(learning_rate=RATE, **arguments)


def trajectory(optimizer, start, steps):
    variable = tf.Variable(start)
    values = []
    for gradient in steps:
        optimizer.apply_gradients([(gradient, variable)])
        values.append(variable.numpy().copy())
    return np.stack(values)


def main():
    rng = np.random.default_rng(0)
    start = rng.normal(size=(ROWS, COLUMNS)).astype("float32")
    gradients = rng.normal(size=(STEPS, ROWS, COLUMNS)).astype("float32")
    rows = rng.integers(0, ROWS - 1, size=(STEPS, 3))
    rows[0] = [1, 1, 3]
    values = rng.normal(size=(STEPS, 3, COLUMNS)).astype("float32")
    stored = {"start": start, "gradients": gradients, "rows": rows, "values": values}
    names = []
    for name, space, arguments in CASES:
        key = f"{space}.{name}({json.dumps(arguments)})"
        names.append([key, name, space, arguments])
        stored[key] = trajectory(
            make(name, space, arguments), start, [tf.constant(g) for g in gradients]
        )
        if arguments.get("use_ema") is None:
            slices = [
                tf.IndexedSlices(tf.constant(v), tf.constant(r), tf.constant([ROWS, COLUMNS]))
                for v, r in zip(values, rows, strict=True)
            ]
            stored[key + "/sparse"] = trajectory(make(name, space, arguments), start, slices)
    schedules = tf_keras.optimizers.schedules
    steps = np.array([0, 1, 3, 4, 5, 9, 10, 11, 19, 20, 21, 35, 70])
    stored["schedule_steps"] = steps
    listed = []
    for name, arguments in [
        ("ExponentialDecay", {"initial_learning_rate": 0.5, "decay_steps": 10, "decay_rate": 0.7}),
        (
            "ExponentialDecay",
            {"initial_learning_rate": 0.5, "decay_steps": 10, "decay_rate": 0.7, "staircase": True},
        ),
        ("InverseTimeDecay", {"initial_learning_rate": 0.5, "decay_steps": 10, "decay_rate": 0.7}),
        (
            "InverseTimeDecay",
            {"initial_learning_rate": 0.5, "decay_steps": 10, "decay_rate": 0.7, "staircase": True},
        ),
        ("PiecewiseConstantDecay", {"boundaries": [4, 10], "values": [1.0, 0.5, 0.1]}),
        ("PolynomialDecay", {"initial_learning_rate": 0.5, "decay_steps": 10}),
        (
            "PolynomialDecay",
            {
                "initial_learning_rate": 0.5,
                "decay_steps": 10,
                "end_learning_rate": 0.1,
                "power": 2.0,
                "cycle": True,
            },
        ),
        ("CosineDecay", {"initial_learning_rate": 0.5, "decay_steps": 20, "alpha": 0.1}),
        (
            "CosineDecay",
            {
                "initial_learning_rate": 0.1,
                "decay_steps": 20,
                "warmup_target": 1.0,
                "warmup_steps": 5,
            },
        ),
        (
            "CosineDecay",
            {"initial_learning_rate": 0.1, "decay_steps": 20, "alpha": 0.2, "warmup_target": 1.0},
        ),
        ("CosineDecayRestarts", {"initial_learning_rate": 0.5, "first_decay_steps": 6}),
        (
            "CosineDecayRestarts",
            {
                "initial_learning_rate": 0.5,
                "first_decay_steps": 6,
                "t_mul": 1.0,
                "m_mul": 0.8,
                "alpha": 0.1,
            },
        ),
        (
            "CosineDecayRestarts",
            {"initial_learning_rate": 0.5, "first_decay_steps": 6, "t_mul": 1.5, "m_mul": 0.8},
        ),
    ]:
        key = f"schedules.{name}({json.dumps(arguments)})"
        listed.append([key, name, arguments])
        schedule = getattr(schedules, name)(**arguments)
        stored[key] = np.array([float(schedule(tf.constant(s, tf.int64))) for s in steps])
    source = f"tf-keras {tf_keras.__version__}, TensorFlow {tf.__version__}"
    np.savez_compressed(
        Path(__file__).with_name("optimizers.npz"),
        source=source,
        cases=json.dumps(names),
        schedules=json.dumps(listed),
        **{k.replace("/", "|"): v for k, v in stored.items()},
    )


if __name__ == "__main__":
    main()
