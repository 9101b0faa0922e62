"""Test behaviour of datasets that TensorFlow's own unit tests require."""

import numpy as np
import pytest

import meshflow as tf

D = tf.data.Dataset
R = D.range


def read(dataset):
    return [tf.nest.map_structure(lambda v: np.asarray(v).tolist(), e) for e in dataset]


def test_sparse_values_of_version_1_are_sparse_tensors():
    value = tf.compat.v1.SparseTensorValue(np.array([[0, 0], [2, 1]]), np.array([5, 6]), (3, 2))
    rows = D.from_tensor_slices({"x": value})
    assert rows.element_spec == {"x": tf.SparseTensorSpec([2], tf.int64)}
    assert [tf.sparse.to_dense(e["x"]).numpy().tolist() for e in rows] == [[5, 0], [0, 0], [0, 6]]
    mapped = R(3).map(lambda i: tf.compat.v1.SparseTensorValue([[0]], i * [1], [1]))
    assert mapped.element_spec == tf.SparseTensorSpec([1], tf.int64)
    assert [int(e.values[0]) for e in mapped.batch(1)] == [0, 1, 2]


def test_sparse_results_of_unknown_sizes_have_a_spec():
    rows = R(4).batch(3).map(lambda x: (tf.SparseTensor(x[:, None], x, [9]), x))
    assert rows.element_spec == (
        tf.SparseTensorSpec([9], tf.int64),
        tf.TensorSpec([None], tf.int64),
    )


def test_slices_of_lists_of_datasets_and_of_none():
    joined = D.from_tensor_slices([R(2), R(3, 4)])
    assert joined.element_spec == tf.data.DatasetSpec(tf.TensorSpec([], tf.int64))
    assert read(joined.flat_map(lambda d: d)) == [0, 1, 3]
    with pytest.raises(TypeError, match="compatible"):
        D.from_tensor_slices([R(2), D.from_tensors("a")])
    rows = D.from_tensor_slices(([1, 2], None))
    assert list(rows.as_numpy_iterator()) == [(1, None), (2, None)]
    with pytest.raises(TypeError, match="not a subclass of TensorSpec"):
        rows.padded_batch(2)


@pytest.mark.parametrize("calls", [None, 2])
def test_prefetched_errors_can_be_ignored(calls):
    check = lambda x: tf.debugging.check_numerics(x, "bad")
    data = D.from_tensor_slices(np.array([1, np.nan, 3], np.float32)).map(check, calls).prefetch(2)
    assert read(data.ignore_errors()) == [1.0, 3.0]
    iterator = iter(data)
    assert float(next(iterator)) == 1
    with pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
        next(iterator)
    assert float(next(iterator)) == 3


def test_functions_cannot_end_a_dataset():
    def fail(x):
        raise StopIteration

    for data in (
        R(3).map(lambda x: tf.py_function(fail, [x], tf.int64)),
        R(3).scan(tf.constant(0), lambda s, x: (s, tf.py_function(fail, [x], tf.int64))),
        R(3).map(lambda x: tf.compat.v1.py_func(fail, [x], tf.int64)),
        D.from_tensor_slices(["a"]).map(lambda x: next(iter(())) if x == "a" else x),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="produced OutOfRangeError"):
            next(iter(data))


def test_iterators_of_a_trace_give_nested_functions_new_elements():
    @tf.function
    def add_up(dataset):
        iterator = iter(dataset)
        take = tf.function(lambda source: next(source))
        return sum(take(iterator) for _ in range(4))

    assert int(add_up(R(9))) == 6 and int(add_up(R(9))) == 6


def test_ragged_values_of_version_1_are_ragged_tensors():
    value = tf.compat.v1.ragged.RaggedTensorValue(np.array([1, 2, 3]), np.array([0, 2, 3]))
    assert D.from_tensors(value).element_spec == tf.RaggedTensorSpec([2, None], tf.int64)
    assert read(D.from_tensor_slices((value, [5, 6]))) == [([1, 2], 5), ([3], 6)]


def test_infinite_data_has_no_random_access():
    with pytest.raises(tf.errors.FailedPreconditionError, match="infinite"):
        tf.data.experimental.at(R(3).repeat(), 0)


def test_weights_of_zero():
    never = D.sample_from_datasets([R(3).repeat(), R(3)], weights=[0.0, 0.0])
    assert read(never) == [] and never.element_spec == tf.TensorSpec([], tf.int64)
    with pytest.raises(ValueError, match="should have the same length"):
        D.sample_from_datasets([R(3)], weights=[0.5, 0.5])


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("function", [lambda x: x, tf.strings.as_string])
def test_caches_are_complete_after_the_last_element(tmp_path, in_file, function):
    parts = [
        R(20).shuffle(20).map(function).cache(str(tmp_path / str(i)) if in_file else "")
        for i in range(3)
    ]
    zipped = D.zip(tuple(parts))
    assert read(zipped) == read(zipped)
    iterator = iter(parts[0])
    first = [next(iterator).numpy() for _ in range(20)]
    assert [x.numpy() for x in parts[0]] == first


def test_loops_see_variables_that_the_dataset_changes():
    counter = tf.Variable(0)

    def count(x):
        counter.assign_add(1)
        return x

    @tf.function
    def run():
        for _ in R(10).map(count):
            pass
        return counter.read_value()

    assert int(run()) == 10 and int(run()) == 20


