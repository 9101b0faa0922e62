"""Test that op names in files do not depend on Python names."""

import importlib
import pkgutil
from pathlib import Path

import pytest

import meshflow
from meshflow.core.dispatch import op_names
from meshflow.core.dispatch.stored_op_names import STORED_NAMES

STORED = Path(__file__).parents[1] / "reference" / "op_names.txt"


@pytest.fixture(scope="module")
def registered():
    for module in pkgutil.walk_packages(meshflow.__path__, "meshflow."):
        if not module.name.endswith(("__main__", "libmeshflow_onednn")):
            importlib.import_module(module.name)
    return op_names._functions


def test_every_stored_op_name_is_registered(registered):
    missing = [name for name in STORED.read_text().split() if name not in registered]
    assert not missing, "add the new names of these ops to core/dispatch/stored_op_names.py"


def test_every_entry_belongs_to_an_op(registered):
    # A public function and the op that it calls may have the same Python name.
    current = {
        (f"{function.__module__.removeprefix('meshflow.')}.{function.__name__}", name)
        for name, function in registered.items()
    }
    stale = STORED_NAMES.items() - current
    assert not stale, "these entries name no op"
