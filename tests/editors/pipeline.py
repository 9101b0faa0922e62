"""Input pipelines: files, records, maps, batches, and structures of elements."""

import numpy as np

import meshflow as tf

AUTOTUNE = tf.data.AUTOTUNE
FEATURES = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64, default_value=-1),
    "tags": tf.io.VarLenFeature(tf.string),
}


def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    example = tf.io.parse_single_example(record, FEATURES)
    image = tf.io.decode_jpeg(example["image"], channels=3)
    image = tf.image.resize(tf.image.convert_image_dtype(image, tf.float32), (64, 64))
    image = tf.ensure_shape(image, (64, 64, 3))
    return image, tf.one_hot(example["label"], depth=10)


def augment(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    image = tf.image.random_flip_left_right(image, seed=1)
    image = tf.image.random_brightness(image, max_delta=0.1)
    return tf.clip_by_value(image, 0.0, 1.0), label


def write(path: str, count: int) -> None:
    with tf.io.TFRecordWriter(path) as writer:
        for index in range(count):
            pixels = tf.cast(tf.fill((8, 8, 3), index), tf.uint8)
            feature = {
                "image": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[tf.io.encode_jpeg(pixels).numpy()])
                ),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[index])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())


write("images.tfrecord", 4)
files = tf.data.Dataset.list_files("*.tfrecord", shuffle=False)
records = files.interleave(
    tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=AUTOTUNE, deterministic=True
)
train = (
    records.map(parse, num_parallel_calls=AUTOTUNE)
    .cache()
    .shuffle(100, reshuffle_each_iteration=True)
    .repeat()
    .map(augment)
    .batch(2, drop_remainder=True)
    .prefetch(AUTOTUNE)
)
for images, labels in train.take(3):
    print(images.shape, labels.numpy().argmax(-1), tf.reduce_mean(images).numpy())

numbers = tf.data.Dataset.range(10).filter(lambda x: x % 2 == 0).map(lambda x: x * x)
total = numbers.reduce(np.int64(0), lambda state, x: state + x)
print([int(x) for x in numbers], total.numpy(), list(numbers.as_numpy_iterator()))
for index, value in numbers.enumerate():
    print(int(index), value.numpy())
windows = tf.data.Dataset.range(10).window(3, shift=1, drop_remainder=True)
for window in windows.flat_map(lambda w: w.batch(3)).take(2):
    print(window.numpy())

table = {"age": np.arange(6), "name": np.array(["a", "b", "c", "d", "e", "f"])}
for row in tf.data.Dataset.from_tensor_slices(table).batch(4):
    print(row["age"].numpy(), row["name"][0])


def generate():
    for length in (1, 3, 2):
        yield np.arange(length), length


ragged = tf.data.Dataset.from_generator(
    generate,
    output_signature=(tf.TensorSpec((None,), tf.int64), tf.TensorSpec((), tf.int32)),
)
for sequence, length in ragged.padded_batch(
    3, padded_shapes=([None], []), padding_values=(np.int64(-1), 0)
):
    print(sequence.numpy(), length.numpy())
zipped = tf.data.Dataset.zip((numbers, tf.data.Dataset.from_tensors(1).repeat()))
first, second = next(iter(zipped))
print(
    first + tf.cast(second, tf.int64),
    zipped.element_spec,
    len(numbers.concatenate(numbers).skip(1)),
)
options = tf.data.Options()
options.experimental_deterministic = True
lengths = ragged.with_options(options).bucket_by_sequence_length(
    lambda sequence, length: length, bucket_boundaries=[2, 4], bucket_batch_sizes=[2, 2, 2]
)
vectorize = tf.keras.layers.TextVectorization(
    max_tokens=100, output_mode="int", output_sequence_length=5
)
texts = tf.data.Dataset.from_tensor_slices(["the first", "the second text"])
vectorize.adapt(texts.batch(2))
for tokens in texts.batch(2).map(vectorize):
    print(tokens.numpy(), vectorize.get_vocabulary()[:3])
iterator = iter(lengths)
print(next(iterator), train.cardinality().numpy())
