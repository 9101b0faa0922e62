"""Pipelines as tutorials of many topics build them, registered as further cases of `pipelines.py`."""

import numpy as np
from pipeline_cases import case


def _paths(folder, pattern):
    return sorted(str(p) for p in folder.glob(pattern))


@case("topic: WAV files to log spectrograms with labels")
def _(tf, folder):
    def load(path):
        sound, _ = tf.audio.decode_wav(tf.io.read_file(path), 1)
        sound = sound[:3_500, 0]
        sound = tf.concat([sound, tf.zeros([4_000 - tf.shape(sound)[0]])], 0)
        frames = tf.signal.stft(tf.ensure_shape(sound, [4_000]), 255, 128)
        label = tf.strings.split(path, "/")[-2] == "dog"
        return tf.math.log(tf.abs(frames) + 1e-6)[..., None], tf.cast(label, tf.int32)

    paths = tf.data.Dataset.from_tensor_slices(_paths(folder, "sounds/*/*.wav"))
    return paths.map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(16).prefetch(1)


@case("topic: windows of a dictionary of series with labels")
def _(tf, folder):
    steps = np.arange(6_000, dtype=np.float32)
    table = {"price": np.sin(steps / 30), "volume": np.cos(steps / 70)}
    data = tf.data.Dataset.from_tensor_slices(table).window(20, shift=2, drop_remainder=True)
    data = data.flat_map(
        lambda w: tf.data.Dataset.zip((w["price"].batch(20), w["volume"].batch(20)))
    )
    stack = lambda price, volume: (tf.stack([price[:-1], volume[:-1]], -1), price[-1] > price[-2])
    return data.map(stack).batch(32)


@case("topic: CSV with missing values")
def _(tf, folder):
    path = folder / "missing.csv"
    if not path.exists():
        rows = (
            f"{n},{'' if n % 5 == 0 else n / 4},{'' if n % 7 == 0 else 'ab'[n % 2]}"
            for n in range(8_000)
        )
        path.write_text("\n".join(["id,value,kind", *rows]) + "\n")

    def parse(line):
        number, value, kind = tf.io.decode_csv(line, [[0], [float("nan")], ["unknown"]])
        value = tf.where(tf.math.is_nan(value), -1.0, value)
        return {"value": value, "known": tf.not_equal(kind, "unknown"), "kind": kind}, number % 2

    lines = tf.data.TextLineDataset(str(path)).skip(1)
    return lines.map(parse).filter(lambda x, _: x["value"] >= 0.0).batch(64)


@case("topic: records with images and tokens of variable length")
def _(tf, folder):
    path = str(folder / "images.tfrecord")
    if not (folder / "images.tfrecord").exists():
        feature = tf.train.Feature
        with tf.io.TFRecordWriter(path) as file:
            for n, image in enumerate(_paths(folder, "images/*/*.jpg")):
                with open(image, "rb") as contents:
                    data = contents.read()
                columns = {
                    "image": feature(bytes_list=tf.train.BytesList(value=[data])),
                    "tokens": feature(int64_list=tf.train.Int64List(value=range(n % 6 + 1))),
                }
                example = tf.train.Example(features=tf.train.Features(feature=columns))
                file.write(example.SerializeToString())
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "tokens": tf.io.VarLenFeature(tf.int64),
    }

    def parse(record):
        found = tf.io.parse_single_example(record, features)
        image = tf.image.resize(tf.io.decode_jpeg(found["image"], 3), [80, 80]) / 255.0
        return image, tf.sparse.to_dense(found["tokens"])

    data = tf.data.TFRecordDataset(path).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    return data.padded_batch(16, ([80, 80, 3], [8]))


@case("topic: many text files, interleaved, words counted")
def _(tf, folder):
    def count(line):
        words = tf.strings.split(line)
        return tf.size(words), tf.strings.join(["<", words[0], "-", words[-1], ">"])

    files = tf.data.Dataset.list_files(str(folder / "texts/*/*.txt"), shuffle=False)
    lines = files.interleave(
        tf.data.TextLineDataset, cycle_length=8, num_parallel_calls=tf.data.AUTOTUNE
    )
    return lines.map(count, num_parallel_calls=tf.data.AUTOTUNE).batch(16)


@case("topic: group_by_window of words by length")
def _(tf, folder):
    words = np.array(["w" * (n % 9 + 1) + str(n) for n in range(6_000)])
    data = tf.data.Dataset.from_tensor_slices((words, np.arange(6_000)))
    return data.group_by_window(
        key_func=lambda word, _: tf.cast(tf.strings.length(word), tf.int64),
        reduce_func=lambda key, group: group.batch(24).map(lambda w, n: (key, w, n)),
        window_size=24,
    )


@case("topic: weighted samples of balanced classes", random=True)
def _(tf, folder):
    data = tf.data.Dataset.from_tensor_slices((np.arange(9_000.0), np.arange(9_000) % 10 == 0))
    classes = [
        data.filter(lambda x, y: y).repeat(),
        data.filter(lambda x, y: tf.logical_not(y)).repeat(),
    ]
    data = tf.data.Dataset.sample_from_datasets(classes, [0.5, 0.5], seed=3)
    return data.map(lambda x, y: (tf.sqrt(x), tf.cast(y, tf.int32))).take(6_000).batch(64)


