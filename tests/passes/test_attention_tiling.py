"""Attention written by hand is tiled, with its gradient, unless its scores are read elsewhere."""

import numpy as np
import pytest

import meshflow as tf
from kernels.beside_xla import needs
from meshflow.interpreter import build_plan
from meshflow.kernels import attention, library
from meshflow.passes.attention_tiling import tile_attention

FEATURES = 8
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _every_length(monkeypatch):
    monkeypatch.setattr(attention, "MIN_SCORES", 1)
    monkeypatch.setattr(attention, "MIN_LENGTH", 2)


def multiply(q, k):
    return tf.matmul(q, k, transpose_b=True) / FEATURES**0.5


def bias(q, k, v, mask):
    scores = multiply(q, k) + (1.0 - tf.cast(mask[:, :1, :1], q.dtype)) * -1e9
    later = np.triu(np.ones([q.shape[2], k.shape[2]], np.float32), 4)
    return tf.matmul(tf.nn.softmax(scores + tf.constant(later * -1e9, q.dtype)), v)


def where(q, k, v, mask):
    scores = tf.where(mask, multiply(q, k), tf.constant(-1e9, q.dtype))
    return tf.matmul(tf.nn.softmax(scores, axis=-1), v)


def wheres(q, k, v, mask):
    low = tf.constant(-1e9, q.dtype)
    scores = tf.where(mask[:, :1, :1], tf.where(~mask, low, multiply(q, k)), low)
    return tf.matmul(tf.nn.softmax(scores), v)


def einsum(q, k, v, mask):
    q, k, v = (tf.transpose(x, [0, 2, 1, 3]) for x in (q, k, v))
    scores = tf.einsum("BSNH,BTNH->BNTS", k, q * 0.25)
    weights = tf.keras.layers.Softmax()(scores, mask)
    return tf.transpose(tf.einsum("BNTS,BSNH->BTNH", weights, v), [0, 2, 1, 3])


def dropout(q, k, v, mask):
    weights = tf.nn.dropout(tf.nn.softmax(multiply(q, k)), 0.25, seed=3)
    return tf.matmul(weights, v)


def three_axes(q, k, v, mask):
    shape = q.shape
    q, k, v = (tf.reshape(x, [-1, x.shape[2], x.shape[3]]) for x in (q, k, v))
    return tf.reshape(tf.matmul(tf.keras.activations.softmax(multiply(q, k)), v), shape)


def plain_ops(q, k, v, mask):
    q, k, v = (tf.transpose(x, [0, 2, 1, 3]) for x in (q, k, v))
    outputs = tf.keras.ops.dot_product_attention(q, k, v, is_causal=True, flash_attention=False)
    return tf.transpose(outputs, [0, 2, 1, 3])


def scores_are_read(q, k, v, mask):
    weights = tf.nn.softmax(multiply(q, k))
    return tf.matmul(weights, v) + tf.reduce_mean(weights)


def scaled_later(q, k, v, mask):
    return tf.matmul(tf.nn.softmax(multiply(q, k)) * mask_floats(mask, q.dtype), v)


def rounded_to_integers(q, k, v, mask):
    weights = tf.cast(tf.nn.softmax(50.0 * multiply(q, k)) + 0.0, "int32")
    return tf.matmul(tf.cast(weights, q.dtype), v)


def nearly_scaled_dropout(q, k, v, mask):
    return tf.matmul(tf.nn.dropout(tf.nn.softmax(multiply(q, k)), 0.25, seed=3) * 1.005, v)


def zeroed(q, k, v, mask):
    return tf.matmul(tf.nn.softmax(multiply(q, k)) * 0.0, v)


def full_dropout(q, k, v, mask):
    weights = tf.nn.softmax(multiply(q, k))
    kept = tf.random.uniform(tf.shape(weights), seed=3) >= 1.0
    return tf.matmul(tf.where(kept, weights, 0.0), v)


