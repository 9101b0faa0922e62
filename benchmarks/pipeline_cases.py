"""The pipelines that `pipelines.py` measures, each a function of the library `tf` and of a folder of files.

A case returns a dataset. Its name tells how results are compared: cases in `RANDOM` draw random
numbers that are not TensorFlow's, so that only the specs, shapes and counts of elements are equal.
"""

import numpy as np

CASES, RANDOM = {}, set()
ROWS = 20_000


def case(name, random=False):
    """Register a pipeline."""

    def register(function):
        CASES[name] = function
        if random:
            RANDOM.add(name)
        return function

    return register


def write_files(tf, folder):
    """Write images, records, CSV files, texts and sounds, with TensorFlow."""
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (folder / "images" / label).mkdir(parents=True)
        (folder / "texts" / label).mkdir(parents=True)
        (folder / "sounds" / label).mkdir(parents=True)
        for i in range(60):
            coarse = rng.integers(0, 255, (12, 12, 3), np.uint8)
            image = tf.image.resize(coarse, [160, 160], "bicubic") + rng.normal(0, 8, (160, 160, 3))
            image = tf.cast(tf.clip_by_value(image, 0, 255), tf.uint8)
            name = folder / "images" / label / f"{i:03}"
            tf.io.write_file(f"{name}.jpg", tf.io.encode_jpeg(image, quality=90))
            words = " ".join(f"w{n}" for n in rng.integers(0, 500, 80))
            (folder / "texts" / label / f"{i:03}.txt").write_text(words)
            sound = rng.uniform(-1, 1, (4_000, 1)).astype(np.float32)
            data = tf.audio.encode_wav(sound, 8_000)
            tf.io.write_file(str(folder / "sounds" / label / f"{i:03}.wav"), data)
    (folder / "png").mkdir()
    for i, path in enumerate(sorted((folder / "images").glob("*/*.jpg"))[:60]):
        image = tf.io.decode_jpeg(tf.io.read_file(str(path)))
        tf.io.write_file(str(folder / "png" / f"{i:03}.png"), tf.io.encode_png(image))
    for part in range(4):
        _write_records(tf, folder, part, rng)
        lines = [
            f"{n},{n * 0.5},{n % 7},word{n % 50},{int(n % 3 == 0)}" for n in range(part, ROWS, 4)
        ]
        (folder / f"rows-{part}.csv").write_text("\n".join(["a,b,c,d,e", *lines]) + "\n")
        lines = [" ".join(f"w{n}" for n in row) for row in rng.integers(0, 500, (2_500, 8))]
        (folder / f"lines-{part}.txt").write_text("\n".join(lines) + "\n")


def _write_records(tf, folder, part, rng):
    feature, features = tf.train.Feature, tf.train.Features

    def floats(values):
        return feature(float_list=tf.train.FloatList(value=values))

    def ints(values):
        return feature(int64_list=tf.train.Int64List(value=values))

    sequence_file = tf.io.TFRecordWriter(str(folder / f"sequences-{part}.tfrecord"))
    with sequence_file, tf.io.TFRecordWriter(str(folder / f"records-{part}.tfrecord")) as file:
        for n in range(1_000):
            length = int(rng.integers(1, 9))
            name = feature(bytes_list=tf.train.BytesList(value=[b"name%d" % n]))
            columns = {
                "x": floats(rng.normal(size=8)),
                "y": ints([n % 10]),
                "name": name,
                "tokens": ints(rng.integers(0, 99, length)),
            }
            example = tf.train.Example(features=features(feature=columns))
            file.write(example.SerializeToString())
            steps = tf.train.FeatureList(
                feature=[floats(rng.normal(size=3)) for _ in range(length)]
            )
            sequence = tf.train.SequenceExample(
                context=features(feature={"y": columns["y"]}),
                feature_lists=tf.train.FeatureLists(feature_list={"steps": steps}),
            )
            sequence_file.write(sequence.SerializeToString())


def _paths(folder, pattern):
    return sorted(str(p) for p in folder.glob(pattern))


def _rows(tf):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(ROWS, 8)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, np.arange(ROWS) % 10))


def _vocabulary():
    return [f"w{n}" for n in range(300)]


def _lines(tf, folder):
    return tf.data.TextLineDataset(_paths(folder, "lines-*.txt"))


