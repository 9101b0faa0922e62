"""Test the analysis of equations: the inputs on which an output depends."""

import jax
from jax import lax

from meshflow.passes.jaxprs import find_output_dependencies


@jax.custom_vjp
def branching(a, b, zero):
    return lax.cond(zero < 0, lambda: (a * 0, b * 0), lambda: (a + 1, b * 2))


branching.defvjp(lambda *o: (branching(*o), None), lambda _, given: (*given, None))


def test_dependencies_through_calls_and_branches():
    def reads(function):
        (eqn,) = jax.make_jaxpr(function)(1.0, 2.0, 3.0).eqns
        return find_output_dependencies(eqn)

    assert reads(branching) == [{0, 2}, {1, 2}]
    assert reads(jax.jit(lambda a, b, c: (a * c, b, 1.0))) == [{0, 2}, {1}, set()]
    # Loop-carried values are not analysed.
    loop = lambda a, b, c: lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, *s[1:]), (a, b, c)
    )
    assert reads(loop)[0] == {0, 1, 2}
