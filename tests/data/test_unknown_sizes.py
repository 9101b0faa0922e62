"""Maps with results of unknown sizes: specs, values, errors, random numbers and resumed iterators."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import meshflow as tf

Dataset = tf.data.Dataset


def _make_sparse(n):
    return tf.SparseTensor(tf.stack([[n % 50], [n % 50 + 1]]), [1.0, 2.0], [100])


@pytest.mark.parametrize(
    "function, expected, shape",
    [
        (lambda n: tf.range(n % 5), lambda n: np.arange(n % 5), [None]),
        (lambda n: tf.fill([n % 3 + 1, 2], n), lambda n: np.full([n % 3 + 1, 2], n), [None, 2]),
        (
            lambda n: tf.boolean_mask(tf.range(6), tf.range(6) < tf.cast(n % 6, tf.int32)),
            lambda n: np.arange(n % 6),
            [None],
        ),
        (
            lambda n: tf.unique(tf.range(8, dtype=tf.int64) % (n % 5 + 1)).y,
            lambda n: np.arange(n % 5 + 1),
            [None],
        ),
        (
            lambda n: tf.range(20)[tf.cast(n, tf.int32) % 20 :],
            lambda n: np.arange(n % 20, 20),
            [None],
        ),
    ],
)
def test_values_and_specs(function, expected, shape):
    data = Dataset.range(300).map(function)
    assert data.element_spec.shape.as_list() == shape
    results = [element.numpy() for element in data]
    for n, result in enumerate(results):
        np.testing.assert_array_equal(result, expected(n))


def test_padded_batches_of_pairs():
    data = Dataset.range(5).map(lambda n: {"row": tf.range(n), "n": n}).padded_batch(5)
    (batch,) = list(data)
    np.testing.assert_array_equal(batch["row"], np.tril(np.tile(np.arange(4), (5, 1)), -1))
    np.testing.assert_array_equal(batch["n"], np.arange(5))


def test_sparse_results():
    data = Dataset.range(300).map(_make_sparse)
    assert data.element_spec == tf.SparseTensorSpec([100], tf.float32)
    dense = np.stack([tf.sparse.to_dense(element).numpy() for element in data])
    expected = np.zeros([300, 100], np.float32)
    expected[np.arange(300), np.arange(300) % 50] = 1
    expected[np.arange(300), np.arange(300) % 50 + 1] = 2
    np.testing.assert_array_equal(dense, expected)
    batch = next(iter(data.batch(4)))
    np.testing.assert_array_equal(tf.sparse.to_dense(batch), expected[:4])


def test_sizes_of_sparse_results_are_unknown():
    data = Dataset.range(3).map(lambda n: tf.SparseTensor([[0]], [n], [n + 1]))
    assert data.element_spec.shape.as_list() == [None]
    assert [int(e.dense_shape[0]) for e in data] == [1, 2, 3]


def test_elements_after_a_failed_one():
    def make(n):
        tf.debugging.assert_none_equal(n, tf.constant(3, tf.int64))
        return tf.range(n)

    elements, results = iter(Dataset.range(6).map(make)), []
    for _ in range(6):
        try:
            results.append(len(next(elements)))
        except tf.errors.InvalidArgumentError:
            results.append("failed")
    assert results == [0, 1, 2, "failed", 4, 5]
    assert next(elements, None) is None


def test_failed_gather_names_the_index():
    data = Dataset.range(3).map(lambda n: tf.gather(tf.range(n), tf.constant([1])))
    elements = iter(data)
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError):
            next(elements)
    assert next(elements).numpy().tolist() == [1]


def _crop_randomly(row):
    return row[: tf.random.uniform([], 1, 20, tf.int32, seed=3)]


def test_random_sizes_repeat_and_resume(tmp_path):
    rows = np.arange(600 * 20).reshape(-1, 20)
    data = Dataset.from_tensor_slices(rows).map(_crop_randomly)
    first = [row.numpy().tolist() for row in data]
    assert len({len(row) for row in first}) == 19
    assert first == [row.numpy().tolist() for row in data]
    elements = iter(data)
    for _ in range(301):
        next(elements)
    path = tf.train.Checkpoint(iterator=elements).save(str(tmp_path / "position"))
    rest = [row.numpy().tolist() for row in elements]
    resumed = iter(data)
    tf.train.Checkpoint(iterator=resumed).restore(path)
    assert rest == first[301:] == [row.numpy().tolist() for row in resumed]


def test_variables_are_read_for_each_pass():
    size = tf.Variable(2)
    data = Dataset.range(2).map(lambda n: tf.fill([size], n))
    assert [len(row) for row in data] == [2, 2]
    size.assign(3)
    assert [len(row) for row in data] == [3, 3]


def test_scans_of_chunks_equal_those_of_elements():
    def step(state, n):
        return (state[0] + n, state[1] * 0.5), {"sum": state[0], "decay": state[1]}

    data = Dataset.range(600).scan((np.int64(1), np.float32(1)), step)
    assert "many elements" in tf.data.experimental.explain(data)
    found = list(data)
    assert [int(e["sum"]) for e in found] == [1 + n * (n - 1) // 2 for n in range(600)]
    assert [float(e["decay"]) for e in found[:4]] == [1, 0.5, 0.25, 0.125]


def test_scan_continues_after_a_failed_element():
    checked = Dataset.range(5).map(
        lambda n: tf.debugging.check_numerics(1 / (tf.cast(n, tf.float32) - 2), "zero")
    )
    elements = iter(checked.scan(0, lambda count, x: (count + 1, count)))
    assert [int(next(elements)) for _ in range(2)] == [0, 1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="zero"):
        next(elements)
    assert [int(n) for n in elements] == [2, 3]


def test_random_dataset_ends_with_take():
    data = Dataset.random(seed=4)
    numbers = [int(n) for n in data.take(600)]
    assert len(set(numbers)) > 590
    assert numbers[:10] == [int(n) for n in data.batch(10).take(1).unbatch()]


def test_threads_share_a_map():
    data = Dataset.range(400).map(lambda n: tf.range(n % 97) + n)
    iterate = lambda _: [row.tolist() for row in data.as_numpy_iterator()]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(iterate, range(4)))
    assert found == [[list(range(n, n + n % 97)) for n in range(400)]] * 4
