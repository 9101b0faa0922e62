"""Boundaries end XLA's duplication of long chains, and appear nowhere else."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

import meshflow as tf
from meshflow.core.tracing import pass_pipeline
from meshflow.passes.fusion_boundaries import fusion_boundary_p, insert_fusion_boundaries

X = jnp.asarray(np.random.default_rng(0).standard_normal((64, 128)), jnp.float32)
W = jnp.asarray(np.random.default_rng(1).standard_normal((128, 128)) * 0.05, jnp.float32)


def chain(depth, x, w):
    for _ in range(depth):
        h = x @ w
        h = (h - h.mean(0)) * jax.lax.rsqrt(h.var(0) + 1e-3)
        x = jax.nn.relu(x + h)
    return x


def concatenations(depth, x, w):
    for _ in range(depth):
        h = (x - x.mean(0)) * jax.lax.rsqrt(x.var(0) + 1e-3)
        x = jnp.concatenate([x, jax.nn.relu(h) @ w[: x.shape[1], :8]], 1)
    return x


def loss(depth, x, w, function=chain):
    return (function(depth, x, w) ** 2).sum()


def boundaries(function, *args):
    return str(insert_fusion_boundaries(jax.make_jaxpr(function)(*args))).count("fusion_boundary")


def compile_with_boundaries(function, *args, insert=insert_fusion_boundaries):
    return jax.jit(jaxpr_as_fun(insert(jax.make_jaxpr(function)(*args)))).lower(*args).compile()


@pytest.mark.parametrize(
    ("function", "derive", "width"),
    [(chain, lambda f: f, 128), (chain, jax.grad, 128), (concatenations, jax.grad, 16)],
    ids=["forward", "backward", "concatenations"],
)
def test_compiled_programs_grow_linearly_with_depth(function, derive, width):
    def grow(insert):
        sizes = []
        for depth in (6, 12):
            step = derive(functools.partial(loss, depth, function=function))
            program = compile_with_boundaries(step, X[:, :width], W, insert=insert)
            sizes.append(program.as_text().count(" = "))
        return sizes[1] / sizes[0]

    assert grow(insert_fusion_boundaries) < 2.1
    # When XLA no longer duplicates chains, the pass can be deleted.
    assert grow(lambda closed: closed) > 2.2


def test_boundaries_copy_nothing_and_preserve_values():
    step = jax.value_and_grad(functools.partial(loss, 6))
    program = compile_with_boundaries(step, X, W)
    assert " copy(" not in program.as_text()
    for got, wanted in zip(program(X, W), jax.tree.leaves(jax.jit(step)(X, W)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3 * float(np.abs(wanted).max()))


def normalize_layer(x, w):
    h = x @ w
    return jax.nn.relu((h - h.mean(0)) * jax.lax.rsqrt(h.var(0) + 1e-3)) @ w


def dropped(x, w):
    # A long integer chain computes the mask, which both directions read.
    for i in range(40):
        w = (w * 3 + 1) ^ (w >> 3)
    return jnp.where(w > 0, x, 0).sum(0), jnp.where(w > 0, x * 2, 1).sum(1)


@pytest.mark.parametrize(
    ("function", "w", "expected"),
    [
        (functools.partial(chain, 1), W, 0),
        (functools.partial(chain, 4), W, 3),
        (functools.partial(chain, 4), jax.ShapeDtypeStruct((128, 128), "bfloat16"), 0),
        (normalize_layer, W, 0),
        (jax.grad(lambda x, w: normalize_layer(x, w).sum()), W, 0),
        (lambda x, w: jax.nn.silu(x) @ w, W, 0),
        (lambda x, w: jnp.tanh(x + w[0]) @ w, W, 0),
        (dropped, jax.ShapeDtypeStruct((64, 128), "int32"), 1),
    ],
    ids=["one", "chain", "bfloat16", "norm", "gradient", "silu", "tanh", "mask"],
)
def test_choices(function, w, expected):
    x = jax.ShapeDtypeStruct((64, 128), w.dtype if w.dtype == jnp.bfloat16 else "float32")
    assert boundaries(function, x, w) == expected


def test_small_arrays_get_boundaries_only_when_chains_are_long():
    x, w = X[:2, :8], W[:8, :8]
    assert boundaries(functools.partial(chain, 4), x, w) == 0
    assert 0 < boundaries(functools.partial(chain, 40), x, w) < 10


@pytest.mark.parametrize(
    "wrap",
    [
        lambda f: jax.jit(f),
        lambda f: jax.checkpoint(f),
        lambda f: lambda x, w: jax.lax.scan(lambda c, _: (f(c, w), ()), x, None, 3)[0],
        lambda f: lambda x, w: jax.lax.cond(x[0, 0] > 0, f, lambda x, _: x, x, w),
        lambda f: lambda x, w: jax.lax.while_loop(lambda c: c[0, 0] > 9.0, lambda c: f(c, w), x),
    ],
    ids=["jit", "checkpoint", "scan", "cond", "while"],
)
def test_programs_inside_equations(wrap):
    function = wrap(functools.partial(chain, 4))
    assert boundaries(function, X, W) == 3
    wanted = jax.jit(function)(X, W)
    np.testing.assert_allclose(
        compile_with_boundaries(function, X, W)(X, W)[0], wanted, rtol=1e-3, atol=1e-3
    )


def test_chains_continue_through_calls():
    block = jax.jit(functools.partial(chain, 1))
    assert boundaries(lambda x, w: block(block(block(block(x, w), w), w), w), X, W) == 3


def test_the_primitive_is_the_identity():
    bind = fusion_boundary_p.bind
    assert bind(X) is X
    np.testing.assert_array_equal(jax.jit(jax.vmap(bind))(X), X)
    value, slope = jax.jvp(lambda x: bind(x) ** 2, (3.0,), (1.0,))
    assert (value, slope) == (9, 6)
    assert jax.grad(jax.grad(lambda x: bind(bind(x) ** 3)))(2.0) == 12
    lowered = jax.jit(bind).trace(X)
    assert "inlineable" in lowered.lower(lowering_platforms=("cpu",)).as_text()
    assert "inlineable" not in lowered.lower(lowering_platforms=("tpu",)).as_text()


def make_model():
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(0)
    inputs = x = tf.keras.Input((16, 16, 8))
    for _ in range(5):
        h = layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(x))
        x = layers.ReLU()(layers.Add()([x, h]))
    model = tf.keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling2D()(x)))
    model.compile("adam", "mse")
    return model


def test_training_steps_have_boundaries_in_both_directions(monkeypatch, rng, compile_tier):
    x, y = rng.standard_normal((16, 16, 16, 8)).astype("float32"), np.ones((16, 1), "float32")
    counts = []

    def fit(insert):
        def count(closed):
            changed = insert(closed)
            counts.append(str(changed).count("fusion_boundary"))
            return changed

        monkeypatch.setattr(pass_pipeline, "insert_fusion_boundaries", count)
        model = make_model()
        model.fit(x, y, batch_size=8, epochs=2, verbose=0)
        return model.get_weights()

    first, second = fit(insert_fusion_boundaries), fit(insert_fusion_boundaries)
    # The last activation is only averaged.
    assert max(counts) >= 4
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(first, fit(lambda closed: closed), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-3)
