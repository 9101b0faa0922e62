"""Saved models beside TensorFlow's: loading, calls by LiteRT and ONNX Runtime, and requests served in a second.

    python benchmarks/deployment.py [--peer .venv-peers/bin/python] [--rounds 7]

Two models, an MLP and a CNN, are saved once by Meshflow; TensorFlow loads the same folders. Each round runs Meshflow and
TensorFlow in turn, in processes that stay; medians are printed and go to RESULTS.md. TensorFlow Serving is a program of
its own that is not compared: beside `meshflow serve` stands a plain loop of Python's http.server around TensorFlow's call,
which takes one request after the other.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import numpy as np

import meshflow as tf

RESULTS = pathlib.Path(__file__).with_name("RESULTS.md")
ROWS = {"mlp": (64,), "cnn": (16, 16, 3)}
SECONDS, CLIENTS = 3.0, 8

# Reads "task<TAB>path" and answers with seconds, in either program.
WORK = """
import json, sys, threading, time
import numpy as np
import {module} as tf

shapes = {shapes}

def timed(call, times):
    call()
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times

def signature(path):
    loaded = tf.saved_model.load(path)
    run = loaded.signatures["serving_default"]
    (name,) = run.structured_input_signature[1]
    return loaded, lambda x: next(iter(run(**{{name: tf.constant(x)}}).values())).numpy()

def load(path, x):
    start = time.perf_counter()
    tf.saved_model.load(path)
    return time.perf_counter() - start

def first(path, x):
    _, run = signature(path)
    start = time.perf_counter()
    run(x)
    return time.perf_counter() - start

def call(path, x):
    _, run = signature(path)
    return timed(lambda: run(x), 200)

def litert(path, x):
    interpreter = tf.lite.Interpreter(model_path=path + ".tflite")
    run = interpreter.get_signature_runner()
    (name,) = run.get_input_details()
    return timed(lambda: run(**{{name: x}}), 200)

