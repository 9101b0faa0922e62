"""Datasets of ragged tensors, sparse tensors, extension types, optionals and tensor arrays."""

import itertools

import numpy as np
import pytest

import meshflow as tf

Dataset = tf.data.Dataset
Optional = tf.experimental.Optional


class Point(tf.experimental.BatchableExtensionType):
    """A number and a row."""

    number: tf.Tensor
    row: tf.RaggedTensor


ROWS = tf.ragged.constant([[1, 2], [], [3], [4, 5, 6]])
VALUES = {
    "ragged": ROWS,
    "sparse": tf.sparse.from_dense([[1, 0], [0, 2], [0, 0], [3, 4]]),
    "point": Point(tf.range(4), ROWS),
    "dictionary": {"number": tf.range(4), "row": ROWS},
}


def make_array(x):
    return tf.TensorArray(tf.int64, size=2, element_shape=[]).unstack([x, x + 1])


def show(value):
    """Return nested lists of the parts of a value."""
    if isinstance(value, Optional):
        return show(value.get_value()) if value.has_value() else None
    if isinstance(value, tf.TensorArray):
        return value.stack().numpy().tolist()
    parts = tf.nest.flatten(value, expand_composites=True)
    return [np.asarray(part).tolist() for part in parts]


def list_elements(dataset):
    return [show(element) for element in dataset]


def take_rows(value, *bounds):
    """Return the rows of a value between successive bounds, as a batch each."""
    dataset = Dataset.from_tensor_slices(value)
    batches = [
        next(iter(dataset.skip(start).take(end - start).batch(4)))
        for start, end in itertools.pairwise(bounds)
    ]
    return list(map(show, batches))


@pytest.mark.parametrize("name", VALUES)
def test_batches_change_their_size(name):
    value = VALUES[name]
    batches = Dataset.from_tensor_slices(value).batch(3)
    assert list_elements(batches.rebatch(2)) == take_rows(value, 0, 2, 4)
    assert list_elements(batches.rebatch([1, 3])) == take_rows(value, 0, 1, 4)
    assert list_elements(batches.rebatch(3, drop_remainder=True)) == take_rows(value, 0, 3)


@pytest.mark.parametrize("name", VALUES)
def test_caches_return_the_same_elements(name, tmp_path):
    dataset = Dataset.from_tensor_slices(VALUES[name])
    wanted = list_elements(dataset)
    for cached in (dataset.cache(), dataset.cache(str(tmp_path / "cache"))):
        assert [list_elements(cached) for _ in range(2)] == [wanted, wanted]


@pytest.mark.parametrize("make", [Optional.from_value, make_array])
def test_caches_hold_optionals_and_arrays(make, tmp_path):
    dataset = Dataset.range(3).map(make)
    wanted = [show(make(tf.constant(i, tf.int64))) for i in range(3)]
    for cached in (dataset.cache(), dataset.cache(str(tmp_path / "cache"))):
        assert [list_elements(cached) for _ in range(2)] == [wanted, wanted]


def test_iterators_of_arrays():
    rows = list(Dataset.from_tensor_slices(ROWS).as_numpy_iterator())
    assert [row.tolist() for row in rows] == ROWS.to_list()
    for make in (Optional.from_value, make_array):
        with pytest.raises(TypeError):
            list(Dataset.range(2).map(make).as_numpy_iterator())


@pytest.mark.parametrize("name", ["ragged", "sparse", "dictionary"])
def test_generators_yield_composite_values(name):
    dataset = Dataset.from_tensor_slices(VALUES[name])
    generated = Dataset.from_generator(lambda: iter(dataset), output_signature=dataset.element_spec)
    assert generated.element_spec == dataset.element_spec
    assert list_elements(generated) == list_elements(dataset)


def test_sizes_in_specs_of_sparse_results():
    rows = Dataset.from_tensor_slices(tf.sparse.from_dense(np.eye(4, 3, dtype=np.float32)))
    double = lambda x: x * 2.0
    spec = tf.SparseTensorSpec
    assert rows.map(double).element_spec == spec([3], tf.float32)
    assert rows.map(double).batch(3).element_spec == spec([None, 3], tf.float32)
    both = rows.batch(2, drop_remainder=True).map(lambda x: (x, tf.sparse.to_dense(x)))
    assert both.element_spec == (spec([2, 3], tf.float32), tf.TensorSpec([2, 3]))
    # The trace needs a value, so only the rank is known.
    sizes = rows.map(lambda x: tf.sparse.reset_shape(x, [int(x.indices.numpy()[0, 0]) + 5]))
    assert sizes.take(2).element_spec == spec([None], tf.float32)


def test_sparse_tensors_without_rows_have_no_elements():
    empty = tf.SparseTensor(np.zeros((0, 2), np.int64), np.zeros(0, np.float32), [0, 3])
    assert list(tf.data.Dataset.from_tensor_slices((empty, tf.zeros([0]))).batch(2)) == []


def test_batches_keep_uniform_row_lengths():
    rows = tf.RaggedTensor.from_uniform_row_length(tf.ragged.constant([[1], [2, 3], [], [4]]), 2)
    pairs = Dataset.from_tensor_slices(rows).batch(2)
    assert pairs.element_spec.shape.as_list() == [None, 2, None]
    assert next(iter(pairs)).shape.as_list() == [2, 2, None]
    inner = tf.RaggedTensor.from_uniform_row_length(tf.range(6), 2)
    nested = tf.RaggedTensor.from_row_lengths(inner, [2, 0, 1])
    assert [b.shape.as_list() for b in Dataset.from_tensor_slices(nested).batch(2)] == [
        [2, None, 2],
        [1, None, 2],
    ]
