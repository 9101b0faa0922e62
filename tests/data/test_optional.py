"""Values that may be missing, and specs of datasets and optionals."""

import numpy as np
import pytest

import meshflow as tf

D = tf.data.Dataset
Optional = tf.experimental.Optional


def test_a_value():
    some = Optional.from_value({"a": 1.0, "b": (["x"], None)})
    assert bool(some.has_value())
    assert some.get_value()["b"][0].numpy().tolist() == [b"x"]
    assert some.element_spec["a"] == tf.TensorSpec([], tf.float32)


def test_empty_optional():
    nothing = Optional.empty(tf.TensorSpec([2], tf.int32))
    assert not bool(nothing.has_value())
    assert nothing.element_spec == tf.TensorSpec([2], tf.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not have a value"):
        nothing.get_value()


def test_iterators_return_optionals():
    iterator = iter(D.range(1))
    assert int(iterator.get_next_as_optional().get_value()) == 0
    last = iterator.get_next_as_optional()
    assert not bool(last.has_value())
    assert last.element_spec == tf.TensorSpec([], tf.int64)


def test_specs():
    number = tf.TensorSpec([], tf.int32)
    assert tf.OptionalSpec.from_value(Optional.from_value(1)) == tf.OptionalSpec(number)
    assert tf.OptionalSpec(number).is_compatible_with(Optional.empty(number))
    assert not tf.OptionalSpec(number).is_compatible_with(Optional.from_value(1.0))
    open_size = tf.data.DatasetSpec(tf.TensorSpec([None], tf.int64))
    assert open_size.is_compatible_with(D.range(4).batch(2, drop_remainder=True))
    assert not open_size.is_compatible_with(D.range(4))
    assert tf.data.DatasetSpec.from_value(D.range(4)) == tf.data.DatasetSpec(
        tf.TensorSpec([], tf.int64)
    )


def test_datasets_of_datasets_have_no_numpy():
    with pytest.raises(TypeError, match="datasets of datasets"):
        D.range(3).window(2).as_numpy_iterator()
    assert type(next(D.from_tensor_slices(["a"]).as_numpy_iterator())) is bytes


def test_reduced_in_a_function():
    factor = tf.Variable(2, dtype=tf.int64)

    @tf.function
    def total(data):
        return data.reduce((np.int64(0), 0), lambda s, x: (s[0] + x * factor, s[1] + 1))

    data = D.range(4)
    assert [int(x) for x in total(data)] == [12, 4]
    factor.assign(3)
    assert [int(x) for x in total(data)] == [18, 4]
    limited = tf.function(lambda: D.range(6).reduce(0, lambda s, _: s + 1 if s < 3 else s))
    assert int(limited()) == 3


def test_datasets_and_iterators_are_described_by_specs():
    dataset = D.range(3)
    number = tf.TensorSpec([], tf.int64)
    assert tf.type_spec_from_value(dataset) == tf.data.DatasetSpec(number)
    assert tf.type_spec_from_value(iter(dataset)) == tf.data.IteratorSpec(number)
    assert tf.type_spec_from_value(dataset) != tf.data.IteratorSpec(number)
    assert tf.data.DatasetSpec(number).value_type is D
    assert tf.data.IteratorSpec(number).is_compatible_with(iter(dataset))
    assert not tf.data.IteratorSpec(number).is_compatible_with(dataset)


def test_iterators_fit_a_signature():
    @tf.function(input_signature=[tf.data.IteratorSpec(tf.TensorSpec([], tf.int64))])
    def following(iterator):
        return next(iterator) + 1

    assert [int(following(iterator)) for iterator in [iter(D.range(5))] * 2] == [1, 2]
    with pytest.raises(ValueError, match="incompatible with input_signature"):
        following(iter(D.from_tensors(1.0)))


def test_functions_that_return_no_dataset_fail_immediately():
    for make in (
        lambda: D.range(2).flat_map(lambda x: x),
        lambda: D.range(2).interleave(lambda x: x),
    ):
        with pytest.raises(TypeError, match="must return a `Dataset`"):
            make()
    with pytest.raises(TypeError, match="a pair consisting of new state"):
        D.range(2).scan(0, lambda state, x: state)


LENGTHS = (1, 3, 2)


@pytest.fixture
def growing():
    rows = lambda: ([1.0] * n for n in LENGTHS)
    return D.from_generator(rows, output_signature=tf.TensorSpec([None]))


def add_optional(iterator, total):
    optional = iterator.get_next_as_optional()
    while optional.has_value():
        total.assign_add(tf.reduce_sum(optional.get_value()))
        optional = iterator.get_next_as_optional()


def add_counted(iterator, total):
    for _ in tf.range(len(LENGTHS)):
        total.assign_add(tf.reduce_sum(next(iterator)))


@pytest.mark.parametrize("body", [add_optional, add_counted])
def test_elements_may_change_their_shapes_in_a_loop(growing, body, caplog):
    total = tf.Variable(0.0)
    function = tf.function(body)
    for calls in (1, 2):
        function(iter(growing), total)
        assert float(total) == 6.0 * calls
    assert "runs op by op" in caplog.text


def test_elements_may_change_their_shapes_in_a_branch(growing):
    @tf.function
    def take(iterator, is_taken):
        return tf.reduce_sum(next(iterator)) if is_taken else tf.constant(0.0)

    iterator = iter(growing)
    found = [float(take(iterator, tf.constant(flag))) for flag in (True, False, True, True)]
    assert found == [1.0, 0.0, 3.0, 2.0]


def test_functions_return_optionals(growing):
    wrap = tf.function(tf.experimental.Optional.from_value)
    rows = tf.ragged.constant([[1, 2], [], [3]])
    assert wrap(rows).get_value().to_list() == rows.to_list()
    assert int(wrap(tf.constant(3)).get_value()) == 3
    take = tf.function(lambda iterator: iterator.get_next_as_optional())
    iterator, found = iter(growing), []
    while (optional := take(iterator)).has_value():
        found.append(optional.get_value().shape[0])
    assert found == list(LENGTHS)
