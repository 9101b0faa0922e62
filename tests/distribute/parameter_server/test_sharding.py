"""Tables in shards on parameter servers: lookups, training by rows, checkpoints; a wide-and-deep model."""

import contextlib

import numpy as np
import pytest

import meshflow as tf
from helpers import rounds

PARTITIONERS = tf.distribute.experimental.partitioners


@pytest.fixture
def strategy():
    made = tf.distribute.ParameterServerStrategy(
        engine="threads",
        workers=2,
        servers=3,
        variable_partitioner=PARTITIONERS.MinSizePartitioner(min_shard_bytes=64, max_shards=3),
    )
    yield made
    made.cluster.stop()


def test_variables_are_sharded_over_servers(strategy):
    with strategy.scope():
        table = tf.Variable(np.arange(64, dtype="f").reshape(16, 4), name="table")
        small = tf.Variable([1.0, 2.0])
    assert isinstance(table, tf.distribute.ShardedVariable) and isinstance(small, tf.Variable)
    assert [v.name for v in table.variables] == [f"table/part_{i}:0" for i in range(3)]
    assert [v.shape[0] for v in table.variables] == [6, 5, 5]
    assert len({v.servers for v in table.variables}) == 3
    np.testing.assert_array_equal(table, np.arange(64).reshape(16, 4))
    table.scatter_add(tf.IndexedSlices(np.ones((1, 4), "f"), np.array([15])))
    np.testing.assert_array_equal(table[15], np.arange(60, 64) + 1)


def test_variables_with_explicit_shape_are_sharded(strategy):
    with strategy.scope():
        made = tf.Variable(lambda: tf.ones([16, 4]), shape=[16, 4], dtype=tf.float32)
        loose = tf.Variable(tf.ones([16, 4]), shape=[None, 4])
        with pytest.raises(ValueError, match="compatible"):
            tf.Variable(tf.ones([16, 4]), shape=[15, 4])
        with strategy.extended.colocate_vars_with(made.variables[2]):
            beside = tf.Variable(0.0)
        with strategy.extended.colocate_vars_with(made):
            first = tf.Variable(0.0)
    for table in (made, loose):
        assert [v.shape.as_list() for v in table.variables] == [[6, 4], [5, 4], [5, 4]]
    assert beside.device == made.variables[2].device != made.variables[0].device == first.device
    assert strategy.extended.variable_created_in_scope(made)


def test_more_shards_than_rows():
    strategy = tf.distribute.ParameterServerStrategy(
        engine="threads", variable_partitioner=lambda shape, dtype, axis=0: [9, 1]
    )
    with strategy.scope(), pytest.raises(ValueError, match="9 parts, but it has only 4 rows"):
        tf.Variable(tf.zeros([4, 2]))


def test_closures_train_the_rows_they_look_up(strategy):
    with strategy.scope():
        table = tf.Variable(tf.ones([16, 4]))
        optimizer = tf.keras.optimizers.Adagrad(1.0)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    sent = []
    for server in strategy.cluster.servers:

        def exchange(push, *args, _exchange=server.exchange):
            steps = [] if push is None else push.steps
            sent.extend(len(g.indices) for step in steps for g in step.gradients)
            return _exchange(push, *args)

        server.exchange = exchange

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(table, ids))
        gradients = tape.gradient(loss, table.variables)
        optimizer.apply_gradients(zip(gradients, table.variables, strict=True))
        return loss

    losses = [coordinator.schedule(step, args=(tf.constant(ids),)) for ids in ([0, 7], [7, 15])]
    coordinator.join()
    assert sum(sent) == 4
    changed = np.flatnonzero((table.numpy() != 1).any(1))
    assert changed.tolist() == [0, 7, 15]
    # Either closure may read row 7 after the other has changed it.
    assert max(coordinator.fetch(losses)) == 8.0


def wide_and_deep(rows, columns):
    numbers = tf.keras.Input([3], name="numbers")
    words = tf.keras.Input([5], dtype="int64", name="words")
    deep = tf.keras.layers.Embedding(rows, columns, name="table")(words)
    deep = tf.keras.layers.GlobalAveragePooling1D()(deep)
    deep = tf.keras.layers.Dense(8, activation="relu")(
        tf.keras.layers.Concatenate()([deep, numbers])
    )
    wide = tf.keras.layers.Embedding(rows, 1, name="weights")(words)
    wide = tf.keras.layers.GlobalAveragePooling1D()(wide)
    output = tf.keras.layers.Dense(1)(tf.keras.layers.Concatenate()([wide, deep]))
    model = tf.keras.Model([numbers, words], output)
    model.compile(
        tf.keras.optimizers.Adagrad(0.5), tf.keras.losses.BinaryCrossentropy(from_logits=True)
    )
    return model


