"""`DenseFeatures` as the first layer of models that train on structured data."""

import numpy as np
import pytest

import meshflow as tf

fc = tf.feature_column
DATA = {
    "age": np.array([20, 35, 70, 50]),
    "kind": np.array(["cat", "dog", "cat", "cow"]),
    "size": np.array([1.5, 0.5, 2.0, 1.0]),
}
LABELS = np.array([0.0, 1.0, 1.0, 0.0], "float32")


def columns():
    kind = fc.categorical_column_with_vocabulary_list("kind", ["cat", "dog"])
    age = fc.numeric_column("age")
    ones = tf.keras.initializers.Ones()
    return [
        fc.numeric_column("size"),
        fc.bucketized_column(age, [30, 60]),
        fc.indicator_column(kind),
        fc.embedding_column(kind, 2, initializer=ones),
    ]


def inputs():
    kinds = {"age": "int64", "kind": "string", "size": "float32"}
    return {key: tf.keras.Input((1,), name=key, dtype=dtype) for key, dtype in kinds.items()}


def sequential():
    return tf.keras.Sequential([tf.keras.layers.DenseFeatures(columns()), head()])


def functional():
    given = inputs()
    return tf.keras.Model(given, head()(tf.keras.layers.DenseFeatures(columns())(given)))


def wide_and_deep():
    given, (size, age, wide, deep) = inputs(), columns()
    parts = [tf.keras.layers.DenseFeatures(c)(given) for c in ([wide], [size, age, deep])]
    return tf.keras.Model(given, head()(tf.keras.layers.concatenate(parts)))


def head():
    return tf.keras.layers.Dense(1, kernel_initializer="ones")


def batches():
    return tf.data.Dataset.from_tensor_slices((DATA, LABELS)).batch(2)


def test_columns_are_in_order_of_their_names():
    layer = tf.keras.layers.DenseFeatures(columns())
    found = {}
    whole = layer({key: value[:1] for key, value in DATA.items()}, cols_to_output_tensors=found)
    assert [c.name for c in found] == ["age_bucketized", "kind_embedding", "kind_indicator", "size"]
    assert whole.numpy().tolist() == [[1, 0, 0, 1, 1, 1, 0, 1.5]]
    assert [w.name for w in layer.weights] == ["dense_features/kind_embedding/embedding_weights:0"]


@pytest.mark.parametrize("build", [sequential, functional])
def test_compiled_training_equals_eager_training(build):
    histories = []
    for eagerly in (False, True):
        model = build()
        model.compile(tf.keras.optimizers.SGD(0.01), "mse", run_eagerly=eagerly)
        histories.append(model.fit(batches(), epochs=2, verbose=0).history["loss"])
        assert not np.allclose(model.layers[-2].get_weights()[0], 1.0)
    np.testing.assert_allclose(*histories, rtol=1e-5)


@pytest.mark.parametrize("build", [sequential, functional, wide_and_deep])
def test_text_is_looked_up_before_a_compiled_step(build, monkeypatch):
    model = build()
    layer = next(l for l in model.layers if isinstance(l, tf.keras.layers.DenseFeatures))
    calls, call = [], layer.call
    monkeypatch.setattr(layer, "call", lambda *a, **k: calls.append(1) or call(*a, **k))
    model.compile("sgd", "mse")
    model.fit(batches(), epochs=3, verbose=0)
    traced = len(calls)
    model.fit(batches(), epochs=3, verbose=0)
    assert len(calls) == traced


def test_predictions_of_a_dictionary_of_arrays():
    model = sequential()
    model.compile("sgd", "mse")
    whole = model.predict(DATA, verbose=0)
    assert whole.shape == (4, 1)
    first = model({key: value[:1] for key, value in DATA.items()})
    np.testing.assert_allclose(whole[:1], first.numpy(), rtol=1e-6)


def test_a_configuration_makes_the_columns_again():
    kind = fc.categorical_column_with_identity("kind", 3)
    shared = fc.shared_embeddings([kind, fc.categorical_column_with_identity("other", 3)], 2)
    layer = tf.keras.layers.DenseFeatures([*shared, *columns()], name="features")
    again = tf.keras.layers.DenseFeatures.from_config(layer.get_config())
    features = {**DATA, "kind": [1, 2, 0, 1], "other": [0, 0, 1, 1]}
    del features["age"], features["size"]
    assert again.name == "features"
    assert [c.name for c in again._feature_columns] == [c.name for c in layer._feature_columns]
    again = tf.keras.layers.DenseFeatures.from_config(
        tf.keras.layers.DenseFeatures(shared).get_config()
    )
    assert again(features).shape == (4, 4) and len(again.weights) == 1


def test_a_saved_model_reads_features_again(tmp_path):
    model = functional()
    expected = model.predict(DATA, verbose=0)
    model.save(str(tmp_path / "model.h5"))
    loaded = tf.keras.models.load_model(str(tmp_path / "model.h5"))
    np.testing.assert_allclose(loaded.predict(DATA, verbose=0), expected, rtol=1e-6)


def test_mistakes_are_named():
    layers, kind = tf.keras.layers, fc.categorical_column_with_identity("kind", 3)
    with pytest.raises(ValueError, match="wrap a categorical column"):
        layers.DenseFeatures([kind])
    with pytest.raises(ValueError, match="must not be empty"):
        layers.DenseFeatures([])
    with pytest.raises(ValueError, match="Duplicate feature column name"):
        layers.DenseFeatures([fc.numeric_column("a"), fc.numeric_column("a", shape=2)])
    layer = layers.DenseFeatures([fc.numeric_column("a")])
    with pytest.raises(ValueError, match="Feature a is not in features dictionary"):
        layer({"b": [1.0]})
    with pytest.raises(ValueError, match="We expected a dictionary here"):
        layer(tf.constant([1.0]))
    with pytest.raises(ValueError, match="cannot have rank 0"):
        layer({"a": 1.0})


@pytest.mark.parametrize("name", ["model", "model.h5"])
def test_load_sequential_model_of_features(tmp_path, name):
    layers = [
        tf.keras.layers.DenseFeatures([tf.feature_column.numeric_column("age")]),
        tf.keras.layers.Dense(1),
    ]
    model = tf.keras.Sequential(layers)
    features = {"age": np.arange(4.0, dtype=np.float32)}
    expected = model(features)
    model.save(tmp_path / name)
    loaded = tf.keras.models.load_model(tmp_path / name)
    np.testing.assert_array_equal(loaded(features), expected)
