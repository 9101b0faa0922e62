"""What a profile counts of a step's collectives, beside the formulas of its strategy."""

import gc
import json
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
import tiers
from distribute.launching import SOURCE
from distribute.parallel.training import mesh
from meshflow.distribute.parallel.planner.choices import Choice
from meshflow.distribute.parallel.planner.theory import Outside, choice_of
from meshflow.distribute.parallel.strategy import in_training
from meshflow.profiler import description

PROGRAM = Path(__file__).parents[1] / "profiled_on_eight_devices.py"
# The loss and the counts of metrics, which each device sends besides.
NUMBERS = 128


def profiles(folder, *names):
    """For each choice the rows of its profile by purpose, and why there are none; compiled as plain code."""
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
    """All rows are there, and nothing but numbers is sent besides."""
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
def test_copies_micro_batches_parts_of_sequences_and_what_has_no_formula(tmp_path):
    found = profiles(tmp_path, "copies", "zero=2", "ring", "ulysses", "compress")
    check(found["copies"][0], ["gradients"])
    check(found["zero=2"][0], ["weights", "gradients"])
    between = ["attention between parts of sequences", "gradients of parts of sequences"]
    check(found["ring"][0], ["gradients"], between)
    check(found["ulysses"][0], ["gradients"], between)
    assert found["compress"] == ({}, "no formula is about compress= and zero_over=")


def test_a_strategy_is_a_choice_of_the_planner():
    parts = tf.distribute.MeshStrategy(
        mesh(a=2, b=2), "batch:a, hidden:b, sequence:b", zero=1, sequence="split", micro_batches=2
    )
    chosen = {"zero": 1, "micro_batches": 2, "sequence": "split", "names": ("hidden",)}
    assert choice_of(parts) == Choice(2, 2, **chosen)
    stages = tf.distribute.MeshStrategy(mesh(p=4), "", pipeline="p", recompute="layer")
    assert choice_of(stages) == Choice(1, 1, 4, recompute="layer")
    experts = tf.distribute.MeshStrategy(mesh(n=2, d=2), "batch:n+d, experts:n+d")
    assert choice_of(experts) == Choice(4, experts=True)


def test_who_is_asked_and_who_is_not_kept():
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
    assert "gradient_accumulation_steps" in description.theory()["why"]
    assert {model, several, late} <= {*in_training}
    seen = weakref.ref(model)
    tf.keras.backend.clear_session()
    del model
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize(
    ("rules", "options", "message"),
    [
        ("batch:a", {"compress": "int8"}, "compress="),
        ("batch:a+b", {"zero": 1, "zero_over": "b"}, "zero_over="),
        ("batch:a", {"recompute": lambda *_, **__: True}, "a policy"),
        ("batch:a, in:b", {}, "rules that split heads"),
        ("heads:a, hidden:b", {}, "over one dimension"),
        ("batch:a+b, experts:b", {}, "experts are of those over the batch"),
    ],
)
def test_strategies_that_no_formula_is_about(rules, options, message):
    with pytest.raises(Outside, match=message):
        choice_of(tf.distribute.MeshStrategy(mesh(a=2, b=2), rules, **options))
