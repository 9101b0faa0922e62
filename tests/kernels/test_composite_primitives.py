"""The result types that composite primitives list are those of their equations."""

import functools

import jax
import jax.numpy as jnp
import pytest

from kernels.test_recurrent import FLAGS, make_operands, slopes
from meshflow.environment.inner_jaxprs import find_inner_jaxprs
from meshflow.kernels import cross_entropy, recurrent
from meshflow.kernels.composite_primitives import composites, have_shapes
from meshflow.ops.nn.cross_entropy import _compute_negative_log

LISTS = {
    p: functools.partial(module._list_types, p)
    for module, primitives in {
        recurrent: (recurrent.layer_p, recurrent.tangent_p, recurrent.gradient_p),
        cross_entropy: (cross_entropy.loss_p, cross_entropy.gradient_p, cross_entropy.tangent_p),
    }.items()
    for p in primitives
}


def list_equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in find_inner_jaxprs(equation):
            yield from list_equations(inner)


def check(function, *arrays):
    """Compare the types of the equations of these primitives, and return the primitives."""
    closed = jax.make_jaxpr(function)(*arrays)
    equations = [e for e in list_equations(closed.jaxpr) if e.primitive in LISTS]
    for equation in equations:
        primitive, parameters = equation.primitive, equation.params
        operands = [v.aval for v in equation.invars]
        compute = functools.partial(composites[primitive], **parameters)
        wanted = jax.make_jaxpr(compute)(*operands).out_avals
        listed = LISTS[primitive](operands, parameters)
        assert [jax.core.ShapedArray(*t) for t in listed] == wanted, equation
        assert [v.aval for v in equation.outvars] == wanted, equation
    return {e.primitive for e in equations}


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("kind", recurrent.KINDS)
def test_recurrent_layers(kind, flags):
    form = recurrent.RecurrentForm(kind, *map(bool, flags))
    arrays = make_operands(form, (3, 2, 5, 4), "bfloat16")
    floats = [a for a in arrays if a.dtype != bool]

    def run(*floats):
        supply = iter(floats)
        return recurrent.run_layer(form, *[a if a.dtype == bool else next(supply) for a in arrays])

    found = check(functools.partial(slopes, recurrent.run_layer, form), arrays)
    found |= check(lambda *p: jax.jvp(run, p, p), *floats)
    assert found == {recurrent.layer_p, recurrent.tangent_p, recurrent.gradient_p}


@pytest.mark.parametrize("shape", [(7,), (2, 3, 7)])
def test_cross_entropy(shape):
    logits, index = jnp.ones(shape, jnp.bfloat16), jnp.zeros(shape[:-1], jnp.int32)
    loss = lambda x: _compute_negative_log(x, index)
    total = lambda x: loss(x).sum()
    found = check(jax.grad(total), logits) | check(lambda x: jax.jvp(loss, (x,), (x,)), logits)
    assert found == {cross_entropy.loss_p, cross_entropy.gradient_p, cross_entropy.tangent_p}


def test_broadcast_operands_are_traced():
    form = recurrent.RecurrentForm("lstm", *[False] * 7)
    x, *rest, memory = make_operands(form, (3, 2, 5, 4))
    operands = [jax.core.ShapedArray(a.shape, a.dtype) for a in (x, *rest, memory[:1])]
    parameters = {"form": form, "saves": False}
    assert LISTS[recurrent.layer_p](operands, parameters) is None
    wide = [jax.core.ShapedArray(a.shape, jnp.int32) for a in (x, *rest, memory)]
    assert LISTS[recurrent.layer_p](wide, parameters) is None


def test_unequal_symbolic_sizes_need_no_decision():
    rows, columns = jax.export.symbolic_shape("a, b")
    aval = jax.core.ShapedArray((rows, columns), jnp.float32)
    assert have_shapes([aval], [(rows, columns)])
    assert not have_shapes([aval], [(columns, rows)])
