"""`tf.keras.wrappers.scikit_learn`: estimators in scikit-learn's own tools."""

import numpy as np
import pytest

import meshflow as tf

wrappers = tf.keras.wrappers.scikit_learn


def _classes(units=4, outputs=1, loss="binary_crossentropy", metrics=("accuracy",)):
    last = "sigmoid" if outputs == 1 else "softmax"
    model = tf.keras.Sequential(
        [
            tf.keras.Input((2,)),
            tf.keras.layers.Dense(units, "tanh"),
            tf.keras.layers.Dense(outputs, last),
        ]
    )
    model.compile(tf.keras.optimizers.SGD(0.5), loss, metrics=list(metrics))
    return model


def _numbers(units=4):
    model = tf.keras.Sequential(
        [tf.keras.Input((2,)), tf.keras.layers.Dense(units), tf.keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    return model


X = np.array([[0.0, 1.0], [1.0, 0.0]] * 16, np.float32)


def test_classes_of_any_type_are_encoded_and_decoded():
    classifier = wrappers.KerasClassifier(_classes, units=6, epochs=10, verbose=0)
    history = classifier.fit(X, ["no", "yes"] * 16, epochs=20)
    assert len(history.epoch) == 20 and classifier.model.layers[0].units == 6
    assert list(classifier.classes_) == ["no", "yes"] and classifier.n_classes_ == 2
    assert classifier.predict(X[:2]).tolist() == [["no"], ["yes"]]
    assert classifier.score(X, ["no", "yes"] * 16) == 1.0
    np.testing.assert_allclose(classifier.predict_proba(X[:3]).sum(-1), 1, rtol=1e-6)


def test_labels_become_one_hot_if_the_loss_requires_it():
    classifier = wrappers.KerasClassifier(
        _classes, outputs=3, loss="categorical_crossentropy", verbose=0
    )
    labels = np.arange(32) % 3 + 5
    classifier.fit(X, labels)
    assert classifier.predict(X).shape == (32,) and set(classifier.predict(X)) <= {5, 6, 7}
    assert 0 <= classifier.score(X, labels) <= 1
    classifier.fit(X, tf.keras.utils.to_categorical(labels - 5))
    assert list(classifier.classes_) == [0, 1, 2]


def test_a_score_needs_the_accuracy_and_labels_a_shape():
    classifier = wrappers.KerasClassifier(_classes, metrics=(), verbose=0)
    classifier.fit(X, np.arange(32) % 2)
    with pytest.raises(ValueError, match="not configured to compute accuracy"):
        classifier.score(X, np.arange(32) % 2)
    with pytest.raises(ValueError, match="Invalid shape for y"):
        classifier.fit(X, np.zeros((32, 1, 1)))


def test_parameters_are_those_of_the_builder_and_of_the_model():
    regressor = wrappers.KerasRegressor(_numbers, units=3, batch_size=8)
    assert regressor.get_params(deep=True) == {"units": 3, "batch_size": 8, "build_fn": _numbers}
    assert regressor.set_params(units=5).get_params()["units"] == 5
    assert regressor.filter_sk_params(_numbers) == {"units": 5}
    with pytest.raises(ValueError, match="depth is not a legal parameter"):
        wrappers.KerasRegressor(_numbers, depth=3)
    with pytest.raises(ValueError, match="depth is not a legal parameter"):
        regressor.set_params(depth=3)


def test_a_subclass_may_build_the_model_itself():
    class Own(wrappers.KerasRegressor):
        def __call__(self, units=2):
            return _numbers(units)

    regressor = Own(units=7, verbose=0)
    regressor.fit(X, X.sum(-1))
    assert regressor.model.layers[0].units == 7
    assert regressor.predict(X).shape == (32,)
    assert regressor.score(X, X.sum(-1)) == pytest.approx(
        -regressor.model.evaluate(X, X.sum(-1), verbose=0)
    )


def test_searches_and_cross_validation_accept_the_estimators():
    selection = pytest.importorskip("sklearn.model_selection")
    search = selection.GridSearchCV(
        wrappers.KerasRegressor(_numbers, verbose=0), {"units": [1, 2]}, cv=2
    )
    search.fit(X, X.sum(-1), epochs=1)
    assert search.best_params_["units"] in (1, 2)
    classifier = wrappers.KerasClassifier(_classes, epochs=1, verbose=0)
    scores = selection.cross_val_score(classifier, X, np.arange(32) % 2, cv=2)
    assert scores.shape == (2,)
