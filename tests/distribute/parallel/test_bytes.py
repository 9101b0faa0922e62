"""Test that the bytes sent and held by devices in a step equal theory exactly."""

import numpy as np
import pytest

import meshflow as tf
from distribute.parallel.training import LAYERS, mesh, sent
from helpers import rounds
from meshflow.distribute.parallel.planner.step_traffic import compute_expected_traffic

WIDTH, BLOCKS = 32, 4


def deep(blocks=BLOCKS):
    return tf.keras.Sequential(
        [tf.keras.Input([WIDTH]), *(LAYERS.Dense(WIDTH, "tanh") for _ in range(blocks))]
    )


def wide():
    blocks = [LAYERS.Dense(units) for _ in range(2) for units in (2 * WIDTH, WIDTH)]
    return tf.keras.Sequential([tf.keras.Input([WIDTH]), *blocks])


def explain_step(make, sizes, rules, rows=64, **options):
    """Return the bytes sent by each device in a step by kind, without the mean of the loss, and the
    explanation of the step."""
    rng = np.random.default_rng(0)
    batch = tuple(rng.normal(size=(rows, WIDTH)).astype("float32") for _ in range(2))
    strategy = tf.distribute.MeshStrategy(mesh(**sizes), rules, **options)
    with strategy.scope():
        model = make()
        model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    found, step = sent(model, *batch)
    found["all-reduce"] -= 2 * part(4, int(np.prod([sizes[d] for d in strategy.batch_dimensions])))
    return {kind: n for kind, n in found.items() if n}, step


KERNEL, BIAS = 4 * WIDTH * WIDTH, 4 * WIDTH
ALL = BLOCKS * (KERNEL + BIAS)
# More than there are, so that ZeRO 3 keeps all weights.
KEEP = {"max_live_parameters": 1000000000000}
# Bytes that ZeRO 3 gathers if it releases all kernels.
AGAIN = ALL + (BLOCKS - 1) * KERNEL


def part(sent_bytes, devices=4):
    """Return the bytes that a ring of devices sends to gather, or to scatter, a number of bytes."""
    return sent_bytes * (devices - 1) // devices


