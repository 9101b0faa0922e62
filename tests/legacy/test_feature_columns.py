"""Test feature columns: their outputs, names, specifications and errors."""

import numpy as np
import pytest

import meshflow as tf

fc = tf.feature_column
FEATURES = {
    "age": [20.0, 35.0, 70.0],
    "pair": [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]],
    "colour": ["red", "grey", ""],
    "number": [[1], [-1], [9]],
    "tags": [["x", "y"], ["z", "x"], ["q", "q"]],
    "weight": [[1.0, 2.0], [0.5, -1.0], [3.0, 4.0]],
}


def dense(*columns, features=FEATURES):
    return tf.keras.layers.DenseFeatures(list(columns))(features).numpy().tolist()


def compute_indicators(column, features=FEATURES):
    return dense(fc.indicator_column(column), features=features)


def counting(shape, dtype=None):
    return tf.reshape(tf.range(np.prod(shape), dtype=tf.float32), shape)


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("x\ny\nz\n")
    return str(path)


def test_numbers_are_normalized_and_their_ranges_marked():
    age = fc.numeric_column("age", normalizer_fn=lambda x: x / 10)
    assert dense(age) == [[2.0], [3.5], [7.0]]
    ages = fc.bucketized_column(fc.numeric_column("age"), [35, 60])
    assert dense(ages) == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_each_of_several_numbers_has_separate_buckets():
    pair = fc.bucketized_column(fc.numeric_column("pair", shape=2), [2.5])
    assert dense(pair) == [[1, 0, 1, 0], [1, 0, 0, 1], [0, 1, 0, 1]]
    assert pair.num_buckets == 4
    assert compute_indicators(pair) == [[1, 0, 1, 0], [1, 0, 0, 1], [0, 1, 0, 1]]


def test_a_list_of_words_may_have_a_default_or_hashes_for_others():
    column = fc.categorical_column_with_vocabulary_list
    assert compute_indicators(column("colour", ["red", "blue"])) == [[1, 0], [0, 0], [0, 0]]
    assert compute_indicators(column("colour", ["red", "blue"], default_value=1)) == [
        [1, 0],
        [0, 1],
        [0, 0],
    ]
    hashed = column("colour", ["red", "blue"], num_oov_buckets=3)
    found = compute_indicators(hashed)
    assert hashed.num_buckets == 5 and found[0] == [1, 0, 0, 0, 0]
    assert sum(found[1][2:]) == 1 and found[2] == [0] * 5


def test_words_of_a_file(vocabulary):
    column = fc.categorical_column_with_vocabulary_file
    assert compute_indicators(column("tags", vocabulary)) == [[1, 1, 0], [1, 0, 1], [0, 0, 0]]
    short = column("tags", vocabulary, vocabulary_size=2, num_oov_buckets=1)
    assert compute_indicators(short) == [[1, 1, 0], [1, 0, 1], [0, 0, 2]]


def test_numbers_as_categories():
    plain = fc.categorical_column_with_identity("number", 3)
    assert compute_indicators(plain) == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]
    other = fc.categorical_column_with_identity("number", 3, default_value=2)
    assert compute_indicators(other) == [[0, 1, 0], [0, 0, 0], [0, 0, 1]]


def test_hashes_and_crosses_are_those_of_tensorflow():
    # Computed by TensorFlow 2.
    features = {"r": ["a", "b", "c", "d"], "i": [5, 6, 7, 8], "n": [20.0, 35.0, 70.0, 18.0]}
    words = fc.categorical_column_with_hash_bucket("r", 7)
    numbers = fc.categorical_column_with_hash_bucket("i", 7, dtype=tf.int64)
    ranges = fc.bucketized_column(fc.numeric_column("n"), [18, 35, 65])
    crossed = fc.crossed_column([ranges, "r"], 13)
    keyed = fc.crossed_column(["i", ranges], 17, hash_key=5)
    columns = [words, numbers, crossed, keyed]
    found = [np.argmax(compute_indicators(column, features), 1).tolist() for column in columns]
    assert found == [[5, 2, 5, 2], [1, 5, 2, 4], [9, 6, 6, 0], [12, 10, 15, 11]]


def test_weights_count(vocabulary):
    tags = fc.categorical_column_with_vocabulary_file("tags", vocabulary)
    weighted = fc.weighted_categorical_column(tags, "weight")
    assert compute_indicators(weighted) == [[1, 2, 0], [-1, 0, 0.5], [0, 0, 0]]
    table = fc.embedding_column(weighted, 1, initializer=counting)
    # The mean ignores entries with weights that are not positive.
    np.testing.assert_allclose(dense(table), [[2 / 3], [2.0], [0.0]], rtol=1e-6)


@pytest.mark.parametrize(
    ("combiner", "first"), [("sum", 1.0), ("mean", 0.5), ("sqrtn", 1 / np.sqrt(2))]
)
def test_vectors_of_a_row_are_combined(vocabulary, combiner, first):
    tags = fc.categorical_column_with_vocabulary_file("tags", vocabulary)
    column = fc.embedding_column(tags, 1, combiner, initializer=counting)
    assert dense(column)[0][0] == pytest.approx(first)
    assert dense(column)[2] == [0.0]


