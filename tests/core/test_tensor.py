import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshflow as tf


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


def test_mixing_dtypes_names_both():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"int32.*float32"):
        tf.constant(1) + tf.constant(1.0)
    with pytest.raises(TypeError):
        tf.constant(1) + 1.5


def test_python_numbers_take_the_tensors_dtype():
    assert (tf.constant([1.0], tf.float16) + 1).dtype == tf.float16
    assert (2 - tf.constant([1], tf.int8)).dtype == tf.int8


def test_shape_mismatch_is_tensorflows_error():
    with pytest.raises(tf.errors.InvalidArgumentError, match="broadcast"):
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
    assert tf.as_dtype("half") is tf.float16
    with pytest.raises(TypeError, match="Cannot convert"):
        tf.as_dtype("float31")


def test_tensor_shape():
    shape = tf.TensorShape([None, 3])
    assert shape.rank == 2 and shape.as_list() == [None, 3] and not shape.is_fully_defined()
    assert shape.merge_with([5, None]) == (5, 3)
    assert tf.TensorShape(None).rank is None
    with pytest.raises(ValueError, match="incompatible"):
        shape.assert_is_compatible_with([2, 4])
