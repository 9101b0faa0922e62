"""Check in functions of SavedModels: TensorFlow's Assert, CheckNumerics and EnsureShape, and assertions of own ones."""

import tarfile
from pathlib import Path

import pytest

import meshflow as tf
from helpers import combine

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


@pytest.mark.parametrize(
    ("name", "wrap"), combine(MESSAGES, [lambda function: function, tf.function])
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


def check_positive(x):
    tf.debugging.assert_greater(x, 0.0, message="must be positive")
    return tf.debugging.check_numerics(tf.sqrt(x) / (x - 4.0), "the quotient")


def check_rows(x):
    tf.debugging.Assert(tf.reduce_max(x.row_lengths()) < 3, ["long rows", x.row_lengths()])
    return tf.reduce_sum(x, 1)


def check_texts(x):
    lengths = tf.strings.length(x)
    tf.debugging.assert_positive(lengths, message="no text")
    return lengths


OWN = {
    "positive": (check_positive, tf.TensorSpec([None]), [1.0, 9.0], [[1.0, -1.0], [4.0]]),
    "ragged": (
        check_rows,
        tf.RaggedTensorSpec([None, None], tf.int64),
        tf.ragged.constant([[1, 2], []], tf.int64),
        [tf.ragged.constant([[1, 2, 3]], tf.int64)],
    ),
    "texts": (check_texts, tf.TensorSpec([None], tf.string), ["a", "bc"], [["a", ""]]),
}


@pytest.mark.parametrize("name", OWN)
def test_own_assertions_are_saved(name, tmp_path):
    function, spec, valid, invalid = OWN[name]
    module = tf.Module()
    module.f = tf.function(function, input_signature=[spec])
    tf.saved_model.save(module, tmp_path / "first")
    tf.saved_model.save(tf.saved_model.load(tmp_path / "first"), tmp_path / "second")
    for folder in ("first", "second"):
        assert b"Assert" in (tmp_path / folder / "saved_model.pb").read_bytes()
        loaded = tf.saved_model.load(tmp_path / folder).f
        calls = [loaded] if name == "texts" else [loaded, tf.function(lambda x, f=loaded: f(x))]
        convert = lambda x: x if tf.is_tensor(x) else tf.constant(x)
        for call in calls:
            found, expected = call(convert(valid)), function(convert(valid))
            assert found.numpy().tolist() == expected.numpy().tolist()
            for value in invalid:
                with pytest.raises(tf.errors.InvalidArgumentError):
                    call(convert(value))


def test_assertions_keep_gradients_and_variables(tmp_path):
    module = tf.Module()
    module.count = tf.Variable(0)

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def double(x):
        tf.debugging.assert_positive(x)
        module.count.assign_add(1)
        return 2.0 * x

    module.f = double
    tf.saved_model.save(module, tmp_path)
    loaded, x = tf.saved_model.load(tmp_path), tf.constant([3.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = loaded.f(x)
    assert tape.gradient(y, x).numpy().tolist() == [2.0]
    assert int(loaded.count) == 1


def test_assertions_in_branches_are_omitted_with_a_warning(tmp_path, caplog):
    module = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([2])])
    def function(x):
        if tf.reduce_sum(x) > 0.0:
            tf.debugging.assert_positive(x)
        return x

    module.f = function
    tf.saved_model.save(module, tmp_path)
    assert "f is saved without its assertions in branches and loops" in caplog.text
    assert tf.saved_model.load(tmp_path).f(tf.constant([3.0, -1.0])).numpy().tolist() == [3.0, -1.0]


def test_rows_of_two_ragged_arguments_must_agree(tmp_path):
    class Sum(tf.Module):
        @tf.function(input_signature=[tf.RaggedTensorSpec([None, None])] * 2)
        def add(self, a, b):
            return a + b

    tf.saved_model.save(Sum(), str(tmp_path))
    add = tf.saved_model.load(str(tmp_path)).add
    rows = tf.ragged.constant([[1.0], [2.0, 3.0]])
    assert add(rows, rows).to_list() == [[2], [4, 6]]
    for other in ([[1.0]], [[1.0, 2.0], [3.0]]):
        message = "Unable to broadcast|sizes with the same name must be equal"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            add(rows, tf.ragged.constant(other))
