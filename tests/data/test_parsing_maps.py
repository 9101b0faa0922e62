"""Test map functions that parse records and compute with numbers, which are compiled."""

import numpy as np
import pytest

import meshflow as tf

pytest.importorskip("google.protobuf")
D, E = tf.data.Dataset, tf.data.experimental
WANTED = {"x": tf.io.FixedLenFeature([3], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64, 7)}


def example(n, with_y=True, width=3):
    train = tf.train
    feature = {"x": train.Feature(float_list=train.FloatList(value=[n] * width))}
    if with_y:
        feature["y"] = train.Feature(int64_list=train.Int64List(value=[n]))
    return train.Example(features=train.Features(feature=feature)).SerializeToString()


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "a.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for n in range(150):
            writer.write(example(n, with_y=n % 2 == 0))
    return path


def numbers(record):
    found = tf.io.parse_single_example(record, WANTED)
    if found["y"] > 100:
        scale = 2.0
    else:
        scale = 1.0
    return {"sum": tf.reduce_sum(found["x"]) * scale}, tf.one_hot(found["y"] % 4, 4)


def test_equals_elementwise_execution(path):
    data = tf.data.TFRecordDataset(path).map(numbers)
    assert "parses strings" in E.explain(data)
    assert data.element_spec == (
        {"sum": tf.TensorSpec([], tf.float32)},
        tf.TensorSpec([4], tf.float32),
    )
    for _ in range(2):
        found = list(data)
        assert len(found) == 150
        for n, (features, label) in enumerate(found):
            y = n if n % 2 == 0 else 7
            assert float(features["sum"]) == 3 * n * (2 if y > 100 else 1)
            assert label.numpy().argmax() == y % 4
    shuffled = data.shuffle(50).batch(16, drop_remainder=True)
    assert sum(len(label) for _, label in shuffled) == 144
    assert [int(x["sum"]) for x, _ in data.take(3)] == [0, 3, 6]
    listed = D.from_tensor_slices([example(n) for n in range(5)]).map(numbers).batch(5)
    assert "gathers complete batches" in E.explain(listed)
    assert next(iter(listed))[0]["sum"].numpy().tolist() == [0, 3, 6, 9, 12]


def test_rows_of_a_table(tmp_path):
    (tmp_path / "a.csv").write_text("".join(f"{n},{n / 2},{n % 3}\n" for n in range(70)))

    def parse(line):
        *features, label = tf.io.decode_csv(line, [0.0, 0.0, 0])
        return tf.stack(features), label

    data = tf.data.TextLineDataset(str(tmp_path / "a.csv")).map(parse)
    assert data.element_spec == (tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.int32))
    rows = [(x.numpy().tolist(), int(y)) for x, y in data]
    assert rows == [([n, n / 2], n % 3) for n in range(70)]


def test_bad_record_fails_at_its_position():
    texts = [example(n, width=4 if n == 5 else 3) for n in range(9)]
    data = D.from_generator(lambda: iter(texts), tf.string, []).map(numbers)
    iterator = iter(data)
    assert [int(next(iterator)[0]["sum"]) for _ in range(5)] == [0, 3, 6, 9, 12]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Key: x"):
        next(iterator)
    left = [int(x["sum"]) for x, _ in data.ignore_errors()]
    assert left == [0, 3, 6, 9, 12, 18, 21, 24]


def test_damaged_file_after_good_records(path):
    with open(path, "r+b") as file:
        file.seek(-2, 2)
        last = file.read(1)[0]
        file.seek(-2, 2)
        file.write(bytes([last ^ 1]))
    iterator = iter(tf.data.TFRecordDataset(path).map(numbers))
    assert len([next(iterator) for _ in range(149)]) == 149
    with pytest.raises(tf.errors.DataLossError, match="checksum"):
        next(iterator)


def test_elements_of_generators_are_not_waited_for():
    made = []

    def rows():
        for n in range(9):
            made.append(n)
            yield example(n)

    iterator = iter(D.from_generator(rows, tf.string, []).map(numbers))
    next(iterator)
    assert len(made) == 1


@pytest.mark.parametrize(
    "fn",
    [
        lambda r: (tf.io.parse_single_example(r, WANTED)["x"], r),
        lambda r: tf.io.parse_single_example(r, {"x": tf.io.VarLenFeature(tf.float32)})["x"].values,
        lambda r: [tf.io.parse_single_example(r, WANTED)[k] for k in ("x", "x")][1],
        lambda r: tf.io.parse_single_example(r, WANTED)["x"].numpy() * 2,
        lambda r: (
            tf.io.parse_single_example(r, WANTED)["x"] + tf.io.parse_single_example(r, WANTED)["x"]
        ),
        lambda r: tf.io.parse_single_example(r, WANTED)["x"] * tf.random.uniform([], 1, 2),
    ],
)
def test_other_functions_run_as_before(fn, path):
    data = tf.data.TFRecordDataset(path).take(3).map(fn)
    assert len(list(data)) == 3


def test_fit_on_records(path):
    def parse(record):
        found = tf.io.parse_single_example(record, WANTED)
        return found["x"] / 150, tf.cast(found["x"][:1], tf.float32) / 150

    data = tf.data.TFRecordDataset(path).map(parse, num_parallel_calls=2).shuffle(150).batch(16)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.Adam(0.05), "mse")
    history = model.fit(data, epochs=8, verbose=0).history["loss"]
    assert history[-1] < history[0] / 4
    assert np.isfinite(history).all()
