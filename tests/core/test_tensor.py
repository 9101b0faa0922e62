import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close


def test_python_numbers_get_tensorflows_default_dtypes():
    assert tf.constant(1).dtype == tf.int32
    assert tf.constant(1.0).dtype == tf.float32
    assert tf.constant(1j).dtype == tf.complex128
    assert tf.constant(True).dtype == tf.bool
    assert tf.constant("a").dtype == tf.string
    assert tf.constant(2**40).dtype == tf.int64
    assert tf.constant([]).dtype == tf.float32


def test_numpy_arrays_keep_their_dtype():
    assert tf.constant(np.ones(2)).dtype == tf.float64
    assert tf.constant(np.int8(1)).dtype == tf.int8


def test_constants_do_not_alias_the_callers_array():
    array = np.zeros(100, np.float32)
    tensor = tf.constant(array)
    array[0] = 1
    assert tensor.numpy()[0] == 0


def test_array_is_the_underlying_array():
    constant, large = tf.constant([1, 2]), tf.zeros([80_000])
    assert type(constant.array) is np.ndarray and constant.array.tolist() == [1, 2]
    assert isinstance(large.array, jax.Array) and large.array is large.array
    assert tf.constant("a").array.dtype == object

    @tf.function
    def double(x):
        assert isinstance(x.array, jax.core.Tracer)
        return 2 * x

    assert double(large).array.shape == (80_000,)


def test_array_cannot_be_assigned():
    with pytest.raises(AttributeError, match="array"):
        tf.constant(1).array = np.zeros(2)


def test_mixing_dtypes_names_both():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"int32.*float32"):
        tf.constant(1) + tf.constant(1.0)
    with pytest.raises(TypeError):
        tf.constant(1) + 1.5


def test_python_numbers_get_the_dtype_of_the_tensor():
    assert (tf.constant([1.0], tf.float16) + 1).dtype == tf.float16
    assert (2 - tf.constant([1], tf.int8)).dtype == tf.int8


def test_shape_mismatch_is_tensorflows_error():
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"Incompatible shapes: \[2\] vs. \[3\]"
    ):
        tf.zeros([2]) + tf.zeros([3])


@pytest.mark.parametrize(
    "key",
    [0, -1, slice(1), slice(None, None, -1), (0, 1), (Ellipsis, 0), (None, 1), (slice(0, 2), None)],
)
def test_indexing_is_numpys(key):
    array = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(tf.constant(array)[key].numpy(), array[key])


def test_index_out_of_range():
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="slice index 5 of dimension 0 out of bounds"
    ):
        tf.zeros([3])[5]


def test_tensor_index():
    assert int(tf.constant([10, 20, 30])[tf.constant(2)]) == 30


def test_tensors_are_immutable_and_unhashable():
    with pytest.raises(TypeError, match="immutable"):
        tf.zeros([2])[0] = 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(tf.zeros([2]))
    x = tf.zeros([2])
    assert x.ref() == x.ref() and x.ref().deref() is x


def test_repr_is_tensorflows():
    assert (
        repr(tf.constant([1, 2]))
        == "<tf.Tensor: shape=(2,), dtype=int32, numpy=array([1, 2], dtype=int32)>"
    )
    assert str(tf.constant(1.5)) == "tf.Tensor(1.5, shape=(), dtype=float32)"


def test_works_with_jax_and_numpy():
    x = tf.constant([1.0, 4.0])
    np.testing.assert_allclose(np.sqrt(x), [1, 2])
    np.testing.assert_allclose(jax.grad(lambda t: tf.reduce_sum(t * t)._value)(x)._value, [2, 8])
    assert isinstance(np.ones(2, np.float32) + x, tf.Tensor)
    np.testing.assert_allclose(jnp.asarray(x), [1, 4])


def test_pickle_and_numpy_copy():
    x = tf.constant([1.0, 2.0])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(x)).numpy(), x.numpy())
    x.numpy()[0] = 9
    assert float(x[0]) == 1


def test_conversion_of_lists_holding_tensors():
    x = tf.constant(1.0)
    np.testing.assert_array_equal(
        tf.convert_to_tensor([[x, 2.0], [3.0, x]]).numpy(), [[1, 2], [3, 1]]
    )


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(1.5, tf.int32), ("a", tf.float32), (1j, tf.float32), (1.5, tf.bool)],
)
def test_values_that_do_not_fit_the_dtype(value, dtype):
    with pytest.raises((TypeError, ValueError)):
        tf.constant(value, dtype=dtype)


