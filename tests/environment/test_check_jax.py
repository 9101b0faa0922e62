"""The command that compares an installed JAX with the version that was tested last."""

import ast
import importlib.util
import json
import sys
from pathlib import Path

import jax
import pytest

from meshflow.environment import jax_internals

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_jax.py"


@pytest.fixture(scope="module")
def check_jax():
    spec = importlib.util.spec_from_file_location("check_jax", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def record(check_jax):
    return json.loads(check_jax.RECORD.read_text())


def test_names_are_collected_by_their_full_names(check_jax):
    text = """
import jax.numpy as jnp
from jax._src.lib import xla_client as _client
jnp.linalg.norm(1)
getattr(_client, "batched", None)
jaxlike.numpy.where
"""
    assert set(check_jax.collect_names(ast.parse(text))) == {
        *("jax.numpy", "jax.numpy.linalg", "jax.numpy.linalg.norm"),
        *("jax._src.lib.xla_client", "jax._src.lib.xla_client.batched"),
    }


def test_changes_are_printed(check_jax):
    old = {
        "names": {"jax.a": "x y", "jax.b": "x", "jax.c": "x y"},
        "primitives": {"scan": "num_consts length", "call": ""},
    }
    new = {
        "names": {"jax.b": "x", "jax.c": "y x"},
        "primitives": {"scan": "ft_in length", "log2": ""},
    }
    assert check_jax.compare(old, new) == [
        "missing name: jax.a",
        "parameters jax.c: order is now y x",
        "parameters of primitive scan: -num_consts +ft_in",
        "primitive no longer used: call",
        "new primitive: log2",
    ]
    assert check_jax.compare(old, old) == []


@pytest.fixture(scope="module")
def installed(check_jax, record):
    return check_jax.describe(record["names"])


def test_every_name_that_the_package_uses_exists_here(record, installed):
    assert not set(record["names"]) - set(installed["names"])
    if jax.__version__ == record["version"]:
        assert installed["primitives"] == record["primitives"]
        return
    # Parameters of primitives that differ between the versions are in the table.
    table = " ".join(d.change for d in jax_internals.DIFFERENCES)
    for name, params in record["primitives"].items():
        if installed["primitives"].get(name) != params:
            assert f"`{name}`" in table, (
                f"{name}: {installed['primitives'].get(name)}, not {params}"
            )


def test_the_newest_supported_version_is_recorded(record):
    _, _, first_unsupported = jax_internals.SUPPORTED.partition(",<")
    major, minor = map(int, first_unsupported.split("."))
    assert record["version"].startswith(f"{major}.{minor - 1}.")


def test_the_result_is_the_number_of_a_failure_when_something_changed(
    check_jax, installed, monkeypatch, capsys, tmp_path
):
    record = tmp_path / "record.json"
    monkeypatch.setattr(check_jax, "RECORD", record)
    monkeypatch.setattr(check_jax, "describe", lambda names: installed)
    monkeypatch.setattr(sys, "argv", ["check_jax.py"])
    record.write_text(json.dumps(installed))
    assert check_jax.main() == 0
    assert f"JAX {jax.__version__}, compared with {jax.__version__}:" in capsys.readouterr().out
    record.write_text(json.dumps({**installed, "names": {"jax.was_there": "x"}}))
    assert check_jax.main() == 1
    assert "missing name: jax.was_there" in capsys.readouterr().out
