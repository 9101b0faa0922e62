"""Measure ragged batches of varying sizes, with Meshflow or another Python's TensorFlow.

Usage: `python benchmarks/ragged_batches.py [meshflow|tensorflow]`. It prints CPU seconds, compiled programs and a loss.
"""

import importlib
import sys
import time

import numpy as np

tf = importlib.import_module(sys.argv[1] if len(sys.argv) > 1 else "meshflow")
programs = []
if tf.__name__ == "meshflow":
    import jax

    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: (
            programs.append(name) if name.endswith("backend_compile_duration") else None
        )
    )
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


def make_batch():
    lengths = random.integers(0, 60, size=32)
    ids = random.integers(0, 1000, size=lengths.sum()).astype(np.int32)
    targets = tf.constant(random.random((32, 1)).astype(np.float32))
    return tf.RaggedTensor.from_row_lengths(ids, lengths), targets


batches = [make_batch() for _ in range(40)]
signature = [tf.RaggedTensorSpec([None, None], tf.int32), tf.TensorSpec([None, 1])]
for name, step in {
    "train in a function": tf.function(train, input_signature=signature),
    "train eagerly": train,
    "rearrange in a function": tf.function(rearrange, input_signature=signature),
    "rearrange eagerly": rearrange,
}.items():
    for attempt in ("first", "again"):
        programs.clear()
        start = time.process_time()
        for batch in batches:
            result = step(*batch)
        seconds = time.process_time() - start
        loss = f" loss {float(result):.6f}" if name.startswith("train") else ""
        print(f"{name}, {attempt}: {seconds:.2f} CPU s, {len(programs)} programs{loss}")
