"""Test the selection of tests, resources shared and freed by workers, and the report of a run."""

import gc
import importlib.util
import os
import subprocess
import sys
import types
import weakref

import jax
import numpy as np
import pytest
from hypothesis.internal.conjecture import providers
from jax._src import compiler as jax_compiler

import helpers
import meshflow as tf
import nearest
import tiers
from together import together

SAMPLE = """
import helpers, pytest

begun = []

def test_short():
    begun.append("short")
    assert helpers.rounds(2, 200) == {rounds}

@pytest.mark.soak
def test_for_hours():
    pass

@pytest.mark.long
def test_long():
    assert not begun
"""


@pytest.mark.parametrize(("soak", "passed", "rounds"), [("0", 2, 2), ("1", 3, 200)])
def test_soak_tests_run_on_request_and_long_tests_first(
    tmp_path, monkeypatch, request, soak, passed, rounds
):
    monkeypatch.setenv("MESHFLOW_SOAK", soak)
    (tmp_path / "test_sample.py").write_text(SAMPLE.format(rounds=rounds))
    root = request.config.rootpath
    command = [sys.executable, "-m", "pytest", "-c", root / "pyproject.toml", "-p", "conftest"]
    command += ["-p", "no:cacheprovider", tmp_path]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert f"{passed} passed" in done.stdout, done.stdout + done.stderr
    assert "seconds by area: " in done.stdout
    assert "peak memory of this process" in done.stdout and "raised by" in done.stdout


@pytest.mark.parametrize(
    ("nodeid", "area"),
    [
        ("tests/data/test_csv.py::test_x[a/b]", "data"),
        ("tests/keras/mixed_precision/test_float8.py::test_x", "keras"),
        ("tests/test_package.py::test_x", "package"),
        ("src/meshflow/data/execution/affine.py::meshflow.data.execution.affine", "examples: data"),
        ("src/meshflow/linalg.py::meshflow.linalg", "examples: package"),
    ],
)
def test_areas(nodeid, area):
    assert tiers.area(nodeid) == area


def test_programs_are_shared_with_processes():
    folder = os.environ["JAX_COMPILATION_CACHE_DIR"]
    assert jax.config.jax_compilation_cache_dir == folder
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 0
    # Compiled here and nowhere else: its number is in the program.
    number = np.random.default_rng().integers(1 << 40)
    before = set(os.listdir(folder)) if os.path.isdir(folder) else set()
    jax.jit(lambda x: x * number + 1)(np.arange(3)).block_until_ready()
    assert set(os.listdir(folder)) - before
    # Programs that other code partitions are those of their process.
    assert not jax.config.jax_remove_custom_partitioning_ptr_from_cache_key


def test_examples_do_not_depend_on_the_imported_modules():
    if not helpers.SOAK:
        assert len(providers._get_local_constants()) == 0


def test_modules_are_compiled_once_for_all_processes(tmp_path):
    module = tmp_path / "sample.py"
    module.write_text("")
    subprocess.run([sys.executable, "-c", "import sample"], cwd=tmp_path, check=True, timeout=60)
    assert os.path.exists(importlib.util.cache_from_source(str(module)))
    assert not sys.dont_write_bytecode


def test_grown_workers_free_their_programs(monkeypatch):
    made = []

    def program(x):
        made.append(1)
        return x + 1

    run = jax.jit(program)
    freeing = tiers.Freeing()
    run(1)
    monkeypatch.setattr(tiers, "resident", lambda: tiers.GROWN // 2)
    freeing.pytest_runtest_teardown(nextitem=object())
    run(1)
    assert len(made) == 1
    monkeypatch.setattr(tiers, "resident", lambda: 2 * tiers.GROWN)
    freeing.pytest_runtest_teardown(nextitem=object())
    # Before this run's own looks after this test.
    monkeypatch.undo()
    run(1)
    assert len(made) == 2
    # Remaining memory is not freed repeatedly.
    assert freeing.limit > 2 * tiers.GROWN


def test_remaining_objects_are_visited_again_when_programs_are_freed(monkeypatch):
    class Cycle:
        def __init__(self):
            self.itself = self

    freeing, cycle = tiers.Freeing(), Cycle()
    ended = weakref.ref(cycle)
    monkeypatch.setattr(tiers, "resident", lambda: 0)
    for _ in range(tiers.TESTS_BETWEEN):
        freeing.pytest_runtest_teardown(nextitem=object())
    del cycle
    gc.collect()
    assert ended() is not None
    monkeypatch.setattr(tiers, "resident", lambda: 2 * tiers.GROWN)
    freeing.pytest_runtest_teardown(nextitem=object())
    assert ended() is None


def test_unused_programs_are_removed(monkeypatch, tmp_path):
    monkeypatch.setattr(tiers, "KEPT_LIMIT", 15)
    for name, seconds in (("a/read", 5), ("a/unused", 3), ("b/new", 9)):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes(7))
        os.utime(file, (seconds, 1))
    (tmp_path / "b" / "link").symlink_to("removed")
    tiers._forget_programs(tmp_path)
    assert sorted(file.name for file in tmp_path.glob("*/*")) == ["link", "new", "read"]
    monkeypatch.setattr(tiers, "KEPT_LIMIT", 0)
    tiers._forget_programs(tmp_path)
    # Other runs can still write to the folders.
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["a", "b"]