@pytest.mark.parametrize("convert", [tf.constant, tf.convert_to_tensor])
def test_integers_wrap_around(convert):
    assert convert(300, tf.uint8).numpy() == 44
    assert convert([1, -1, 2**40 + 7], tf.uint16).numpy().tolist() == [1, 65535, 7]
    assert convert(2**31, tf.int32).numpy() == -(2**31)
    assert (convert([1], tf.int8) + 300).numpy().tolist() == [45]
    assert tf.function(lambda x: (x + 300, convert(-1, tf.uint8)))(convert(1, tf.uint8)) == (
        45,
        255,
    )


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (2**63, None),
        ([1, 2**63], None),
        (2**64, None),
        (2**63, tf.int64),
        (-(2**63) - 1, tf.int8),
        (-1, tf.uint64),
        ([-1, 2**63], tf.uint64),
        (2**64, tf.uint64),
        (2**2000, tf.float64),
    ],
)
def test_integers_beyond_64_bits_are_refused(value, dtype):
    with pytest.raises(ValueError, match="out-of-range integer"):
        tf.constant(value, dtype)


def test_large_integers_as_floats():
    assert tf.constant([2**70, 1], tf.float32).numpy().tolist() == [2.0**70, 1]
    assert tf.constant(2**64 - 1, tf.uint64).numpy() == 2**64 - 1
    assert tf.constant([1.5, 2**63]).numpy().tolist() == [1.5, 2.0**63]


def test_large_integers_among_small_ones():
    assert tf.constant([[2**64 - 1, 1]], tf.uint64).numpy().tolist() == [[2**64 - 1, 1]]


def test_ragged_lists_and_none_are_refused():
    with pytest.raises(ValueError, match="non-rectangular"):
        tf.constant([[1, 2], [3]])
    with pytest.raises(ValueError, match="None"):
        tf.constant(None)


def test_dtype_objects():
    assert tf.float32.name == "float32" and tf.float32.as_numpy_dtype is np.float32
    assert tf.int8.max == 127 and tf.int8.min == -128
    assert tf.bfloat16.is_floating and not tf.int32.is_floating
    assert tf.float32 == "float32" and tf.float32 != tf.float64
    assert tf.as_dtype("half") is tf.float16 and tf.as_dtype("float") is tf.float32
    assert tf.experimental.numpy.ones([1], "float").dtype == tf.float64
    with pytest.raises(TypeError, match="Cannot convert"):
        tf.as_dtype("float31")


def test_tensor_shape():
    shape = tf.TensorShape([None, 3])
    assert shape.rank == 2 and shape.as_list() == [None, 3] and not shape.is_fully_defined()
    assert shape.merge_with([5, None]) == (5, 3)
    assert tf.TensorShape(None).rank is None
    with pytest.raises(ValueError, match="incompatible"):
        shape.assert_is_compatible_with([2, 4])


