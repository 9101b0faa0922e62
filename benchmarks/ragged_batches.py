"""Measure ragged, sparse and graph batches of varying sizes, with Meshflow or another Python's TensorFlow.

Usage: `python benchmarks/ragged_batches.py [meshflow|tensorflow]`. It prints CPU seconds, compiled programs and a loss.
`python benchmarks/ragged_batches.py compare PYTHON` runs both in turn, with the given Python for TensorFlow, three
times (or as often as the environment variable ROUNDS says), and prints the medians and the ratio of each row. `models` at the end of both commands measures
the models of tests/reference/composite_model_cases.py instead.
"""

import importlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


def compare(python, mode, rounds):
    """Print the medians of Meshflow and TensorFlow, and their ratio, for each row."""
    rows = {}
    for _ in range(rounds):
        for executable, library in ((sys.executable, "meshflow"), (python, "tensorflow")):
            command = [executable, __file__, library, *mode]
            printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            for row, seconds, rest in re.findall(r"(.*): ([0-9.]+) CPU s(.*)", printed):
                rows.setdefault(row, {}).setdefault(library, []).append((float(seconds), rest))
    for row, results in rows.items():
        own, peer = (
            statistics.median(s for s, _ in results[k]) for k in ("meshflow", "tensorflow")
        )
        notes = {library: values[-1][1].strip(", ") for library, values in results.items()}
        print(f"{row}: {own:.3f}, {peer:.3f} CPU s, ratio {own / peer:.2f}; {notes}")


if sys.argv[1:2] == ["compare"]:
    compare(sys.argv[2], sys.argv[3:], int(os.environ.get("ROUNDS", "3")))
    sys.exit()
tf = importlib.import_module(sys.argv[1] if len(sys.argv) > 1 else "meshflow")
programs = []
if tf.__name__ == "meshflow":
    import jax

    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: (
            programs.append(name) if name.endswith("backend_compile_duration") else None
        )
    )
if sys.argv[2:] == ["models"]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests/reference"))
    from composite_model_cases import CASES

    for name, run in CASES.items():
        if name == "linear_on_matrix":  # TensorFlow's environment lacks SciPy.
            continue
        programs.clear()
        start = time.process_time()
        losses = np.ravel(run(tf)[0])
        seconds = time.process_time() - start
        print(f"{name}: {seconds:.3f} CPU s, {len(programs)} programs, loss {losses[-1]:.6f}")
    sys.exit()
random = np.random.default_rng(0)
table = tf.Variable(random.standard_normal((1000, 16)).astype(np.float32) / 10)
kernel = tf.Variable(random.standard_normal((16, 1)).astype(np.float32))


def train(ids, targets):
    with tf.GradientTape() as tape:
        hidden = tf.nn.relu(tf.nn.embedding_lookup(table, ids) * 2.0 - 0.5)
        counts = tf.cast(tf.maximum(ids.row_lengths(), 1)[:, None], tf.float32)
        loss = tf.reduce_mean((tf.reduce_sum(hidden, 1) / counts @ kernel - targets) ** 2)
    rows, gradient = tape.gradient(loss, [table, kernel])
    table.scatter_sub(tf.IndexedSlices(0.1 * rows.values, rows.indices))
    kernel.assign_sub(0.1 * gradient)
    return loss


def rearrange(ids, targets):
    masked = tf.ragged.boolean_mask(ids, ids > 500)
    return ids.to_tensor(), tf.concat([ids, ids], 1), masked, tf.gather(ids, [1, 0, 2]), ids[:, :5]


