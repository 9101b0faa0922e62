"""Steps and predictions of recurrent layers: Meshflow next to PyTorch and TensorFlow.

    bash benchmarks/peers.sh
    .venv/bin/python benchmarks/recurrent_step.py --peers .venv-peers/bin/python --cores 0
    .venv/bin/python benchmarks/recurrent_step.py --quick          # a smoke test with few calls

Each measurement is a new process; rounds of the libraries alternate. Prints the median of the medians of rounds, in
milliseconds. `mixed` trains in bfloat16: `mixed_bfloat16`, or PyTorch's autocast. Programs are compiled, in
TensorFlow without `jit_compile`; PyTorch is eager with fused Adam.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import numpy as np

# Kind, layers, units, batch, steps, features, fraction that dropout drops.
CASES = {
    "lstm": ("LSTM", 2, 64, 32, 60, 64, 0.0),
    "gru": ("GRU", 2, 64, 32, 60, 64, 0.0),
    "dropout": ("LSTM", 2, 64, 32, 60, 64, 0.2),
    "bidirectional": ("Bidirectional", 1, 64, 32, 80, 64, 0.0),
    "wide": ("LSTM", 1, 128, 64, 128, 128, 0.0),
    "one example": ("LSTM", 2, 128, 1, 100, 64, 0.0),
    "1,024 examples": ("LSTM", 1, 64, 1024, 50, 64, 0.0),
}
PEERS = ("torch", "tensorflow")


def make_torch_calls(kind, depth, units, x, y, dropout, is_mixed):
    """Return a training step and a prediction of PyTorch."""
    import torch

    make = torch.nn.GRU if kind == "GRU" else torch.nn.LSTM
    both = kind == "Bidirectional"
    rest = {"batch_first": True, "bidirectional": both, "dropout": dropout}
    recurrent = make(x.shape[-1], units, depth, **rest)
    head = torch.nn.Linear(units * (1 + both), 10)
    model = torch.nn.ModuleList([recurrent, head])
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    x, y = torch.tensor(x), torch.tensor(y)

    def run():
        with torch.autocast("cpu", torch.bfloat16, enabled=is_mixed):
            return head(recurrent(x)[0][:, -1]).float()

    def step():
        model.train()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(run(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    def predict():
        model.eval()
        with torch.no_grad():
            return run().numpy()

    return step, predict


def make_keras_calls(tf, kind, depth, units, x, y, dropout, is_mixed):
    """Return a training step and a prediction of Meshflow or TensorFlow."""
    layers = tf.keras.layers
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16" if is_mixed else "float32")
    make = layers.GRU if kind == "GRU" else layers.LSTM
    model = tf.keras.Sequential([tf.keras.Input(x.shape[1:])])
    for i in range(depth):
        layer = make(units, return_sequences=i < depth - 1, dropout=dropout if i else 0.0)
        model.add(layers.Bidirectional(layer) if kind == "Bidirectional" else layer)
    model.add(layers.Dense(10, dtype="float32"))
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batches = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
    train = model.make_train_function()
    infer, batch = tf.function(lambda a: model(a, training=False)), tf.constant(x)
    return lambda: float(train(batches)["loss"]), lambda: infer(batch).numpy()


def work(library, case, is_mixed, seconds):
    """Print the medians of a library as a JSON list: step and prediction."""
    kind, depth, units, batch, steps, features, dropout = CASES[case]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, steps, features)).astype("float32")
    y = rng.integers(0, 10, batch)
    arguments = (kind, depth, units, x, y, dropout, is_mixed)
    if library == "torch":
        calls = make_torch_calls(*arguments)
    elif library == "tensorflow":
        import tensorflow

        calls = make_keras_calls(tensorflow, *arguments)
    else:
        import meshflow

        calls = make_keras_calls(meshflow, *arguments)
    medians = []
    for call in calls:
        for _ in range(5):
            call()
        times, end = [], time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        medians.append(1e3 * statistics.median(times))
    print(json.dumps(medians))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="Python of an environment with PyTorch and TensorFlow")
    parser.add_argument("--cores", default="", help="processors to run on, for example 0 or 0,1")
    parser.add_argument("--cases", default=",".join(c.replace(",", "") for c in CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*json.loads(options.work))
        return
    cores = f"taskset -c {options.cores}".split() if options.cores else []
    libraries = ("meshflow", *(PEERS if options.peers else ()))
    # Steps of long runs are compiled.
    environment = dict(os.environ, MESHFLOW_TIER="compile", TF_USE_LEGACY_KERAS="1")
    if options.cores:
        environment["NPROC"] = str(len(options.cores.split(",")))
    print("| case | " + " | ".join(f"{n} step, predict" for n in libraries) + " |")
    print("|---|" + "---|" * len(libraries))
    chosen = options.cases.split(",")
    for case in [c for c in CASES if c.replace(",", "") in chosen]:
        for is_mixed in (False, True):
            found = {library: [] for library in libraries}
            for _ in range(1 if options.quick else options.rounds):
                for library in libraries:
                    task = json.dumps([library, case, is_mixed, 0.1 if options.quick else 1.5])
                    python = options.peers if library in PEERS else sys.executable
                    command = [*cores, python, __file__, "--work", task]
                    output = subprocess.check_output(command, env=environment, text=True)
                    found[library].append(json.loads(output.splitlines()[-1]))
            cells = [
                ", ".join(f"{statistics.median(t):.2f}" for t in zip(*r, strict=True))
                for r in found.values()
            ]
            print(
                f"| {case}{', mixed' if is_mixed else ''} | " + " | ".join(cells) + " |", flush=True
            )


if __name__ == "__main__":
    main()
