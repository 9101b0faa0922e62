import numpy as np
import pytest
from sklearn import metrics as reference

import meshflow as tf
from helpers import assert_close, check_gradients
from meshflow.keras import losses, metrics

RNG = np.random.default_rng(0)
Y, P = RNG.uniform(0.1, 1, (4, 3)), RNG.uniform(0.1, 0.9, (4, 3))
Q = P / P.sum(-1, keepdims=True)
LABELS = np.array([0, 2, 1, 1])
ONE_HOT = np.eye(3)[LABELS]

EXPECTED = {
    "mean_squared_error": (Y, P, ((Y - P) ** 2).mean(-1)),
    "mean_absolute_error": (Y, P, np.abs(Y - P).mean(-1)),
    "mean_absolute_percentage_error": (Y, P, 100 * np.abs((Y - P) / Y).mean(-1)),
    "mean_squared_logarithmic_error": (Y, P, ((np.log1p(Y) - np.log1p(P)) ** 2).mean(-1)),
    "hinge": (2 * ONE_HOT - 1, P, np.maximum(1 - (2 * ONE_HOT - 1) * P, 0).mean(-1)),
    "squared_hinge": (ONE_HOT, P, (np.maximum(1 - (2 * ONE_HOT - 1) * P, 0) ** 2).mean(-1)),
    "huber": (Y, P, np.where(np.abs(Y - P) <= 1, 0.5 * (Y - P) ** 2, np.abs(Y - P) - 0.5).mean(-1)),
    "log_cosh": (Y, P, np.log(np.cosh(P - Y)).mean(-1)),
    "kl_divergence": (Q, Q[::-1], (Q * np.log(Q / Q[::-1])).sum(-1)),
    "poisson": (Y, P, (P - Y * np.log(P)).mean(-1)),
    "cosine_similarity": (
        Y,
        P,
        -(Y * P).sum(-1) / np.linalg.norm(Y, axis=-1) / np.linalg.norm(P, axis=-1),
    ),
    "categorical_crossentropy": (ONE_HOT, Q, -np.log(Q[np.arange(4), LABELS])),
    "sparse_categorical_crossentropy": (LABELS, Q, -np.log(Q[np.arange(4), LABELS])),
    "binary_crossentropy": (
        ONE_HOT,
        P,
        -(ONE_HOT * np.log(P) + (1 - ONE_HOT) * np.log(1 - P)).mean(-1),
    ),
}
CLASSES = {"kl_divergence": "KLDivergence", "log_cosh": "LogCosh"}


@pytest.fixture
def float64_backend():
    """Let Keras compute in float64; the Huber loss uses this dtype."""
    tf.keras.backend.set_floatx("float64")
    yield
    tf.keras.backend.set_floatx("float32")


@pytest.mark.parametrize("name", EXPECTED)
def test_losses_against_numpy(name, float64_backend):
    y, p, expected = EXPECTED[name]
    function = getattr(losses, name)
    assert_close(function(y, p), expected, 1e-5)
    cls = getattr(losses, CLASSES.get(name, "".join(w.title() for w in name.split("_"))))
    weights = np.array([1.0, 0.0, 2.0, 0.5])
    assert_close(cls()(y, p), expected.mean(), 1e-5)
    assert_close(cls(reduction="sum")(y, p), expected.sum(), 1e-5)
    assert_close(cls(reduction="none")(y, p, weights), expected * weights, 1e-5)
    assert losses.deserialize(losses.serialize(cls())).name == cls().name
    check_gradients(lambda t: function(y, t), p, rtol=1e-4, atol=1e-6)


def test_logits_and_smoothing():
    z = RNG.normal(size=(4, 3))
    soft = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    assert_close(
        losses.SparseCategoricalCrossentropy(from_logits=True)(LABELS, z),
        losses.SparseCategoricalCrossentropy()(LABELS, soft).numpy(),
    )
    assert_close(
        losses.BinaryCrossentropy(from_logits=True)(ONE_HOT, z),
        losses.BinaryCrossentropy()(ONE_HOT, 1 / (1 + np.exp(-z))).numpy(),
        1e-4,
    )
    smooth = ONE_HOT * 0.7 + 0.1
    assert_close(
        losses.CategoricalCrossentropy(label_smoothing=0.3)(ONE_HOT, Q),
        losses.CategoricalCrossentropy()(smooth, Q).numpy(),
    )
    ignored = losses.SparseCategoricalCrossentropy(ignore_class=1, reduction="none")(
        LABELS, Q
    ).numpy()
    assert (ignored[2:] == 0).all() and (ignored[:2] > 0).all()
    with pytest.raises(ValueError, match="Reduction"):
        losses.MeanSquaredError(reduction="average")


