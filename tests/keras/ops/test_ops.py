"""Compare `keras.ops` and `keras.random` with stored results of Keras 3 (generate_keras_ops.py)."""

import sys
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf

REFERENCE = Path(__file__).parents[2] / "reference"
sys.path.insert(0, str(REFERENCE))
from keras_ops_cases import evaluate, expressions

sys.path.pop(0)
STORED = np.load(REFERENCE / "keras_ops.npz")
ops, random = tf.keras.ops, tf.keras.random


@pytest.mark.nan_expected
@pytest.mark.parametrize("number", range(0, len(expressions()), 20))
def test_ops_equal_keras(number):
    wrong = []
    for n, expression in enumerate(expressions()[number : number + 20], number):
        found = evaluate(expression, ops, np)
        if f"{n}_error" in STORED:
            if not isinstance(found, Exception):
                wrong.append(
                    f"{expression}: raised {STORED[f'{n}_error']} there, gives {found} here"
                )
            continue
        stored = [STORED[k] for k in STORED.files if k.startswith(f"{n}_")]
        if isinstance(found, Exception):
            wrong.append(f"{expression}: {type(found).__name__}: {str(found)[:300]}")
            continue
        if [(x.dtype, x.shape) for x in found] != [(x.dtype, x.shape) for x in stored]:
            wrong.append(
                f"{expression}: {[(x.dtype, x.shape) for x in found]}, there {[(x.dtype, x.shape) for x in stored]}"
            )
            continue
        for one, other in zip(found, stored, strict=True):
            if other.dtype.kind in "fc":
                if not np.allclose(one, other, 2e-5, 2e-5, equal_nan=True):
                    wrong.append(f"{expression}: {one}, there {other}")
            elif not (one == other).all():
                wrong.append(f"{expression}: {one}, there {other}")
    assert not wrong, "\n".join(wrong)


def test_ops_that_keras_on_tensorflow_refuses_or_miscomputes():
    v = ops.array([3.0, -1.0, 2.0, 0.5, 1.0])
    assert ops.add([True], [False]).dtype == tf.bool and bool(ops.multiply(True, True))
    np.testing.assert_array_equal(ops.eye(2, 4, 1), np.eye(2, 4, 1))
    np.testing.assert_array_equal(ops.vstack([v, v]), np.stack([v, v]))
    np.testing.assert_array_equal(np.sort(ops.argpartition(v, 2)[:2]), [1, 3])
    shares = ops.sparsemax([[1.0, 0.8, -1.0]])
    np.testing.assert_allclose(shares, [[0.6, 0.4, 0.0]], 1e-6)
    np.testing.assert_allclose(ops.istft(ops.stft(v, 2, 1, 4), 2, 1, 4, 5), v, 1e-5)
    np.testing.assert_array_equal(ops.vectorize(lambda a, b: a * b)(v, 2.0), v * 2.0)
    dot = ops.vectorize(lambda a, b: ops.sum(a * b), signature="(n),(n)->()")
    np.testing.assert_array_equal(dot(ops.ones([2, 3]), ops.arange(3.0)), [3.0, 3.0])
    np.testing.assert_array_equal(ops.multi_hot([0, 2], 3), [1.0, 0.0, 1.0])
    x = ops.reshape(ops.arange(48.0), [1, 2, 4, 6])
    grouped = ops.dot_product_attention(x, x[:, :, :2], x[:, :, :2], scale=0.1)
    repeated = ops.repeat(x[:, :, :2], 2, 2)
    np.testing.assert_allclose(grouped, ops.dot_product_attention(x, repeated, repeated, scale=0.1))
    whole = ops.prod([1.5, 2.0], dtype="float64")
    assert whole.dtype == tf.float64 and float(whole) == 3.0
    value, change, extra = ops.jvp(lambda a: (a * a, "more"), [v], [ops.ones_like(v)], has_aux=True)
    np.testing.assert_allclose(change, 2 * v)
    assert extra == "more" and value.shape == v.shape
    assert ops.empty([2]).shape == [2] and ops.empty_like(v, "int32").dtype == tf.int32
    assert isinstance(ops.convert_to_numpy(v), np.ndarray)
    volume = ops.reshape(ops.arange(64.0), [1, 4, 4, 4, 1])
    cubes = ops.image.extract_patches_3d(volume, 2)
    np.testing.assert_array_equal(cubes[0, 0, 0, 1], [2, 3, 6, 7, 18, 19, 22, 23])
    picture = random.uniform([1, 12, 12, 3], seed=2)
    np.testing.assert_allclose(ops.image.ssim(picture, picture), [1.0], 1e-6)
    # The slope remains one where neighbours are nearly parallel; the seed selects which.
    slope = ops.tile(ops.reshape(ops.arange(24.0), [1, 24, 1, 1]), [2, 1, 24, 1])
    bent = ops.image.elastic_transform(slope, 20.0, 3.0, seed=1)
    np.testing.assert_array_equal(bent, ops.image.elastic_transform(slope, 20.0, 3.0, seed=1))
    assert 1.0 < float(ops.max(ops.abs(bent - slope))) < 24.0
    assert float(ops.mean(ops.abs(ops.diff(bent[:, :, 4:20], 1, 1)))) < 4.0
    assert not np.array_equal(bent[0], bent[1])
    np.testing.assert_allclose(ops.image.elastic_transform(slope[0], 0.0), slope[0], atol=1e-5)


