"""The examples for models larger than a device: on eight virtual devices, with losses that agree."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tiers
from distribute.launching import SOURCE

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/large_models/reference.md").read_text()
TABLE = PAGE.partition("\n## Examples\n")[2]
EXAMPLES = sorted(re.findall(r"`examples/(\w+)\.py`", TABLE))
# Two or more losses in a row.
LOSSES = re.compile(r"(?<![\d.])\d\.\d{5}(?: \d\.\d{5})+")


def run_example(name, *arguments):
    """The lines that an example prints, compiled as plain code."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {tiers.PLAIN_FLAGS}"
    done = subprocess.run(
        [sys.executable, ROOT / f"examples/{name}.py", *arguments],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "XLA_FLAGS": flags, "NPROC": "32"},
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def curves(lines):
    """Return the losses of each line that prints any, except for gradients in 8 bits, which change
    them."""
    found = [LOSSES.search(line) for line in lines if "8 bits" not in line]
    return np.array([match[0].split() for match in found if match], float)


def test_all_are_listed():
    """Those of this page's strategy."""
    using = ("MeshStrategy(", "from_deepspeed(", "from_mesh_tensorflow(")
    examples = {p.stem: p.read_text() for p in (ROOT / "examples").glob("*.py")}
    assert sorted(n for n, text in examples.items() if any(u in text for u in using)) == EXAMPLES


def test_flags_of_mesh_tensorflow_on_the_command_line():
    flags = ["rows:4;cols:2", "batch:rows;d_ff:cols"]
    first, losses, parts, *sent = run_example("layouts_from_mesh_tensorflow", *flags)
    assert first == '--mesh_shape="rows:4;cols:2" --layout="batch:rows;d_ff:cols"'
    # Equal for any layout: the weights and the tokens depend only on seeds.
    np.testing.assert_allclose(curves([losses]), [[3.83337, 2.52991]], atol=3e-5)
    assert parts.endswith("embedding [64, 32], wi [32, 64], wo [64, 32]")
    assert [line.split(" by ")[1] for line in sent] == ["all-reduce"]


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", EXAMPLES)
def test_losses_agree(name):
    found = curves(run_example(name))
    assert len(found) >= 2
    np.testing.assert_allclose(found, np.broadcast_to(found[0], found.shape), atol=3e-5)
    assert (found[:, -1] < found[:, 0]).all()
