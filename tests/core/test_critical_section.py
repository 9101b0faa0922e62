"""`tf.CriticalSection` and memory shared by `tf.experimental.dlpack`."""

import threading

import numpy as np
import pytest

import meshflow as tf


def test_functions_run_sequentially():
    section, inside, most = tf.CriticalSection(name="count"), [], []

    def work():
        inside.append(1)
        most.append(len(inside))
        for _ in range(1000):
            pass
        inside.pop()

    threads = [
        threading.Thread(target=lambda: [section.execute(work) for _ in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert section.name == "count" and most == [1] * 200


def test_inside_a_function():
    section, v = tf.CriticalSection(), tf.Variable(1.0)

    @tf.function
    def step():
        return section.execute(lambda: v.assign_add(2.0)) + 1.0

    assert float(step()) == 4.0 and float(v) == 3.0


def test_arrays_of_others():
    ours = tf.constant([[1.0, 2.0]])
    capsule = tf.experimental.dlpack.to_dlpack(ours)
    np.testing.assert_array_equal(tf.experimental.dlpack.from_dlpack(capsule), [[1.0, 2.0]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="not consumed yet"):
        tf.experimental.dlpack.from_dlpack(capsule)
    theirs = np.arange(3)
    np.testing.assert_array_equal(tf.experimental.dlpack.from_dlpack(theirs), theirs)
