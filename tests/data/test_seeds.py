"""What a pass over a dataset draws does not move seeds that are drawn elsewhere."""

import meshflow as tf

D = tf.data.Dataset


def next_weights():
    return tf.keras.initializers.GlorotUniform()([2, 2]).numpy().tolist()


def shuffled_parts(x):
    return D.range(3).shuffle(3).map(lambda y: y + tf.random.uniform([], maxval=9, dtype=tf.int64))


def weights_after(taken):
    tf.random.set_seed(5)
    elements = iter(D.range(4).interleave(shuffled_parts, cycle_length=2).prefetch(2))
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
