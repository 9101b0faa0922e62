"""Steps and predictions on one and two cores, in float32 and bfloat16: Meshflow next to PyTorch.

    bash benchmarks/peers.sh
    .venv/bin/python benchmarks/cores.py --peers .venv-peers/bin/python
    .venv/bin/python benchmarks/cores.py --quick          # a smoke test with tiny sizes

Each measurement is a process of its own, which waits when its programs are compiled; then the processes of a case take turns.
Prints the medians of rounds in milliseconds, and the time on one core divided by that on all.
PyTorch uses channels_last, fused Adam and, for bfloat16, autocast.
"""

import argparse
import contextlib
import fcntl
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
CASES = ("audio", "wavenet", "mobilenet", "resnet", "lstm", "mnist", "mlp", "cnn")
ROUND_SECONDS = 0.4


def make_wavenet(tf, tiny):
    """Gated dilated causal convolutions with skip connections."""
    layers, width = tf.keras.layers, 8 if tiny else 32
    length, batch = (64, 4) if tiny else (1024, 8)
    inputs = tf.keras.Input((length, 1))
    x, skips = layers.Conv1D(width, 1)(inputs), []
    for rate in (1, 2) if tiny else (1, 2, 4, 8, 16, 32, 64, 128) * 2:
        convolve = lambda activation, x=x, rate=rate: layers.Conv1D(
            width, 2, padding="causal", dilation_rate=rate, activation=activation
        )(x)
        gated = layers.Multiply()([convolve("tanh"), convolve("sigmoid")])
        skips.append(layers.Conv1D(width, 1)(gated))
        x = layers.Add()([x, skips[-1]])
    x = layers.ReLU()(layers.Add()(skips))
    outputs = layers.Conv1D(64, 1)(layers.Conv1D(width, 1, activation="relu")(x))
    return tf.keras.Model(inputs, outputs), *make_waves(length, batch)


def make_waves(length, batch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, length, 1)).astype("float32")
    return x, rng.integers(0, 64, (batch, length))


def make_keras_calls(name, dtype, tiny):
    """Return a training step and a prediction of Meshflow."""
    import kinds_models
    import models

    import meshflow as tf

    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16" if dtype == "bfloat16" else dtype)
    if name == "wavenet":
        model, x, y = make_wavenet(tf, tiny)
    elif name == "cnn":
        model = models.cnn(tf.keras, 16 if tiny else 1)
        x, y = kinds_models.make_images(4 if tiny else 32, 32)
    else:
        task = kinds_models.KINDS[name](tf, tiny)
        model, x, y = task.model, task.x[: task.batch], task.y[: task.batch]
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=name != "cnn")
    model.compile("adam", loss)
    batches = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
    train = model.make_train_function()
    infer, batch = tf.function(lambda a: model(a, training=False)), tf.constant(x)
    return lambda: float(train(batches)["loss"]), lambda: infer(batch).numpy()