def test_ops_work_in_graphs_programs_and_gradients():
    inputs = tf.keras.Input([4])
    outputs = ops.softmax(
        ops.matmul(ops.relu(inputs - 0.5), ops.ones([4, 2])) + ops.mean(inputs, -1, True)
    )
    model = tf.keras.Model(inputs, outputs)
    x = np.arange(12, dtype="float32").reshape(3, 4)
    expected = np.full([3, 2], 0.5, "float32")
    np.testing.assert_allclose(model(x), expected)
    again = tf.keras.Model.from_config(model.get_config())
    np.testing.assert_allclose(again(x), expected)

    @tf.function
    def total(n):
        return ops.fori_loop(0, n, lambda i, v: v + ops.cast(i, "float32"), 0.0)

    assert float(total(tf.constant(4))) == 6.0
    assert int(tf.function(lambda: ops.argmin([3, 1, 2]))()) == 1
    w = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        y = ops.sum(ops.square(w) * ops.stop_gradient(w))
    np.testing.assert_allclose(tape.gradient(y, w), [2.0, 8.0])


def test_custom_gradients_accept_upstream():
    @ops.custom_gradient
    def log1pexp(x):
        e = ops.exp(x)

        def grad(*args, upstream=None):
            (upstream,) = args if upstream is None else (upstream,)
            return upstream * (1 - 1 / (1 + e))

        return ops.log(1 + e), grad

    x = tf.constant(100.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = log1pexp(x)
    assert float(tape.gradient(y, x)) == 1.0


def test_linear_algebra_in_16_bits_is_computed_in_32():
    whole = np.float32([[4.0, 1.0], [1.0, 3.0]])
    for dtype, tolerance in (("float16", 1e-3), ("bfloat16", 1e-2)):
        m = ops.cast(whole, dtype)
        root = ops.cholesky(m)
        values, vectors = ops.eigh(m)
        assert root.dtype == values.dtype == vectors.dtype == m.dtype
        np.testing.assert_allclose(ops.cast(root, "float32"), np.linalg.cholesky(whole), tolerance)
        wanted = np.linalg.eigvalsh(whole)
        np.testing.assert_allclose(ops.cast(values, "float32"), wanted, tolerance)
        solved = ops.cast(ops.solve(m, m[:, 0]), "float32")
        np.testing.assert_allclose(solved, [1.0, 0.0], atol=tolerance)


def test_bounds_beyond_a_dtype_are_clamped():
    bytes_ = ops.array([-3, 5], "int8")
    np.testing.assert_array_equal(ops.clip(bytes_, -1, 200), [-1, 5])
    np.testing.assert_array_equal(ops.clip(bytes_, -200, 3), [-3, 3])


def test_edge_cases_where_both_keras_backends_agree():
    x = np.array([1.0, np.nan, 2.0, np.nan], "float32")
    np.testing.assert_array_equal(ops.unique(x), [1, 2, np.nan, np.nan])
    np.testing.assert_array_equal(ops.argpartition([[3, 1], [2, 0]], 1, axis=None)[:2], [3, 1])
    assert ops.multi_hot([0, 2], 3, dtype="bool").numpy().tolist() == [True, False, True]
    assert ops.logaddexp2(2.5, ops.cast([1.0], "bfloat16")).dtype == tf.float32
    assert ops.cast([1], None).dtype == ops.saturate_cast([1], None).dtype == tf.float32
    z = np.array([1 + 2j, -3j], "complex64")
    np.testing.assert_allclose(ops.silu(z), z / (1 + np.exp(-z)), 1e-5)
    signal = np.arange(16, dtype="float32")
    spectra = ops.stft(signal, 4, 2, 4, window=None)
    np.testing.assert_allclose(
        ops.istft(spectra, 4, 2, 4, window=None)[2:-2], 2 * signal[2:-2], 1e-5
    )


def test_wrong_signals_segments_and_blocks_are_named():
    wrong = {
        "rank >= 2": lambda: ops.fft2((np.ones(3), np.ones(3))),
        "rank >= 1": lambda: ops.rfft(1.0),
        "same shape": lambda: ops.fft((np.ones(3), np.ones(2))),
        "must be a positive integer": lambda: ops.stft(np.ones(8), 4, 0, 4),
        "larger than `sequence_length`": lambda: ops.stft(np.ones(8), 4, 1, 2),
        "1-D vector": lambda: ops.segment_sum(np.ones([2, 2]), np.zeros([2, 2], int)),
        "leading dimension": lambda: ops.segment_sum(np.ones([4, 2]), [0, 1]),
        "at least 2": lambda: ops.space_to_depth(np.ones([1, 4, 4, 1]), 1),
        "`unroll`": lambda: ops.scan(lambda c, v: (c, v), 0, [1], unroll=0),
    }
    for message, call in wrong.items():
        with pytest.raises(ValueError, match=message):
            call()


def test_loops_that_count_in_functions_need_their_dtype():
    count = lambda n: ops.fori_loop(0, n, lambda i, v: v + i, 0.0)
    assert float(count(4)) == 6.0
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"tf\.cast"):
        tf.function(count)(tf.constant(4))