def _table(tf):
    initializer = tf.lookup.KeyValueTensorInitializer(_vocabulary(), np.arange(300))
    return tf.lookup.StaticHashTable(initializer, -1)


# Images.


def _load_jpeg(tf, path):
    return tf.io.decode_jpeg(tf.io.read_file(path), channels=3)


@case("images: decode and resize")
def _(tf, folder):
    def load(path):
        return tf.image.resize(_load_jpeg(tf, path), [96, 96]) / 255.0

    paths = _paths(folder, "images/*/*.jpg")
    data = tf.data.Dataset.from_tensor_slices(paths)
    return data.map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(32)


@case("images: decode, augment", random=True)
def _(tf, folder):
    def load(path):
        image = tf.image.resize(_load_jpeg(tf, path), [128, 128])
        image = tf.image.random_flip_left_right(tf.image.random_crop(image, [96, 96, 3]))
        return tf.image.random_brightness(image, 0.1) / 255.0

    paths = _paths(folder, "images/*/*.jpg")
    data = tf.data.Dataset.from_tensor_slices(paths)
    return data.map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(32)


@case("images: decode, contrast and saturation", random=True)
def _(tf, folder):
    def load(path):
        image = tf.image.convert_image_dtype(_load_jpeg(tf, path), tf.float32)
        image = tf.image.random_saturation(tf.image.random_contrast(image, 0.8, 1.2), 0.8, 1.2)
        return tf.image.resize_with_crop_or_pad(image, 128, 128)

    paths = _paths(folder, "images/*/*.jpg")
    data = tf.data.Dataset.from_tensor_slices(paths)
    return data.map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(32)


@case("images: stateless augmentation", random=True)
def _(tf, folder):
    def load(index, path):
        seed = tf.stack([tf.cast(index, tf.int32), 7])
        image = tf.image.resize(_load_jpeg(tf, path), [128, 128])
        image = tf.image.stateless_random_crop(image, [96, 96, 3], seed)
        image = tf.image.stateless_random_flip_left_right(image, seed)
        return tf.image.stateless_random_brightness(image, 0.2, seed) / 255.0

    data = tf.data.Dataset.from_tensor_slices(_paths(folder, "images/*/*.jpg"))
    return data.enumerate().map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(32)


@case("images: PNG and central crop")
def _(tf, folder):
    def load(path):
        image = tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
        image = tf.image.central_crop(tf.ensure_shape(image, [160, 160, 3]), 0.5)
        return tf.image.convert_image_dtype(image, tf.float32)

    return tf.data.Dataset.from_tensor_slices(_paths(folder, "png/*.png")).map(load).batch(32)


@case("images: labels from folder names")
def _(tf, folder):
    def load(path):
        label = tf.strings.split(path, "/")[-2] == "dog"
        return tf.image.resize(_load_jpeg(tf, path), [64, 64]), tf.cast(label, tf.int64)

    data = tf.data.Dataset.list_files(str(folder / "images/*/*.jpg"), shuffle=False)
    return data.map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(32).prefetch(2)


@case("image_dataset_from_directory")
def _(tf, folder):
    return tf.keras.utils.image_dataset_from_directory(
        str(folder / "images"), image_size=(96, 96), batch_size=32, shuffle=False
    )


@case("image_dataset_from_directory, layers in map", random=True)
def _(tf, folder):
    layers = tf.keras.layers
    augment = tf.keras.Sequential(
        [layers.RandomFlip("horizontal"), layers.RandomRotation(0.1), layers.Rescaling(1 / 255)]
    )
    data = tf.keras.utils.image_dataset_from_directory(
        str(folder / "images"), image_size=(96, 96), batch_size=32, shuffle=False
    )
    return data.map(lambda x, y: (augment(x, training=True), y))


@case("images: arrays, one-hot labels")
def _(tf, folder):
    images = np.random.default_rng(0).integers(0, 255, (5_000, 28, 28), np.uint8)
    data = tf.data.Dataset.from_tensor_slices((images, np.arange(5_000) % 10))

    def convert(x, y):
        return tf.cast(x, tf.float32)[..., None] / 255.0, tf.one_hot(y, 10)

    return data.map(convert).batch(64).prefetch(tf.data.AUTOTUNE)


# Records.


