"""Pipelines in the style of tutorials, registered as further cases of `pipelines.py`."""

import numpy as np
from pipeline_cases import ROWS, case


def _paths(folder, pattern):
    return sorted(str(p) for p in folder.glob(pattern))


def _images(count=2_000):
    rng = np.random.default_rng(2)
    return rng.integers(0, 255, (count, 32, 32, 3), np.uint8), np.arange(count) % 10


def _series():
    return np.sin(np.arange(ROWS) / 50).astype(np.float32)


@case("tutorial: image classifier, augmented after the cache", random=True)
def _(tf, folder):
    def augment(x, y):
        x = tf.image.random_flip_left_right(tf.image.resize_with_crop_or_pad(x, 36, 36))
        return tf.image.random_brightness(tf.image.random_crop(x, [32, 32, 3]), 0.2), y

    data = tf.data.Dataset.from_tensor_slices(_images())
    data = data.map(lambda x, y: (tf.cast(x, tf.float32) / 255.0, y)).cache().shuffle(1_000)
    return data.map(augment, num_parallel_calls=tf.data.AUTOTUNE).batch(32).prefetch(2)


@case("tutorial: segmentation of images and masks")
def _(tf, folder):
    images, _ = _images(500)
    masks = (images[..., :1] // 86).astype(np.uint8)

    def load(image, mask):
        image = tf.image.resize(image, [48, 48]) / 127.5 - 1.0
        return image, tf.image.resize(mask, [48, 48], method="nearest")

    return tf.data.Dataset.from_tensor_slices((images, masks)).map(load).cache().batch(16)


@case("tutorial: standardized images, rotated")
def _(tf, folder):
    def load(x, y):
        x = tf.image.per_image_standardization(tf.cast(x, tf.float32))
        return tf.image.rot90(x), tf.one_hot(y, 10)

    return tf.data.Dataset.from_tensor_slices(_images()).map(load).batch(64)


@case("tutorial: grayscale images, flattened")
def _(tf, folder):
    def load(x, y):
        x = tf.image.rgb_to_grayscale(tf.image.convert_image_dtype(x, tf.float32))
        return tf.reshape(x, [-1]), y

    return tf.data.Dataset.from_tensor_slices(_images()).map(load).batch(64)


@case("tutorial: characters of a text, inputs and targets")
def _(tf, folder):
    ids = np.random.default_rng(3).integers(0, 65, 200_000)
    data = tf.data.Dataset.from_tensor_slices(ids).batch(101, drop_remainder=True)
    return data.map(lambda c: (c[:-1], c[1:])).batch(64, drop_remainder=True).prefetch(2)


@case("tutorial: windows of a series, last value as label")
def _(tf, folder):
    data = tf.data.Dataset.from_tensor_slices(_series()[:5_000]).window(
        25, shift=1, drop_remainder=True
    )
    return data.flat_map(lambda w: w.batch(25)).map(lambda w: (w[:-1], w[-1:])).batch(32)


@case("tutorial: windows of a series by slices of a tensor")
def _(tf, folder):
    series = tf.constant(_series())
    starts = tf.data.Dataset.range(0, ROWS - 48, 4)
    return starts.map(lambda i: (series[i : i + 24], series[i + 24 : i + 48])).batch(32)


@case("tutorial: strided batches of a feature and a label")
def _(tf, folder):
    data = tf.data.Dataset.range(ROWS).batch(10, drop_remainder=True)
    labels = data.flat_map(tf.data.Dataset.from_tensor_slices).skip(5).batch(5, drop_remainder=True)
    return tf.data.Dataset.zip((data.map(lambda x: x[:5]), labels)).batch(32)


@case("tutorial: generator of dictionaries")
def _(tf, folder):
    def generate():
        for i in range(4_000):
            yield {"id": i, "x": np.full(8, i, np.float32)}, i % 3

    signature = (
        {
            "id": tf.TensorSpec([], tf.int64),
            "x": tf.TensorSpec([8], tf.float32),
        },
        tf.TensorSpec([], tf.int32),
    )
    data = tf.data.Dataset.from_generator(generate, output_signature=signature)
    return data.map(lambda d, y: ({**d, "x": d["x"] / 2.0}, y)).batch(32)


@case("tutorial: lines of a CSV file as dictionaries")
def _(tf, folder):
    def parse(line):
        a, b, c, d, e = tf.io.decode_csv(line, [[0], [0.0], [0], [""], [0]])
        return {"a": a, "b": b, "c": c, "d": d}, e

    data = tf.data.TextLineDataset(_paths(folder, "rows-*.csv")[:1]).skip(1)
    return data.map(parse, num_parallel_calls=tf.data.AUTOTUNE).batch(64)


@case("tutorial: labeled lines of several files")
def _(tf, folder):
    parts = []
    for index, path in enumerate(_paths(folder, "lines-*.txt")):
        lines = tf.data.TextLineDataset(path)
        parts.append(lines.map(lambda s, index=index: (s, tf.cast(index, tf.int64))))
    data = parts[0]
    for part in parts[1:]:
        data = data.concatenate(part)
    return data.batch(64)


@case("tutorial: interleaved files with inner maps")
def _(tf, folder):
    def read(path):
        label = tf.strings.length(path)
        return tf.data.TextLineDataset(path).map(lambda s: (tf.strings.lower(s), label))

    paths = tf.data.Dataset.from_tensor_slices(_paths(folder, "lines-*.txt"))
    return paths.interleave(read, cycle_length=2, block_length=4).batch(64)


@case("tutorial: records to matrices and one-hot labels")
def _(tf, folder):
    features = {
        "x": tf.io.FixedLenFeature([8], tf.float32),
        "y": tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(record):
        found = tf.io.parse_single_example(record, features)
        return tf.reshape(found["x"], [2, 4]) * 2.0, tf.one_hot(found["y"], 10)

    data = tf.data.TFRecordDataset(_paths(folder, "records-*.tfrecord"))
    return data.map(parse, num_parallel_calls=tf.data.AUTOTUNE).batch(64).prefetch(2)


@case("tutorial: words of single lines, padded")
def _(tf, folder):
    initializer = tf.lookup.KeyValueTensorInitializer(
        [f"w{n}" for n in range(300)], np.arange(300, dtype=np.int64)
    )
    table = tf.lookup.StaticVocabularyTable(initializer, 1)
    data = tf.data.TextLineDataset(_paths(folder, "lines-*.txt"))
    return data.map(lambda s: table.lookup(tf.strings.split(s))[:6]).padded_batch(64)


@case("tutorial: columns with weights")
def _(tf, folder):
    table = {"a": np.arange(ROWS), "b": np.linspace(0, 1, ROWS).astype(np.float32)}
    data = tf.data.Dataset.from_tensor_slices((table, np.arange(ROWS) % 2))
    weigh = lambda x, y: (x, y, tf.where(y == 1, 2.0, 0.5))
    return data.filter(lambda x, y: x["b"] > 0.1).map(weigh).batch(64)


@case("tutorial: zip of shuffled images and repeated labels", random=True)
def _(tf, folder):
    images, labels = _images()
    data = tf.data.Dataset.zip(
        (
            tf.data.Dataset.from_tensor_slices(images).shuffle(500),
            tf.data.Dataset.from_tensor_slices(labels).repeat(2),
        )
    )
    return data.batch(32, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


@case("tutorial: shards in memory, interleaved")
def _(tf, folder):
    shards = tf.constant(np.arange(ROWS, dtype=np.float32).reshape(20, -1))
    read = lambda i: tf.data.Dataset.from_tensor_slices(shards[i])
    return tf.data.Dataset.range(20).interleave(read, cycle_length=4, block_length=8).batch(64)


@case("tutorial: pairs of positions by flat_map")
def _(tf, folder):
    def pairs(i):
        others = tf.data.Dataset.range(i + 1, i + 5)
        return others.map(lambda j: (i, j)).filter(lambda i, j: (i + j) % 2 == 0)

    return tf.data.Dataset.range(500).flat_map(pairs).batch(64)


@case("tutorial: spectrograms")
def _(tf, folder):
    def load(path):
        sound, _ = tf.audio.decode_wav(tf.io.read_file(path), 1, 4_000)
        return tf.abs(tf.signal.stft(tf.squeeze(sound, -1), 255, 128))[..., None]

    paths = tf.data.Dataset.from_tensor_slices(_paths(folder, "sounds/*/*.wav"))
    return paths.map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(16)


@case("tutorial: features of batches")
def _(tf, folder):
    x = np.random.default_rng(4).normal(size=(ROWS, 8)).astype(np.float32)
    normalize = lambda x, y: (
        (x - tf.reduce_mean(x, 0)) / tf.math.reduce_std(x, 0),
        tf.one_hot(y, 10),
    )
    return tf.data.Dataset.from_tensor_slices((x, np.arange(ROWS) % 10)).batch(64).map(normalize)


@case("tutorial: parsed numbers of lines without errors")
def _(tf, folder):
    parse = lambda s: tf.strings.to_number(tf.strings.substr(s, 1, 1), tf.int32)
    data = tf.data.TextLineDataset(_paths(folder, "lines-*.txt")[:2]).map(parse)
    return (
        data.map(lambda n: tf.debugging.check_numerics(1.0 / tf.cast(n - 3, tf.float32), "n"))
        .ignore_errors()
        .batch(64)
    )


# Pipelines of the same types again, with other ops and other orders of the steps.


@case("further: CSV columns to a matrix and a label, shuffled", random=True)
def _(tf, folder):
    data = tf.data.experimental.make_csv_dataset(
        _paths(folder, "rows-*.csv"),
        32,
        label_name="e",
        num_epochs=1,
        select_columns=["a", "b", "e"],
    )
    pack = lambda x, y: (tf.stack([tf.cast(v, tf.float32) for v in x.values()], -1), y)
    return data.map(pack).prefetch(tf.data.AUTOTUNE)


@case("further: CSV lines without a header, strings looked up")
def _(tf, folder):
    words = tf.keras.layers.StringLookup(vocabulary=[f"word{n}" for n in range(40)])

    def parse(lines):
        a, b, c, d, e = tf.io.decode_csv(lines, [[0], [0.0], [0], [""], [0]])
        return {"number": tf.stack([tf.cast(a, tf.float32), b], 1), "word": words(d), "c": c}, e

    return (
        tf.data.TextLineDataset(_paths(folder, "rows-*.csv")[:2])
        .skip(1)
        .filter(lambda s: tf.not_equal(tf.strings.substr(s, 0, 1), "a"))
        .batch(64)
        .map(parse)
    )


@case("further: windows of several features, split into inputs and targets")
def _(tf, folder):
    series = np.stack([np.sin(np.arange(8_000) / k) for k in (5, 20, 50)], 1).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices(series).window(30, shift=3, drop_remainder=True)
    data = data.flat_map(lambda w: w.batch(30, drop_remainder=True))
    return data.map(lambda w: (w[:24], w[24:, :1])).shuffle(1).batch(32).prefetch(1)


@case("further: normalized windows with strides")
def _(tf, folder):
    data = tf.data.Dataset.from_tensor_slices(_series()[:6_000]).window(
        10, shift=2, stride=3, drop_remainder=True
    )
    data = data.flat_map(lambda w: w.batch(10))
    return data.map(lambda w: (w - tf.reduce_mean(w)) / (tf.math.reduce_std(w) + 1.0)).batch(16)


@case("further: buckets of token lengths with labels")
def _(tf, folder):
    def encode(line):
        tokens = tf.strings.to_number(
            tf.strings.regex_replace(tf.strings.split(line), "w", ""), tf.int32
        )
        return tokens[: tokens[0] % 8 + 1], tokens[0] % 2

    data = tf.data.TextLineDataset(_paths(folder, "lines-*.txt")[:2]).map(encode)
    return data.bucket_by_sequence_length(
        lambda x, y: tf.shape(x)[0], [3, 5, 7], [32, 32, 16, 16], drop_remainder=True
    )


@case("further: buckets of generated sequences, padded to the boundary")
def _(tf, folder):
    rng = np.random.default_rng(5)
    rows = [rng.integers(0, 99, n) for n in rng.integers(1, 30, 2_000)]
    data = tf.data.Dataset.from_generator(
        lambda: iter(rows), output_signature=tf.TensorSpec([None], tf.int64)
    )
    return data.bucket_by_sequence_length(
        lambda x: tf.shape(x)[0], [8, 16, 31], [32] * 4, pad_to_bucket_boundary=True
    )


@case("further: TextVectorization to tf-idf, labels beside it")
def _(tf, folder):
    layer = tf.keras.layers.TextVectorization(
        vocabulary=[f"w{n}" for n in range(200)],
        idf_weights=np.linspace(0.1, 2, 200),
        output_mode="tf_idf",
    )
    lines = tf.data.TextLineDataset(_paths(folder, "lines-*.txt"))
    data = tf.data.Dataset.zip((lines, tf.data.Dataset.range(10_000)))
    return data.batch(32).map(lambda s, y: (layer(s), y % 2), num_parallel_calls=2).prefetch(2)


@case("further: text cleaned, vectorized, targets shifted")
def _(tf, folder):
    def clean(text):
        text = tf.strings.regex_replace(tf.strings.lower(text), "<br />", " ")
        return tf.strings.regex_replace(text, r"[!-/:-@\[-`{-~]", "")

    layer = tf.keras.layers.TextVectorization(
        standardize=clean, vocabulary=[f"w{n}" for n in range(300)], output_sequence_length=9
    )

    def shift(text):
        tokens = layer(tf.expand_dims(text, -1))
        return tokens[:, :-1], tokens[:, 1:]

    return tf.data.TextLineDataset(_paths(folder, "lines-*.txt")).shuffle(1).batch(64).map(shift)


@case("further: layers of augmentation on batches", random=True)
def _(tf, folder):
    layers = tf.keras.layers
    augment = tf.keras.Sequential(
        [
            layers.Resizing(36, 36),
            layers.RandomCrop(32, 32),
            layers.RandomZoom(0.1),
            layers.RandomContrast(0.2),
        ]
    )
    data = tf.data.Dataset.from_tensor_slices(_images(1_000)).batch(32)
    return data.map(lambda x, y: (augment(tf.cast(x, tf.float32), training=True), y))


@case("further: decoded images, hue, quarter turns and cutout", random=True)
def _(tf, folder):
    def load(path):
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        image = tf.image.convert_image_dtype(tf.image.resize(image, [64, 64]) / 255.0, tf.float32)
        image = tf.image.random_flip_up_down(tf.image.random_hue(image, 0.08))
        image = tf.image.rot90(image, tf.random.uniform([], 0, 4, tf.int32))
        top = tf.random.uniform([], 0, 48, tf.int32)
        rows = tf.range(64)
        keep = tf.logical_or(rows < top, rows >= top + 16)
        return tf.clip_by_value(image * tf.cast(keep, tf.float32)[:, None, None], 0.0, 1.0)

    paths = tf.data.Dataset.from_tensor_slices(_paths(folder, "images/*/*.jpg"))
    return paths.map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(16).prefetch(2)


@case("further: records with a raw array and a class name")
def _(tf, folder):
    features = {
        "x": tf.io.FixedLenFeature([8], tf.float32),
        "name": tf.io.FixedLenFeature([], tf.string, ""),
        "missing": tf.io.FixedLenFeature([2], tf.float32, [0.0, 1.0]),
        "y": tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(record):
        found = tf.io.parse_single_example(record, features)
        name = tf.strings.to_number(tf.strings.substr(found["name"], 4, 4), tf.int32)
        return {"x": found["x"] - found["missing"][1], "name": name}, tf.one_hot(found["y"], 10)

    files = tf.data.Dataset.list_files(str(folder / "records-*.tfrecord"), shuffle=False)
    data = files.interleave(tf.data.TFRecordDataset, cycle_length=2, block_length=16)
    return data.map(parse, num_parallel_calls=tf.data.AUTOTUNE).batch(32, drop_remainder=True)


@case("further: padded batches of words and their lengths")
def _(tf, folder):
    def split(line):
        words = tf.strings.split(line)[: tf.strings.length(line) % 8 + 1]
        return words, tf.size(words)

    lines = tf.data.TextLineDataset(_paths(folder, "lines-*.txt")[:2])
    return lines.map(split).padded_batch(32, ([10], []), ("<pad>", 0))


@case("further: interleave of generated files with labels")
def _(tf, folder):
    paths = tf.data.Dataset.from_tensor_slices((_paths(folder, "lines-*.txt"), np.arange(4)))
    read = lambda path, label: tf.data.TextLineDataset(path).map(lambda s: (s, label)).take(500)
    return (
        paths.interleave(read, 4, num_parallel_calls=tf.data.AUTOTUNE)
        .map(lambda s, label: (tf.strings.length(s), label))
        .batch(64)
    )


@case("further: group_by_window with window sizes and padding")
def _(tf, folder):
    rows = tf.data.Dataset.range(3_000).map(lambda n: tf.repeat(n, n % 12 + 1))
    return rows.group_by_window(
        key_func=lambda r: tf.cast(tf.size(r) // 4, tf.int64),
        reduce_func=lambda key, window: window.padded_batch(16),
        window_size_func=lambda key: 16 * (key + 1),
    )


@case("further: rejection_resample of classes, then batches", random=True)
def _(tf, folder):
    labels = np.random.default_rng(6).choice(3, 4_000, p=[0.7, 0.2, 0.1])
    data = tf.data.Dataset.from_tensor_slices({"x": np.arange(4_000.0), "y": labels})
    data = data.rejection_resample(lambda row: tf.cast(row["y"], tf.int32), [1 / 3] * 3)
    return data.map(lambda _, row: (row["x"] / 4_000.0, row["y"])).batch(32)


@case("further: snapshot of images, augmented afterwards", random=True)
def _(tf, folder):
    path = str(folder / f"images-{tf.__name__}")
    data = tf.data.Dataset.from_tensor_slices(_images(1_000))
    data = data.map(lambda x, y: (tf.cast(x, tf.float32) / 255.0, y)).snapshot(path)
    return data.map(lambda x, y: (tf.image.random_flip_left_right(x), y)).batch(32)


@case("further: cache, shuffle and repeat of strings and images", random=True)
def _(tf, folder):
    images, labels = _images(1_000)
    names = np.array([f"class {n}" for n in labels])
    data = tf.data.Dataset.from_tensor_slices({"image": images, "name": names})
    data = data.map(lambda row: {**row, "image": tf.cast(row["image"], tf.float32)}).cache()
    return (
        data.shuffle(200).repeat(2).batch(32).map(lambda row: (row["image"] / 255.0, row["name"]))
    )


@case("further: pairs of a text, negative samples", random=True)
def _(tf, folder):
    tokens = np.random.default_rng(7).integers(1, 500, (2_000, 2))

    def sample(pair):
        negative = tf.random.uniform([4], 1, 500, tf.int64)
        context = tf.concat([pair[1:], negative], 0)
        return (pair[0], context), tf.constant([1, 0, 0, 0, 0], tf.int64)

    return tf.data.Dataset.from_tensor_slices(tokens).map(sample).shuffle(500).batch(64)
