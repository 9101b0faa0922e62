"""Compare ops and their gradients on the default device with the CPU. Each group is one program, as
compilation takes longest."""

import numpy as np
import pytest

import meshflow as tf
from device_and_cpu import FLOAT32, TF32, assert_alike, on_both

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 12)).astype(np.float32)
Y = RNG.normal(size=(8, 12)).astype(np.float32)
POSITIVE = RNG.uniform(0.5, 2.0, size=(8, 12)).astype(np.float32)
UNIT = RNG.uniform(-0.9, 0.9, size=(8, 12)).astype(np.float32)
IMAGES = RNG.normal(size=(2, 16, 16, 8)).astype(np.float32)
VOLUMES = RNG.normal(size=(2, 6, 8, 8, 4)).astype(np.float32)
SEQUENCES = RNG.normal(size=(2, 20, 8)).astype(np.float32)
SQUARE = RNG.normal(size=(3, 6, 6)).astype(np.float32)
DEFINITE = (SQUARE @ SQUARE.transpose(0, 2, 1) + 6 * np.eye(6)).astype(np.float32)
ROWS = np.array([0, 3, 3, 7], np.int32)
PARTS = np.array([0, 0, 1, 1, 1, 2, 3, 3], np.int32)
KERNEL = RNG.normal(size=(3, 3, 8, 16)).astype(np.float32) / 8
DEPTHWISE = RNG.normal(size=(3, 3, 8, 2)).astype(np.float32)
KERNEL_1D = RNG.normal(size=(3, 8, 8)).astype(np.float32)
KERNEL_3D = RNG.normal(size=(3, 3, 3, 4, 4)).astype(np.float32)
WEIGHTS = RNG.normal(size=(12, 16)).astype(np.float32)