def _dense(tf):
    return {
        "x": tf.io.FixedLenFeature([8], tf.float32),
        "y": tf.io.FixedLenFeature([], tf.int64),
        "name": tf.io.FixedLenFeature([], tf.string),
    }


def _records(tf, folder, name="records"):
    return tf.data.TFRecordDataset(_paths(folder, f"{name}-*.tfrecord"))


@case("records: parse_single_example")
def _(tf, folder):
    return _records(tf, folder).map(lambda r: tf.io.parse_single_example(r, _dense(tf))).batch(64)


@case("records: parse_example of batches")
def _(tf, folder):
    return _records(tf, folder).batch(64).map(lambda r: tf.io.parse_example(r, _dense(tf)))


@case("records: interleave, shuffle")
def _(tf, folder):
    paths = _paths(folder, "records-*.tfrecord")
    data = tf.data.Dataset.from_tensor_slices(paths).interleave(
        tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE
    )
    parse = lambda r: tf.io.parse_single_example(r, _dense(tf))
    return data.map(parse, num_parallel_calls=tf.data.AUTOTUNE).batch(64).prefetch(1)


@case("records: VarLenFeature")
def _(tf, folder):
    spec = {"tokens": tf.io.VarLenFeature(tf.int64), "y": tf.io.FixedLenFeature([], tf.int64)}
    return _records(tf, folder).batch(64).map(lambda r: tf.io.parse_example(r, spec))


@case("records: VarLenFeature of single records")
def _(tf, folder):
    spec = {"tokens": tf.io.VarLenFeature(tf.int64), "y": tf.io.FixedLenFeature([], tf.int64)}

    def parse(record):
        found = tf.io.parse_single_example(record, spec)
        return tf.sparse.to_dense(found["tokens"]), found["y"]

    return _records(tf, folder).map(parse).padded_batch(64)


@case("records: RaggedFeature")
def _(tf, folder):
    spec = {"tokens": tf.io.RaggedFeature(tf.int64)}
    return _records(tf, folder).batch(64).map(lambda r: tf.io.parse_example(r, spec))


@case("records: FixedLenSequenceFeature")
def _(tf, folder):
    spec = {"tokens": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)}
    return _records(tf, folder).batch(64).map(lambda r: tf.io.parse_example(r, spec))


@case("records: parse_single_sequence_example")
def _(tf, folder):
    context = {"y": tf.io.FixedLenFeature([], tf.int64)}
    steps = {"steps": tf.io.FixedLenSequenceFeature([3], tf.float32)}

    def parse(record):
        y, x = tf.io.parse_single_sequence_example(record, context, steps)
        return x["steps"], y["y"]

    return _records(tf, folder, "sequences").map(parse).padded_batch(64)


@case("records: decode_raw")
def _(tf, folder):
    rows = [np.arange(n, n + 16, dtype=np.float32).tobytes() for n in range(5_000)]
    data = tf.data.Dataset.from_tensor_slices(rows)
    return data.map(lambda r: tf.reshape(tf.io.decode_raw(r, tf.float32), [4, 4])).batch(64)


# Lines and tables.


@case("make_csv_dataset")
def _(tf, folder):
    return tf.data.experimental.make_csv_dataset(
        _paths(folder, "rows-*.csv"), 64, label_name="e", num_epochs=1, shuffle=False
    )


@case("CsvDataset")
def _(tf, folder):
    kinds = [tf.int64, tf.float32, tf.int32, tf.string, tf.int32]
    return tf.data.experimental.CsvDataset(_paths(folder, "rows-*.csv"), kinds, header=True).batch(
        64
    )


@case("lines: decode_csv")
def _(tf, folder):
    def parse(line):
        *x, name, label = tf.io.decode_csv(line, [0, 0.0, 0, "", 0])
        return {"a": x[0], "b": x[1], "name": name}, label

    paths = _paths(folder, "rows-*.csv")
    return (
        tf.data.Dataset.from_tensor_slices(paths)
        .interleave(lambda p: tf.data.TextLineDataset(p).skip(1).map(parse), cycle_length=4)
        .batch(64)
    )


@case("lines: split and lookup of lines")
def _(tf, folder):
    table = _table(tf)
    return _lines(tf, folder).map(lambda s: table.lookup(tf.strings.split(s))).batch(64)


