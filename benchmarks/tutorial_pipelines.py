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
