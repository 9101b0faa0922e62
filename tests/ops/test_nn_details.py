"""Corners of tf.nn where TensorFlow's behaviour is easily missed."""

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close, check_gradients


def slope(function, *values):
    tensors = [tf.constant(v, tf.float32) for v in values]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        y = function(*tensors)
    return [g.numpy().tolist() for g in tape.gradient(y, tensors)]


def test_gradients_at_kinks():
    # A network with a last layer of zeros has logits of exactly 0.
    loss = lambda x: tf.nn.sigmoid_cross_entropy_with_logits(labels=[1.0, 0.0], logits=x)
    assert slope(loss, [0.0, 0.0]) == [[-0.5, 0.5]]
    assert slope(tf.nn.relu6, [0.0, 3.0, 6.0]) == [[0, 1, 0]]
    assert slope(tf.nn.selu, [0.0])[0] == pytest.approx([1.0507009])
    assert slope(tf.nn.softplus, [0.0]) == [[0.5]]
    assert slope(lambda x: tf.nn.weighted_cross_entropy_with_logits([1.0], x, 3.0), [0.0]) == [
        [0.0]
    ]


def test_cross_entropies_accept_python_labels_and_refuse_invalid_labels():
    assert_close(tf.nn.softmax_cross_entropy_with_logits([[1, 0]], [[0.0, 0.0]]), [np.log(2)])
    # One distribution for all rows.
    assert tf.nn.softmax_cross_entropy_with_logits([[1.0, 0]], [[1.0, 2], [3, 4]]).shape == (2,)
    with pytest.raises(tf.errors.InvalidArgumentError, match="broadcastable"):
        tf.nn.softmax_cross_entropy_with_logits([[1.0, 0, 0]], [[1.0, 2]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="float32, expected int32 or int64"):
        tf.nn.sparse_softmax_cross_entropy_with_logits([1.0], [[1.0, 2]])
    with pytest.raises(ValueError, match="must be provided"):
        tf.nn.sigmoid_cross_entropy_with_logits(labels=[1.0])
    with pytest.raises(ValueError, match="same shape"):
        tf.nn.sigmoid_cross_entropy_with_logits(labels=[1.0], logits=[[1.0, 2.0]])
    with pytest.raises(ValueError, match="at least rank 1"):
        tf.nn.compute_average_loss(tf.constant(1.0))


def test_convolution_accepts_extra_batch_dimensions_and_integers(rng):
    x, w = rng.normal(size=(2, 3, 5, 5, 2)), rng.normal(size=(3, 3, 2, 4))
    y = tf.nn.conv2d(x, w, 1, "SAME")
    assert_close(y[1], tf.nn.conv2d(x[1], w, 1, "SAME"))
    whole = tf.nn.conv2d(
        tf.ones([1, 4, 4, 3], tf.int32), tf.ones([3, 3, 3, 1], tf.int32), 1, "VALID"
    )
    assert whole.dtype == tf.int32 and int(whole[0, 0, 0, 0]) == 27


def test_convolution_groups_and_errors(rng):
    x, w = rng.normal(size=(1, 4, 4, 4)), rng.normal(size=(3, 3, 2, 6))
    y = tf.nn.conv2d(x, w, 1, "SAME").numpy()
    for group in range(2):
        part = tf.nn.conv2d(
            x[..., 2 * group : 2 * group + 2], w[..., 3 * group : 3 * group + 3], 1, "SAME"
        )
        assert_close(y[..., 3 * group : 3 * group + 3], part)
    with pytest.raises(tf.errors.InvalidArgumentError, match="4 vs 3"):
        tf.nn.conv2d(x, w[:, :, :1].repeat(3, 2), 1, "SAME")
    with pytest.raises(tf.errors.InvalidArgumentError, match="subtracting 3 from 2"):
        tf.nn.conv2d(x[:, :2], w, 1, "VALID")
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank 4 or more"):
        tf.nn.conv2d(x[0], w, 1, "SAME")
    with pytest.raises(ValueError, match="'SAME', 'VALID'"):
        tf.nn.conv2d(x, w, 1, "FULL")


def test_depthwise_backprops_are_the_gradients(rng):
    x, w = rng.normal(size=(1, 4, 4, 2)), rng.normal(size=(3, 3, 2, 2))
    seed = rng.normal(size=(1, 4, 4, 4))
    by_x = tf.nn.depthwise_conv2d_backprop_input(x.shape, w, seed, [1, 1, 1, 1], "SAME")
    by_w = tf.nn.depthwise_conv2d_backprop_filter(x, w.shape, seed, [1, 1, 1, 1], "SAME")
    total = float(tf.reduce_sum(tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME") * seed))
    # The convolution is linear in both, so each gradient returns the value.
    assert float(tf.reduce_sum(by_x * x)) == pytest.approx(total)
    assert float(tf.reduce_sum(by_w * w)) == pytest.approx(total)
    check_gradients(lambda t: tf.nn.atrous_conv2d(t, w[:, :, :, :1], 2, "SAME"), x)


def test_embedding_lookup_in_parts_and_with_norms():
    parts = [tf.zeros([2, 3]), tf.ones([2, 3])]
    assert_close(tf.nn.embedding_lookup(parts, [0, 3])[:, 0], [0, 1])
    table = tf.constant([[3.0, 4.0], [0.3, 0.4]])
    rows = tf.nn.embedding_lookup(table, [[0], [1]], max_norm=1.0)
    assert_close(rows, [[[0.6, 0.8]], [[0.3, 0.4]]])
    with pytest.raises(ValueError, match="params"):
        tf.nn.embedding_lookup([], [0])


def test_dropout_variants():
    with pytest.raises(ValueError, match="floating point"):
        tf.nn.dropout(tf.ones([3], tf.int32), 0.5)
    x = tf.ones([4, 1000])
    rows = tf.nn.dropout(x, 0.5, noise_shape=[4, 1]).numpy()
    assert all(len(np.unique(row)) == 1 for row in rows)
    sampler = lambda shape, dtype: tf.random.stateless_uniform(shape, [1, 2], dtype=dtype)
    y = tf.nn.experimental.general_dropout(x, 0.25, sampler)
    assert set(np.round(np.unique(y), 4)) == {0.0, np.float32(1.3333)}
    a, b = (tf.nn.experimental.stateless_dropout(x, 0.5, [3, 4]) for _ in range(2))
    assert_close(a, b)


def test_moments_of_integers_and_sufficient_statistics(rng):
    mean, variance = tf.nn.moments(tf.constant([1, 2, 4]), [0])
    assert (int(mean), int(variance), mean.dtype) == (2, 1, tf.int32)
    x = rng.normal(size=(5, 3))
    for shift in (None, 0.5):
        statistics = tf.nn.sufficient_statistics(x, [0], shift=shift)
        mean, variance = tf.nn.normalize_moments(*statistics)
        assert_close(mean, x.mean(0))
        assert_close(variance, x.var(0))
    weights = np.array([1.0, 0, 2, 1, 1])[:, None]
    mean, variance = tf.nn.weighted_moments(x, [0], weights)
    expected = np.average(x, 0, weights[:, 0])
    assert_close(mean, expected)
    assert_close(variance, np.average((x - expected) ** 2, 0, weights[:, 0]))


def test_small_integer_labels_of_many_classes():
    for dtype in (tf.int8, tf.uint8, tf.int16):
        labels = tf.constant([1, 100], dtype)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.zeros([2, 40000]))
        assert_close(losses, np.log([40000.0, 40000.0]))


def test_gradients_of_labels_that_are_not_distributions_are_those_of_tensorflow():
    labels, logits = tf.constant([[1.0, 1.0, 0.0]]), tf.Variable([[1.0, 2.0, -1.0]])
    layer = tf.keras.layers.Activation("softmax")
    losses = [
        lambda: tf.nn.softmax_cross_entropy_with_logits(labels, logits),
        lambda: tf.keras.losses.categorical_crossentropy(labels, logits, from_logits=True),
        lambda: tf.keras.losses.categorical_crossentropy(labels, layer(logits)),
        tf.function(lambda: tf.nn.softmax_cross_entropy_with_logits(labels, logits)),
    ]
    for compute_loss in losses:
        with tf.GradientTape() as tape:
            tape.watch(labels)
            loss = compute_loss()
        by_logits, by_labels = tape.gradient(loss, [logits, labels])
        np.testing.assert_allclose(loss, [1.6980243], rtol=1e-6)
        np.testing.assert_allclose(by_logits, [[-0.7405, -0.2946, 0.0351]], atol=6e-5)
        np.testing.assert_allclose(by_labels, [[1.3490, 0.3490, 3.3490]], atol=6e-5)


def test_half_precision_cross_entropies_are_sums_of_float32(rng):
    for dtype in ("float16", "bfloat16"):
        labels, logits = (tf.cast(tf.constant(rng.uniform(size=[2, 50])), dtype) for _ in range(2))
        exact = tf.nn.softmax_cross_entropy_with_logits(
            tf.cast(labels, "float32"), tf.cast(logits, "float32")
        )
        losses = tf.nn.softmax_cross_entropy_with_logits(labels, logits)
        assert losses.dtype == dtype
        np.testing.assert_array_equal(
            tf.cast(losses, "float32"), tf.cast(tf.cast(exact, dtype), "float32")
        )


def test_raw_cross_entropy_has_the_gradient_of_tensorflow():
    logits, labels = tf.constant([[1.0, 2.0]]), tf.constant([[0.5, 2.0]])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss, _ = tf.raw_ops.SoftmaxCrossEntropyWithLogits(features=logits, labels=labels)
    assert_close(tape.gradient(loss, logits), tf.nn.softmax(logits) - labels)


@pytest.mark.parametrize(
    ("compute", "value"),
    [
        (lambda x, n: tf.math.l2_normalize(x, 1, n), 9.0),
        (lambda x, n: tf.nn.batch_normalization(x, 1.0, 2.0, 0.5, 3.0, n), 0.5),
        (lambda x, n: tf.image.psnr(x[..., None], tf.zeros([2, 2, 1]), n), 2.0),
        (lambda x, n: tf.keras.losses.binary_focal_crossentropy(x / 9, x / 8, gamma=n), 2.0),
        (lambda x, n: tf.keras.losses.categorical_focal_crossentropy(x, x, gamma=n), 1.5),
    ],
)
def test_numbers_may_be_trained(compute, value):
    x, number = tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.Variable(value)

    def slope():
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(compute(x, number))
        return tape.gradient(y, number)

    assert_close(compute(x, number), compute(x, value))
    difference = tf.reduce_sum(compute(x, value + 1e-2) - compute(x, value - 1e-2)) / 2e-2
    for function in (slope, tf.function(slope)):
        assert_close(function(), difference, rtol=2e-2)


def test_the_constant_of_pad_may_be_a_tensor_or_variable():
    for constant in (tf.constant(5.0), tf.Variable(5.0)):
        with tf.GradientTape() as tape:
            tape.watch(constant)
            y = tf.pad([1.0], [[1, 1]], constant_values=constant)
        assert_close(y, [5.0, 1.0, 5.0])
        assert tape.gradient(y, constant) is None
    padded = tf.pad(tf.constant(["a"]), [[0, 1]], constant_values=tf.constant("b"))
    assert padded.numpy().tolist() == [b"a", b"b"]