@case("lines: split and lookup of batches")
def _(tf, folder):
    table = _table(tf)

    def encode(lines):
        words = tf.strings.split(lines)
        return table.lookup(words.to_tensor("w0"))

    return _lines(tf, folder).batch(64).map(encode)


@case("lines: StaticHashTable on ragged batches")
def _(tf, folder):
    table = _table(tf)
    return _lines(tf, folder).batch(64).map(lambda s: table.lookup(tf.strings.split(s)))


@case("lines: StringLookup of batches")
def _(tf, folder):
    layer = tf.keras.layers.StringLookup(vocabulary=_vocabulary())
    return _lines(tf, folder).batch(64).map(lambda s: layer(tf.strings.split(s)))


@case("StringLookup of columns")
def _(tf, folder):
    layer = tf.keras.layers.StringLookup(vocabulary=_vocabulary(), num_oov_indices=2)
    words = np.array([f"w{n % 400}" for n in range(ROWS)])
    return tf.data.Dataset.from_tensor_slices(words).batch(128).map(layer)


@case("IntegerLookup of columns")
def _(tf, folder):
    layer = tf.keras.layers.IntegerLookup(vocabulary=np.arange(300), output_mode="multi_hot")
    values = (np.arange(ROWS) % 400).reshape(-1, 4)
    return tf.data.Dataset.from_tensor_slices(values).batch(128).map(layer)


@case("Hashing of columns")
def _(tf, folder):
    layer = tf.keras.layers.Hashing(64)
    words = np.array([f"w{n % 400}" for n in range(ROWS)])
    return tf.data.Dataset.from_tensor_slices(words).batch(128).map(layer)


@case("static hash table of integers")
def _(tf, folder):
    initializer = tf.lookup.KeyValueTensorInitializer(np.arange(300), np.arange(300) * 0.5)
    table = tf.lookup.StaticHashTable(initializer, -1.0)
    values = (np.arange(ROWS * 4) % 400).reshape(-1, 4)
    return tf.data.Dataset.from_tensor_slices(values).batch(128).map(table.lookup)


@case("static vocabulary table")
def _(tf, folder):
    initializer = tf.lookup.KeyValueTensorInitializer(_vocabulary(), np.arange(300, dtype=np.int64))
    table = tf.lookup.StaticVocabularyTable(initializer, 4)
    words = np.array([[f"w{n % 400}", f"w{n % 13}"] for n in range(ROWS)])
    return tf.data.Dataset.from_tensor_slices(words).batch(128).map(table.lookup)


@case("TextVectorization")
def _(tf, folder):
    layer = tf.keras.layers.TextVectorization(vocabulary=_vocabulary(), output_sequence_length=10)
    return _lines(tf, folder).batch(64).map(layer)


@case("TextVectorization with ngrams")
def _(tf, folder):
    layer = tf.keras.layers.TextVectorization(
        vocabulary=_vocabulary(), ngrams=2, output_mode="multi_hot"
    )
    return _lines(tf, folder).batch(64).map(layer)


@case("lines: ngrams")
def _(tf, folder):
    def join(lines):
        return tf.strings.ngrams(tf.strings.split(lines), 2).to_tensor()

    return _lines(tf, folder).batch(64).map(join)


@case("lines: lower case and regular expressions")
def _(tf, folder):
    def clean(line):
        return tf.strings.regex_replace(tf.strings.lower(tf.strings.strip(line)), "[aeiou]", "-")

    return _lines(tf, folder).map(clean).batch(64)


@case("lines: filter by length")
def _(tf, folder):
    return _lines(tf, folder).filter(lambda s: tf.strings.length(s) > 36).batch(64)


@case("lines: bytes as integers")
def _(tf, folder):
    return _lines(tf, folder).map(lambda s: tf.io.decode_raw(s, tf.uint8)).padded_batch(64)


@case("lines: unicode_decode, characters")
def _(tf, folder):
    split = lambda s: tf.strings.unicode_decode(s, "UTF-8")
    return _lines(tf, folder).batch(64).map(split)


@case("lines: string to number")
def _(tf, folder):
    texts = np.array([f"{n * 0.25}" for n in range(ROWS)])
    return tf.data.Dataset.from_tensor_slices(texts).map(tf.strings.to_number).batch(64)


@case("text_dataset_from_directory")
def _(tf, folder):
    return tf.keras.utils.text_dataset_from_directory(
        str(folder / "texts"), batch_size=32, shuffle=False
    )


