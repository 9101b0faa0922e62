"""Experts split over devices: the numbers of one device, and the bytes of the formula."""

import contextlib
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import meshflow as tf
from distribute.parallel import training
from helpers import rounds
from meshflow.distribute.parallel import dropless_experts, expert_dispatch
from meshflow.distribute.parallel.expert_dispatch import ExpertSharding
from meshflow.distribute.parallel.expert_routing import Router
from meshflow.experimental import dtensor
from meshflow.experimental.dtensor import UNSHARDED as U
from meshflow.experimental.dtensor import Layout
from meshflow.placement.collectives import parse_collectives

D, H, E = 6, 10, 8
MESHES = {
    "together": ({"data": 4}, ("data",), ("data",)),
    "apart": ({"data": 2, "expert": 2}, ("data", "expert"), ("expert",)),
    "whole": ({"data": 4}, ("data",), ()),
}


def exchange_on(name, ragged=False):
    sizes, tokens, of_experts = MESHES[name]
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(*sizes.values()), tuple(sizes))
    return ExpertSharding(mesh, tokens, of_experts, 4, ragged)


def network(router, groups, exchange):
    """The layer's computation as a function of arrays: values, drops and load."""

    def run(x, live, gate, into, out):
        if router.capacity is None:
            rows, turn, s = dropless_experts.dispatch_tokens(
                x, live, gate, router, groups, exchange
            )
            rows = jnp.tanh(
                dropless_experts.multiply_grouped(rows, into, None, turn.sizes, exchange)
            )
            rows = dropless_experts.multiply_grouped(rows, out, None, turn.sizes, exchange)
            y = dropless_experts.combine_results(rows, turn, x.shape[0], router.choices, exchange)
        else:
            rows, tokens, weights, s = expert_dispatch.dispatch_tokens(
                x, live, gate, None, router, groups, exchange
            )
            rows = jnp.einsum("erh,ehd->erd", jnp.tanh(jnp.einsum("erd,edh->erh", rows, into)), out)
            y = expert_dispatch.combine_results(rows, tokens, weights, x.shape[0], exchange)
        total = jax.tree.map(lambda a: a.sum(0), s)
        return (y**2).mean() + 0.1 * total.balance / total.live, (y, total.dropped, total.load)

    return jax.jit(jax.value_and_grad(run, argnums=(0, 2, 3, 4), has_aux=True))


def data(rng, count):
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    live = jnp.asarray(rng.uniform(size=count) < 0.9)
    return normal(count, D), live, normal(D, E), normal(E, D, H) / 3, normal(E, H, D) / 3


