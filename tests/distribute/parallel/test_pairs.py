"""All that `fit` can do under every option, and files of every option under every other, beside one device."""

import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tiers
from distribute.launching import SOURCE

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
PROGRAM = Path(__file__).with_name("pairs_on_eight_devices.py")
# Each process tests some of the options; so many run at once.
PROCESSES = 2
# Tolerances, relative to the largest value.
APART = {"sixteen bits": 2e-3}


def reports(*arguments):
    """Return the program's output for each pair; compiled without optimization."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {tiers.PLAIN_FLAGS}"
    done = subprocess.run(
        [sys.executable, PROGRAM, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=3500,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {(a, b): found for a, b, found in map(json.loads, done.stdout.splitlines())}


def reports_of_parts(*arguments):
    """The same by several processes, each for its part of the options."""
    parts = [f"{i}/{PROCESSES}" for i in range(PROCESSES)]
    with ThreadPoolExecutor(PROCESSES) as threads:
        found = threads.map(lambda part: reports(*arguments, part), parts)
        return dict(itertools.chain.from_iterable(each.items() for each in found))


@pytest.mark.parametrize("part", ["0/3", "1/3", "2/3"])
def test_texts_under_every_option(part):
    found = reports("features", "tokens", part)
    assert len(found) >= 9
    assert not {k: v for k, v in found.items() if isinstance(v, str) or not 0 <= v <= 1e-5}


@pytest.mark.parametrize(
    "feature", ["callbacks", "several inputs", "own steps", "tapes", "norms", "sixteen bits"]
)
def test_fit_features_under_every_option(feature):
    found = reports("features", feature)
    assert len(found) > 15
    limit = APART.get(feature, 1e-5)
    assert not {k: v for k, v in found.items() if isinstance(v, str) or not 0 <= v <= limit}


def test_files_of_every_option_are_taken_up_under_every_other(tmp_path):
    reports_of_parts("written", tmp_path)
    found = reports_of_parts("taken up", tmp_path)
    assert len(found) >= 900
    assert not {k: v for k, v in found.items() if isinstance(v, str) or not 0 <= v <= 1e-6}
