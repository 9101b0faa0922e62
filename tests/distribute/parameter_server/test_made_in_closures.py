"""Test objects created in closures: variables shared by all workers, created once, and variables of
one closure."""

import numpy as np
import pytest

import meshflow as tf


@pytest.fixture(scope="module", params=["threads", "processes"])
def strategy(request):
    # On a loaded machine, processes start slowly.
    made = tf.distribute.ParameterServerStrategy(
        engine=request.param, workers=2, servers=2, patience=600.0
    )
    yield made
    made.cluster.stop()


@pytest.fixture
def coordinator(strategy):
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


class Model(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.norm = tf.keras.layers.Dense(4), tf.keras.layers.BatchNormalization()
        self.out = tf.keras.layers.Dense(1)

    def call(self, x, training=False):
        return self.out(self.norm(self.hidden(x), training=training))


@pytest.mark.parametrize("compiled", [True, False])
def test_first_closure_builds_the_model(strategy, coordinator, compiled):
    with strategy.scope():
        model, optimizer = Model(), tf.keras.optimizers.Adam(0.01)
        seen = tf.keras.metrics.Mean()

    def data():
        x = np.random.default_rng(0).normal(size=(8, 3)).astype("f")
        return tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(4).repeat()

    def step(iterator):
        x, y = next(iterator)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        seen.update_state(loss)
        return loss

    def evaluate(x):
        return model(x)

    if compiled:
        step, evaluate = tf.function(step), tf.function(evaluate)
    iterator = iter(coordinator.create_per_worker_dataset(data))
    # Their order is unspecified.
    for _ in range(4):
        coordinator.schedule(step, args=(iterator,))
        coordinator.schedule(evaluate, args=(tf.ones([2, 3]),))
    coordinator.join()
    assert (int(optimizer.iterations), float(seen.count)) == (4, 4)
    assert all(v.device.startswith("/job:ps/") for v in model.weights) and len(model.weights) == 8
    # Workers see the coordinator's variables, and there are no others.
    value = coordinator.fetch([coordinator.schedule(evaluate, args=(tf.ones([2, 3]),))] * 2)
    np.testing.assert_allclose(value[0], model(tf.ones([2, 3])), rtol=1e-5)


def test_initial_values_are_those_of_the_coordinator(coordinator):
    tf.keras.utils.set_random_seed(7)
    layer = tf.keras.layers.Dense(2)
    results = [coordinator.schedule(tf.function(lambda x: layer(x)), args=(tf.ones([1, 3]),))]
    results += [coordinator.schedule(lambda x: layer(x), args=(tf.ones([1, 3]),)) for _ in range(3)]
    found = coordinator.fetch(results)
    tf.keras.utils.set_random_seed(7)
    expected = tf.keras.layers.Dense(2)(tf.ones([1, 3]))
    for value in found:
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_unreferenced_variables_belong_to_one_closure(strategy, coordinator):
    def alone():
        mean, total = tf.keras.metrics.Mean(), tf.Variable(0.0)
        mean.update_state(3.0)
        total.assign_add(1.0)
        return mean.result(), total

    assert coordinator.fetch([coordinator.schedule(alone) for _ in range(4)]) == [(3.0, 1.0)] * 4
    before = strategy.num_variables
    assert coordinator.fetch([coordinator.schedule(alone) for _ in range(4)]) == [(3.0, 1.0)] * 4
    assert strategy.num_variables == before


def test_variables_of_datasets_are_the_workers(strategy, coordinator):
    def data():
        scale = tf.Variable(2.0)
        factor = float(scale.assign_add(1.0))
        return tf.data.Dataset.range(4).map(lambda x: tf.cast(x, tf.float32) * factor).repeat()

    before = strategy.num_variables
    iterator = iter(coordinator.create_per_worker_dataset(data))
    found = coordinator.fetch(
        [coordinator.schedule(tf.function(next), args=(iterator,)) for _ in range(4)]
    )
    assert set(found) <= {0.0, 3.0, 6.0, 9.0} and strategy.num_variables == before


def test_a_variable_with_a_traced_initial_value_is_made_once(coordinator):
    class Once(tf.Module):
        total = None

        @tf.function
        def __call__(self, x):
            if self.total is None:
                self.total = tf.Variable(tf.ones_like(x) * 5.0)
            self.total.assign_add(x)
            return self.total.read_value()

    once = Once()
    for _ in range(6):
        coordinator.schedule(once, args=(tf.ones([2]),))
    coordinator.join()
    assert once.total.numpy().tolist() == [11.0, 11.0]


def test_error_in_variable_creation_is_raised_by_the_closure(coordinator):
    layer = tf.keras.layers.Dense(2)

    @tf.function
    def wrong(x):
        raise KeyError(f"after {layer(x).shape}")

    with pytest.raises(KeyError, match="after"):
        coordinator.schedule(wrong, args=(tf.ones([1, 2]),))
        coordinator.join()


def test_concrete_functions_are_traced_again_by_workers(strategy, coordinator):
    with strategy.scope():
        total = tf.Variable(0.0)

    @tf.function
    def add(x, factor=2.0):
        total.assign_add(tf.reduce_sum(x) * factor)
        return tf.reduce_sum(x)

    known = add.get_concrete_function(tf.TensorSpec([2], tf.float32))
    some = add.get_concrete_function(tf.TensorSpec([None], tf.float32), 1.0)
    del add
    results = [coordinator.schedule(f, args=(tf.ones([2]),)) for f in (known, some, known)]
    assert coordinator.fetch(results) == [2.0, 2.0, 2.0]
    assert float(total) == 10.0


class Scores(tf.experimental.ExtensionType):
    __name__ = "closures.Scores"
    rows: tf.RaggedTensor
    scale: tf.Tensor


def test_closures_take_and_return_composite_tensors(strategy, coordinator):
    with strategy.scope():
        table = tf.Variable(tf.reshape(tf.range(8.0), [4, 2]))
    rows = tf.ragged.constant([[1, 2], [], [3]])

    @tf.function
    def embed(rows, scores, sparse):
        changed = Scores(scores.rows * 2, scores.scale + 1.0)
        return tf.nn.embedding_lookup(table, rows), changed, tf.sparse.map_values(tf.square, sparse)

    sparse = tf.sparse.from_dense([[0.0, 2.0], [3.0, 0.0]])
    remote = coordinator.schedule(embed, args=(rows, Scores(rows, 1.0), sparse))
    embedded, scores, squares = remote.get()
    assert embedded.to_list() == [[[2.0, 3.0], [4.0, 5.0]], [], [[6.0, 7.0]]]
    assert isinstance(scores, Scores) and scores.rows.to_list() == [[2, 4], [], [6]]
    assert float(scores.scale) == 2.0
    assert squares.values.numpy().tolist() == [4.0, 9.0]
    # Like TensorFlow, `fetch` converts ragged tensors to arrays of arrays.
    assert [len(row) for row in remote.fetch()[0]] == [2, 0, 1]
