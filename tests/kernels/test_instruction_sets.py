"""Test kernels on older instruction sets, and matrix tiles on processors without them, in separate
processes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import helpers
from capabilities import needs
from meshflow.kernels import descriptors, library

ROOT = Path(__file__).parents[2]
# Only files with such tests: collecting all takes longer than running these.
MARKED = [
    *("-m", "isa"),
    *(
        str(path)
        for folder in ("kernels", "passes")
        for path in sorted((ROOT / "tests" / folder).glob("test_*.py"))
        if "mark.isa" in path.read_text(encoding="utf-8")
    ),
]
EVERYTHING = ["tests/kernels", "tests/passes", "tests/dtensor/test_parallelism.py"]
# Names of functions for an instruction set. Those of convolutions and kernel gradients compute by tiles.
NAMESPACES = re.compile(r"by_256|by_512|by_pairs|Tile|_tile|Convolution|KernelGradient|__vector")
TILES = ("test_tiles", "test_kernel_gradient", "test_tile_model")
# Of kernels that multiply on tiles where there are any.
PRODUCTS = (
    "tests/kernels/test_attention.py::test_values_and_gradients[bfloat16-tiles]",
    "tests/kernels/test_recurrent.py::test_values_and_gradients[lstm-flags0]",
)


def _older():
    """The levels below this machine's."""
    loaded = library.load()
    own = loaded.level if loaded is not None else None
    return library.ISA_LEVELS[: library.ISA_LEVELS.index(own)] if own else ()


def run(arguments, **variables):
    """Run tests in a process with restricted kernels."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MESHFLOW_MAX_ISA", "XLA_FLAGS"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-x", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**environment, **variables},
        timeout=3000 if helpers.SOAK else 280,
        check=False,
    )
    assert done.returncode == 0, f"{variables}\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}"


@pytest.mark.long
@pytest.mark.parametrize("level", _older())
def test_older_processors(level):
    deselected = ["--ignore", __file__] if helpers.SOAK else []
    run([*(EVERYTHING if helpers.SOAK else MARKED), *deselected], MESHFLOW_MAX_ISA=level)


@pytest.mark.long
@needs("AVX-512")
def test_emulated_tiles():
    chosen = (
        []
        if helpers.SOAK
        else ["-k", "not (HWOI or several or large or larger or strides or geometry)"]
    )
    files = [f"tests/kernels/{name}.py" for name in TILES]
    run([*files, *PRODUCTS, *chosen], MESHFLOW_AMX="emulated")


@needs("oneDNN")
@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed")
def test_instructions_are_in_the_namespaces_of_their_set():
    """Compilers use a set in all of a function, so that one outside may stop older processors before it checks them."""
    library_file = Path(library.__file__).with_name(library.NAME)
    listing = ["objdump", "--disassemble", "--demangle", "--no-show-raw-insn", str(library_file)]
    done = subprocess.run(listing, capture_output=True, text=True, check=True, timeout=250)
    wrong, may_use = set(), True
    for line in done.stdout.splitlines():
        if line.endswith(">:"):
            may_use = NAMESPACES.search(function := line.partition("<")[2])
        # All instructions of AVX and later sets, and few others, begin with this letter.
        elif not may_use and line.partition("\t")[2].startswith("v"):
            wrong.add(function)
    assert not wrong


@pytest.mark.isa
@needs("oneDNN")
def test_limit_is_enforced():
    loaded, limit = library.load(), library.read_isa_limit()
    if limit is not None:
        assert loaded.level == limit
    if limit in library.ONEDNN_NAMES:
        # XLA contains another oneDNN.
        assert os.environ["ONEDNN_MAX_CPU_ISA"] == library.ONEDNN_NAMES[limit]
    view = descriptors.make_view((512, 512), (0, 1))
    name = loaded.find_implementation(
        descriptors.describe_matmul(view, view, view), ("float32",) * 3
    )
    assert ("avx512" in name) == loaded.supports("AVX512")


@pytest.mark.parametrize("name, value", [("MESHFLOW_MAX_ISA", "avx2"), ("MESHFLOW_AMX", "on")])
def test_other_words_in_the_environment_are_an_error(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name} must be .* got '{value}'"):
        library.read_isa_limit()
        library.emulates_tiles()
