"""Test that schedules of the distributed protocols preserve their invariants, and that mutated code
violates them."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import meshflow
from helpers import SOAK
from simulation import SCENARIOS, machine
from simulation.mutations import MUTATIONS, SEEDS

# The number of schedules of each scenario, and of each test.
COUNTS = (
    {"parameter_servers": 80_000, "launching": 20_000}
    if SOAK
    else {"parameter_servers": 150, "launching": 50}
)
BLOCK = 1000 if SOAK else 50
BLOCKS = [(name, first) for name, count in COUNTS.items() for first in range(0, count, BLOCK)]
# Mutations must be found within this number of schedules.
MAX_SEEDS = 1000
TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(("scenario", "first"), BLOCKS)
def test_schedules_preserve_invariants(scenario, first):
    simulate = SCENARIOS[scenario]()
    for seed in range(first, first + BLOCK):
        simulate(seed)


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_are_detected(name):
    scenario, mutations = MUTATIONS[name]
    simulate = SCENARIOS[scenario]()
    # A schedule that found the mutation before probably finds it again, which saves time.
    for seed in (SEEDS.get(name, 0), *range(MAX_SEEDS)):
        try:
            simulate(seed, mutations=mutations)
        except Exception:
            return
    raise AssertionError(f"{MAX_SEEDS} schedules do not notice that {name}")


def test_a_seed_determines_a_schedule():
    """The command of a failure's message shows the same trace, in a process with other hashes."""
    command = [sys.executable, "-m", "simulation", "parameter_servers", "11", "17"]
    paths = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": paths}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert process.returncode == 0, process.stderr
    simulate = SCENARIOS["parameter_servers"]()
    traces = []
    for seed in (11, 17):
        report, here = simulate(seed, keeps_trace=True)
        traces += [here.format_trace(), str(report)]
    assert process.stdout.splitlines() == "\n".join(traces).splitlines()


def find_modules():
    folder = Path(meshflow.__file__).parent
    for prefix in machine.SIMULATED:
        path = folder.joinpath(*prefix.split(".")[1:])
        yield from (
            [path.with_suffix(".py")] if path.with_suffix(".py").exists() else path.rglob("*.py")
        )


@pytest.mark.parametrize("path", list(find_modules()), ids=lambda path: path.stem)
def test_code_refers_to_the_system_by_modules(path):
    """Otherwise `install` would not replace it, and a simulation would wait in real time."""
    names = {
        node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
    }
    assert not names & {
        "threading",
        "time",
        "socket",
        "secrets",
        "subprocess",
        "os",
        "random",
        "queue",
    }