def onnx(path, x):
    import onnxruntime
    session = onnxruntime.InferenceSession(path + ".onnx", providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    return timed(lambda: session.run(None, {{given.name: x}}), 200)

def serve(path, x):
    import http.server
    loaded, run = signature(path)
    run(x)
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        def do_POST(self):
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            rows = run(np.array(content["instances"], "float32"))
            body = json.dumps({{"predictions": rows.tolist()}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        def log_message(self, *_):
            pass
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port

print("ready", flush=True)
for line in sys.stdin:
    task, name, path, rows = line.rstrip().split("\\t")
    x = np.random.default_rng(0).normal(size=(int(rows), *shapes[name])).astype("float32")
    print(json.dumps(globals()[task](path, x)), flush=True)
"""


def begun(python, module):
    """A process that executes commands from its input."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1"}
    if module == "tensorflow":
        environment.pop("PYTHONPATH", None)
    process = subprocess.Popen(
        [python, "-c", WORK.format(module=module, shapes=ROWS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def asked(process, task, name, path, rows):
    """Return the answer of a process."""
    process.stdin.write(f"{task}\t{name}\t{path}\t{rows}\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def models(folder):
    """Both models, saved as folders, for LiteRT and for ONNX Runtime."""
    layers = tf.keras.layers
    mlp = [layers.Dense(256, "relu"), layers.Dense(256, "relu"), layers.Dense(10)]
    cnn = [
        *(layers.Conv2D(32, 3, padding="same", activation="relu"), layers.BatchNormalization()),
        *(layers.MaxPooling2D(), layers.Conv2D(64, 3, activation="relu")),
        *(layers.GlobalAveragePooling2D(), layers.Dense(10)),
    ]
    for name, own in (("mlp", mlp), ("cnn", cnn)):
        model = tf.keras.Sequential([tf.keras.Input(ROWS[name]), *own])
        path = f"{folder}/{name}"
        model.save(path, save_format="tf")
        pathlib.Path(f"{path}.tflite").write_bytes(
            tf.lite.TFLiteConverter.from_keras_model(model).convert()
        )
        model.export(f"{path}.onnx", format="onnx")


def requests_in_a_second(address, name):
    """How many requests of one row eight clients get answered."""
    rows = np.random.default_rng(0).normal(size=(1, *ROWS[name]))
    body, stop, counts = json.dumps({"instances": rows.tolist()}).encode(), [False], [0] * CLIENTS

    def client(i):
        while not stop[0]:
            with urllib.request.urlopen(address, body, timeout=60) as answer:
                answer.read()
            counts[i] += 1

    threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(SECONDS)
    stop[0] = True
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - start)


def served(folder, name, peer, rounds):
    """Requests in a second of `meshflow serve`, and of a loop around TensorFlow."""
    command = [
        sys.executable,
        "-m",
        "meshflow",
        "serve",
        f"{folder}/{name}",
        "--name",
        name,
        "--port",
        "0",
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        ours = server.stdout.readline().split(" at ")[1].strip() + ":predict"
        theirs = f"http://127.0.0.1:{asked(peer, 'serve', name, f'{folder}/{name}', 1)}/"
        found = [
            (requests_in_a_second(ours, name), requests_in_a_second(theirs, name))
            for _ in range(rounds)
        ]
    finally:
        server.terminate()
        server.wait()
    return [statistics.median(side) for side in zip(*found, strict=True)]


TASKS = (
    ("load", 1, "SavedModel loaded", "TensorFlow"),
    ("first", 1, "first call of its signature", "TensorFlow"),
    ("call", 1, "call of its signature, 1 row", "TensorFlow"),
    ("call", 32, "call of its signature, 32 rows", "TensorFlow"),
    ("litert", 1, "LiteRT, 1 row", "TensorFlow's own call"),
    ("litert", 32, "LiteRT, 32 rows", "TensorFlow's own call"),
    ("onnx", 1, "ONNX Runtime, 1 row", "TensorFlow's own call"),
    ("onnx", 32, "ONNX Runtime, 32 rows", "TensorFlow's own call"),
)


def measured(peer_python, rounds):
    """Lines of results."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        models(folder)
        ours, peer = begun(sys.executable, "meshflow"), begun(peer_python, "tensorflow")
        try:
            for name in ROWS:
                for task, rows, title, beside in TASKS:
                    own = lambda p, t, n=name, r=rows: asked(p, t, n, f"{folder}/{n}", r)
                    # TensorFlow runs its own call instead of the other runtimes.
                    theirs = "call" if task in ("litert", "onnx") else task
                    pairs = [(own(ours, task), own(peer, theirs)) for _ in range(rounds)]
                    a, b = (1e3 * statistics.median(side) for side in zip(*pairs, strict=True))
                    lines.append(
                        f"- {name}, {title}: {a:.3f} ms, {beside} {b:.3f} ms ({a / b:.2f} times)"
                    )
                a, b = served(folder, name, peer, max(1, rounds // 2))
                lines.append(
                    f"- {name}, {CLIENTS} clients, requests of 1 row: {a:.0f} a second, a plain loop around TensorFlow "
                    f"{b:.0f} ({a / b:.2f} times)"
                )
        finally:
            for process in (ours, peer):
                process.kill()
                process.wait()
    return lines


def main():
    """Measures, prints, appends."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peer", default=".venv-peers/bin/python")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--machine", default="this machine")
    options = parser.parse_args()
    lines = measured(options.peer, options.rounds)
    print("\n".join(lines))
    with RESULTS.open("a") as file:
        file.write(
            f"\n## Deployed models ({datetime.date.today()}, {options.machine})\n\n`benchmarks/deployment.py` beside TensorFlow, "
            f"in turns, medians of {options.rounds} rounds.\n\n" + "\n".join(lines) + "\n"
        )


if __name__ == "__main__":
    main()
