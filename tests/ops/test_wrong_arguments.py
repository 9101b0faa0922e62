"""Test axes, shapes and sizes that are invalid for ops: the error names op and argument."""

import numpy as np
import pytest

import meshflow as tf

IMAGE = np.zeros((1, 4, 4, 1), "float32")
INVALID = tf.errors.InvalidArgumentError


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: tf.reduce_sum([1.0], axis="a"),
            INVALID,
            "reduce_sum: `axis` must be an integer.*'a'",
        ),
        (lambda: tf.reduce_mean([1.0], axis=1.5), INVALID, "reduce_mean: `axis`.* 1.5"),
        (lambda: tf.argmax([1.0], axis="a"), TypeError, "argmax: `axis`"),
        (lambda: tf.squeeze([1], "a"), TypeError, "squeeze: `axis`"),
        (lambda: tf.sort([1.0], axis="a"), ValueError, "sort: `axis`"),
        (lambda: tf.nn.softmax([1.0], "a"), TypeError, "`axis`"),
        (lambda: tf.concat([[1], [2]], "a"), INVALID, "concat: `axis`"),
        (lambda: tf.concat([], 0), INVALID, "concat: `values` must hold at least one tensor"),
        (lambda: tf.eye(-1), INVALID, "`num_rows` must hold sizes of at least 0"),
        (lambda: tf.eye(2, -1), INVALID, "`num_columns` must hold sizes of at least 0"),
        (lambda: tf.eye(2.5), TypeError, "`num_rows` must be an integer.*2.5"),
        (lambda: tf.zeros([2.5]), TypeError, "`shape` must be an integer.*2.5"),
        (lambda: tf.ones(2.0), TypeError, "`shape`"),
        (lambda: tf.random.normal([2.0]), INVALID, "`shape`"),
        (lambda: tf.reshape([1, 2], [2.0, 1.0]), INVALID, "reshape: `shape`"),
        (lambda: tf.fill([2.0], 1), INVALID, "`dims`"),
        (lambda: tf.tile([1], [2.0]), INVALID, "tile: `multiples`"),
        (lambda: tf.broadcast_to([1], [2.0]), INVALID, "broadcast_to: `shape`"),
        (lambda: tf.constant(1.0, shape=[2.0]), TypeError, "integer"),
        (lambda: tf.image.resize(IMAGE, [-2, 2]), ValueError, "Dimension -2 must be >= 0"),
        (lambda: tf.image.resize(IMAGE, [0, 2]), INVALID, "output dimensions must be positive"),
        (lambda: tf.image.resize(IMAGE, [2.5, 2]), ValueError, "'size' must be a 1-D int32"),
        (lambda: tf.image.resize(IMAGE, ["a", 2]), ValueError, "'size' must be a 1-D int32"),
        (lambda: tf.image.resize(IMAGE[:, :0], [2, 2]), INVALID, "input image must be of non-zero"),
        (lambda: tf.image.resize_with_pad(IMAGE, -1, 2), ValueError, "target_height must be > 0"),
        (lambda: tf.image.resize_with_crop_or_pad(IMAGE, 2, 0), ValueError, "target_width must be"),
    ],
)
def test_errors_name_the_argument(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: tf.abs(None),
        lambda: tf.divide(None, 1.0),
        lambda: tf.reduce_sum(None),
        lambda: tf.reshape(None, [1]),
        lambda: tf.argmax(None),
        lambda: tf.nn.zero_fraction(None),
    ],
)
def test_none_is_no_tensor(call):
    with pytest.raises(ValueError, match=r"Attempt to convert a value \(None\)"):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tf.zeros([[1]]), "`shape` must be a list of sizes"),
        (lambda: tf.fill({"a": 1}, 1), "fill: "),
        (lambda: tf.abs("x"), "abs does not work on strings"),
        (lambda: tf.math.unsorted_segment_sum([1.0], [0], "x"), "unsorted_segment_sum: "),
        (lambda: tf.math.sobol_sample(-1, 2), "sobol_sample: "),
        (lambda: tf.strided_slice([1.0, 2.0], [0, 1], [1], [1]), "strided_slice: "),
        (lambda: tf.gather_nd([1.0], 0), "gather_nd: "),
        (lambda: tf.broadcast_dynamic_shape([[1]], [2]), "broadcast_dynamic_shape: "),
        (lambda: tf.math.bincount(np.array([1], np.uint8), minlength="x"), "bincount: "),
        (lambda: tf.logical_and("x", [True]), "logical_and"),
        (lambda: tf.where([True], np.array("x"), np.array([1.0])), "where"),
    ],
)
def test_incidental_errors_have_every_class_of_tensorflow(call, message):
    for error_class in (INVALID, ValueError, TypeError):
        with pytest.raises(error_class, match=message):
            call()


