"""Keras' `fit`, `evaluate` and `predict` with parameter servers."""

import numpy as np
import pytest

import meshflow as tf

X = np.random.default_rng(0).normal(size=(64, 3)).astype("f")
Y = X @ np.array([[1.0], [-2.0], [0.5]], "f")


def dataset(batch=8, repeat=True):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch)
    return data.repeat() if repeat else data


def make(strategy=None, optimizer=None, metrics=("mae",), **settings):
    def build():
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile(
            optimizer or tf.keras.optimizers.SGD(0.05), "mse", metrics=list(metrics), **settings
        )
        return model

    if strategy is None:
        return build()
    with strategy.scope():
        return build()


@pytest.fixture
def strategy():
    made = tf.distribute.ParameterServerStrategy(engine="threads", workers=2, servers=2)
    yield made
    made.cluster.stop()


def creator(context):
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    data = data.shuffle(64, seed=context.input_pipeline_id).repeat()
    return data.batch(context.get_per_replica_batch_size(8)).prefetch(2)


def test_fit_learns(strategy):
    model = make(strategy)
    history = model.fit(
        tf.keras.utils.experimental.DatasetCreator(creator), epochs=6, steps_per_epoch=16, verbose=0
    )
    assert sorted(history.history) == ["loss", "mae"] and len(history.history["loss"]) == 6
    assert history.history["loss"][-1] < 0.02 < history.history["loss"][0]
    assert int(model.optimizer.iterations) == 6 * 16
    np.testing.assert_allclose(model.predict(X, verbose=0), Y, atol=0.5)


def test_one_worker_equals_fit():
    single = tf.distribute.ParameterServerStrategy(engine="threads", workers=1)
    pairs = []
    for of in (single, None):
        model = make(of)
        history = model.fit(dataset(), epochs=2, steps_per_epoch=8, verbose=0)
        result = model.evaluate(dataset(repeat=False), verbose=0)
        pairs.append((history.history, result, model.get_weights()))
    for name in ("loss", "mae"):
        np.testing.assert_allclose(pairs[0][0][name], pairs[1][0][name], rtol=1e-5)
    np.testing.assert_allclose(pairs[0][1], pairs[1][1], rtol=1e-5)
    for found, expected in zip(pairs[0][2], pairs[1][2], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("shards", [0, 3, "auto"])
def test_evaluation_sees_every_batch_once(strategy, shards):
    model = make(strategy, pss_evaluation_shards=shards)
    model.fit(dataset(), steps_per_epoch=4, verbose=0)
    plain = make()
    plain.build((None, 3))
    plain.set_weights(model.get_weights())
    expected = plain.evaluate(X, Y, batch_size=8, verbose=0)
    found = model.evaluate(dataset(repeat=False), verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert sum(int(m.count) for m in model.compiled_loss.metrics) == 64
    # Arrays and creators too.
    np.testing.assert_allclose(model.evaluate(X, Y, batch_size=8, verbose=0), expected, rtol=1e-5)
    if shards:
        whole = tf.keras.utils.DatasetCreator(lambda context: dataset(repeat=False))
        np.testing.assert_allclose(model.evaluate(whole, verbose=0), expected, rtol=1e-5)


def test_evaluation_of_some_steps_and_inline(strategy):
    model = make(strategy)
    history = model.fit(
        dataset(),
        epochs=2,
        steps_per_epoch=4,
        validation_data=tf.keras.utils.DatasetCreator(creator),
        validation_steps=3,
        verbose=0,
    )
    assert len(history.history["val_loss"]) == 2
    assert isinstance(model.evaluate(dataset(), steps=2, verbose=0), list)
    assert int(model.compiled_loss.metrics[0].count) == 16
    assert model.evaluate(dataset(), steps=2, verbose=0, return_dict=True).keys() == {"loss", "mae"}


def test_arrays_are_shuffled_for_every_worker(strategy):
    model = make(strategy)
    history = model.fit(X, Y, batch_size=16, epochs=20, verbose=0, validation_split=0.25)
    assert int(model.optimizer.iterations) == 20 * 3
    assert history.history["val_loss"][-1] < history.history["val_loss"][0]


def test_finite_dataset_determines_steps_per_epoch(strategy):
    model = make(strategy)
    model.fit(dataset(repeat=False), epochs=3, verbose=0)
    assert int(model.optimizer.iterations) == 3 * 8


def test_compile_uses_the_scope_of_the_model(strategy):
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
        own = tf.keras.metrics.MeanSquaredError()
    with pytest.raises(ValueError, match=r"Metric mean_squared_error passed to `model.compile`"):
        model.compile("sgd", "mse", metrics=[tf.keras.metrics.MeanSquaredError()])
    model.compile("sgd", "mse", metrics=[own], weighted_metrics=["mae"])
    assert model.distribute_strategy is strategy
    history = model.fit(dataset(), steps_per_epoch=4, verbose=0)
    assert sorted(history.history) == ["loss", "mae", "mean_squared_error"]
    assert int(own.count) == 4 * 8
    plain = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,), name="away")])
    with strategy.scope(), pytest.raises(ValueError, match=r"away/kernel:0. was not created in"):
        plain.compile("sgd", "mse")


