"""A language model trained on eight devices under an option, or two at once, beside one device. Run by test_proofs.py.

Prints a line of JSON for each choice: its name, the largest relative difference of the losses of 20 steps from those of
one device, the first loss and the last, and seconds. With "long" as an argument it trains until the text is learned. With
"random" and "i:j" it trains combinations of options that are drawn with the seeds i to j - 1, for four steps. With
"choices" and names of choices it trains models with experts until the text is learned, and finds the first token with other
experts than on one device.
"""

import contextlib
import json
import os
import random
import sys
import time

os.environ.setdefault("NPROC", "32")
os.environ["MESHFLOW_CACHE_DIR"] = ""

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

import numpy as np

import meshflow as tf
from meshflow.experimental import dtensor

LAYERS = tf.keras.layers
WIDTH, TOKENS, WORDS, ROWS = 16, 8, 32, 16
DATA, MODEL = {"data": 8}, {"data": 4, "model": 2}
STAGES, ALL = {"stage": 4, "data": 2}, {"stage": 2, "data": 2, "model": 2}
TENSORS = "batch:data, heads:model, hidden:model, vocab:model"
SEQUENCE = "batch:data, sequence:model"


def pipeline(schedule, keep="inputs"):
    return tf.distribute.Pipeline("stage", schedule, keep=keep)


# Name: mesh, rules, options. Those of experts have another model.
CHOICES = {
    "micro_batches": (DATA, "batch:data", {"micro_batches": 2}),
    "zero=1": (DATA, "batch:data", {"zero": 1}),
    "zero=2": (DATA, "batch:data", {"zero": 2}),
    "zero=3": (DATA, "batch:data", {"zero": 3}),
    "recompute layer": (DATA, "batch:data", {"recompute": "layer"}),
    "tensors": (MODEL, TENSORS, {}),
    "sequence split": (MODEL, TENSORS + ", sequence:model", {"sequence": "split"}),
    "ulysses": (MODEL, SEQUENCE, {"sequence": "ulysses"}),
    "ring": (MODEL, SEQUENCE, {"sequence": "ring"}),
    "1f1b": (STAGES, "batch:data", {"pipeline": "stage", "micro_batches": 4}),
    "gpipe": (STAGES, "batch:data", {"pipeline": pipeline("gpipe"), "micro_batches": 4}),
    "zero_bubble": (
        STAGES,
        "batch:data",
        {"pipeline": pipeline("zero_bubble"), "micro_batches": 8},
    ),
    "interleaved": (
        {"stage": 2, "data": 4},
        "batch:data",
        {"pipeline": pipeline("interleaved:2"), "micro_batches": 2},
    ),
    "experts": (DATA, "batch:data, experts:data", {}),
    "zero=2 x micro_batches": (DATA, "batch:data", {"zero": 2, "micro_batches": 2}),
    "zero=3 x recompute": (DATA, "batch:data", {"zero": 3, "recompute": "layer"}),
    "zero=3 x gathers": (DATA, "batch:data", {"zero": 3, "recompute": "gathers"}),
    "zero=3 x tensors": (MODEL, TENSORS, {"zero": 3}),
    "zero=1 x ring": (MODEL, SEQUENCE, {"zero": 1, "sequence": "ring"}),
    "zero=1 x experts": (DATA, "batch:data, experts:data", {"zero": 1}),
    "micro_batches x tensors": (MODEL, TENSORS, {"micro_batches": 2}),
    "recompute x ulysses": (MODEL, SEQUENCE, {"recompute": "layer", "sequence": "ulysses"}),
    "1f1b x zero=1": (STAGES, "batch:data", {"pipeline": "stage", "micro_batches": 4, "zero": 1}),
    "1f1b x zero=3": (STAGES, "batch:data", {"pipeline": "stage", "micro_batches": 4, "zero": 3}),
    "1f1b x recompute": (
        STAGES,
        "batch:data",
        {"pipeline": "stage", "micro_batches": 4, "recompute": "layer"},
    ),
    "1f1b x tensors": (ALL, TENSORS, {"pipeline": "stage", "micro_batches": 4}),
    "1f1b x ulysses": (
        ALL,
        SEQUENCE,
        {"pipeline": "stage", "micro_batches": 4, "sequence": "ulysses"},
    ),
    "1f1b x experts": (
        STAGES,
        "batch:data, experts:data",
        {"pipeline": "stage", "micro_batches": 4},
    ),
    "1f1b x experts x zero=3": (
        {"stage": 2, "data": 2, "expert": 2},
        "batch:data+expert, experts:expert",
        {"pipeline": "stage", "micro_batches": 2, "zero": 3},
    ),
    "1f1b, residuals": (
        STAGES,
        "batch:data",
        {"pipeline": pipeline("1f1b", "residuals"), "micro_batches": 4},
    ),
    "gpipe, residuals x tensors x zero=3 x recompute": (
        ALL,
        TENSORS,
        {
            "pipeline": pipeline("gpipe", "residuals"),
            "micro_batches": 4,
            "zero": 3,
            "recompute": "layer",
        },
    ),
    "1f1b, residuals x experts": (
        STAGES,
        "batch:data, experts:data",
        {"pipeline": pipeline("1f1b", "residuals"), "micro_batches": 4},
    ),
    "1f1b, residuals x ring": (
        ALL,
        SEQUENCE,
        {"pipeline": pipeline("1f1b", "residuals"), "micro_batches": 4, "sequence": "ring"},
    ),
    "1f1b x ring": (ALL, SEQUENCE, {"pipeline": "stage", "micro_batches": 4, "sequence": "ring"}),
    "zero_bubble x tensors x zero=3 x recompute": (
        ALL,
        TENSORS,
        {
            "pipeline": pipeline("zero_bubble"),
            "micro_batches": 4,
            "zero": 3,
            "recompute": "layer",
        },
    ),
}


