"""Compiled forms of ops."""

import pytest

from meshflow.core.dispatch import dispatch, operation
from meshflow.core.values.tensor import TensorLike


def test_ops_forget_the_oldest_of_too_many_forms(monkeypatch):
    monkeypatch.setattr(operation, "MAX_CACHED_FORMS", 3)
    op = operation.Op("plus", lambda operands, static: operands[0] + static[0])
    for number in range(5):
        assert op.get_eager((number,))(1) == 1 + number
        assert op.get_gradient_op((number,), (True,)) is op.get_gradient_op((number,), (True,))
        assert op.get_residual_function((number,), (True,)) is op.get_residual_function(
            (number,), (True,)
        )
    assert list(op._eager_forms) == [(2,), (3,), (4,)]
    assert len(op._gradient_ops) == len(op._residual_functions) == 3


def test_annotations_that_python_evaluated_are_refused():
    def double(x: TensorLike, name: str | None = None):
        return x + x

    with pytest.raises(TypeError, match=r"Op twice .*from __future__ import annotations"):
        dispatch.op(double, name="twice")
