"""Test which equations compute each row from the same row of their operands."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from meshflow.distribute.parallel.row_order import RowOrder, pair_variables
from meshflow.environment.jax_internals import jex_core
from meshflow.passes.jaxprs import inline_calls

ROWS, COLUMNS, CHANNELS = 3, 4, 5


def keeps_rows(function):
    trace = lambda rows: (
        inline_calls(jax.make_jaxpr(function)(jnp.zeros([rows, COLUMNS, CHANNELS]))).jaxpr
    )
    jaxpr, other = trace(ROWS), trace(2 * ROWS)
    twins = pair_variables(jaxpr, other)

    def get_row_axis(atom):
        if isinstance(atom, jex_core.Literal) or atom not in twins:
            return None
        shape, double = atom.aval.shape, twins[atom].aval.shape
        axes = [i for i, (a, b) in enumerate(zip(shape, double, strict=True)) if a != b]
        return axes[0] if len(axes) == 1 else -1 if axes else None

    order = RowOrder(ROWS, get_row_axis)
    return all([order.keeps_rows(eqn) for eqn in jaxpr.eqns])


def convolve(x, spec):
    kernel = jnp.zeros([3, x.shape[spec.index("C")], 2])
    return lax.conv_general_dilated(x, kernel, [1], "SAME", dimension_numbers=(spec, "WIO", "NWC"))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: jnp.tanh(x) + x.mean(1, keepdims=True), True),
        (lambda x: x.reshape(-1, CHANNELS).reshape(x.shape), True),
        (lambda x: x.transpose(1, 0, 2).reshape(-1, CHANNELS), True),
        (lambda x: x.transpose(1, 0, 2).reshape(x.shape), False),
        (lambda x: x.reshape(-1, CHANNELS) + x.transpose(1, 0, 2).reshape(-1, CHANNELS), False),
        (lambda x: jnp.concatenate([x, -x])[: len(x)] + x, True),
        (lambda x: jnp.concatenate([x, -x])[1 : 1 + len(x)], False),
        (lambda x: sum(jnp.split(jnp.concatenate([x, -x]), 2)), True),
        (lambda x: jnp.concatenate([x, -x]).reshape(x.shape[0], 2, -1), False),
        (lambda x: jnp.concatenate([x, -x]).reshape(2, *x.shape), True),
        (lambda x: x[::-1], False),
        (lambda x: x[:, ::-1], True),
        (lambda x: lax.cumsum(x, 0), False),
        (lambda x: lax.cumsum(x, 1), True),
        (lambda x: lax.sort(x, dimension=0), False),
        (lambda x: lax.sort(x, dimension=2), True),
        (lambda x: x[np.zeros([len(x)], int)], False),
        (lambda x: x[:, np.array([2, 0])], True),
        (lambda x: x * lax.broadcasted_iota(jnp.float32, x.shape, 0), False),
        (lambda x: x * lax.broadcasted_iota(jnp.float32, x.shape, 1), True),
        (lambda x: convolve(x, "NWC"), True),
        (lambda x: convolve(x, "WNC"), False),
        (lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 1), (1, 1, 1), "VALID"), True),
        (lambda x: lax.reduce_window(x, 0.0, lax.add, (3, 1, 1), (1, 1, 1), "SAME"), False),
        (lambda x: lax.scan(lambda c, v: (c + v, c), jnp.zeros_like(x[0]), x)[1], False),
        (jax.checkpoint(jax.nn.softmax), True),
        (jax.checkpoint(lambda x: jax.nn.softmax(x, 0)), False),
        (lambda x: lax.scan(lambda c, v: (c + v.sum(), v + c), 0.0, x.swapaxes(0, 1))[1], False),
        (lambda x: lax.scan(lambda c, v: (c + v, c), x[:, 0], x.swapaxes(0, 1))[1], True),
    ],
)
def test_rows_are_kept(function, expected):
    assert keeps_rows(function) == expected
