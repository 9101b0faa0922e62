"""Plans of large models for 8 to 4,096 devices, compared with compiled programs and with published speeds.

Writes the tables of docs/large_models/scale.md, and their numbers to scale.json. Nothing is run: weights are shapes. Two and three
blocks of a model, three and five blocks with experts, or so many blocks of each stage of a pipeline are compiled for as many virtual
CPU devices as a plan has, in float32, because XLA's CPU compiler widens exchanges of bfloat16; the difference is what a further block
adds. With `--tables` the numbers in scale.json are used.
"""

import argparse
import dataclasses
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

DOCUMENT = Path(__file__).parents[1] / "docs" / "large_models" / "scale.md"
NUMBERS = DOCUMENT.with_suffix(".json")
COUNTS = (8, 64, 256, 1024, 4096)
COMPILED_COUNTS = (64, 256, 1024)
KIND_NAMES = {"h100": "H100", "h200": "H200", "v5p": "v5p"}
KINDS = tuple(KIND_NAMES)
WORDS, LENGTH = 128256, 8192
# Sequences of a step on each device, and a largest number of them on all devices.
ROWS_PER_DEVICE, MAX_ROWS = 2, 2048
PLAIN_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1"
)
# Blocks, width, heads, hidden units, experts.
MODELS = {
    "8 B": (32, 4096, 32, 12288, 0),
    "70 B": (80, 8192, 64, 24064, 0),
    "1 T, experts": (58, 4096, 32, 8192, 256),
}
# Numbers of blocks of the compiled programs, and those of models with experts: with two blocks, XLA's heap has fewer gaps.
BLOCKS, BLOCKS_OF_EXPERTS = (2, 3), (3, 5)
# Tokens per second and GPU that torchtitan publishes for Llama 3.1 8B on 8 H100, two sequences of 8,192 tokens on each.
PUBLISHED = {"FSDP": 5762, "FSDP, compiled": 6667, "FSDP, compiled, float8": 8532}
# The same for 405 B on 512 H100, with a pipeline over 8 devices.
PUBLISHED_SCHEDULES = {"1f1b": 100, "interleaved:2": 128}
# Plans that are compiled: model, devices, fields of the choice.
SPLIT = {"sequence": "split", "names": ["heads", "hidden", "vocab"]}
RECOMPUTED = {"zero": 3, "recompute": "layer"}
IN_STAGES = {"recompute": "layer", "micro_batches": 16, "keep": "residuals"}
CASES = [
    *(("8 B", n, {"data": n, "zero": 2, "micro_batches": 2}) for n in COMPILED_COUNTS),
    *(
        ("8 B", n, {"data": n // 2, "model": 2, "zero": 1, "micro_batches": 4, **SPLIT})
        for n in (64, 1024)
    ),
    *(("70 B", n, {"data": n, **RECOMPUTED}) for n in COMPILED_COUNTS),
    *(
        ("1 T, experts", n, {"data": n, "experts": min(n, 256), **RECOMPUTED})
        for n in COMPILED_COUNTS
    ),
    ("70 B", 64, {"stage": 8, "data": 8, "zero": 1, **IN_STAGES}),
    ("70 B", 64, {"stage": 8, "data": 4, "model": 2, "zero": 1, **IN_STAGES, **SPLIT}),
    ("70 B", 256, {"stage": 8, "data": 32, "zero": 1, **IN_STAGES}),
]


def make_model(blocks, width, heads, hidden, experts, length=LENGTH):
    """Return a compiled model like Llama with weight shapes only; each head has separate keys and
    values."""
    import meshflow as tf

    layers = tf.keras.layers

    class Block(layers.Layer):
        def __init__(self):
            super().__init__()
            self.first = layers.LayerNormalization(center=False)
            self.second = layers.LayerNormalization(center=False)
            self.attention = layers.MultiHeadAttention(heads, width // heads, use_bias=False)
            if experts:
                self.experts = layers.MixtureOfExperts(experts, hidden, use_bias=False)
            else:
                self.gate = layers.Dense(hidden, "silu", use_bias=False)
                self.up = layers.Dense(hidden, use_bias=False)
                self.down = layers.Dense(width, use_bias=False)

        def call(self, x):
            y = self.first(x)
            x = x + self.attention(y, y, use_causal_mask=True)
            y = self.second(x)
            return x + (self.experts(y) if experts else self.down(self.gate(y) * self.up(y)))

    with tf.distribute.shapes_only():
        inputs = tf.keras.Input([length], dtype="int32")
        x = layers.Embedding(WORDS, width)(inputs)
        for _ in range(blocks):
            x = Block()(x)
        x = layers.LayerNormalization(center=False)(x)
        model = tf.keras.Model(inputs, layers.Dense(WORDS, use_bias=False, dims="out:vocab")(x))
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss)
    return model


def make_batch(rows, length=LENGTH):
    import meshflow as tf

    return (tf.TensorSpec([rows, length], "int32"),) * 2


def make_profile(model, rows, precision):
    """The planner's profile of a model."""
    import meshflow as tf
    from meshflow.distribute.parallel.planner import plans

    with tf.distribute.shapes_only():
        return plans._profile(model, (*make_batch(rows), None), precision)


def count_rows(devices):
    return min(ROWS_PER_DEVICE * devices, MAX_ROWS)


def print_plans(name):
    """Print the planner's best plan without offloading for each number and type of devices as lines of JSON."""
    from meshflow.core.runtime.errors import ResourceExhaustedError
    from meshflow.distribute.parallel.planner import choices
    from meshflow.distribute.parallel.planner.hardware import Hardware
    from meshflow.distribute.parallel.planner.plans import estimate_plan

    choices._OFFLOADS = ((),)
    known = make_profile(make_model(*MODELS[name]), COUNTS[0], "mixed_bfloat16")
    for devices in COUNTS:
        known = dataclasses.replace(known, batch=count_rows(devices))
        for kind in KINDS:
            row = {"model": name, "parameters": known.parameters, "devices": devices, "kind": kind}
            hardware = Hardware.from_kind(kind, devices)
            try:
                best = estimate_plan(known, hardware).best
            except ResourceExhaustedError as error:
                print(json.dumps(row | {"refused": str(error)}), flush=True)
                continue
            seconds = best.estimate_time(hardware)
            work = 3 * known.work * known.batch / devices
            row |= {
                "plan": str(best.choice).replace(', precision="mixed_bfloat16"', ""),
                "memory": best.memory,
                "sent": best.bytes,
                "seconds": seconds,
                "shares": dict(best.estimate.seconds),
                "bubble": best.estimate.bubble,
                "utilization": work / seconds / hardware.bfloat16_products,
                "speed": known.batch * LENGTH / seconds / devices,
            }
            print(json.dumps(row), flush=True)


def make_choice(fields):
    from meshflow.distribute.parallel.planner.choices import PlanChoice

    return PlanChoice(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})


def print_compiled(name, devices, fields):
    """Print memory and bytes of the compiled step of a plan for a few blocks as JSON."""
    import meshflow as tf
    from meshflow.distribute.parallel.planner.plans import create_strategy
    from meshflow.distribute.parallel.planner.trial import compile_trial

    sizes = []
    for blocks in list_blocks(fields):
        model = make_model(blocks, *MODELS[name][1:])
        with tf.distribute.shapes_only():
            strategy = create_strategy(make_choice(fields))
            trial = compile_trial(model, make_batch(count_rows(devices)), strategy)
        sizes.append([trial.memory, trial.sent])
        print(blocks, sizes[-1], file=sys.stderr, flush=True)
    print(json.dumps({"model": name, "devices": devices, "choice": fields, "sizes": sizes}))


def run(*arguments):
    """Return the JSON objects that this program prints in a separate process, one per line."""
    done = subprocess.run(
        [sys.executable, __file__, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={
            **os.environ,
            "XLA_FLAGS": PLAIN_FLAGS,
            "MESHFLOW_CACHE_DIR": "",
            "NPROC": "4",
        },
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def list_blocks(fields):
    """Return numbers of blocks of the compiled programs, which the stages of a pipeline divide."""
    counts = BLOCKS_OF_EXPERTS if "experts" in fields else BLOCKS
    return [n * fields.get("stage", 1) for n in counts]


def extend(sizes, blocks, counts=BLOCKS):
    """Sizes of all blocks from those of two numbers of blocks."""
    (few, more), (a, b) = sizes, counts
    return [x + (blocks - a) * (y - x) / (b - a) for x, y in zip(few, more, strict=True)]


@functools.cache
def make_float32_profile(name, blocks):
    return make_profile(make_model(blocks, *MODELS[name][1:]), COUNTS[0], None)


def estimate(name, devices, fields, blocks):
    """Memory and bytes of a plan by the planner's formulas, in float32."""
    from meshflow.distribute.parallel.planner.costs import CostModel
    from meshflow.distribute.parallel.planner.hardware import Hardware

    known = dataclasses.replace(make_float32_profile(name, blocks), batch=count_rows(devices))
    found = CostModel(known, Hardware.from_kind("h200", devices)).estimate(make_choice(fields))
    return [found.memory, found.bytes]


def format_compiled(rows):
    lines = [
        "| Model | Devices | Plan | Memory: planned | compiled | | Sent: planned | compiled | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        name, devices, fields = row["model"], row["devices"], row["choice"]
        counts = list_blocks(fields)
        planned = [estimate(name, devices, fields, blocks=n) for n in counts]
        planned, compiled = (extend(v, MODELS[name][0], counts) for v in (planned, row["sizes"]))
        cells = [name, f"{devices:,}", str(make_choice(fields))]
        for a, b in zip(planned, compiled, strict=True):
            cells += [
                f"{a / 1e9:.1f} GB",
                f"{b / 1e9:.1f} GB",
                f"{a / b - 1:+.1%}".replace("-0.0%", "0.0%"),
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def format_plans(rows):
    lines = [
        "| Model | Devices | Type | Plan | Memory | Sent | Step | Tokens/s per device | Utilization, at most |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        start = f"| {row['model']} | {row['devices']:,} | {KIND_NAMES[row['kind']]} | "
        if "refused" in row:
            lines.append(start + "none fits | | | | | |")
            continue
        lines.append(
            f"{start}{row['plan']} | {row['memory'] / 1e9:.1f} GB | {row['sent'] / 1e9:.0f} GB | {row['seconds']:.2f} s | "
            f"{row['speed']:,.0f} | {row['utilization']:.0%} |"
        )
    return lines


def format_published():
    """Published speeds as fractions of the planner's bounds."""
    from meshflow.distribute.parallel.named_schedules import resolve_schedule
    from meshflow.distribute.parallel.planner.choices import PlanChoice
    from meshflow.distribute.parallel.planner.costs import CostModel
    from meshflow.distribute.parallel.planner.hardware import Hardware

    rows, hardware = count_rows(8), Hardware.from_kind("h100", 8)
    profiles = [
        make_profile(make_model(n, *MODELS["8 B"][1:]), rows, "mixed_bfloat16") for n in BLOCKS
    ]
    lines = [
        "| Configuration of torchtitan | Tokens/s per GPU | of the bound with stored activations | with recomputation |",
        "| --- | --- | --- | --- |",
    ]
    bounds = []
    for recompute in (None, "layer"):
        choice = PlanChoice(8, zero=3, recompute=recompute)
        found = [CostModel(known, hardware).estimate(choice).seconds for known in profiles]
        parts = extend([[f["compute"], f["exchange"]] for f in found], MODELS["8 B"][0])
        bounds.append([rows * LENGTH / t / 8 for t in (sum(parts), max(parts))])
    for name, speed in PUBLISHED.items():
        shares = " | ".join(f"{speed / serial:.0%}" for serial, _ in bounds)
        lines.append(f"| {name} | {speed:,} | {shares} |")
    serial = " and ".join(f"{a:,.0f}" for a, _ in bounds)
    overlapped = " and ".join(f"{b:,.0f}" for _, b in bounds)
    busy = {n: 1 - resolve_schedule(n, 8, 8).compute_bubble() for n in PUBLISHED_SCHEDULES}
    many = {n: 1 - resolve_schedule(n, 8, 32).compute_bubble() for n in PUBLISHED_SCHEDULES}
    ratio = lambda values: values["interleaved:2"] / values["1f1b"]
    return [
        *lines,
        "",
        f"The bounds for bfloat16 are {serial} tokens/s per GPU; if all communication overlapped with computation, {overlapped}.",
        "",
        f"On 512 H100 with a pipeline over 8 devices, torchtitan publishes 100 tokens/s per GPU for 1F1B and 128 for interleaved "
        f"1F1B, a ratio of {ratio(PUBLISHED_SCHEDULES):.2f}. The schedules here predict {ratio(busy):.2f} for two stages of each "
        f"device with 8 micro-batches, and {ratio(many):.2f} with 32. The published page does not state these numbers.",
    ]


def write_document(numbers):
    text = DOCUMENT.read_text()
    tables = {
        "plans": format_plans(numbers["plans"]),
        "compiled": format_compiled(numbers["compiled"]),
        "published": format_published(),
    }
    for name, lines in tables.items():
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        head, rest = text.split(start)
        text = head + start + "\n" + "\n".join(lines) + "\n\n" + end + rest.split(end)[1]
    DOCUMENT.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", action="store_true", help="use the numbers in scale.json")
    parser.add_argument("--plans", help="for the benchmark's own use")
    parser.add_argument("--compiled", nargs=3, help="for the benchmark's own use")
    options = parser.parse_args()
    import jax

    jax.config.update("jax_platforms", "cpu")
    if options.plans:
        print_plans(options.plans)
    elif options.compiled:
        name, devices, fields = options.compiled
        jax.config.update("jax_num_cpu_devices", int(devices))
        print_compiled(name, int(devices), json.loads(fields))
    else:
        if not options.tables:
            plans = [row for name in MODELS for row in run("--plans", name)]
            cases = [[name, n, json.dumps(fields)] for name, n, fields in CASES]
            compiled = [row for case in cases for row in run("--compiled", *case)]
            NUMBERS.write_text(json.dumps({"plans": plans, "compiled": compiled}, indent=1) + "\n")
        write_document(json.loads(NUMBERS.read_text()))


if __name__ == "__main__":
    main()
