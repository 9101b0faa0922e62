"""How split axes pass through equations."""

import jax
import jax.numpy as jnp

from meshflow.distribute.parallel.planner.splits import propagate_splits


def axes_of_results(function, axis, *shapes):
    """The split axes of a function's results, where its first operand is split along an axis."""
    jaxpr = jax.make_jaxpr(function)(*(jnp.ones(shape) for shape in shapes)).jaxpr
    found = propagate_splits(jaxpr, {jaxpr.invars[0]: axis})
    return [found.axes.get(v) for v in jaxpr.outvars]


def test_scan_rows_have_one_axis_less():
    def run(rows, state):
        return jax.lax.scan(lambda s, row: (s + row, 2 * row), state, rows)

    assert axes_of_results(run, 1, (3, 4, 5), (4, 5)) == [0, 1]
    assert axes_of_results(run, 2, (3, 4, 5), (4, 5)) == [1, 2]
    # Every device needs all rows.
    assert axes_of_results(run, 0, (3, 4, 5), (4, 5)) == [None, None]


def test_constants_of_scan_are_no_rows():
    def run(weights, rows):
        return jax.lax.scan(lambda s, row: (s * weights + row, s * weights), jnp.zeros((4,)), rows)

    assert axes_of_results(run, 0, (4,), (3, 4)) == [0, 1]


def test_unstacked_parts_keep_the_other_axes():
    for axis, removed, expected in ((0, 1, 0), (1, 0, 0), (2, 1, 1), (1, 1, None)):
        found = axes_of_results(lambda x, a=removed: jnp.unstack(x, axis=a), axis, (2, 3, 4))
        assert found == [expected] * (2, 3, 4)[removed]