def test_seeded_numbers_equal_keras_on_jax():
    # KERAS_BACKEND=jax, keras 3.15.1 with jax 0.10.2, whose numbers are those of `jax.random` for
    # the key [42, 0].
    x = ops.reshape(ops.arange(12.0), [3, 4])
    logits = ops.array([[0.0, 1.0, 2.0], [1.0, 0.0, 0.0]])
    wanted = {
        "normal": (random.normal([4], seed=42), [0.16805424, -1.5097888, -0.3010914, 0.55913025]),
        "uniform": (
            random.uniform([4], seed=42),
            [0.56672966, 0.06554866, 0.38167238, 0.71196353],
        ),
        "truncated_normal": (
            random.truncated_normal([3], 2.0, 0.5, seed=42),
            [2.0801702, 1.314913, 1.8565001],
        ),
        "randint": (random.randint([5], 0, 100, "uint8", 42), [49, 56, 4, 72, 58]),
        "gamma": (random.gamma([3], 2.0, seed=42), [2.5836766, 1.365033, 1.31023]),
        "beta": (
            random.beta([4], 2.0, 3.0, seed=42),
            [0.5968482, 0.50993454, 0.24632812, 0.18027136],
        ),
        "categorical": (
            random.categorical(logits, 5, seed=42),
            [[2, 2, 2, 2, 2], [1, 0, 1, 2, 0]],
        ),
        "dropout": (
            random.dropout(x, 0.5, seed=42),
            [[0, 2, 4, 0], [0, 10, 12, 14], [16, 0, 0, 0]],
        ),
    }
    for name, (found, there) in wanted.items():
        np.testing.assert_allclose(found, there, 1e-5, err_msg=name)
    with pytest.raises(ValueError, match="rate"):
        random.dropout(x, 1.5)


def test_seeds_repeat_and_generators_advance():
    for draw in (
        lambda s: random.normal([4], seed=s),
        lambda s: random.uniform([4], -1.0, 1.0, seed=s),
        lambda s: random.truncated_normal([4], seed=s),
        lambda s: random.randint([4], 0, 1000, seed=s),
        lambda s: random.gamma([4], 2.0, seed=s),
        lambda s: random.beta([4], 2.0, 3.0, seed=s),
        lambda s: random.binomial([4], 100.0, 0.5, seed=s),
        lambda s: random.categorical([[0.0] * 50], 4, seed=s),
        lambda s: random.dropout(ops.ones([40]), 0.5, seed=s),
        lambda s: random.shuffle(ops.arange(20), seed=s),
    ):
        np.testing.assert_array_equal(draw(3), draw(3))
        seeds = random.SeedGenerator(3)
        first, second = draw(seeds), draw(seeds)
        np.testing.assert_array_equal(first, draw(3))
        assert (np.asarray(first) != np.asarray(second)).any()
        assert (np.asarray(draw(None)) != np.asarray(draw(None))).any()
    again = random.SeedGenerator.from_config(seeds.get_config())
    np.testing.assert_array_equal(again.next(), [3, 0])
    rows = random.dropout(ops.ones([5, 8]), 0.5, noise_shape=[None, 1], seed=1)
    assert set(np.asarray(rows).sum(1)) <= {0.0, 16.0}
    with pytest.raises(ValueError, match="floating"):
        random.normal([2], dtype="int32")
    with pytest.raises(ValueError, match="integer"):
        random.randint([2], 0, 3, dtype="float32")
    with pytest.raises(ValueError, match="SeedGenerator"):
        random.normal([2], seed="a")
    with pytest.raises(ValueError, match="positive"):
        random.SeedGenerator(-1)


def test_every_op_is_among_the_expressions_or_here():
    spelled = " ".join(expressions()) + Path(__file__).read_text().replace(
        "ops.custom_gradient", "custom_gradient("
    )
    unused = [
        n
        for n in ops.__all__
        if f"{n}(" not in spelled and n not in ("image", "linalg", "nn", "numpy")
    ]
    unused += [n for n in ops.image.__all__ if f"image.{n}(" not in spelled]
    assert not unused
