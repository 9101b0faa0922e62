"""Strategies: replicas as one program, values of replicas, variables they share."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

import meshflow as tf
from meshflow.keras.engine.training.global_batch import distribute_input


@pytest.fixture
def strategy():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def per_replica(strategy, values):
    return strategy.experimental_distribute_values_from_function(
        lambda c: tf.constant(values[c.replica_id_in_sync_group])
    )


def test_scope_and_contexts(strategy):
    assert strategy.num_replicas_in_sync == 2
    assert tf.distribute.get_strategy().num_replicas_in_sync == 1
    assert not tf.distribute.has_strategy()
    with strategy.scope():
        assert tf.distribute.get_strategy() is strategy and tf.distribute.has_strategy()
        assert tf.distribute.in_cross_replica_context()
        assert tf.distribute.get_replica_context() is None
        other = tf.distribute.OneDeviceStrategy("CPU:0")
        with pytest.raises(RuntimeError, match="Mixing different"), other.scope():
            pass
    assert tf.distribute.get_replica_context().num_replicas_in_sync == 1


@pytest.mark.parametrize("compiled", [False, True])
def test_run_and_collectives(strategy, compiled):
    def step(x):
        context = tf.distribute.get_replica_context()
        rank = tf.cast(context.replica_id_in_sync_group, tf.float32) + 1.0
        total = context.all_reduce("mean", rank)
        everything = context.all_gather(tf.reshape(rank - 1.0, [1]), axis=0)
        return x * rank, total, everything

    def run(x):
        return strategy.run(step, args=(x,))

    x = per_replica(strategy, [10.0, 20.0])
    scaled, total, everything = (tf.function(run) if compiled else run)(x)
    assert [float(v) for v in strategy.experimental_local_results(scaled)] == [10.0, 40.0]
    assert [float(v) for v in total.values] == [1.5, 1.5]
    np.testing.assert_array_equal(everything.values[1], [0.0, 1.0])
    assert float(strategy.reduce(tf.distribute.ReduceOp.SUM, scaled, axis=None)) == 50.0
    assert float(strategy.reduce("MEAN", scaled, axis=None)) == 25.0
    np.testing.assert_array_equal(strategy.gather(everything, axis=0), [0, 1, 0, 1])


def test_one_worker_writes_checkpoints(strategy):
    for one in (strategy, tf.distribute.get_strategy(), tf.distribute.OneDeviceStrategy("CPU:0")):
        assert one.extended.should_checkpoint and one.extended.should_save_summary
        assert not one.extended._in_multi_worker_mode()


def test_names_of_run_before_2_2(strategy):
    x = per_replica(strategy, [1.0, 2.0])
    doubled = strategy.experimental_run_v2(lambda x, y: x * y, args=(x,), kwargs={"y": 2.0})
    assert [float(v) for v in doubled.values] == [2.0, 4.0]
    assert [float(v) for v in strategy.experimental_run(lambda: tf.constant(3.0)).values] == [3, 3]
    batches = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2)))
    assert [int(v) for v in strategy.experimental_run(tf.reduce_sum, batches).values] == [0, 1]


def test_means_of_integers_have_fractions(strategy):
    def rank():
        return tf.distribute.get_replica_context().replica_id_in_sync_group

    ranks = strategy.run(lambda: tf.fill([2, 3], rank()))
    whole = strategy.reduce("MEAN", ranks, axis=None)
    assert whole.dtype == tf.float64 and whole.numpy().tolist() == [[0.5] * 3] * 2
    assert strategy.reduce("MEAN", ranks, axis=-1).numpy().tolist() == [0.5, 0.5]
    assert float(strategy.reduce("MEAN", ranks, axis=(0, 1))) == 0.5
    assert int(strategy.reduce("SUM", ranks, axis=[0, 1])) == 6
    inside = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("mean", rank()))
    assert inside.values[0].dtype == tf.float64 and float(inside.values[1]) == 0.5
    one = tf.distribute.OneDeviceStrategy("CPU:0")
    assert float(one.reduce("MEAN", tf.constant([1, 2]), axis=0)) == 1.5


def test_uneven_values_reduce_over_all_elements(strategy):
    uneven = strategy.experimental_distribute_values_from_function(
        lambda c: tf.constant([[1.0, 2.0], [3.0]][c.replica_id_in_sync_group])
    )
    assert float(strategy.reduce("MEAN", uneven, axis=0)) == 2.0
    with pytest.raises(tf.errors.InvalidArgumentError, match="different shapes"):
        strategy.reduce("SUM", uneven, axis=None)
    doubled = strategy.run(lambda x: 2 * x, args=(uneven,))
    assert [v.numpy().tolist() for v in doubled.values] == [[2.0, 4.0], [6.0]]


def test_aggregation_of_replica_assignments(strategy):
    aggregation = tf.VariableAggregation
    with strategy.scope():
        total = tf.Variable(0.0, aggregation=aggregation.SUM)
        first = tf.Variable(0.0, aggregation=aggregation.ONLY_FIRST_REPLICA)
        mean = tf.Variable(0.0, aggregation=aggregation.MEAN)
        plain = tf.Variable(0.0)
        own = tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=aggregation.SUM,
        )
    x = per_replica(strategy, [1.0, 2.0])

    @tf.function
    def step(x):
        def replica(x):
            total.assign(x)
            first.assign(x)
            mean.assign_add(x)
            plain.assign_add(1.0)
            own.assign_add(x)
            return own.read_value()

        return strategy.run(replica, args=(x,))

    result = step(x)
    assert [float(v) for v in result.values] == [1.0, 2.0]
    assert (float(total), float(first), float(mean), float(plain)) == (3.0, 1.0, 1.5, 1.0)
    assert float(own) == 3.0 and not own.trainable
    step(x)
    assert float(own) == 6.0 and float(own.numpy()) == 6.0
    own.assign(5.0)
    assert float(own) == 5.0
    with pytest.raises(ValueError, match="different values"):
        strategy.run(lambda x: plain.assign(x), args=(x,))


def test_losses_scale_with_the_strategy(strategy):
    with strategy.scope():
        losses = tf.constant([1.0, 2.0, 3.0])
        assert float(tf.nn.compute_average_loss(losses)) == 1.0
        assert float(tf.nn.compute_average_loss(losses, global_batch_size=8)) == 0.75
        assert float(tf.nn.scale_regularization_loss(tf.constant(4.0))) == 2.0
    assert float(tf.nn.compute_average_loss(losses)) == 2.0


def test_scopes_of_other_threads_do_not_count(strategy):
    found = []
    losses = tf.constant([1.0, 2.0, 3.0])
    with strategy.scope():
        other = threading.Thread(
            target=lambda: found.append(float(tf.nn.compute_average_loss(losses)))
        )
        other.start()
        other.join()
    assert found == [2.0]


def test_custom_loop_equals_one_device(rng):
    x = rng.normal(size=(32, 5)).astype("float32")
    y = rng.normal(size=(32, 1)).astype("float32")

    def train(strategy):
        tf.keras.backend.reset_uids()
        tf.random.set_seed(1)
        with strategy.scope():
            model = tf.keras.Sequential(
                [tf.keras.layers.Dense(4, "tanh", input_shape=(5,)), tf.keras.layers.Dense(1)]
            )
            optimizer = tf.keras.optimizers.Adam(0.05)
            metric = tf.keras.metrics.MeanSquaredError()

        def step(inputs):
            features, targets = inputs
            with tf.GradientTape() as tape:
                errors = tf.reduce_sum((model(features) - targets) ** 2, axis=-1)
                loss = tf.nn.compute_average_loss(errors, global_batch_size=8)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            metric.update_state(targets, model(features))
            return loss

        @tf.function
        def train_step(inputs):
            return strategy.reduce("SUM", strategy.run(step, args=(inputs,)), axis=None)

        batches = [(x[i : i + 8], y[i : i + 8]) for i in range(0, 32, 8)]
        dataset = strategy.experimental_distribute_dataset(batches)
        losses = [float(train_step(batch)) for _ in range(2) for batch in dataset]
        return losses, [w.numpy() for w in model.weights], float(metric.result())

    one = train(tf.distribute.OneDeviceStrategy("CPU:0"))
    four = train(tf.distribute.MirroredStrategy())
    np.testing.assert_allclose(four[0], one[0], rtol=1e-5)
    for a, b in zip(four[1], one[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(four[2], one[2], rtol=1e-5)


def test_batches_are_split_as_tensorflow_does(strategy):
    parts = [
        [v.numpy().tolist() for v in b.values]
        for b in strategy.experimental_distribute_dataset([np.arange(4), np.arange(4, 7)])
    ]
    assert parts == [[[0, 1], [2, 3]], [[4, 5], [6]]]

    def input_fn(context):
        size = context.get_per_replica_batch_size(4)
        return [np.arange(i, i + size) for i in range(0, 6, size)]

    own = list(strategy.distribute_datasets_from_function(input_fn))
    assert [v.numpy().tolist() for v in own[1].values] == [[4, 5], []]
    with pytest.raises(ValueError, match="not divisible"):
        strategy.distribute_datasets_from_function(lambda c: c.get_per_replica_batch_size(3))


def test_merge_call_sees_all_replicas(strategy):
    def step(x):
        context = tf.distribute.get_replica_context()
        return context.merge_call(lambda s, v: s.reduce("SUM", v, axis=None), args=(x,))

    result = strategy.run(step, args=(per_replica(strategy, [1.0, 2.0]),))
    assert [float(v) for v in result.values] == [3.0, 3.0]


def test_replicas_draw_different_random_numbers(strategy):
    draw = tf.function(lambda: strategy.run(lambda: tf.random.normal([3])))
    a, b = draw().values
    assert not np.allclose(a, b)


def test_values_from_a_function_may_be_nested(strategy):
    values = strategy.experimental_distribute_values_from_function(
        lambda context: {"a": tf.constant(context.replica_id_in_sync_group), "b": (2,)}
    )
    found = strategy.run(lambda v: v["a"] + v["b"][0], args=(values,))
    assert [int(v) for v in found.values] == [2, 3]


def test_variable_created_in_replicas_is_returned(strategy):
    def replica():
        return {"v": tf.Variable(1.0, name="made"), "x": tf.constant(2.0)}

    found = strategy.run(replica)
    assert found["v"].name == "made:0" and len(found["v"].values) == 2
    strategy.run(lambda: found["v"].assign(5.0))
    assert float(found["v"]) == 5.0


def test_default_strategy_returns_datasets_unchanged():
    default, dataset = tf.distribute.get_strategy(), tf.data.Dataset.range(3)
    assert default.experimental_distribute_dataset(dataset) is dataset
    assert default.distribute_datasets_from_function(lambda context: dataset) is dataset


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_by_rows(strategy, compiled):
    with strategy.scope():
        table = tf.Variable(np.zeros((4, 2), np.float32))

    def gradient():
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(tf.gather(table, [number, 3]))
        return tape.gradient(y, table)

    run = lambda: strategy.run(gradient)
    found = tf.function(run)() if compiled else run()
    local = strategy.experimental_local_results(found)
    assert [part.indices.numpy().tolist() for part in local] == [[0, 3], [1, 3]]
    total = strategy.reduce("SUM", found, axis=None)
    assert tf.convert_to_tensor(total).numpy()[:, 0].tolist() == [1, 1, 0, 2]


def test_iterators_are_distributed_over_workers_like_datasets():
    calls = []
    strategy = SimpleNamespace(num_workers=2, experimental_distribute_dataset=calls.append)
    model = SimpleNamespace(_strategy_at_compile=strategy)
    dataset = tf.data.Dataset.range(3)
    iterator = iter(dataset)
    distribute_input(model, dataset)
    distribute_input(model, iterator)
    assert calls == [dataset, iterator]
    assert distribute_input(model, calls) is calls


def test_results_and_options_of_a_structure():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    replica_id = lambda: tf.distribute.get_replica_context().replica_id_in_sync_group
    values = strategy.run(lambda: {"id": replica_id(), "constant": 3, "pair": (replica_id(), 1)})
    first, second = strategy.experimental_local_results(values)
    assert int(first["id"]) == 0 and int(second["id"]) == int(second["pair"][0]) == 1
    assert first["constant"] == second["constant"] == 3
    single = tf.distribute.OneDeviceStrategy("CPU:0")
    assert single.experimental_local_results([1, 2]) == ([1, 2],)
    with strategy.scope():
        variable = tf.Variable(1.0, aggregation=None, synchronization=None)
    assert variable.distribute_strategy is strategy
    assert float(strategy.extended.read_var(variable)) == 1.0
    options = tf.distribute.InputOptions(experimental_per_replica_buffer_size=2)
    assert options == tf.distribute.InputOptions(None, experimental_per_replica_buffer_size=2)
    iterator = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(4)))
    next(iterator)
    assert iterator.initialize() == []
    batch = strategy.experimental_local_results(next(iterator))
    assert [part.numpy().tolist() for part in batch] == [[0, 1], [2, 3]]
