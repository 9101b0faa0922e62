"""`class_weight` for one output and for several, compared with the equal sample weights."""

import numpy as np
import pytest

import meshflow as tf
from helpers import combine
from meshflow.keras.engine.training.class_weights import ClassWeights

N = 12
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3)).astype("float32")
KIND = RNG.integers(0, 3, N)
KIND[:3] = 0, 1, 2
FLAG = (np.arange(N) % 2).astype("float32").reshape(N, 1)
ONE_HOT = np.eye(3, dtype="float32")[KIND]
WEIGHTS = {"kind": {0: 1.0, 1: 5.0, 2: 0.5}, "flag": {0: 2.0, 1: 0.25}}
KIND_WEIGHT = np.array([1.0, 5.0, 0.5], "float32")[KIND]
FLAG_WEIGHT = np.where(FLAG[:, 0] > 0, 0.25, 2.0).astype("float32")
ROW_WEIGHT = np.linspace(0.5, 1.5, N, dtype="float32")


def make_model(one_hot=False):
    tf.keras.utils.set_random_seed(0)
    inputs = tf.keras.Input((3,))
    kind = tf.keras.layers.Dense(3, activation="softmax", name="kind")(inputs)
    flag = tf.keras.layers.Dense(1, activation="sigmoid", name="flag")(inputs)
    model = tf.keras.Model(inputs, [kind, flag])
    kind_loss = "categorical_crossentropy" if one_hot else "sparse_categorical_crossentropy"
    # The order of the names is not that of the outputs.
    losses = {"flag": "binary_crossentropy", "kind": kind_loss}
    model.compile("sgd", losses, weighted_metrics=[["mae"], ["mae"]])
    return model


def fit(model, data, y=None, **kwargs):
    history = model.fit(data, y, batch_size=4, epochs=2, shuffle=False, verbose=0, **kwargs)
    return {name: np.float32(values) for name, values in history.history.items()}


def check_equal(first, second):
    assert first.keys() == second.keys()
    for name, values in first.items():
        np.testing.assert_allclose(values, second[name], rtol=1e-5, err_msg=name)


SOURCES = ["arrays", "dataset", "generator", "mirrored"]
STRUCTURES = ["dict", "list", "dict of labels", "one-hot"]


@pytest.mark.parametrize(("structure", "source"), combine(STRUCTURES, SOURCES))
def test_weights_by_output(structure, source):
    labels = [ONE_HOT if structure == "one-hot" else KIND, FLAG]
    weights = [KIND_WEIGHT, FLAG_WEIGHT]
    class_weight = [WEIGHTS["kind"], WEIGHTS["flag"]] if structure == "list" else WEIGHTS
    expected = fit(make_model(structure == "one-hot"), X, labels, sample_weight=weights)
    y = {"kind": KIND, "flag": FLAG} if structure == "dict of labels" else tuple(labels)
    data = X, y
    if source == "dataset":
        data = tf.data.Dataset.from_tensor_slices(data).batch(4), None
    elif source == "generator":
        dataset = tf.data.Dataset.from_tensor_slices(data).batch(4).repeat()
        data = dataset.as_numpy_iterator(), None
    strategy = tf.distribute.MirroredStrategy() if source == "mirrored" else None
    with tf.distribute.get_strategy().scope() if strategy is None else strategy.scope():
        model = make_model(structure == "one-hot")
    check_equal(fit(model, *data, class_weight=class_weight, steps_per_epoch=3), expected)


@pytest.mark.parametrize(
    ("class_weight", "rows", "named"),
    combine(
        [{"kind": WEIGHTS["kind"]}, [WEIGHTS["kind"], None]],
        [None, ROW_WEIGHT, (ROW_WEIGHT, ROW_WEIGHT)],
        [True, False],
    ),
)
def test_some_outputs_and_sample_weights(class_weight, rows, named):
    ones = np.ones(N, "float32")
    row_weight = ones if rows is None else ROW_WEIGHT
    y = {"kind": KIND, "flag": FLAG} if named else [KIND, FLAG]
    if named and isinstance(rows, tuple):
        rows = dict(zip(("kind", "flag"), rows, strict=True))
    expected = fit(
        make_model(), X, [KIND, FLAG], sample_weight=[KIND_WEIGHT * row_weight, row_weight]
    )
    check_equal(fit(make_model(), X, y, class_weight=class_weight, sample_weight=rows), expected)


def test_subclassed_model_with_named_outputs():
    class Model(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.heads = tf.keras.layers.Dense(3), tf.keras.layers.Dense(1)

        def call(self, x):
            return {"kind": self.heads[0](x), "flag": self.heads[1](x)}

    results = []
    for arguments in (
        {"class_weight": WEIGHTS},
        {"sample_weight": {"kind": KIND_WEIGHT, "flag": FLAG_WEIGHT}},
    ):
        tf.keras.utils.set_random_seed(0)
        model, kind = Model(), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", {"kind": kind, "flag": "mse"})
        results.append(fit(model, X, {"kind": KIND, "flag": FLAG}, **arguments))
        results[-1]["batch"] = model.train_on_batch(X, {"kind": KIND, "flag": FLAG}, **arguments)
    check_equal(*results)


@pytest.mark.parametrize(
    ("class_weight", "error", "message"),
    [
        ({0: 1.0, 1: 2.0, 2: 1.0}, ValueError, "pass one per output, such as {'kind':"),
        ({"kind": {0: 1.0}}, ValueError, r"classes \[1, 2\] exist .*output 'kind'"),
        ({"sort": {0: 1.0}}, ValueError, r"outputs \['sort'\], .* are \['kind', 'flag'\]"),
        ([{0: 1.0}, None, {0: 1.0}], ValueError, r"outputs \[2\]"),
        ([1.0, 2.0], TypeError, "class_weight must be a dictionary"),
        (np.ones(3), TypeError, "class_weight must be a dictionary"),
    ],
)
def test_invalid_class_weights(class_weight, error, message):
    with pytest.raises(error, match=message):
        fit(make_model(), X, [KIND, FLAG], class_weight=class_weight)


def test_weights_of_examples_apply_to_all_pixels():
    weights = ClassWeights({0: 1.0, 1: 3.0})
    labels = np.array([[[0, 1]], [[1, 1]]])
    _, _, found = weights.add_to_batch(None, labels[..., None], np.array([1.0, 2.0]))
    np.testing.assert_array_equal(found, [[[1.0, 3.0]], [[6.0, 6.0]]])
