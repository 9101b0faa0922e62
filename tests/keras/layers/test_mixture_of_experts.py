"""`MixtureOfExperts` on one device, against a definition token by token in float64."""

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close, check_gradients

MoE = tf.keras.layers.MixtureOfExperts


def expert(layer, e, token):
    """Return the output of one expert for one token."""
    w = {
        n: getattr(layer, n).numpy()[e] for n in ("kernel_in", "bias_in", "kernel_out", "bias_out")
    }
    hidden = np.tanh(token @ w["kernel_in"] + w["bias_in"])
    return hidden @ w["kernel_out"] + w["bias_out"]


def softmax(x):
    p = np.exp(x - x.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def by_tokens(layer, x, live, k, slots, groups):
    """Tokens that choose: values and the numbers of choices asked for and dropped."""
    y, asked, dropped = np.zeros_like(x), 0, 0
    size = len(x) // groups
    for first in range(0, len(x), size):
        p = softmax(x[first : first + size] @ layer.gate.numpy())
        order = np.argsort(-p, 1, kind="stable")[:, :k]
        room = [slots] * layer.experts
        for choice in range(k):
            for s in np.flatnonzero(live[first : first + size]):
                e = order[s, choice]
                weight = p[s, e] / (p[s, order[s]].sum() if k > 1 else 1)
                asked += 1
                if room[e] == 0:
                    dropped += 1
                    continue
                room[e] -= 1
                y[first + s] += weight * expert(layer, e, x[first + s])
    return y, dropped / asked


def by_experts(layer, x, live, slots, groups):
    """Experts that choose."""
    y, chosen = np.zeros_like(x), np.zeros(len(x), bool)
    size = len(x) // groups
    for first in range(0, len(x), size):
        here = live[first : first + size]
        p = softmax(x[first : first + size] @ layer.gate.numpy())
        for e in range(layer.experts):
            for s in np.argsort(-np.where(here, p[:, e], -1), kind="stable")[:slots]:
                if here[s]:
                    y[first + s] += p[s, e] * expert(layer, e, x[first + s])
                    chosen[first + s] = True
    return y, 1 - chosen[live].mean()


def balance(layer, x, live, k, groups):
    """The balance loss: the mean over groups, weighted by their tokens."""
    total = 0.0
    for part, here in zip(np.split(x, groups), np.split(live, groups), strict=True):
        p = softmax(part @ layer.gate.numpy())[here]
        counted = np.argsort(-p, 1, kind="stable")[:, :k]
        share = np.bincount(counted.ravel(), minlength=layer.experts) / counted.size
        total += here.sum() * layer.experts * (share * p.mean(0)).sum()
    return total / live.sum()


def made(router, capacity, **kwargs):
    layer = MoE(
        *(4, 6),
        router=router,
        capacity=capacity,
        activation="tanh",
        bias_initializer="random_normal",
        gate_initializer=tf.keras.initializers.RandomNormal(stddev=1.0),
        dtype="float64",
        name="moe",
        **kwargs,
    )
    layer.build((2, 12, 3))
    return layer


@pytest.mark.parametrize(
    "router, capacity, slots",
    [
        ("top2", 0.75, 5),
        ("top1", 1.0, 3),
        ("topk:3", 1.0, 9),
        ("top2", None, 24),
        ("topk:4", None, 24),
        ("expert_choice", 2.0, 6),
    ],
)
def test_values_losses_and_metrics_are_those_of_the_definition(router, capacity, slots, rng):
    groups = 2
    layer = made(router, capacity, groups=groups, aux=0.5, z_loss=0.25)
    x = rng.normal(size=(2, 12, 3))
    mask = np.ones((2, 12), bool)
    mask[1, 7:] = mask[0, 3] = False
    y = layer(tf.constant(x), mask=tf.constant(mask)).numpy()
    flat, live = x.reshape(24, 3), mask.ravel()
    k = {"top1": 1, "top2": 2, "topk:3": 3, "topk:4": 4}.get(router)
    if k is None:
        expected, dropped = by_experts(layer, flat, live, slots, groups)
        losses = []
    else:
        expected, dropped = by_tokens(layer, flat, live, k, slots, groups)
        counted = k if router.startswith("topk") else 1
        losses = [0.5 * balance(layer, flat, live, counted, groups)]
    assert_close(y.reshape(24, 3), expected, 1e-9, 1e-9)
    logits = (flat @ layer.gate.numpy())[live]
    losses.append(0.25 * np.mean(np.log(np.exp(logits).sum(-1)) ** 2))
    assert_close([float(loss) for loss in layer.losses], losses, 1e-6)
    found = {m.name: float(m.result()) for m in layer.metrics}
    assert found["moe_dropped"] == pytest.approx(dropped, abs=1e-6)
    assert found["moe_load"] >= 1
    # Padding has no output, and its contents have no effect.
    assert not y[~mask].any()
    other = np.where(mask[..., None], x, 9.0)
    assert_close(layer(tf.constant(other), mask=tf.constant(mask)), y, 1e-12, 1e-12)


@pytest.mark.parametrize(
    "router, capacity",
    [
        ("top2", 0.75),
        pytest.param("topk:2", None, marks=pytest.mark.soak),
        pytest.param("expert_choice", 2.0, marks=pytest.mark.soak),
    ],
)
def test_gradients_are_finite_differences(router, capacity, rng):
    layer = made(router, capacity, aux=0.5, z_loss=0.25)
    x = rng.normal(size=(1, 6, 3))

    names = ("gate", "kernel_in", "kernel_out")
    start = [getattr(layer, n).numpy() for n in names]
    with tf.GradientTape() as tape:
        inputs = tf.constant(x)
        tape.watch(inputs)
        total = tf.reduce_sum(layer(inputs) ** 2) + tf.add_n(layer.losses)
    variables = [getattr(layer, n) for n in names]
    found = tape.gradient(total, [inputs, *variables])

    def value():
        return float(tf.reduce_sum(layer(tf.constant(x)) ** 2) + tf.add_n(layer.losses))

    for variable, first, gradient in zip(variables, start, found[1:], strict=True):
        for position in [(0, *[0] * (first.ndim - 1)), tuple(s - 1 for s in first.shape)]:
            values = []
            for sign in (1, -1):
                moved = first.copy()
                moved[position] += sign * 1e-6
                variable.assign(moved)
                values.append(value())
            variable.assign(first)
            assert_close(gradient.numpy()[position], (values[0] - values[1]) / 2e-6, 1e-5, 1e-7)
    check_gradients(lambda t: layer(t) ** 2, x)


def test_shared_experts_and_random_seconds(rng):
    layer = made("top2", 4.0, second="random", seed=1)
    x = tf.constant(rng.normal(size=(8, 30, 3)))
    whole = layer(x)
    first = layer(x, training=True).numpy()
    # Outside of training every second expert is taken; in training some are not.
    changed = np.any(first != whole.numpy(), -1).mean()
    assert 0.05 < changed < 0.95
    assert layer(x).numpy().tolist() == whole.numpy().tolist()
    shared = made("top1", 4.0, shared=2)
    x = rng.normal(size=(5, 3))
    inside = np.tanh(x @ shared.shared_kernel_in.numpy() + shared.shared_bias_in.numpy())
    always = inside @ shared.shared_kernel_out.numpy() + shared.shared_bias_out.numpy()
    assert shared.shared_kernel_in.shape == (3, 12)
    routed, _ = by_tokens(shared, x, np.ones(5, bool), 1, 5, 1)
    assert_close(shared(tf.constant(x)), always + routed, 1e-9, 1e-9)


def test_in_a_model_by_fit_in_bfloat16_saved_and_copied(rng, tmp_path):
    inputs = tf.keras.Input((None, 8))
    x = tf.keras.layers.Masking()(inputs)
    x = x + MoE(4, 16, capacity=2.0, groups=3, kernel_regularizer="l2", name="moe")(x)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(x))
    model.compile("adam", "mse")
    data = rng.normal(size=(20, 5, 8)).astype("float32")
    data[::3, 3:] = 0
    history = model.fit(data, data[..., :1] ** 2, batch_size=8, epochs=3, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert {"moe_dropped", "moe_load"} <= set(history) and max(history["moe_load"]) >= 1
    expected = model.predict(data, verbose=0)
    for name in ("model.keras", "model.h5"):
        model.save(tmp_path / name)
        again = tf.keras.models.load_model(tmp_path / name)
        assert again.get_layer("moe").get_config() == model.get_layer("moe").get_config()
        np.testing.assert_array_equal(again.predict(data, verbose=0), expected)
    config = tf.keras.layers.serialize(model.get_layer("moe"))
    assert tf.keras.layers.deserialize(config).router == "top2"
    half = MoE(4, 16, dtype="mixed_bfloat16")
    result = half(tf.constant(data))
    assert result.dtype == tf.bfloat16 and half.gate.dtype == tf.float32
    whole = MoE(4, 16)
    whole.build(data.shape)
    whole.set_weights(half.get_weights())
    np.testing.assert_allclose(
        tf.cast(result, tf.float32).numpy(), whole(tf.constant(data)).numpy(), atol=0.05
    )


def test_each_expert_is_initialized_like_a_dense_layer():
    layer = MoE(64, 32)
    layer.build((None, 96))
    limit = (6 / (96 + 32)) ** 0.5
    assert 0.95 * limit < np.abs(layer.kernel_in.numpy()).max() <= limit


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"experts": 0}, "experts must be a positive integer"),
        ({"groups": 0}, "groups must be a positive integer"),
        ({"shared": -1}, "shared must be a positive integer .or 0., got -1"),
        ({"router": "best"}, "router='best' is not known"),
        ({"router": "topk:5"}, "k from 1 to the number of experts, 4"),
        ({"second": "none"}, "second='none' is not known"),
        ({"second": "random", "router": "top1"}, 'a policy of router="top2"'),
        ({"capacity": 0}, "capacity must be positive"),
        ({"capacity": "big"}, "capacity must be positive, or None for no limit; got 'big'"),
        ({"aux": -1.0}, "aux weighs a loss and must be a number of at least 0"),
        ({"z_loss": "no"}, "z_loss weighs a loss and must be a number of at least 0"),
        ({"capacity": None, "router": "expert_choice"}, "needs a capacity"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        MoE(**{"experts": 4, "hidden": 8, **arguments})
