"""Attention by cuDNN: chosen where a GPU is pretended, lowered for CUDA, and computed by XLA's code on this CPU."""

import jax
import numpy as np
import pytest

import meshflow as tf
from meshflow.kernels import flash_attention

SHAPE = (2, 64, 4, 32)


@pytest.fixture
def hopper(monkeypatch):
    """An NVIDIA GPU of compute capability 9.0 with cuDNN, as far as attention is concerned."""
    from jax._src.cudnn import fused_attention_stablehlo

    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91501)
    monkeypatch.setattr(fused_attention_stablehlo, "check_compute_capability", lambda wanted: True)
    monkeypatch.setattr(flash_attention, "_get_compute_capability", lambda: 9.0)
    flash_attention._is_supported.cache_clear()
    yield
    flash_attention._is_supported.cache_clear()


def _arrays(dtype=np.float32, shape=SHAPE):
    rng = np.random.default_rng(0)
    return [tf.cast(rng.normal(size=shape).astype(np.float32), dtype) for _ in range(3)]


def _text(function, arguments, platform):
    concrete = tf.function(function).get_concrete_function(*arguments)
    captured = [c._value for c in concrete.captured_inputs]
    arrays = [a._value for a in arguments]
    return concrete.lower(arrays, captured, (platform,)).as_text()


def _gradients(function, arrays):
    with tf.GradientTape() as tape:
        tape.watch(arrays)
        loss = tf.reduce_sum(tf.cast(function(*arrays), "float32") ** 2)
    return [loss, *tape.gradient(loss, arrays)]


def test_cpu_has_no_flash_attention():
    assert not flash_attention.is_usable(*_arrays("bfloat16"), False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_op_calls_cudnn_on_cuda_only(hopper, dtype, causal):
    arrays = _arrays(dtype)

    def attention(q, k, v):
        return tf.keras.ops.dot_product_attention(q, k, v, is_causal=causal)

    assert "__cudnn$fmha" in _text(attention, arrays, "cuda")
    assert "__cudnn$fmha" not in _text(attention, arrays, "cpu")

    def gradient(*given):
        return _gradients(attention, given)

    assert "__cudnn$fmhaSoftmaxBackward" in _text(gradient, arrays, "cuda")


@pytest.mark.parametrize("causal", [False, True])
def test_other_platforms_compute_the_same(hopper, monkeypatch, causal):
    arrays = _arrays("bfloat16")
    mask = np.random.default_rng(1).random((2, 1, 64, 64)) < 0.8

    def attention(q, k, v):
        return tf.keras.ops.dot_product_attention(q, k, v, mask=mask, is_causal=causal)

    found = _gradients(attention, arrays)
    monkeypatch.setenv(flash_attention.VARIABLE, "xla")
    for one, other in zip(found, _gradients(attention, arrays), strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_the_layer_calls_cudnn(hopper):
    layer = tf.keras.layers.MultiHeadAttention(4, 32, dtype="mixed_bfloat16")
    x = tf.cast(np.random.default_rng(0).normal(size=(2, 64, 128)).astype(np.float32), "bfloat16")
    layer(x, x)

    def call(x):
        return layer(x, x, use_causal_mask=True)

    assert "__cudnn$fmha" in _text(call, [x], "cuda")


@pytest.mark.parametrize("masked", [False, True])
def test_layer_equals_plain_attention(hopper, monkeypatch, masked):
    layer = tf.keras.layers.MultiHeadAttention(4, 32, dtype="mixed_bfloat16")
    x = tf.cast(np.random.default_rng(0).normal(size=(2, 64, 128)).astype(np.float32), "bfloat16")
    mask = np.random.default_rng(1).random((2, 64, 64)) < 0.8 if masked else None
    fused = layer(x, x, attention_mask=mask, use_causal_mask=True).numpy()
    monkeypatch.setenv(flash_attention.VARIABLE, "xla")
    plain = layer(x, x, attention_mask=mask, use_causal_mask=True).numpy()
    np.testing.assert_allclose(fused.astype(np.float32), plain.astype(np.float32), atol=0.01)


@pytest.mark.parametrize(
    ("dtype", "shape", "masked"),
    [
        ("float32", SHAPE, False),
        ("bfloat16", (2, 32, 4, 32), False),
        ("bfloat16", (2, 64, 4, 30), False),
        ("bfloat16", (2, 64, 4, 264), False),
        ("bfloat16", (2, 65, 4, 32), True),
    ],
)
def test_arguments_that_cudnn_does_not_support_use_xla(hopper, dtype, shape, masked):
    assert not flash_attention.is_usable(*_arrays(dtype, shape), masked)


def test_dropout_uses_xla(hopper):
    layer = tf.keras.layers.MultiHeadAttention(4, 32, dropout=0.1, dtype="mixed_bfloat16")
    x = tf.zeros([2, 64, 128], "bfloat16")
    layer(x, x)
    assert "__cudnn$fmha" not in _text(lambda x: layer(x, x, training=True), [x], "cuda")
    assert "__cudnn$fmha" in _text(lambda x: layer(x, x, training=False), [x], "cuda")


def test_shapes_that_jax_refuses_use_xla(hopper, monkeypatch):
    def refused(*_, **__):
        raise NotImplementedError("cuDNN is too old")

    monkeypatch.setattr(jax.nn, "dot_product_attention", refused)
    assert not flash_attention.is_usable(*_arrays("bfloat16"), False)


def test_an_unknown_value_of_the_variable(monkeypatch):
    monkeypatch.setenv(flash_attention.VARIABLE, "flash")
    with pytest.raises(ValueError, match="must be 'auto' or 'xla', got 'flash'"):
        flash_attention.is_enabled()