def test_some_tests_run_the_programs_that_users_get(monkeypatch, request):
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_hlo_as_text=false {tiers.PLAIN_FLAGS}")
    compiling = tiers.Compiling()

    def options():
        return dict(jax_compiler.get_compile_options(1, 1).env_option_overrides)

    def item(marker=None):
        return types.SimpleNamespace(get_closest_marker={"optimized": marker}.get)

    plain = options()
    compiling.pytest_runtest_setup(item(marker="there is one"))
    assert options() == {**plain, **tiers.USUAL}
    assert os.environ["XLA_FLAGS"] == "--xla_dump_hlo_as_text=false"
    compiling.pytest_runtest_setup(item())
    assert options() == plain and tiers.PLAIN_FLAGS in os.environ["XLA_FLAGS"]


def test_expressions_are_compiled_together(monkeypatch):
    monkeypatch.setattr("helpers.SOAK", False)
    calls = []

    def compute(key, arrays):
        calls.append((key, tf.executing_eagerly()))
        if key == "wrong":
            raise ValueError("wrong")
        return key if key == "text" else arrays["a"] * key

    result = together(compute, [2, "text", 3, "wrong", 4], {"a": tf.constant([1, 2])}, size=4)
    assert [result(key).numpy().tolist() for key in (2, 3)] == [[2, 4], [3, 6]]
    assert not any(eager for _, eager in calls) and len(calls) == 4
    assert result("text") == "text" and calls[-1] == ("text", True)
    with pytest.raises(ValueError, match="wrong"):
        result("wrong")
    assert result(4).numpy().tolist() == [4, 8] and calls[-1] == (4, False)
    monkeypatch.setattr("helpers.SOAK", True)
    assert result(2).numpy().tolist() == [2, 4] and calls[-1] == (2, True)


def test_areas_that_try_a_file():
    assert nearest.areas_of("src/meshflow/data/execution/affine.py") == ["data"]
    assert nearest.areas_of("src/meshflow/linalg.py") == ["ops"]
    assert nearest.areas_of("src/meshflow/numpy/math.py") == ["tnp"]
    assert nearest.areas_of("tests/keras/engine/training/test_fit.py") == ["keras"]
    assert nearest.areas_of("docs/conf.py") == []


def test_tests_that_name_changed_modules_come_first():
    first, scores = nearest.rank_tests(
        ["src/meshflow/core/values/nest.py", "tests/io/test_records.py"]
    )
    assert first == ["src/meshflow/core/values/nest.py", "tests/io/test_records.py"]
    assert max(scores, key=scores.get) == "tests/core/test_nest.py"


def test_as_many_as_fit_are_chosen():
    seconds = {"tests/a/test_1.py": 50, "tests/a/test_2.py": 90, "tests/a/test_3.py": 5}
    scores = {"tests/a/test_2.py": 9, "tests/a/test_1.py": 7, "tests/a/test_3.py": 3}
    assert nearest.choose_tests([], scores, seconds, 100) == [
        "tests/a/test_2.py",
        "tests/a/test_3.py",
    ]
    # Changed tests run in any case.
    first = ["src/meshflow/a/x.py", "tests/a/test_4.py"]
    assert nearest.choose_tests(first, scores, {**seconds, "tests/a/test_4.py": 99}, 100) == first


def test_changes_are_those_against_main(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, timeout=60)

    git("init", "-q", "-b", "main")
    for name in ("a.py", "b.py", "c.txt"):
        (tmp_path / name).write_text("")
    git("add", "-A")
    git("commit", "-qm", "One")
    git("checkout", "-qb", "work")
    (tmp_path / "b.py").write_text("x = 1")
    git("commit", "-qam", "Two")
    (tmp_path / "c.txt").write_text("x")
    (tmp_path / "new.py").write_text("")
    assert nearest.find_changed_files(tmp_path) == ["b.py", "new.py"]


def test_every_value_of_combined_parameters_occurs(monkeypatch):
    monkeypatch.setattr("helpers.SOAK", False)
    assert helpers.combine("abc", [1, 2]) == [("a", 1), ("b", 2), ("c", 1)]
    monkeypatch.setattr("helpers.SOAK", True)
    assert helpers.combine("ab", [1, 2]) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
