"""Check the requirements of tests, and summarize skipped tests at the end of a run.

With MESHFLOW_CI=1, which .ci/run sets, the summary lists every skipped test. On Linux x86-64, where
everything is built, the run then fails if allowed_skips.txt does not permit one of them.
"""

import collections
import fnmatch
import os
import pathlib
import re

import pytest

from meshflow.kernels import installation, library


def _has(level):
    loaded = library.load()
    return loaded is not None and loaded.supports(level)


def _tiles():
    loaded = library.load()
    return loaded is not None and loaded.tiles


CAPABILITIES = {
    "CPU kernels": lambda: library.load() is not None,
    "oneDNN": lambda: library.load() is not None and library.load().read_version() is not None,
    "AVX2": lambda: _has("AVX2"),
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


IS_CI = os.environ.get("MESHFLOW_CI") == "1"
ALLOWED_SKIPS = pathlib.Path(__file__).with_name("allowed_skips.txt")


def list_skips(terminalreporter):
    """Return the ids and reasons of the skipped tests and files."""
    skips = []
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        skips.append((report.nodeid, reason.removeprefix("Skipped: ")))
    return skips


def find_forbidden_skips(skips):
    """Return the skips that match no pattern of allowed_skips.txt or of the variable MESHFLOW_ALLOWED_SKIPS."""
    lines = ALLOWED_SKIPS.read_text().splitlines()
    lines += os.environ.get("MESHFLOW_ALLOWED_SKIPS", "").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    return [
        (test, reason)
        for test, reason in skips
        if not any(fnmatch.fnmatchcase(f"{test}: {reason}", pattern) for pattern in patterns)
    ]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """Fail a run of CI that skipped too much."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    # Workers of xdist report to the process that prints.
    if hasattr(session.config, "workerinput") or not (IS_CI and installation.has_onednn()):
        return
    if find_forbidden_skips(list_skips(reporter)) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    """Print the reasons of skipped tests, and their numbers."""
    counts = collections.Counter()
    skips = list_skips(terminalreporter)
    for test, reason in skips:
        if IS_CI:
            terminalreporter.line(f"skipped: {test}: {reason}")
        absent = re.match(r"could not import '([^']+)'", reason)
        counts[absent[1] if absent else reason] += 1
    for reason, count in sorted(counts.items()):
        terminalreporter.line(f"skipped: {reason}, {count} test{'s' * (count > 1)}")
    if IS_CI and installation.has_onednn():
        for test, reason in find_forbidden_skips(skips):
            terminalreporter.line(
                f"ERROR: {test} may not be skipped in CI ({reason}); see tests/allowed_skips.txt",
                red=True,
            )