def recommend(ids, weights, profile, targets):
    """Train on sparse profiles and on weighted means of the rows of the items in each row."""
    with tf.GradientTape() as tape:
        mean = tf.nn.safe_embedding_lookup_sparse(table, ids, weights)
        hidden = tf.nn.relu(mean + tf.sparse.sparse_dense_matmul(profile, projection))
        loss = tf.reduce_mean((hidden @ kernel - targets) ** 2)
    rows, *gradients = tape.gradient(loss, [table, projection, kernel])
    table.scatter_sub(tf.IndexedSlices(0.1 * rows.values, rows.indices))
    for variable, gradient in zip((projection, kernel), gradients, strict=True):
        variable.assign_sub(0.1 * gradient)
    return loss


def rearrange_sparse(ids, weights, profile, targets):
    large = tf.sparse.retain(profile, profile.values > 0.5)
    filled, empty = tf.sparse.fill_empty_rows(large, 1.0)
    total = tf.sparse.add(profile, filled)
    halves = tf.sparse.split(total, 2, axis=1)
    return (
        tf.sparse.reduce_sum(total, 1),
        tf.sparse.concat(0, halves),
        empty,
        tf.sparse.transpose(total),
    )


class Graph(tf.experimental.BatchableExtensionType):
    """Graphs with different numbers of nodes and edges."""

    nodes: tf.RaggedTensor
    senders: tf.RaggedTensor
    receivers: tf.RaggedTensor


def train_graphs(graph, targets):
    """Add the features of the senders of edges to their receivers, and train on means of the nodes."""
    offsets = tf.gather(graph.nodes.row_starts(), graph.senders.value_rowids())
    with tf.GradientTape() as tape:
        hidden = tf.tanh(graph.nodes.flat_values @ projection[:8])
        sent = tf.gather(hidden, graph.senders.flat_values + offsets)
        receivers = graph.receivers.flat_values + offsets
        hidden += tf.math.unsorted_segment_sum(sent, receivers, tf.shape(hidden)[0])
        mean = tf.reduce_mean(graph.nodes.with_flat_values(hidden), 1)
        loss = tf.reduce_mean((mean @ kernel - targets) ** 2)
    for variable, gradient in zip(
        (projection, kernel), tape.gradient(loss, [projection, kernel]), strict=True
    ):
        variable.assign_sub(0.001 * gradient)
    return loss


def make_batch():
    lengths = random.integers(0, 60, size=32)
    ids = random.integers(0, 1000, size=lengths.sum()).astype(np.int32)
    targets = tf.constant(random.random((32, 1)).astype(np.float32))
    return tf.RaggedTensor.from_row_lengths(ids, lengths), targets


def make_sparse_batch():
    count = int(random.integers(20, 40))
    lengths = random.integers(0, 12, size=count)
    indices = np.stack(
        [np.repeat(np.arange(count), lengths), np.concatenate([np.arange(n) for n in lengths])], 1
    )
    ids = tf.SparseTensor(indices, random.integers(0, 1000, len(indices)), [count, 12])
    weights = ids.with_values(random.random(len(indices)).astype(np.float32))
    profile = random.random((count, 64)) * (random.random((count, 64)) > 0.9)
    targets = tf.constant(random.random((count, 1)).astype(np.float32))
    return ids, weights, tf.sparse.from_dense(profile.astype(np.float32)), targets


