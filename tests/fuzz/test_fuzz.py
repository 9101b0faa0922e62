"""Test damaged files of every format: a value or a clear error, within 10 seconds and 2 GiB, and no
code runs."""

import collections
import importlib
import os
import pathlib
import select
import subprocess
import sys

import pytest

from fuzz import FORMATS
from fuzz.mutations import case
from helpers import rounds

for package in ("PIL", "h5py", "google.protobuf", "google_crc32c"):
    pytest.importorskip(package)

HERE = pathlib.Path(__file__).parent
KEPT = sorted((HERE / "regressions").glob("*/*"))


class Reader:
    """A process that reads damaged files, begun again where one ends it."""

    def __init__(self):
        self._process = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._end()

    def _begin(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        program = [sys.executable, str(HERE / "child.py")]
        path = os.pathsep.join(p for p in sys.path if p)
        # Programs compiled from damaged files are not shared with other processes.
        kept = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
        environment = {**kept, "PYTHONPATH": path, "MESHFLOW_CACHE_DIR": ""}
        self._process = subprocess.Popen(program, **pipes, env=environment)
        self._rest = b""
        assert self._line(240) == "ready"

    def _end(self):
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _line(self, seconds):
        """Return the next line, or None after the time limit or if the process ended."""
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], seconds)
            part = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
            if not part:
                return None
            self._rest += part
        line, self._rest = self._rest.split(b"\n", 1)
        return line.decode(errors="replace")

    def outcome(self, what, name, which):
        if self._process is None:
            self._begin()
        self._process.stdin.write(f"{what} {name} {which}\n".encode())
        self._process.stdin.flush()
        begun, said = self._line(60), self._line(20)
        if begun == "begun" and said is not None:
            return said
        code = self._process.poll()
        self._end()
        return f"bad it hangs, or ended with {code}"


@pytest.fixture(scope="module")
def reader():
    with Reader() as made:
        yield made


@pytest.mark.timeout(7200)
def test_damaged_files(reader, tmp_path):
    counts, failures = collections.Counter(), []
    for number in range(rounds(300, 10_000)):
        name = FORMATS[number % len(FORMATS)]
        said = reader.outcome("case", name, number)
        counts[name, said.split()[0]] += 1
        if said.startswith("bad"):
            path = tmp_path / f"{name}-{number}"
            path.write_bytes(case(importlib.import_module(f"fuzz.formats.{name}"), number))
            failures.append(f"{path}: {said}")
    print(*sorted(counts.items()), sep="\n")
    assert not failures, "\n".join(failures)
    # Damage is detected, and slightly damaged files are read.
    errors, values = (sum(counts[n, kind] for n in FORMATS) for kind in ("error", "value"))
    assert min(errors, values) > counts.total() / 8


@pytest.mark.timeout(600)
def test_files_that_once_did_harm(reader):
    assert KEPT
    said = {path.name: reader.outcome("file", path.parent.name, path) for path in KEPT}
    assert {
        name: text for name, text in said.items() if not text.startswith(("value", "error"))
    } == {}


def test_the_program_for_all_targets_starts():
    program = [sys.executable, str(HERE.parents[1] / "fuzz" / "run.py"), "--help"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert "--seconds" in done.stdout, done.stderr
