"""Test that tiled attention and attention in query blocks equal the definition in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import meshflow as tf
from kernels.beside_xla import needs
from meshflow.core.runtime import philox
from meshflow.keras.layers import blockwise_attention
from meshflow.kernels import attention, library
from meshflow.kernels.attention import AttentionOperands, ScoreOptions

compiled = needs(library.ATTENTION)
RNG = np.random.default_rng(0)
KEY = jnp.asarray([-30, 5, 77])


@pytest.fixture(autouse=True)
def _every_size(monkeypatch):
    monkeypatch.setattr(attention, "MIN_SCORES", 1)
    monkeypatch.setattr(attention, "MIN_LENGTH", 1)


def define(options, operands):
    """Attention in float64, from all scores."""
    q, k, v, bias, mask, queries, key = operands
    q, k, v = (x.astype(jnp.float64) for x in (q, k, v))
    scores = jnp.einsum("btnh,bsnh->bnts", q, k) * options.scale
    scores = scores if bias is None else scores + bias
    hidden = [] if mask is None else [~mask]
    if queries is not None:
        rows = ~queries[:, None, :, None]
        hidden = [hidden[0] | rows] if hidden else [rows]
    if options.is_causal:
        hidden.append(jnp.arange(k.shape[1]) > jnp.arange(q.shape[1])[:, None])
    if options.masking != "add_each" and hidden:
        hidden = [functools.reduce(jnp.logical_or, hidden)]
    for part in hidden:
        if options.masking == "replace":
            scores = jnp.where(part, options.fill, scores)
        else:
            # Rows without a visible key depend on the rounding of float32.
            added = jnp.where(part, jnp.float32(options.fill), 0)
            scores = (scores.astype(jnp.float32) + added).astype(jnp.float64)
    weights = jax.nn.softmax(scores, -1)
    if key is not None:
        noise = philox.draw_uniform(key, weights.shape, options.noise)
        kept = noise >= jnp.asarray(options.rate, options.noise)
        weights = jnp.where(kept, weights / (1 - options.rate), 0)
    return jnp.einsum("bnts,bsnh->btnh", weights, v)


attend = functools.partial(attention.attend, ScoreOptions())


def draw(shape, dtype="float32"):
    return jnp.asarray(RNG.standard_normal(shape), dtype)


def make_operands(sizes, dtype, mask, has_bias=False, has_key=False):
    b, t, s, n, h, values = sizes
    masks = {
        "": None,
        "keys": RNG.random((b, 1, 1, s)) < 0.7,
        "all": RNG.random((1, n, t, s)) < 0.5,
    }
    visible = masks[mask]
    if mask == "all":
        visible[:, :, t // 2] = False
    return AttentionOperands(
        *(draw((b, t, n, h), dtype), draw((b, s, n, h), dtype), draw((b, s, n, values), dtype)),
        draw((1, n, t, s)) if has_bias else None,
        None if visible is None else jnp.asarray(visible),
        jnp.asarray(RNG.random((b, t)) < 0.8) if mask == "keys" else None,
        KEY if has_key else None,
    )


def differentiate(function, operands):
    gradient = jnp.cos(
        jnp.arange(operands.query.size // operands.query.shape[-1] * operands.value.shape[-1])
    )
    compute = lambda *qkv: function(AttentionOperands(*qkv, *operands[3:]))
    values, pull = jax.vjp(compute, *operands[:3])
    return values, *pull(gradient.reshape(values.shape).astype(values.dtype))


CASES = {
    "plain": ((2, 200, 333, 3, 20, 24), "float32", ScoreOptions(0.2), ""),
    "causal": ((1, 230, 131, 2, 64, 64), "float32", ScoreOptions(0.1, True), "all"),
    "bias, each mask": ((1, 97, 140, 2, 16, 70), "float32", ScoreOptions(1.0, True, "add_each"), "keys"),
    "replaced, dropout": ((2, 70, 130, 2, 7, 3), "float32", ScoreOptions(0.3, True, "replace", -2e38, 0.3), "all"),
    "bfloat16": ((1, 200, 201, 2, 33, 20), "bfloat16", ScoreOptions(0.2, True), "keys"),
    "bfloat16, dropout": ((1, 97, 300, 1, 64, 64), "bfloat16", ScoreOptions(0.1, False, "add", -1e9, 0.25, "bfloat16"), "all"),
    "one of each": ((1, 1, 1, 1, 1, 1), "float32", ScoreOptions(), ""),
}  # fmt: skip


@pytest.mark.parametrize(
    ("case", "form"),
    [pytest.param(case, "tiles", marks=compiled) for case in CASES]
    + [(case, "blocks") for case in ("replaced, dropout", "bfloat16")],
)
def test_values_and_gradients(case, form, monkeypatch):
    sizes, dtype, options, mask = CASES[case]
    operands = make_operands(sizes, dtype, mask, "bias" in case, "dropout" in case)
    if form == "blocks":
        monkeypatch.setattr(library, "load", lambda: None)
        monkeypatch.setattr(attention, "MAX_BLOCK_SCORES", 1 << 14)
    # Eager operations of JAX would be compiled one by one.
    run, plain = (
        jax.jit(lambda *x, f=f: differentiate(functools.partial(f, options), AttentionOperands(*x)))
        for f in (attention.attend, define)
    )
    assert ("meshflow_attention" in run.lower(*operands).as_text()) == (form == "tiles")
    tolerance = 2e-6 if dtype == "float32" else 2e-2
    for pair in zip(run(*operands), plain(*operands), strict=True):
        found, value = (np.asarray(x, np.float64) for x in pair)
        assert np.abs(found - value).max() <= tolerance * max(1, np.abs(value).max())


@compiled
def test_derivatives_of_any_order_and_of_a_bias():
    operands = make_operands((1, 5, 6, 2, 4, 3), "float32", "", has_bias=True)
    scalar = lambda function: lambda *x: (function(AttentionOperands(*x)) ** 2).sum()
    for transform in (
        lambda f: jax.grad(f, (0, 1, 2, 3)),
        lambda f: jax.grad(lambda *x: (jax.grad(f, 1)(*x) ** 2).sum(), (0, 2)),
        lambda f: lambda *x: jax.jvp(f, x, tuple(map(jnp.sin, x))),
        lambda f: jax.jacfwd(jax.grad(f, 2), 0),
    ):
        pair = [
            jax.jit(transform(scalar(f)))(*operands[:4])
            for f in (attend, functools.partial(define, ScoreOptions()))
        ]
        for found, value in zip(*map(jax.tree.leaves, pair), strict=True):
            np.testing.assert_allclose(found, value, rtol=2e-4, atol=2e-4)


@compiled
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_exponentials_have_the_stated_error(dtype):
    x = -np.linspace(0, 20, 512).astype(jnp.dtype(dtype)).reshape(1, -1, 1, 1)
    keys = np.arange(2).astype(x.dtype).reshape(1, 2, 1, 1)
    run = jax.jit(functools.partial(attention.compute_with_residuals, ScoreOptions()))
    _, high, logarithm = run(AttentionOperands(x, keys, keys))
    assert not np.asarray(high).any()
    found, wanted = np.expm1(np.asarray(logarithm, np.float64)[0, 0]), np.exp(x.astype(np.float64))
    bound = 5e-5 if dtype == "bfloat16" else 1e-7
    np.testing.assert_allclose(found, wanted[0, :, 0, 0], bound, 3e-7)


@compiled
def test_scores_that_are_rounded_by_more_than_the_largest_exponent():
    q, k = (1e5 * draw((1, size, 1, 80)) for size in (20, 128))
    v = draw((1, 128, 1, 3))
    run = jax.jit(functools.partial(attention.attend, ScoreOptions(0.3)))
    best = (np.asarray(q)[0, :, 0] @ np.asarray(k)[0, :, 0].T).argmax(1)
    np.testing.assert_allclose(run(AttentionOperands(q, k, v))[0], np.asarray(v)[0, best], 1e-6)


@compiled
def test_vmapped_axes_become_examples():
    operands = make_operands((2, 20, 30, 2, 8, 8), "float32", "all")[:5]
    stacked = [None if x is None else jnp.stack([x, x[::-1]]) for x in operands[:3]]
    call = lambda q, k, v: differentiate(attend, AttentionOperands(q, k, v, None, operands[4]))
    found = jax.jit(jax.vmap(call)).lower(*stacked)
    assert found.as_text().count("@meshflow_attention") == 2
    single = jax.jit(call)(*[x[1] for x in map(np.asarray, stacked)])
    for a, b in zip(found.compile()(*stacked), single, strict=True):
        np.testing.assert_allclose(a[1], b, rtol=1e-5, atol=1e-5)


@compiled
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_do_not_depend_on_threads(dtype):
    operands = make_operands((1, 300, 500, 2, 32, 32), dtype, "keys", has_key=True)
    options = ScoreOptions(0.2, True, rate=0.2)
    call = jax.jit(
        lambda *x: differentiate(
            functools.partial(attention.attend, options), AttentionOperands(*x)
        )
    )
    runs = []
    for threads in (1, 2, 3):
        library.load().set_threads(threads)
        runs.append([np.asarray(x).tobytes() for x in call(*operands)])
    library.load().set_threads(2)
    assert runs[0] == runs[1] == runs[2]


@compiled
def test_infinities_and_nan_affect_only_their_rows():
    operands = make_operands((1, 40, 150, 1, 8, 8), "float32", "")
    bias = np.zeros((1, 1, 40, 150), np.float32)
    bias[..., 3, :], bias[..., 5, :140], bias[..., 7, 9] = -np.inf, -np.inf, np.nan
    with jax.debug_nans(False):
        operands = operands._replace(bias=jnp.asarray(bias))
        pair = jax.jit(attend)(operands), define(ScoreOptions(), operands)
        found, expected = map(np.asarray, pair)
    assert np.isnan(found[0, 3]).all() and np.isnan(found[0, 7]).all()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_shards():
    operands = make_operands((4, 20, 30, 2, 8, 8), "float32", "keys")
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    spec = PartitionSpec("x")
    call = lambda *x: attend(AttentionOperands(*x[:3], None, *x[3:]))
    arrays = [*operands[:3], *operands[4:6]]
    expected = jax.jit(lambda *x: define(ScoreOptions(), AttentionOperands(*x)))(*operands)
    mapped = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=spec, out_specs=spec))
    np.testing.assert_allclose(mapped(*arrays), expected, atol=2e-6)
    split = [jax.device_put(x, NamedSharding(mesh, spec)) for x in arrays]
    np.testing.assert_allclose(jax.jit(call)(*split), expected, atol=2e-6)


def run_layer(layer, inputs, **options):
    """The outputs and gradients of a layer that is built again."""
    tf.keras.utils.set_random_seed(3)
    built = layer()
    call = lambda: built(*inputs, **options)
    call()

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            values = call()
            loss = tf.reduce_sum(tf.cast(values, "float32") ** 2)
        return [values, *tape.gradient(loss, built.trainable_variables)]

    return step()


X, Z = (RNG.standard_normal((2, n, 16)).astype(np.float32) for n in (22, 31))
PADS = [tf.constant(RNG.random((2, n)) < 0.7) for n in (22, 31)]
LAYERS = tf.keras.layers
LAYER_CASES = {
    "heads": (lambda: LAYERS.MultiHeadAttention(2, 8, dropout=0.3), (X, Z), {"attention_mask": RNG.random((2, 22, 31)) < 0.6, "use_causal_mask": True, "training": True}),
    "scale": (lambda: LAYERS.Attention(use_scale=True, dropout=0.3), ([X, Z],), {"mask": PADS, "use_causal_mask": True, "training": True}),
    "additive": (lambda: LAYERS.AdditiveAttention(dropout=0.3), ([X, Z],), {"mask": PADS, "training": True}),
    "concat": (lambda: LAYERS.Attention(use_scale=True, score_mode="concat"), ([X, Z],), {"use_causal_mask": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", LAYER_CASES)
def test_layers_compute_the_same_as_with_all_scores(case, monkeypatch):
    layer, inputs, options = LAYER_CASES[case]
    inputs = tf.nest.map_structure(tf.constant, inputs)
    monkeypatch.setattr(blockwise_attention, "MAX_PAIR_FEATURES", 0)
    monkeypatch.setattr(attention, "MAX_BLOCK_SCORES", 1 << 14)
    found = run_layer(layer, inputs, **options)
    monkeypatch.setattr(attention, "MIN_SCORES", 1 << 40)
    monkeypatch.setattr(blockwise_attention, "MAX_PAIR_FEATURES", 1 << 40)
    for a, b in zip(found, run_layer(layer, inputs, **options), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", LAYER_CASES)
def test_batches_without_examples(case, monkeypatch):
    layer, inputs, options = LAYER_CASES[case]
    monkeypatch.setattr(blockwise_attention, "MAX_PAIR_FEATURES", -1)
    inputs, options = tf.nest.map_structure(
        lambda a: a if isinstance(a, bool) else a[:0], (inputs, options)
    )
    assert run_layer(layer, tf.nest.map_structure(tf.constant, inputs), **options)[0].shape[0] == 0


def test_scores_that_are_returned_are_computed():
    x = tf.constant(X)
    layer = LAYERS.MultiHeadAttention(2, 8)
    values, scores = layer(x, x, return_attention_scores=True)
    assert scores.shape == (2, 2, 22, 22)
    np.testing.assert_allclose(values, layer(x, x), rtol=1e-5, atol=1e-6)


@compiled
def test_memory_is_linear_in_the_length():
    def count_temporary_bytes(length):
        specs = [jax.ShapeDtypeStruct((1, length, 4, 16), jnp.float32)] * 3
        call = lambda *qkv: differentiate(attend, AttentionOperands(*qkv))
        return jax.jit(call).lower(*specs).compile().memory_analysis().temp_size_in_bytes

    # The complete scores of the longer sequence would need 1 GB.
    assert count_temporary_bytes(8192) < 4.5 * count_temporary_bytes(2048) < 2e7


@pytest.mark.soak
def test_random_shapes():
    for seed in range(60):
        rng = np.random.default_rng(seed)
        sizes = (
            *rng.integers(1, 4, 1),
            *rng.integers(1, 400, 2),
            *rng.integers(1, 4, 1),
            *rng.integers(1, 140, 2),
        )
        rate = 0.3 * rng.integers(2)
        options = ScoreOptions(
            0.2, bool(rng.integers(2)), ("add", "add_each", "replace")[rng.integers(3)], -1e9, rate
        )
        operands = make_operands(
            tuple(map(int, sizes)),
            "float32",
            ("", "keys", "all")[rng.integers(3)],
            bool(rng.integers(2)),
            rate > 0,
        )
        found = differentiate(jax.jit(functools.partial(attention.attend, options)), operands)
        for a, b in zip(
            found, differentiate(functools.partial(define, options), operands), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=3e-5, err_msg=f"seed {seed}")
