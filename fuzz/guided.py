"""Fuzz one parser with coverage guidance: `python fuzz/guided.py FORMAT [options of libFuzzer]`.

A format is a module of `tests/fuzz/formats`, which also damages files behind their checksums. Damage that breaks a rule
of `tests/fuzz/child.py` (an unclear error, a started program, ...) is stored in `$FUZZ_FINDINGS`, once for each kind,
and the run continues. A crash, a hang of 100 seconds or more than 3 GiB end the process.
"""

from __future__ import annotations

import importlib
import os
import random
import re
import sys
import tempfile
import warnings
from pathlib import Path

import atheris

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MESHFLOW_CACHE_DIR", "")
# Compilations would take most of the time.
os.environ.setdefault("MESHFLOW_TIER", "interpret")
# Files need not survive a power failure.
os.fsync = lambda descriptor: None
MEMORY_DISK = "/dev/shm"

# Packages with parsers, in which edges are counted.
PARSERS = (
    *("checkpoint", "data", "files", "io", "keras.saving", "keras.engine.saving", "keras.registry"),
    *("keras.serialization", "keras.safe_mode", "keras.layers.preprocessing", "lite", "onnx"),
    *("ops.strings", "ops.unicode", "ops.regular_expressions", "profiler", "saved_model"),
    *("ops.audio", "ops.image.codecs", "ops.files", "ops.tables", "kernels.images", "kernels.jpeg"),
    *("distribute.cluster", "distribute.parameter_server", "placement", "environment", "serving"),
)


def list_other_modules() -> list[str]:
    """Return the names of Meshflow's modules without parsers, which run faster without counters."""
    source = HERE.parent / "src"
    paths = (source / "meshflow").rglob("*.py")
    names = [".".join(path.relative_to(source).with_suffix("").parts) for path in paths]
    names = [name.removesuffix(".__init__") for name in names]
    parsers = tuple(f"meshflow.{name}" for name in PARSERS)
    return [name for name in names if not name.startswith(parsers)]


with atheris.instrument_imports(["meshflow"], list_other_modules()):
    from fuzz.child import outcome, watch

# A finding is the class of an error and the function that raised it.
_SOURCE_LINE = re.compile(r'File "[^"]*", line \d+')


def main() -> None:
    """Run libFuzzer on the format that is the first argument."""
    name = sys.argv.pop(1)
    warnings.simplefilter("ignore")
    with atheris.instrument_imports(["meshflow"], list_other_modules()):
        module = importlib.import_module(f"fuzz.formats.{name}")
        for seed in module.seeds():
            outcome(module, seed)
    findings = Path(os.environ.get("FUZZ_FINDINGS", "findings")) / name
    findings.mkdir(parents=True, exist_ok=True)
    found: set[str] = set()
    inside = getattr(module, "inside", None)

    def test_one_input(data: bytes) -> None:
        said = outcome(module, data) if data else "value"
        if said.startswith("bad"):
            kind = f"{said.split(':')[0]} {_SOURCE_LINE.findall(said)[-1:]}"
            if kind not in found:
                found.add(kind)
                path = findings / f"case-{len(found)}-{os.getpid()}"
                path.write_bytes(data)
                path.with_suffix(".txt").write_text(said)
                print(f"FINDING {path}: {said}", file=sys.stderr, flush=True)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)

        def change(part: bytes) -> bytes:
            return bytes(atheris.Mutate(part, max(len(part) + 32, 64)))

        if inside is not None and rng.random() < 0.5:
            start = data if data and rng.random() < 0.7 else rng.choice(module.seeds())
            try:
                return bytes(inside(start, change, rng))[:max_size]
            except Exception:
                pass  # The data is too damaged to be opened.
        return bytes(atheris.Mutate(data, max_size))

    seeds = Path(tempfile.gettempdir(), "seeds")
    seeds.mkdir()
    for number, seed in enumerate(module.seeds()):
        (seeds / str(number)).write_bytes(seed)
    sys.addaudithook(watch)
    options = ["-timeout=100", "-rss_limit_mb=3072", "-max_len=65536", "-len_control=0"]
    atheris.Setup(
        [sys.argv[0], *options, *sys.argv[1:], str(seeds)], test_one_input, custom_mutator=mutate
    )
    atheris.Fuzz()


if __name__ == "__main__":
    disk = MEMORY_DISK if os.access(MEMORY_DISK, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=disk) as folder:
        tempfile.tempdir = folder
        main()
