"""The package registers every constructor that methods of datasets call, and the stub declares it."""

import ast
import importlib
from pathlib import Path

import pytest

from meshflow.data import methods
from meshflow.data.methods import constructors

METHODS = Path(methods.__file__).parent


def find_called_constructors():
    return {
        node.attr
        for path in METHODS.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "constructors"
    }


def test_all_constructors_are_registered():
    names = find_called_constructors()
    assert len(names) > 30
    assert names <= vars(constructors).keys()


def test_the_stub_names_the_classes_that_are_called():
    tree = ast.parse((METHODS / "constructors.pyi").read_text())
    imported = {
        alias.asname: getattr(importlib.import_module(node.module), alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module.startswith("meshflow")
        for alias in node.names
    }
    del imported["Dataset"]  # it is only used in annotations
    assert imported.keys() == find_called_constructors()
    assert all(vars(constructors)[name] is value for name, value in imported.items())


def test_an_unknown_constructor_is_an_error():
    with pytest.raises(AttributeError, match=r"'Nothing'.*__all__"):
        _ = constructors.Nothing
