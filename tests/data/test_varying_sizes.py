"""Test functions of elements of varying sizes: one trace, and no separate program for each size."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.core.dispatch import tiers
from meshflow.data.execution.stacked_programs import StackedPrograms

LENGTHS = (5, 9, 12, 7, 31, 5, 18)


def make_elements():
    for length in LENGTHS:
        yield np.random.RandomState(length).randint(0, 100, length).astype("int32")


def make_dataset():
    signature = tf.TensorSpec([None], tf.int32)
    return tf.data.Dataset.from_generator(make_elements, output_signature=signature)


FUNCTIONS = [
    (lambda x: x[::-1] * 2, lambda x: x[::-1] * 2),
    (lambda x: tf.cast(x, tf.float32) / 8, lambda x: x.astype("float32") / 8),
    (
        lambda x: tf.concat([x, tf.cumsum(x)], 0),
        lambda x: np.concatenate([x, np.cumsum(x, dtype=x.dtype)]),
    ),
    (lambda x: x[: tf.size(x) // 2], lambda x: x[: len(x) // 2]),
    (lambda x: tf.one_hot(x % 7, 7), lambda x: np.eye(7, dtype="float32")[x % 7]),
    (lambda x: tf.sort(x), np.sort),
    (lambda x: tf.gather(tf.range(100) * 3, x), lambda x: x * 3),
    (lambda x: x + 1 if x.shape[0] > 8 else x - 1, lambda x: x + 1 if len(x) > 8 else x - 1),
    (lambda x: tf.reshape(x, [1, -1]) * tf.size(x), lambda x: x[None] * len(x)),
]


@pytest.mark.parametrize(("function", "expected"), FUNCTIONS)
def test_maps_compile_no_program(function, expected, programs):
    results = list(make_dataset().map(function))
    for result, element in zip(results, make_elements(), strict=True):
        np.testing.assert_array_equal(result, expected(element))
        assert result.dtype.as_numpy_dtype == expected(element).dtype
    assert programs == []


def test_functions_are_traced_once():
    sizes = []

    def double(x):
        sizes.append(x.shape[0])
        return x * 2

    dataset = make_dataset().map(double)
    sizes.clear()
    assert [len(x) for x in dataset] == [len(x) for x in dataset] == list(LENGTHS)
    assert sizes == [None]


def test_functions_that_need_a_size_are_traced_for_each():
    dataset = make_dataset().map(lambda x: tf.stack([x[i] for i in range(int(x.shape[0]))][::-1]))
    for result, element in zip(dataset, make_elements(), strict=True):
        np.testing.assert_array_equal(result, element[::-1])


def test_filters_and_scans_of_varying_sizes():
    long = make_dataset().filter(lambda x: tf.size(x) > 8)
    assert [len(x) for x in long] == [n for n in LENGTHS if n > 8]
    sums = make_dataset().scan(0, lambda state, x: (state + tf.reduce_sum(x), state))
    totals = np.cumsum([0, *(x.sum() for x in make_elements())])[:-1]
    np.testing.assert_array_equal(list(sums.as_numpy_iterator()), totals)


def test_large_elements_are_compiled(programs):
    signature = tf.TensorSpec([None, 700], tf.float32)
    data = tf.data.Dataset.from_generator(
        lambda: iter([np.ones((700, 700), "float32")] * 2), output_signature=signature
    )
    product = data.map(lambda x: tf.linalg.matmul(tf.linalg.matmul(x, x), tf.linalg.matmul(x, x)))
    assert all(float(x[0, 0]) == pytest.approx(700.0**3) for x in product)
    assert len(programs) == 1


def test_random_functions_repeat_with_their_seeds():
    def draw():
        tf.random.set_seed(3)
        dataset = make_dataset().map(lambda x: tf.random.uniform(tf.shape(x), seed=1))
        return [x.numpy() for x in dataset]

    for first, second in zip(draw(), draw(), strict=True):
        np.testing.assert_array_equal(first, second)


def test_threads_equal_one_thread():
    function = lambda x: tf.cumsum(tf.cast(x, tf.float32)) / tf.cast(tf.size(x), tf.float32)
    several = make_dataset().repeat(5).map(function, num_parallel_calls=4)
    for result, expected in zip(several, make_dataset().repeat(5).map(function), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_indices_out_of_range_raise():
    dataset = make_dataset().map(lambda x: tf.gather(tf.range(3), x))
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not in"):
        list(dataset)


def test_functions_are_compiled_when_the_interpreter_is_turned_off(monkeypatch, programs):
    doubled = make_dataset().map(lambda x: tf.concat([x, x + 1], 0) * 2)
    expected = list(doubled.as_numpy_iterator())
    assert programs == []
    monkeypatch.setattr(tiers.TierSettings, "is_profiling", True)
    for result, values in zip(doubled.as_numpy_iterator(), expected, strict=True):
        np.testing.assert_array_equal(result, values)
    assert programs


def test_lengths_by_shape_and_by_value_select_equal_buckets():
    """A length that depends only on shapes is computed once for each shape."""
    sizes = np.random.default_rng(0).integers(0, 9, 60).tolist()
    data = tf.data.Dataset.from_generator(
        lambda: (np.arange(n) for n in sizes), output_signature=tf.TensorSpec([None], tf.int64)
    )
    calls = []

    def count_in_python(x):
        calls.append(len(x))
        return np.int64(len(x))

    offset = tf.Variable(0, dtype=tf.int32)
    lengths = [
        lambda x: tf.shape(x)[0],
        lambda x: tf.reduce_sum(tf.cast(x >= 0, tf.int32)),
        lambda x: tf.size(x) + offset,
        lambda x: tf.numpy_function(count_in_python, [x], tf.int64),
    ]
    buckets = [
        [b.tolist() for b in d.as_numpy_iterator()]
        for d in (data.bucket_by_sequence_length(f, [3, 6], [4, 3, 2]) for f in lengths)
    ]
    assert buckets[1:] == buckets[:1] * 3
    assert len(calls) >= len(sizes)
    seen = data.filter(lambda x: tf.size(x) > 3).as_numpy_iterator()
    assert [len(x) for x in seen] == [n for n in sizes if n > 3]


def test_keys_of_chunks_and_of_elements_form_the_same_groups():
    data = tf.data.Dataset.range(100)

    def group(key):
        windows = data.group_by_window(key, lambda k, g: g.batch(3), window_size=5)
        return [b.tolist() for b in windows.as_numpy_iterator()]

    zero = tf.Variable(0, dtype=tf.int64)
    assert group(lambda x: x % 7) == group(lambda x: x % 7 + zero)


def test_failure_of_a_key_is_raised_after_earlier_groups():
    data = tf.data.Dataset.from_tensor_slices([[1.0]] * 4 + [[np.nan]] + [[1.0]] * 4)
    checked = data.map(lambda x: tf.debugging.check_numerics(x, "not a number"))
    groups = checked.group_by_window(
        lambda x: tf.cast(x[0], tf.int64), lambda k, g: g.batch(2), window_size=2
    ).as_numpy_iterator()
    assert [len(next(groups)) for _ in range(2)] == [2, 2]
    with pytest.raises(tf.errors.InvalidArgumentError, match="not a number"):
        next(groups)


def test_sizes_of_texts():
    texts = tf.data.Dataset.from_tensor_slices(["a b", "c", "d e f"])
    words = texts.map(tf.strings.split)
    specs = [
        words.map(tf.strings.length),
        texts.map(lambda text: tf.strings.unicode_decode(text, "UTF-8")),
        words.map(lambda word: tf.strings.ngrams(word, 2)),
    ]
    sizes = [dataset.element_spec.shape.as_list() for dataset in specs]
    assert sizes == [[None], [None], [None]]
    batches = [batch.to_list() for batch in words.map(tf.strings.length).ragged_batch(2)]
    assert batches == [[[1, 1], [1]], [[1, 1, 1]]]


def test_specs_of_buckets_hold_for_all_buckets():
    """Test the sizes that depend on the bucket: padded lengths, and batch sizes without a remainder."""
    data = tf.data.Dataset.range(1, 9).map(tf.range)
    for options, sizes in (
        ({"pad_to_bucket_boundary": True}, [None, None]),
        ({"drop_remainder": True}, [None, None]),
        ({"drop_remainder": True, "bucket_batch_sizes": [2] * 3}, [2, None]),
    ):
        options = {"bucket_batch_sizes": [2, 2, 1]} | options
        buckets = data.bucket_by_sequence_length(tf.size, [4, 9], **options)
        assert buckets.element_spec.shape.as_list() == sizes
        assert all(buckets.element_spec.is_compatible_with(batch) for batch in buckets)


def test_maps_of_elements_that_have_equal_sizes(monkeypatch):
    counts = []
    run = StackedPrograms._run
    monkeypatch.setattr(
        StackedPrograms, "_run", lambda *args: counts.append(run(*args)) or counts[-1]
    )
    batches = tf.data.Dataset.range(200).batch(2)
    draws = batches.map(lambda seed: tf.random.stateless_uniform([3], seed))
    expected = [tf.random.stateless_uniform([3], [n, n + 1]) for n in range(0, 200, 2)]
    assert np.array_equal(list(draws), expected)
    assert any(counts)
    # The last batch has another size, and an element fails.
    data = (
        tf.data.Dataset.range(99)
        .batch(2)
        .map(lambda x: tf.debugging.check_numerics(10 / (x - 20), "0"))
    )
    found = list(data.ignore_errors())
    assert [len(x) for x in found] == [2] * 48 + [1]
    scale = tf.Variable(1)
    elements = iter(make_dataset().map(lambda x: tf.size(x) * scale))
    assert next(elements) == 5 and scale.assign(2) == 2 and next(elements) == 18


def test_large_elements_are_not_read_in_advance():
    counts = tf.Variable(0)

    def read(n):
        counts.assign_add(1)
        return tf.zeros([tf.where(n < 8, 1, 200_000)], tf.float64)

    data = tf.data.Dataset.range(100).map(lambda n: tf.py_function(read, [n], tf.float64))
    data = data.map(lambda x: tf.ensure_shape(x, [None]))
    elements = iter(data.map(lambda x: x[::-1]))
    for _ in range(20):
        next(elements)
    assert int(counts) <= 22


def test_parts_that_are_empty_for_some_elements():
    batches = tf.data.Dataset.range(40).batch(2)
    parts = batches.map(lambda x: x[: tf.cast(x[0] % 3, tf.int32)])
    assert [len(x) for x in parts] == [min(n % 3, 2) for n in range(0, 40, 2)]


def test_specs_of_groups_hold_for_all_keys():
    data = tf.data.Dataset.from_tensor_slices(np.arange(3, 15) % 5 + 3)
    make = lambda reduce: data.group_by_window(lambda x: x, reduce, window_size=2)
    widths = make(lambda key, group: group.batch(key, True))
    assert widths.element_spec == tf.TensorSpec([None], tf.int64)
    assert make(lambda _, group: group.batch(2, True)).element_spec.shape == (2,)
    sizes = [2, 2, 2, 1, 2, 2, 2, 2]
    assert make(lambda key, group: group.batch(sizes[key], True)).element_spec.shape == [None]
    table = {key: [key] for key in range(3, 8)}
    known = make(lambda key, group: group.map(lambda x: tf.fill(table[int(key)], x)))
    assert {x.shape[0] for x in known} == set(table)
    words = tf.data.Dataset.from_tensor_slices(["a", "bb", "c", "dd"])
    pairs = words.group_by_window(
        lambda word: tf.cast(tf.strings.length(word), tf.int64),
        lambda key, group: group.batch(3).map(lambda w: (key, w)),
        window_size=2,
    )
    assert [(int(k), w.numpy().tolist()) for k, w in pairs] == [
        (1, [b"a", b"c"]),
        (2, [b"bb", b"dd"]),
    ]


def test_ragged_batches_of_dictionaries():
    data = tf.data.Dataset.range(5).map(lambda n: {"x": tf.range(n), "n": n})
    (batch,) = data.ragged_batch(5, row_splits_dtype="int32")
    assert batch["x"].to_list() == [list(range(n)) for n in range(5)]
    assert batch["x"].row_splits.dtype == tf.int32
    spec = data.ragged_batch(2).element_spec["x"]
    assert spec == tf.RaggedTensorSpec([None, None], tf.int64)
