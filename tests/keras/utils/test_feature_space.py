"""`tf.keras.utils.FeatureSpace`, with values of tf-keras 2.21."""

import numpy as np
import pytest

import meshflow as tf

K = tf.keras
F = K.utils.FeatureSpace
DATA = {
    "f": [1.0, 2.0, 3.0, 6.0],
    "n": [1.0, 2.0, 3.0, 6.0],
    "d": [0.0, 1.0, 2.0, 9.0],
    "r": [10.0, 20.0, 30.0, 40.0],
    "i": [3, 5, 5, 7],
    "s": ["a", "b", "b", "c"],
    "sh": ["x", "y", "z", "x"],
    "ih": [1, 2, 3, 4],
}
DATASET = tf.data.Dataset.from_tensor_slices(DATA)
# The first row of the encoded features, in order.
FIRST = {
    "d": [1, 0, 0],
    "f": [1],
    "i": [0, 0, 0, 1],
    "ih": [0, 1, 0, 0],
    "n": [-1.069],
    "r": [2],
    "s": [0, 0, 0, 1],
    "sh": [0, 0, 1, 0],
    "s_X_i": [0, 1, 0, 0, 0, 0, 0, 0],
}
FIRST_ROW = np.concatenate(list(FIRST.values()))


def make_space(**options):
    return F(
        {
            "f": "float",
            "n": F.float_normalized(),
            "d": F.float_discretized(num_bins=3),
            "r": F.float_rescaled(scale=0.1, offset=1.0),
            "i": F.integer_categorical(),
            "s": F.string_categorical(num_oov_indices=1),
            "sh": F.string_hashed(num_bins=4),
            "ih": F.integer_hashed(num_bins=4),
        },
        crosses=[F.cross(("s", "i"), crossing_dim=8)],
        **options,
    )


def adapt_space(dataset=DATASET, **options):
    space = make_space(**options)
    space.adapt(dataset)
    return space


def test_encoded_features():
    space = adapt_space()
    rows = space(DATA)
    assert rows.shape == [4, 30]
    np.testing.assert_allclose(rows[0], FIRST_ROW, atol=1e-4)
    np.testing.assert_allclose(space({k: v[0] for k, v in DATA.items()}), FIRST_ROW, atol=1e-4)
    columns = {k: tf.constant(v)[:, None] for k, v in DATA.items()}
    np.testing.assert_array_equal(space(columns), rows)
    np.testing.assert_array_equal(adapt_space(DATASET.batch(3))(DATA), rows)
    np.testing.assert_array_equal(np.concatenate(list(DATASET.batch(2).map(space))), rows)
    np.testing.assert_array_equal(list(DATASET.map(space)), rows)
    encoded = adapt_space(output_mode="dict")(DATA)
    assert list(encoded) == list(FIRST)
    for name, value in FIRST.items():
        np.testing.assert_allclose(encoded[name][0], value, atol=1e-4)
    assert space.preprocessors["s"].get_vocabulary() == ["[UNK]", "b", "c", "a"]


def test_features_by_name():
    kinds = "float_normalized integer_categorical string_categorical string_hashed"
    kinds += " float_discretized integer_hashed float_rescaled"
    data = {"a": [1.0, 2.0], "b": [1, 2], "c": ["p", "q"], "d": ["u", "v"], "e": [1.0, 5.0]}
    data |= {"g": [4, 5], "h": [1.0, 2.0]}
    space = F(
        dict(zip(data, kinds.split(), strict=True)),
        crosses=[("b", "c")],
        crossing_dim=4,
        hashing_dim=3,
        num_discretization_bins=2,
    )
    space.adapt(tf.data.Dataset.from_tensor_slices(data))
    expected = [-1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1]
    np.testing.assert_allclose(space(data)[0], expected, atol=1e-4)


