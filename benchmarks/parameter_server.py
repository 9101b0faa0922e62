"""Parameter servers: 2 workers and 1 server on this machine, beside TensorFlow's own ParameterServerStrategy.

    python benchmarks/parameter_server.py --peer PYTHON     # an environment with tensorflow and tf_keras

Every library runs the same program in a process of its own, and the processes take turns. Prints medians and appends them
to RESULTS.md.
"""

import argparse
import datetime
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ENGINES = ("ray", "processes", "threads")
SECONDS = 5.0


# ---- the program -----------------------------------------------------------------------------


def cases(tf, coordinator, strategy, wanted):
    """Return the measurements: for each case its unit and a function that measures it once."""
    with strategy.scope():
        make = tf.keras.optimizers.legacy
        found = {}
        if "empty" in wanted:
            found["empty"] = empty(tf, coordinator)
        if "mlp" in wanted:
            found["mlp"] = mlp(tf, coordinator, strategy, make)
        if "large" in wanted:
            found["large"] = large(tf, coordinator, strategy, make)
        if "rows" in wanted:
            found["rows"] = rows(tf, coordinator, strategy, make)
    return found


def empty(tf, coordinator):
    @tf.function
    def closure():
        return tf.constant(1)

    def measure():
        taken = []
        for _ in range(100):
            begun = time.perf_counter()
            coordinator.fetch(coordinator.schedule(closure))
            taken.append(time.perf_counter() - begun)
        return statistics.median(taken) * 1e3

    return measure


def throughput(coordinator, schedule, least=8):
    """Closures per second, scheduled ahead."""

    def measure():
        count = least
        while True:
            begun = time.perf_counter()
            for _ in range(count):
                schedule()
            coordinator.join()
            taken = time.perf_counter() - begun
            if taken > SECONDS / 3:
                return count / taken
            count = int(count * min(4, SECONDS / max(taken, 1e-3)))

    return measure


def mlp(tf, coordinator, strategy, make):
    random = np.random.default_rng(0)
    shapes = [(784, 128), (128,), (128, 10), (10,)]
    w1, b1, w2, b2 = [tf.Variable(random.normal(size=s).astype("float32") / 28) for s in shapes]
    optimizer = make.SGD(0.01)
    x = tf.constant(random.normal(size=(32, 784)).astype("float32"))
    y = tf.constant(random.integers(0, 10, 32))

    def replica(x, y):
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(x @ w1 + b1)
            logits = hidden @ w2 + b2
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
            )
        variables = [w1, b1, w2, b2]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))  # noqa: B905
        return loss

    @tf.function
    def step(x, y):
        return strategy.run(replica, args=(x, y))

    return throughput(coordinator, lambda: coordinator.schedule(step, args=(x, y)))


def large(tf, coordinator, strategy, make):
    v = tf.Variable(np.ones(25_000_000, np.float32))
    optimizer = make.SGD(1e-6)

    def replica():
        value = tf.convert_to_tensor(v)
        optimizer.apply_gradients([(value * 0.5, v)])

    @tf.function
    def step():
        strategy.run(replica)

    return throughput(coordinator, lambda: coordinator.schedule(step), 4)


