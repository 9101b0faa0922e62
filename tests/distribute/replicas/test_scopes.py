"""Scopes, contexts and the values of replicas as programs see them."""

import numpy as np
import pytest

import meshflow as tf

CPUS = ["CPU:0", "CPU:1"]


def test_a_scope_may_be_entered_again_and_inside_itself():
    strategy = tf.distribute.MirroredStrategy(CPUS)
    scope = strategy.scope()
    for _ in range(2):
        with scope as inside, scope:
            assert inside is strategy is tf.distribute.get_strategy()
        assert not tf.distribute.has_strategy()


def test_set_strategy():
    one, two = tf.distribute.MirroredStrategy(CPUS), tf.distribute.OneDeviceStrategy("CPU:0")
    for strategy in (one, two):
        tf.distribute.experimental_set_strategy(strategy)
        assert tf.distribute.get_strategy() is strategy
    tf.distribute.experimental_set_strategy(None)
    assert not tf.distribute.has_strategy()
    with one.scope(), pytest.raises(RuntimeError, match="Must not be called inside"):
        tf.distribute.experimental_set_strategy(two)


def test_contexts_outside_scopes_are_always_the_same():
    assert tf.distribute.get_replica_context() is tf.distribute.get_replica_context()
    assert str(tf.distribute.InputContext(3, 1, 6)) == (
        "tf.distribute.InputContext(input pipeline id 1, total: 3)"
    )
    described = str(tf.distribute.experimental.ValueContext(1, 2))
    assert described.startswith("tf.distribute.ValueContext(replica id 1, ")


@pytest.mark.parametrize("compiled", [False, True])
def test_constants_are_reduced_too(compiled):
    strategy = tf.distribute.MirroredStrategy(CPUS)
    with strategy.scope():
        v = tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)

    def step():
        v.assign_add(1.0)
        return tf.distribute.get_replica_context().all_reduce("sum", tf.identity(2.0))

    total = strategy.run(tf.function(step) if compiled else step)
    assert [float(t) for t in total.values] == [4.0, 4.0] and float(v) == 2.0


def test_function_is_traced_separately_for_replicas():
    @tf.function
    def rank():
        return tf.distribute.get_replica_context().replica_id_in_sync_group + 0

    assert int(rank()) == 0
    strategy = tf.distribute.MirroredStrategy(CPUS)
    assert [int(r) for r in strategy.run(rank).values] == [0, 1]
    assert int(rank()) == 0


def test_values_of_replicas_are_leaves_of_nests():
    strategy = tf.distribute.MirroredStrategy(CPUS)
    value = strategy.run(lambda: {"a": tf.constant(1.0), "b": (tf.constant([2, 3]), None)})
    assert len(tf.nest.flatten(value)) == 3 and not tf.nest.is_nested(value["a"])
    local = tf.nest.map_structure(strategy.experimental_local_results, value)
    np.testing.assert_array_equal(local["b"][0], [[2, 3], [2, 3]])
    assert local["b"][1] == (None,)
    same = tf.nest.pack_sequence_as(value, tf.nest.flatten(value))
    assert same["a"] is value["a"]
    tf.nest.assert_same_structure(value, {"a": 1, "b": (2, 3)})
    assert len(tf.nest.flatten(value["a"], expand_composites=True)) == 1
    assert "0: tf.Tensor(1.0" in str(value["a"]) and "1: <tf.Tensor:" in repr(value["a"])


