"""Test that random numbers of a dataset do not change seeds elsewhere."""

import numpy as np

import meshflow as tf

D = tf.data.Dataset


def next_weights():
    return tf.keras.initializers.GlorotUniform()([2, 2]).numpy().tolist()


def shuffle_parts(x):
    return D.range(3).shuffle(3).map(lambda y: y + tf.random.uniform([], maxval=9, dtype=tf.int64))


def weights_after(taken):
    tf.random.set_seed(5)
    elements = iter(D.range(4).interleave(shuffle_parts, cycle_length=2).prefetch(2))
    for _ in range(taken):
        next(elements)
    return next_weights()


def test_weights_do_not_depend_on_how_far_a_pass_is():
    assert weights_after(0) == weights_after(1) == weights_after(9)


def test_layers_first_used_in_a_pass():
    def weights(passes):
        tf.random.set_seed(5)
        flip = tf.keras.layers.RandomFlip()

        def flipped(x):
            x.numpy()
            return flip(x, training=True)

        images = D.from_tensors(tf.zeros([2, 4, 4, 1])).map(flipped)
        for _ in range(passes):
            list(images)
        return next_weights()

    assert weights(0) == weights(1) == weights(2)


def test_datasets_made_by_elements_are_shuffled_alike_in_every_run():
    def order():
        tf.random.set_seed(5)
        data = D.range(3).flat_map(lambda x: D.range(4).shuffle(4))
        return [int(x) for x in data]

    first = order()
    assert first == order()
    assert len({tuple(first[i : i + 4]) for i in (0, 4, 8)}) > 1


def test_shuffle_order_equals_tensorflow_with_a_full_buffer():
    """Stored from TensorFlow 2.21, with the numbers of `Dataset.random`."""
    ten = tf.data.Dataset.range(10)
    listed = lambda data, count=10: [int(x) for x in data.take(count)]
    tf.random.set_seed(7)
    data = ten.shuffle(10, seed=1)
    assert [listed(data), listed(data)] == [
        [5, 3, 1, 7, 8, 9, 6, 0, 4, 2],
        [4, 1, 7, 2, 6, 0, 3, 5, 9, 8],
    ]
    assert listed(ten.shuffle(100, seed=1, reshuffle_each_iteration=False)) == [
        8,
        1,
        5,
        7,
        2,
        0,
        6,
        9,
        4,
        3,
    ]
    # A dataset without a seed draws it as an op does.
    drawn = ten.shuffle(10)
    np.testing.assert_allclose(tf.random.uniform([2]), [0.019053, 0.649655], atol=2e-6)
    assert listed(drawn) == [8, 9, 2, 3, 1, 5, 4, 6, 7, 0]
    random = tf.data.Dataset.random(seed=1, rerandomize_each_iteration=True)
    assert [listed(random, 2), listed(random, 2)] == [
        [712881005, 3007319447],
        [3056234074, 1676164905],
    ]
    assert listed(tf.data.Dataset.random(seed=1), 2) == [2126179728, 737597871]


def test_shuffle_order_equals_tensorflow_with_a_small_buffer():
    """Stored from TensorFlow 2.21: elements by number, in chunks, and one by one."""
    listed = lambda data: [int(x) for x in data]
    tf.random.set_seed(7)
    twelve = D.range(12)
    first = [1, 4, 3, 5, 0, 2, 6, 9, 10, 8, 7, 11]
    second = [2, 0, 3, 5, 6, 1, 7, 4, 9, 8, 11, 10]
    chunks = twelve.filter(lambda x: x >= 0)
    plain = D.from_generator(lambda: range(12), output_signature=tf.TensorSpec([], tf.int64))
    for data in (twelve, chunks, plain):
        shuffled = data.shuffle(4, seed=1)
        assert [listed(shuffled), listed(shuffled)] == [first, second]
    kept = listed(twelve.shuffle(4, seed=1, reshuffle_each_iteration=False))
    assert kept == [0, 4, 5, 3, 7, 2, 6, 1, 10, 9, 11, 8]
    repeated = listed(D.range(6).shuffle(4, seed=2).repeat(2))
    assert repeated == [2, 3, 4, 1, 5, 0, 3, 2, 0, 1, 4, 5]
    tf.random.set_seed(7)
    assert listed(twelve.shuffle(5)) == [3, 5, 2, 6, 7, 1, 4, 11, 0, 9, 8, 10]
    many = listed(D.range(2000).shuffle(100, seed=9))
    assert many[:10] == [94, 13, 60, 65, 101, 84, 73, 55, 31, 5]
    assert sum(place * x for place, x in enumerate(many)) == 2655151898


def test_the_spec_of_an_eager_map_does_not_draw_numbers():
    # The values of TensorFlow 2.15. The function runs as Python, because it joins rows of different lengths.
    words = tf.strings.split(["Hey I like", "Keras and Tensorflow"])
    generator = tf.random.Generator.from_seed(42)

    def swap_words(row, count):
        for _ in tf.range(count):
            seed = generator.make_seeds()[:, 0]
            i = tf.random.stateless_uniform([2], seed, 0, tf.size(row), tf.int32)
            row = tf.tensor_scatter_nd_update(row, i[:, None], [row[i[1]], row[i[0]]])
        return row

    def swap_batch(row):
        generator.make_seeds()
        rows = tf.RaggedTensor.from_row_splits(row, [0, tf.size(row)])
        spec = tf.RaggedTensorSpec(ragged_rank=0, dtype=tf.string)
        swapped = tf.map_fn(lambda r: swap_words(r, 2), rows, fn_output_signature=spec)
        return tf.squeeze(swapped, axis=0)

    dataset = tf.data.Dataset.from_tensor_slices(words).map(swap_batch)
    assert dataset.element_spec.dtype is tf.string
    assert generator.state.numpy().tolist() == [42, 0, 0]
    assert [row.numpy().tolist() for row in dataset] == [
        [b"like", b"I", b"Hey"],
        [b"and", b"Tensorflow", b"Keras"],
    ]
    assert generator.state.numpy().tolist() == [1578, 0, 0]


def test_inspecting_a_dataset_restores_variables_that_a_function_assigns():
    generator, count = tf.random.Generator.from_seed(42), tf.Variable(0)

    @tf.function
    def draw(x):
        count.assign_add(1)
        return tf.cast(x, tf.float32) + generator.normal([])

    inner = D.range(3).map(lambda x: (tf.strings.as_string(x), draw(x)))

    def count_and_inspect(x):
        assert inner.element_spec[1].dtype is tf.float32
        return tf.py_function(draw, [x], tf.float32)

    assert D.range(3).map(count_and_inspect).element_spec.dtype is tf.float32
    assert count.numpy() == 0
    assert generator.state.numpy().tolist() == [42, 0, 0]