def test_indexing_with_a_mask_picks_elements_and_has_a_gradient():
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    assert_close(x[x > 1.5], [2, 3, 4])
    assert_close(x[tf.constant([False, True])], [[3, 4]])
    assert_close(x[np.array([True, False])], [[1, 2]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(x[x > 2.5] ** 2)
    assert_close(tape.gradient(y, x), [[0, 0], [6, 8]])
    v = tf.Variable([1.0, 2.0])
    assert_close(v[v < 1.5], [1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="incompatible"):
        x[tf.constant([True, False, True])]
    with pytest.raises(TypeError, match="mask"):
        tf.function(lambda x: x[x > 1.0], jit_compile=True)(x)


def test_indices_as_arrays_and_lists():
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    assert_close(x[np.array(1)], [3, 4])
    assert_close(x[[0, 1]], 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="ellipses"):
        x[..., ...]


def test_explicit_dtype_casts_arrays_but_not_numbers():
    assert tf.constant(np.array([1.5, -1.5]), tf.int32).numpy().tolist() == [1, -1]
    assert tf.constant(np.array([True]), tf.float32).numpy() == 1
    assert tf.constant(np.array([300]), tf.uint8).numpy() == 44
    assert (tf.constant([1, 2]) + np.array([1.5, 2.5])).numpy().tolist() == [2, 4]
    assert (tf.constant([2.0]) * True).numpy() == 2
    for value, dtype in ((1.5, tf.int32), (1, tf.bool), ("a", tf.int32)):
        with pytest.raises(TypeError):
            tf.constant(value, dtype)


def test_printing_breaks_the_line_before_rows():
    assert str(tf.constant([[1], [2]])) == "tf.Tensor(\n[[1]\n [2]], shape=(2, 1), dtype=int32)"
    assert str(tf.constant([1])) == "tf.Tensor([1], shape=(1,), dtype=int32)"


def test_moving_between_devices():
    x = tf.constant([1.0])
    assert x.cpu().device.endswith("CPU:0") and x.cpu().numpy() == 1
    assert x.experimental_ref() == x.ref()


def test_shapes_with_bounds_on_their_rank():
    shape = tf.TensorShape([2, None])
    assert shape.with_rank_at_least(2) == shape.with_rank_at_most(3) == shape
    assert tf.TensorShape(None).with_rank_at_least(5).rank is None
    with pytest.raises(ValueError, match="rank at least 3"):
        shape.with_rank_at_least(3)
    with pytest.raises(ValueError, match="rank at most 1"):
        shape.with_rank_at_most(1)


def test_spec_representations():
    spec = tf.TensorSpec([2])
    assert spec.value_type is tf.Tensor and not spec.is_compatible_with([1.0, 2.0])
    with pytest.raises(ValueError, match="compatible with both"):
        spec.most_specific_compatible_type(tf.TensorSpec([2], tf.int32))
    with pytest.raises(TypeError):
        tf.as_dtype(None)


def test_backing_device_is_the_device():
    assert tf.ones([1]).backing_device == tf.ones([1]).device


class Table:
    """As a data frame: an array without a dtype."""

    def __array__(self, dtype=None, copy=None):
        return np.array([[1, 2], [3, 4]], np.int64)


def test_tables_keep_their_dtype():
    assert tf.convert_to_tensor(Table()).dtype is tf.int64
    assert tf.constant(Table(), tf.float32).dtype is tf.float32
    assert tf.data.Dataset.from_tensor_slices(Table()).element_spec == tf.TensorSpec([2], tf.int64)


@pytest.mark.parametrize(
    "dtype", [None, "int32", "int64", "float32", "float64", "int8", "bfloat16"]
)
@pytest.mark.parametrize("value", [0, -7, 2**24 + 1, 2**31, 1.5, 1e-46, 1e38, float("nan"), True])
def test_numbers_are_converted_like_lists_of_numbers(value, dtype):
    def convert(x):
        try:
            return tf.convert_to_tensor(x, dtype)
        except (TypeError, ValueError) as error:
            return type(error)

    single, listed = convert(value), convert([value])
    if isinstance(listed, type):
        assert single is listed
    else:
        assert single.dtype == listed.dtype
        np.testing.assert_array_equal(single.numpy().astype(float), listed.numpy()[0].astype(float))


def test_lists_of_tensors_take_the_dtype_of_a_tensor_among_the_operands():
    size, zeros = tf.constant(7, tf.int64), tf.zeros([2], tf.int32)

    def compute():
        return tf.concat([[size], zeros], 0), tf.stack([[size, 1], zeros]), [size, size] + zeros

    for run in (compute, tf.function(compute)):
        joined, stacked, total = run()
        assert {x.dtype for x in (joined, stacked, total)} == {tf.int32}
        assert joined.numpy().tolist() == [7, 0, 0] and total.numpy().tolist() == [7, 7]


def test_shapes_with_unknown_sizes_become_tensors_in_a_trace_only():
    with pytest.raises(ValueError, match="Cannot convert a partially known TensorShape"):
        tf.convert_to_tensor(tf.TensorShape([None, 5]))

    @tf.function(input_signature=[tf.TensorSpec([None, 5])])
    def join(x):
        return tf.concat([[3], x.shape], 0)

    assert join(tf.ones([4, 5])).numpy().tolist() == [3, 4, 5]


def test_values_like_strings_have_the_requested_dtype():
    words = tf.constant(["a", "b"])
    assert tf.zeros_like(words, tf.float32).numpy().tolist() == [0, 0]
    assert tf.ones_like(words, tf.int32).numpy().tolist() == [1, 1]
    assert tf.zeros_like(words).dtype is tf.string
