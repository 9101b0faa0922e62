"""Outputs of `predict` are those of all batches, however they are joined."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.keras.engine.training import joined_outputs
from meshflow.keras.engine.training.joined_outputs import JoinedOutputs


def parts(*sizes, dtype="float32"):
    rng = np.random.default_rng(0)
    return [tf.constant(rng.normal(size=size), dtype) for size in sizes]


@pytest.mark.parametrize("early_bytes", [0, 1 << 40])
@pytest.mark.parametrize("num_batches", [None, 1, 3, 10**15])
@pytest.mark.parametrize(
    "outputs",
    [
        parts((4, 2), (4, 2), (1, 2)),
        parts((4, 2)),
        parts((2, 3), (5, 3), (4, 3), (1, 3)),
        parts((4,), (4,), (4,), dtype="bfloat16"),
        [*parts((4, 2)), *parts((4, 2), dtype="float64")],
        parts((), (), ()),
        [np.ones([2, 2]), np.zeros([1, 2])],
        [tf.constant(["a", "b"]), tf.constant(["c"])],
    ],
)
def test_outputs_are_joined_like_by_concatenation(monkeypatch, early_bytes, num_batches, outputs):
    monkeypatch.setattr(joined_outputs, "EARLY_BYTES", early_bytes)
    column = JoinedOutputs(num_batches)
    for part in outputs:
        column.append(part)
    expected = np.concatenate([np.atleast_1d(np.asarray(part)) for part in outputs])
    found = column.join()
    assert found.dtype == expected.dtype
    assert found.flags.writeable
    np.testing.assert_array_equal(found, expected)


def test_other_sizes_are_refused(monkeypatch):
    monkeypatch.setattr(joined_outputs, "EARLY_BYTES", 0)
    column = JoinedOutputs(2)
    for part in parts((4, 2), (4, 3)):
        column.append(part)
    with pytest.raises(ValueError, match="dimension"):
        column.join()


def test_predictions_of_several_outputs(monkeypatch):
    monkeypatch.setattr(joined_outputs, "EARLY_BYTES", 0)
    inputs = tf.keras.Input((3,))
    model = tf.keras.Model(inputs, {"double": 2 * inputs, "sum": tf.reduce_sum(inputs, 1)})
    x = np.arange(21, dtype="float32").reshape(7, 3)
    for data in (x, tf.data.Dataset.from_tensor_slices(x).batch(3).repeat(1)):
        found = model.predict(data, batch_size=None if data is not x else 3, verbose=0)
        np.testing.assert_array_equal(found["double"], 2 * x)
        np.testing.assert_array_equal(found["sum"], x.sum(1))
