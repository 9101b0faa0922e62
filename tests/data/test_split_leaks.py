"""The warning about disjoint parts of a dataset that is shuffled again in every pass."""

import warnings

import numpy as np
import pytest

import meshflow as tf


def make_dataset(**kwargs):
    return tf.data.Dataset.range(10).shuffle(10, seed=1, **kwargs)


LEAKS = {
    "take and skip": lambda d: (d.take(8), d.skip(8)),
    "order of use": lambda d: (d.skip(8), d.take(8)),
    "three parts": lambda d: (d.skip(6).take(2), d.skip(8), d.take(6)),
    "batched": lambda d: [
        p.map(lambda x: x + 1).batch(2).repeat(2) for p in (d.take(8), d.skip(8))
    ],
    "after batch": lambda d: (d.batch(2).take(4), d.batch(2).skip(4).prefetch(1)),
    "nested take": lambda d: (d.take(9).skip(8), d.take(9).take(8)),
}


@pytest.mark.parametrize("name", list(LEAKS))
def test_leak_warns_once(name):
    parts = LEAKS[name](make_dataset())
    with pytest.warns(UserWarning, match=r"shuffle\(buffer_size=10\), which draws") as record:
        for _ in range(3):
            for part in parts:
                list(part)
    assert len(record) == 1


def test_message_names_the_parts():
    dataset = make_dataset()
    with pytest.warns(UserWarning, match=r"split by take\(8\) and skip\(8\) after"):
        list(dataset.skip(8)), list(dataset.take(8))


SAFE = {
    "fixed order": (make_dataset, {"reshuffle_each_iteration": False}, "split"),
    "split first": (lambda: tf.data.Dataset.range(10), {}, "split shuffled"),
    "cached": (lambda: make_dataset().cache(), {}, "split"),
    "one part": (make_dataset, {}, "take"),
    "overlapping": (make_dataset, {}, "overlap"),
    "shards": (make_dataset, {}, "shards"),
    "empty": (make_dataset, {}, "empty"),
}


@pytest.mark.parametrize("name", list(SAFE))
def test_safe_pipelines_do_not_warn(name):
    make, kwargs, use = SAFE[name]
    dataset = make(**kwargs)
    parts = {
        "split": lambda: (dataset.take(8), dataset.skip(8)),
        "split shuffled": lambda: (dataset.take(8).shuffle(8), dataset.skip(8).shuffle(2)),
        "take": lambda: (dataset.take(8), dataset.take(8)),
        "overlap": lambda: (dataset.take(1), dataset, dataset.take(4)),
        "shards": lambda: (dataset.shard(2, 0), dataset.shard(2, 1)),
        "empty": lambda: (dataset.take(8), dataset.take(4).skip(4)),
    }[use]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            for part in parts:
                list(part)


def test_fit_warns_before_the_first_epoch():
    x = np.ones((10, 2), "float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(10)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    class Stop(tf.keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="validation data leak"), pytest.raises(KeyboardInterrupt):
        model.fit(
            dataset.take(8).batch(2),
            validation_data=dataset.skip(8).batch(2),
            verbose=0,
            callbacks=[Stop()],
        )
