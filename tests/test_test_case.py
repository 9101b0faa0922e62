"""The assertions of `tf.test.TestCase` that compare collections."""

from __future__ import annotations

import unittest

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


def test_compute_gradient_returns_two_tuples():
    exact, numeric = tf.test.compute_gradient(tf.square, [tf.constant([3.0, 2.0])])
    assert type(exact) is type(numeric) is tuple
    assert exact[0].tolist() == [[6, 0], [0, 4]]


def test_a_session_is_no_test():
    for name, skipped in (("test_session", 1), ("runTest", 0)):
        result = unittest.TestResult()
        a_case(name).run(result)
        assert result.wasSuccessful() and len(result.skipped) == skipped