def test_required_arguments(strategy):
    model = make(strategy)
    with pytest.raises(ValueError, match=r"DatasetCreator`, `steps_per_epoch`, `validation_steps`"):
        model.fit(tf.keras.utils.DatasetCreator(creator), verbose=0)
    with pytest.raises(ValueError, match="`steps_per_epoch` must be specified"):
        model.fit(dataset(repeat=False).filter(lambda x, y: True), verbose=0)
    with pytest.raises(ValueError, match="infinite dataset"):
        model.fit(dataset(), verbose=0)
    with pytest.raises(ValueError, match="`verbose=1` is not allowed"):
        model.fit(dataset(), steps_per_epoch=1, verbose=1)
    with pytest.raises(ValueError, match="infinite dataset"):
        model.evaluate(dataset(), verbose=0)
    with pytest.raises(ValueError, match="exact evaluation, the dataset must be finite"):
        make(strategy, pss_evaluation_shards=2).evaluate(dataset(), verbose=0)
    model.run_eagerly = True
    with pytest.raises(ValueError, match="`run_eagerly` is not supported"):
        model.fit(dataset(), steps_per_epoch=1, verbose=0)
    with pytest.raises(ValueError, match="pss_evaluation_shards must be"):
        make(strategy, pss_evaluation_shards=-1)


def test_callbacks_hear_of_epochs_only(strategy, tmp_path):
    model, seen = make(strategy), []
    listening = tf.keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append((epoch, sorted(logs)))
    )
    path = str(tmp_path / "ckpt-{epoch}")
    saving = tf.keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    board = tf.keras.callbacks.TensorBoard(str(tmp_path / "board"), update_freq=2)
    rate = tf.keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    model.fit(
        dataset(),
        epochs=2,
        steps_per_epoch=3,
        verbose=0,
        callbacks=[listening, saving, rate, board],
    )
    assert [epoch for epoch, _ in seen] == [0, 1] and seen[0][1][:2] == ["loss", "mae"]
    assert float(model.optimizer.learning_rate) == pytest.approx(0.0125)
    loaded = make()
    loaded.build((None, 3))
    loaded.load_weights(str(tmp_path / "ckpt-2"))
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])

    class OnBatch(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            pass

    hooked = tf.keras.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: None)
    for refused in (OnBatch(), hooked):
        with pytest.raises(ValueError, match="Batch-level `Callback`s are not supported"):
            model.fit(dataset(), steps_per_epoch=1, verbose=0, callbacks=[refused])


def test_early_stopping_and_the_lines_of_epochs(strategy, capsys):
    model = make(strategy)
    stop = tf.keras.callbacks.EarlyStopping("loss", min_delta=1e9, patience=0)
    history = model.fit(dataset(), epochs=9, steps_per_epoch=3, callbacks=[stop])
    assert len(history.history["loss"]) == 2
    assert "3/3 - " in capsys.readouterr().out


def test_data_that_end(strategy):
    model = make(strategy)
    with pytest.warns(UserWarning, match="ran out of data"):
        history = model.fit(dataset(repeat=False), epochs=5, steps_per_epoch=12, verbose=0)
    # Each of two workers has eight batches.
    assert 1 <= len(history.history["loss"]) <= 2
    assert 8 <= int(model.optimizer.iterations) <= 16