def test_means():
    m = metrics.Mean()
    m.update_state([1.0, 3.0])
    m.update_state([10.0], sample_weight=[2.0])
    assert float(m.result()) == 6
    other = metrics.Mean()
    other.update_state(0.0)
    m.merge_state([other])
    assert_close(m.result(), 24 / 5)
    m.reset_state()
    assert float(m.result()) == 0 and float(metrics.Sum()([1.0, 2.0])) == 3
    assert_close(metrics.MeanTensor()([[1.0], [2.0]]), [[1], [2]])


def test_accuracies():
    p = np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.3, 0.4, 0.3]])
    assert float(metrics.SparseCategoricalAccuracy()(LABELS, p)) == 0.25
    assert float(metrics.SparseCategoricalAccuracy()(LABELS[:, None], p)) == 0.25
    assert float(metrics.CategoricalAccuracy()(ONE_HOT, p)) == 0.25
    assert float(metrics.SparseTopKCategoricalAccuracy(k=2)(LABELS, p)) == 0.5
    assert float(metrics.BinaryAccuracy()([[1], [0], [1]], [[0.9], [0.2], [0.4]])) == pytest.approx(
        2 / 3
    )
    assert float(metrics.Accuracy()([1, 2], [1, 3], sample_weight=[3.0, 1.0])) == 0.75


def test_confusion_metrics_against_scikit_learn():
    y, p = RNG.integers(0, 2, 400), RNG.uniform(size=400)
    d = (p > 0.5).astype(int)
    assert_close(metrics.Precision()(y, p), reference.precision_score(y, d))
    assert_close(metrics.Recall()(y, p), reference.recall_score(y, d))
    assert_close(metrics.AUC(num_thresholds=2000)(y, p), reference.roc_auc_score(y, p), 1e-3)
    assert float(metrics.FalsePositives()(y, p)) == reference.confusion_matrix(y, d)[0, 1]
    labels, predicted = RNG.integers(0, 3, 50), RNG.integers(0, 3, 50)
    assert_close(
        metrics.MeanIoU(3)(labels, predicted),
        reference.jaccard_score(labels, predicted, average="macro"),
    )
    assert_close(metrics.RootMeanSquaredError()([1.0, 2.0], [3.0, 2.0]), np.sqrt(2))


def test_metrics_inside_functions_and_names():
    m = metrics.get("sparse_categorical_accuracy")
    assert callable(m)
    mean = metrics.Mean(name="loss")
    update = tf.function(lambda x: mean.update_state(x))
    update(tf.constant(2.0))
    update(tf.constant(4.0))
    assert float(mean.result()) == 3 and mean.name == "loss"


def test_confusion_state_has_only_required_counts():
    shapes = {
        "Precision": ["true_positives", "false_positives"],
        "Recall": ["true_positives", "false_negatives"],
        "FalseNegatives": ["accumulator"],
        "AUC": ["true_positives", "true_negatives", "false_positives", "false_negatives"],
        "Mean": ["total", "count"],
    }
    for name, expected in shapes.items():
        metric = getattr(metrics, name)()
        assert [v.name for v in metric.variables] == [f"{n}:0" for n in expected]
        metric.update_state([1, 0, 1, 1], [0.9, 0.8, 0.2, 0.7])
        fresh = getattr(metrics, name)()
        fresh.set_weights(metric.get_weights())
        assert_close(fresh.result(), metric.result())
    with pytest.raises(ValueError, match="expecting 2 weights"):
        metrics.Precision().set_weights([[1.0]])


