"""Maps of strings, records, images and sounds run many elements at once, with the results of single ones."""

import wave

import numpy as np
import pytest

import meshflow as tf
from data.test_image_loading import assert_same, paths  # noqa: F401 (a fixture)
from meshflow.data.execution.numeric_calls import NumericCalls
from meshflow.data.execution.stacked_programs import StackedPrograms

pytest.importorskip("google.protobuf")
D, E = tf.data.Dataset, tf.data.experimental
WORDS = [f"w{n}" for n in range(9)]
INITIALIZER = tf.lookup.KeyValueTensorInitializer(WORDS, np.arange(9))
LINES = [" ".join(f"w{(n * m) % 12}" for m in range(1, n % 5 + 2)) for n in range(70)]


def find_words(line):
    table = tf.lookup.StaticHashTable(INITIALIZER, -1)
    ids = table.lookup(tf.strings.split(tf.strings.upper(tf.strings.lower(line))))
    return tf.concat([[20], ids, [21]], 0)[:5], tf.size(ids)


def hash_words(line):
    table = tf.lookup.StaticVocabularyTable(INITIALIZER, 3)
    words = tf.strings.split(line)
    return table.lookup(words)[1:] * 2, table.lookup(words[0]), tf.shape(words), words[-1] == "w3"


def parse_columns(line):
    parts = tf.strings.split(tf.strings.regex_replace(line, "w", ""))
    number = tf.strings.to_number(parts[0], tf.int32)
    return number * 2, tf.strings.substr(line, 0, 2), tf.strings.join([parts[0], "x"])


@pytest.mark.parametrize("function", [find_words, hash_words, parse_columns])
def test_strings(function, monkeypatch):
    make = lambda f: D.from_tensor_slices(LINES).map(f)
    assert_same(make, function, monkeypatch, "")
    data = make(function)
    assert "elements hold strings" not in E.explain(data)
    for element in data:
        tf.nest.map_structure(
            lambda part, spec: spec.shape.assert_is_compatible_with(part.shape),
            element,
            data.element_spec,
        )


def test_parts_of_unknown_sizes_have_unknown_sizes():
    data = D.from_tensor_slices(["a b c", "d"]).map(lambda s: tf.strings.split(s)[:2])
    assert data.element_spec == tf.TensorSpec([None], tf.string)
    assert [row.tolist() for row in data.as_numpy_iterator()] == [[b"a", b"b"], [b"d"]]


@pytest.mark.parametrize("part", [slice(0, 6), slice(2, 4), slice(None, None, 400)])
def test_parts_of_numbers_of_unknown_sizes_have_unknown_sizes(part):
    rows = [[1, 2], list(range(9))]
    data = D.from_generator(lambda: iter(rows), output_signature=tf.TensorSpec([None], tf.int32))
    for function in (lambda x: x[part], lambda x: tf.identity(x.numpy()[part])):
        changed = data.map(function)
        assert changed.element_spec == tf.TensorSpec([None], tf.int32)
        assert [row.tolist() for row in changed.as_numpy_iterator()] == [r[part] for r in rows]