@case("topic: running average until a limit")
def _(tf, folder):
    def step(state, x):
        mean = state * 0.9 + x * 0.1
        return mean, (x, mean)

    data = tf.data.Dataset.range(20_000).map(lambda n: tf.cast(n % 500, tf.float32))
    data = data.scan(0.0, step).take_while(lambda x, mean: mean < 1e6)
    return data.filter(lambda x, mean: x > mean).batch(64)


@case("topic: cache in a file, shuffle and repeat", random=True)
def _(tf, folder):
    path = str(folder / f"topic-cache-{tf.__name__}")
    data = tf.data.Dataset.from_tensor_slices(np.arange(32_000.0).reshape(-1, 8))
    data = data.map(lambda x: {"x": x / 8.0, "sum": tf.reduce_sum(x)}).cache(path)
    return data.shuffle(500).repeat(2).batch(64)


@case("topic: generator of nested dictionaries")
def _(tf, folder):
    def generate():
        for n in range(3_000):
            yield {"text": f"row {n}", "pair": {"a": np.arange(n % 5, dtype=np.int64), "b": n / 2}}

    signature = {
        "text": tf.TensorSpec([], tf.string),
        "pair": {"a": tf.TensorSpec([None], tf.int64), "b": tf.TensorSpec([], tf.float32)},
    }
    data = tf.data.Dataset.from_generator(generate, output_signature=signature)
    return data.map(
        lambda row: (row["text"], row["pair"]["a"], row["pair"]["b"] + 1.0)
    ).padded_batch(32)


@case("topic: JPEG, resize, random crop and flip", random=True)
def _(tf, folder):
    def load(path):
        image = tf.image.decode_jpeg(tf.io.read_file(path), channels=3)
        image = tf.image.resize(image, [110, 110], method="bilinear")
        image = tf.image.random_flip_left_right(tf.image.random_crop(image, [96, 96, 3]))
        image = tf.image.random_contrast(image, 0.8, 1.2) / 127.5 - 1.0
        return image, tf.strings.split(path, "/")[-2]

    names = tf.data.Dataset.from_tensor_slices(_paths(folder, "images/*/*.jpg")).shuffle(120, 1)
    return names.map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(24).prefetch(2)


@case("topic: padded batches of dictionaries")
def _(tf, folder):
    def make(n):
        row = tf.range(n % 17, dtype=tf.int64)
        return {"ids": row, "mask": tf.ones_like(row, tf.float32), "n": n, "length": tf.size(row)}

    data = tf.data.Dataset.range(4_000).map(make)
    values = {"ids": np.int64(-1), "mask": 0.0, "n": np.int64(0), "length": 0}
    shapes = {"ids": [20], "mask": [None], "n": [], "length": []}
    return data.padded_batch(32, padded_shapes=shapes, padding_values=values)


@case("topic: zip, enumerate and skip")
def _(tf, folder):
    first = tf.data.Dataset.range(8_000).map(lambda n: n * 2)
    second = tf.data.Dataset.from_tensor_slices(np.linspace(0, 1, 8_000).astype(np.float32))
    data = tf.data.Dataset.zip((first, second)).enumerate(start=5).skip(10)
    return data.map(lambda i, pair: (i, tf.cast(pair[0], tf.float32) * pair[1])).batch(50)


@case("topic: py_function in threads")
def _(tf, folder):
    def load(n):
        return np.full([16], n.numpy() % 7, np.float32)

    def wrap(n):
        return tf.ensure_shape(tf.py_function(load, [n], tf.float32), [16]), n

    return tf.data.Dataset.range(2_000).map(wrap, num_parallel_calls=4).batch(32).prefetch(1)


@case("topic: sentence pairs, tokens cut to a budget")
def _(tf, folder):
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer([f"w{n}" for n in range(400)], np.arange(400)), -1
    )

    def encode(line):
        tokens = table.lookup(tf.strings.split(line))
        cut = tf.minimum(tf.shape(tokens)[0], 3 + tf.cast(tokens[0] % 4, tf.int32))
        first, second = tokens[:cut], tokens[cut:]
        kinds = tf.concat([tf.zeros_like(first), tf.ones_like(second)], 0)
        return {"ids": tf.concat([first, second], 0), "kinds": kinds}

    lines = tf.data.TextLineDataset(_paths(folder, "lines-*.txt")[:2])
    return lines.map(encode).padded_batch(32, {"ids": [10], "kinds": [10]})


@case("topic: last batches of unknown size, augmented by seeds", random=True)
def _(tf, folder):
    images = np.random.default_rng(8).integers(0, 255, (1_000, 24, 24, 3), np.uint8)
    data = tf.data.Dataset.from_tensor_slices(images).batch(8)

    def augment(index, batch):
        batch = tf.cast(batch, tf.float32) / 255.0
        seed = tf.stack([tf.cast(index, tf.int32), 1])
        noise = tf.random.stateless_normal(tf.shape(batch), seed, stddev=0.1)
        return tf.image.stateless_random_flip_left_right(batch + noise, seed)

    return data.enumerate().map(augment, num_parallel_calls=2)
