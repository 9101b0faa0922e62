"""Every optimizer and schedule against several steps of TensorFlow's (tests/reference)."""

import json
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close
from meshflow.keras import optimizers

STORED = np.load(Path(__file__).parents[2] / "reference" / "optimizers.npz")
CASES = {key: rest for key, *rest in json.loads(str(STORED["cases"]))}
SCHEDULES = {key: rest for key, *rest in json.loads(str(STORED["schedules"]))}


def trajectory(case, gradients, start=STORED["start"]):
    name, space, arguments = CASES[case]
    module = optimizers.legacy if space == "legacy" else optimizers
    optimizer = getattr(module, name)(learning_rate=0.1, **arguments)
    variable = tf.Variable(start)
    values = []
    for gradient in gradients:
        optimizer.apply_gradients([(gradient, variable)])
        values.append(variable.numpy())
    return np.stack(values)


@pytest.mark.parametrize("case", CASES)
def test_dense_gradients(case):
    actual = trajectory(case, [tf.constant(g) for g in STORED["gradients"]])
    assert_close(actual, STORED[case], rtol=2e-5, atol=2e-6)


SPARSE = [c for c in CASES if c + "|sparse" in STORED]


@pytest.mark.parametrize(
    ("case", "unused"),
    # Adafactor's steps depend on the size of the table.
    [(c, n) for c in SPARSE for n in (0, 9) if not (n and "Adafactor" in c)],
)
def test_gradients_of_rows(case, unused):
    # Of a large table only some rows are computed, of a small one all.
    start = np.pad(STORED["start"], [(0, unused), (0, 0)])
    shape = start.shape
    slices = [
        tf.IndexedSlices(tf.constant(v), tf.constant(r), tf.constant(shape))
        for v, r in zip(STORED["values"], STORED["rows"], strict=True)
    ]
    found = trajectory(case, slices, start)[:, : len(STORED["start"])]
    assert_close(found, STORED[case + "|sparse"], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["Adagrad", "Nadam", "RMSprop", "SGD"])
def test_configurations_mean_the_optimizers_of_their_version(name):
    now, before = getattr(optimizers, name), getattr(optimizers.legacy, name)
    assert getattr(optimizers.experimental, name) is now
    for cls in (now, before):
        assert type(optimizers.deserialize(optimizers.serialize(cls(0.5)))) is cls
        assert type(cls.from_config(cls(0.5).get_config())) is cls
    until_2_10 = {"class_name": name, "config": {"learning_rate": 0.5, "decay": 0.0}}
    assert type(optimizers.get(until_2_10)) is before
    keras_3 = {"module": "keras.optimizers", "class_name": name, "config": {"learning_rate": 0.5}}
    assert type(optimizers.get(keras_3)) is now
    assert type(optimizers.get(name.lower())) is now


@pytest.mark.parametrize("case", SCHEDULES)
def test_schedules(case):
    name, arguments = SCHEDULES[case]
    schedule = getattr(optimizers.schedules, name)(**arguments)
    steps = [tf.constant(s, tf.int64) for s in STORED["schedule_steps"]]
    assert_close([schedule(s) for s in steps], STORED[case], rtol=1e-5, atol=1e-7)
    again = optimizers.schedules.deserialize(optimizers.schedules.serialize(schedule))
    assert again.get_config() == schedule.get_config()
    assert_close([again(s) for s in steps], STORED[case], rtol=1e-5, atol=1e-7)