def test_iterators_of_other_datasets_are_not_restored(tmp_path):
    iterator = iter(R(10))
    for _ in range(5):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "ckpt"))
    with pytest.raises(tf.errors.NotFoundError, match="dataset definition has not changed"):
        tf.train.Checkpoint(iterator=iter(R(3))).restore(path)


def test_ragged_batches_of_empty_elements():
    batch = next(iter(R(3).map(lambda x: tf.fill([2, x, 3, 2 * x, 4], x)).ragged_batch(3)))
    assert batch[0].to_list() == [[], []] and batch[1, 0].to_list() == [[[[1] * 4] * 2] * 3]


def test_specs_of_datasets_form_a_hierarchy():
    spec = lambda sizes, shape: tf.data.DatasetSpec(tf.TensorSpec(sizes, tf.int32), shape)
    narrow, wide = spec((1, None), [5, 2]), spec((None, None), [None, 2])
    assert narrow.is_subtype_of(wide) and not wide.is_subtype_of(narrow)
    assert narrow.most_specific_common_supertype([spec((2, 3), [6, 2])]) == wide
    assert narrow != spec((1, None), [6, 2])
    other = tf.data.DatasetSpec({"a": tf.TensorSpec([], tf.int32)})
    assert narrow.most_specific_common_supertype([other]) is None


def test_keys_may_be_python_integers_and_groups_of_infinite_data_are_infinite():
    groups = R(4).group_by_window(lambda _: 0, lambda _, group: group.batch(4), window_size=2)
    assert read(groups) == [[0, 1], [2, 3]]
    assert R(4).repeat().group_by_window(lambda x: x, lambda _, g: g, 2).cardinality() == -1


def test_reducers_are_checked_at_once():
    reducer = tf.data.experimental.Reducer(
        lambda _: tf.constant(1, tf.int32), lambda s, x: tf.constant(1, tf.int64), lambda s: s
    )
    with pytest.raises(TypeError, match="element types for the new state must match"):
        R(3).apply(tf.data.experimental.group_by_reducer(lambda _: np.int64(0), reducer))


@pytest.mark.parametrize(
    ("expected", "words"),
    [(1, "1 element but contained at least 2 elements"), (-1, "an infinite number of elements")],
)
def test_asserted_cardinality_names_both_numbers(expected, words):
    data = R(3).apply(tf.data.experimental.assert_cardinality(expected))
    with pytest.raises(tf.errors.FailedPreconditionError, match=words):
        list(data)


def test_csv_files_with_wrong_quotation_marks(tmp_path):
    path = str(tmp_path / "a.csv")

    def parse(text, **options):
        tf.io.write_file(path, text)
        return tf.data.experimental.CsvDataset(path, [tf.string] * 3, **options)

    data = parse('1,"2"3",4\na,b,"c"d"\ne,f,g\nh,i,"j\n')
    assert [[v.numpy() for v in row] for row in data.ignore_errors()] == [[b"e", b"f", b"g"]]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Quote inside .* record 0"):
        next(iter(data))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"end of file without .* record 0"):
        next(iter(parse('1,2,"3\n')))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Can't read header"):
        next(iter(parse("", header=True)))


@pytest.mark.parametrize(
    ("record", "words"),
    [('a"b', "Unquoted fields cannot"), ('"', "has to end with quote"), ('"a"b', "has to end")],
)
def test_csv_records_with_wrong_quotation_marks(record, words):
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        tf.io.decode_csv([record], [tf.string])
    [column] = tf.io.decode_csv(['"a""b,"', "c", '"d"\r\n'], [tf.string])
    assert column.numpy().tolist() == [b'a"b,', b"c", b"d"]


def test_padding_queues_of_scalars_and_without_shapes():
    queue = tf.queue.PaddingFIFOQueue(4, tf.float32, ((),))
    queue.enqueue_many([[1.0, 2.0]])
    assert queue.dequeue_many(2).numpy().tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="a list of shapes must be provided"):
        tf.queue.PaddingFIFOQueue(4, tf.float32, None)
    shapes = lambda types, sizes: tf.queue.PriorityQueue(4, types, sizes).shapes
    assert shapes(tf.string, ()) == shapes((tf.string,), ()) == [[], []]
    assert shapes(tf.int32, [2]) == shapes(tf.int32, [[2]]) == [[], [2]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="specified shapes"):
        tf.queue.FIFOQueue(4, tf.float32).dequeue_many(1)


def test_file_caches_are_written_with_the_last_element(tmp_path):
    data = R(20).cache(str(tmp_path / "part"))
    for count in (19, 20):
        assert read(data.take(count)) == list(range(count))
        assert (tmp_path / "part.meshflow").exists() == (count == 20)


@pytest.mark.parametrize("in_file", [False, True])
def test_caches_do_not_hide_a_wrong_number_of_elements(tmp_path, in_file):
    data = R(3).apply(tf.data.experimental.assert_cardinality(2))
    data = data.cache(str(tmp_path / "part") if in_file else "")
    for _ in range(2):
        with pytest.raises(tf.errors.FailedPreconditionError, match="at least 3"):
            list(data)
