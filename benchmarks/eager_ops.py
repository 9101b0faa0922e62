"""CPU time of frequent eager ops per call, next to TensorFlow's and PyTorch's.

    python benchmarks/eager_ops.py --peers .venv-peers/bin/python [--rounds 3]

The libraries run in one process each, in turns. Prints microseconds per call (all threads), medians
of the rounds, and the ratio to TensorFlow.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import numpy as np

SIZES = {"scalar": [], "small": [4, 8], "medium": [128, 256]}
SECONDS = 0.004


def tensorflow_cases(tf):
    """Return functions without arguments by name."""
    rng = np.random.default_rng(0)
    cases = {}
    for size, shape in SIZES.items():
        x, y = (tf.constant(rng.uniform(0.1, 1, shape).astype("float32")) for _ in range(2))
        rows = rng.uniform(0.1, 1, shape).astype("float32")
        n = tf.constant(rng.integers(1, 9, shape), tf.int32)
        binary = {
            "add": lambda x=x, y=y: x + y,
            "subtract": lambda x=x, y=y: x - y,
            "multiply": lambda x=x, y=y: x * y,
            "divide": lambda x=x, y=y: x / y,
            "power": lambda x=x: x**2,
            "maximum": lambda x=x, y=y: tf.maximum(x, y),
            "less": lambda x=x, y=y: x < y,
            "add integer": lambda n=n: n + 1,
            "exp": lambda x=x: tf.exp(x),
            "sqrt": lambda x=x: tf.sqrt(x),
            "tanh": lambda x=x: tf.tanh(x),
            "relu": lambda x=x: tf.nn.relu(x),
            "sigmoid": lambda x=x: tf.sigmoid(x),
            "abs": lambda x=x: tf.abs(x),
            "negative": lambda x=x: -x,
            "where": lambda x=x, y=y: tf.where(x < 0.5, x, y),
            "clip_by_value": lambda x=x: tf.clip_by_value(x, 0.2, 0.8),
            "cast": lambda x=x: tf.cast(x, tf.int32),
            "cast to bfloat16": lambda x=x: tf.cast(x, tf.bfloat16),
            "zeros_like": lambda x=x: tf.zeros_like(x),
            "numpy": lambda x=x: x.numpy(),
            "constant": lambda a=rows: tf.constant(a),
            "modulo": lambda n=n: n % 3,
        }
        if shape:
            binary |= {
                "reduce_sum": lambda x=x: tf.reduce_sum(x),
                "reduce_mean axis": lambda x=x: tf.reduce_mean(x, axis=-1),
                "reduce_max": lambda x=x: tf.reduce_max(x, axis=0),
                "argmax": lambda x=x: tf.argmax(x, axis=-1),
                "softmax": lambda x=x: tf.nn.softmax(x),
                "matmul": lambda x=x, y=y: tf.matmul(x, y, transpose_b=True),
                "concat": lambda x=x, y=y: tf.concat([x, y], 0),
                "concat axis 1": lambda x=x, y=y: tf.concat([x, y], 1),
                "stack": lambda x=x, y=y: tf.stack([x, y]),
                "reshape": lambda x=x: tf.reshape(x, [-1]),
                "transpose": lambda x=x: tf.transpose(x),
                "expand_dims": lambda x=x: tf.expand_dims(x, 0),
                "gather": lambda x=x: tf.gather(x, [0, 2, 1]),
                "slice": lambda x=x: x[1:3, 2:],
                "row": lambda x=x: x[0],
                "tile": lambda x=x: tf.tile(x, [2, 1]),
                "split": lambda x=x: tf.split(x, 2, axis=0),
                "pad": lambda x=x: tf.pad(x, [[1, 1], [0, 0]]),
                "cumsum": lambda x=x: tf.cumsum(x, axis=1),
                "one_hot": lambda n=n: tf.one_hot(n, 10),
                "broadcast_to": lambda x=x: tf.broadcast_to(x[:1], x.shape),
                "unstack": lambda x=x: tf.unstack(x[:4]),
                "boolean_mask": lambda x=x: tf.boolean_mask(x, x > 0.5),
                "sort": lambda x=x: tf.sort(x),
                "top_k": lambda x=x: tf.math.top_k(x, 2),
            }
        cases |= {f"{name}, {size}": function for name, function in binary.items()}
    words = tf.constant(["the cat", "a dog", "two birds"])
    cases |= {
        "range": lambda: tf.range(10),
        "zeros": lambda: tf.zeros([4, 8]),
        "ones": lambda: tf.ones([128, 256]),
        "fill": lambda: tf.fill([4, 8], 2.0),
        "random.uniform, small": lambda: tf.random.uniform([4, 8]),
        "random.normal, small": lambda: tf.random.normal([4, 8]),
        "random.normal, medium": lambda: tf.random.normal([128, 256]),
        "random.shuffle": lambda: tf.random.shuffle(tf.range(10)),
        "strings.length": lambda: tf.strings.length(words),
        "strings.lower": lambda: tf.strings.lower(words),
        "strings.join": lambda: tf.strings.join([words, words], " "),
        "strings.split": lambda: tf.strings.split(words),
        "strings.to_number": lambda: tf.strings.to_number("3.5"),
        "strings.regex_replace": lambda: tf.strings.regex_replace(words, "a", "b"),
        "string equal": lambda: words == "a dog",
    }
    a = tf.Variable(np.zeros([4, 8], "float32"))
    b = tf.Variable(np.ones([4, 8], "float32"))
    step = tf.function(lambda x: x * 2 + 1)
    x = tf.ones([4, 8])
    step(x)

    def differentiate():
        with tf.GradientTape() as tape:
            z = b * 2 + 1
            z = tf.tanh(z) * z - tf.exp(-z)
            z = tf.reduce_sum(tf.sqrt(z * z + 1.0))
        return tape.gradient(z, b)

    optimizers = tf.keras.optimizers
    sgd, adam = optimizers.SGD(0.1), optimizers.Adam(0.1)
    gradient = tf.ones([4, 8])
    cases |= {
        "Variable.assign": lambda: a.assign(x),
        "Variable.assign_add": lambda: a.assign_add(x),
        "Variable read": lambda: a + 1.0,
        "tf.function": lambda: step(x),
        "GradientTape, 10 ops": differentiate,
        "SGD.apply_gradients": lambda: sgd.apply_gradients([(gradient, a)]),
        "Adam.apply_gradients": lambda: adam.apply_gradients([(gradient, a), (gradient, b)]),
    }
    return cases | more_cases(tf)


def more_cases(tf):
    """Return functions of less frequent ops, layers, metrics and optimizers by name."""
    rng = np.random.default_rng(1)
    x, y = (tf.constant(rng.uniform(0.1, 1, [16, 8]).astype("float32")) for _ in range(2))
    n = tf.constant(rng.integers(0, 8, [16]), tf.int32)
    square = tf.constant(rng.uniform(0.1, 1, [4, 4]).astype("float32") + 4 * np.eye(4, dtype="f"))
    image = tf.constant(rng.uniform(0, 1, [16, 16, 3]).astype("float32"))
    kernel = tf.constant(rng.uniform(0, 1, [3, 3, 3, 4]).astype("float32"))
    large = tf.constant(rng.uniform(0, 1, [512, 512]).astype("float32"))
    doubles = tf.constant(np.arange(12.0).reshape(3, 4))
    words = tf.constant(["a", "bc"])
    v = tf.Variable(np.zeros([16, 8], "float32"))
    layers, metrics = tf.keras.layers, tf.keras.metrics
    dense, norm, drop = layers.Dense(4), layers.LayerNormalization(), layers.Dropout(0.5)
    embed = layers.Embedding(8, 4)
    model = tf.keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(1)])
    model(x)
    mean, accuracy = metrics.Mean(), metrics.SparseCategoricalAccuracy()
    optimizer = tf.keras.optimizers.Adam()
    zeros = [tf.zeros_like(w) for w in model.trainable_variables]

    def differentiate(count):
        with tf.GradientTape() as tape:
            tape.watch(x)
            z = x
            for _ in range(count):
                z = z * 1.5
        return tape.gradient(z, x)

    return {
        "log1p": lambda: tf.math.log1p(x),
        "rsqrt": lambda: tf.math.rsqrt(x),
        "squared_difference": lambda: tf.math.squared_difference(x, y),
        "floordiv": lambda: n // 3,
        "pow": lambda: tf.pow(x, 0.5),
        "minimum with number": lambda: tf.minimum(x, 0.5),
        "reduce_any": lambda: tf.reduce_any(x > 0.5),
        "reduce_std": lambda: tf.math.reduce_std(x, axis=1),
        "reduce_logsumexp": lambda: tf.reduce_logsumexp(x, axis=-1, keepdims=True),
        "segment_sum": lambda: tf.math.unsorted_segment_sum(x, n, 8),
        "l2_normalize": lambda: tf.math.l2_normalize(x, axis=-1),
        "gelu": lambda: tf.nn.gelu(x),
        "leaky_relu": lambda: tf.nn.leaky_relu(x),
        "log_softmax": lambda: tf.nn.log_softmax(x),
        "sparse_softmax_cross_entropy": lambda: tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=n, logits=x
        ),
        "conv2d": lambda: tf.nn.conv2d(image[None], kernel, 1, "SAME"),
        "max_pool2d": lambda: tf.nn.max_pool2d(image[None], 2, 2, "VALID"),
        "embedding_lookup": lambda: tf.nn.embedding_lookup(x, n),
        "moments": lambda: tf.nn.moments(x, axes=[0]),
        "image.resize": lambda: tf.image.resize(image, [8, 8]),
        "flip_left_right": lambda: tf.image.flip_left_right(image),
        "adjust_brightness": lambda: tf.image.adjust_brightness(image, 0.1),
        "rgb_to_grayscale": lambda: tf.image.rgb_to_grayscale(image),
        "linalg.inv": lambda: tf.linalg.inv(square),
        "linalg.norm": lambda: tf.norm(x, axis=1),
        "linalg.diag_part": lambda: tf.linalg.diag_part(square),
        "einsum": lambda: tf.einsum("ij,kj->ik", x, y),
        "tensordot": lambda: tf.tensordot(x, y, axes=[[1], [1]]),
        "slice with step": lambda: x[::2, -1],
        "slice with new axis": lambda: x[:, None, :4],
        "gather_nd": lambda: tf.gather_nd(x, [[0, 1], [2, 3]]),
        "scatter_nd": lambda: tf.scatter_nd([[1], [3]], [1.0, 2.0], [8]),
        "repeat": lambda: tf.repeat(n, 2),
        "reverse": lambda: tf.reverse(x, [1]),
        "squeeze": lambda: tf.squeeze(image[None], 0),
        "roll": lambda: tf.roll(x, 1, 0),
        "linspace": lambda: tf.linspace(0.0, 1.0, 5),
        "shape": lambda: tf.shape(x),
        "eye": lambda: tf.eye(4),
        "numpy, 1 MB": large.numpy,
        "numpy, float64": doubles.numpy,
        "numpy, strings": words.numpy,
        "constant of a list": lambda: tf.constant([1.0, 2.0, 3.0]),
        "constant of lists": lambda: tf.constant([[1, 2], [3, 4]]),
        "constant of a number": lambda: tf.constant(2.0),
        "convert_to_tensor": lambda: tf.convert_to_tensor(x),
        "Variable * number": lambda: v * 2.0,
        "Variable slice": lambda: v[0],
        "Variable.numpy": lambda: v.numpy(),
        "Variable.scatter_nd_update": lambda: v.scatter_nd_update([[1]], x[:1]),
        "GradientTape, 1 op": lambda: differentiate(1),
        "GradientTape, 20 ops": lambda: differentiate(20),
        "Adam.apply_gradients, 4 variables": lambda: optimizer.apply_gradients(
            list(zip(zeros, model.trainable_variables, strict=True))
        ),
        "Dense": lambda: dense(x),
        "LayerNormalization": lambda: norm(x),
        "Dropout, training": lambda: drop(x, training=True),
        "Embedding": lambda: embed(n),
        "Sequential": lambda: model(x),
        "Mean.update_state": lambda: mean.update_state(x),
        "SparseCategoricalAccuracy.update_state": lambda: accuracy.update_state(n, x),
    }


def torch_cases(torch):
    rng = np.random.default_rng(0)
    cases = {}
    for size, shape in SIZES.items():
        x, y = (torch.tensor(rng.uniform(0.1, 1, shape).astype("float32")) for _ in range(2))
        found = {
            "add": lambda x=x, y=y: x + y,
            "multiply": lambda x=x, y=y: x * y,
            "divide": lambda x=x, y=y: x / y,
            "exp": lambda x=x: torch.exp(x),
            "tanh": lambda x=x: torch.tanh(x),
            "relu": lambda x=x: torch.relu(x),
            "where": lambda x=x, y=y: torch.where(x < 0.5, x, y),
            "cast": lambda x=x: x.int(),
        }
        if shape:
            found |= {
                "reduce_sum": lambda x=x: x.sum(),
                "reduce_mean axis": lambda x=x: x.mean(-1),
                "softmax": lambda x=x: torch.softmax(x, -1),
                "matmul": lambda x=x, y=y: x @ y.T,
                "concat": lambda x=x, y=y: torch.cat([x, y], 0),
                "concat axis 1": lambda x=x, y=y: torch.cat([x, y], 1),
                "stack": lambda x=x, y=y: torch.stack([x, y]),
                "reshape": lambda x=x: x.reshape(-1),
                "slice": lambda x=x: x[1:3, 2:],
                "cumsum": lambda x=x: x.cumsum(1),
                "sort": lambda x=x: x.sort(),
            }
        cases |= {f"{name}, {size}": function for name, function in found.items()}
    cases["random.normal, medium"] = lambda: torch.randn(128, 256)
    return cases


def serve(library):
    """Measure the case of each line of the standard input."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    if library == "torch":
        import torch

        cases = torch_cases(torch)
    elif library == "tensorflow":
        import tensorflow as tf

        cases = tensorflow_cases(tf)
    else:
        import meshflow as tf

        cases = tensorflow_cases(tf)
    print(json.dumps(list(cases)), flush=True)
    for line in sys.stdin:
        function = cases.get(line.strip())
        if function is None:
            print("null", flush=True)
            continue
        for _ in range(20):
            function()
        count, spent = 0, 0.0
        start = time.process_time()
        while spent < SECONDS:
            for _ in range(20):
                function()
            count, spent = count + 20, time.process_time() - start
        print(json.dumps(1e6 * spent / count), flush=True)


class Server:
    def __init__(self, python, library):
        self.process = subprocess.Popen(
            [python, __file__, "--serve", library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.names = json.loads(self.process.stdout.readline())

    def measure(self, name):
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="Python of an environment made by peers.sh")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", default="", help="only cases whose names contain this")
    parser.add_argument("--serve", help="for the benchmark's own processes")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    own = Server(sys.executable, "meshflow")
    peers = [Server(options.peers, library) for library in ("tensorflow", "torch")]
    servers = [own, *peers]
    print("| op | meshflow | TensorFlow | torch | ratio |\n| --- | --- | --- | --- | --- |")
    for name in filter(lambda name: options.cases in name, own.names):
        rounds = [[server.measure(name) for server in servers] for _ in range(options.rounds)]
        times = [
            None if column[0] is None else statistics.median(column)
            for column in zip(*rounds, strict=True)
        ]
        shown = ["" if t is None else f"{t:.1f}" for t in times]
        print(f"| {name} | {' | '.join(shown)} | {times[0] / times[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