def test_vectors_are_scaled_down_to_a_norm():
    number = fc.categorical_column_with_identity("number", 3)
    column = fc.embedding_column(number, 2, initializer=counting, max_norm=1.0)
    np.testing.assert_allclose(dense(column, features={"number": [[2]]}), [[0.62469504, 0.7808688]])


def test_shared_table_is_one_weight():
    seen, bought = (fc.categorical_column_with_identity(key, 4) for key in ("seen", "bought"))
    columns = fc.shared_embeddings([seen, bought], 2, initializer=counting)
    layers = [tf.keras.layers.DenseFeatures(columns), tf.keras.layers.DenseFeatures(columns[:1])]
    features = {"seen": [[1]], "bought": [[3]]}
    assert layers[0](features).numpy().tolist() == [[6.0, 7.0, 2.0, 3.0]]
    assert layers[1](features).numpy().tolist() == [[2.0, 3.0]]
    assert layers[0].weights[0] is layers[1].weights[0] and len(layers[0].weights) == 1
    assert layers[0].weights[0].name.endswith("bought_seen_shared_embedding:0")


def test_table_is_loaded_from_a_checkpoint(tmp_path):
    saved = tf.train.Checkpoint(table=tf.Variable([[1.0], [2.0]])).save(str(tmp_path / "ck"))
    name = next(name for name, _ in tf.train.list_variables(saved) if "table" in name)
    number = fc.categorical_column_with_identity("number", 2)
    column = fc.embedding_column(number, 1, ckpt_to_load_from=saved, tensor_name_in_ckpt=name)
    assert dense(column, features={"number": [[1], [0]]}) == [[2.0], [1.0]]


def test_sparse_features_may_have_empty_rows(vocabulary):
    tags = fc.categorical_column_with_vocabulary_file("tags", vocabulary)
    sparse = tf.SparseTensor([[0, 0], [0, 2], [2, 1]], ["x", "y", "z"], [3, 3])
    assert compute_indicators(tags, {"tags": sparse}) == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]


def test_the_specification_of_records():
    colour = fc.categorical_column_with_vocabulary_list("colour", ["red"])
    age = fc.numeric_column("age", default_value=1)
    weighted = fc.weighted_categorical_column(colour, "weight")
    crossed = fc.crossed_column([fc.bucketized_column(age, [3]), "make"], 5)
    spec = fc.make_parse_example_spec(
        [fc.indicator_column(weighted), fc.embedding_column(crossed, 2)]
    )
    assert spec == {
        "colour": tf.io.VarLenFeature(tf.string),
        "weight": tf.io.VarLenFeature(tf.float32),
        "age": tf.io.FixedLenFeature((1,), tf.float32, (1.0,)),
        "make": tf.io.VarLenFeature(tf.string),
    }
    with pytest.raises(ValueError, match="different parse_spec for key age"):
        fc.make_parse_example_spec([age, fc.numeric_column("age", shape=2)])


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: fc.numeric_column(3), ValueError, "key must be a string"),
        (lambda: fc.numeric_column("a", shape=0), ValueError, "greater than 0"),
        (lambda: fc.numeric_column("a", dtype=tf.string), ValueError, "convertible to float"),
        (lambda: fc.numeric_column("a", default_value="x"), TypeError, "compatible with dtype"),
        (lambda: fc.numeric_column("a", default_value=[1, 2]), ValueError, "equal to given shape"),
        (lambda: fc.bucketized_column(fc.numeric_column("a"), [2, 1]), ValueError, "sorted"),
        (lambda: fc.bucketized_column("a", [1]), ValueError, "numeric_column"),
        (lambda: fc.categorical_column_with_identity("a", 0), ValueError, "num_buckets 0 < 1"),
        (
            lambda: fc.categorical_column_with_vocabulary_list("a", ["x", "x"]),
            ValueError,
            "Duplicate keys",
        ),
        (
            lambda: fc.categorical_column_with_vocabulary_list("a", ["x"], None, 0, 1),
            ValueError,
            "both num_oov_buckets and default_value",
        ),
        (lambda: fc.categorical_column_with_hash_bucket("a", 0), ValueError, "at least 1"),
        (lambda: fc.crossed_column(["a"], 3), ValueError, "length > 1"),
        (
            lambda: fc.crossed_column(["a", fc.categorical_column_with_hash_bucket("b", 2)], 3),
            ValueError,
            "not supported for crossing",
        ),
        (lambda: fc.indicator_column(fc.numeric_column("a")), ValueError, "CategoricalColumn"),
        (lambda: fc.sequence_numeric_column("a"), AttributeError, "sequences"),
    ],
)
def test_mistakes_are_named(make, error, text):
    with pytest.raises(error, match=text):
        make()
