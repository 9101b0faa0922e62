"""A training step of the CNN and of a language model in float32 and bfloat16, against the peers.

    .venv/bin/python benchmarks/precision_step.py --peers .venv-peers/bin/python

With `--gpu` the batches fill a GPU, there are more precisions (float32 by TF32), and PyTorch runs compiled, too.

Each program runs in a process of its own; the rounds are interleaved, the numbers are medians.
Prints ratios and appends them to RESULTS.md.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

import jax

HERE = Path(__file__).parent
# Samples in a batch; precisions, of which peers have those with 16 and 32 bits.
CPU = {"cnn": 32, "lm": 16}, ("float32", "bfloat16")
GPU = {"cnn": 320, "lm": 256}, ("float32", "bfloat16", "float16", "float8")


def programs(peers, precision, gpu):
    """Command and environment by name."""
    found = {"Meshflow": ([sys.executable, "step_keras.py", "meshflow"], {})}
    if peers and precision != "float8":
        if gpu:
            found["PyTorch compiled"] = ([peers, "step_torch.py", "compile"], {})
        found |= {
            "PyTorch": ([peers, "step_torch.py", "eager"], {}),
            "Keras on TensorFlow": (
                [peers, "step_keras.py", "keras"],
                {"KERAS_BACKEND": "tensorflow"},
            ),
            "Keras on JAX": ([peers, "step_keras.py", "keras"], {"KERAS_BACKEND": "jax"}),
        }
    return found


def measure(command, environment, model, precision, batch):
    """Milliseconds per step, and the version."""
    done = subprocess.run(
        [*command, model, precision, str(batch)],
        cwd=HERE,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} {model} {precision} failed:\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return found["ms"], found["version"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", help="Python of an environment made by peers.sh")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpu", action="store_true", help="sizes and precisions for a GPU")
    options = parser.parse_args()
    models, precisions = GPU if options.gpu else CPU
    times, versions = {}, {}
    for turn in range(options.rounds):
        for model, batch in models.items():
            for precision in precisions:
                found = programs(options.peers, precision, options.gpu)
                for name, (command, environment) in found.items():
                    ms, versions[name] = measure(command, environment, model, precision, batch)
                    times.setdefault((model, precision, name), []).append(ms)
                    print(f"round {turn + 1} {model} {precision} {name}: {ms:.0f} ms", flush=True)
    median = {key: statistics.median(values) for key, values in times.items()}
    lines = [
        "| model | precision | program | ms per step | Meshflow's share |",
        "|---|---|---|---|---|",
    ]
    for (model, precision, name), ms in median.items():
        share = median[model, precision, "Meshflow"] / ms
        lines.append(f"| {model} | {precision} | {name} | {ms:.0f} | {share:.2f} |")
    for model in models:
        for precision in precisions[1:]:
            own = median[model, precision, "Meshflow"] / median[model, "float32", "Meshflow"]
            lines.append(f"\n{model}: own {precision} step / own float32 step = {own:.2f}")
    print("\n".join(lines))
    names = ", ".join(f"{name} {version}" for name, version in versions.items())
    stamp = (
        f"{datetime.date.today()}, {platform.processor() or platform.machine()}, "
        f"{os.cpu_count()} cores, {jax.devices()[0].device_kind}, JAX {jax.__version__}, {names}, {options.rounds} rounds"
    )
    with open(HERE / "RESULTS.md", "a") as file:
        file.write(f"\n## Step time by precision ({stamp})\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