# Those that are drawn with seeds of 40 and more.
OF_EXPERTS_AND_STAGES = [
    (DATA, "batch:data, experts:data", {}),
    ({"data": 4, "expert": 2}, "batch:data+expert, experts:expert", {}),
    (STAGES, "batch:data, experts:data", {"pipeline": "stage"}),
    (STAGES, "batch:data", {"pipeline": pipeline("1f1b", "residuals")}),
    (STAGES, "batch:data", {"pipeline": pipeline("zero_bubble")}),
    ({"stage": 2, "data": 4}, "batch:data", {"pipeline": pipeline("interleaved:2")}),
    (ALL, SEQUENCE, {"pipeline": "stage", "sequence": "ulysses"}),
]


def draw(seed):
    """Draw a valid combination of a mesh, rules and options."""
    chance = random.Random(seed)
    sizes, rules, options = chance.choice(
        OF_EXPERTS_AND_STAGES
        if seed >= 40
        else [
            (DATA, "batch:data", {}),
            ({"node": 2, "data": 4}, "batch:node+data", {}),
            (MODEL, TENSORS, {}),
            (MODEL, TENSORS + ", sequence:model", {"sequence": "split"}),
            (MODEL, SEQUENCE, {"sequence": "ring"}),
            (MODEL, SEQUENCE, {"sequence": "ulysses"}),
            ({"stage": 2, "data": 4}, "batch:data", {"pipeline": "stage"}),
            (ALL, TENSORS, {"pipeline": pipeline("gpipe")}),
        ]
    )
    options = {**options, "zero": chance.choice([0, 1, 2, 3, 3])}
    options["micro_batches"] = chance.choice([1, 2])
    options["recompute"] = chance.choice([None, None, "layer"])
    if "pipeline" in options:
        options["micro_batches"] = 2
    elif options["zero"] == 3:
        options["max_live_parameters"] = chance.choice([None, 0, 1000, 10**9])
    if "node" in sizes and options["zero"]:
        options["zero_over"] = chance.choice(["data", "node+data"])
    if chance.random() < 0.3:
        options["offload"] = chance.choice(["optimizer", "activations"])
    return sizes, rules, options


