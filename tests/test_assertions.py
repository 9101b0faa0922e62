"""Test assertions of `tf.test.TestCase` about Python values."""

import sys
from collections import OrderedDict

import numpy as np
import pytest

import meshflow as tf

# (assertion, passing arguments, failing arguments)
CASES = [
    ("assertLen", ([1, 2], 2), ([1], 2)),
    ("assertEmpty", ([],), ([1],)),
    ("assertNotEmpty", ([1],), ([],)),
    ("assertStartsWith", ("abc", "ab"), ("abc", "b")),
    ("assertEndsWith", ("abc", "bc"), ("abc", "b")),
    ("assertBetween", (1, 0, 1), (2, 0, 1)),
    ("assertItemsEqual", ([1, 2], [2, 1]), ([1], [1, 1])),
    ("assertSameElements", ([1, 2], [2, 1, 1]), ([1], [2, 1])),
    ("assertContainsSubset", ([1], [1, 2]), ([3], [1, 2])),
    ("assertNoCommonElements", ([1], [2]), ([1], [1, 2])),
    ("assertSequenceStartsWith", ([1], [1, 2]), ([], [1, 2])),
    ("assertSequenceAlmostEqual", ([1.0], [1.0 + 1e-9]), ([1.0], [1.1])),
    ("assertContainsInOrder", (["a", "c"], "abc"), (["c", "a"], "abc")),
    ("assertTotallyOrdered", ([1, 1], [2]), ([2], [1])),
    ("assertSameStructure", ([1, {"a": [2]}], [1, {"a": [2]}]), ([1, [2]], [1, 2])),
    ("assertUrlEqual", ("http://a/?x=1&y=2", "http://a/?y=2&x=1"), ("http://a/b", "http://a/c")),
    ("assertNotStartsWith", ("abc", "b"), ("abc", "a")),
    ("assertNotEndsWith", ("abc", "b"), ("abc", "c")),
    ("assertRegexMatch", ("abc", ["x", "b."]), ("abc", ["^b", "x"])),
    ("assertContainsSubsequence", ([1, 2, 3], [1, 3]), ([1, 2, 3], [3, 1])),
    ("assertContainsExactSubsequence", ([1, 2, 3], (2, 3)), ([1, 2, 3], [1, 3])),
    ("assertMappingEqual", ({1: 2}, OrderedDict({1: 2})), ({1: 2}, {1: 3})),
    ("assertDeviceEqual", ("/CPU:0", "/device:CPU:0"), ("/CPU:0", "/CPU:1")),
    ("assertJsonEqual", ('{"a": 1}', '{ "a":1 }'), ("1", "2")),
]


@pytest.mark.parametrize("name, good, bad", CASES)
def test_assertion(name, good, bad):
    case = tf.test.TestCase()
    getattr(case, name)(*good)
    with pytest.raises(AssertionError):
        getattr(case, name)(*bad)


def test_assertions_about_errors():
    case = tf.test.TestCase()
    with case.assertRaisesIncompatibleShapesError():
        tf.constant([1, 2]) + tf.constant([1, 2, 3])
    with case.assertRaisesWithLiteralMatch(ValueError, "a"):
        raise ValueError("a")
    with pytest.raises(AssertionError):
        case.assertRaisesWithLiteralMatch(ValueError, "a", int, "x")


def test_files_and_streams(capfd):
    case = tf.test.TestCase()
    file = case.create_tempfile("a/b.txt", content="hello")
    assert file.read_text() == "hello"
    file.write_text("bye")
    with open(file, encoding="utf-8") as again:
        assert again.read() == "bye"
    with open(case.create_tempdir().full_path + "/x", "w", encoding="utf-8"):
        pass
    with capfd.disabled(), case.captureWritesToStream(sys.__stderr__) as written:
        print("caught", file=sys.__stderr__)
        assert written.contents() == "caught\n"
        print("more", file=sys.__stderr__)
    assert written.contents() == "caught\nmore\n"
    case.doCleanups()


def test_evaluating_sparse_values_and_functions():
    case = tf.test.TestCase()
    parts = case.evaluate({"a": tf.SparseTensor([[0, 1]], [3.0], [2, 2])})["a"]
    np.testing.assert_array_equal(parts.indices, [[0, 1]])
    np.testing.assert_array_equal(parts.dense_shape, [2, 2])
    slices = case.evaluate(tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([2])))
    assert slices.indices.tolist() == [2] and slices.dense_shape is None
    assert case.evaluate(lambda: tf.constant(3)) == 3