def rows(tf, coordinator, strategy, make):
    table = tf.Variable(np.ones((1_000_000, 64), np.float32))
    optimizer = make.Adagrad(0.01)
    ids = tf.constant(np.random.default_rng(0).integers(0, 1_000_000, 4096))

    def replica(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(table, ids) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        return loss

    @tf.function
    def step(ids):
        return strategy.run(replica, args=(ids,))

    return throughput(coordinator, lambda: coordinator.schedule(step, args=(ids,)))


# ---- one library in this process ---------------------------------------------------------------


def meshflow_strategy(engine, durable):
    import meshflow as tf

    return tf, tf.distribute.ParameterServerStrategy(
        engine=engine, workers=2, servers=1, durable=durable
    )


def tensorflow_strategy():
    os.environ.update(
        TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="3", GRPC_FAIL_FAST="use_caller"
    )
    ports = []
    for _ in range(4):
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            ports.append(held.getsockname()[1])
    hosts = [f"localhost:{p}" for p in ports]
    spec = {"chief": hosts[:1], "worker": hosts[1:3], "ps": hosts[3:]}
    processes = []
    for job, index in (("worker", 0), ("worker", 1), ("ps", 0)):
        config = json.dumps({"cluster": spec, "task": {"type": job, "index": index}})
        processes.append(
            subprocess.Popen(
                [sys.executable, __file__, "--server"], env={**os.environ, "TF_CONFIG": config}
            )
        )
    config = json.dumps({"cluster": spec, "task": {"type": "chief", "index": 0}})
    os.environ["TF_CONFIG"] = config
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return tf, tf.distribute.ParameterServerStrategy(resolver), processes


def tensorflow_server():
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    tf.distribute.Server(
        resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol="grpc"
    ).join()


def serve_measurements(name, wanted, durable):
    """Measure a case for every line that is read, and print the number."""
    processes = []
    if name == "tensorflow":
        tf, strategy, processes = tensorflow_strategy()
    else:
        tf, strategy = meshflow_strategy(name, durable)
    try:
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        found = cases(tf, coordinator, strategy, wanted)
        for measure in found.values():
            measure()
        print("ready", flush=True)
        for line in sys.stdin:
            print(found[line.strip()](), flush=True)
    finally:
        for process in processes:
            process.kill()
        if not processes:
            strategy.cluster.stop()


# ---- the comparison ----------------------------------------------------------------------------


def begun(python, name, wanted, durable):
    command = [python, __file__, "--measure", name, "--cases", *wanted]
    if durable:
        command.append("--durable")
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while process.stdout.readline().strip() != "ready":
        if process.poll() is not None:
            raise SystemExit(f"{name} has ended: {process.returncode}")
    return process


def asked(process, case):
    process.stdin.write(case + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", help="a Python with tensorflow and tf_keras")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="+", default=["empty", "mlp", "large", "rows"])
    parser.add_argument("--engines", nargs="+", default=["ray", "threads"])
    parser.add_argument("--durable", action="store_true", help="servers write a journal")
    parser.add_argument("--measure")
    parser.add_argument("--server", action="store_true")
    options = parser.parse_args()
    if options.server:
        return tensorflow_server()
    if options.measure:
        return serve_measurements(options.measure, options.cases, options.durable)
    lines = []
    for case in options.cases:
        names = [(sys.executable, e) for e in options.engines]
        if options.peer:
            names.append((options.peer, "tensorflow"))
        running = {name: begun(python, name, [case], options.durable) for python, name in names}
        numbers = {name: [] for name in running}
        for _ in range(options.rounds):
            for name, process in running.items():
                numbers[name].append(asked(process, case))
        for process in running.values():
            process.stdin.close()
            process.wait(60)
        unit = "ms" if case == "empty" else "closures/s"
        medians = {name: statistics.median(found) for name, found in numbers.items()}
        for name, value in medians.items():
            ratio = ""
            if "tensorflow" in medians and name != "tensorflow":
                of_rounds = [
                    a / b for a, b in zip(numbers[name], numbers["tensorflow"], strict=True)
                ]
                ratio = f" ({statistics.median(of_rounds):.2f} times TensorFlow's)"
            lines.append(f"- {case}, {name}: {value:.4g} {unit}{ratio}")
            print(lines[-1], flush=True)
    kept = "with journal" if options.durable else "without journal"
    head = f"\n## Parameter servers ({datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores, shared, "
    head += f"{options.rounds} rounds in turns, {kept})\n\n"
    with open(Path(__file__).with_name("RESULTS.md"), "a") as file:
        file.write(head + "\n".join(lines) + "\n")
    return None


if __name__ == "__main__":
    main()