def transposed_dropout(q, k, v, mask):
    weights = tf.linalg.matrix_transpose(tf.nn.softmax(multiply(q, k)))
    return tf.matmul(tf.nn.dropout(weights, 0.25, seed=3), v, transpose_a=True)


def mask_of_rows(q, k, v, mask):
    visible = mask[:, 0, 0]
    scores = tf.where(visible[:, None, None, :], multiply(q, k), tf.constant(-1e9, q.dtype))
    weights = tf.where(visible[:, None, :, None], tf.nn.softmax(scores), tf.zeros([], q.dtype))
    return tf.matmul(weights, v)


def mask_floats(mask, dtype):
    return tf.cast(mask, dtype) + 0.5


def trained_bias(q, k, v, mask):
    scores = multiply(q, k) + tf.reduce_sum(q, -1, keepdims=True) * tf.ones_like(
        mask_floats(mask, q.dtype)
    )
    return tf.matmul(tf.nn.softmax(scores), v)


def two_layers(q, k, v, mask):
    return where(bias(q, k, v, mask), k, v, mask)


FORMS = [bias, where, wheres, einsum, dropout, three_axes, plain_ops, two_layers]
OTHERS = [scores_are_read, scaled_later, trained_bias, nearly_scaled_dropout, zeroed, full_dropout]
SQUARE_OTHERS = [transposed_dropout, mask_of_rows, rounded_to_integers]


def find_names(closed):
    return [e.primitive.name for e in closed.jaxpr.eqns]


@needs(library.ATTENTION)
@pytest.mark.parametrize(
    ("form", "shape", "dtype"),
    [(form, (2, 3, 10, 14), "float32") for form in [*FORMS, *OTHERS]]
    + [(form, (2, 2, 9, 9), "float32") for form in SQUARE_OTHERS]
    + [(bias, (1, 3, 10, 14), "bfloat16"), (dropout, (1, 1, 9, 9), "float32"), (where, (2, 1, 9, 9), "bfloat16")],
)  # fmt: skip
def test_tiled_programs_compute_the_same(form, shape, dtype):
    b, n, t, s = shape
    arrays = [tf.constant(RNG.standard_normal((b, n, x, FEATURES)), dtype) for x in (t, s, s)]
    mask = tf.constant(RNG.random((b, n, t, s)) < 0.6)

    @tf.function
    def step(q, k, v, mask):
        with tf.GradientTape() as tape:
            tape.watch([q, k, v])
            values = form(q, k, v, mask)
            loss = tf.reduce_sum(tf.cast(values, "float32") ** 3)
        return [values, *tape.gradient(loss, [q, k, v])]

    concrete = step.get_concrete_function(*arrays, mask)
    closed = concrete.traced.closed_jaxpr
    tiled = tile_attention(closed)
    count = {**dict.fromkeys([*OTHERS, *SQUARE_OTHERS], 0), two_layers: 2}.get(form, 1)
    names = find_names(tiled)
    assert names.count("attention") == names.count("attention_gradient") == count
    assert ("exp" in names) == (count == 0)
    operands = [np.asarray(x._value) for x in [*arrays, mask, *concrete.captured_inputs]]
    pair = [build_plan(program).run(operands) for program in (closed, tiled)]
    tolerance = 1e-4 if dtype == "float32" else 5e-2
    for found, expected in zip(*pair, strict=True):
        found, expected = (np.asarray(x, np.float64) for x in (found, expected))
        np.testing.assert_allclose(found, expected, atol=tolerance * max(1, abs(expected).max()))


def test_short_sequences_are_not_tiled(monkeypatch):
    monkeypatch.setattr(attention, "MIN_LENGTH", 64)
    arrays = [tf.zeros([1, 2, 20, 4])] * 3
    function = tf.function(lambda q, k, v: tf.matmul(tf.nn.softmax(multiply(q, k)), v))
    closed = function.get_concrete_function(*arrays).traced.closed_jaxpr
    assert tile_attention(closed) is closed
