"""Compare profiled collectives of a step with the formulas of its strategy."""

import gc
import json
import os
import subprocess
import sys
import threading
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
import tiers
from distribute.launching import SOURCE
from distribute.parallel.training import LAYERS, mesh
from meshflow.distribute.parallel.planner.step_traffic import (
    NoFormulaError,
    compute_expected_traffic,
)
from meshflow.distribute.parallel.strategy import training_models
from meshflow.experimental import dtensor
from meshflow.experimental.dtensor import UNSHARDED as U
from meshflow.placement.expected_traffic import compare_traffic
from meshflow.profiler import description

PROGRAM = Path(__file__).parents[1] / "profiled_on_eight_devices.py"
# The loss and the counts of metrics, which each device also sends.
NUMBERS = 128


def profiles(folder, *names):
    """Return, for each choice, the rows of its profile by purpose, and the reason if there are
    none; compiled without optimization."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {tiers.PLAIN_FLAGS}"
    done = subprocess.run(
        [sys.executable, PROGRAM, folder, *names],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=1700,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = map(json.loads, done.stdout.splitlines())
    return {name: ({p: tuple(n) for p, *n in rows}, why) for name, rows, why in found}


def check(rows, exactly=(), about=()):
    """Assert that all rows exist, and that only numbers are sent in addition."""
    assert {*rows} - {"others"} == {*exactly, *about}
    assert rows.get("others", (None, 0))[1] <= NUMBERS
    for name in exactly:
        expected, counted = rows[name]
        assert 0 < expected <= counted <= expected + NUMBERS, (name, rows)
    for name in about:
        expected, counted = rows[name]
        assert counted == pytest.approx(expected, rel=0.1), (name, rows)


def test_parts_stages_experts_and_divided_products(tmp_path):
    found = profiles(tmp_path, "zero=3", "pipeline", "experts", "tensors")
    assert not any(why for _, why in found.values())
    check(found["zero=3"][0], ["weights", "gradients"])
    check(found["pipeline"][0], ["neighbours"], ["weights and gradients"])
    check(found["experts"][0], ["weights", "gradients", "tokens to and from experts"])
    check(found["tensors"][0], ["gradients"], ["sums of divided products"])


@pytest.mark.soak
def test_formulas_of_copies_micro_batches_and_sequences(tmp_path):
    found = profiles(
        tmp_path, "copies", "zero=2", "ring", "ulysses", "compress", "late", "2.5d", "3d"
    )
    check(found["copies"][0], ["gradients"])
    check(found["zero=2"][0], ["weights", "gradients"])
    between = ["attention between parts of sequences", "gradients of parts of sequences"]
    summed = ["gradients", "gradients of batch and sequences"]
    check(found["ring"][0], summed, between)
    check(found["ulysses"][0], summed, between)
    check(found["compress"][0], ["gradients", "gradients in few bits"])
    # Three steps, one of which sends new weights to all devices.
    check(found["late"][0], ["gradients", "weights"])
    for name in ("2.5d", "3d"):
        check(found[name][0], ["gradients", "products in two or three dimensions"])


def pair():
    wide = LAYERS.Dense(128, "tanh", name="wide")
    return tf.keras.Sequential([tf.keras.Input([64]), wide, LAYERS.Dense(64, name="back")])


def halves(over):
    """Return a layout map equivalent to the rule "hidden:model"."""
    found = tf.keras.dtensor.experimental.LayoutMap(mesh=over)
    found["wide.kernel"] = dtensor.Layout([U, "model"], over)
    found["wide.bias"] = dtensor.Layout(["model"], over)
    found["back.kernel"] = dtensor.Layout(["model", U], over)
    return found


KERNEL = 4 * 64 * 128
ALL = 2 * KERNEL + 4 * (64 + 128)
NODES, GRID = {"node": 2, "data": 2}, {"rows": 2, "cols": 2}


@pytest.mark.parametrize(
    ("sizes", "rules", "options", "sent"),
    [
        (
            *(NODES, "batch:node+data", {"zero": 2, "zero_over": "data", "micro_batches": 2}),
            # Halves within a node, twice, and sums of these across nodes.
            {"gradients": 2 * (ALL // 2 + ALL // 2), "weights": ALL // 2},
        ),
        (
            *({"data": 4}, "batch:data", {"compress": "int8"}),
            # Codes of both kernels and a number for each 256, there and back; biases as they are.
            {
                "gradients": 2 * 4 * 192 * 3 // 4,
                "gradients in few bits": 2 * 2 * (KERNEL // 4 + KERNEL // 256) * 3 // 4,
            },
        ),
        (
            *({"data": 2, "model": 2}, halves, {"zero": 1}),
            {
                # The first bias has one axis, which the map splits: its gradient is reduced.
                "gradients": (KERNEL + 4 * 64) // 2 + 4 * 64,
                "weights": (KERNEL + 4 * 64) // 2,
                # The result of the second product; each device has one term.
                "sums of divided products": 2 * 4 * 16 * 64 // 2,
            },
        ),
        (
            *(GRID, "batch:rows, in:rows, out:cols", {}),
            # Inputs and kernels as specified by q = 2; inputs of the model need no gradient.
            {
                "products in two or three dimensions": 2 * 2 * KERNEL // 4
                + 4 * 32 * (64 + 2 * 128) // 4,
                "gradients": 4 * (64 + 128) // 2,
            },
        ),
    ],
    ids=["within a node", "few bits", "layout map", "2d"],
)
def test_formulas_equal_compiled_bytes(sizes, rules, options, sent):
    over = mesh(**sizes)
    strategy = tf.distribute.MeshStrategy(
        over, rules(over) if callable(rules) else rules, **options
    )
    with strategy.scope():
        model = pair()
        model.compile("adam", "mse")
    batch = tf.ones([32, 64]), tf.ones([32, 64])
    step = dtensor.explain(model, *batch)
    found = compute_expected_traffic(strategy, model, *batch)
    assert {one.purpose: one.sent for one in found} == sent
    counted = compare_traffic(found, [(c.kind, c.axes, c.sent * c.times) for c in step.collectives])
    check({row.purpose: (row.expected, row.counted) for row in counted}, sent)


def test_shared_kernels_and_rows_of_tables_equal_compiled_bytes():
    strategy = tf.distribute.MeshStrategy(mesh(data=4), "batch:data")
    with strategy.scope():
        ids = tf.keras.Input([2], dtype="int32")
        x = LAYERS.Flatten()(LAYERS.Embedding(512, 16)(ids))
        tower = LAYERS.Dense(32, "tanh", use_bias=False)
        model = tf.keras.Model(ids, tower(x) + tower(2.0 * x))
        model.compile("adam", "mse")
    batch = tf.zeros([16, 2], "int32"), tf.ones([16, 32])
    step = dtensor.explain(model, *batch)
    found = compute_expected_traffic(strategy, model, *batch)
    # Two terms of the kernel's gradient; rows of 16 numbers with an index each.
    sent = {
        "gradients": 2 * 2 * 4 * 32 * 32 * 3 // 4,
        "gradients of rows of tables": 32 * (4 * 16 + 4) * 3 // 4,
    }
    assert {one.purpose: one.sent for one in found} == sent
    counted = compare_traffic(found, [(c.kind, c.axes, c.sent * c.times) for c in step.collectives])
    check({row.purpose: (row.expected, row.counted) for row in counted}, sent)


@pytest.mark.parametrize("options", [{}, {"compress": "int8"}], ids=str)
def test_split_sequences_equal_compiled_bytes(options):
    """Rows of tables, and gradients in few bits, which are summed over sequences first."""
    rules = "batch:data, sequence:model"
    over = mesh(data=2, model=2)
    strategy = tf.distribute.MeshStrategy(over, rules, sequence="ring", **options)
    with strategy.scope():
        ids = tf.keras.Input([8], dtype="int32")
        x = LAYERS.Embedding(512, 32)(ids)
        x = x + LAYERS.MultiHeadAttention(2, 64, use_bias=False)(x, x)
        model = tf.keras.Model(ids, LAYERS.Dense(8)(x))
        model.compile("adam", "mse")
    batch = tf.zeros([4, 8], "int32"), tf.ones([4, 8, 8])
    step = dtensor.explain(model, *batch)
    found = compute_expected_traffic(strategy, model, *batch)
    assert ("gradients of rows of tables" in {one.purpose for one in found}) is not bool(options)
    theory = sum(one.sent for one in found)
    assert theory <= step.sent() <= theory + 2 * NUMBERS


def explain_own_step(optimizer, zero, micro_batches=1):
    """Return the strategy, the model, the batch of a custom `train_step`, and the collectives of
    its program."""

    class Taped(tf.keras.Sequential):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(data[0]) - data[1]) ** 2)
            self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
            return {"loss": loss}

    strategy = tf.distribute.MeshStrategy(
        mesh(data=4), "batch:data", zero=zero, micro_batches=micro_batches
    )
    with strategy.scope(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Taped([tf.keras.Input([64]), LAYERS.Dense(128, "tanh"), LAYERS.Dense(64)])
        model.compile(optimizer, "mse")
        batch = tf.ones([32, 64]), tf.ones([32, 64])
        return (strategy, model, *batch), dtensor.explain(model, *batch).sent()


@pytest.mark.parametrize(
    ("optimizer", "gathered"),
    # Without slots, all devices compute all weights; the slots of Adafactor have the shapes of
    # biases.
    [("adam", ALL), ("sgd", 0), ("adafactor", 4 * (64 + 128))],
)
def test_custom_step_gradients_are_reduced_completely(optimizer, gathered):
    arguments, program = explain_own_step(optimizer, zero=1)
    sent = {one.purpose: one.sent for one in compute_expected_traffic(*arguments)}
    weights = {"weights": gathered * 3 // 4} if gathered else {}
    assert sent == {"gradients": 2 * ALL * 3 // 4, **weights}
    assert program == pytest.approx(sum(sent.values()), abs=NUMBERS)


@pytest.mark.parametrize(("zero", "times"), [(1, 1), (3, 2)])
def test_custom_step_in_micro_batches_is_one_loop(zero, times):
    arguments, program = explain_own_step("adam", zero, micro_batches=2)
    sent = {one.purpose: one.sent for one in compute_expected_traffic(*arguments)}
    # With zero=3, the gradients of each micro-batch are scattered. The loop keeps weights.
    assert sent == {"gradients": times * ALL * 3 // 4, "weights": ALL * 3 // 4}
    assert program == pytest.approx(sum(sent.values()), abs=NUMBERS)


@pytest.mark.parametrize(
    ("make", "zero", "message", "gathered"),
    [
        # XLA sends activations instead of a kernel.
        (tf.keras.optimizers.Adam, 3, "weights or activations", 1),
        (tf.keras.optimizers.SGD, 3, "weights or activations", 1),
        (lambda: tf.keras.optimizers.SGD(use_ema=True), 1, "use_ema", 0),
    ],
)
def test_custom_steps_without_a_formula(make, zero, message, gathered):
    arguments, program = explain_own_step(make(), zero)
    assert program < (2 + gathered) * ALL * 3 // 4 + NUMBERS
    with pytest.raises(NoFormulaError, match=message):
        compute_expected_traffic(*arguments)


def test_theory_describes_the_last_model_of_the_thread():
    def trained(**compiled):
        with tf.distribute.MeshStrategy(mesh(data=2), "batch:data", zero=1).scope():
            model = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(2)])
            model.compile("sgd", "mse", **compiled)
        model.fit(np.ones([4, 4]), np.ones([4, 2]), verbose=0)
        return model

    model = trained()
    # Half of a kernel of 4 x 2 and a bias of 2, each way.
    sent = {e["purpose"]: e["sent"] for e in description.theory()["exchanges"]}
    assert sent == {"gradients": 20, "weights": 20}
    told = []
    other = threading.Thread(target=lambda: told.append(description.theory()))
    other.start(), other.join()
    assert "another one took" in told[0]["why"]
    several = trained(steps_per_execution=3)
    assert [e["sent"] for e in description.theory()["exchanges"]] == [60, 60]
    late = trained(gradient_accumulation_steps=2)
    sent = {e["purpose"]: e["sent"] for e in description.theory()["exchanges"]}
    assert sent == {"gradients": 20, "weights": 10}
    assert {model, several, late} <= {*training_models}
    seen = weakref.ref(model)
    tf.keras.backend.clear_session()
    del model
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize(
    ("rules", "options", "message"),
    [
        ("batch:a", {"compress": "int8", "compress_after": 2}, "whole in the first steps"),
        ("batch:a", {"recompute": lambda *_, **__: True}, "a policy"),
        ("batch:a, in:b, hidden:a", {}, "experts and of products in two"),
        ("in:a, out:b", {"micro_batches": 2}, "over one dimension"),
        (
            "batch:a, sequence:b, out:b",
            {"zero": 1, "sequence": "ring"},
            "together with tensor parallelism",
        ),
    ],
)
def test_strategies_that_no_formula_is_about(rules, options, message):
    strategy = tf.distribute.MeshStrategy(mesh(a=2, b=2), rules, **options)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input([4]), LAYERS.Dense(8)])
        model.compile("sgd", "mse")
    with pytest.raises(NoFormulaError, match=message):
        compute_expected_traffic(strategy, model, tf.TensorSpec([8, 4]), tf.TensorSpec([8, 8]))
