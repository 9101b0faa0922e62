"""What tests need of the machine, and what could not run at the end of a run."""

import collections
import os
import pathlib
import re

import pytest

from meshflow.kernels import library


def _has(level):
    loaded = library.load()
    return loaded is not None and loaded.supports(level)


def _tiles():
    loaded = library.load()
    return loaded is not None and loaded.tiles


CAPABILITIES = {
    "CPU kernels": lambda: library.load() is not None,
    "AVX-512": lambda: _has("AVX512"),
    "AVX512-BF16": lambda: _has("AVX512_BF16"),
    "AMX tiles": _tiles,
}


def needs(*names):
    """Marks tests that run where the machine, as far as MESHFLOW_MAX_ISA lets it, has these `CAPABILITIES`."""
    missing = [name for name in names if not CAPABILITIES[name]()]
    return pytest.mark.skipif(bool(missing), reason=", ".join(missing) or "all there")


# The Python that has TensorFlow, for tests that ask it.
PEERS_PYTHON = os.environ.get(
    "MESHFLOW_PEERS_PYTHON",
    str(pathlib.Path(__file__).parent.parent / ".venv-peers" / "bin" / "python"),
)
needs_tensorflow = pytest.mark.skipif(
    not os.access(PEERS_PYTHON, os.X_OK),
    reason="MESHFLOW_PEERS_PYTHON names no Python with TensorFlow 2.21",
)


def pytest_terminal_summary(terminalreporter):
    """Names what tests were skipped for, and how many."""
    counts = collections.Counter()
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        absent = re.match(r"could not import '([^']+)'", reason)
        counts[absent[1] if absent else reason] += 1
    for reason, count in sorted(counts.items()):
        terminalreporter.line(f"skipped: {reason}, {count} test{'s' * (count > 1)}")
