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
