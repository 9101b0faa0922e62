"""What methods of datasets make is registered by the package's face."""

import ast
from pathlib import Path

import pytest

from meshflow.data import methods
from meshflow.data.methods.constructors import make

METHODS = Path(methods.__file__).parent


def test_all_that_methods_make_is_known():
    wanted = {
        node.attr
        for path in METHODS.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "make"
    }
    assert len(wanted) > 30
    assert wanted <= vars(make).keys()


def test_an_unknown_one_says_where_it_belongs():
    with pytest.raises(AttributeError, match=r"'Nothing'.*__all__"):
        _ = make.Nothing
