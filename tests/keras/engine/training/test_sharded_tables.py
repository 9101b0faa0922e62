"""Test sharded tables as weights: layers and optimizers train them, files and checkpoints store one
array."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.distribute.parameter_server.variables.sharding import create_in_shards

ROWS, COLUMNS = 10, 4
IDS = np.array([[0, 9, 3], [3, 5, 7]])
TARGETS = np.ones((2, COLUMNS), "f")


def in_shards(count):
    """Return a scope that shards two-dimensional tables."""

    def partitioner(shape, dtype, axis=0):
        return [min(count, shape[0]), 1] if len(shape) == 2 else [1] * len(shape)

    return tf.variable_creator_scope(
        lambda next_creator, **kwargs: create_in_shards(next_creator, partitioner, **kwargs)
    )


def make(count, optimizer="adam"):
    tf.keras.backend.reset_uids()
    tf.keras.utils.set_random_seed(3)
    layers = [
        tf.keras.Input([3], dtype="int32"),
        tf.keras.layers.Embedding(ROWS, COLUMNS),
        tf.keras.layers.GlobalAveragePooling1D(),
        tf.keras.layers.Dense(COLUMNS),
    ]
    if count == 1:
        model = tf.keras.Sequential(layers)
    else:
        with in_shards(count):
            model = tf.keras.Sequential(layers)
    model.compile(tf.keras.optimizers.get({"class_name": optimizer, "config": {}}), "mse")
    return model


def train(model, steps=3):
    for _ in range(steps):
        model.train_on_batch(IDS, TARGETS)
    return model


def whole(model):
    return [np.asarray(w) for w in (model.layers[0].embeddings, model.layers[-1].kernel)]


def test_layers_have_the_shards_as_weights():
    model = make(3)
    table = model.layers[0].embeddings
    assert isinstance(table, tf.distribute.ShardedVariable)
    assert table.name.endswith("embeddings")
    assert [w.shape for w in model.layers[0].trainable_weights] == [(4, 4), (3, 4), (3, 4)]
    assert len(model.trainable_variables) == 3 + 3 + 1
    assert model.count_params() == make(1).count_params()
    np.testing.assert_array_equal(model.predict(IDS, verbose=0), make(1).predict(IDS, verbose=0))


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad", "rmsprop", "ftrl"])
def test_training_equals_an_unsharded_table(optimizer):
    one, parts = (train(make(count, optimizer)) for count in (1, 3))
    for expected, found in zip(whole(one), whole(parts), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(("before", "after"), [(3, 2), (3, 1), (1, 3), (2, 10)])
def test_weights_move_between_numbers_of_shards(before, after, tmp_path):
    saved = train(make(before))
    for name in ("weights", "model.weights.h5", "model.h5"):
        loaded = make(after)
        saved.save_weights(str(tmp_path / name))
        loaded.load_weights(str(tmp_path / name))
        for expected, found in zip(whole(saved), whole(loaded), strict=True):
            np.testing.assert_array_equal(found, expected, err_msg=name)
    loaded = make(after)
    path = tf.train.Checkpoint(model=saved, optimizer=saved.optimizer).save(str(tmp_path / "model"))
    restored = tf.train.Checkpoint(model=loaded, optimizer=loaded.optimizer).restore(path)
    names = [name for name, _ in tf.train.list_variables(path)]
    assert sum("embeddings/.ATTRIBUTES" in name for name in names) == 1
    assert not any("part_" in name for name in names)
    restored.assert_existing_objects_matched()
    for expected, found in zip(whole(saved), whole(loaded), strict=True):
        np.testing.assert_array_equal(found, expected)
    # Slots were restored: both continue equally.
    train(saved), train(loaded)
    restored.assert_consumed()
    for expected, found in zip(whole(saved), whole(loaded), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("suffix", [".keras", ".h5", ""])
def test_saved_model_contains_the_complete_table(suffix, tmp_path):
    saved = train(make(3))
    path = str(tmp_path / f"model{suffix}")
    saved.save(path)
    loaded = tf.keras.models.load_model(path)
    assert isinstance(loaded.layers[0].embeddings, tf.Variable)
    with in_shards(2):
        again = tf.keras.models.load_model(path)
    assert len(again.layers[0].embeddings.variables) == 2
    np.testing.assert_array_equal(whole(again)[0], whole(saved)[0])
    train(saved), train(loaded)
    for expected, found in zip(whole(saved), whole(loaded), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-7)


def test_a_checkpoint_restored_before_the_table_is_built(tmp_path):
    saved = train(make(1))
    path = tf.train.Checkpoint(layer=saved.layers[0]).save(str(tmp_path / "c"))
    layer = tf.keras.layers.Embedding(ROWS, COLUMNS)
    status = tf.train.Checkpoint(layer=layer).restore(path)
    with in_shards(4):
        layer(IDS)
    status.assert_consumed()
    np.testing.assert_array_equal(layer.embeddings, saved.layers[0].embeddings)


def test_a_table_of_another_size_is_refused(tmp_path):
    path = tf.train.Checkpoint(table=make(3).layers[0].embeddings).save(str(tmp_path / "c"))
    small = tf.distribute.ShardedVariable([tf.Variable(tf.zeros([2, COLUMNS]))] * 2, "small")
    with pytest.raises(ValueError, match=r"restore variable with shape \(4, 4\) and name small"):
        tf.train.Checkpoint(table=small).restore(path)
