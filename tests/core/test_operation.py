"""Compiled forms of ops."""

import pytest

from meshflow.core.dispatch import dispatch, operation
from meshflow.core.values.tensor import TensorLike


def test_ops_forget_the_oldest_of_too_many_forms(monkeypatch):
    monkeypatch.setattr(operation, "FORMS", 3)
    op = operation.Op("plus", lambda operands, static: operands[0] + static[0])
    for number in range(5):
        assert op.compiled((number,))(1) == 1 + number
        assert op.gradient((number,), (True,)) is op.gradient((number,), (True,))
        assert op.residual((number,), (True,)) is op.residual((number,), (True,))
    assert list(op._compiled) == [(2,), (3,), (4,)]
    assert len(op._gradients) == len(op._residual) == 3


def test_annotations_that_python_evaluated_are_refused():
    def double(x: TensorLike, name: str | None = None):
        return x + x

    with pytest.raises(TypeError, match=r"Op twice .*from __future__ import annotations"):
        dispatch.op(double, name="twice")
