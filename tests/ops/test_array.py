import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshflow as tf
from helpers import assert_close, check_gradients


def assert_same(actual, expected):
    np.testing.assert_array_equal(actual.numpy(), expected)


def test_shapes():
    x = np.arange(24).reshape(2, 3, 4)
    assert_same(tf.reshape(x, [4, -1]), x.reshape(4, -1))
    assert_same(tf.transpose(x, [2, 0, 1]), x.transpose(2, 0, 1))
    assert_same(tf.transpose(x), x.T)
    assert_same(tf.expand_dims(x, -1), x[..., None])
    assert_same(tf.squeeze(x[:1]), x[0])
    assert_same(tf.shape(x), [2, 3, 4])
    assert int(tf.rank(x)) == 3 and int(tf.size(x)) == 24
    with pytest.raises(tf.errors.InvalidArgumentError, match="24 values"):
        tf.reshape(x, [5, 5])
    with pytest.raises(tf.errors.InvalidArgumentError, match="squeeze"):
        tf.squeeze(x, 0)


def test_joining_and_splitting():
    x = np.arange(12).reshape(3, 4)
    assert_same(tf.concat([x, x], 1), np.concatenate([x, x], 1))
    assert_same(tf.stack([x, x], axis=-1), np.stack([x, x], -1))
    parts = tf.split(x, [1, -1], axis=1)
    assert_same(parts[1], x[:, 1:])
    assert len(tf.split(x, 2, axis=1)) == 2 and len(tf.unstack(x)) == 3
    with pytest.raises(tf.errors.InvalidArgumentError, match="evenly divisible"):
        tf.split(x, 2, axis=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="int32"):
        tf.concat([tf.constant([1]), tf.constant([1.0])], 0)
    assert_same(tf.tile([[1, 2]], [2, 2]), np.tile([[1, 2]], [2, 2]))
    assert_same(tf.repeat([1, 2], [2, 3]), [1, 1, 2, 2, 2])


@settings(max_examples=20, deadline=None)
@given(st.integers(-5, 5), st.integers(-5, 9), st.sampled_from([-2, -1, 1, 2, 3]))
def test_range_is_numpys(start, limit, delta):
    if (limit - start) * delta < 0:
        with pytest.raises(tf.errors.InvalidArgumentError, match="Requires start"):
            tf.range(start, limit, delta)
    else:
        assert_same(tf.range(start, limit, delta), np.arange(start, limit, delta))


def test_making():
    assert_same(tf.zeros([2], tf.int8), np.zeros(2, np.int8))
    assert_same(tf.fill([2], 3), [3, 3])
    assert_same(tf.eye(2, 3), np.eye(2, 3))
    assert tf.range(3.0).dtype == tf.float32
    assert_close(tf.linspace(0.0, 1.0, 5), np.linspace(0, 1, 5))
    for got, expected in zip(
        tf.meshgrid([1, 2], [3, 4, 5]), np.meshgrid([1, 2], [3, 4, 5]), strict=True
    ):
        assert_same(got, expected)
    assert_same(
        tf.one_hot([0, 2, 5], 3, on_value=7, off_value=-1, axis=0),
        [[7, -1, -1], [-1, -1, -1], [-1, 7, -1]],
    )
    assert_same(tf.sequence_mask([1, 3]), [[True, False, False], [True, True, True]])
    assert tf.zeros_like([1.5], dtype=tf.int32).dtype == tf.int32


@pytest.mark.parametrize("mode", ["CONSTANT", "REFLECT", "SYMMETRIC"])
def test_pad(mode):
    x = np.arange(6.0).reshape(2, 3)
    kind = {"CONSTANT": "constant", "REFLECT": "reflect", "SYMMETRIC": "symmetric"}[mode]
    assert_close(tf.pad(x, [[1, 1], [2, 0]], mode), np.pad(x, [[1, 1], [2, 0]], mode=kind))