def test_an_error_of_a_worker_reaches_fit(strategy):
    class Broken(tf.keras.Sequential):
        def train_step(self, data):
            if tf.distribute.get_strategy() is not None and self.broken:
                raise ZeroDivisionError("a step that fails")
            return super().train_step(data)

    with strategy.scope():
        model = Broken([tf.keras.layers.Dense(1)])
        model.broken = False
        model.compile("sgd", "mse")
    model.fit(dataset(), steps_per_epoch=2, verbose=0)
    model.broken = True
    model.compile("sgd", "mse")
    with pytest.raises(ZeroDivisionError, match="a step that fails"):
        model.fit(dataset(), steps_per_epoch=2, verbose=0)


def test_saved_models_resume_training(strategy, tmp_path):
    with strategy.scope():
        optimizer = tf.keras.optimizers.Adam(0.05)
    model = make(strategy, optimizer)
    model.fit(dataset(), epochs=2, steps_per_epoch=8, verbose=0)
    model.save(tmp_path / "model.keras")
    plain = tf.keras.models.load_model(tmp_path / "model.keras")
    for found, expected in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert int(plain.optimizer.iterations) == 16
    with strategy.scope():
        again = tf.keras.models.load_model(tmp_path / "model.keras")
    again.fit(dataset(), steps_per_epoch=8, verbose=0)
    assert int(again.optimizer.iterations) == 24


def test_class_weights_and_several_steps_per_execution(strategy):
    model = make(strategy, metrics=(), steps_per_execution=4)
    labels = (Y[:, 0] > 0).astype("int32")
    data = tf.data.Dataset.from_tensor_slices((X, labels)).batch(8).repeat()
    history = model.fit(data, steps_per_epoch=6, class_weight={0: 0.0, 1: 0.0}, verbose=0)
    assert history.history["loss"] == [0.0]
    assert int(model.optimizer.iterations) == 6


def test_backups_resume_at_the_epoch(strategy, tmp_path):
    class Stops(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    def fit(*callbacks):
        model = make(strategy)
        backup = tf.keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
        model.fit(dataset(), epochs=4, steps_per_epoch=4, verbose=0, callbacks=[backup, *callbacks])
        return model

    with pytest.raises(KeyboardInterrupt):
        fit(Stops())
    assert int(fit().optimizer.iterations) == 16


def test_other_strategies_accept_dataset_creators():
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    model = make(mirrored)
    seen = []

    def dataset_fn(context):
        seen.append(context.num_replicas_in_sync)
        return dataset(batch=context.get_per_replica_batch_size(16))

    source = tf.keras.utils.DatasetCreator(dataset_fn, tf.distribute.InputOptions())
    model.fit(source, steps_per_epoch=3, verbose=0)
    model.evaluate(source, steps=1, verbose=0)
    assert model.predict(source, steps=2, verbose=0).shape == (32, 1)
    assert set(seen) == {2}


def test_wrong_creators():
    make_creator = tf.keras.utils.experimental.DatasetCreator
    with pytest.raises(TypeError, match=r"must be a `callable`. Received: 3"):
        make_creator(3)
    with pytest.raises(TypeError, match=r"must be a `tf.distribute.InputOptions`. Received: 3"):
        make_creator(creator, 3)
    with pytest.raises(TypeError, match=r'must return a Dataset. It returns "1"'):
        make_creator(lambda context: 1)(tf.distribute.InputContext())
    model = make()
    with pytest.raises(ValueError, match="`y` argument is not supported"):
        model.fit(make_creator(creator), Y, steps_per_epoch=1)


def test_metrics_with_sharded_state():
    halves = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    strategy = tf.distribute.ParameterServerStrategy(
        engine="threads", servers=2, variable_partitioner=halves
    )
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, "sigmoid")])
        model.compile("sgd", "binary_crossentropy", metrics=[tf.keras.metrics.AUC(name="auc")])
    labels = (Y > 0).astype("f")
    data = tf.data.Dataset.from_tensor_slices((X, labels)).batch(16)
    model.fit(data.repeat(), epochs=3, steps_per_epoch=8, verbose=0)
    found = model.evaluate(data, verbose=0, return_dict=True)
    expected = tf.keras.metrics.AUC()
    expected.update_state(labels, model.predict(X, verbose=0))
    assert found["auc"] == pytest.approx(float(expected.result()), abs=1e-5)
    strategy.cluster.stop()
