"""Test preprocessing layers: results of tf-keras, and models that contain them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close

FOLDER = Path(__file__).parents[2] / "reference"
sys.path.insert(0, str(FOLDER))
from preprocessing_cases import CASES, run

sys.path.pop(0)
STORED = json.loads((FOLDER / "preprocessing.json").read_text())
layers = tf.keras.layers


@pytest.mark.parametrize("expression", CASES)
def test_result(expression):
    assert_same(run(tf, np, expression), STORED[expression])


def assert_same(found, expected):
    if isinstance(expected, list) and not all(isinstance(v, (int, float)) for v in expected):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert_same(a, b)
    elif isinstance(expected, str):
        assert found == expected
    elif isinstance(expected, list):
        assert_close(np.asarray(found), np.asarray(expected), 1e-4, 2e-2)
    else:
        assert found == pytest.approx(expected, abs=1e-3)


IMAGE = np.random.default_rng(0).uniform(0, 255, (4, 6, 5, 3)).astype("f4")


@pytest.mark.parametrize(
    "make",
    [
        lambda: layers.RandomFlip(seed=1),
        lambda: layers.RandomTranslation(0.3, 0.3, seed=1),
        lambda: layers.RandomRotation(0.3, seed=1),
        lambda: layers.RandomZoom(0.3, seed=1),
        lambda: layers.RandomContrast(0.3, seed=1),
        lambda: layers.RandomBrightness(0.3, seed=1),
        lambda: layers.RandomCrop(3, 4, seed=1),
    ],
)
def test_random_layer(make):
    layer = make()
    first = layer(IMAGE, training=True)
    assert first.shape == layer.compute_output_shape(IMAGE.shape)
    assert np.array_equal(make()(IMAGE, training=True), first)
    assert not np.array_equal(layer(IMAGE, training=True), first)
    copy = type(layer).from_config(layer.get_config())
    assert np.array_equal(copy(IMAGE, training=True), first)
    assert layer(IMAGE[0], training=True).shape == first.shape[1:]
    assert layer(IMAGE.astype("u1"), training=True).dtype is tf.float32
    compiled = tf.function(lambda x: make_once(x))
    make_once = make()
    assert compiled(IMAGE).shape == first.shape
    half = type(layer).from_config({**layer.get_config(), "dtype": "float16"})
    assert half(IMAGE, training=True).dtype is tf.float16


def test_random_images_differ_within_a_batch():
    same = np.stack([IMAGE[0]] * 20)
    turned = layers.RandomRotation(0.3)(same, training=True).numpy()
    assert not np.allclose(turned[0], turned[1])
    flipped = layers.RandomFlip("horizontal")(same, training=True).numpy()
    mirrored = (flipped == same[:, :, ::-1]).all((1, 2, 3))
    assert 0 < mirrored.sum() < 20
    assert ((flipped == same).all((1, 2, 3)) | mirrored).all()


def test_random_layers_rest_when_not_training():
    model = tf.keras.Sequential(
        [tf.keras.Input((6, 5, 3)), layers.RandomFlip(), layers.RandomZoom(0.3)]
    )
    assert_close(model.predict(IMAGE, verbose=0), IMAGE, 0, 0)


def test_random_sizes_need_no_program():
    stretch = layers.RandomHeight(0.3)
    assert layers.RandomWidth(0.3)(tf.keras.Input((6, 5, 3))).shape.as_list() == [None, 6, None, 3]
    sizes = {x.shape[1] for x in tf.data.Dataset.from_tensor_slices([IMAGE] * 9).map(stretch)}
    assert len(sizes) > 1
    with pytest.raises(NotImplementedError, match=r"another size every time.*run_eagerly"):
        tf.function(lambda x: stretch(x, training=True))(IMAGE)


@pytest.mark.parametrize(
    "layer, message",
    [
        (lambda: layers.RandomFlip("foo"), "unknown mode argument foo"),
        (lambda: layers.RandomTranslation(1.5, 0.1), "height_factor"),
        (lambda: layers.RandomTranslation((0.2, 0.1), 0.1), "upper bound less than lower"),
        (lambda: layers.RandomRotation(-0.1), "cannot have a negative value"),
        (lambda: layers.RandomContrast((1.1, 0.1)), "values greater than 1"),
        (lambda: layers.RandomBrightness(1.1), r"range \[-1.0, 1.0\]"),
        (lambda: layers.RandomHeight((-1.5, 0.4)), "larger than -1"),
        (lambda: layers.IntegerLookup(pad_to_max_tokens=True), "must set `max_tokens`"),
        (lambda: layers.StringLookup(output_mode="count", invert=True), "must be `'int'`"),
        (lambda: layers.CategoryEncoding(0), "`num_tokens` must be >= 1"),
    ],
)
def test_bad_argument(layer, message):
    with pytest.raises(ValueError, match=message):
        layer()


def test_unavailable_arguments_are_errors():
    with pytest.raises(NotImplementedError, match="Unknown `fill_mode` foo"):
        layers.RandomZoom(0.1, fill_mode="foo")
    with pytest.raises(NotImplementedError, match="Value not recognized for `interpolation`"):
        layers.Resizing(2, 2, interpolation="foo")
    with pytest.raises(ValueError, match="`ragged` must not be true"):
        layers.TextVectorization(ragged=True, output_mode="count")


LEARNT = {
    "Normalization": (layers.Normalization(), IMAGE.reshape(-1, 3)),
    "Discretization": (layers.Discretization(num_bins=3), IMAGE.reshape(-1, 3)),
    "IntegerLookup": (layers.IntegerLookup(output_mode="count"), np.array([[3, 4], [4, 5]])),
    "StringLookup": (layers.StringLookup(), np.array([["a", "b"], ["b", "c"]])),
    "TextVectorization": (
        layers.TextVectorization(output_sequence_length=3),
        np.array([["a b"], ["b c d"]]),
    ),
    "Hashing": (layers.Hashing(4, output_mode="one_hot"), np.array([["a"], ["b"]])),
    "CategoryEncoding": (layers.CategoryEncoding(4), np.array([[0, 1], [2, 3]])),
}


@pytest.mark.parametrize("name", LEARNT)
@pytest.mark.parametrize("ending", ["keras", "h5"])
def test_saved_models_contain_adapted_state(name, ending, tmp_path):
    layer, data = LEARNT[name]
    if name not in ("Hashing", "CategoryEncoding"):
        layer.adapt(data)
    inputs = tf.keras.Input(data.shape[1:], dtype=tf.convert_to_tensor(data).dtype)
    outputs = layer(inputs)
    model = tf.keras.Model(inputs, outputs)
    expected = layer(data)
    assert outputs.dtype is expected.dtype
    assert outputs.shape.is_compatible_with(expected.shape)
    path = str(tmp_path / f"model.{ending}")
    model.save(path)
    found = tf.keras.models.load_model(path).predict(data, verbose=0)
    assert_close(found, expected.numpy(), 1e-6, 1e-6)
    mapped = tf.data.Dataset.from_tensor_slices(data).batch(2).map(layer)
    assert_close(next(iter(mapped)).numpy(), expected.numpy()[:2], 1e-6, 1e-6)


def test_training_with_text_beside_numbers():
    columns = {
        "city": np.array([["a"], ["b"], ["a"], ["c"]] * 4),
        "age": np.linspace(0, 1, 16, dtype="f4")[:, None],
    }
    labels = (columns["city"] == "a").astype("f4")
    city = tf.keras.Input((1,), dtype="string", name="city")
    age = tf.keras.Input((1,), name="age")
    encoded = layers.StringLookup(vocabulary=["a", "b", "c"], output_mode="one_hot")(city)
    outputs = layers.Dense(1, kernel_initializer="zeros")(layers.concatenate([encoded, age]))
    model = tf.keras.Model({"city": city, "age": age}, outputs)
    model.compile(tf.keras.optimizers.SGD(0.5), "mse")
    data = tf.data.Dataset.from_tensor_slices((columns, labels)).batch(8)
    losses = model.fit(data, epochs=20, validation_data=data, verbose=0).history["val_loss"]
    assert losses[-1] < 0.2 * losses[0]
    eager = model({name: tf.constant(column) for name, column in columns.items()})
    assert_close(model.predict(columns, verbose=0), eager.numpy(), 1e-5, 1e-5)


def test_texts_to_predictions_in_one_model():
    words = layers.TextVectorization(output_sequence_length=4)
    words.adapt(["a good film", "a bad film"])
    inner = tf.keras.Sequential([layers.Embedding(9, 3), layers.GlobalAveragePooling1D()])
    texts = ["good", "bad bad film"]
    for model in (
        tf.keras.Sequential([words, inner]),
        tf.keras.Sequential([tf.keras.Input((1,), dtype=tf.string), words, inner]),
    ):
        assert_close(model.predict(texts, verbose=0), inner(words(texts)).numpy(), 1e-6, 1e-6)


def test_subclassed_model_of_texts():
    class Reader(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.words = layers.TextVectorization(vocabulary=["x", "y"], output_mode="count")
            self.dense = layers.Dense(1)

        def call(self, inputs):
            return self.dense(self.words(inputs))

    model = Reader()
    model.compile("sgd", "mse")
    model.fit(np.array(["x y", "y"]), np.ones(2), verbose=0)
    assert model.predict(tf.constant(["x"]), verbose=0).shape == (1, 1)


def test_ops_on_symbolic_strings():
    inputs = tf.keras.Input((), dtype="string")
    numbers = layers.StringLookup(vocabulary=["a", "b"])(tf.strings.lower(inputs))
    model = tf.keras.Model(inputs, layers.Embedding(3, 2)(numbers))
    assert model.predict(tf.constant(["A", "b", "?"]), verbose=0).shape == (3, 2)


def test_functions_standardize_and_split():
    layer = layers.TextVectorization(
        standardize=lambda text: tf.strings.regex_replace(text, "-", ","),
        split=lambda text: tf.strings.split(text, sep=","),
    )
    layer.adapt(["a-b,c", "c"])
    assert layer.get_vocabulary() == ["", "[UNK]", "c", "b", "a"]


def test_adapt_resets_and_update_state_accumulates():
    layer = layers.StringLookup()
    layer.adapt(["x"])
    layer.adapt(["y"])
    assert layer.get_vocabulary() == ["[UNK]", "y"] and layer.is_adapted
    counted = layers.IntegerLookup()
    counted.update_state(tf.constant([7, 7, 8]))
    counted.update_state(tf.constant([8, 8]))
    counted.finalize_state()
    assert counted.get_vocabulary() == [-1, 8, 7]
    copy = layers.TextVectorization()
    source = layers.TextVectorization()
    source.adapt(["a b", "b"])
    copy.set_weights(source.get_weights())
    assert copy.get_vocabulary() == source.get_vocabulary()


def test_custom_preprocessing_layer():
    class Largest(layers.experimental.preprocessing.PreprocessingLayer):
        def build(self, shape):
            self.largest = self.add_weight("largest", (), trainable=False, initializer="zeros")
            super().build(shape)

        def update_state(self, data):
            self.largest.assign(tf.maximum(self.largest, tf.reduce_max(data)))

        def reset_state(self):
            self.largest.assign(0.0)

        def call(self, inputs):
            return inputs / self.largest

    layer = Largest()
    layer.adapt(tf.data.Dataset.from_tensor_slices([[1.0], [4.0], [2.0]]).batch(2))
    assert layer([[2.0]]).numpy().tolist() == [[0.5]]


def test_old_names():
    old = tf.keras.layers.experimental.preprocessing
    assert old.Rescaling is layers.Rescaling
    assert old.StringLookup is layers.StringLookup
    assert tf.keras.layers.experimental.EinsumDense is layers.EinsumDense


def test_symbolic_shapes():
    inputs = tf.keras.Input((8, 8, 3))
    assert layers.CenterCrop(2, 3)(inputs).shape.as_list() == [None, 2, 3, 3]
    columns = [tf.keras.Input((1,), dtype="int64"), tf.keras.Input((1,), dtype="string")]
    crossed = layers.HashedCrossing(5, output_mode="one_hot")(columns)
    assert crossed.shape.as_list() == [None, 5] and crossed.dtype is tf.float32
    model = tf.keras.Model(columns, layers.Dense(2)(crossed))
    data = [np.array([[1], [2]]), np.array([["a"], ["b"]])]
    assert model.predict(data, verbose=0).shape == (2, 2)


def test_string_lookup_as_first_layer_of_a_sequential_model():
    lookup = tf.keras.layers.StringLookup(mask_token=None)
    lookup.adapt(tf.data.Dataset.from_tensor_slices(["a", "b", "a"]))
    model = tf.keras.Sequential([lookup, tf.keras.layers.Embedding(3, 2)])
    assert model(tf.constant(["a", "b", "c"])).shape == (3, 2)


def test_composite_ids_are_inverted():
    options = {"vocabulary": ["a", "b"], "mask_token": None}
    look_up, invert = layers.StringLookup(**options), layers.StringLookup(**options, invert=True)
    rows = tf.ragged.constant([["a"], ["q", "b"]])
    words = [[b"a"], [b"[UNK]", b"b"]]
    assert invert(look_up(rows)).to_list() == words
    assert tf.function(lambda x: invert(look_up(x)))(rows).to_list() == words
    assert invert(look_up(rows.to_sparse())).values.numpy().tolist() == [b"a", b"[UNK]", b"b"]
    numbers = layers.IntegerLookup(vocabulary=[5, 6], invert=True)
    assert numbers(tf.ragged.constant([[1], [2, 0]])).to_list() == [[5], [6, -1]]


def test_model_with_an_adapted_first_layer():
    table = np.arange(12.0).reshape(4, 3)
    layer = tf.keras.layers.Normalization(axis=-1)
    layer.adapt(table)
    model = tf.keras.Sequential([layer, tf.keras.layers.Dense(2)])
    assert model.built
    assert model.output_shape == (None, 2)
    assert model(table).shape == (4, 2)


def test_normalization_of_inputs_with_a_batch_adapted_to_data_without_one():
    layer = layers.Normalization()
    layer.adapt(np.ones((4, 5, 1), "float32"))
    assert layer(tf.keras.Input([6, 7, 1])).shape.as_list() == [None, 6, 7, 1]
    assert layer.compute_output_shape([2, 6, 7, None]).as_list() == [2, 6, 7, 1]
    assert layer.compute_output_shape(tf.TensorShape(None)).rank is None


def test_image_layers_accept_inputs_of_keras_3():
    images = np.random.default_rng(0).normal(size=(2, 4, 6, 3)).astype("float32")
    turned = np.moveaxis(images, -1, 1)
    for make in (
        lambda **k: layers.Resizing(3, 2, interpolation="nearest", **k),
        lambda **k: layers.Resizing(3, 3, crop_to_aspect_ratio=True, **k),
        lambda **k: layers.Resizing(4, 4, pad_to_aspect_ratio=True, fill_value=2.0, **k),
        lambda **k: layers.Resizing(2, 3, antialias=True, **k),
        lambda **k: layers.CenterCrop(2, 3, **k),
    ):
        last, first = make(), make(data_format="channels_first")
        np.testing.assert_allclose(np.moveaxis(first(turned), 1, -1), last(images), atol=1e-6)
        assert first.compute_output_shape(turned.shape) == first(turned).shape
        # Keras 2 does not store default settings.
        config = first.get_config()
        assert config["data_format"] == "channels_first" and "data_format" not in last.get_config()
        again = type(last).from_config(config | {"name": "again"})
        np.testing.assert_array_equal(again(turned), first(turned))
    padded = layers.Resizing(6, 6, pad_to_aspect_ratio=True, fill_value=2.0)(images)
    np.testing.assert_array_equal(padded[:, 0], np.full([2, 6, 3], 2.0))
    np.testing.assert_allclose(padded[:, 1:5], images, atol=1e-6)
    with pytest.raises(ValueError, match="only one of `crop_to_aspect_ratio`"):
        layers.Resizing(2, 2, crop_to_aspect_ratio=True, pad_to_aspect_ratio=True)
    with pytest.raises(ValueError, match="fill_mode='wrap'"):
        layers.Resizing(2, 2, fill_mode="wrap")
    steps = layers.ZeroPadding1D((1, 2), data_format="channels_first")
    assert steps(np.ones([2, 3, 4])).shape == [2, 3, 7]
    assert steps.get_config()["data_format"] == "channels_first"
    assert "data_format" not in layers.ZeroPadding1D().get_config()


def test_layers_of_configurations_can_be_adapted_again():
    layer = tf.keras.layers.StringLookup()
    layer.adapt(np.array(["a", "b", "b"]))
    copied = tf.keras.layers.StringLookup.from_config(layer.get_config())
    assert copied.get_vocabulary() == ["[UNK]", "b", "a"]
    copied.adapt(np.array(["c"]))
    assert copied.get_vocabulary() == ["[UNK]", "c"]
    assert copied.get_config()["vocabulary"] == ["c"]
    text = tf.keras.layers.TextVectorization(vocabulary=["a"])
    copied = tf.keras.layers.TextVectorization.from_config(text.get_config())
    copied.adapt(np.array(["d d"]))
    assert copied.get_vocabulary() == ["", "[UNK]", "d"]
    with pytest.raises(ValueError, match="static vocabulary"):
        tf.keras.layers.StringLookup(vocabulary=["a"]).adapt(np.array(["b"]))


def test_errors_of_vocabularies_and_bins(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("a\nb\na\n")
    with pytest.raises(
        tf.errors.FailedPreconditionError, match=r"different value for same key.*'a'"
    ):
        tf.keras.layers.StringLookup(vocabulary=str(path))
    with pytest.raises(RuntimeError, match="you must set the layer's vocabulary"):
        tf.keras.layers.StringLookup(output_mode="multi_hot")([["a"]])
    with pytest.raises(ValueError, match=r"should not be set.*5.*\[1, 2\]"):
        tf.keras.layers.Discretization(num_bins=5, bins=[1, 2])


def test_predictions_of_sparse_outputs_are_sparse():
    inputs = tf.keras.Input((3,), sparse=True)
    model = tf.keras.Model(inputs, tf.keras.layers.Discretization([0.0, 1.0])(inputs))
    data = tf.SparseTensor([[0, 1], [0, 2], [1, 1]], [-1.5, 0.5, 3.4], [2, 3])
    predicted = model.predict(data, batch_size=1, verbose=0)
    assert isinstance(predicted, tf.SparseTensor)
    np.testing.assert_array_equal(predicted.indices, data.indices)
    np.testing.assert_array_equal(predicted.values, [0, 1, 2])
    tf.test.TestCase().assertAllEqual([["a", "b"]], np.array([[b"a", b"b"]], object))


@pytest.mark.parametrize("split", ["whitespace", tf.strings.split])
def test_ngrams_in_a_vocabulary(split):
    """Test n-grams in and outside of the vocabulary, before and after it is replaced."""
    layer = layers.TextVectorization(
        vocabulary=["a", "a b", "b c d"], ngrams=(1, 3, 2), split=split, output_mode="int"
    )
    assert layer(["a b c d", "A"]).numpy().tolist() == [
        [2, 1, 1, 1, 1, 4, 3, 1, 1],
        [2, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
    layer.set_vocabulary(["c d", "d"])
    assert layer(["c d"]).numpy().tolist() == [[1, 3, 2]]


def test_ngrams_of_words_with_spaces():
    layer = layers.TextVectorization(
        vocabulary=["a b c"],
        ngrams=2,
        split=lambda text: tf.strings.split(text, ","),
        standardize=None,
    )
    assert layer(["a b,c"]).numpy().tolist() == [[1, 1, 2]]


def test_vectors_of_padded_texts():
    layer = layers.TextVectorization(vocabulary=["a", "b"], output_mode="count")
    assert layer(["a a x", "b"]).numpy().tolist() == [[1, 2, 0], [0, 0, 1]]
    layer = layers.TextVectorization(vocabulary=["a", "b"], output_mode="multi_hot")
    assert layer(["a a x", "b"]).numpy().tolist() == [[1, 1, 0], [0, 0, 1]]