def test_gather():
    x = np.arange(12.0).reshape(3, 4)
    assert_same(tf.gather(x, [2, 0], axis=1), x[:, [2, 0]])
    assert_same(
        tf.gather(x, [[0, 1], [2, 3], [0, 0]], axis=1, batch_dims=1),
        np.take_along_axis(x, np.array([[0, 1], [2, 3], [0, 0]]), 1),
    )
    assert_same(tf.gather_nd(x, [[0, 1], [2, 3]]), [1, 11])
    assert_same(tf.gather_nd(x, tf.zeros([2, 0], tf.int32)), [x, x])
    # No coordinate counts from the end, where it is known only when the program runs.
    pick = tf.function(lambda i: tf.gather_nd(x, i[:, None]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not index into param shape"):
        np.asarray(pick(tf.constant([-1])))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"indices\[1\] = 7 is not in \[0, 3\)"
    ):
        tf.gather(x, [0, 7])
    check_gradients(lambda t: tf.gather_nd(t, [[0, 1], [0, 1]]) ** 2, x)


def test_scatter():
    assert_same(tf.scatter_nd([[1], [3], [1]], [1, 2, 10], [5]), [0, 11, 0, 2, 0])
    x = np.zeros((3, 2))
    assert_same(
        tf.tensor_scatter_nd_update(x, [[0], [2]], [[1.0, 1.0], [2.0, 2.0]]),
        [[1, 1], [0, 0], [2, 2]],
    )
    assert_same(tf.tensor_scatter_nd_max(np.ones(3), [[0]], [5.0]), [5, 1, 1])
    check_gradients(
        lambda a, b: tf.tensor_scatter_nd_add(a, [[0], [0]], b) ** 2,
        np.ones((2, 2)),
        np.ones((2, 2)),
    )


def test_where_and_masks():
    x = np.array([1, -2, 3])
    assert_same(tf.where(x > 0, x, 0), [1, 0, 3])
    assert_same(tf.where(x > 0), [[0], [2]])
    assert_same(tf.boolean_mask(x, x > 0), [1, 3])
    with pytest.raises(ValueError, match="both"):
        tf.where(x > 0, x)
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError, match="depends"):
        tf.function(lambda m: tf.boolean_mask(x, m), jit_compile=True)(
            tf.constant([True, False, True] * 1)
        )


def test_ordering():
    x = np.array([[3, 1, 2], [9, 7, 8]])
    assert_same(tf.sort(x, direction="DESCENDING"), -np.sort(-x))
    assert_same(tf.argsort(x), np.argsort(x))
    assert_same(tf.searchsorted([[1, 3, 5], [2, 4, 6]], [[3], [3]], side="right"), [[2], [1]])
    y, idx, count = tf.unique_with_counts([4, 1, 4])
    assert_same(y, [4, 1])
    assert_same(idx, [0, 1, 0])
    assert_same(count, [2, 1])


def test_blocks_of_space():
    x = np.arange(16.0).reshape(1, 4, 4, 1)
    assert_close(
        tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]]).numpy()[0, ..., 0], [[0, 2], [8, 10]]
    )
    assert_close(
        tf.batch_to_space(tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]]), [2, 2], [[0, 0], [0, 0]]),
        x,
    )


def test_reverse_sequence_and_slices():
    x = np.arange(8).reshape(2, 4)
    assert_same(tf.reverse_sequence(x, [2, 3], seq_axis=1), [[1, 0, 2, 3], [6, 5, 4, 7]])
    assert_same(tf.slice(x, [0, 1], [2, 2]), x[:, 1:3])
    assert_same(tf.function(lambda b: tf.slice(x, b, [1, 2]))(tf.constant([1, 1])), x[1:, 1:3])
    assert_same(tf.strided_slice(x, [0, 0], [2, 4], [1, 2]), x[:, ::2])
    assert_same(tf.roll(x, 1, 1), np.roll(x, 1, 1))


