"""Bytes and memory of parallel training steps, counted from programs compiled for 8 virtual devices.

    .venv/bin/python benchmarks/parallel_bytes.py options [--before FOLDER]
    .venv/bin/python benchmarks/parallel_bytes.py temporaries [KIND ...]

`options` prints a row for each option of a two-block transformer; FOLDER is a checkout of an earlier
commit, of which the same programs are compiled. `temporaries` prints the temporaries of `zero=3` of
several kinds of models, for one and two rows on each device: they grow by the activations of a row, and
what remains for no rows is the part of the weights and gradients. The same models on one device show
how many bytes of activations a row needs. Nothing is run, so that no number depends on the machine.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("NPROC", "32")
os.environ["MESHFLOW_CACHE_DIR"] = ""

import jax  # noqa: E402

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
# LLVM's optimizations change neither collectives nor buffers.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

import numpy as np  # noqa: E402

import meshflow as tf  # noqa: E402

L = tf.keras.layers
DATA, MODEL, PARTS = {"data": 8}, {"data": 4, "model": 2}, {"data": 4, "seq": 2}
STAGES = {"stage": 4, "data": 2}
SPLIT, LONG = "batch:data, heads:model, hidden:model", "batch:data, sequence:seq"
STAGE = {"pipeline": "stage", "micro_batches": 4}
# Point of issue 38 (0 for comparison), mesh, rules and options.
OPTIONS = [
    (0, DATA, "batch:data", {}),
    (0, DATA, "batch:data", {"recompute": "layer"}),
    (0, DATA, "batch:data", {"zero": 1}),
    (0, DATA, "batch:data", {"zero": 2}),
    (1, DATA, "batch:data", {"zero": 3}),
    (1, DATA, "batch:data", {"zero": 3, "recompute": "gathers"}),
    (1, DATA, "batch:data", {"zero": 3, "recompute": "layer"}),
    (1, DATA, "batch:data", {"zero": 3, "max_live_parameters": 10**9}),
    (1, DATA, "batch:data", {"zero": 3, "micro_batches": 2}),
    (1, {"node": 2, "data": 4}, "batch:node+data", {"zero": 3, "zero_over": "data"}),
    (1, DATA, "deepspeed", {"stage": 3}),
    (2, MODEL, SPLIT, {}),
    (2, MODEL, SPLIT, {"zero": 1}),
    (2, MODEL, SPLIT, {"zero": 3}),
    (2, MODEL, SPLIT, {"recompute": "layer"}),
    (2, MODEL, SPLIT, {"zero": 3, "recompute": "layer"}),
    *(
        (3, PARTS, LONG, {"sequence": kind, **options})
        for kind in ("ring", "ulysses")
        for options in ({}, {"zero": 1}, {"zero": 3})
    ),
    (3, PARTS, LONG, {"sequence": "ring", "recompute": "layer"}),
    (4, STAGES, "batch:data", STAGE),
    (4, STAGES, "batch:data", {**STAGE, "zero": 1}),
    (4, STAGES, "batch:data", {**STAGE, "keep": "residuals"}),
    (4, {"stage": 2, "data": 4}, "batch:data", {**STAGE, "zero": 3}),
]


# ---- models --------------------------------------------------------------------------------------


def entropy():
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def attend(x, width, heads, memory=None, causal=False):
    """Add a block of attention, and of two products, to a graph."""
    y = L.LayerNormalization()(x)
    x = x + L.MultiHeadAttention(heads, width // heads)(y, y, use_causal_mask=causal)
    if memory is not None:
        y = L.LayerNormalization()(x)
        x = x + L.MultiHeadAttention(heads, width // heads)(y, memory)
    y = L.LayerNormalization()(x)
    return x + L.Dense(width)(L.Dense(4 * width, "gelu")(y))


def embed(words, width, length):
    tokens = tf.keras.Input([length], dtype="int32")
    return tokens, L.Embedding(words, width)(tokens)


def finish(inputs, x, words, *shapes):
    """Return a model of words, with the shapes and dtypes of its batch."""
    x = L.Dense(words, dims="out:words")(L.LayerNormalization()(x))
    return tf.keras.Model(inputs, x), entropy(), [(shape, "int32") for shape in shapes]


def make_transformer(blocks=4, width=128, words=256, length=32):
    inputs, x = embed(words, width, length)
    for _ in range(blocks):
        x = attend(x, width, 4, causal=True)
    return finish(inputs, x, words, [length], [length])


def make_encoder_and_decoder():
    (first, x), (second, y) = embed(256, 128, 16), embed(256, 128, 16)
    for _ in range(2):
        x = attend(x, 128, 4)
    x = L.LayerNormalization()(x)
    for _ in range(2):
        y = attend(y, 128, 4, x, causal=True)
    return finish([first, second], y, 256, [16], [16], [16])


def make_experts():
    inputs, x = embed(256, 128, 16)
    for _ in range(3):
        y = L.LayerNormalization()(x)
        x = x + L.MultiHeadAttention(4, 32)(y, y, use_causal_mask=True)
        x = x + L.MixtureOfExperts(8, 256)(L.LayerNormalization()(x))
    return finish(inputs, x, 256, [16], [16])


def make_recurrent():
    inputs, x = embed(256, 128, 16)
    for _ in range(4):
        x = L.LSTM(128, return_sequences=True)(x)
    return finish(inputs, x, 256, [16], [16])


def make_dense():
    inputs = x = tf.keras.Input([256])
    for _ in range(12):
        x = L.Dense(256, "relu")(x)
    return tf.keras.Model(inputs, x), "mse", [([256], "float32")] * 2


def make_vision_transformer():
    inputs = tf.keras.Input([32, 32, 3])
    x = L.Reshape([16, 128])(L.Conv2D(128, 8, 8)(inputs))
    for _ in range(4):
        x = attend(x, 128, 4)
    x = L.Dense(10)(L.GlobalAveragePooling1D()(L.LayerNormalization()(x)))
    return tf.keras.Model(inputs, x), entropy(), [([32, 32, 3], "float32"), ([], "int32")]


def make_convolutions():
    inputs = tf.keras.Input([8, 8, 16])
    x = L.Conv2D(64, 3, padding="same")(inputs)
    for _ in range(4):
        y = L.ReLU()(L.BatchNormalization()(x))
        y = L.ReLU()(L.BatchNormalization()(L.Conv2D(64, 3, padding="same")(y)))
        x = x + L.Conv2D(64, 3, padding="same")(y)
    x = L.Dense(10)(L.GlobalAveragePooling2D()(x))
    return tf.keras.Model(inputs, x), entropy(), [([8, 8, 16], "float32"), ([], "int32")]


KINDS = {
    "dense": make_dense,
    "transformer": make_transformer,
    "vision transformer": make_vision_transformer,
    "encoder and decoder": make_encoder_and_decoder,
    "experts": make_experts,
    "LSTM": make_recurrent,
    "convolutions": make_convolutions,
}


# ---- measurements --------------------------------------------------------------------------------


def make_strategy(sizes, rules, options):
    dtensor = tf.experimental.dtensor
    count = int(np.prod(list(sizes.values())))
    mesh = dtensor.create_mesh(sizes, devices=[f"CPU:{i}" for i in range(count)])
    if rules == "deepspeed":
        stage = {"zero_optimization": options, "train_batch_size": 16}
        optimizer = {"type": "Adam", "params": {"lr": 1e-3}}
        return tf.distribute.from_deepspeed({**stage, "optimizer": optimizer}, mesh).strategy
    if "keep" in options:
        pipeline = tf.distribute.Pipeline("stage", keep=options["keep"])
        options = {**options, "pipeline": pipeline}
        del options["keep"]
    return tf.distribute.MeshStrategy(mesh, rules, **options)


def compile_step(make, strategy, rows):
    """Return the model, its batch, the explanation of its step, and the bytes of its weights."""
    tf.keras.backend.clear_session()
    with strategy.scope():
        model, loss, shapes = make()
        model.compile("adam", loss)
    model.optimizer.build(model.trainable_variables)
    *x, y = [np.zeros([rows, *shape], dtype) for shape, dtype in shapes]
    batch = (x if len(x) > 1 else x[0], y)
    step = tf.experimental.dtensor.explain(model, *batch)
    weights = sum(4 * int(np.prod(w.shape)) for w in model.trainable_weights)
    return model, batch, step, weights


def measure_option(sizes, rules, options):
    strategy = make_strategy(sizes, rules, options)
    # With one sequence of eight tokens on each device, weights need more memory than activations.
    rows = 16 if "stage" in sizes or "micro_batches" in options else 8
    make = lambda: make_transformer(2, 256, 512, 8)
    model, batch, step, weights = compile_step(make, strategy, rows)
    sent = {}
    for one in step.collectives:
        kind = f"{one.kind} over {'+'.join(one.axes)}"
        count, total = sent.get(kind, (0, 0))
        sent[kind] = count + one.times, total + one.sent * one.times
    theory = None
    try:
        from meshflow.distribute.parallel.planner.step_traffic import compute_expected_traffic

        if strategy.options.pipeline:
            model.train_on_batch(*batch)
        theory = sum(one.sent for one in compute_expected_traffic(strategy, model, *batch))
    except (ImportError, ValueError) as error:
        print(error, file=sys.stderr)
    temporaries = step.memory["temporaries"] / weights
    return {"bytes": step.sent(), "theory": theory, "temporaries": temporaries, "sent": sent}


def list_options():
    """Print a line of JSON for each option."""
    for point, sizes, rules, options in OPTIONS:
        try:
            found = measure_option(sizes, rules, options)
        except (TypeError, ValueError, AttributeError) as error:
            found = {"error": str(error).splitlines()[0]}
        print(json.dumps([point, sizes, rules, options, found]), flush=True)


def run_list(folder):
    environment = {**os.environ, "PYTHONPATH": str(Path(folder) / "src")}
    command = [sys.executable, __file__, "list"]
    text = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    return [json.loads(line) for line in text.splitlines()]


def describe(found):
    if "error" in found:
        return "refused", "", ""
    sums = {}
    for kind, (count, total) in found["sent"].items():
        sums[kind] = f"{count} {kind}: {total:,}"
    return f"{found['bytes']:,}", "; ".join(sums.values()), f"{found['temporaries']:.3f}"


def print_options(before):
    now = run_list(ROOT)
    earlier = run_list(before) if before else [[*row[:4], {"error": ""}] for row in now]
    print("| point | mesh | options | theory | sent | temporaries | collectives |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (point, sizes, rules, options, found), (*_, old) in zip(now, earlier, strict=True):
        pairs = zip(describe(old), describe(found), strict=True)
        sent, collectives, temporaries = (f"{a} -> {b}" if before else b for a, b in pairs)
        mesh = " x ".join(f"{name} {size}" for name, size in sizes.items())
        chosen = ", ".join(f"{name}={value!r}" for name, value in options.items()) or "rules only"
        chosen = f"DeepSpeed: {chosen}" if rules == "deepspeed" else chosen
        theory = "" if found.get("theory") is None else f"{found['theory']:,}"
        row = (point, mesh, chosen, theory, sent, temporaries, collectives)
        print(f"| {' | '.join(map(str, row))} |", flush=True)


def print_temporaries(kinds):
    """Print how temporaries grow with the rows of a device, and what remains for no rows."""
    print(
        "| model | bytes of weights | largest layer | temporaries, 1 row | 2 rows | for no rows | for a row | on one device |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for kind in kinds:
        found = {}
        for devices in (8, 1):
            strategy = make_strategy({"data": devices}, "batch:data", {"zero": 3 * (devices > 1)})
            for rows in (1, 2):
                model, _, step, weights = compile_step(KINDS[kind], strategy, rows * devices)
                found[devices, rows] = step.memory["temporaries"] / weights
        layers = [sum(int(np.prod(w.shape)) for w in layer.weights) for layer in model.layers]
        row, alone = (found[n, 2] - found[n, 1] for n in (8, 1))
        numbers = 4 * max(layers) / weights, found[8, 1], found[8, 2], found[8, 1] - row, row, alone
        print(f"| {kind} | {weights:,} | {' | '.join(f'{n:.3f}' for n in numbers)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=["options", "temporaries", "list"])
    parser.add_argument("kinds", nargs="*", help="kinds of models, all by default")
    parser.add_argument("--before", help="folder of an earlier commit")
    arguments = parser.parse_args()
    if arguments.table == "list":
        list_options()
    elif arguments.table == "options":
        print_options(arguments.before)
    else:
        print_temporaries(arguments.kinds or KINDS)
