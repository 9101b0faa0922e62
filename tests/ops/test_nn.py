import jax
import numpy as np
import pytest
import scipy.special

import meshflow as tf
from helpers import assert_close, check_gradients


def correlate(x, w, strides, padding):
    """Convolution by loops, NHWC."""
    kh, kw, _, out = w.shape
    if padding == "SAME":
        pads = []
        for size, k, s in zip(x.shape[1:3], (kh, kw), strides, strict=True):
            total = max((-(-size // s) - 1) * s + k - size, 0)
            pads.append((total // 2, total - total // 2))
        x = np.pad(x, [(0, 0), *pads, (0, 0)])
    h, v = (
        (x.shape[i + 1] - k) // s + 1
        for i, (k, s) in enumerate(zip((kh, kw), strides, strict=True))
    )
    y = np.zeros((len(x), h, v, out))
    for i in range(h):
        for j in range(v):
            patch = x[:, i * strides[0] : i * strides[0] + kh, j * strides[1] : j * strides[1] + kw]
            y[:, i, j] = np.tensordot(patch, w, 3)
    return y


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 1)])
def test_conv2d(padding, strides, rng):
    x, w = rng.normal(size=(2, 5, 6, 3)), rng.normal(size=(3, 2, 3, 4))
    expected = correlate(x, w, strides, padding)
    assert_close(tf.nn.conv2d(x, w, strides, padding), expected)
    first = tf.nn.conv2d(x.transpose(0, 3, 1, 2), w, strides, padding, data_format="NCHW")
    assert_close(first.numpy().transpose(0, 2, 3, 1), expected)
    check_gradients(
        lambda a, b: tf.nn.conv2d(a, b, strides, padding), x[:1, :4, :4, :2], w[:, :, :2, :2]
    )


def test_conv_transpose_is_the_gradient_of_conv(rng):
    x, w = rng.normal(size=(1, 5, 5, 2)), rng.normal(size=(3, 3, 2, 4))
    t = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(t)
        y = tf.nn.conv2d(t, w, 2, "SAME")
    seed = rng.normal(size=y.shape)
    assert_close(
        tf.nn.conv2d_transpose(seed, w, x.shape, 2, "SAME"),
        tape.gradient(y, t, tf.constant(seed)).numpy(),
    )


def test_depthwise_and_grouped(rng):
    x, w = rng.normal(size=(1, 4, 4, 3)), rng.normal(size=(2, 2, 3, 2))
    y = tf.nn.depthwise_conv2d(x, w, 1, "VALID").numpy()
    for c in range(3):
        assert_close(
            y[..., 2 * c : 2 * c + 2],
            correlate(x[..., c : c + 1], w[:, :, c : c + 1], (1, 1), "VALID"),
        )
    with pytest.raises(tf.errors.InvalidArgumentError, match="depth"):
        tf.nn.conv2d(x, rng.normal(size=(2, 2, 2, 2)), 1, "VALID")


@pytest.mark.parametrize("window", [2, 3])
@pytest.mark.parametrize("strides", [2, 1])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_pooling(window, strides, padding, rng):
    x = rng.permutation(48).reshape(1, 6, 4, 2).astype(float)
    for name in ("max", "avg"):
        pool = getattr(tf.nn, f"{name}_pool2d")
        reduce = np.max if name == "max" else np.mean
        if padding == "VALID":
            h, w = (6 - window) // strides + 1, (4 - window) // strides + 1
            expected = np.array(
                [
                    [
                        reduce(
                            x[
                                0,
                                i * strides : i * strides + window,
                                j * strides : j * strides + window,
                            ],
                            (0, 1),
                        )
                        for j in range(w)
                    ]
                    for i in range(h)
                ]
            )
            assert_close(pool(x, window, strides, padding)[0], expected)
        check_gradients(lambda t: pool(t, window, strides, padding) ** 2, x, rtol=1e-4)


def test_max_pool_gradient_belongs_to_the_first_maximum_and_is_differentiable():
    x = tf.ones([1, 2, 2, 1], tf.float64)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.nn.max_pool2d(x, 2, 2, "VALID") ** 3
        g = inner.gradient(y, x)
    assert_close(g.numpy().reshape(-1), [3, 0, 0, 0])
    assert_close(outer.gradient(g, x).numpy().reshape(-1), [6, 0, 0, 0])


def test_max_pool_under_vmap(rng):
    x = rng.normal(size=(3, 1, 4, 4, 2))
    rows = tf.vectorized_map(lambda t: tf.nn.max_pool2d(t, 2, 2, "VALID"), x)
    assert_close(rows, np.stack([tf.nn.max_pool2d(r, 2, 2, "VALID").numpy() for r in x]))


def test_cross_entropies(rng):
    logits, labels = rng.normal(size=(4, 3)), np.array([0, 2, 1, 1])
    expected = -scipy.special.log_softmax(logits, -1)[np.arange(4), labels]
    assert_close(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits), expected)
    assert_close(tf.nn.softmax_cross_entropy_with_logits(np.eye(3)[labels], logits), expected)
    z = rng.uniform(size=(4, 3))
    assert_close(
        tf.nn.sigmoid_cross_entropy_with_logits(z, logits),
        -(z * np.log(scipy.special.expit(logits)) + (1 - z) * np.log(scipy.special.expit(-logits))),
    )
    check_gradients(lambda t: tf.nn.sparse_softmax_cross_entropy_with_logits(labels, t), logits)


def test_labels_out_of_range_do_not_train():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"label value of 3 .* \[0, 3\)"):
        tf.nn.sparse_softmax_cross_entropy_with_logits([3], [[1.0, 2.0, 3.0]])
    compiled = tf.function(tf.nn.sparse_softmax_cross_entropy_with_logits)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"label value of 3 .* \[0, 3\)"):
        np.asarray(compiled(tf.constant([3]), tf.constant([[1.0, 2.0, 3.0]])))
    tf.debugging.disable_bounds_check()
    try:
        loss = compiled(tf.constant([3]), tf.constant([[1.0, 2.0, 3.0]]))
    finally:
        tf.debugging.reset_bounds_check()
    assert np.isnan(loss).all()


