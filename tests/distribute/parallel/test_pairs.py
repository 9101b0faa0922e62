"""All that `fit` can do under every option, and files of every option under every other, beside one device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiers
from distribute.launching import SOURCE

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
PROGRAM = Path(__file__).with_name("pairs_on_eight_devices.py")
# How far numbers may be apart, relative to the largest.
APART = {"sixteen bits": 2e-3}


def reports(*arguments):
    """What the program prints of each pair; compiled as plain code."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {tiers.PLAIN_FLAGS}"
    done = subprocess.run(
        [sys.executable, PROGRAM, *arguments],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=3500,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {(a, b): found for a, b, found in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize(
    "feature", ["tokens", "callbacks", "own steps", "tapes", "norms", "sixteen bits"]
)
def test_what_fit_can_do_under_every_option(feature):
    found = reports("features", feature)
    assert len(found) > 15
    # Where `train_step` computes gradients itself, options that divide the loss refuse it.
    wrong = {k: v for k, v in found.items() if isinstance(v, str) or v > APART.get(feature, 1e-5)}
    assert not wrong
    refused = {option for (_, option), v in found.items() if v < 0}
    if feature != "tapes":
        assert not refused
    else:
        assert {"zero=1", "1f1b", "int8"} <= refused
        assert refused.isdisjoint({"1D", "2D", "ulysses", "mirrored", "workers"})


def test_files_of_every_option_are_taken_up_under_every_other():
    found = reports("files")
    assert len(found) > 500
    wrong = {k: v for k, v in found.items() if isinstance(v, str) or v > 1e-5}
    assert not wrong
