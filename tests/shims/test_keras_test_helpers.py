"""Decorators and helpers of Keras's own tests."""

import unittest

import numpy as np
import pytest

import meshflow as tf
from meshflow.shims import keras_test_decorators as decorators
from meshflow.shims import keras_test_helpers as helpers

parameterized = decorators.parameterized


@decorators.run_with_all_model_types(exclude_models="sequential")
@decorators.run_all_keras_modes
class Modes(decorators.TestCase):
    __test__ = False  # pytest would collect the class.
    seen = []

    def setUp(self):
        super().setUp()
        self.size = 3

    @parameterized.named_parameters(("one", 1), ("two", 2))
    def test_fit(self, units):
        self.seen.append((helpers.get_model_type(), helpers.should_run_eagerly(), units))
        model = helpers.get_small_mlp(2, units, self.size)
        model.compile("sgd", "mse", run_eagerly=helpers.should_run_eagerly())
        model.train_on_batch(np.ones((4, self.size)), np.ones((4, units)))


class Stacked(decorators.TestCase):
    __test__ = False

    @decorators.run_all_keras_modes(always_skip_eager=True)
    @decorators.run_with_all_model_types(exclude_models=["subclass", "sequential"])
    @parameterized.named_parameters(("_a", 1), ("_b", 2))
    def test_x(self, value):
        assert value in (1, 2)

    @decorators.run_with_all_weight_formats
    def test_format(self):
        assert helpers.get_save_format() in ("h5", "tf") and helpers.get_save_kwargs() == {}

    @decorators.generate(
        decorators.keras_mode_combinations() + decorators.keras_mode_combinations(["graph"])
    )
    def test_graph(self):
        assert tf.executing_eagerly() or not helpers.should_run_eagerly()


def run(case):
    result = unittest.TestResult()
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    names = sorted(test.id().rpartition(".")[2] for test in suite)
    names.remove("test_session")
    suite.run(result)
    assert not result.errors and not result.failures, result
    return names


def test_decorators_run_all_modes():
    modes = [
        f"{mode}_{kind}" for kind in ("functional", "subclass") for mode in ("eager", "function")
    ]
    names = [f"test_fit_{n}_v2_{mode}" for n in ("one", "two") for mode in modes]
    assert run(Modes) == sorted(names)
    assert len(set(Modes.seen)) == 8
    names = run(Stacked)
    assert [n for n in names if n.startswith("test_format")] == ["test_format_h5", "test_format_tf"]
    assert len([n for n in names if "graph" in n]) == 3
    assert len([n for n in names if n.endswith("_functional_v2_function")]) == 2


@pytest.mark.parametrize("kind", ["functional", "subclass"])
def test_models_of_helpers(kind):
    a, b = (tf.keras.Input((3,)) for _ in range(2))
    dense, x = tf.keras.layers.Dense(2), tf.ones([4, 3])
    with helpers.model_type_scope(kind):
        for model, value in [
            (helpers.get_multi_io_model([a, dense], [b, dense]), [x, x]),
            (helpers.get_multi_io_model([dense], [dense], [a]), x),
        ]:
            np.testing.assert_array_equal(*model(value))
        merge = [tf.keras.layers.Concatenate()]
        model = helpers.get_multi_io_model([a, dense], [b], shared_output_branch=merge)
    assert model([x, x]).shape == (4, 5)
    (x, y), (test_x, _) = helpers.get_test_data(4, 2, (3,), 2, random_seed=1)
    assert (x.shape, y.shape, test_x.shape) == ((4, 3), (4,), (2, 3))
    optimizer = helpers.get_v2_optimizer("rmsprop", learning_rate=0.5)
    assert isinstance(optimizer, tf.keras.optimizers.legacy.RMSprop)
    assert helpers.Bias()(tf.ones([2, 1])).numpy().tolist() == [[1.0], [1.0]]
