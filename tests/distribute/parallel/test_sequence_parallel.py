"""Attention in blocks, by rings and by exchange of heads: numbers of the definition, bytes of the formulas."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import meshflow as tf
from helpers import assert_close, rounds
from meshflow.distribute.parallel import sequence_attention
from meshflow.distribute.parallel.blockwise import AttentionOptions
from meshflow.distribute.parallel.sequence_attention import SequenceSharding
from meshflow.experimental import dtensor
from meshflow.keras.layers import blockwise_attention
from meshflow.placement.collectives import parse_collectives

N = 4
SOAK = pytest.mark.soak


def over(way):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:N]), ("seq",))
    return SequenceSharding(way, mesh, ("seq",)) if way else None


def dense(causal, q, k, v, mask, queries, keep=1.0):
    """The definition, with all scores."""
    scores = jnp.einsum("btnh,bsnh->bnts", q, k)
    t, s = scores.shape[-2:]
    seen = jnp.ones((1, 1, t, s), bool) if mask is None else mask[:, None]
    if causal:
        seen &= jnp.arange(t)[:, None] >= jnp.arange(s)
    seen &= True if queries is None else queries[:, None, :, None]
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30))
    return jnp.einsum("bnts,bsnh->btnh", weights * keep, v)


def arrays(rng, t, s, values=6):
    return [jnp.asarray(rng.normal(size=(2, n, 4, h))) for n, h in ((t, 8), (s, 8), (s, values))]


@pytest.mark.parametrize(
    "way, causal, mask, t, s",
    [
        (None, True, "full", 13, 22),
        ("ring", True, "keys", 13, 22),
        ("ulysses", True, "full", 13, 22),
        ("gathered", True, "full", 13, 22),
        pytest.param("ring", False, "full", 16, 16, marks=SOAK),
        pytest.param("ring", True, None, 16, 16, marks=SOAK),
    ],
)
def test_values_and_gradients_are_those_of_the_definition(way, causal, mask, t, s, rng):
    q, k, v = arrays(rng, t, s)
    seen = queries = None
    if mask:
        seen = jnp.asarray(rng.uniform(size=(2, t if mask == "full" else 1, s)) < 0.6)
        # The first positions are padding, so some queries attend to nothing.
        seen = seen.at[0, :, :3].set(False)
        queries = jnp.asarray(rng.uniform(size=(2, t)) < 0.8)
    what = AttentionOptions(causal, 0.0, 5)
    given = jnp.asarray(rng.normal(size=(2, t, 4, 6)))
    if mask:
        # Queries that attend to nothing have gradients only by the values.
        past = jnp.arange(t)[:, None] >= jnp.arange(s) if causal else True
        some = queries & (seen & past).any(-1)
        assert not bool(some.all())
        given = jnp.where(some[..., None, None], given, 0)

    @jax.jit
    def run(*a):
        call = lambda *a: sequence_attention.attend(what, *a, seen, queries, None, over(way))
        values, pull = jax.vjp(call, *a)
        expected, wanted = jax.vjp(lambda *a: dense(causal, *a, seen, queries), *a)
        return (values, *pull(given)), (expected, *wanted(given))

    for found, expected in zip(*run(q, k, v), strict=True):
        assert_close(found, expected, 1e-9, 1e-9)


@pytest.mark.parametrize(
    "way", ["ring", "gathered", pytest.param(None, marks=SOAK), pytest.param("ulysses", marks=SOAK)]
)
def test_dropout_of_weights(way, rng):
    q, k, v = arrays(rng, 8, 8)
    what, key = AttentionOptions(False, 0.4, 4), jnp.asarray([1, 2], jnp.uint32)
    identity = jnp.broadcast_to(jnp.eye(8)[:, None], (2, 8, 4, 8))
    given = jnp.asarray(rng.normal(size=(2, 8, 4, 6)))

    @jax.jit
    def run(q, k, v):
        call = lambda *a: sequence_attention.attend(what, *a, None, None, key, over(way))
        dropped = call(q, k, identity).transpose(0, 2, 1, 3)
        keep = dropped / jax.nn.softmax(jnp.einsum("btnh,bsnh->bnts", q, k))
        values, pull = jax.vjp(call, q, k, v)
        expected, wanted = jax.vjp(lambda *a: dense(False, *a, None, None, keep), q, k, v)
        return keep, (values, *pull(given)), (expected, *wanted(given))

    keep, *both = run(q, k, v)
    for found, expected in zip(*both, strict=True):
        assert_close(found, expected, 1e-9, 1e-9)
    # Each weight is dropped, or divided by the keep probability, independently.
    keep = np.asarray(keep)
    assert (np.isclose(keep, 0) | np.isclose(keep, 1 / 0.6)).all()
    assert 0.45 < (keep > 0).mean() < 0.75
    assert len({(keep[0, n] > 0).tobytes() for n in range(4)}) == 4


def test_bytes_are_those_of_the_formulas():
    shape = (2, 64, 4, 8)
    whole = 4 * np.prod(shape)
    theory = {
        "ring": ({"collective-permute"}, 2 * (N - 1) / N, 6 * (N - 1) / N),
        "gathered": ({"all-gather", "reduce-scatter"}, 2 * (N - 1) / N, 6 * (N - 1) / N),
        "ulysses": ({"all-to-all"}, 4 * (N - 1) / N**2, 8 * (N - 1) / N**2),
    }
    for way, (kinds, forwards, step) in theory.items():
        place = over(way)
        split = NamedSharding(place.mesh, PartitionSpec(None, "seq"))
        specs = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=split)] * 3

        def forward(*a, place=place):
            return sequence_attention.attend(AttentionOptions(True), *a, None, None, None, place)

        def both(*a, forward=forward):
            values, pull = jax.vjp(forward, *a)
            return values, pull(values)

        for function, expected in ((forward, forwards), (both, step)):
            compiled = jax.jit(function, out_shardings=split).lower(*specs).compile()
            found = parse_collectives(compiled.as_text(), {"seq": N})
            assert {c.kind for c in found} <= kinds
            assert sum(c.sent * c.times for c in found) == expected * whole


def test_memory_grows_linearly_with_the_sequence():
    def temporaries(length):
        specs = [jax.ShapeDtypeStruct((1, length, 4, 16), jnp.float32)] * 3

        def loss(*a):
            what = AttentionOptions(True, 0.0, 128)
            return (sequence_attention.attend(what, *a, None, None, None, None) ** 2).sum()

        compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*specs).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    short, long = temporaries(2048), temporaries(8192)
    # The complete scores would need 1 GB.
    assert long < 4.5 * short < 20e6


def test_long_sequences_run_in_blocks(rng, monkeypatch):
    x = tf.constant(rng.normal(size=(2, 20, 8)).astype("float32"))
    mask = tf.constant(rng.uniform(size=(2, 20, 20)) < 0.7)
    many = tf.keras.layers.MultiHeadAttention(2, 4)
    one = tf.keras.layers.Attention(use_scale=True)
    keys = [None, tf.constant(rng.uniform(size=(2, 20)) < 0.7)]

    def run():
        return [
            many(x, x, attention_mask=mask, use_causal_mask=True),
            one([x, x], mask=keys, use_causal_mask=True),
        ]

    whole = run()
    monkeypatch.setattr(blockwise_attention, "MAX_SCORES", 100)
    operations = str(
        jax.make_jaxpr(lambda a: many(tf.constant(a), tf.constant(a))._value)(x._value)
    )
    assert "custom_vjp" in operations
    for a, b in zip(run(), whole, strict=True):
        assert_close(a, b, 1e-4, 1e-5)


def train_model(scope, x):
    tf.keras.backend.reset_uids()
    tf.keras.utils.set_random_seed(3)
    layers = tf.keras.layers
    with scope:
        inputs = tf.keras.Input((16,), dtype="int32")
        h = layers.Embedding(20, 8, mask_zero=True)(inputs)
        y = layers.LayerNormalization()(h)
        h = layers.Add()([h, layers.MultiHeadAttention(4, 4)(y, y, use_causal_mask=True)])
        model = tf.keras.Model(inputs, layers.Dense(20)(h))
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss)
    return model.fit(x, np.roll(x, -1, 1), batch_size=8, epochs=2, verbose=0, shuffle=False)


def test_fit_with_split_sequences_equals_one_device(rng):
    x = rng.integers(1, 20, (20, 16))
    x[::2, 12:] = 0
    expected = train_model(contextlib.nullcontext(), x).history["loss"]
    split = ({"data": 2, "seq": 2}, "batch:data, sequence:seq")
    ways = [
        (*split, {"sequence": "ring", "zero": 1}),
        # No dimension splits the batch.
        ({"seq": 4}, "sequence:seq", {"sequence": "ring", "recompute": "layer"}),
        (*split, {"sequence": "ulysses"}),
    ]
    for mesh, rules, options in ways[: rounds(2, 3)]:
        strategy = tf.distribute.MeshStrategy(dtensor.create_mesh(mesh), rules, **options)
        found = train_model(strategy.scope(), x).history["loss"]
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=str(options))


def test_split_sequence_errors():
    mesh = dtensor.create_mesh({"data": 2, "seq": 2})
    x = tf.ones([2, 8, 6])
    rules = "batch:data, sequence:seq"
    with tf.distribute.MeshStrategy(mesh, rules, sequence="ulysses").scope():
        y = tf.keras.layers.MultiHeadAttention(2, 4)(x, x)
        assert y.shape == (2, 8, 6)
        with pytest.raises(ValueError, match="3 heads do not divide among the 2 devices of seq"):
            tf.keras.layers.MultiHeadAttention(3, 4)(x, x)
        with pytest.raises(ValueError, match="return_attention_scores=True needs the scores"):
            tf.keras.layers.MultiHeadAttention(2, 4)(x, x, return_attention_scores=True)
        with pytest.raises(ValueError, match="an attention_mask for each head"):
            heads = tf.ones([2, 2, 8, 8])
            tf.keras.layers.MultiHeadAttention(2, 4)(x, x, attention_mask=heads)
