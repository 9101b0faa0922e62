"""Test the kernels of aarch64, compiled here, in a process that treats this machine as one without
oneDNN."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import helpers
from meshflow.environment import cpu_info

ROOT = Path(__file__).parents[2]
PRETENCE = "import platform; platform.machine = lambda: 'aarch64'; import sys; "
BUILD = """
import pathlib, hatch_build
print(hatch_build.build_kernels(pathlib.Path(sys.argv[1])), [p.stem for p in hatch_build.list_sources()])
"""
TESTS = """
from meshflow.kernels import library
library.NAME = sys.argv[1]
import pytest
sys.exit(pytest.main(["-n", "0", "-x", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""
DOCTOR = """
from meshflow.kernels import library
library.NAME = sys.argv[1]
from meshflow.cli import main
sys.argv = ["meshflow", "doctor"]
main()
"""
# All have tests that compare with XLA's or NumPy's bits.
FILES = ["renewals", "rows", "row_updates"]
FILES += helpers.rounds(
    [],
    ["adam", "cross_entropy", "image_changes", "images", "pooling", "recurrent", "running_sums"]
    + ["table_rows"],
)
pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1200),
    # XLA fuses products into sums, as compilers for aarch64 do by default.
    pytest.mark.skipif("fma" not in cpu_info.read_cpu_flags(), reason="fused multiply-add"),
    pytest.mark.skipif(
        not any(shutil.which(name) for name in ("c++", "g++", "clang++")),
        reason="no C++ compiler on the PATH",
    ),
]


def run(program, *arguments, **variables):
    """Return the output of a program that assumes another machine."""
    hidden = ("PYTEST_", "MESHFLOW_KERNELS", "MESHFLOW_MAX_ISA")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    done = subprocess.run(
        [sys.executable, "-c", PRETENCE + program, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**environment, **variables},
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("portable") / "libmeshflow_onednn.so"
    said = run(BUILD, path, CXXFLAGS="-O2 -mfma")
    assert "onednn'" not in said and "winograd" not in said and "'adam'" in said
    return path


def test_kernels_without_onednn_compute_the_same(library):
    said = run(TESTS, library, *(f"tests/kernels/test_{name}.py" for name in FILES))
    assert "[100%]" in said and "skipped" not in said


def test_doctor_names_the_portable_kernels(library):
    said = run(DOCTOR, library, COLUMNS="200")
    assert "compiled, without oneDNN" in said and "left to XLA" not in said