def test_ids_and_custom_preprocessors():
    modes = {"i": F.integer_categorical(output_mode="int"), "s": F.string_categorical(3)}
    dataset = tf.data.Dataset.from_tensor_slices({"i": [3, 5, 5], "s": ["a", "b", "b"]})
    space = F(modes, output_mode="dict")
    space.adapt(dataset)
    found = space({"i": [3, 7], "s": ["b", "zz"]})
    assert found["i"].numpy().tolist() == [[2], [0]]
    assert found["s"].numpy().tolist() == [[0, 1, 0], [1, 0, 0]]
    with pytest.raises(ValueError, match="feature 'i' has not been encoded"):
        F(modes).adapt(dataset)
    # A vocabulary that is passed to the layer needs no data (tf-keras raises an error).
    words = K.layers.TextVectorization(vocabulary=["a", "b"], output_sequence_length=3)
    space = F({"t": F.feature("string", words, "int")}, output_mode="dict")
    assert space({"t": ["b a"]})["t"].numpy().tolist() == [[3, 2, 0]]
    counts = K.layers.TextVectorization(output_mode="multi_hot", max_tokens=6)
    space = F({"t": F.feature("string", counts, "float"), "n": "float"})
    space.adapt(tf.data.Dataset.from_tensor_slices({"t": ["a b", "b c"], "n": [1.0, 2.0]}))
    assert space({"t": ["b q"], "n": [3.0]}).numpy().tolist() == [[3, 1, 1, 0, 0]]


def test_models_on_features():
    space = adapt_space()
    inputs, encoded = space.get_inputs(), space.get_encoded_features()
    assert {n: (x.shape.as_list(), x.dtype.name) for n, x in inputs.items()}["s"] == (
        [None, 1],
        "string",
    )
    assert space.get_preprocessed_features()["s"].dtype == tf.int64
    assert encoded.shape.as_list() == [None, 30]
    outputs = K.layers.Dense(1)(encoded)
    trained = K.Model(encoded, outputs)
    trained.compile("sgd", "mse")
    pairs = tf.data.Dataset.from_tensor_slices((DATA, [1.0, 0.0, 1.0, 0.0])).batch(2)
    trained.fit(pairs.map(lambda x, y: (space(x), y)), verbose=0)
    complete = K.Model(inputs, outputs)
    columns = {k: tf.constant(v) for k, v in DATA.items()}
    np.testing.assert_allclose(
        complete.predict(columns, verbose=0), trained.predict(space(DATA), verbose=0), rtol=1e-5
    )


@pytest.mark.parametrize("mode", ["concat", "dict"])
def test_saving(mode, tmp_path):
    space, path = adapt_space(output_mode=mode), tmp_path / "space.keras"
    space.save(path)
    loaded = K.models.load_model(path)
    assert type(loaded) is F
    for a, b in zip(*[tf.nest.flatten(s(DATA)) for s in (space, loaded)], strict=True):
        np.testing.assert_array_equal(a, b)
    make_space(output_mode=mode).save(path)
    empty = K.models.load_model(path)
    with pytest.raises(ValueError, match="You need to call"):
        empty(DATA)
    assert sorted(F.from_config(space.get_config()).features) == sorted(DATA)


@pytest.mark.parametrize(
    ("use", "error", "match"),
    [
        (lambda: F({}), ValueError, "cannot be None or empty"),
        (lambda: F({"a": "foo"}), ValueError, "Invalid feature type: foo"),
        (lambda: F({"a": "float"}, output_mode="foo"), ValueError, "Received: output_mode=foo"),
        (lambda: F({"a": "float"}, crosses=[("a", "z")]), ValueError, "unknown features"),
        (lambda: F.cross(("a", "b"), 4, "foo"), ValueError, "Received: output_mode=foo"),
        (lambda: F.feature("string", None, "foo"), ValueError, "Received: output_mode=foo"),
        (lambda: make_space()(DATA), ValueError, "You need to call `.adapt"),
        (lambda: make_space().get_inputs(), ValueError, "You need to call `.adapt"),
        (lambda: make_space().adapt([1]), ValueError, "can only be called on a tf.data.Dataset"),
        (lambda: F({"a": "float"})([1]), ValueError, "can only be called with a dict"),
        (lambda: F({"a": "float"})({}), KeyError, "a"),
        (lambda: F({"a": "float"})({"a": [1.0], "b": [1.0]}), KeyError, "b"),
    ],
)
def test_errors(use, error, match):
    with pytest.raises(error, match=match):
        use()