class Block(LAYERS.Layer):
    """Build causal attention, and two products or experts."""

    def __init__(self, experts=False):
        super().__init__()
        self.first, self.second = LAYERS.LayerNormalization(), LAYERS.LayerNormalization()
        self.attention = LAYERS.MultiHeadAttention(2, WIDTH // 2)
        if experts:
            self.added = LAYERS.MixtureOfExperts(8, 2 * WIDTH, capacity=4.0, groups=16)
        else:
            self.added = tf.keras.Sequential([LAYERS.Dense(4 * WIDTH, "gelu"), LAYERS.Dense(WIDTH)])

    def call(self, x):
        y = self.first(x)
        x = x + self.attention(y, y, use_causal_mask=True)
        return x + self.added(self.second(x))


def make_model(experts=False, blocks=4):
    tokens = tf.keras.Input([TOKENS], dtype="int32")
    x = LAYERS.Embedding(WORDS, WIDTH)(tokens)
    for number in range(2 if experts else blocks):
        x = Block(experts and number == 1)(x)
    return tf.keras.Model(
        tokens, LAYERS.Dense(WORDS, dims="out:vocab")(LAYERS.LayerNormalization()(x))
    )


def text():
    """Lines of words at one of three distances from each other."""
    rng = np.random.default_rng(0)
    starts, steps = rng.integers(0, WORDS, (4 * ROWS, 1)), rng.choice([3, 5, 7], (4 * ROWS, 1))
    words = (starts + steps * np.arange(TOKENS + 1)) % WORDS
    return words[:, :-1].astype("int32"), words[:, 1:].astype("int32")


def train(name, epochs, blocks, weights=None):
    """The losses of the epochs, or of the steps of 5 epochs; or of all steps, of which `weights` gets the weights before."""
    sizes, rules, options = CHOICES.get(name, ({}, "", {}))
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(1)
    scope = contextlib.nullcontext()
    if sizes:
        mesh = dtensor.create_mesh(sizes, devices=[f"CPU:{i}" for i in range(8)])
        scope = tf.distribute.MeshStrategy(mesh, rules, **options).scope()
    losses = []

    def note(batch, logs):
        losses.append(float(logs["loss"]))
        if weights is not None:
            weights.append(model.get_weights())

    with scope:
        model = make_model("experts" in name, blocks)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.Adam(3e-3), loss)
    if weights is not None:
        weights.append(model.get_weights())
    by_step = epochs <= 5 or weights is not None
    callbacks = [tf.keras.callbacks.LambdaCallback(on_train_batch_end=note)] if by_step else []
    history = model.fit(
        *text(), batch_size=ROWS, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks
    )
    return np.array(losses or history.history["loss"])


def main(names, epochs, blocks=4):
    plain = {}
    for name in names:
        kind = "one device, experts" if "experts" in name else "one device"
        if kind not in plain:
            plain[kind] = train(kind, epochs, blocks)
        began = time.process_time()
        losses = train(name, epochs, blocks)
        assert len(losses) == len(plain[kind])
        apart = float(np.abs(losses / plain[kind] - 1).max())
        seconds = round(time.process_time() - began, 1)
        print(json.dumps([name, apart, losses[0], losses[-1], seconds]), flush=True)


def find_logits(model, weights, step):
    """The logits of the gate for each token of a step's batch."""
    model.set_weights(weights)
    table, first, second = (layer for layer in model.layers[:4] if layer.weights)
    start = step * ROWS % (4 * ROWS)
    x = first(table(text()[0][start : start + ROWS]))
    y = second.first(x)
    x = second.second(x + second.attention(y, y, use_causal_mask=True))
    return x.numpy().reshape(-1, WIDTH) @ second.added.gate.numpy()


def compare_choices(names):
    """Print for each name how losses differ before the first token with other experts, and how near it was to a tie.

    The line has the largest relative difference of losses before that step, and of all; the difference between the second
    and the third logit of that token; the largest difference of its logits from those of one device; and the last loss.
    """
    plain = []
    losses = train("experts on one device", 60, 4, plain)
    model = make_model(experts=True)
    for name in names:
        weights = []
        found = train(name, 60, 4, weights)
        apart, gap, difference = np.abs(found / losses - 1), 0.0, 0.0
        for step in range(len(apart)):
            logits = [find_logits(model, of[step], step) for of in (plain, weights)]
            taken = [np.sort(np.argsort(-one, 1)[:, :2], 1) for one in logits]
            changed = np.flatnonzero((taken[0] != taken[1]).any(1))
            if changed.size:
                own, other = (one[changed[0]] for one in logits)
                gap = float(-np.diff(np.sort(own)[::-1])[1])
                difference = float(np.abs(own - other).max())
                break
        before = float(apart[: step + (not changed.size)].max(initial=0))
        row = [name, before, float(apart.max()), gap, difference, found[-1]]
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["choices"]:
        compare_choices(sys.argv[2:])
        sys.exit()
    if sys.argv[1:2] == ["random"]:
        first, last = map(int, sys.argv[2].split(":"))
        drawn = {f"{seed}: {draw(seed)}": draw(seed) for seed in range(first, last)}
        CHOICES.update(drawn)
        main(drawn, 1, blocks=1)
        sys.exit()
    long = "long" in sys.argv
    main([n for n in sys.argv[1:] if n != "long"] or CHOICES, 60 if long else 5)
