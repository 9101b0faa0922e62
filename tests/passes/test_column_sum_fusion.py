"""Sums over leading axes that are fused with their terms have the values of the equations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

from meshflow.kernels import library, lowerings
from meshflow.kernels.column_sums import column_sums_p
from meshflow.passes.column_sum_fusion import fuse_column_sums

TERMS = {
    "products": lambda x, y: (x * y).sum((0, 1)),
    "squares": lambda x, y: jnp.square(x - y[:1, :1]).sum((0, 1)),
    "elements": lambda x, y: x.sum((0, 1)),
}


def widen(function):
    return lambda x, y: function(x.astype("float32"), y.astype("float32"))


def is_fast():
    specs = [jax.ShapeDtypeStruct((1 << 10, 32), "float32"), jax.ShapeDtypeStruct((32,), "float32")]
    call = lowerings.choose_sum(specs[:1], specs[1], "elements", False, 0)
    return call is not None and library.load() is not None


pytestmark = pytest.mark.skipif(not is_fast(), reason="the processor has no fast code")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("columns", [8, 31, 144, 1000])
@pytest.mark.parametrize("terms", TERMS)
def test_sums(rng, terms, columns, dtype):
    x, y = (jnp.asarray(rng.normal(size=(77, 67, columns)), dtype) for _ in range(2))
    function = widen(TERMS[terms])
    closed = fuse_column_sums(jax.make_jaxpr(function)(x, y))
    fused = [e for e in closed.jaxpr.eqns if e.primitive is column_sums_p]
    assert len(fused) == (terms != "elements" or dtype == "bfloat16")
    if terms != "squares":
        assert {v.aval.dtype.name for e in fused for v in e.invars} <= {dtype}
    run = jax.jit(jaxpr_as_fun(closed))
    assert run.lower(x, y).as_text().count("meshflow_onednn") == (bool(fused) or columns > 8)
    (found,) = run(x, y)
    wanted = TERMS[terms](*(np.asarray(a, "float64") for a in (x, y)))
    scale = np.abs(wanted).max() + (terms != "squares") * 77 * 67
    np.testing.assert_allclose(np.asarray(found) / scale, wanted / scale, atol=1e-6)
    np.testing.assert_array_equal(found, run(x, y)[0])


ROW_TERMS = {
    "squares": lambda x, y: jnp.square(x - y[..., :1]).sum(-1),
    "elements": lambda x, y: x.sum(-1) + (x - 1)[..., 0],
}


@pytest.mark.parametrize("columns", [8, 31, 144, 1000])
@pytest.mark.parametrize("terms", ROW_TERMS)
def test_sums_of_rows(rng, terms, columns):
    x, y = (jnp.asarray(rng.normal(size=(77, 67, columns)), "float32") for _ in range(2))
    closed = fuse_column_sums(jax.make_jaxpr(ROW_TERMS[terms])(x, y))
    assert [e.primitive for e in closed.jaxpr.eqns].count(column_sums_p) == 1
    run = jax.jit(jaxpr_as_fun(closed))
    assert "meshflow_onednn" in run.lower(x, y).as_text()
    wanted = ROW_TERMS[terms](*(np.asarray(a, "float64") for a in (x, y)))
    np.testing.assert_allclose(run(x, y)[0], wanted, rtol=1e-5, atol=1e-4)


def add_used(x, y):
    product = x * y
    return product.sum((0, 1)) + product[0, 0]


OTHERS = {
    "used terms": add_used,
    "literal": lambda x, y: (x * 2.0).sum((0, 1)),
    "no axes": lambda x, y: (x * y).sum(()),
    "other axes": lambda x, y: (x * y).sum(1),
    "products of rows": lambda x, y: (x * y).sum(-1),
    "rows that are computed": lambda x, y: (2 * x).sum(-1) + (1 - x)[..., 0],
    "softmax": lambda x, y: jnp.exp(x) / jnp.exp(x).sum(-1, keepdims=True),
    "small": lambda x, y: (x[:2, :8] * y[:2, :8]).sum((0, 1)),
    "two matrices": lambda x, y: jnp.square(x - y).sum((0, 1)),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_sums_remain(case):
    x = jnp.ones((40, 32, 32), "float32")
    closed = jax.make_jaxpr(OTHERS[case])(x, x)
    assert fuse_column_sums(closed) is closed
