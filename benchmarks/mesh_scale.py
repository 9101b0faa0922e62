"""Compile training steps for hundreds of devices without running them: compile time, bytes and traffic per device.

The models live on one device; their steps are compiled for a mesh of virtual CPU devices with the layouts that a
LayoutMap would give. Prints a table and appends it to RESULTS.md. `parallel_bytes.py` does the same for the options of
`MeshStrategy`.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import jax
import models
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshflow as tf
from meshflow.placement.collectives import parse_collectives

COUNTS = (8, 256, 1024)
# Examples for each device along the mesh dimension "batch".
BATCH = 8
TENSOR_PARALLEL = {
    r"embedding.*/embeddings": P("model"),
    r"(query|key|value)/kernel": P(None, "model"),
    r"(query|key|value)/bias": P("model"),
    r"attention_output/kernel": P("model"),
    r"dense(_[246])?/kernel": P(None, "model"),
    r"dense(_[246])?/bias": P("model"),
    r"dense_[1357]/kernel": P("model"),
    r"dense_8/kernel": P(None, "model"),
    r"dense_8/bias": P("model"),
}
CASES = {
    "CNN, data": ("cnn", lambda n: {"batch": n}, {}),
    "CNN, data x height": ("cnn", lambda n: {"batch": n // 4, "height": 4}, {}),
    "language model, data": ("lm", lambda n: {"batch": n}, {}),
    "language model, data x model": (
        "lm",
        lambda n: {"batch": n // 4, "model": 4},
        TENSOR_PARALLEL,
    ),
}


def traced_step(name, examples):
    """A traced training step on a global batch, and the batch's shapes."""
    tf.keras.utils.set_random_seed(0)
    if name == "cnn":
        model = models.cnn(tf.keras)
        loss = tf.keras.losses.SparseCategoricalCrossentropy()
        batch = (
            np.broadcast_to(np.float32(0), (examples, 32, 32, 3)),
            np.broadcast_to(np.int32(0), (examples, 1)),
        )
    else:
        model = models.language_model(tf.keras)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        batch = (np.broadcast_to(np.int32(0), (examples, models.LENGTH)),) * 2
    model.compile("adam", loss)
    step = model._get_step("train")
    # Makes the optimizer's slots; large batches only need to be traced.
    return step._trace(batch).traced, batch, model.count_params()


def compiled_for(traced, batch, mesh, layouts):
    """The step compiled for a mesh, with variables split by name."""

    def place(variable):
        name = getattr(variable, "_shared_name", "")
        spec = next((s for key, s in layouts.items() if re.search(key, name)), P())
        return NamedSharding(mesh, spec if len(spec) <= len(variable.shape) else P())

    rows = P("batch", "height") if "height" in mesh.shape else P("batch")
    arrays = [NamedSharding(mesh, P(*rows[: 2 if a.ndim == 4 else 1])) for a in batch]
    captured = [place(c) for c in traced.captures]
    written = {id(v): place(v) for v in traced.writes}
    outputs = [None] * traced.count + [written[id(v)] for v in traced.writes]
    offset = len(batch)
    donated = [offset + i for i, c in enumerate(traced.captures) if id(c) in written]
    step = jax.jit(
        jaxpr_as_fun(traced.closed),
        in_shardings=[*arrays, *captured],
        out_shardings=outputs,
        donate_argnums=donated,
    )
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in traced.closed.in_avals]
    start = time.perf_counter()
    lowered = step.lower(*shapes)
    middle = time.perf_counter()
    compiled = lowered.compile()
    return compiled, middle - start, time.perf_counter() - middle


def measure(case, count):
    """One row of the table, in a process that has this many devices."""
    name, sizes, layouts = CASES[case]
    mesh = Mesh(np.array(jax.devices()).reshape(list(sizes(count).values())), list(sizes(count)))
    traced, batch, parameters = traced_step(name, BATCH * mesh.shape["batch"])
    compiled, lowering, compiling = compiled_for(traced, batch, mesh, layouts)
    memory = compiled.memory_analysis()
    found = parse_collectives(compiled.as_text(), dict(mesh.shape))
    return {
        "case": case,
        "devices": count,
        "parameters": parameters,
        "lowering": lowering,
        "compiling": compiling,
        "arguments": memory.argument_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "collectives": sum(c.times for c in found),
        "sent": sum(c.times * c.sent for c in found),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, nargs="*", default=COUNTS)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--one", nargs=2, help="for the benchmark's own use")
    options = parser.parse_args()
    if options.one:
        case, count = options.one[0], int(options.one[1])
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)
        print(json.dumps(measure(case, count)))
        return
    lines = [
        "| step | devices | lower, s | compile, s | weights and batch, MB/device | temporaries, MB/device | "
        "collectives | sent, MB/device |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case in options.cases:
        for count in options.devices:
            done = subprocess.run(
                [sys.executable, __file__, "--one", case, str(count)],
                capture_output=True,
                text=True,
                env={**os.environ, "MESHFLOW_CACHE_DIR": ""},
            )
            if done.returncode:
                raise SystemExit(done.stderr)
            row = json.loads(done.stdout.splitlines()[-1])
            mega = {k: f"{row[k] / 1e6:.1f}" for k in ("arguments", "temporaries", "sent")}
            lines.append(
                f"| {case} | {count} | {row['lowering']:.1f} | {row['compiling']:.1f} | {mega['arguments']} | "
                f"{mega['temporaries']} | {row['collectives']} | {mega['sent']} |"
            )
            print(lines[-1], flush=True)
    stamp = f"{datetime.date.today()}, {os.cpu_count()} cores, JAX {jax.__version__}"
    with open(Path(__file__).with_name("RESULTS.md"), "a") as file:
        file.write(
            f"\n## Steps compiled for many devices ({stamp})\n{BATCH} examples for each device along the mesh "
            'dimension "batch", Adam; nothing is run.\n\n' + "\n".join(lines) + "\n"
        )


if __name__ == "__main__":
    main()