@pytest.mark.parametrize(
    ("options", "gathered", "scattered"),
    [
        pytest.param({"zero": 1}, ALL, ALL, marks=pytest.mark.soak),
        ({"zero": 1, "micro_batches": 4}, ALL, ALL),
        ({"zero": 2, "micro_batches": 4}, ALL, 4 * ALL),
        pytest.param({"zero": 3, **KEEP}, ALL, ALL, marks=pytest.mark.soak),
        ({"zero": 3, "micro_batches": 4, **KEEP}, ALL, 4 * ALL),
        # The gradient needs all kernels again except the first. The biases are not released.
        ({"zero": 3}, AGAIN, ALL),
        pytest.param({"zero": 3, "recompute": "gathers"}, AGAIN, ALL, marks=pytest.mark.soak),
        # A layer's bias is packed with its kernel.
        ({"zero": 3, "max_live_parameters": 0}, AGAIN + (BLOCKS - 1) * BIAS, ALL),
        # All stay but for the last kernel.
        ({"zero": 3, "max_live_parameters": ALL // 4 - 1}, ALL + KERNEL, ALL),
        ({"zero": 3, "micro_batches": 4}, 4 * AGAIN - 3 * BLOCKS * BIAS, 4 * ALL),
        ({"zero": 3, "recompute": "layer"}, AGAIN + KERNEL, ALL),
        (
            {"zero": 3, "micro_batches": 4, "recompute": "layer"},
            4 * (AGAIN + KERNEL) - 3 * BLOCKS * BIAS,
            4 * ALL,
        ),
    ],
    ids=str,
)
def test_states_gradients_and_weights_in_parts(options, gathered, scattered):
    found, step = explain_step(deep, {"data": 4}, "batch:data", **options)
    assert found == {"all-gather": part(gathered), "reduce-scatter": part(scattered)}
    # The batch, the step number and other numbers, weights and two slots.
    weights = ALL // 4 if options["zero"] == 3 else ALL
    batch = 2 * 4 * 64 * WIDTH // 4
    assert 0 <= step.memory["arguments"] - (weights + 2 * ALL // 4 + batch) < 64


def test_all_copies_alike():
    found, step = explain_step(deep, {"data": 4}, "batch:data", micro_batches=4)
    assert found == {"all-reduce": 2 * part(ALL)}
    assert 0 <= step.memory["arguments"] - (3 * ALL + 2 * 4 * 64 * WIDTH // 4) < 64


def test_parts_within_a_node_and_sums_across():
    options = {"zero": 3, "zero_over": "data", **KEEP}
    found, _ = explain_step(deep, {"node": 2, "data": 2}, "batch:node+data", **options)
    assert found == {
        "all-gather": part(ALL, 2),
        "reduce-scatter": part(ALL, 2),
        "all-reduce": 2 * part(ALL // 2, 2),
    }


@pytest.mark.parametrize("options", [{"zero": 1}, {"zero": 3}, {"zero": 3, **KEEP}], ids=str)
def test_parts_of_weights_that_a_rule_splits(options):
    """Assert that complete weights are not sent over the dimension of the rule; activations are
    sent as without `zero`."""
    sizes, rules = {"data": 2, "model": 2}, "batch:data, hidden:model"
    found, _ = explain_step(wide, sizes, rules, **options)
    # A device's halves of the kernels, and the biases that no rule splits; the first kernel is not needed again.
    halves = 4 * KERNEL + 2 * BIAS
    again = 3 * KERNEL if options == {"zero": 3} else 0
    assert found.pop("all-gather") == part(halves + again, 2)
    assert found.pop("reduce-scatter") == part(halves, 2)
    # One reduction of the outputs of each pair, one of the gradient of the second pair's inputs;
    # and the gradients of the biases that the rule splits, which have no other axis.
    rows = 4 * (64 // 2) * WIDTH
    assert found == {"all-reduce": 2 * part(3 * rows + 2 * BIAS, 2)}


def test_memory_of_recomputed_activations():
    def temporaries(blocks, how, rows=16, **options):
        options = {"zero": 3, "recompute": how, **options}
        _, step = explain_step(lambda: deep(blocks), {"data": 4}, "batch:data", rows, **options)
        return step.memory["temporaries"]

    # Either all gathered weights exist at the same time, or those of two layers; only activations
    # between layers and shards of gradients grow with the number of layers.
    few = temporaries(BLOCKS, "layer")
    assert temporaries(BLOCKS, None, **KEEP) > ALL
    found = temporaries(3 * BLOCKS, None)
    assert found < 0.65 * 3 * ALL
    # Activations grow with the rows, and the rest is smaller.
    assert 2 * found - temporaries(3 * BLOCKS, None, rows=32) < 0.3 * 3 * ALL
    assert few < 2 * (KERNEL + BIAS) + ALL // 4
    rows = 4 * (16 // 4) * WIDTH
    assert temporaries(3 * BLOCKS, "layer") - few <= 2 * BLOCKS * ((KERNEL + BIAS) // 4 + rows)


def test_recomputed_layers_release_weights_before_their_gradients():
    strategy = tf.distribute.MeshStrategy(mesh(data=4), "batch:data", zero=3, recompute="layer")
    with strategy.scope():
        x = tf.keras.Input([256])
        y = x + LAYERS.Dense(256)(LAYERS.Dense(1024, "gelu")(x))
        model = tf.keras.Model(x, LAYERS.Dense(32)(y))
        model.compile("adam", "mse")
    _, step = sent(model, np.zeros([4, 256], np.float32), np.zeros([4, 32], np.float32))
    # A kernel, or its gradient, and not both at the same time.
    assert step.memory["temporaries"] < 1.5 * 4 * 256 * 1024


def test_equal_layers_in_one_loop():
    """Assert that a loop sends the same bytes, and that the program does not grow with the layers."""
    options = {"zero": 3, "recompute": "layer", "stack": True}
    blocks = 3 * BLOCKS
    found, step = explain_step(lambda: deep(blocks), {"data": 4}, "batch:data", **options)
    whole = blocks * (KERNEL + BIAS)
    # The biases stay.
    assert found == {
        "all-gather": part(2 * blocks * KERNEL + blocks * BIAS),
        "reduce-scatter": part(whole),
    }
    # XLA peels one or two iterations of the loop; unrolled, each layer has six.
    assert len(step.select()) < 3 * blocks


# ---- a complete transformer --------------------------------------------------------------------

TOKENS, WORDS, ROWS = 8, 64, 16
DEPTH = rounds(1, 2)
GRID, SEQUENCES = {"data": 2, "model": 2}, "batch:data, sequence:model"
# Mesh, rules and options by name; "heads and hidden" is tensor parallelism.
LAYOUTS = {
    "copies": ({"data": 4}, "batch:data", {}),
    "tensors": (GRID, "batch:data, heads:model, hidden:model", {}),
    "split": (GRID, "batch:data, heads:model, hidden:model, sequence:model", {"sequence": "split"}),
    "ring": (GRID, SEQUENCES, {"sequence": "ring"}),
    "ulysses": (GRID, SEQUENCES, {"sequence": "ulysses"}),
}
CHOICES = [
    *({"zero": zero} for zero in (0, 1, 2, 3)),
    *({"recompute": "layer"}, {"micro_batches": 2}, {"zero": 3, **KEEP}),
    *({"zero": zero, "recompute": "layer"} for zero in (1, 3)),
    *({"zero": zero, "micro_batches": 2} for zero in (1, 2, 3)),
    {"recompute": "layer", "micro_batches": 2},
]
FAST = [("tensors", {"zero": 3}), ("ring", {"zero": 1}), ("split", {"micro_batches": 2})]


def transformer():
    tokens = tf.keras.Input([TOKENS], dtype="int32")
    x = LAYERS.Embedding(WORDS, WIDTH)(tokens)
    for _ in range(DEPTH):
        y = LAYERS.LayerNormalization()(x)
        x = x + LAYERS.MultiHeadAttention(4, WIDTH // 4)(y, y, use_causal_mask=True)
        y = LAYERS.LayerNormalization()(x)
        x = x + LAYERS.Dense(WIDTH)(LAYERS.Dense(4 * WIDTH, "gelu")(y))
    return tf.keras.Model(tokens, LAYERS.Dense(WORDS, dims="out:words")(x))


def test_gradients_of_shared_keys_and_values_are_summed_once():
    strategy = tf.distribute.MeshStrategy(mesh(**GRID), "batch:data, heads:model")
    with strategy.scope():
        queries, values = tf.keras.Input([TOKENS, WIDTH]), tf.keras.Input([TOKENS, WIDTH])
        x, y = LAYERS.LayerNormalization()(queries), LAYERS.LayerNormalization()(values)
        model = tf.keras.Model([queries, values], LAYERS.MultiHeadAttention(4, 8)(x, y))
        model.compile("sgd", "mse")
    rows = np.zeros([ROWS, TOKENS, WIDTH], np.float32)
    _, step = sent(model, [rows, rows], rows)
    sums = [c for c in step.collectives if c.axes == ("model",)]
    # The result, the gradient of `x`, and that of `y`.
    assert sum(c.sent * c.times for c in sums) == 3 * 2 * part(rows.nbytes // 2, 2)


@pytest.mark.parametrize(
    ("layout", "choice"),
    [
        pytest.param(
            layout,
            choice,
            marks=() if (layout, choice) in FAST else pytest.mark.soak,
            id=f"{layout} {choice}",
        )
        for layout in LAYOUTS
        for choice in CHOICES
    ],
)
def test_transformer_bytes_equal_theory(layout, choice):
    sizes, rules, options = LAYOUTS[layout]
    strategy = tf.distribute.MeshStrategy(mesh(**sizes), rules, **options, **choice)
    with strategy.scope():
        model = transformer()
        model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batch = (np.zeros([ROWS, TOKENS], np.int32),) * 2
    _, step = sent(model, *batch)
    model.train_on_batch(*batch)
    theory = sum(one.sent for one in compute_expected_traffic(strategy, model, *batch))
    assert step.sent() == pytest.approx(theory, rel=0.005)
    if layout == "tensors":
        # A sum of the results of attention and of the wide products, and one of the gradients of their inputs: one for
        # queries, keys and values.
        sums = [c for c in step.collectives if c.kind == "all-reduce" and c.axes == ("model",)]
        rows = 4 * ROWS // 2 * TOKENS * WIDTH
        assert sum(c.sent * c.times for c in sums) == DEPTH * 4 * 2 * part(rows, 2)
