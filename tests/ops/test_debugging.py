"""Test `tf.debugging`: passing and failing checks, with class and text, eager and compiled."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.errors import InvalidArgumentError

check = tf.debugging
A = np.array([1.0, 2.0], "float32")

# (assertion, arguments that pass, arguments that fail, text of the error)
RELATIONS = [
    (check.assert_equal, (A, [1.0, 2.0]), (A, [1.0, 3.0]), "x == y did not hold"),
    (check.assert_none_equal, (A, [2.0, 1.0]), (A, [1.0, 3.0]), "x != y did not hold"),
    (check.assert_greater, (A, 0.5), (A, 1.0), "x > y did not hold"),
    (check.assert_greater_equal, (A, 1.0), (A, 1.5), "x >= y did not hold"),
    (check.assert_less, (A, [2.0, 3.0]), (A, 2.0), "x < y did not hold"),
    (check.assert_less_equal, (A, 2.0), (A, 1.5), "x <= y did not hold"),
    (check.assert_positive, (A,), (A - 1,), "x > 0 did not hold"),
    (check.assert_negative, (-A,), (1 - A,), "x < 0 did not hold"),
    (check.assert_non_negative, (A - 1,), (A - 2,), "x >= 0 did not hold"),
    (check.assert_non_positive, (1 - A,), (2 - A,), "x <= 0 did not hold"),
    (check.assert_near, (A, A + 1e-6), (A, A + 1e-3), "not equal to tolerance"),
    (check.assert_near, (A, A + 0.05, 0.0, 0.1), (A, A + 0.2, 0.0, 0.1), "not equal to tolerance"),
    (
        check.assert_near,
        (A.astype("float64"), A + 1e-15),
        (A.astype("float64"), A.astype("float64") + 1e-9),
        "not equal to tolerance",
    ),
    (check.assert_all_finite, (A, "bad"), ([np.nan, 1.0], "bad"), "bad : Tensor had NaN values"),
    (check.check_numerics, (A, "bad"), ([np.inf, 1.0], "bad"), "bad : Tensor had Inf values"),
    (check.check_numerics, (A, "b"), ([np.inf, np.nan], "b"), "b : Tensor had Inf and NaN values"),
]
IDS = [f"{r[0].__name__}{n}" for n, r in enumerate(RELATIONS)]


@pytest.mark.parametrize(("assertion", "good", "bad", "text"), RELATIONS, ids=IDS)
def test_relations(assertion, good, bad, text):
    assertion(*good)
    with pytest.raises(InvalidArgumentError, match=text):
        assertion(*bad)
    # In a compiled function the values are known only when it runs.
    compiled = tf.function(lambda x: assertion(x, *good[1:]), autograph=False)
    compiled(tf.constant(good[0]))
    with pytest.raises(InvalidArgumentError, match=text):
        compiled = tf.function(lambda x: assertion(x, *bad[1:]), autograph=False)
        compiled(tf.constant(bad[0], tf.constant(good[0]).dtype))


def test_messages_and_values_are_shown():
    with pytest.raises(InvalidArgumentError, match=r"my message[\s\S]*1 2[\s\S]*1 5"):
        tf.assert_equal([1, 2], [1, 5], message="my message")
    with pytest.raises(InvalidArgumentError, match="worse"):
        tf.assert_less(A, A, "worse")
    with pytest.raises(InvalidArgumentError, match="better"):
        tf.assert_greater(A, A, message="better")
    with pytest.raises(InvalidArgumentError, match="Incompatible"):
        check.assert_equal(tf.ones([2]), tf.ones([3]))
    with pytest.raises(InvalidArgumentError, match="float32"):
        check.assert_equal(tf.ones([2]), tf.constant([1, 1]))
    check.assert_equal(tf.constant(["a"]), ["a"])


def test_differences_are_shown():
    with pytest.raises(InvalidArgumentError) as caught:
        check.assert_equal([[2, 2], [3, 3]], [[20, 2], [3, 30]], "m", summarize=2)
    lines = str(caught.value).splitlines()
    assert lines[:4] == [
        "m",
        "Condition x == y did not hold.",
        "Indices of first 2 different values:",
        "[[0 0]",
    ]
    assert lines[5:9] == ["Corresponding x values:", "[2 3]", "Corresponding y values:", "[20 30]"]
    assert lines[9:] == ["First 2 elements of x:", "[2 2]", "First 2 elements of y:", "[20  2]"]


def test_failed_compiled_check_is_reported_once(capfd, caplog):
    @tf.function
    def root(x):
        check.assert_positive(x)
        return tf.sqrt(x)

    with pytest.raises(InvalidArgumentError, match="x > 0 did not hold"):
        root(A - 1)
    assert not caplog.records and "Traceback" not in capfd.readouterr().err


def test_assert():
    tf.Assert(True, ["fine"])
    check.Assert(tf.reduce_all(A > 0), [A])
    with pytest.raises(InvalidArgumentError, match=r"sizes[\s\S]*1 2"):
        tf.Assert(False, ["sizes", tf.constant([1, 2])])

    @tf.function(autograph=False)
    def compiled(x):
        check.Assert(tf.reduce_all(x > 0), ["not positive", x])
        return x

    compiled(tf.constant(A))
    with pytest.raises(InvalidArgumentError, match="not positive"):
        compiled(tf.constant(-A))


def test_ranks_and_shapes():
    check.assert_rank(A, 1)
    check.assert_rank_at_least(np.ones([2, 3]), 1)
    check.assert_rank_in(A, [0, 1])
    check.assert_scalar(3.0)
    for assertion, arguments, text in (
        (check.assert_rank, (A, 2), "must have rank 2"),
        (check.assert_rank_at_least, (A, 2), "must have rank at least 2"),
        (check.assert_rank_in, (A, [0, 2]), "must have rank in"),
        (check.assert_scalar, (A,), "Expected scalar shape"),
    ):
        with pytest.raises(ValueError, match=text):
            assertion(*arguments)
        with pytest.raises(ValueError, match=f"help.*{text}"):
            assertion(*arguments, message="help")
    check.assert_shapes([(A, ("N",)), (tf.ones([2, 3]), ("N", "M")), (tf.ones([3]), ("M",))])
    check.assert_shapes([(tf.ones([2, 3, 4]), ("...", "D")), (tf.ones([4, 1]), ("D", "..."))])
    check.assert_shapes([(tf.ones([2, 3]), (None, 3)), (tf.ones([]), ())])
    for wrong in ([(A, (3,))], [(A, ("N", "M"))], [(A, ("N",)), (tf.ones([3]), ("N",))]):
        with pytest.raises(ValueError, match="shape"):
            check.assert_shapes(wrong)


def test_types():
    check.assert_integer([1, 2])
    check.assert_type(A, tf.float32)
    check.assert_proper_iterable([1])
    for assertion, arguments in (
        (check.assert_integer, (A,)),
        (check.assert_type, (A, tf.int32)),
        (check.assert_proper_iterable, ("ab",)),
        (check.assert_proper_iterable, (tf.constant(A),)),
        (check.assert_proper_iterable, (3,)),
    ):
        with pytest.raises(TypeError):
            assertion(*arguments)
    wide = tf.constant(1.0, tf.float64)
    assert check.assert_same_float_dtype([A, tf.constant(1.0)]) is tf.float32
    assert check.assert_same_float_dtype([wide], tf.float64) is tf.float64
    assert check.assert_same_float_dtype() is tf.float32
    for arguments in (([A, wide],), ([A], tf.float64), ([tf.constant(1)],), (None, tf.int32)):
        with pytest.raises(ValueError, match="float"):
            check.assert_same_float_dtype(*arguments)
    assert check.is_numeric_tensor(tf.constant(1)) and not check.is_numeric_tensor(A)
    assert bool(check.is_non_decreasing([1, 1])) and not bool(check.is_strictly_increasing([1, 1]))


def test_checking_every_op():
    assert np.isinf(tf.math.log(0.0).numpy())
    compiled = tf.function(lambda x: tf.math.log(x) + 1.0)
    compiled(tf.constant(1.0))
    check.enable_check_numerics()
    try:
        for bad in (-1.0, 0.0):
            with pytest.raises(InvalidArgumentError, match="Infinity or NaN"):
                tf.math.log(tf.constant(bad))
            with pytest.raises(InvalidArgumentError, match="Infinity or NaN"):
                tf.constant([1.0]) / tf.constant([0.0])
        assert tf.math.log(tf.constant(1.0)) == 0
        assert tf.cast(1, tf.bfloat16) == 1
        with pytest.raises(InvalidArgumentError, match="Infinity or NaN"):
            compiled(tf.constant(-1.0))  # a program from before
    finally:
        check.disable_check_numerics()
    assert np.isnan(tf.math.log(-1.0).numpy())


def test_switches():
    assert check.is_traceback_filtering_enabled()
    check.disable_traceback_filtering()
    try:
        assert not check.is_traceback_filtering_enabled()
    finally:
        check.enable_traceback_filtering()
    check.set_log_device_placement(True)
    assert check.get_log_device_placement() is False


def test_assert_shows_condition_and_data():
    with pytest.raises(InvalidArgumentError) as error:
        tf.debugging.Assert(tf.constant(False), ["size", 11])
    # As in TensorFlow 2.15.1, which shows b'size'.
    expected = "Expected 'tf.Tensor(False, shape=(), dtype=bool)' to be true. Summarized data: size"
    assert str(error.value).startswith(expected) and "11" in str(error.value)


def test_types_of_composite_tensors():
    sparse = tf.sparse.from_dense([[1, 0]])
    tf.debugging.assert_type(sparse, tf.int32)
    tf.debugging.assert_type(tf.ragged.constant([[1], []]), tf.int32)
    with pytest.raises(TypeError, match="must be of type float32; got int32"):
        tf.debugging.assert_type(sparse, tf.float32)


@pytest.mark.parametrize(
    ("check", "rank", "wrong"),
    [
        (tf.debugging.assert_rank, 2, 1),
        (tf.debugging.assert_rank_at_least, 1, 3),
        (lambda x, rank: tf.debugging.assert_rank_in(x, [rank, 4]), 2, 1),
    ],
)
def test_symbolic_ranks(check, rank, wrong):
    f = tf.function(lambda x, rank: (check(x, rank), x)[1])
    assert f(tf.zeros([2, 3]), tf.constant(rank)).shape == [2, 3]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Tensor must have rank"):
        f(tf.zeros([2, 3]), tf.constant(wrong))
    with pytest.raises(ValueError, match="Received rank 2"):
        check(tf.zeros([2, 3]), wrong)