def check(router, groups, exchange, arrays):
    (loss, (y, dropped, load)), gradients = network(router, groups, None)(*arrays)
    run = network(router, groups, exchange)
    (found, (y2, dropped2, load2)), gradients2 = run(*arrays)
    np.testing.assert_allclose(found, loss, rtol=1e-6)
    np.testing.assert_allclose(y2, y, rtol=1e-5, atol=1e-6)
    assert float(dropped) == float(dropped2) and load.tolist() == load2.tolist()
    for a, b in zip(gradients2, gradients, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return run.lower(*arrays).compile().as_text()


@pytest.mark.parametrize(
    "name, choices, count",
    [
        *[("together", 2, 64), ("apart", 1, 50), ("whole", 0, 64)],
        *(
            pytest.param(*case, marks=pytest.mark.soak)
            for case in [("together", 0, 64), ("apart", 2, 64), ("apart", 0, 64), ("whole", 2, 50)]
        ),
    ],
)
def test_values_and_gradients_equal_one_device(name, choices, count, rng):
    router = Router(E, choices, Fraction(1), choices > 1)
    arrays = data(rng, count)
    exchange = exchange_on(name)
    if name != "whole":
        over = jax.sharding.NamedSharding(
            exchange.mesh, jax.sharding.PartitionSpec(exchange.experts)
        )
        arrays = (*arrays[:3], *(jax.device_put(a, over) for a in arrays[3:]))
    text = check(router, 8, exchange, arrays)
    sent = parse_collectives(text, dict(exchange.mesh.shape))
    moved = sum(c.sent * c.times for c in sent if c.kind == "all-to-all")
    parts = {"together": 4, "apart": 2, "whole": 1}[name]
    # Two groups on each device: to the experts and back, forwards and backwards.
    slots = 2 * router.count_slots(-(-count // 8))
    assert moved == 4 * E * slots * D * 4 * (parts - 1) // parts
    # No weight of an expert is gathered.
    assert not [c for c in sent if c.kind == "all-gather" and f"{D},{H}" in c.shape]


def emulate_ragged_all_to_all(operand, output, first, send, start, receive, *, axis_name):
    """Imitate `lax.ragged_all_to_all` by gathers, for devices that lack it."""
    me = lax.axis_index(axis_name)
    operands, firsts, sends, starts = (
        lax.all_gather(a, axis_name) for a in (operand, first, send, start)
    )
    for other in range(lax.axis_size(axis_name)):
        row = jnp.arange(operand.shape[0])
        taken = (row >= firsts[other, me]) & (row < firsts[other, me] + sends[other, me])
        at = jnp.where(taken, starts[other, me] + row - firsts[other, me], output.shape[0])
        output = output.at[at].set(operands[other], mode="drop")
    return output


@pytest.mark.parametrize(
    "name, ragged",
    [
        ("together", False),
        ("together", True),
        pytest.param("apart", True, marks=pytest.mark.soak),
    ],
)
def test_without_limit(name, ragged, rng, monkeypatch):
    monkeypatch.setattr(lax, "ragged_all_to_all", emulate_ragged_all_to_all)
    check(Router(E, 2, None), 4, exchange_on(name, ragged), data(rng, 50))


def train_model(scope, x, **kwargs):
    """A model of experts after `fit`, and its history; the last batch does not divide."""
    tf.keras.backend.reset_uids()
    tf.keras.utils.set_random_seed(3)
    with scope:
        inputs = tf.keras.Input((4, 8))
        h = tf.keras.layers.Dense(8, "relu")(inputs)
        layer = tf.keras.layers.MixtureOfExperts(8, 16, groups=8, name="moe", **kwargs)
        model = tf.keras.Model(inputs, tf.keras.layers.Dense(8)(h + layer(h)))
        model.compile("adam", "mse")
    history = model.fit(x, x**2, batch_size=24, epochs=2, verbose=0, shuffle=False).history
    return model, history


def by_layouts(mesh):
    placed = tf.keras.dtensor.experimental.LayoutMap(mesh=mesh)
    placed["moe.kernel.*"] = Layout(["data", U, U], mesh)
    placed["moe.bias.*"] = Layout(["data", U], mesh)
    return placed.scope()


def by_rules(mesh):
    rules = "batch:data, experts:data"
    return tf.distribute.MeshStrategy(mesh, rules, zero=1, micro_batches=2).scope()


def test_fit_with_experts_and_batch_over_one_dimension(rng):
    x = rng.normal(size=(54, 4, 8)).astype("float32")
    mesh = dtensor.create_mesh({"data": 4})
    _, expected = train_model(contextlib.nullcontext(), x)
    assert list(expected) == ["loss", "moe_dropped", "moe_load"]
    for way in (by_rules, by_layouts)[: rounds(1, 2)]:
        model, found = train_model(way(mesh), x)
        for name in ("loss", "moe_dropped"):
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, err_msg=str(way))
        layer = model.get_layer("moe")
        assert layer.kernel_in._value.addressable_shards[0].data.shape == (2, 8, 16)
        batch = x[:16]
        explained = dtensor.explain(model, batch, batch)
        # Two groups of 8 tokens on each device.
        slots = 2 * layer._router.count_slots(8)
        assert explained.sent("all-to-all") == 4 * 8 * slots * 8 * 4 * 3 // 4
        # Weights of experts are neither gathered nor summed.
        others = [*explained.select("all-gather"), *explained.select("all-reduce")]
        assert not [c for c in others if "8,16" in c.shape or "16,8" in c.shape]


def test_experts_over_a_dimension_that_tokens_are_not(rng):
    mesh = dtensor.create_mesh({"data": 2, "expert": 2})
    rules = "batch:data, experts:expert"
    with pytest.raises(ValueError, match=r"rules='batch:data\+expert, experts:expert'"):
        train_model(
            tf.distribute.MeshStrategy(mesh, rules, zero=1).scope(), np.zeros((8, 4, 8), "f4")
        )


def test_groups_that_devices_cannot_share():
    mesh = dtensor.create_mesh({"data": 4})
    placed = tf.keras.dtensor.experimental.LayoutMap(mesh=mesh)
    with placed.scope():
        layer = tf.keras.layers.MixtureOfExperts(8, 16, groups=6, name="moe")
    with pytest.raises(ValueError, match="groups=6 do not divide among the 4 devices"):
        layer(tf.ones([8, 8]))


def of_unequal_texts():
    """Return token numbers, with a different share of padding in every part of the batch, and their
    successors."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 16, (32, 6)).astype("int32")
    return np.where(np.arange(6) < rng.integers(0, 7, (32, 1)), tokens, 0), tokens


def build_model():
    """Define experts whose losses have the same weight as the model's."""
    tokens = tf.keras.Input([6], dtype="int32")
    x = tf.keras.layers.Embedding(16, 8, mask_zero=True)(tokens)
    layer = tf.keras.layers.MixtureOfExperts(
        4, 16, capacity=1.0, groups=8, aux=0.5, z_loss=0.1, name="moe"
    )
    return tf.keras.Model(tokens, tf.keras.layers.Dense(16)(x + layer(x)))


@pytest.mark.parametrize(
    "sizes, rules, options",
    [
        ({"data": 4}, "batch:data", {"zero": 3, "recompute": "layer", "micro_batches": 2}),
        (
            {"stage": 2, "data": 2},
            "batch:data, experts:data",
            {"pipeline": "stage", "recompute": "layer", "micro_batches": 4},
        ),
        *(
            pytest.param(*case, marks=pytest.mark.soak)
            for case in [
                ({"data": 4}, "batch:data, experts:data", {}),
                ({"data": 4}, "batch:data, experts:data", {"zero": 1, "micro_batches": 2}),
                ({"data": 4}, "batch:data", {"zero": 3, "recompute": "gathers"}),
                ({"stage": 2, "data": 2}, "batch:data", {"pipeline": "stage", "micro_batches": 2}),
            ]
        ),
    ],
)
def test_balance_and_drops_of_unequal_masks_equal_one_device(sizes, rules, options):
    batch = of_unequal_texts()
    loss = lambda: tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compiled = {"batch": batch, "optimizer": lambda: tf.keras.optimizers.SGD(0.5), "loss": loss}
    expected, curves = training.trained(build_model, **compiled)
    strategy = tf.distribute.MeshStrategy(training.mesh(**sizes), rules, **options)
    model, found = training.trained(build_model, strategy, **compiled)
    np.testing.assert_allclose(found["loss"], curves["loss"], rtol=1e-6)
    assert min(curves["moe_dropped"]) > 0.01
    np.testing.assert_allclose(found["moe_dropped"], curves["moe_dropped"], rtol=1e-5)
    assert min(np.subtract(found["moe_load"], curves["moe_load"])) > -1e-5
    for a, b in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