def make_torch_calls(name, dtype, tiny, is_compiled):
    """Return a training step and a prediction of PyTorch."""
    import kinds_torch
    import step_torch
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.set_num_threads(len(os.sched_getaffinity(0)))

    class Wavenet(nn.Module):
        def __init__(self, width, rates):
            super().__init__()
            self.rates, self.first = rates, nn.Conv1d(1, width, 1)
            make = lambda size, rate: nn.ModuleList(
                [nn.Conv1d(width, width, size, dilation=rate if size > 1 else 1) for rate in rates]
            )
            self.filters, self.gates, self.outs = (make(size, rates) for size in (2, 2, 1))
            self.last = nn.ModuleList([nn.Conv1d(width, width, 1), nn.Conv1d(width, 64, 1)])

        def forward(self, x):
            x, total = self.first(x), 0
            parts = zip(self.rates, self.filters, self.gates, self.outs, strict=True)
            for rate, convolve, gate, out in parts:
                padded = F.pad(x, (rate, 0))
                skip = out(torch.tanh(convolve(padded)) * torch.sigmoid(gate(padded)))
                x, total = x + skip, total + skip
            return self.last[1](F.relu(self.last[0](F.relu(total))))

    if name == "wavenet":
        x, y = map(torch.from_numpy, make_waves(*((64, 4) if tiny else (1024, 8))))
        x = x.transpose(1, 2).contiguous()
        model = Wavenet(8 if tiny else 32, (1, 2) if tiny else (1, 2, 4, 8, 16, 32, 64, 128) * 2)
    elif name == "cnn":
        x, y = torch.rand(4 if tiny else 32, 3, 32, 32), torch.randint(0, 10, (4 if tiny else 32,))
        model = step_torch.cnn()
    else:
        model, x, y, size = getattr(kinds_torch, name)(tiny)
        x, y = x[:size], y[:size]
    if x.ndim == 4:
        model = model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    forward = torch.compile(model) if is_compiled else model
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    low = lambda: (
        torch.autocast("cpu", torch.bfloat16) if dtype == "bfloat16" else contextlib.nullcontext()
    )

    def step():
        model.train()
        optimizer.zero_grad()
        with low():
            out = forward(x)
        loss = F.cross_entropy(out.float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    def predict():
        model.eval()
        with torch.no_grad(), low():
            return forward(x).float().numpy()

    return step, predict


def work(column, name, dtype, tiny):
    """Warm up; then print the medians of a step and a prediction, once for each line of the input."""
    if column.startswith("torch"):
        calls = make_torch_calls(name, dtype, tiny, column.endswith("compile"))
    else:
        calls = make_keras_calls(name, dtype, tiny)
    # Eager steps need no compilation, and on a busy machine their threads wait for each other.
    for call in calls * (4 if column != "torch" else 0):
        call()
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        medians = []
        for call in calls:
            call(), call()
            times, end = [], time.perf_counter() + ROUND_SECONDS / 2
            while not times or time.perf_counter() < end:
                start = time.perf_counter()
                call()
                times.append(time.perf_counter() - start)
            medians.append(1e3 * statistics.median(times))
        print(json.dumps(medians), flush=True)


class Worker:
    """A process that measures one case on some cores."""

    def __init__(self, options, column, cores, name, dtype):
        environment = dict(os.environ, MESHFLOW_TIER="compile", NPROC=str(cores))
        environment["OMP_NUM_THREADS"] = str(cores)
        python = options.peers if column.startswith("torch") else sys.executable
        if column.startswith("base"):
            environment["PYTHONPATH"] = os.path.join(options.base, "src")
        task = json.dumps([column, name, dtype, options.quick])
        command = ["taskset", "-c", ",".join(map(str, range(cores))), python, __file__]
        self._process = subprocess.Popen(
            [*command, "--work", task],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def read(self):
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    def measure(self, policy):
        """Return the medians of a round, or None if the process failed."""
        for thread in os.listdir(f"/proc/{self._process.pid}/task") if policy is not None else ():
            with contextlib.suppress(ProcessLookupError):
                urgency = os.sched_param(5 if policy == os.SCHED_RR else 0)
                os.sched_setscheduler(int(thread), policy, urgency)
                os.setpriority(os.PRIO_PROCESS, int(thread), -20)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return self.read()

    def close(self):
        self._process.kill()
        self._process.wait()


def measure_case(options, columns, name, dtype):
    """Return the medians of rounds by column and number of cores."""
    keys = [(column, cores) for column in columns for cores in options.cores]
    # On a busy machine, ordinary threads wake late and real-time threads hinder those that wait actively.
    policies = (os.SCHED_RR, os.SCHED_OTHER) if options.lock else (None,)
    workers = {}
    try:
        for key in keys:
            workers[key] = Worker(options, *key, name, dtype)
        for worker in workers.values():
            worker.read()
        found = {key: [] for key in keys}
        with contextlib.ExitStack() as stack:
            if options.lock:
                fcntl.flock(stack.enter_context(open(options.lock, "w")), fcntl.LOCK_EX)
            for _ in range(1 if options.quick else options.rounds):
                for key, worker in workers.items():
                    found[key].append([worker.measure(policy) for policy in policies])
    finally:
        for worker in workers.values():
            worker.close()
    return {
        key: None
        if any(None in turn for turn in rounds)
        else np.median(rounds, axis=0).min(0).tolist()
        for key, rounds in found.items()
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", help="Python of an environment with PyTorch")
    parser.add_argument("--base", help="another checkout of Meshflow")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--cores", default="1,2", type=lambda t: [int(n) for n in t.split(",")])
    parser.add_argument("--columns", default="meshflow,base,torch,torch compile")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lock", help="file to lock during rounds at the highest priority")
    parser.add_argument("--quick", action="store_true", help="tiny sizes and one round")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*json.loads(options.work))
        return
    columns = [
        c
        for c in options.columns.split(",")
        if (options.peers or "torch" not in c) and (options.base or c != "base")
    ]
    print(
        "| case | " + " | ".join(f"{c}: {k}" for c in columns for k in ("step", "predict")) + " |"
    )
    print("|---" * (1 + 2 * len(columns)) + "|")
    for name in options.cases.split(","):
        for dtype in options.dtypes.split(","):
            found = measure_case(options, columns, name, dtype)
            cells = []
            for column in columns:
                for kind in range(2):
                    times = [found[column, cores] for cores in options.cores]
                    if None in times:
                        cells.append("-")
                        continue
                    text = " -> ".join(f"{t[kind]:.3g}" for t in times)
                    cells.append(f"{text} ({times[0][kind] / times[-1][kind]:.2f})")
            print(f"| {name}, {dtype} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