def make_graphs(count=1280):
    num_nodes, num_edges = random.integers(1, 12, count), random.integers(1, 20, count)
    ends = [random.integers(0, np.repeat(num_nodes, num_edges)) for _ in range(2)]
    nodes = random.standard_normal((num_nodes.sum(), 8)).astype(np.float32)
    graphs = Graph(
        tf.RaggedTensor.from_row_lengths(nodes, num_nodes),
        *[tf.RaggedTensor.from_row_lengths(end, num_edges) for end in ends],
    )
    targets = random.random((count, 1)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((graphs, targets)).batch(32)


projection = tf.Variable(random.standard_normal((64, 16)).astype(np.float32) / 10)
batches = [make_batch() for _ in range(40)]
sparse_batches = [make_sparse_batch() for _ in range(40)]
start = time.process_time()
graph_batches = list(make_graphs())
print(f"batch graphs in a dataset: {time.process_time() - start:.4f} CPU s")
signature = [tf.RaggedTensorSpec([None, None], tf.int32), tf.TensorSpec([None, 1])]
sparse_signature = [
    tf.SparseTensorSpec([None, 12], tf.int64),
    tf.SparseTensorSpec([None, 12]),
    tf.SparseTensorSpec([None, 64]),
    tf.TensorSpec([None, 1]),
]
ends_spec = tf.RaggedTensorSpec([None, None], tf.int64, 1)
nodes_spec = tf.RaggedTensorSpec([None, None, 8], tf.float32, 1)
graph_signature = [Graph.Spec(nodes_spec, ends_spec, ends_spec), tf.TensorSpec([None, 1])]
steps = {
    "train": (train, signature, batches),
    "rearrange": (rearrange, signature, batches),
    "train on sparse features": (recommend, sparse_signature, sparse_batches),
    "rearrange sparse tensors": (rearrange_sparse, sparse_signature, sparse_batches),
    "train on graphs": (train_graphs, graph_signature, graph_batches),
}


class Scorer(tf.Module):
    """Saved functions with ragged arguments, and a signature with results of unknown sizes."""

    def __init__(self):
        self.table, self.kernel = tf.Variable(table), tf.Variable(kernel)

    @tf.function(input_signature=signature)
    def train(self, ids, targets):
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(tf.nn.embedding_lookup(self.table, ids) * 2.0 - 0.5)
            counts = tf.cast(tf.maximum(ids.row_lengths(), 1)[:, None], tf.float32)
            loss = tf.reduce_mean((tf.reduce_sum(hidden, 1) / counts @ self.kernel - targets) ** 2)
        rows, gradient = tape.gradient(loss, [self.table, self.kernel])
        self.table.scatter_sub(tf.IndexedSlices(0.1 * rows.values, rows.indices))
        self.kernel.assign_sub(0.1 * gradient)
        return loss

    @tf.function(input_signature=signature)
    def rearrange(self, ids, targets):
        return rearrange(ids, targets)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int32, "values"),
            tf.TensorSpec([None], tf.int64, "splits"),
        ]
    )
    def score(self, values, splits):
        ids = tf.RaggedTensor.from_row_splits(values, splits)
        hidden = tf.reduce_sum(tf.nn.embedding_lookup(self.table, ids), 1)
        return {
            "scores": hidden @ self.kernel,
            "large": tf.boolean_mask(values, values > 500),
            "distinct": tf.unique(values)[0],
        }


def measure(row, step, data):
    for attempt in ("first", "again"):
        programs.clear()
        start = time.process_time()
        for batch in data:
            result = step(*batch)
        seconds = time.process_time() - start
        loss = f" loss {float(result):.6f}" if "train" in row else ""
        print(f"{row}, {attempt}: {seconds:.4f} CPU s, {len(programs)} programs{loss}")


for name, (function, specs, data) in steps.items():
    compiled = tf.function(function, input_signature=specs)
    measure(f"{name} in a function", compiled, data)
    measure(f"{name} eagerly", function, data)
with tempfile.TemporaryDirectory() as folder:
    scorer = Scorer()
    start = time.process_time()
    tf.saved_model.save(scorer, folder, signatures={"score": scorer.score})
    print(f"save three functions: {time.process_time() - start:.4f} CPU s")
    start = time.process_time()
    loaded = tf.saved_model.load(folder)
    print(f"load three functions: {time.process_time() - start:.4f} CPU s")
    measure("train by a loaded function", loaded.train, batches)
    measure("rearrange by a loaded function", loaded.rearrange, batches)
    score = loaded.signatures["score"]
    requests = [(ids.values, ids.row_splits) for ids, _ in batches]
    measure(
        "score by a loaded signature", lambda v, s: score(values=v, splits=s)["scores"], requests
    )
