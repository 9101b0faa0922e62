"""Compute products by rules on meshes of eight devices: print values, and bytes of forward and
backward passes, as JSON. This is a separate program because the number of devices of a process is
fixed.

Run by test_products_across_devices.py.
"""

import json
import os

os.environ.setdefault("NPROC", "32")
os.environ["MESHFLOW_CACHE_DIR"] = ""

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

import numpy as np

import meshflow as tf
from meshflow.experimental import dtensor
from meshflow.experimental.dtensor import UNSHARDED as U
from meshflow.experimental.dtensor import Layout

B, T, I, O = 32, 16, 16, 48
rng = np.random.default_rng(0)


def compare(name, sizes, rules, make, shape, x_specs, y_specs, reference, **options):
    """Return the values and bytes of a function of layers, forward and backward."""
    devices = [f"CPU:{i}" for i in range(np.prod([*sizes.values()]))]
    mesh = dtensor.create_mesh([*sizes.items()], devices=devices)
    x = rng.normal(size=shape).astype("float32")
    with tf.distribute.MeshStrategy(mesh, rules, **options).scope():
        call, weights = make(x)
    y, pull = jax.vjp(reference, x, *[w.numpy() for w in weights])
    given = rng.normal(size=y.shape).astype("float32")
    expected = [np.asarray(a) for a in (y, *pull(given))]
    lay = lambda a, specs: dtensor.copy_to_mesh(a, Layout(specs, mesh))
    x, given = lay(x, x_specs), lay(given, y_specs)

    def backward(x, given):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(x)
        return tape.gradient(y, [x, *weights], output_gradients=given)

    def step(x, given):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(x)
        return [y, *tape.gradient(y, [x, *weights], output_gradients=given)]

    forward, backward, step = tf.function(call), tf.function(backward), tf.function(step)
    found = step(x, given)
    errors = [
        float(np.abs(a.numpy() - b).max() / np.abs(b).max())
        for a, b in zip(found, expected, strict=True)
    ]
    sent = {}
    for way, explained in (
        ("forward", dtensor.explain(forward, x)),
        ("backward", dtensor.explain(backward, x, given)),
        ("step", dtensor.explain(step, x, given)),
    ):
        kinds = {c.kind for c in explained.collectives}
        sent[way] = {kind: explained.sent(kind) for kind in sorted(kinds)}
    return {"name": name, "error": max(errors), **sent}


def dense(dims=None):
    def make(x):
        layer = tf.keras.layers.Dense(O, use_bias=False, dims=dims)
        layer.build(x.shape)
        return layer, [layer.kernel]

    return make


def pair(x):
    wide = tf.keras.layers.Dense(O, use_bias=False)
    back = tf.keras.layers.Dense(I, use_bias=False)
    wide.build(x.shape), back.build((*x.shape[:-1], O))
    return lambda x: back(wide(x)), [wide.kernel, back.kernel]


def attention(x):
    layer = tf.keras.layers.MultiHeadAttention(8, 4, use_bias=False)
    layer(x, x)
    return lambda x: layer(x, x), layer.weights


def compute_attention(x, *weights):
    q, k, v, o = weights
    heads = lambda w: jax.numpy.einsum("btd,dnh->btnh", x, w)
    scores = jax.numpy.einsum("btnh,bsnh->bnts", heads(q) * 0.5, heads(k))
    mixed = jax.numpy.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores), heads(v))
    return jax.numpy.einsum("btnh,nhd->btd", mixed, o)


def main():
    one = lambda x, w: x @ w
    two = lambda x, a, b: x @ a @ b
    grid = {"rows": 2, "cols": 2}
    deep = {"depth": 2, **grid}
    rules = "batch:rows, in:rows, out:cols"
    found = [
        compare("2d", grid, rules, dense(), (B, I), ["rows", "cols"], ["rows", "cols"], one),
        compare(
            *("2.5d", deep, "batch:depth+rows, in:rows, out:cols", dense(), (B, I)),
            *(["depth+rows", "cols"], ["depth+rows", "cols"], one),
        ),
        compare(
            *("3d", deep, "batch:depth+cols, in:rows+depth, out:cols", dense(), (B, I)),
            *(["depth+cols", "rows"], ["depth+rows", "cols"], one),
        ),
        compare("1d", {"model": 8}, "hidden:model", pair, (2, T, I), [U] * 3, [U] * 3, two),
        compare(
            *("split", {"model": 8}, "sequence:model, hidden:model", pair, (2, T, I)),
            *([U, "model", U], [U, "model", U], two),
            sequence="split",
        ),
        compare(
            *("heads", {"model": 8}, "heads:model", attention, (2, T, I)),
            *([U] * 3, [U] * 3, compute_attention),
        ),
        compare(
            *("split heads", {"model": 8}, "sequence:model, heads:model", attention, (2, T, I)),
            *([U, "model", U], [U, "model", U], compute_attention),
            sequence="split",
        ),
    ]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