# Functions of float arguments whose gradients are also compared.
DIFFERENTIABLE = {
    "elementwise": {
        **{
            name: (getattr(tf, name), X)
            for name in ("abs", "exp", "sin", "cos", "tanh", "square", "negative")
        },
        **{
            n: (getattr(tf.math, n), X)
            for n in ("sigmoid", "softplus", "erf", "expm1", "sinh", "asinh")
        },
        **{
            n: (getattr(tf.math, n), POSITIVE)
            for n in ("log", "sqrt", "rsqrt", "lgamma", "digamma", "log1p")
        },
        **{n: (getattr(tf.math, n), UNIT) for n in ("asin", "acos", "atan", "atanh", "erfinv")},
        **{
            n: (getattr(tf.nn, n), X)
            for n in ("relu", "elu", "selu", "gelu", "silu", "relu6", "leaky_relu")
        },
    },
    "two arguments": {
        **{
            n: (getattr(tf, n), X, Y) for n in ("add", "subtract", "multiply", "maximum", "minimum")
        },
        "divide": (tf.divide, X, POSITIVE),
        "pow": (tf.pow, POSITIVE, Y),
        "atan2": (tf.math.atan2, X, Y),
        "squared_difference": (tf.math.squared_difference, X, Y),
        "where": (lambda x, y: tf.where(x > y, x, 2.0 * y), X, Y),
        "broadcast": (lambda x, y: x[:, None] * y[None], X, Y),
    },
    "reductions": {
        **{
            n: (lambda x, f=getattr(tf, n): f(x, 1), X)
            for n in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_logsumexp")
        },
        "reduce_prod": (lambda x: tf.reduce_prod(x, 0), POSITIVE),
        "variance": (lambda x: tf.math.reduce_variance(x, 1), X),
        "norm": (lambda x: tf.norm(x, axis=1), X),
        "cumsum": (lambda x: tf.cumsum(x, 1, exclusive=True, reverse=True), X),
        "cumprod": (lambda x: tf.math.cumprod(x, 1), POSITIVE),
        "softmax": (lambda x: tf.nn.softmax(x) ** 2, X),
        "log_softmax": (tf.nn.log_softmax, X),
        "moments": (lambda x: tf.add_n(tf.nn.moments(x, [0])), X),
        "segment_sum": (lambda x: tf.math.segment_sum(x, PARTS), X),
        "segment_mean": (lambda x: tf.math.segment_mean(x, PARTS), X),
        "unsorted_segment_max": (lambda x: tf.math.unsorted_segment_max(x, PARTS, 4), X),
    },
    "shapes": {
        "transpose": (lambda x: tf.transpose(x) * 2.0, X),
        "concat": (lambda x, y: tf.concat([x, y], 1) ** 2, X, Y),
        "stack": (lambda x, y: tf.stack([x, y], 1) ** 2, X, Y),
        "split": (lambda x: tf.add_n(tf.split(x, 3, 1)), X),
        "slice": (lambda x: x[1:-1, ::2] ** 2, X),
        "pad": (lambda x: tf.pad(x, [[1, 2], [0, 1]], "REFLECT"), X),
        "tile": (lambda x: tf.tile(x, [2, 3]) ** 2, X),
        "reverse": (lambda x: tf.reverse(x, [1]) * x, X),
        "roll": (lambda x: tf.roll(x, 2, 0) * x, X),
        "gather": (lambda x: tf.gather(x, ROWS) ** 2, X),
        "gather_nd": (lambda x: tf.gather_nd(x, [[0, 1], [7, 3]]) ** 2, X),
        "scatter": (lambda x: tf.scatter_nd(ROWS[:, None], x[:4], [9, 12]), X),
        "scatter update": (lambda x, y: tf.tensor_scatter_nd_add(x, ROWS[:, None], y[:4]), X, Y),
        "diagonal": (tf.linalg.diag_part, SQUARE),
        "sort": (lambda x: tf.sort(x, 1) * 2.0, X),
        "top_k": (lambda x: tf.math.top_k(x, 3)[0] ** 2, X),
        "space_to_depth": (lambda x: tf.nn.space_to_depth(x, 2) ** 2, IMAGES),
    },
    "losses": {
        "sparse cross entropy": (
            lambda x: tf.nn.sparse_softmax_cross_entropy_with_logits(PARTS, x),
            X,
        ),
        "cross entropy": (
            lambda x: tf.nn.softmax_cross_entropy_with_logits(tf.one_hot(PARTS, 12), x),
            X,
        ),
        "sigmoid cross entropy": (
            lambda x: tf.nn.sigmoid_cross_entropy_with_logits(tf.ones_like(x), x),
            X,
        ),
        "huber": (lambda x, y: tf.keras.losses.Huber()(x, y), X, Y),
        "l2": (tf.nn.l2_loss, X),
    },
    "pooling": {
        "max": (lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), IMAGES),
        "max, overlapping": (lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME"), IMAGES),
        "average": (lambda x: tf.nn.avg_pool2d(x, 3, 2, "SAME"), IMAGES),
        "resize": (lambda x: tf.image.resize(x, [11, 23]), IMAGES),
        "local response": (lambda x: tf.nn.local_response_normalization(x), IMAGES),
        "batch normalization": (
            lambda x: tf.nn.batch_normalization(
                x,
                tf.reduce_mean(x, [0, 1, 2]),
                tf.math.reduce_variance(x, [0, 1, 2]),
                None,
                None,
                1e-3,
            ),
            IMAGES,
        ),
    },
    "products": {
        "matmul": (tf.matmul, X, WEIGHTS),
        "batched": (tf.matmul, SQUARE, DEFINITE),
        "transposed": (lambda x, y: tf.matmul(x, y, transpose_a=True), X, Y),
        "einsum": (lambda x, y: tf.einsum("bij,bkj->bik", x, y), SQUARE, DEFINITE),
        "tensordot": (lambda x, y: tf.tensordot(x, y, [[1], [0]]), X, WEIGHTS),
    },
    "convolutions": {
        "plain": (lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), IMAGES, KERNEL),
        "strided": (lambda x, w: tf.nn.conv2d(x, w, 2, "VALID"), IMAGES, KERNEL),
        "dilated": (lambda x, w: tf.nn.conv2d(x, w, 1, "SAME", dilations=2), IMAGES, KERNEL),
        "with bias and relu": (
            lambda x, w: tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME") + 0.1),
            IMAGES,
            KERNEL,
        ),
        "depthwise": (
            lambda x, w: tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME"),
            IMAGES,
            DEPTHWISE,
        ),
        "transposed": (
            lambda x, w: tf.nn.conv2d_transpose(
                x, tf.transpose(w, [0, 1, 3, 2]), [2, 32, 32, 16], 2
            ),
            IMAGES,
            KERNEL,
        ),
        "one dimension": (lambda x, w: tf.nn.conv1d(x, w, 1, "SAME"), SEQUENCES, KERNEL_1D),
        "three dimensions": (lambda x, w: tf.nn.conv3d(x, w, [1] * 5, "SAME"), VOLUMES, KERNEL_3D),
    },
    "linear algebra": {
        "cholesky": (tf.linalg.cholesky, DEFINITE),
        "inverse": (tf.linalg.inv, DEFINITE),
        "determinant": (tf.linalg.logdet, DEFINITE),
        "solve": (tf.linalg.solve, DEFINITE, SQUARE),
        "triangular solve": (
            lambda a, b: tf.linalg.triangular_solve(tf.linalg.cholesky(a), b),
            DEFINITE,
            SQUARE,
        ),
        "eigenvalues": (tf.linalg.eigvalsh, DEFINITE),
        "singular values": (lambda a: tf.linalg.svd(a, compute_uv=False), DEFINITE),
        "QR": (lambda a: tf.abs(tf.linalg.qr(a)[1]), DEFINITE),
    },
}
# On a GPU these use TensorFloat-32, or sum in another order than LAPACK does.
LOOSE = {"products": TF32, "convolutions": TF32, "linear algebra": 10 * TF32}