@pytest.mark.parametrize(
    "name",
    [
        "relu",
        "elu",
        "selu",
        "gelu",
        "silu",
        "softplus",
        "softsign",
        "softmax",
        "log_softmax",
        "leaky_relu",
        "relu6",
    ],
)
def test_activation_gradients(name, rng):
    check_gradients(getattr(tf.nn, name), rng.normal(size=(2, 3)) + 0.05, rtol=1e-4)


def test_gelu_and_softmax_values():
    x = np.array([-1.0, 0.5])
    assert_close(tf.nn.gelu(x), x * 0.5 * (1 + scipy.special.erf(x / np.sqrt(2))))
    assert_close(tf.nn.softmax(x), scipy.special.softmax(x))


def test_dropout():
    x = tf.ones([1000])
    y = tf.nn.dropout(x, 0.25).numpy()
    assert set(np.round(np.unique(y), 4)) == {0.0, np.float32(1.3333)}
    assert abs((y == 0).mean() - 0.25) < 0.05
    with pytest.raises(ValueError, match="rate"):
        tf.nn.dropout(x, 1.5)
    a = tf.nn.stateless_dropout(x, 0.5, [1, 2])
    assert_close(a, tf.nn.stateless_dropout(x, 0.5, [1, 2]).numpy())
    assert_close(tf.nn.stateless_dropout(x, 1.0, [1, 2]), tf.zeros_like(x).numpy())


def test_moments_and_batch_normalization(rng):
    x = rng.normal(size=(6, 3))
    mean, variance = tf.nn.moments(x, [0])
    assert_close(mean, x.mean(0))
    assert_close(variance, x.var(0))
    y = tf.nn.batch_normalization(x, mean, variance, 1.0 * np.ones(3), 2.0 * np.ones(3), 1e-3)
    assert_close(y, (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3) * 2 + 1)
    half = tf.nn.moments(tf.constant(300 * np.ones((64, 1)), tf.float16), [0])
    assert_close(half[0], [300])
    assert_close(half[1], [0])


def test_derivatives_of_moments(rng):
    x, slopes = rng.normal(size=(5,)), rng.normal(size=(2,))

    def combine(x):
        moments = tf.nn.moments(tf.Tensor(x), [0])
        return sum(s * m._value for s, m in zip(slopes, moments, strict=True))

    gradient = slopes[0] / 5 + slopes[1] * 2 / 5 * (x - x.mean())
    assert_close(jax.grad(combine)(x), gradient)
    assert_close(jax.hessian(combine)(x), slopes[1] * 2 / 5 * (np.eye(5) - 1 / 5))


def test_average_loss():
    assert float(tf.nn.compute_average_loss([1.0, 2.0, 3.0])) == 2
    assert float(tf.nn.compute_average_loss([1.0, 2.0, 3.0], global_batch_size=8)) == 0.75


def test_jax_gradients_of_our_ops_agree(rng):
    x = rng.normal(size=(3,))
    assert_close(
        jax.grad(lambda v: tf.reduce_sum(tf.nn.softplus(tf.Tensor(v)))._value)(x),
        scipy.special.expit(x),
    )


def test_the_factor_of_silu_can_be_trained():
    x, beta = tf.constant([[-2.0, -1.0, 1.0, 3.0]]), tf.Variable(0.25)
    with tf.GradientTape() as tape:
        y = tf.nn.swish(x, beta)
    # TensorFlow's values.
    assert_close(y, [[-0.75508136, -0.43782344, 0.5621765, 2.0375361]])
    assert_close(tape.gradient(y, beta), 3.3933377)
    assert tf.nn.silu(x, tf.constant(2.0, tf.float64)).dtype == tf.float32