def test_index_after_the_end_is_an_error_of_its_element():
    data = D.from_tensor_slices(["a b", "c", "d e"]).map(lambda s: tf.strings.split(s)[1])
    iterator = iter(data)
    assert next(iterator).numpy() == b"b"
    with pytest.raises(tf.errors.InvalidArgumentError):
        next(iterator)
    assert [s.numpy() for s in data.ignore_errors()] == [b"b", b"e"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be non-zero"):
        next(iter(D.from_tensor_slices(["a b"]).map(lambda s: tf.strings.split(s)[::0])))


def test_filters_of_strings_and_numbers():
    data = D.from_tensor_slices(LINES).map(lambda s: (tf.strings.length(s), s))
    data = data.filter(lambda n, s: n > 8).filter(lambda n, s: tf.strings.substr(s, 0, 2) != "w3")
    expected = [s for s in LINES if len(s) > 8 and s[:2] != "w3"]
    assert [s.numpy().decode() for _, s in data] == expected
    assert "many elements at a time" in E.explain(data).splitlines()[0]


def make_records():
    train = tf.train
    ints = lambda values: train.Feature(int64_list=train.Int64List(value=values))
    floats = lambda values: train.Feature(float_list=train.FloatList(value=values))
    text = lambda value: train.Feature(bytes_list=train.BytesList(value=[value]))
    records, sequences = [], []
    for n in range(40):
        features = {"n": ints([n]), "ids": ints(range(n % 4)), "x": floats([n, 0.5, 1, 2])}
        features |= {"name": text(b"%d" % n)} if n % 3 else {}
        context = train.Features(feature=features)
        records.append(train.Example(features=context).SerializeToString())
        steps = train.FeatureList(feature=[floats([n, k]) for k in range(n % 3)])
        lists = train.FeatureLists(feature_list={"steps": steps} if n % 5 else {})
        sequence = train.SequenceExample(context=context, feature_lists=lists)
        sequences.append(sequence.SerializeToString())
    return records, sequences


def parse_record(record):
    io = tf.io
    features = {
        "n": io.FixedLenFeature([], tf.int64),
        "name": io.FixedLenFeature([], tf.string, "none"),
        "ids": io.VarLenFeature(tf.int64),
        "x": io.FixedLenSequenceFeature([2], tf.float32, allow_missing=True),
    }
    found = io.parse_single_example(record, features)
    ids = tf.sparse.to_dense(found["ids"])
    ragged = io.parse_single_example(record, {"ids": io.RaggedFeature(tf.int64)})["ids"]
    return {"ids": ids, "n": found["n"] * 2, "sum": ids + ragged}, found["name"], found["x"] / 2


def parse_sequence(record):
    io = tf.io
    context = {"n": io.FixedLenFeature([], tf.int64), "ids": io.VarLenFeature(tf.int64)}
    steps = {"steps": io.FixedLenSequenceFeature([2], tf.float32, allow_missing=True)}
    found, lists = io.parse_single_sequence_example(record, context, steps)
    return lists["steps"], found["n"], found["ids"].values


@pytest.mark.parametrize("index, function", [(0, parse_record), (1, parse_sequence)])
def test_records(index, function, monkeypatch):
    make = lambda f: D.from_tensor_slices(make_records()[index]).map(f)
    assert_same(make, function, monkeypatch, "parses strings")
    assert len(list(make(function).padded_batch(8))) == 5


def test_sparse_results_of_records():
    wanted = {"ids": tf.io.VarLenFeature(tf.int64)}
    parse = lambda r: tf.io.parse_single_example(r, wanted)
    found = list(D.from_tensor_slices(make_records()[0]).map(parse))
    assert [tf.sparse.to_dense(e["ids"]).numpy().tolist() for e in found[2:4]] == [
        [0, 1],
        [0, 1, 2],
    ]


def test_bytes_of_equal_and_unequal_lengths(monkeypatch):
    decode = lambda text: (
        tf.reshape(tf.io.decode_raw(text, tf.uint8), [-1, 2]),
        tf.io.decode_raw(text, tf.int16, fixed_length=4),
    )
    for texts in (["abcd", "efgh"] * 9, ["ab", "cdef"] * 9):
        make = lambda f, texts=texts: D.from_tensor_slices(texts).map(f)
        assert_same(make, decode, monkeypatch, "parses strings")


def change_image(path):
    image = tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
    image = tf.image.random_flip_up_down(tf.image.random_hue(image, 0.2))
    image = tf.image.random_brightness(tf.image.random_contrast(image, 0.5, 1.5), 0.2)
    image = tf.image.random_saturation(image, 0.5, 1.5)
    return tf.image.random_crop(image, [12, 9, 3]), tf.shape(image)


def test_random_changes_of_images_of_any_size(paths, monkeypatch):  # noqa: F811
    make = lambda f: D.from_tensor_slices(paths).map(f, num_parallel_calls=2)
    assert_same(make, change_image, monkeypatch, "in groups")


@pytest.mark.parametrize("samples", [-1, 700])
def test_sounds(samples, monkeypatch, tmp_path):
    for n in range(6):
        with wave.open(str(tmp_path / f"{n}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            rng = np.random.default_rng(n)
            file.writeframes(rng.integers(-999, 999, 600 + 50 * n, np.int16).tobytes())

    mel = tf.signal.linear_to_mel_weight_matrix(9, 65, 8000)
    traced = []
    run = NumericCalls._trace
    monkeypatch.setattr(
        NumericCalls, "_trace", lambda *args: traced.append(run(*args)) or traced[-1]
    )

    def load(path):
        sound, rate = tf.audio.decode_wav(tf.io.read_file(path), 1, samples, name="wav")
        spectra = tf.abs(tf.signal.stft(sound[:, 0], 128, 64))
        return tf.math.log(spectra @ mel + 1e-3), rate

    files = D.from_tensor_slices([str(tmp_path / f"{n}.wav") for n in range(6)])
    data = files.map(load)
    assert "in groups" in E.explain(data)
    for path, (found, rate) in zip(files, data, strict=True):
        np.testing.assert_allclose(found, load(path)[0], atol=1e-4)
        assert rate == 8000
    # The calls on values of unknown sizes run as programs.
    assert bool(traced) == (samples < 0)


def test_numbers_of_equal_and_unequal_sizes(monkeypatch):
    """Values of one size are computed at once, others by one program for each element."""
    counts = []
    run = StackedPrograms.run

    def count(self, columns):
        result = run(self, columns)
        counts.append(result is not None)
        return result

    monkeypatch.setattr(StackedPrograms, "run", count)
    change = lambda s: tf.cast(tf.strings.bytes_split(s) == "a", tf.float32)[::-1] * 2.0
    for texts, at_once in ((["abca", "aabb"] * 20, True), (["abca", "a"] * 20, False)):
        data = D.from_tensor_slices(texts).map(change)
        expected = [[2.0 * (letter == "a") for letter in text[::-1]] for text in texts]
        assert [row.tolist() for row in data.as_numpy_iterator()] == expected
        assert at_once in counts
        counts.clear()


def test_small_datasets_are_repeated_in_blocks():
    data = D.from_tensors({"x": [1, 2], "y": "a"}).repeat(5)
    assert [e["y"].numpy() for e in data] == [b"a"] * 5
    data = D.range(5).repeat(3)
    assert list(data.as_numpy_iterator()) == [*range(5)] * 3
    assert list(D.range(3).repeat().batch(4).take(2).as_numpy_iterator())[1].tolist() == [
        1,
        2,
        0,
        1,
    ]
    parts = [D.from_tensors(n).repeat() for n in (5, 6)]
    assert (
        list(D.choose_from_datasets(parts, D.range(2).repeat(2)).as_numpy_iterator()) == [5, 6] * 2
    )


def test_groups_compute_the_bits_of_single_elements():
    lines = [" ".join(f"{n * m % 17 / 7:.4f}" for m in range(1, 41)) for n in range(70)]
    parse = lambda s: tf.strings.to_number(tf.strings.split(s)) * 1.5
    for change in (tf.exp, tf.tanh, tf.sigmoid, tf.sin):
        make = lambda texts, change=change: D.from_tensor_slices(texts).map(
            lambda s: change(parse(s))
        )
        found = list(make(lines).as_numpy_iterator())
        for n in (40, 69):
            (single,) = make(lines[n : n + 1]).as_numpy_iterator()
            assert single.tobytes() == found[n].tobytes()


def test_programs_for_groups_are_limited():
    lines = [" ".join("7" * (n // 8 + 1)) for n in range(300)]
    data = D.from_tensor_slices(lines).map(
        lambda s: tf.strings.to_number(tf.strings.split(s)) * 2 + 1
    )
    assert [len(row) for row in data] == [n // 8 + 1 for n in range(300)]
    assert len(data.function.plan._stages[-1]._stacked._programs) <= 16


def test_errors_of_batches_have_their_places():
    data = D.from_tensor_slices(["1", "2", "3", "4", "x", "6", "7"]).map(tf.strings.to_number)
    batches, found = iter(data.batch(2)), []
    for _ in range(4):
        try:
            found.append(next(batches).numpy().tolist())
        except tf.errors.InvalidArgumentError:
            found.append(None)
    assert found == [[1, 2], [3, 4], None, [7]]


def test_threads_read_files_and_decode_images(paths):  # noqa: F811
    decode = lambda path: tf.io.decode_image(
        tf.io.read_file(path), channels=3, expand_animations=False
    )
    changes = [
        *(tf.io.read_file, lambda p: tf.strings.length(tf.io.read_file(p)), decode),
        *(lambda p: tf.shape(decode(p)), lambda p: decode(p)[:4], lambda p: decode(p)[0, 0]),
    ]
    for change in changes:
        plan = D.from_tensor_slices(paths).map(change, 2).function.plan
        assert plan.loads and not plan.holds_lock and not plan.vectorizes
    assert D.from_tensor_slices(LINES).map(find_words, 2).function.plan.holds_lock


def test_strings_in_lists_are_strings():
    mark = lambda line: tf.concat([["<s>"], tf.strings.split(line), ["</s>"]], 0)
    data = D.from_tensor_slices(["a b", "c"]).map(mark)
    assert data.element_spec == tf.TensorSpec([None], tf.string)
    found = [row.tolist() for row in data.map(lambda words: words[1:]).as_numpy_iterator()]
    assert found == [[b"a", b"b", b"</s>"], [b"c", b"</s>"]]


def test_small_parts_do_not_keep_images():
    contents = tf.io.encode_png(np.zeros((64, 64, 3), np.uint8)).numpy()
    data = D.from_tensor_slices([contents] * 2).map(lambda c: tf.io.decode_png(c, 3)[:4])
    for part in data.as_numpy_iterator():
        assert part.base is None or part.base.nbytes == part.nbytes


def _read_numbers(line):
    return tf.strings.to_number(tf.strings.regex_replace(tf.strings.split(line), "w", ""), tf.int32)


@pytest.mark.parametrize(
    "change",
    [
        lambda x, s: (x[: x[0] % 3], x[-(x[-1] % 3) :], x[None, tf.size(x) // 2 :], s),
        lambda x, s: (x[tf.size(x) // 2], x[..., : x[0] % 4], tf.strings.split(s)[tf.size(x) - 1]),
        lambda x, s: tf.concat([x[: x[0] % 3], tf.zeros([6 - tf.size(x)], tf.int32)], 0),
        lambda x, s: {
            "sum": tf.reduce_sum(x[: x[0] % 3] * 2),
            "words": tf.strings.split(s)[: x[0]],
        },
        lambda x, s: tf.repeat(tf.ones_like(x), x[0] % 3),
    ],
)
def test_sizes_may_depend_on_numbers_of_a_text(change, monkeypatch):
    make = lambda f: D.from_tensor_slices(LINES).map(f)
    function = lambda line: change(_read_numbers(line), line)
    assert_same(make, function, monkeypatch, "")
    assert make(function).function.plan.group_size == 64


def test_computed_indices_outside_of_a_text():
    data = D.from_tensor_slices(["w0", "w1 w2", "w0 w3"])
    items = iter(data.map(lambda s: tf.strings.split(s)[_read_numbers(s)[0] + 1]))
    found = []
    for _ in range(3):
        try:
            found.append(next(items).numpy())
        except tf.errors.InvalidArgumentError:
            found.append(None)
    assert found == [None, None, b"w3"]
    for make_index in (lambda n: n > 1, lambda n: [0, n]):
        selected = D.from_tensor_slices(LINES).map(
            lambda s, f=make_index: tf.strings.split(s)[f(_read_numbers(s)[0])]
        )
        with pytest.raises((TypeError, tf.errors.InvalidArgumentError)):
            list(selected)
    random = D.from_tensor_slices(LINES).map(
        lambda s: _read_numbers(s)[: tf.random.uniform([], 1, 2, tf.int32)]
    )
    assert {len(x) for x in random} == {1}