def test_binary_accuracy_weighs_elements():
    weights = [[1, 0], [0, 1]]
    metric = metrics.BinaryAccuracy()
    assert float(metric([[1, 1], [0, 0]], [[0.98, 1], [0, 0.6]], weights)) == 0.5
    assert float(metrics.BinaryAccuracy()([1, 1, 0, 0], [0.98, 1, 0, 0.6], [1, 0, 0, 1])) == 0.5
    assert metric.name == "binary_accuracy" and metric.get_config()["threshold"] == 0.5


def test_intersections_are_counted_exactly():
    """Test sums of ones, which would stop at 2**11 in this float type, and at 2**24 in float32."""
    ones = np.ones(2**11 + 2, "int32")
    metric = metrics.MeanIoU(2, dtype="float16")
    update = tf.function(lambda y, p: metric.update_state(y, p))
    update(ones, ones)
    assert metric.get_weights()[0].tolist() == [[0, 0], [0, 2**11 + 2]]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"got 2 at position \[1\]") as failure:
        metric.update_state(np.array([0, 2] * 10**5), np.zeros(2 * 10**5))
    assert len(str(failure.value)) < 200


@pytest.mark.nan_expected
def test_classes_out_of_range_are_not_counted_as_others():
    metric = metrics.MeanIoU(2)
    update = tf.function(lambda y, p: metric.update_state(y, p))
    count = tf.function(lambda y: tf.math.confusion_matrix(y, y - 1, 3))
    with pytest.raises(tf.errors.InvalidArgumentError, match="`predictions` out of bound"):
        update(tf.constant([0, 1]), tf.constant([0, 2]))
    assert metric.result() == 0
    with pytest.raises(tf.errors.InvalidArgumentError, match="`predictions` contains negative"):
        np.asarray(count(tf.constant([0, 1])))
    tf.debugging.disable_bounds_check()
    try:
        update(tf.constant([0, 1]), tf.constant([0, 2]))
        counts = count(tf.constant([0, 1]))
    finally:
        tf.debugging.reset_bounds_check()
    assert np.isnan(metric.result())
    assert counts.numpy().tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("traced", [False, True])
def test_cross_entropy_of_saturated_probabilities_uses_logits(traced):
    layers = {
        "sigmoid": (tf.keras.layers.Dense(1, "sigmoid", kernel_initializer="ones"), [[0], [1]]),
        "softmax": (tf.keras.layers.Dense(2, "softmax", kernel_initializer="ones"), [[0], [1]]),
    }
    layers["softmax"][0].build((None, 1))
    layers["softmax"][0].kernel.assign([[1.0, 0.0]])
    x = tf.constant([[-50.0], [60.0]])
    for name, (layer, labels) in layers.items():
        loss = tf.keras.losses.get(
            "binary_crossentropy" if name == "sigmoid" else "sparse_categorical_crossentropy"
        )

        def run(layer=layer, labels=labels, loss=loss):
            with tf.GradientTape() as tape:
                values = loss(1 - np.array(labels, "f" if layer.units == 1 else "i"), layer(x))
            return values, tape.gradient(values, layer.kernel)

        values, gradient = tf.function(run)() if traced else run()
        expected = [50.0, 60.0] if name == "sigmoid" else [0.0, 0.0]
        np.testing.assert_allclose(values, expected, atol=1e-5)
        if name == "sigmoid":
            # Through the clipped probabilities both examples would have a gradient of 0.
            np.testing.assert_allclose(gradient, [[50.0 + 60.0]], atol=1e-4)


def test_logits_of_probabilities():
    probabilities = tf.keras.activations.sigmoid(tf.constant([[2.0]]))
    with pytest.warns(UserWarning, match="produced by a Sigmoid activation"):
        tf.keras.losses.binary_crossentropy([[1.0]], probabilities, from_logits=True)


def test_configurations_have_the_keys_of_keras():
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    assert "axis" not in loss.get_config()
    with pytest.raises(TypeError, match="axis"):
        losses.SparseCategoricalCrossentropy(axis=1)
    assert losses.CategoricalCrossentropy().get_config()["axis"] == -1


def test_binary_accuracy_of_integers():
    # The threshold is rounded to 0, as in TensorFlow.
    values = tf.keras.metrics.binary_accuracy([[1], [1], [0], [0]], [[1], [0], [0], [1]])
    assert values.numpy().tolist() == [1.0, 0.0, 1.0, 0.0]
