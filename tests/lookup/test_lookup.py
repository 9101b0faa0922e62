"""Tables: static ones, hashed words, ones that change, in functions, datasets and checkpoints."""

import pytest

import meshflow as tf
from helpers import assert_close

Pairs = tf.lookup.KeyValueTensorInitializer
Index = tf.lookup.TextFileIndex


def words(default=-1):
    return tf.lookup.StaticHashTable(Pairs(["a", "b", "c"], [1, 2, 3]), default)


def test_static_tables():
    table = words()
    found = table.lookup(tf.constant([["c", "?"], ["a", "b"]]))
    assert found.dtype is tf.int32 and found.numpy().tolist() == [[3, -1], [1, 2]]
    assert table[tf.constant("b")].numpy() == 2 and table.size().numpy() == 3
    assert (table.key_dtype, table.value_dtype) == (tf.string, tf.int32)
    assert table.default_value.numpy() == -1
    assert sorted(table.export()[0].numpy()) == [b"a", b"b", b"c"]
    sparse = tf.sparse.from_dense([["b", ""], ["", "?"]])
    assert table.lookup(sparse).values.numpy().tolist() == [2, -1]
    with pytest.raises(TypeError, match="Dtype of argument `keys`"):
        table.lookup(tf.constant([1]))
    with pytest.raises(tf.errors.FailedPreconditionError, match="different value for same key"):
        tf.lookup.StaticHashTable(Pairs(["a", "a"], [1, 2]), 0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="one for each key"):
        Pairs(["a", "b"], [1])


def test_numbers_are_looked_up_in_functions():
    table = tf.lookup.StaticHashTable(Pairs(tf.constant([30, 10], tf.int64), [0.3, 0.1]), -1.0)
    look = tf.function(table.lookup)
    for keys in ([[10, 30]], [[99, 10]], [[0, 31]]):
        keys = tf.constant(keys, tf.int64)
        assert_close(look(keys), table.lookup(keys))


def test_words_of_datasets():
    table = words()
    data = tf.data.Dataset.from_tensor_slices(["b", "?", "a"]).map(table.lookup)
    assert next(x.numpy() for x in data.batch(2)).tolist() == [2, -1]


def test_vocabularies():
    known = Pairs(["lake", "emerson"], tf.constant([0, 1], tf.int64))
    table = tf.lookup.StaticVocabularyTable(known, 3)
    # TensorFlow's numbers.
    found = table.lookup(tf.constant(["emerson", "lake", "palmer", "king"]))
    assert found.numpy().tolist() == [1, 0, 2, 3]
    assert table.size().numpy() == 5
    numbers = Pairs(tf.constant([10, 20], tf.int64), tf.constant([0, 1], tf.int64))
    table = tf.lookup.StaticVocabularyTable(numbers, 2, lookup_key_dtype=tf.int32)
    assert table[tf.constant([20, 30, 40])].numpy().tolist() == [1, 2, 2]
    with pytest.raises(ValueError, match="num_oov_buckets"):
        tf.lookup.StaticVocabularyTable(None, 0)
    with pytest.raises(TypeError, match="value_dtype"):
        tf.lookup.StaticVocabularyTable(Pairs(["a"], [0]), 1)