def test_image_ops():
    x = np.random.default_rng(0).uniform(size=(2, 6, 6, 3)).astype(np.float32)
    assert_close(tf.image.flip_left_right(x), x[:, :, ::-1])
    assert_close(tf.image.adjust_brightness(x, 0.1), x + 0.1, 1e-6)
    assert_close(tf.image.hsv_to_rgb(tf.image.rgb_to_hsv(x)), x, 1e-4)
    assert_close(tf.image.resize(x, [3, 3]).numpy(), x.reshape(2, 3, 2, 3, 2, 3).mean((2, 4)), 1e-5)
    assert tf.image.random_crop(x[0], [4, 4, 3]).shape == (4, 4, 3)
    assert tf.image.resize_with_crop_or_pad(x, 4, 8).shape == (2, 4, 8, 3)
    assert (
        tf.image.convert_image_dtype(np.array([[[255]]], np.uint8), tf.float32).numpy().item() == 1
    )
    first = tf.image.stateless_random_flip_left_right(x, [1, 2])
    assert_close(first, tf.image.stateless_random_flip_left_right(x, [1, 2]))
    with pytest.raises(ValueError, match="must be >= target"):
        tf.image.crop_to_bounding_box(x, 4, 0, 4, 4)


def test_debugging():
    tf.debugging.assert_equal([1, 2], [1, 2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="x == y"):
        tf.debugging.assert_equal([1, 2], [1, 3])
    with pytest.raises(tf.errors.InvalidArgumentError, match="NaN"):
        tf.debugging.check_numerics([np.nan], "bad")
    with pytest.raises(ValueError, match="rank"):
        tf.debugging.assert_rank([1], 2)
    tf.debugging.assert_shapes([(tf.zeros([2, 3]), ("N", 3)), (tf.zeros([2]), ("N",))])
    with pytest.raises(ValueError, match="does not match"):
        tf.debugging.assert_shapes([(tf.zeros([2, 3]), ("N", "N"))])


def test_strings():
    assert tf.strings.join(["a", "b"], separator="-").numpy() == b"a-b"
    assert tf.strings.upper(["ab"]).numpy()[0] == b"AB"
    assert tf.strings.length("abc").numpy() == 3


def test_a_shift_that_is_computed_in_a_function():
    x = np.arange(12).reshape(3, 4)

    @tf.function
    def rolled(shift):
        return tf.roll(x, shift=shift, axis=[0, 1]), tf.roll(x, shift[0], 1)

    both, one = rolled(tf.constant([1, -2]))
    np.testing.assert_array_equal(both, np.roll(x, (1, -2), (0, 1)))
    np.testing.assert_array_equal(one, np.roll(x, 1, 1))
    with pytest.raises(tf.errors.InvalidArgumentError, match="one shift for each"):
        tf.function(lambda s: tf.roll(x, s, 0))(tf.constant([1, 2]))


def test_static_values_as_in_tensorflow():
    found = [tf.get_static_value(v) for v in (None, 3, [1, 2], "a", tf.Variable(2.0))]
    assert found == [None, 3, [1, 2], "a", None]
    assert tf.get_static_value(tf.constant([1])).tolist() == [1]
    assert tf.get_static_value(tf.keras.Input([2])) is None


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([None, 3], [1, 1, 3], [1, None, 3]),
        ([None, 1], [4], [None, 4]),
        ([None], [5], [5]),
        ([None], [None], [None]),
        ([None], [0], [None]),
        (None, [2], None),
    ],
)
def test_static_shapes_of_unknown_sizes_are_broadcast(first, second, expected):
    for shapes in ((first, second), (second, first)):
        result = tf.broadcast_static_shape(*map(tf.TensorShape, shapes))
        assert (None if result.rank is None else result.as_list()) == expected


def test_incompatible_static_shapes_are_an_error():
    with pytest.raises(ValueError, match="Incompatible shapes"):
        tf.broadcast_static_shape(tf.TensorShape([None, 3]), tf.TensorShape([2]))


def test_static_numbers_are_scalars_outside_of_functions():
    assert type(tf.get_static_value(tf.constant(3))) is np.int32
    assert tf.get_static_value(tf.constant("a")) == b"a"
