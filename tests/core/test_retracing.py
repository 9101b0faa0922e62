"""Messages about functions and steps that are traced again: the name, the changed argument, and the fix."""

import logging
import re
import weakref

import numpy as np
import pytest

import meshflow as tf
from meshflow.core.functions import retracing


class Thing:
    pass


class Encoder(tf.keras.layers.Layer):
    @tf.function
    def call(self, x):
        return x * 2


@tf.function
def compute(x, count=1, options=None):
    return tf.reduce_sum(x["a"])


def call_compute(calls):
    function = tf.function(lambda x, count=1, options=None: tf.reduce_sum(x["a"]))
    for args in calls:
        function(*args)


def make_in_loop():
    for _ in range(6):
        tf.function(lambda x: x)(tf.ones(2))


def fit_lengths():
    inputs = tf.keras.Input((None, 2), name="tokens")
    outputs = tf.keras.layers.GlobalAveragePooling1D()(inputs)
    model = tf.keras.Model({"tokens": inputs}, outputs, name="reader")
    model.compile("sgd", "mse")
    y = np.ones((4, 2), "float32")
    lengths = range(1, 7)
    model.fit(iter([({"tokens": np.ones((4, n, 2), "float32")}, y) for n in lengths]), verbose=0)


def call_layer():
    layer = Encoder(name="enc")
    for size in range(1, 7):
        layer(tf.ones([size, 3]))


ONES = {"a": tf.ones([2, 3])}
CASES = {
    "shape": (
        lambda: call_compute([({"a": tf.ones([n, 3])},) for n in range(1, 7)]),
        r"argument 'x'\['a'\] has shape \(6, 3\) after \(5, 3\)\. Fix: .*drop_remainder=True",
    ),
    "number": (
        lambda: call_compute([(ONES, n) for n in range(6)]),
        r"argument 'count' is 5 after 4\. Fix: pass a tensor, such as tf.constant\(5\)",
    ),
    "dtype": (
        lambda: call_compute(
            [({"a": tf.zeros(2, d)},) for d in ("int8", "int16", "int32", "int64", "float32")]
        ),
        r"argument 'x'\['a'\] has dtype float32 after int64\. Fix: cast it",
    ),
    "structure": (
        lambda: call_compute([({"a": tf.ones(2), str(n): tf.ones(2)},) for n in range(5)]),
        r"argument 'x'\['3'\] is missing, and argument 'x'\['4'\] is new\. Fix: pass the same structure",
    ),
    "tensor or number": (
        lambda: call_compute([(ONES, n) for n in (1, 2, 3, 4, tf.constant(5))]),
        r"argument 'count' is a tensor of shape \(\) and dtype int32 after 4\. Fix: pass a tensor",
    ),
    "object": (
        lambda: call_compute([(ONES, 1, Thing()) for _ in range(5)]),
        r"argument 'options' is the Thing at 0x\w+ after the Thing at 0x\w+\. Fix: pass the same object",
    ),
    "loop": (make_in_loop, r"test_retracing.py:\d+\) .*Fix: create the tf.function"),
    "layer": (call_layer, r"Encoder.call \(test_retracing.py:\d+\) of layer 'enc' .*argument 'x'"),
    "fit": (
        fit_lengths,
        r"compile train_step of model 'reader' again.*x\['tokens'\] has shape \(4, 6, 2\) after \(4, 5, 2\)",
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_warning_names_the_cause(name, caplog, monkeypatch, compile_tier):
    # The cases call one function, and each function warns twice.
    monkeypatch.setattr(retracing, "_histories", weakref.WeakKeyDictionary())
    run, pattern = CASES[name]
    with caplog.at_level(logging.WARNING, logger="meshflow"):
        run()
    assert caplog.records
    messages = "\n".join(record.getMessage() for record in caplog.records)
    assert re.search(pattern, messages), messages


def test_every_trace_is_logged_at_level_info(caplog):
    with caplog.at_level(logging.INFO, logger="meshflow"):
        compute(ONES)
        compute(ONES)
        assert not caplog.records
        compute(ONES, 7)
    assert "compute (test_retracing.py:" in caplog.text
    assert "was traced again: argument 'count' is 7 after 1." in caplog.text


def test_few_traces_do_not_warn(caplog):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    # The last batch of an epoch is smaller.
    model.fit(np.ones((10, 2)), np.ones((10, 1)), batch_size=4, epochs=20, verbose=0)
    assert not caplog.records