def test_errors_of_users_and_of_signatures_are_unchanged():
    def refuse(x):
        return [1, 2][int(x) + 5]

    with pytest.raises(IndexError, match="list index"):
        tf.map_fn(refuse, tf.constant([1]))
    with pytest.raises(np.linalg.LinAlgError):
        tf.map_fn(lambda x: np.linalg.inv(np.zeros((2, 2))), tf.constant([1]))
    with pytest.raises(TypeError, match="missing 1 required positional argument") as raised:
        tf.zeros()
    assert type(raised.value) is TypeError


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: tf.reshape([1.0, 2.0], np.array([2.0, 1.0])), [[1.0], [2.0]]),
        (lambda: tf.zeros(np.float64(2)), [0.0, 0.0]),
        (lambda: tf.tile([1.0], np.array([2.0])), [1.0, 1.0]),
        (lambda: tf.image.resize(IMAGE, np.array([1.0, 1.0]))[0, 0, 0], [0.0]),
        (lambda: tf.reduce_any(np.array([0, 1])), True),
        (lambda: tf.logical_and(np.array([1, 0]), [True, True]), [True, False]),
        (lambda: tf.where(np.array([1.0, 0.0]), 1, 2), [1, 2]),
        (lambda: tf.one_hot(np.array([1.0, 0.0]), 2), [[0.0, 1.0], [1.0, 0.0]]),
        (lambda: tf.RaggedTensor.from_row_lengths([4, 5], np.array([0.0, 2.0]))[1], [4, 5]),
        (lambda: tf.ragged.boolean_mask([[1, 2]], np.array([[1, 0]]))[0], [1]),
        (lambda: tf.random.stateless_categorical([[9.0, 0.0]], 1, np.array([1.0, 2.0])), [[0]]),
    ],
)
def test_numpy_arrays_are_cast_to_the_only_dtype(call, expected):
    assert call().numpy().tolist() == expected


def test_sizes_may_be_tensors():
    matrix = tf.math.confusion_matrix([1], [1], num_classes=tf.constant(2))
    assert matrix.numpy().tolist() == [[0, 0], [0, 1]]
    assert tf.strings.ngrams(["a", "b"], tf.constant(2)).numpy().tolist() == [b"a b"]
    first, second = tf.dynamic_partition([1, 2], [0, 1], tf.constant(2))
    assert (first.numpy().item(), second.numpy().item()) == (1, 2)


@pytest.mark.parametrize("error_class", [INVALID, ValueError, TypeError])
def test_sizes_of_datasets_are_integers(error_class):
    with pytest.raises(error_class, match="batch_size must be an integer"):
        tf.data.Dataset.range(3).batch(None)


def test_divisors_that_round_to_zero():
    with pytest.raises(INVALID, match="Integer division by zero"):
        tf.math.floordiv(np.array([3]), np.array([0.5]))
    with pytest.raises(INVALID, match="Integer division by zero"):
        tf.constant([3], tf.int8) % 256