def clicks(rows, count=256, seed=0):
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 40, [count, 5]) * (rows // 40)
    numbers = rng.normal(size=[count, 3]).astype("f")
    labels = ((words // (rows // 40)) % 2).mean(1) > 0.5
    data = tf.data.Dataset.from_tensor_slices(
        ({"numbers": numbers, "words": words}, labels.astype("f")[:, None])
    )
    return data.batch(32)


def test_a_wide_and_deep_model_with_a_large_table(strategy, tmp_path):
    # A million rows need three GB, with slots and copies.
    rows = rounds(20_000, 1_000_000)
    with strategy.scope():
        model = wide_and_deep(rows, 64)
    table = model.get_layer("table").embeddings
    assert table.shape == (rows, 64) and len(table.variables) == 3
    before = table[:200].numpy()
    history = model.fit(clicks(rows).repeat(), epochs=8, steps_per_epoch=16, verbose=0)
    assert history.history["loss"][-1] < 0.8 * history.history["loss"][0]
    # Rows without lookups are unchanged.
    np.testing.assert_array_equal(table[1:200], before[1:])
    assert (table[0] != before[0]).numpy().any()
    found = model.predict(clicks(rows), verbose=0)
    whole = tf.keras.models.clone_model(model)
    path = str(tmp_path / "weights")
    model.save_weights(path)
    whole.load_weights(path)
    assert isinstance(whole.get_layer("table").embeddings, tf.Variable)
    np.testing.assert_allclose(whole.predict(clicks(rows), verbose=0), found, atol=1e-5)


@pytest.mark.parametrize("shards", [1, pytest.param(2, marks=pytest.mark.soak), 5])
def test_checkpoints_fit_other_numbers_of_shards(strategy, shards, tmp_path):
    with strategy.scope():
        model = wide_and_deep(80, 4)
    model.fit(clicks(80).repeat(), steps_per_epoch=4, verbose=0)
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(tmp_path / "ckpt"))
    other = tf.distribute.ParameterServerStrategy(
        engine="threads", variable_partitioner=PARTITIONERS.FixedShardsPartitioner(shards)
    )
    with other.scope():
        loaded = wide_and_deep(80, 4)
    status = tf.train.Checkpoint(model=loaded, optimizer=loaded.optimizer).restore(path)
    loaded.fit(clicks(80).repeat(), steps_per_epoch=1, verbose=0)
    status.assert_existing_objects_matched()
    tf.train.Checkpoint(model=loaded, optimizer=loaded.optimizer).restore(path)
    for name in ("table", "weights"):
        ours, theirs = model.get_layer(name).embeddings, loaded.get_layer(name).embeddings
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())

        def slot(m, v):
            parts = getattr(v, "variables", [v])
            return np.concatenate([m.optimizer.get_slot(p, "accumulator").numpy() for p in parts])

        np.testing.assert_array_equal(slot(model, ours), slot(loaded, theirs))


@pytest.mark.parametrize("cut", [False, True])
def test_saved_models_with_tables_are_loaded_in_and_out_of_scopes(strategy, cut, tmp_path):
    module, path = tf.Module(), str(tmp_path)
    values = np.arange(40, dtype=np.float32).reshape(10, 4)
    with strategy.scope() if cut else contextlib.nullcontext():
        module.table = tf.Variable(values)
    assert hasattr(module.table, "variables") == cut

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def look_up(rows):
        return tf.nn.embedding_lookup(module.table, rows)

    @tf.function(input_signature=[])
    def grow():
        for part in getattr(module.table, "variables", [module.table]):
            part.assign_add(tf.ones_like(part))

    module.look_up, module.grow = look_up, grow
    tf.saved_model.save(module, path)
    rows = tf.constant([9, 0], tf.int64)
    for scope in (contextlib.nullcontext(), strategy.scope()):
        with scope:
            loaded = tf.saved_model.load(path)
        np.testing.assert_array_equal(loaded.table.numpy(), values)
        np.testing.assert_array_equal(loaded.look_up(rows), values[[9, 0]])
        # The function and the attribute have the same variables.
        loaded.table.assign(values + 1.0)
        np.testing.assert_array_equal(loaded.look_up(rows), values[[9, 0]] + 1.0)
        loaded.grow()
        np.testing.assert_array_equal(loaded.table.numpy(), values + 2.0)
    assert all(v.device.startswith("/job:ps/") for v in loaded.table.variables)
    # Writes by functions of a file in closures are made on the servers.
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    coordinator.schedule(tf.function(lambda: loaded.grow()))
    coordinator.join()
    np.testing.assert_array_equal(loaded.table.numpy(), values + 3.0)
