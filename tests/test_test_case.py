"""The assertions of `tf.test.TestCase` that compare collections."""

from __future__ import annotations

import unittest

import numpy as np
import pytest

import meshflow as tf


def a_case(method="runTest"):
    class Case(tf.test.TestCase):
        def runTest(self):
            with self.test_session():
                pass

    return Case(method)


def test_assertions_pass_and_fail():
    case = a_case()
    for assertion, holds, fails in [
        (case.assertBetween, (1, 0, 2), (3, 0, 2)),
        (case.assertContainsSubset, ([1], {1, 2}), ([3], {1, 2})),
        (case.assertSameElements, ([1, 2, 2], [2, 1]), ([1], [1, 2])),
        (case.assertSequenceAlmostEqual, ([1.0], [1.0 + 1e-9]), ([1.0], [1.1])),
    ]:
        assertion(*holds)
        with pytest.raises(AssertionError):
            assertion(*fails)
    case.assertSequenceAlmostEqual([1.0], [1.1], delta=0.2)


def test_rows_of_different_lengths():
    case = a_case()
    case.assertAllEqual([[2], [3, 4]], tf.ragged.constant([[2], [3, 4]]))
    case.assertAllEqual([[2], [3, 4]], [[2], [3, 4]])
    case.assertAllEqual(tf.ragged.constant([[1, 2], [3, 4]]), [[1, 2], [3, 4]])
    case.assertAllEqual(tf.ragged.constant([["a"], []]), [[b"a"], []])
    case.assertAllClose(tf.ragged.constant([[1.0], []]), [[1.0 + 1e-7], []])
    assert case.evaluate(tf.ragged.constant([[1], []])).to_list() == [[1], []]
    for other in ([[2, 3], [4]], tf.ragged.constant([[[2]], [[3, 4]]])):
        with pytest.raises(AssertionError):
            case.assertAllEqual(tf.ragged.constant([[2], [3, 4]]), other)
    with pytest.raises(AssertionError):
        case.assertAllEqual([[2], [3, 4]], [[2], [3, 5]])


def test_operands_of_other_shapes():
    with a_case().assertRaisesIncompatibleShapesError():
        tf.ones([2]) + tf.ones([3])


def test_structures_name_the_path_of_a_difference():
    case = a_case()
    with pytest.raises(AssertionError, match=r"(?s)a\[y\]\[1\] is different.*not close dif = "):
        case.assertAllClose({"y": [0.0, [1.0]]}, {"y": [0.0, [2.0]]})
    with pytest.raises(ValueError, match="Can't compare dict to non-dict"):
        case.assertAllClose(1, {"a": 1})
    with pytest.raises(AssertionError, match="Shape mismatch"):
        case.assertAllEqual([1, 2], [1])
    with pytest.raises(AssertionError, match="not equal lhs = "):
        case.assertAllEqual([0, 0], [0, 1])
    case.assertDictEqual({"a": np.ones(2)}, {"a": tf.ones(2)})


def test_threads_report_errors():
    def fail():
        raise KeyError("in a thread")

    case = a_case()
    thread = case.checkedThread(fail)
    thread.start()
    with pytest.raises(AssertionError, match="in a thread"):
        thread.join()
    case.checkedThread(fail)
    with pytest.raises(AssertionError, match="never joined"):
        case.tearDown()


def test_the_value_of_a_ragged_tensor():
    rows = tf.ragged.constant([[[1], [2, 3]], []])
    value = a_case().evaluate(rows)
    assert isinstance(value, tf.compat.v1.ragged.RaggedTensorValue)
    assert value.to_list() == rows.to_list() and value.ragged_rank == 2
    expected = tf.compat.v1.ragged.constant_value([[[1], [2, 3]], []], dtype="int32")
    assert [s.tolist() for s in expected.nested_row_splits] == [[0, 2, 2], [0, 1, 3]]
    a_case().assertAllEqual(rows, expected)


@pytest.mark.parametrize("f", [tf.square, tf.math.real, lambda x: tf.complex(tf.abs(x), 1.0)])
def test_gradients_of_complex_numbers(f):
    exact, numeric = tf.test.compute_gradient(f, [tf.constant([1 + 2j, 3 - 1j], tf.complex64)])
    assert exact[0].shape[1] == 4 and exact[0].dtype == np.float32
    assert np.allclose(exact[0], numeric[0], atol=1e-2)


def test_compute_gradient_returns_two_tuples():
    exact, numeric = tf.test.compute_gradient(tf.square, [tf.constant([3.0, 2.0])])
    assert type(exact) is type(numeric) is tuple
    assert exact[0].tolist() == [[6, 0], [0, 4]]


def test_a_session_is_no_test():
    for name, skipped in (("test_session", 1), ("runTest", 0)):
        result = unittest.TestResult()
        a_case(name).run(result)
        assert result.wasSuccessful() and len(result.skipped) == skipped
