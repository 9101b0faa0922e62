"""Helpers of TensorFlow's unit tests, by their private names."""

import subprocess
import sys
import textwrap
import unittest

import pytest

import meshflow as tf
from meshflow.shims import framework_tests as helpers
from meshflow.shims import gradient_checker, private_helpers


def run(code):
    command = [sys.executable, "-m", "meshflow", "run", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_private_names_of_version_1_and_of_raw_ops():
    assert run(
        """
        import tensorflow as tf
        from tensorflow.python.framework import combinations, test_util
        from tensorflow.python.ops import array_ops, check_ops, gen_math_ops, math_ops, random_ops
        from tensorflow.python.ops import gradient_checker_v2, stateless_random_ops
        from tensorflow.python.ops.ragged import ragged_factory_ops
        from tensorflow.python.platform import googletest, test

        check_ops.assert_equal(1, 1, ["data"], 3, "message", "name")
        print(array_ops.squeeze([[5]], squeeze_dims=[0]).shape)
        print(gen_math_ops.add_v2(1, 2, "name").numpy(), math_ops.segment_sum is tf.math.segment_sum)
        print(stateless_random_ops.stateless_random_uniform is tf.random.stateless_uniform)
        print(ragged_factory_ops.constant_value([[1], []]).to_list() == [[1], []])
        print(test.TestCase is test_util.TensorFlowTestCase is googletest.TestCase)
        results = gradient_checker_v2.compute_gradient(lambda x: x * x, [2.0])
        print(gradient_checker_v2.max_error(*results) < 1e-2, len(combinations.combine(a=[1, 2])))
        """
    ) == ["(1,)", "3", "True", "True", "True", "True", "True", "2"]


def test_tests_that_are_skipped_or_run_twice():
    class Case(unittest.TestCase):
        calls = []

        @helpers.run_gpu_only
        def test_gpu(self):
            self.calls.append("gpu")

        @helpers.skip_if(lambda: True)
        def test_condition(self):
            self.calls.append("condition")

        @helpers.also_run_as_tf_function
        def test_function(self):
            self.calls.append(tf.inside_function())

        def test_error(self):
            with helpers.skip_if_error(self, ValueError, "part"):
                raise ValueError("another part")

        @helpers.assert_no_new_tensors
        def test_leak(self):
            Case.leak = tf.constant(1) if self.leaks else None

        leaks = False

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    assert result.wasSuccessful() and len(result.skipped) == 3 - has_gpu
    assert [c for c in Case.calls if c != "gpu"] == [False, True]
    Case.leaks = True
    with pytest.raises(AssertionError, match="1 Tensors not deallocated"):
        Case("test_leak").test_leak()


def test_orders_of_dimensions():
    shape = [2, 3, 4, 8]
    assert helpers.NHWCToNCHW(shape) == [2, 8, 3, 4]
    assert helpers.NCHWToNHWC(helpers.NHWCToNCHW(tf.ones(shape))).shape == shape
    vectors = helpers.NHWCToNCHW_VECT_C(shape)
    assert vectors == [2, 2, 3, 4, 4] and helpers.NCHW_VECT_CToNHWC(vectors) == shape
    with pytest.raises(ValueError, match="evenly divisible by 4"):
        helpers.NHWCToNCHW_VECT_C([1, 1, 1, 3])


@pytest.mark.parametrize(
    ("shallow", "structure", "kind", "text"),
    [
        ([1], 2, TypeError, "must also be a sequence"),
        ([1], (1,), TypeError, "sequence type"),
        ([1], [1, 2], ValueError, "sequence length"),
        ({"a": 1}, {"b": 1}, ValueError, "not a subset"),
    ],
)
def test_shallow_structures(shallow, structure, kind, text):
    with pytest.raises(kind, match=text):
        private_helpers.assert_shallow_structure(shallow, structure)
    private_helpers.assert_shallow_structure([1], [[2, 3]])
    assert private_helpers.flatten_dict_items({(1, 2): ("a", "b")}) == {1: "a", 2: "b"}


def test_gradients_of_functions_are_compared_in_graphs():
    with tf.Graph().as_default(), tf.compat.v1.Session():
        factor = tf.constant([2.0, 3.0])
        results = gradient_checker.compute_function_gradient(lambda x: x * factor, [[1.0, 4.0]])
        assert [r[0].round(2).tolist() for r in results] == [[[2, 0], [0, 3]]] * 2
    ((exact,), _) = gradient_checker.compute_function_gradient(
        lambda x: x * x, [tf.constant([3.0])]
    )
    assert exact.tolist() == [[6.0]]
