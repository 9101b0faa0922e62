"""Check in functions of TensorFlow's SavedModels: Assert, CheckNumerics and EnsureShape."""

import tarfile
from pathlib import Path

import pytest

import meshflow as tf

STORED = Path(__file__).parents[1] / "reference" / "saved_asserts.tar.xz"
MESSAGES = {
    "number": r"\[-1 2\]",
    "text": "is negative",
    "integer": "is negative",
    "branch": "did not hold",
    "loop": "did not hold",
    "numerics": "quotient : Tensor had Inf values",
    "shape": "expected a tensor of shape",
}


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asserts")
    with tarfile.open(STORED) as archive:
        archive.extractall(folder, filter="data")
    return tf.saved_model.load(folder / "saved_asserts")


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize(
    "wrap", [lambda function: function, tf.function], ids=["eager", "function"]
)
def test_failed_checks_raise(module, name, wrap):
    function = wrap(getattr(module, name))
    assert function(tf.constant([1.0, 2.0])).numpy().tolist() == [2.0, 4.0]
    with pytest.raises(tf.errors.InvalidArgumentError, match=MESSAGES[name]):
        function(tf.constant([-1.0, 2.0]))
    assert function(tf.constant([0.5, 3.0])).numpy().tolist() == [1.0, 6.0]


def test_check_of_a_static_size_reports_program_values(module):
    assert module.size(tf.constant([1.0, 2.0])).numpy().tolist() == [2.0, 4.0]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[1 2 3\]"):
        module.size(tf.constant([1.0, 2.0, 3.0]))
