"""Test datasets of sparse tensors."""

import numpy as np
import pytest

import meshflow as tf

D = tf.data.Dataset
DENSE = np.array([[1.0, 0, 0], [0, 0, 2], [0, 0, 0]], np.float32)


def dense(dataset):
    """The elements with dense arrays in place of sparse tensors."""
    return [
        tf.nest.map_structure(
            lambda v: np.asarray(tf.sparse.to_dense(v) if isinstance(v, tf.SparseTensor) else v), e
        )
        for e in dataset
    ]


@pytest.fixture
def rows():
    return D.from_tensor_slices(tf.sparse.from_dense(DENSE))


def test_rows_and_batches(rows):
    assert rows.element_spec == tf.SparseTensorSpec([3], tf.float32) and len(rows) == 3
    np.testing.assert_array_equal(dense(rows), DENSE)
    batches = rows.batch(2)
    assert batches.element_spec == tf.SparseTensorSpec([None, 3], tf.float32)
    first, second = dense(batches)
    np.testing.assert_array_equal(first, DENSE[:2])
    np.testing.assert_array_equal(second, DENSE[2:])
    np.testing.assert_array_equal(dense(batches.unbatch()), DENSE)


def test_sparse_components_beside_dense_components():
    element = {"x": tf.sparse.from_dense(DENSE), "y": [1, 2, 3]}
    found = dense(D.from_tensor_slices(element).shuffle(3, seed=1).repeat(2).batch(6))[0]
    np.testing.assert_array_equal(found["x"], DENSE[found["y"] - 1])
    assert D.from_tensors(element).element_spec["x"] == tf.SparseTensorSpec([3, 3], tf.float32)
    with pytest.raises(ValueError, match="matching leading dimension"):
        D.from_tensor_slices({**element, "y": [1, 2]})


def test_functions_accept_and_return_sparse_elements(rows):
    def one(i):
        return tf.SparseTensor([[0, 0]], [tf.cast(i, tf.float32)], [1, i + 1])

    made = D.range(1, 3).map(one)
    assert [v.shape for v in dense(made)] == [(1, 2), (1, 3)]
    # A batch is as large as its largest part.
    np.testing.assert_array_equal(dense(made.batch(2))[0], [[[1, 0, 0]], [[2, 0, 0]]])
    np.testing.assert_array_equal(dense(rows.map(tf.sparse.to_dense)), DENSE)
    assert len(list(rows.filter(lambda v: tf.sparse.reduce_sum(v) > 0))) == 2
    assert float(rows.reduce(0.0, lambda s, v: s + tf.sparse.reduce_sum(v))) == 3.0


def test_features_of_open_length_are_batched():
    def record(numbers):
        values = tf.train.Feature(int64_list=tf.train.Int64List(value=numbers))
        features = tf.train.Features(feature={"x": values})
        return tf.train.Example(features=features).SerializeToString()

    records = D.from_tensor_slices([record([1]), record([2, 3])])
    parsed = records.map(
        lambda r: tf.io.parse_single_example(r, {"x": tf.io.VarLenFeature(tf.int64)})
    )
    np.testing.assert_array_equal(dense(parsed.batch(2))[0]["x"], [[1, 0], [2, 3]])


def test_caches_and_generators_of_sparse_elements(rows, tmp_path):
    kept = rows.cache(str(tmp_path / "cache"))
    np.testing.assert_array_equal(dense(kept), DENSE)
    np.testing.assert_array_equal(dense(kept), DENSE)
    spec = tf.SparseTensorSpec([3], tf.float32)
    np.testing.assert_array_equal(
        dense(D.from_generator(lambda: rows, output_signature=spec)), DENSE
    )
    wrong = D.from_generator(lambda: rows, output_signature=tf.SparseTensorSpec([4], tf.float32))
    with pytest.raises(ValueError, match="was expected"):
        next(iter(wrong))


def test_specs():
    spec = tf.SparseTensorSpec([None, 3], tf.int32)
    assert spec == tf.SparseTensorSpec([None, 3], tf.int32) != tf.SparseTensorSpec([3], tf.int32)
    assert spec.is_compatible_with(tf.sparse.from_dense([[1, 0, 2]]))
    assert not spec.is_compatible_with(tf.sparse.from_dense([[1.0, 0, 2]]))
    assert spec.value_type is tf.SparseTensor
    assert tf.type_spec_from_value(tf.sparse.from_dense([1])) == tf.SparseTensorSpec([1], tf.int32)


def test_padding_is_refused(rows):
    with pytest.raises(TypeError, match="only supported for datasets that produce tensor"):
        next(iter(rows.padded_batch(2)))


def test_arrays_of_different_sizes_become_rows():
    arrays = D.range(4).map(lambda x: tf.fill([x], x))
    batches = arrays.sparse_batch(2, [4])
    assert batches.element_spec == tf.SparseTensorSpec([None, 4], tf.int64) and len(batches) == 2
    np.testing.assert_array_equal(dense(batches)[1], [[2, 2, 0, 0], [3, 3, 3, 0]])
    made = arrays.apply(tf.data.experimental.dense_to_sparse_batch(4, [None]))
    # Zeros of the arrays are held as well.
    assert next(iter(made)).values.shape == [6] and dense(made)[0].shape == (4, 3)
    with pytest.raises(tf.errors.DataLossError, match="larger than the row shape"):
        list(arrays.sparse_batch(4, [2]))
    with pytest.raises(TypeError, match="one tensor each"):
        D.from_tensors((1, 2)).sparse_batch(2, [])


@pytest.mark.parametrize(
    ("places", "wrong"),
    [([[0, 2], [0, 1]], "order"), ([[0, 2]] * 2, "repeated"), ([[0, 7]], "bounds")],
)
def test_places_are_checked_before_a_tensor_becomes_dense(places, wrong):
    sparse = tf.SparseTensor(places, [1.0] * len(places), [3, 4])
    with pytest.raises(tf.errors.InvalidArgumentError, match=wrong):
        tf.sparse.to_dense(sparse)
    if wrong == "order":
        assert tf.sparse.to_dense(sparse, validate_indices=False).numpy()[0].tolist() == [
            0,
            1,
            1,
            0,
        ]