# Functions without gradients, or of other types.
PLAIN = {
    "numbers": {
        "argmax": (lambda x: tf.argmax(x, 1), X),
        "argsort": (lambda x: tf.argsort(x, 1), X),
        "comparisons": (
            lambda x, y: [x > y, x <= y, tf.equal(x, x), tf.reduce_any(x > 2.0, 1)],
            X,
            Y,
        ),
        "rounding": (lambda x: [tf.floor(x), tf.math.ceil(x), tf.round(4 * x), tf.sign(x)], X),
        "cast": (
            lambda x: [tf.cast(10 * x, t) for t in ("int32", "int64", "uint8", "float64", "bool")],
            POSITIVE,
        ),
        "integers": (lambda i: [i // 3, i % 3, i * i, tf.bitwise.left_shift(i, 2), -i], ROWS),
        "int64": (lambda i: tf.cumsum(tf.cast(i, "int64") * 10**12), ROWS),
        "searchsorted": (lambda x: tf.searchsorted(tf.sort(x, 1), x), X),
        "one_hot": (lambda i: tf.one_hot(i, 9), ROWS),
        "bincount": (lambda i: tf.math.bincount(i, minlength=9, maxlength=9), ROWS),
        "sequence_mask": (lambda i: tf.sequence_mask(i, 9), ROWS),
        "double": (
            lambda x: tf.matmul(tf.cast(x, "float64"), tf.cast(x, "float64"), transpose_b=True),
            X,
        ),
        "clip": (lambda x: tf.clip_by_norm(x, 1.0), X),
        "is finite": (lambda x: [tf.math.is_nan(tf.math.log(x)), tf.math.is_inf(x / 0.0)], X),
    },
    "complex numbers": {
        "fft": (lambda x: tf.signal.fft(tf.cast(x, "complex64")), X),
        "rfft": (tf.signal.rfft, X),
        "irfft": (lambda x: tf.signal.irfft(tf.signal.rfft(x)), X),
        "fft2d": (lambda x: tf.signal.fft2d(tf.complex(x, x)), SQUARE),
        "stft": (lambda x: tf.signal.stft(x, 8, 4), X),
        "polar": (lambda x, y: [tf.abs(tf.complex(x, y)), tf.math.angle(tf.complex(x, y))], X, Y),
    },
}


def _weighted(value):
    """Return a sum with a different weight for each element, so that no gradients cancel."""
    weights = np.cos(np.arange(np.prod(value.shape))).reshape(value.shape)
    return tf.reduce_sum(value * weights.astype(np.float32))


@pytest.mark.parametrize("group", DIFFERENTIABLE)
def test_values_and_gradients(group):
    cases = DIFFERENTIABLE[group]

    def run(*arguments):
        supply, results = iter(arguments), []
        for function, *arrays in cases.values():
            own = [next(supply) for _ in arrays]
            with tf.GradientTape() as tape:
                tape.watch(own)
                value = function(*own)
                loss = _weighted(value)
            results += [value, *map(tf.convert_to_tensor, tape.gradient(loss, own))]
        return results

    names = [
        f"{name}{part}"
        for name, (_, *arrays) in cases.items()
        for part in ("", *(f", gradient {i}" for i in range(len(arrays))))
    ]
    here, there = on_both(run, *[a for _, *arrays in cases.values() for a in arrays])
    assert_alike(names, here, there, LOOSE.get(group, FLOAT32))


@pytest.mark.parametrize("group", PLAIN)
def test_values(group):
    cases = PLAIN[group]

    def run(*arguments):
        supply = iter(arguments)
        return [
            tf.nest.flatten(f(*[next(supply) for _ in arrays])) for f, *arrays in cases.values()
        ]

    here, there = on_both(run, *[a for _, *arrays in cases.values() for a in arrays])
    tolerance = 20 * FLOAT32 if group == "complex numbers" else FLOAT32
    names = list(map(str, range(len(here))))
    assert_alike(names, here, there, tolerance)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits(dtype):
    def run(x, w, images, kernel):
        low = [tf.cast(a, dtype) for a in (x, w, images, kernel)]
        with tf.GradientTape() as tape:
            tape.watch(low)
            x, w, images, kernel = low
            product = tf.nn.gelu(tf.matmul(x, w))
            convolved = tf.nn.relu(tf.nn.conv2d(images, kernel, 1, "SAME"))
            pooled = tf.nn.max_pool2d(convolved, 2, 2, "VALID")
            loss = tf.reduce_mean(tf.cast(product, "float32") ** 2) + tf.reduce_mean(
                tf.cast(pooled, "float32")
            )
        return [product, convolved, loss, *tape.gradient(loss, low)]

    here, there = on_both(run, X, WEIGHTS, IMAGES, KERNEL)
    names = ["product", "convolution", "loss", "d x", "d w", "d images", "d kernel"]
    assert_alike(names, here, there, 2e-2 if dtype == "bfloat16" else 5e-3)


def test_random_numbers_are_those_of_the_cpu():
    def run(seed):
        return [
            tf.random.stateless_uniform([1000], seed),
            tf.random.stateless_uniform([1000], seed, 0, 100, tf.int32),
            tf.random.stateless_normal([1000], seed),
            tf.random.stateless_truncated_normal([1000], seed),
        ]

    here, there = on_both(run, np.array([1, 2], np.int32))
    np.testing.assert_array_equal(here[0], there[0])
    assert_alike(["uniform", "integers", "normal", "truncated"], here, there, FLOAT32)