def test_text_files(tmp_path):
    path = str(tmp_path / "words.txt")
    tf.io.write_file(path, "lake 1.5\npalmer 2.5\n")

    def table(*arguments, **more):
        source = tf.lookup.TextFileInitializer(path, *arguments, delimiter=" ", **more)
        return tf.lookup.StaticHashTable(source, "?" if arguments[2] is tf.string else -1)

    assert table(tf.string, 0, tf.float32, 1)[tf.constant("palmer")].numpy() == 2.5
    lines = table(tf.string, Index.WHOLE_LINE, tf.int64, Index.LINE_NUMBER, value_index_offset=1)
    assert lines[tf.constant(["palmer 2.5", "x"])].numpy().tolist() == [2, -1]
    back = table(tf.int64, Index.LINE_NUMBER, tf.string, 0, vocab_size=1)
    assert back[tf.constant([0, 1], tf.int64)].numpy().tolist() == [b"lake", b"?"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected at least 3"):
        table(tf.string, 0, tf.string, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not a valid int64"):
        table(tf.string, 0, tf.int64, 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Invalid vocab_size"):
        table(tf.string, 0, tf.string, 1, vocab_size=3)
    with pytest.raises(ValueError, match="must be int64"):
        table(tf.string, 0, tf.string, Index.LINE_NUMBER)


def test_tables_that_change():
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, [0.0, 0.0])
    table.insert(tf.constant(["a", "b"]), [[1.0, 2.0], [3.0, 4.0]])
    table.insert(tf.constant(["a"]), [[5.0, 6.0]])
    assert_close(table.lookup(tf.constant(["a", "z"])), [[5, 6], [0, 0]])
    assert_close(table.lookup(tf.constant(["z"]), [[9.0, 9.0]]), [[9, 9]])
    table.remove(tf.constant(["a", "unknown"]))
    assert table.export()[0].numpy().tolist() == [b"b"] and table.size().numpy() == 1
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Expected shape \[1, 2\]"):
        table.insert(tf.constant(["a"]), [1.0])


def dense(key_dtype=tf.int64):
    return tf.lookup.experimental.DenseHashTable(key_dtype, tf.int64, -1, 0, -7)


def test_numbers_are_inserted_by_functions():
    table = dense()

    @tf.function
    def count(key):
        table.insert(key, table.lookup(key) + 2)
        return table.size()

    assert count(tf.constant([4], tf.int64)).numpy() == 1
    assert count(tf.constant([4], tf.int64)).numpy() == 1
    assert count(tf.constant([8], tf.int64)).numpy() == 2
    assert table[tf.constant([4, 8], tf.int64)].numpy().tolist() == [3, 1]


def test_reserved_keys():
    table = dense()
    table.insert_or_assign(tf.constant([5], tf.int64), tf.constant([1], tf.int64))
    table.erase(tf.constant([5], tf.int64))
    assert table.size().numpy() == 0
    with pytest.raises(tf.errors.InvalidArgumentError, match="empty_key"):
        table.lookup(tf.constant([0], tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError, match="cannot be equal"):
        tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, -1, 0, 0)


def test_content_in_checkpoints(tmp_path):
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, 0.0)
    table.insert(tf.constant(["ä"]), [0.1])
    path = tf.train.Checkpoint(table=table).save(str(tmp_path / "c"))
    table.insert(tf.constant(["ä", "b"]), [7.0, 8.0])
    tf.train.Checkpoint(table=table).restore(path).assert_consumed()
    assert_close(table.lookup(tf.constant(["ä", "b"])), [0.1, 0])


def test_text_of_any_number_is_looked_up_in_functional_models():
    table = tf.lookup.StaticVocabularyTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.range(2, dtype=tf.int64)), 1
    )
    text = tf.keras.Input((), dtype=tf.string)
    numbers = tf.keras.layers.Lambda(table.lookup)(text)
    model = tf.keras.Model(text, tf.keras.layers.Embedding(3, 2)(numbers))
    words = tf.constant(["b", "a", "other"] * 20)
    rows = model.layers[-1].get_weights()[0]
    assert_close(model.predict(words, verbose=0), rows[[1, 0, 2] * 20])


def test_integers_in_functions():
    keys = tf.constant([30, -5, 10], tf.int64)
    table = tf.lookup.StaticHashTable(Pairs(keys, tf.constant([1.5, 2.5, 3.5])), -1.0)
    queries = tf.constant([[10, 11], [-5, 99]], tf.int64)
    expected = [[3.5, -1.0], [2.5, -1.0]]
    for find in (
        table.lookup,
        tf.function(table.lookup),
        tf.function(table.lookup, jit_compile=True),
    ):
        assert find(queries).numpy().tolist() == expected