@case("audio_dataset_from_directory")
def _(tf, folder):
    data = tf.keras.utils.audio_dataset_from_directory(
        str(folder / "sounds"), batch_size=32, shuffle=False, output_sequence_length=4_000,
    )  # fmt: skip
    return data.map(lambda x, y: (tf.abs(tf.signal.stft(x[..., 0], 256, 128)), y))


# Windows, groups and batches.


@case("timeseries_dataset_from_array")
def _(tf, folder):
    values = np.arange(ROWS, dtype=np.float32)
    return tf.keras.utils.timeseries_dataset_from_array(
        values[:-10], values[10:], sequence_length=10, batch_size=64
    )


@case("windows with labels")
def _(tf, folder):
    data = tf.data.Dataset.range(ROWS // 4).window(11, shift=1, drop_remainder=True)
    data = data.flat_map(lambda w: w.batch(11))
    return data.map(lambda w: (w[:-1], w[-1])).batch(32)


@case("window of pairs")
def _(tf, folder):
    data = _rows(tf).take(4_000).window(8, shift=2, drop_remainder=True)
    return data.flat_map(lambda x, y: tf.data.Dataset.zip((x.batch(8), y.batch(8)))).batch(16)


@case("bucket_by_sequence_length")
def _(tf, folder):
    lengths = np.random.default_rng(2).integers(1, 60, 4_000)
    data = tf.data.Dataset.from_tensor_slices(tf.ragged.range(lengths.astype(np.int64))).map(
        lambda r: r
    )
    return data.bucket_by_sequence_length(tf.size, [10, 20, 30, 40], [32] * 5)


@case("group_by_window")
def _(tf, folder):
    return _rows(tf).group_by_window(
        key_func=lambda x, y: y % 3,
        reduce_func=lambda key, window: window.batch(16),
        window_size=16,
    )


@case("ranges: padded_batch")
def _(tf, folder):
    return tf.data.Dataset.range(4_000).map(lambda n: tf.range(n % 32)).padded_batch(32)


@case("ranges: ragged_batch")
def _(tf, folder):
    return tf.data.Dataset.range(4_000).map(lambda n: tf.range(n % 32)).ragged_batch(32)


@case("fill and pad: padded_batch")
def _(tf, folder):
    data = tf.data.Dataset.range(4_000)
    make = lambda n: (tf.fill([n % 20 + 1], n), tf.cast(n, tf.float32))
    return data.map(make).padded_batch(32, ([None], []), (np.int64(-1), 0.0))


@case("sparse tensors in map")
def _(tf, folder):
    def make(n):
        indices = tf.stack([[n % 50], [n % 50 + 1]])
        return tf.sparse.SparseTensor(indices, [1.0, 2.0], [100])

    return tf.data.Dataset.range(4_000).map(make).batch(32)


@case("from_dense in map")
def _(tf, folder):
    rows = (np.arange(40_000) % 7 == 0).astype(np.float32).reshape(-1, 10)
    data = tf.data.Dataset.from_tensor_slices(rows)
    return data.map(tf.sparse.from_dense).batch(32).map(tf.sparse.to_dense)


@case("dense_to_sparse_batch")
def _(tf, folder):
    data = tf.data.Dataset.range(4_000).map(lambda n: tf.range(n % 9))
    return data.sparse_batch(32, [12])


@case("ragged rows")
def _(tf, folder):
    lengths = np.random.default_rng(2).integers(1, 30, 4_000)
    rows = tf.ragged.range(lengths.astype(np.int64))
    return tf.data.Dataset.from_tensor_slices(rows).map(lambda r: r * 2).padded_batch(32)


@case("boolean_mask in map")
def _(tf, folder):
    rows = np.arange(40_000).reshape(-1, 10)
    data = tf.data.Dataset.from_tensor_slices(rows)
    return data.map(lambda r: tf.boolean_mask(r, r % 3 == 0)).padded_batch(32)


@case("tf.unique in map")
def _(tf, folder):
    rows = (np.arange(40_000) ** 2 % 7).reshape(-1, 10)
    data = tf.data.Dataset.from_tensor_slices(rows)
    return data.map(lambda r: tf.unique(r).y).padded_batch(32)


@case("slices of random length", random=True)
def _(tf, folder):
    rows = np.arange(80_000).reshape(-1, 20)

    def crop(row):
        return row[: tf.random.uniform([], 1, 20, tf.int32)]

    return tf.data.Dataset.from_tensor_slices(rows).map(crop).padded_batch(32)


@case("unbatch")
def _(tf, folder):
    return _rows(tf).batch(32).unbatch().batch(50)


@case("rebatch")
def _(tf, folder):
    return _rows(tf).batch(32).rebatch(50)


@case("flat_map of slices")
def _(tf, folder):
    data = _rows(tf).batch(10)
    return data.flat_map(lambda x, y: tf.data.Dataset.from_tensor_slices((x, y))).batch(64)


# Sources, combinations and order.


@case("from_generator")
def _(tf, folder):
    def rows():
        for n in range(3_000):
            yield np.full([4], n, np.float32), n

    spec = (tf.TensorSpec([4], tf.float32), tf.TensorSpec([], tf.int64))
    return tf.data.Dataset.from_generator(rows, output_signature=spec).batch(32)


@case("from_generator of ragged rows")
def _(tf, folder):
    def rows():
        for n in range(3_000):
            yield list(range(n % 9 + 1))

    return tf.data.Dataset.from_generator(
        rows, output_signature=tf.TensorSpec([None], tf.int32)
    ).padded_batch(32)


@case("numpy_function")
def _(tf, folder):
    def double(x):
        return x * np.float32(2)

    return (
        _rows(tf)
        .take(4_000)
        .map(lambda x, y: (tf.ensure_shape(tf.numpy_function(double, [x], tf.float32), [8]), y))
        .batch(32)
    )


@case("py_function")
def _(tf, folder):
    def double(x):
        return x * 2

    return (
        _rows(tf)
        .take(2_000)
        .map(lambda x, y: (tf.ensure_shape(tf.py_function(double, [x], tf.float32), [8]), y))
        .batch(32)
    )


@case("zip")
def _(tf, folder):
    return tf.data.Dataset.zip((_rows(tf), tf.data.Dataset.range(ROWS))).batch(64)


@case("choose_from_datasets")
def _(tf, folder):
    parts = [tf.data.Dataset.range(n * 10_000, n * 10_000 + 4_000) for n in range(3)]
    choice = tf.data.Dataset.range(3).repeat(4_000)
    return tf.data.Dataset.choose_from_datasets(parts, choice).batch(64)


@case("sample_from_datasets", random=True)
def _(tf, folder):
    parts = [tf.data.Dataset.range(n * 10_000, n * 10_000 + 4_000) for n in range(3)]
    return tf.data.Dataset.sample_from_datasets(parts, [0.5, 0.25, 0.25], seed=1).batch(64)


@case("rejection_resample", random=True)
def _(tf, folder):
    data = (
        _rows(tf)
        .take(4_000)
        .rejection_resample(lambda x, y: tf.cast(y % 2, tf.int32), [0.8, 0.2], [0.5, 0.5], seed=1)
    )
    return data.map(lambda _, pair: pair).batch(64)


@case("scan")
def _(tf, folder):
    step = lambda total, n: (total + n, total * 2 + n)
    return tf.data.Dataset.range(ROWS).scan(np.int64(0), step).batch(64)


@case("cache, shuffle, repeat", random=True)
def _(tf, folder):
    return _rows(tf).map(lambda x, y: (x * 2, y)).cache().shuffle(1_000, 3).repeat(2).batch(64)


@case("snapshot")
def _(tf, folder):
    path = str(folder / f"snapshot-{tf.__name__}")
    return _rows(tf).map(lambda x, y: (x * 2, y)).snapshot(path).batch(64)


@case("cache in a file")
def _(tf, folder):
    path = str(folder / f"cache-{tf.__name__}")
    return _rows(tf).take(4_000).map(lambda x, y: (x * 2, y)).cache(path).batch(64)


@case("shuffle and batch", random=True)
def _(tf, folder):
    return _rows(tf).shuffle(ROWS).batch(64).map(lambda x, y: (x - 1.0, y)).prefetch(2)


@case("random augmentation of rows", random=True)
def _(tf, folder):
    return _rows(tf).map(lambda x, y: (x + tf.random.normal([8], seed=1), y)).batch(64)


@case("Dataset.random", random=True)
def _(tf, folder):
    return tf.data.Dataset.random(seed=4).take(ROWS).batch(64)


@case("stateless random numbers", random=True)
def _(tf, folder):
    draw = lambda seeds: tf.random.stateless_uniform([4], seeds)
    return tf.data.Dataset.random(seed=4).batch(2).take(4_000).map(draw).batch(64)


@case("take_while")
def _(tf, folder):
    return _rows(tf).take_while(lambda x, y: tf.reduce_sum(x) < 1e6).batch(64)


@case("filter")
def _(tf, folder):
    return _rows(tf).filter(lambda x, y: x[0] > 0).batch(64)


@case("unique")
def _(tf, folder):
    return (tf.data.Dataset.range(ROWS).map(lambda n: n * n % 1_000)).unique().batch(64)


@case("shard, skip, take, concatenate")
def _(tf, folder):
    data = _rows(tf)
    return data.shard(2, 1).skip(10).concatenate(data.take(500)).batch(64)


@case("ignore_errors")
def _(tf, folder):
    data = tf.data.Dataset.range(2_000).map(
        lambda n: tf.debugging.check_numerics(1.0 / tf.cast(n % 20, tf.float32), "zero")
    )
    return data.ignore_errors().batch(64)


@case("options: threads and order")
def _(tf, folder):
    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = 2
    data = _rows(tf).map(lambda x, y: (tf.nn.relu(x), y), num_parallel_calls=2)
    return data.with_options(options).batch(64)


@case("enumerate and dictionaries")
def _(tf, folder):
    table = {name: np.arange(ROWS, dtype=np.float32) * n for n, name in enumerate("abcdef")}
    data = tf.data.Dataset.from_tensor_slices(table)
    join = lambda i, row: (tf.stack([row[k] for k in "abcdef"]), i)
    return data.enumerate().map(join).batch(64)


@case("tf.cond in map")
def _(tf, folder):
    def choose(x, y):
        if y > 5:
            x = x * 2
        return x, y

    return _rows(tf).map(choose).batch(64)


@case("tf.while_loop in map")
def _(tf, folder):
    def power(n):
        total = n
        for _ in tf.range(n % 5):
            total = total * 3 % 1_000
        return total

    return tf.data.Dataset.range(ROWS).map(power).batch(64)


@case("interleave of ranges")
def _(tf, folder):
    return (
        tf.data.Dataset.range(200)
        .interleave(lambda n: tf.data.Dataset.range(n, n + 20), cycle_length=8, block_length=2)
        .batch(64)
    )


@case("flat_map of filtered ranges")
def _(tf, folder):
    return (
        tf.data.Dataset.range(200)
        .flat_map(lambda n: tf.data.Dataset.range(n % 40).map(lambda m: m * n))
        .batch(64)
    )


@case("masked language model", random=True)
def _(tf, folder):
    tokens = np.arange(ROWS * 4, dtype=np.int32).reshape(-1, 16) % 1_000

    def mask(row):
        chosen = tf.random.uniform(tf.shape(row)) < 0.15
        return tf.where(chosen, 103, row), tf.where(chosen, row, -100)

    return tf.data.Dataset.from_tensor_slices(tokens).map(mask).batch(32)


@case("split of inputs and targets of text")
def _(tf, folder):
    data = _lines(tf, folder).flat_map(
        lambda s: tf.data.Dataset.from_tensor_slices(tf.io.decode_raw(s, tf.uint8))
    )
    data = data.batch(101, drop_remainder=True)
    return data.map(lambda c: (c[:-1], c[1:])).batch(16)


@case("normalization and category encoding layers")
def _(tf, folder):
    layers = tf.keras.layers
    scale = layers.Normalization(mean=np.zeros(8), variance=np.full(8, 4.0))
    encode = layers.CategoryEncoding(num_tokens=10, output_mode="one_hot")
    return _rows(tf).batch(64).map(lambda x, y: (scale(x), encode(y)))


@case("mixup of two datasets", random=True)
def _(tf, folder):
    data = _rows(tf).take(8_000)
    pairs = tf.data.Dataset.zip((data.shuffle(500, 1), data.shuffle(500, 2)))

    def mix(first, second):
        share = tf.random.uniform([])
        x = share * first[0] + (1 - share) * second[0]
        return x, first[1]

    return pairs.map(mix).batch(64)