def test_gathering():
    strategy = tf.distribute.MirroredStrategy(CPUS)

    def values(make):
        return strategy.experimental_distribute_values_from_function(
            lambda c: make(c.replica_id_in_sync_group)
        )

    uneven = values(lambda i: tf.fill([i + 1, 2], i))
    assert strategy.gather(uneven, axis=0).numpy().tolist() == [[0, 0], [1, 1], [1, 1]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Dimension 0 in both shapes"):
        strategy.gather(uneven, axis=1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Ranks of all input tensors"):
        strategy.gather(values(lambda i: tf.ones([1] * (i + 1))), axis=0)
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([2]), tf.constant([5, 2]))
    with pytest.raises(NotImplementedError, match=r"^gather does not support IndexedSlices"):
        strategy.gather(slices, axis=0)
    with pytest.raises(NotImplementedError, match=r"^all_gather does not support IndexedSlices"):
        strategy.run(lambda: tf.distribute.get_replica_context().all_gather(slices, 0))


@pytest.mark.parametrize("compiled", [False, True])
def test_replicas_gather_different_sizes(compiled):
    strategy = tf.distribute.MirroredStrategy(CPUS)
    parts = strategy.experimental_distribute_values_from_function(
        lambda c: tf.range(1.0 + c.replica_id_in_sync_group)
    )

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            everything = tf.distribute.get_replica_context().all_gather(x * x, axis=-1)
            loss = tf.reduce_sum(everything * tf.range(1.0, 4.0))
        mask = tf.distribute.get_replica_context().all_gather(x > 0, axis=0)
        return everything, mask, tape.gradient(loss, x)

    for _ in range(2):
        everything, mask, gradient = strategy.run(tf.function(step) if compiled else step, (parts,))
    for whole, true in zip(everything.values, mask.values, strict=True):
        assert whole.numpy().tolist() == [0, 0, 1] and true.numpy().tolist() == [0, 0, 1]
    # Each replica's loss has every element, so gradients add up.
    assert gradient.values[1].numpy().tolist() == [0.0, 2 * 2 * 1.0 * 3]


def test_slices_of_all_replicas_add_up():
    strategy = tf.distribute.MirroredStrategy(CPUS)

    def step():
        context = tf.distribute.get_replica_context()
        row = context.replica_id_in_sync_group
        slices = tf.IndexedSlices(tf.ones([1, 2]), tf.reshape(row, [1]), tf.constant([3, 2]))
        total = context.all_reduce("sum", slices)
        mean = context.all_reduce("mean", slices)
        assert isinstance(total, tf.IndexedSlices) and total.values.shape == (2, 2)
        return tf.convert_to_tensor(total), tf.convert_to_tensor(mean)

    total, mean = strategy.run(step)
    assert total.values[0].numpy().tolist() == [[1, 1], [1, 1], [0, 0]]
    assert mean.values[1].numpy().tolist() == [[0.5, 0.5], [0.5, 0.5], [0, 0]]


def test_datasets_of_scalars_are_refused():
    strategy = tf.distribute.MirroredStrategy(CPUS)
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(4))
    with pytest.raises(ValueError, match="Batch it by the global batch size"):
        next(iter(dataset))
    implementation = tf.distribute.experimental.CommunicationImplementation.NCCL
    options = tf.distribute.experimental.CommunicationOptions(implementation="NCCL")
    assert options.implementation is implementation
    ids = strategy.extended.call_for_each_replica(
        lambda a: a + tf.distribute.get_replica_context().replica_id_in_sync_group, args=(1,)
    )
    assert [int(i) for i in ids.values] == [1, 2]


def test_specs_of_distributed_datasets():
    strategy = tf.distribute.MirroredStrategy(CPUS)

    def spec(batch, **kwargs):
        dataset = tf.data.Dataset.from_tensor_slices(np.zeros([8, 3], "float32"))
        return strategy.experimental_distribute_dataset(dataset.batch(batch, **kwargs))

    loose, exact = spec(4), spec(4, drop_remainder=True)
    assert repr(loose.element_spec).startswith("PerReplicaSpec(TensorSpec(shape=(None, 3)")
    assert "shape=(2, 3)" in repr(exact.element_spec) and exact.element_spec != loose.element_spec
    assert int(loose.cardinality()) == 2
    iterator = iter(loose)
    assert iterator.element_spec == loose.element_spec

    @tf.function(input_signature=[iterator.element_spec])
    def total(batch):
        return strategy.reduce("sum", batch, axis=0)

    optional = iterator.get_next_as_optional()
    assert bool(optional.has_value()) and total(optional.get_value()).shape == (3,)
    assert total(next(iterator)).numpy().tolist() == [0, 0, 0]
    assert not bool(iterator.get_next_as_optional().has_value())
    with pytest.raises((TypeError, ValueError), match="input_signature"):
        total(tf.zeros([4, 3]))
