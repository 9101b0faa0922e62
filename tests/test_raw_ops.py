"""Raw ops, compared with TensorFlow's results."""

import inspect
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from meshflow.raw_ops import operations

REFERENCE = Path(__file__).parent / "reference"
SCRIPT = Path(__file__).parents[1] / "scripts" / "prune_tensorflow_api.py"
sys.path.insert(0, str(REFERENCE))
from raw_op_cases import CALLS, VALUES, run_update
from raw_op_values import flatten

STORED = json.loads((REFERENCE / "raw_ops.json").read_text())
UPDATES = [name for name in STORED if "(" not in name]


def assert_equal(found, expected):
    """Compare nested lists, with a tolerance for floats."""
    if isinstance(expected, list):
        assert isinstance(found, list), (found, expected)
        assert len(found) == len(expected), (found, expected)
        if expected and all(isinstance(x, float) for x in expected):
            np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)
        else:
            for a, b in zip(found, expected, strict=True):
                assert_equal(a, b)
    else:
        assert found == expected


@pytest.mark.parametrize("call", CALLS)
def test_values_are_those_of_tensorflow(call):
    names = {
        **VALUES,
        "tf": tf,
        call.partition("(")[0]: getattr(tf.raw_ops, call.partition("(")[0]),
    }
    assert_equal(flatten(eval(call, names)), STORED[call])


@pytest.mark.parametrize("name", UPDATES)
def test_updates_of_variables(name):
    parameters = inspect.signature(getattr(tf.raw_ops, name)).parameters
    assert_equal(run_update(tf, name, parameters), STORED[name])


def test_clustering_draws_the_random_numbers_of_tensorflow():
    def sample(points, count, retries=2):
        return tf.raw_ops.KmeansPlusPlusInitialization(
            points=points, num_to_sample=count, seed=1, num_retries_per_sample=retries
        )

    points = tf.reshape(tf.range(20.0), [10, 2])
    expected = [[8, 9], [14, 15], [0, 1]]
    np.testing.assert_array_equal(sample(points, 3), expected)
    traced = tf.function(lambda x: sample(x, 3)).get_concrete_function(points)
    np.testing.assert_array_equal(traced(points), expected)
    assert traced.structured_outputs.shape == [3, 2]
    # All distances are zero.
    np.testing.assert_array_equal(sample([[1.0, 2.0]] * 2, 2, -1), [[1, 2]] * 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expected num_to_sample <= points"):
        sample([[1.0, 2.0]] * 2, 3)
    assert tf.raw_ops.KMC2ChainInitialization(distances=[1.0, 2.0, 3.0], seed=1).numpy() == 2
    indices, distances = tf.raw_ops.NearestNeighbors(
        points=[[1.0, 2.0], [5.0, 5.0]], centers=[[0.0, 0.0], [4.0, 4.0]], k=3
    )
    np.testing.assert_array_equal(indices, [[0, 1], [1, 0]])
    np.testing.assert_array_equal(distances, [[5, 13], [2, 50]])


def test_ops_are_differentiable_and_traced():
    x = tf.constant([[1.0, -2.0]])

    @tf.function
    def compute(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.raw_ops.LeakyRelu(
                features=tf.raw_ops.MatMul(a=x, b=x, transpose_b=True), alpha=0.5
            )
            y = y + tf.raw_ops.SoftmaxCrossEntropyWithLogits(features=x, labels=[[1.0, 0.0]]).loss
        return tape.gradient(y, x)

    np.testing.assert_allclose(compute(x), [[1.9526, -3.9526]], atol=1e-4)


def test_unique_slices():
    # The values are those of TensorFlow 2.15.
    x = tf.constant([[3, 1], [0, 2], [3, 1], [0, 2], [5, 5]])
    find = tf.raw_ops.UniqueWithCountsV2
    for run in (find, tf.function(find)):
        found = [r.numpy().tolist() for r in run(x=x, axis=[0])]
        assert found == [[[3, 1], [0, 2], [5, 5]], [0, 1, 0, 1, 2], [2, 2, 1]]
        assert [r.shape for r in run(x=x, axis=[-1])] == [[5, 2], [2], [2]]
    words = [["b", "a"], ["c", "d"], ["b", "a"]]
    found = tf.raw_ops.UniqueV2(x=words, axis=[0], out_idx=tf.int64)
    assert found.y.numpy().tolist() == [[b"b", b"a"], [b"c", b"d"]] and found.idx.dtype == tf.int64
    assert tf.raw_ops.UniqueV2(x=[4, 1, 4], axis=np.zeros(0, "int32")).idx.numpy().tolist() == [
        0,
        1,
        0,
    ]


def test_errors():
    with pytest.raises(TypeError, match=r"only takes keyword args .possible keys: ..a., .b."):
        tf.raw_ops.MatMul([[1.0]], [[1.0]])
    with pytest.raises(TypeError, match="missing a required argument: 'b'"):
        tf.raw_ops.MatMul(a=[[1.0]])
    with pytest.raises(NotImplementedError, match=r"tf\.raw_ops\.CudnnRNN: no code of Meshflow"):
        _ = tf.raw_ops.CudnnRNN
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = tf.raw_ops.Nothing
    assert len(dir(tf.raw_ops)) > 480
    assert str(inspect.signature(tf.raw_ops.Relu)) == "(*, features, name=None)"
    assert all(callable(getattr(tf.raw_ops, name)) for name in dir(tf.raw_ops))


def test_table_has_the_arguments_of_all_computed_ops():
    texts = operations._read_lines()
    assert (
        runpy.run_path(str(SCRIPT))["prune_ops"](texts) == operations.FILE.read_text().splitlines()
    )
    assert [name for name in operations.list_ops() if "(" not in texts[name]] == []
